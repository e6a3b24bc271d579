"""Memories at half precision: vectors are handed out with unit norm, and every store finds the same rows."""

import numpy as np
import pytest

from recollect.memory import Memory

BOTH = pytest.mark.parametrize("address", ["lance", "milvus"], indirect=True)
MODEL = "model-a"
WIDE = 48  # at this width rounding to half precision changes norms visibly


def unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def half(address, pairs):
    memory = Memory.create(address, width=WIDE, model=MODEL, precision="float16")
    memory.add(pairs(30, width=WIDE))
    memory.add(pairs(10, first=30, width=WIDE))
    return memory


def off(vectors):
    """How far the norms are from 1."""
    assert vectors.dtype == np.float32
    return np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1).max()


@BOTH
@pytest.mark.parametrize("modality", ["image", "text"])
def test_every_way_of_reading_vectors_gives_unit_norm(half, modality):
    ids, whole = half.matrix(modality)
    assert off(whole) < 3e-7
    assert off(half.vectors(ids[::-1], modality)) < 3e-7
    rows = half.backend.rows(ids[:7])
    assert off(rows.image_vectors if modality == "image" else rows.text_vectors) < 3e-7
    name = f"{modality}_vector"
    assert off(np.concatenate([batch[name] for batch in half.columns([name])])) < 3e-7
    np.testing.assert_allclose(half.vectors(ids, modality), whole, atol=1e-7)


@BOTH
def test_scores_are_the_products_of_the_vectors_that_are_handed_out(half):
    queries = unit(np.random.default_rng(1).normal(size=(5, WIDE)))
    found = half.search(queries, 10)
    for query, ids, scores in zip(queries, found.ids, found.scores, strict=True):
        np.testing.assert_allclose(half.vectors(ids.tolist(), "image") @ query, scores, atol=3e-7)


def test_a_row_written_back_as_it_was_read_stays_as_it_is(tmp_path, pairs):
    memory = Memory.create(tmp_path / "memory", width=WIDE, model=MODEL, precision="float16")
    memory.add(pairs(40, width=WIDE))
    ids, before = memory.matrix("image")
    for _ in range(5):
        memory.backend.upsert(memory.backend.rows(ids))
    np.testing.assert_array_equal(memory.vectors(ids, "image"), before)


def test_vectors_that_are_not_quite_of_unit_norm_are_kept_with_unit_norm(tmp_path, pairs):
    memory = Memory.create(tmp_path / "memory", width=WIDE, model=MODEL)
    rows = pairs(20, width=WIDE)
    memory.add(type(rows)(**{**rows.__dict__, "image_vectors": rows.image_vectors * np.float32(1.004)}))
    assert off(memory.matrix("image")[1]) < 3e-7
    assert off(memory.vectors(rows.ids, "image")) < 3e-7


@BOTH
def test_a_memory_states_the_precision_of_what_is_on_disk(half, address):
    assert half.info().precision == "float16"
    assert half.info().stored == ("float32" if address.startswith("milvus") else "float16")
