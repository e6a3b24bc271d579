"""Batched episodes equal sequential ones with PEFT, and leave the model unchanged."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.efsa.batch import shared_rows
from recollect.efsa.episodes import Episodes
from recollect.efsa.options import BLOCKS_RATE, HEADS_RATE, EpisodeOptions
from recollect.models import build_model
from recollect_papers.efsa.sequential import SequentialEpisodes

BASE = EpisodeOptions.paper(k=5, rank=4)
ALTERNATIVES = {
    "default": BASE,
    "scale 15": replace(BASE, scale=15.0),
    "scale 15/√r": replace(BASE, scale=15 / 4**0.5),
    "temperature 1": replace(BASE, temperature=1.0),
    "symmetric": replace(BASE, direction="symmetric"),
    "hinge only": replace(BASE, contrastive=0.0),
}


@pytest.mark.parametrize("options", ALTERNATIVES.values(), ids=list(ALTERNATIVES))
def test_batched_episodes_match_the_sequential_reference(encoder, make_episode_batch, options):
    """Scores agree with the PEFT loop to 1e-10 in float64, and rankings are equal."""
    batch = make_episode_batch(encoder, holes=True, repeats=True)
    fast, slow = Episodes(encoder, options), SequentialEpisodes(encoder, options)
    ours, theirs = fast.rerank(batch), slow.rerank(batch)
    torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-10, rtol=0, equal_nan=True)
    known = theirs.scores.nan_to_num(-9)
    assert torch.equal(ours.scores.nan_to_num(-9).argsort(dim=1), known.argsort(dim=1))
    assert ours.pairs.tolist() == theirs.pairs.tolist()
    assert not ours.failed.any()


def test_the_model_is_bit_for_bit_unchanged_afterwards(make_encoder, make_episode_batch):
    encoder = make_encoder("siglip").train()
    batch = make_episode_batch(encoder)
    before = copy.deepcopy(encoder.state_dict())
    requires_grad_before = {name: parameter.requires_grad for name, parameter in encoder.named_parameters()}
    one = Episodes(encoder, BASE).rerank(batch).scores
    after = encoder.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {name: parameter.requires_grad for name, parameter in encoder.named_parameters()} == requires_grad_before
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert encoder.training
    assert not any("forward" in vars(module) for module in encoder.modules())
    assert torch.equal(Episodes(encoder, BASE).rerank(batch).scores, one)


def test_a_nonfinite_loss_affects_only_its_query(make_encoder, make_episode_batch):
    encoder = make_encoder("clip").double()
    batch = make_episode_batch(encoder, pictures=15)
    batch.images[:] = torch.arange(15).view(3, 5)
    batch.texts[:] = batch.images
    wanted = Episodes(encoder, BASE).rerank(batch).scores
    batch.pixels[7] = torch.inf  # a candidate of the second query only
    for episodes in (Episodes(encoder, BASE), SequentialEpisodes(encoder, BASE)):
        found = episodes.rerank(batch)
        assert found.failed.tolist() == [False, True, False]
        assert found.scores[1].isnan().all()
        torch.testing.assert_close(found.scores[[0, 2]], wanted[[0, 2]], atol=1e-10, rtol=0)


def test_shared_candidates_are_encoded_once_for_the_gradient_and_per_query_for_the_ranking(
    make_encoder, make_episode_batch, monkeypatch
):
    encoder = make_encoder("clip").double()
    batch = make_episode_batch(encoder, queries=3, k=5, pictures=7)
    rows = []
    encode = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda pixels: rows.append(len(pixels)) or encode(pixels))
    Episodes(encoder, BASE).rerank(batch)
    assert sum(rows) == len(batch.images.unique()) + 15


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 5), st.integers(5, 9))
def test_shared_rows_cover_every_position_once(seed, queries, k, union):
    generator = np.random.default_rng(seed)
    rows = torch.from_numpy(generator.integers(0, union, size=(queries, k)))
    counted = torch.from_numpy(generator.random((queries, k)) < 0.7)
    groups = shared_rows(rows, counted)
    places = [int(place) for group in groups for place in group.places.flatten()]
    assert sorted(places) == counted.flatten().nonzero()[:, 0].tolist()
    forward = [int(row) for group in groups for row in group.rows]
    assert sorted(forward) == rows[counted].unique().tolist()
    for group in groups:
        assert (rows.flatten()[group.places] == group.rows).all()


def test_the_default_rate_depends_on_the_kind_of_model(make_encoder):
    """Models with only heads need a larger rate than transformer blocks, according to the validation pools."""
    heads = build_model("tiny-conv", texts=["a red tree"])
    for kind in (Episodes, SequentialEpisodes):
        assert kind(make_encoder("clip")).options.rate == BLOCKS_RATE
        assert kind(heads).options.rate == HEADS_RATE
        assert kind(heads, EpisodeOptions.paper()).options.rate == 5e-4


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 1},
        {"rank": 0},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"at_once": 0},
        {"margin": float("inf")},
        {"weight_decay": -1.0},
        {"scale": float("nan")},
    ],
)
def test_invalid_options_are_rejected(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        EpisodeOptions(**wrong)
