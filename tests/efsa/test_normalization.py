"""Normalized scores: the index matches the formula, and hubs rank lower."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_rows import random_unit, unit
from recollect.efsa.normalization import (
    Normalization,
    NormalizedIndex,
    choose_normalization,
    normalized,
    reference_means,
)
from recollect.index import Index, Rows


def ranking(vectors, means, alpha, queries):
    index = Index.create(width=vectors.shape[1], model="m")
    ids = [str(row) for row in range(len(vectors))]
    index.insert(Rows(vectors, ids=ids))
    return NormalizedIndex(index, ids, vectors, means, Normalization(alpha, 1)).lookup(queries, len(vectors))


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9), st.integers(1, 12), st.floats(0, 2))
def test_the_normalized_index_matches_the_formula(seed, images, references, k, alpha):
    generator = np.random.default_rng(seed)
    gallery, texts, queries = (random_unit(generator, number, 4) for number in (images, references, 3))
    means = reference_means(gallery, texts, k)
    exact = gallery.astype(np.float64) @ texts.astype(np.float64).T
    slow = [np.mean(sorted(row, reverse=True)[:k]) for row in exact]
    assert means == pytest.approx(slow, abs=1e-6)
    found = ranking(gallery, means, alpha, queries)
    for query, ids, scores in zip(queries, found.ids, found.scores, strict=True):
        wanted = gallery.astype(np.float64) @ query - alpha * np.array(slow)
        assert scores == pytest.approx(sorted(wanted, reverse=True), abs=1e-5)
        assert [wanted[int(id)] for id in ids] == pytest.approx(scores.tolist(), abs=1e-5)


def test_normalization_removes_a_hub_from_the_top():
    """An image near all references ranks first for most queries without normalization, and for none with it."""
    generator = np.random.default_rng(1)
    common = np.eye(8, dtype=np.float32)[0]
    references = unit(random_unit(generator, 60, 8) + 1.2 * common)
    gallery = np.concatenate([unit(references[:10] - 0.9 * common), common[None]])
    queries = references[:10]
    means = reference_means(gallery, references, 30)
    before, after = (ranking(gallery, means, alpha, queries).ids for alpha in (0.0, 1.0))
    assert (before[:, 0] == "10").sum() >= 8
    assert (after[:, 0] == [str(row) for row in range(10)]).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_choice_matches_explicit_leave_one_out(seed):
    """The reference removes each caption in turn, recomputes all means, and ranks the caption's image."""
    generator = np.random.default_rng(seed)
    images, owners = random_unit(generator, 12, 5), np.arange(9)
    texts = unit(random_unit(generator, 9, 5) + images[:9] + 0.8 * random_unit(generator, 1, 5))
    slow = {}
    for alpha in (0.0, 0.5, 1.0):
        for k in (1, 3, 8):
            values = []
            for text in range(9):
                rest = np.delete(texts, text, axis=0).astype(np.float64)
                means = np.sort(images.astype(np.float64) @ rest.T, axis=1)[:, ::-1][:, :k].mean(axis=1)
                scores = images.astype(np.float64) @ texts[text] - alpha * means
                values.append(1 / (1 + (scores > scores[owners[text]] + 1e-9).sum()))
            slow[alpha, k] = np.mean(values)
    found = choose_normalization(images, texts, owners, alphas=(0.0, 0.5, 1.0), nearest=(1, 3, 8))
    assert found.reciprocal_rank == pytest.approx(max(slow.values()))
    assert slow[found.alpha, found.k] == pytest.approx(found.reciprocal_rank)
    assert found.plain == pytest.approx(slow[0.0, 1])
    assert found.alpha == min(alpha for (alpha, _), value in slow.items() if value > max(slow.values()) - 1e-9)


@pytest.fixture(scope="module")
def encoder(make_encoder):
    return make_encoder("clip")


def test_a_normalized_index_can_be_searched_and_filtered(encoder, make_index):
    index = make_index(encoder)

    def ids(index, **more):
        return [hit.id for hit in index.search("queen", 24, **more)]

    assert ids(normalized(index, Normalization(0.0, 8))) == ids(index)
    chosen = normalized(index)
    assert chosen.settings.reciprocal_rank >= chosen.settings.plain
    half = normalized(index, Normalization(0.5, 8))
    odd = [id for id in ids(half) if int(id) % 2]
    assert ids(half, where="domain = 'odd'") == odd  # uses the means of the whole index
