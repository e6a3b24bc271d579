"""Approximate search with faiss."""

import numpy as np
import pytest

from index_rows import unit
from recollect.core.nearest import ExactNeighbors
from recollect.index import Index, Rows
from recollect.index.stores.ivf import InvertedFile, open_inverted_file, recall_of, vector_keys, worst_mean_recall
from recollect.index.stores.matrix import Matrix

WIDTH = 16


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An accelerated index of 24,000 clustered vectors, most with a caption."""
    draw = np.random.default_rng(0)
    centers = draw.normal(size=(200, WIDTH))
    vectors = unit(centers[draw.integers(0, 200, 24_000)] + 0.5 * draw.normal(size=(24_000, WIDTH)))
    texts = unit(vectors + 0.3 * draw.normal(size=vectors.shape))
    index = Index.create(tmp_path_factory.mktemp("large") / "index", width=WIDTH, model="m", precision="float16")
    index.insert(
        Rows(
            image_vectors=vectors,
            ids=[f"row {number}" for number in range(24_000)],
            captions=[("words",) if number % 10 else () for number in range(24_000)],
            caption_vectors=[texts[n : n + 1] if n % 10 else texts[:0] for n in range(24_000)],
        )
    )
    index.accelerate(0.95)
    return index


def recall(index, queries, by, ids=None):
    exact, approximate = (index.lookup(queries, 11, by, exact=exact).ids for exact in (True, False))
    shares = []
    for row, id in enumerate(ids or [""] * len(queries)):
        nearest = [each for each in exact[row] if each != id][:10]
        shares.append(len({*nearest} & {*approximate[row]}) / 10)
    return float(np.mean(shares))


def recall_one_by_one(index, queries, by, ids):
    return float(np.mean([recall(index, queries[row : row + 1], by, ids[row : row + 1]) for row in range(len(ids))]))


def test_the_reported_recall_is_accurate(large):
    for accelerator in large.accelerators():
        draw = np.random.default_rng(1)
        ids = [large.ids[row] for row in draw.integers(0, 24_000, 60) if row % 10]
        measured = recall_one_by_one(large, large.vectors(ids, accelerator.by), accelerator.by, ids)
        assert accelerator.recall >= 0.93
        assert measured >= accelerator.recall - 0.05
        assert accelerator.milliseconds > 0


def test_a_lookup_is_exact_after_all_rows_are_removed(large):
    nothing = Matrix(0, [], np.empty(0, dtype=np.int64), large.record)
    assert large.store.inverted_file("image").search(nothing, large.vectors(["row 1"]), 3) is None


def test_recall_does_not_count_the_query_itself():
    exact = ExactNeighbors(np.arange(11)[None], np.linspace(1, 0.5, 11, dtype=np.float32)[None])
    alone = ExactNeighbors(np.array([[0]]), np.ones((1, 1), dtype=np.float32))
    assert recall_of(alone, exact, np.array([0])) == 0
    assert recall_of(exact, exact, np.array([0])) == 1


def test_the_recall_is_that_of_the_worse_kind_of_query():
    recalls = np.array([1, 1, 0.5, 0.7], dtype=np.float32)
    assert worst_mean_recall(recalls, np.array([0, 0, 1, 1])) == pytest.approx(0.6)
    assert worst_mean_recall(recalls, np.array([1, 1, 0, 0])) == pytest.approx(0.6)


def test_both_kinds_of_query_reach_the_recall(large):
    """Texts and images form separate clusters here, so they need different numbers of probes."""
    matrix = large.store.matrix()
    for accelerator in large.accelerators():
        inverted_file = open_inverted_file(large.store.cache, accelerator.by)
        for by in ("image", "text"):
            places = np.flatnonzero(vector_keys(matrix, by) >= 0)[:: 24_000 // 300]
            queries = matrix.unit(by, places)
            exact = matrix.nearest(queries, 11, accelerator.by, matrix.searchable(accelerator.by, None, False))
            own_rows = places if by == accelerator.by else np.full(len(places), -1)
            approximate = inverted_file.search(matrix, queries, 11)
            assert recall_of(approximate, exact, own_rows).mean() >= accelerator.recall - 0.05


def test_results_have_exact_scores(large):
    query = unit(np.random.default_rng(5).normal(size=(1, WIDTH)))
    result = large.lookup(query, 10, read="image")
    assert np.allclose(result.scores[0], result.vectors[0] @ query[0], atol=1e-6)


def test_later_changes_apply_without_retraining(large):
    new = unit(np.full((1, WIDTH), -1.0) + np.eye(WIDTH)[:1])
    large.insert(Rows(image_vectors=new, ids=["new"]))
    assert large.lookup(new, 3).ids[0, 0] == "new"
    large.remove(["new"])
    assert "new" not in large.lookup(new, 3).ids
    assert (large.lookup(new, 100).ids != "").all()


def test_a_reader_during_a_rebuild_finds_the_accelerators_afterwards(large, monkeypatch):
    query = large.vectors(["row 1"])
    large.insert(Rows(image_vectors=query, ids=["one more row"]))
    reader, fill = Index.open(large.address), InvertedFile.fill

    def read_before_fill(self, matrix):
        reader.refresh()
        reader.lookup(query, 3)
        fill(self, matrix)

    monkeypatch.setattr(InvertedFile, "fill", read_before_fill)
    large.compact(0)
    assert len(reader.accelerators()) == 2


def test_compacting_keeps_the_accelerators(large):
    before = large.accelerators()
    assert len(before) == 2
    large.insert(Rows(image_vectors=large.vectors(["row 1"]), ids=["another row"]))
    reader = Index.open(large.address)
    reader.lookup(large.vectors(["row 1"]), 3)
    large.compact(0)
    reader.refresh()
    reader.lookup(large.vectors(["row 1"]), 3)
    assert reader.store.inverted_file("image").index.ntotal == len(reader)
    reopened = Index.open(large.address)
    assert reopened.accelerators() == large.accelerators() == before
    queries = reopened.vectors([f"row {number}" for number in range(30)])
    result = open_inverted_file(reopened.store.cache, "image").search(reopened.store.matrix(), queries, 10)
    assert result is not None
    assert recall(reopened, queries[:5], "image") > 0.7


def test_a_damaged_accelerator_is_reported_and_not_used(large):
    file = large.folder / "cache" / "ann-text" / "index.faiss"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    assert any("index.faiss" in line for line in large.verify())
    reopened = Index.open(large.address)
    assert [each.by for each in reopened.accelerators()] == ["image"]
    query = large.vectors(["row 1"], "text")
    assert reopened.lookup(query, 5, "text").ids[0, 0] == "row 1"
