"""The episode loss compared with float64 loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.efsa.loss import episode_loss, negatives
from recollect.efsa.options import EpisodeOptions


def cosine(a, b):
    return float(np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b)))


def one_way_by_loops(rows, columns, captions, pairs, scale, options):
    """Compute one direction of the loss for one query; equal ``captions`` numbers mean equal texts."""
    places = [place for place in range(len(rows)) if pairs[place]]
    total = 0.0
    for i in places:
        own = cosine(rows[i], columns[i])
        others = [j for j in places if j != i and captions[j] != captions[i]]
        cosines = [cosine(rows[i], columns[j]) for j in others]
        among = math.exp(scale * own) + sum(math.exp(scale * c) for c in cosines)
        hinge = sum(max(0.0, options.margin - own + c) for c in cosines)
        total += options.contrastive * -math.log(math.exp(scale * own) / among) + options.hinge * hinge
    return total / max(1, len(places))


def by_loops(images, texts, captions, pairs, scale, options):
    loss = one_way_by_loops(images, texts, captions, pairs, scale, options)
    if options.direction == "image-to-text":
        return loss
    return (loss + one_way_by_loops(texts, images, captions, pairs, scale, options)) / 2


@st.composite
def cases(draw):
    seed, k = draw(st.integers(0, 10_000)), draw(st.integers(2, 6))
    generator = np.random.default_rng(seed)
    captions = generator.integers(0, k, size=(2, k))  # equal numbers mean equal captions
    pairs = generator.random((2, k)) < draw(st.sampled_from([0.3, 1.0]))
    options = EpisodeOptions(
        direction=draw(st.sampled_from(["image-to-text", "symmetric"])), margin=draw(st.sampled_from([0.0, 0.2, 0.7]))
    )
    images, texts = generator.normal(size=(2, 2, k, 4))
    return images, texts, captions, pairs, draw(st.sampled_from([1.0, 14.0])), options


@given(cases())
def test_the_loss_sums_over_all_images_and_wrong_captions(case):
    images, texts, captions, pairs, scale, options = case
    numbers, counted = torch.from_numpy(captions), torch.from_numpy(pairs)
    wrong = negatives(numbers, counted)
    found = episode_loss(torch.from_numpy(images), torch.from_numpy(texts), counted, wrong, scale, options)
    for query in range(2):
        wanted = by_loops(images[query], texts[query], captions[query], pairs[query], scale, options)
        assert found[query].item() == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_the_hinge_pulls_the_true_pair_together_unlike_the_printed_formula():
    """Eq. 2 as printed adds + s_ii, so a step would decrease the similarity of the pair."""
    options = EpisodeOptions(contrastive=0.0, hinge=1.0)
    images = torch.tensor([[[1.0, 0.2], [0.2, 1.0]]], dtype=torch.float64)
    texts = torch.tensor([[[0.6, 0.5], [0.5, 0.6]]], dtype=torch.float64, requires_grad=True)
    counted = torch.tensor([[True, True]])
    episode_loss(images, texts, counted, negatives(torch.tensor([[0, 1]]), counted), 1.0, options).sum().backward()
    moved = (texts - 0.1 * texts.grad).detach()
    before, after = (torch.cosine_similarity(images[0, 0], each[0, 0], dim=0) for each in (texts, moved))
    assert after > before
