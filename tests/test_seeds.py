"""Random weights are the same in every run, whatever ran before."""

import pytest
import torch

import guide_world
from recollect.models import load_model


@pytest.fixture
def weights():
    return torch.rand(4)


@pytest.mark.parametrize("draws", [0, 3])
def test_a_fixture_with_random_weights_is_the_same_in_any_order(weights, draws):
    torch.rand(draws)
    torch.manual_seed(449999704)  # crc32 of "weights"
    assert weights.tolist() == torch.rand(4).tolist()


def test_two_checkpoints_of_a_seed_are_equal(tmp_path):
    torch.rand(5)
    guide_world.checkpoint(tmp_path / "one")
    torch.rand(7)
    guide_world.checkpoint(tmp_path / "two")
    one, two = (load_model(str(tmp_path / name)).embed_texts(["a red bridge"]) for name in ("one", "two"))
    assert one.tolist() == two.tolist()
