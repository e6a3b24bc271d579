"""Streaming ranks against dense brute force."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from index_rows import unit
from recollect.evaluation import ranks as module
from recollect.evaluation.ranks import NO_RANK, streaming_ranks


def brute_force(images, texts, matches):
    """Compute ranks by sorting the whole matrix; tied negatives rank first."""
    scores = texts.astype(np.float64) @ images.astype(np.float64).T
    true = np.zeros(scores.shape, dtype=bool)
    for text, rows in enumerate(matches):
        true[text, list(rows)] = True

    def one_way(scores, true):
        ranks = []
        for row, right in zip(scores, true, strict=True):
            if not right.any():
                ranks.append(NO_RANK)
                continue
            order = sorted(range(len(row)), key=lambda place: (-round(row[place], 6), right[place]))
            ranks.append(1 + next(rank for rank, place in enumerate(order) if right[place]))
        return ranks

    return one_way(scores, true), one_way(scores.T, true.T)


@st.composite
def pools(draw):
    generator = np.random.default_rng(draw(st.integers(0, 100_000)))
    images, texts = draw(st.integers(1, 40)), draw(st.integers(1, 30))
    share = draw(st.sampled_from([0.05, 0.3]))
    matches = [tuple(np.flatnonzero(generator.random(images) < share).tolist()) for _ in range(texts)]
    return unit(generator.normal(size=(images, 3))), unit(generator.normal(size=(texts, 3))), matches


@given(pools(), st.integers(1, 9), st.integers(1, 9))
def test_blocks_of_any_size_match_sorting_the_whole_matrix(pool, texts, images):
    before = module._TEXT_BLOCK, module._IMAGE_BLOCK
    module._TEXT_BLOCK, module._IMAGE_BLOCK = texts, images
    try:
        ranks = streaming_ranks(*pool)
    finally:
        module._TEXT_BLOCK, module._IMAGE_BLOCK = before
    expected = brute_force(*pool)
    assert ranks.texts.tolist() == expected[0]
    assert ranks.images.tolist() == expected[1]


def test_identical_embeddings_get_the_worst_ranks():
    images, texts = unit(np.ones((50, 8))), unit(np.ones((20, 8)))
    ranks = streaming_ranks(images, texts, [(row,) for row in range(20)])
    assert ranks.texts.tolist() == [50] * 20
    assert ranks.images.tolist() == [20] * 20 + [NO_RANK] * 30
