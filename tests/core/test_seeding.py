import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.seeding import derive_seed, numpy_generator, seed_default_generators, torch_generator


def test_derived_seeds_are_the_same_in_every_process():
    assert derive_seed(3, "batch", 7) == 3055728670966268661  # unlike Python's hash of a string


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_different_purposes_get_different_seeds(seed, step):
    seeds = {derive_seed(seed, "batch", step), derive_seed(seed, "batch", step + 1), derive_seed(seed, "crop", step)}
    assert len(seeds) == 3


def test_numbers_and_strings_do_not_collide():
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(1) != derive_seed("1")


def test_generators_are_reproducible():
    assert numpy_generator(1, "x").integers(1 << 30) == numpy_generator(1, "x").integers(1 << 30)
    assert torch_generator(1, "x").initial_seed() == torch_generator(1, "x").initial_seed()


@given(st.integers(0, 2**63 - 1))
def test_the_default_generator_matches_torch_manual_seed(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = torch.rand(3)
        seed_default_generators(seed)
        assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("available", [False, True])
def test_accelerators_are_seeded_if_available(available, monkeypatch):
    seeded = []
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    with torch.random.fork_rng(devices=[]):
        seed_default_generators(3)
    assert seeded == [3] * available
