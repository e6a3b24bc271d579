"""Cut-offs: the guarantee of learned ones, and estimates from scores alone."""

import numpy as np
import pytest
import torch

from index_rows import HashEncoder, unit
from recollect.core.errors import UserError
from recollect.index import Index, Rows
from recollect.index.cutoff import CutOff, estimate_cut_off, learn_cut_off, score_moments


def world(captions=400, rows=900, width=24, seed=0):
    """Return images on a cone, texts near an image but tilted along the axis, and the images of the texts."""
    generator = np.random.default_rng(seed)
    axis = unit(generator.normal(size=(1, width)))[0]
    around = generator.normal(size=(rows, width))
    around = unit(around - (around @ axis)[:, None] * axis)
    owners = generator.choice(rows, captions, replace=False)
    noise = 1.5 * generator.normal(size=(captions, width)) / np.sqrt(width)
    leaning = generator.uniform(-1, 1, captions)[:, None] * axis
    return unit(around + 0.8 * axis), unit(around[owners] + noise + leaning), owners


def test_the_promised_share_of_new_captions_has_its_picture_above_the_cut_off():
    images, texts, owners = world()
    cut = learn_cut_off(images, texts[:200], owners[:200])
    limits = [cut.limit(text) for text in texts[200:]]
    share = np.mean((texts[200:] * images[owners[200:]]).sum(axis=1) >= np.array(limits))
    assert share > 0.9 - 4 * np.sqrt(0.09 * (1 / 200 + 1 / 200))


def test_the_threshold_is_the_largest_that_the_given_share_of_captions_reaches():
    images, texts, owners = world(captions=99, rows=150)
    cut = learn_cut_off(images, texts, owners, share=0.9)
    own_scores = np.array([text.astype(np.float64) @ images[row] for text, row in zip(texts, owners, strict=True)])
    if cut.standardized:
        scores = texts.astype(np.float64) @ images.T.astype(np.float64)
        own_scores = (own_scores - scores.mean(axis=1)) / scores.std(axis=1)
    assert (own_scores >= cut.threshold - 1e-6).sum() == 90
    counted = np.mean([(images @ text >= cut.limit(text)).mean() for text in texts])
    assert cut.above == pytest.approx(counted, abs=1e-4)


@pytest.mark.parametrize("standardized", [False, True])
def test_a_score_at_the_threshold_counts_as_above_despite_single_precision(standardized):
    cut = CutOff(0.5, 0.9, 20, 0.1, standardized, np.zeros(3), np.eye(3))
    limit = cut.limit(np.array([0.0, 1.0, 0.0], dtype=np.float32))
    assert np.float32(0.5) - np.float32(3e-7) > limit > 0.499


def test_texts_that_match_everything_get_a_higher_cut_off():
    images, texts, owners = world()
    cut = learn_cut_off(images, texts, owners)
    assert cut.standardized
    assert np.ptp([cut.limit(text) for text in texts]) > 0.1
    above = np.mean([(images @ text >= cut.limit(text)).mean() for text in texts])
    plain = np.sort((texts * images[owners]).sum(axis=1))[int(0.1 * 401) - 1]
    assert above < 0.8 * np.mean(images @ texts.T >= plain)


def test_moments_match_the_cosines_with_all_images():
    images, texts, _ = world(captions=80, rows=200)
    mean = images.mean(axis=0, dtype=np.float64)
    covariance = np.cov(images.T.astype(np.float64), bias=True)
    mean_score, deviation = score_moments(texts, mean, covariance)
    scores = texts.astype(np.float64) @ images.T.astype(np.float64)
    np.testing.assert_allclose(mean_score, scores.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(deviation, scores.std(axis=1), atol=1e-6)


def test_too_few_captions_are_an_error():
    images, texts, owners = world()
    with pytest.raises(ValueError, match="8 texts are too few"):
        learn_cut_off(images, texts[:8], owners[:8])
    assert learn_cut_off(images, texts[:9], owners[:9]).texts == 9


def clusters(matching=20, others=380, width=64, seed=0):
    """Return a query and pictures, of which the first ``matching`` match it."""
    generator = np.random.default_rng(seed)
    query = np.eye(1, width, dtype=np.float32)[0]
    images = generator.normal(size=(matching + others, width)) / np.sqrt(width)
    images[:matching] += query
    return query, unit(images)


def test_scores_alone_separate_matches_from_the_rest():
    query, images = clusters()
    cut = estimate_cut_off(images)
    limit = cut.score_limit(query, float((images @ query).max()))
    above = np.flatnonzero(images @ query >= limit)
    assert set(above) <= set(range(20))
    assert len(above) >= 18
    other = np.roll(query, 1)
    limit = cut.score_limit(other, float((images @ other).max()))
    assert limit is None or (images @ other >= limit).mean() < 0.1, "few results if nothing matches"


def test_an_estimated_cut_off_keeps_more_pictures_if_more_match():
    """A fixed number of deviations above the mean would keep fewer."""
    counts = []
    for matching in (4, 12, 30):
        query, images = clusters(matching, 400 - matching)
        scores = images @ query
        limit = estimate_cut_off(images).score_limit(query, float(scores.max()))
        assert (scores[:matching] >= limit).mean() > 0.85
        assert (scores[matching:] >= limit).mean() < 0.02
        counts.append(int((scores >= limit).sum()))
    assert counts == sorted(counts)


def test_a_cut_off_cannot_be_estimated_from_few_pictures():
    _, images = clusters()
    with pytest.raises(ValueError, match="too few"):
        estimate_cut_off(images[:49])


def index_of(images):
    """Return an index and a model that embeds all texts as the first axis."""
    index = Index.create(width=images.shape[1], model="words")
    count = len(images)
    index.insert(Rows(ids=[f"row {row}" for row in range(count)], image_vectors=images))

    class Words(HashEncoder):
        def embed_texts(self, texts, prefix=None):
            return torch.eye(1, images.shape[1]).expand(len(texts), -1)

    return index, Words(width=images.shape[1])


@pytest.mark.parametrize(("matching", "count"), [(20, range(18, 21)), (200, [400])])
def test_an_estimated_cut_off_above_all_scores_is_ignored(matching, count):
    query, images = clusters(matching, 400 - matching)
    index, encoder = index_of(images)
    cut = index.cut_off()
    assert (images @ query >= cut.limit(query)).any() == (matching == 20), "only a few matches reach the cut-off"
    assert len(index.search("a thing", k=400, min_score=cut, encoder=encoder)) in count
    with pytest.raises(UserError, match="captions"):
        index.search("a thing", by="text", min_score=cut, encoder=encoder)
