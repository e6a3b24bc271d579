"""Many episodes at once equal one after the other by PEFT, and leave the model as it was."""

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
    "as settled": BASE,
    "scale 15": replace(BASE, scale=15.0),
    "scale 15/√r": replace(BASE, scale=15 / 4**0.5),
    "temperature 1": replace(BASE, temperature=1.0),
    "symmetric": replace(BASE, direction="symmetric"),
    "hinge alone": replace(BASE, contrastive=0.0),
}


@pytest.mark.parametrize("options", ALTERNATIVES.values(), ids=list(ALTERNATIVES))
def test_many_at_once_are_the_sequential_ones(encoder, make_episode_batch, options):
    """Same scores and ranking as PEFT's loop, float64 to 1e-10, in every family and alternative."""
    batch = make_episode_batch(encoder, holes=True, repeats=True)
    fast, slow = Episodes(encoder, options), SequentialEpisodes(encoder, options)
    ours, theirs = fast.rerank(batch), slow.rerank(batch)
    torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-10, rtol=0, equal_nan=True)
    known = theirs.scores.nan_to_num(-9)
    assert torch.equal(ours.scores.nan_to_num(-9).argsort(dim=1), known.argsort(dim=1))
    assert ours.pairs.tolist() == theirs.pairs.tolist()
    assert not ours.failed.any()


def test_an_episode_changes_the_scores_and_another_query_does_not(encoder, make_episode_batch):
    batch = make_episode_batch(encoder)
    episodes = Episodes(encoder, replace(BASE, scale=15.0))
    together = episodes.rerank(batch)
    frozen = torch.nn.functional.normalize(encoder.encode_images(batch.pixels), dim=1)
    asked = torch.nn.functional.normalize(
        encoder.encode_texts(encoder.tokenize([query.words[0][0] for query in batch.queries])), dim=1
    )
    zero_shot = (asked[:, None] * frozen[batch.images]).sum(dim=2)
    assert (together.scores - zero_shot).abs().max() > 1e-3
    for query in range(3):
        torch.testing.assert_close(episodes.rerank(batch.one(query)).scores[0], together.scores[query])


def test_afterwards_the_model_is_bit_for_bit_what_it_was(make_encoder, make_episode_batch):
    encoder = make_encoder("siglip").train()
    batch = make_episode_batch(encoder)
    before = copy.deepcopy(encoder.state_dict())
    asking = {name: parameter.requires_grad for name, parameter in encoder.named_parameters()}
    one = Episodes(encoder, BASE).rerank(batch).scores
    after = encoder.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {name: parameter.requires_grad for name, parameter in encoder.named_parameters()} == asking
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert encoder.training
    assert not any("forward" in vars(module) for module in encoder.modules())
    assert torch.equal(Episodes(encoder, BASE).rerank(batch).scores, one)


def test_a_loss_that_is_not_finite_stays_in_its_query(make_encoder, make_episode_batch):
    encoder = make_encoder("clip").double()
    batch = make_episode_batch(encoder, pictures=15)
    batch.images[:] = torch.arange(15).view(3, 5)
    batch.texts[:] = batch.images
    wanted = Episodes(encoder, BASE).rerank(batch).scores
    batch.pixels[7] = torch.inf  # found by the second query alone
    for episodes in (Episodes(encoder, BASE), SequentialEpisodes(encoder, BASE)):
        found = episodes.rerank(batch)
        assert found.failed.tolist() == [False, True, False]
        assert found.scores[1].isnan().all()
        torch.testing.assert_close(found.scores[[0, 2]], wanted[[0, 2]], atol=1e-10, rtol=0)


def test_a_picture_that_several_queries_found_passes_the_towers_once_and_then_for_the_ranking(
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
def test_shared_rows_count_every_place_once(seed, queries, k, union):
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


def test_the_default_step_is_that_of_the_kind_of_model_and_a_named_one_stays(make_encoder):
    """Heads alone take a larger one than towers of blocks: each as its own validation pools preferred."""
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
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        EpisodeOptions(**wrong)
