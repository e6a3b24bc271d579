"""Half precision: unit norms for every access path, and equal results on every store."""

import numpy as np
import pytest

from index.conftest import STORES, address_of
from index_rows import make_rows, unit
from recollect.index import Index
from recollect.index.rows import unit_vectors

WIDE = 48


@pytest.fixture(params=STORES)
def half(request, tmp_path):
    """Sixty pictures at half precision, on each kind of store."""
    index = Index.create(address_of(request.param, tmp_path), width=WIDE, model="m", precision="float16")
    index.insert(make_rows(60, width=WIDE))
    return index


def norm_error(vectors):
    """Return the largest deviation of a norm from 1, ignoring zero rows."""
    assert vectors.dtype == np.float32
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return np.abs(norms[norms > 0] - 1).max()


def test_vectors_have_unit_norm_for_every_access_path(half):
    queries = unit(np.random.default_rng(1).normal(size=(5, WIDE)))
    for by in ("image", "text"):
        ids, whole = half.ids, half.vectors(by=by)
        assert norm_error(whole) < 3e-7
        assert norm_error(half.vectors(ids[::-1], by)) < 3e-7
        np.testing.assert_allclose(half.vectors(ids, by), whole, atol=1e-7)
        result = half.lookup(queries, 7, by, read=by)
        assert norm_error(result.vectors.reshape(-1, WIDE)) < 3e-7
    result = half.lookup(queries, 10)
    for query, ids, scores in zip(queries, result.ids, result.scores, strict=True):
        np.testing.assert_allclose(half.vectors(ids.tolist()) @ query, scores, atol=3e-7)
    before = half.vectors(half.ids)
    for _ in range(3):
        half.remove(half.ids)
        half.restore()
    np.testing.assert_allclose(half.vectors(half.ids), before, atol=0)


def test_every_store_ranks_nearly_equal_vectors_alike(half):
    """They are so close that rounding to half precision decides the order."""
    generator = np.random.default_rng(2)
    middle = unit(generator.normal(size=(1, WIDE)))
    rows = make_rows(60, width=WIDE)
    rows.image_vectors = unit_vectors(unit(middle + 3e-2 * generator.normal(size=(60, WIDE))), WIDE, "rows")
    queries = unit(middle + 3e-2 * generator.normal(size=(20, WIDE)))
    half.insert(rows)
    other = Index.create(width=WIDE, model="m", precision="float16")
    other.insert(rows)
    result, expected = half.lookup(queries, 10), other.lookup(queries, 10)
    np.testing.assert_allclose(result.scores, expected.scores, atol=3e-7)
    assert (result.ids == expected.ids).mean() > 0.98, "the rest are equal up to single precision"
