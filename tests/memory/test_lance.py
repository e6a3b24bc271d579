"""What only a memory on disk does: versions, an index, a cache, and files that may be damaged."""

import os
import shutil

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.memory import Memory, Pairs
from recollect.memory.backends import lance


def rows(count, width=32, seed=0):
    """Unit rows around twenty centres, as embeddings have them."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, width))
    values = centres[generator.integers(0, 20, count)] + 0.7 * generator.normal(size=(count, width))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """Two thousand rows with an index on both sides."""
    memory = Memory.create(tmp_path_factory.mktemp("indexed") / "memory", width=32, model="m")
    ids = [f"r{number}" for number in range(2000)]
    metadata = [{"even": number % 2 == 0} for number in range(2000)]
    memory.add(Pairs(ids, rows(2000), rows(2000, seed=1), [""] * 2000, "m", metadata=metadata))
    memory.index()
    return memory


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("modality", ["image", "text"])
def test_the_index_finds_what_exact_search_finds_and_scores_it_exactly(indexed, monkeypatch, count, modality):
    queries = rows(count, seed=2)
    truth = indexed.search(queries, 10, modality)
    monkeypatch.setattr(lance, "EXACT_ROWS", 100)
    monkeypatch.setattr(indexed.backend, "_exact", lambda *parts: pytest.fail("searched without the index"))
    found = indexed.search(queries, 10, modality)
    shared = [len(set(one) & set(other)) for one, other in zip(found.ids, truth.ids, strict=True)]
    assert np.mean(shared) >= (9.5 if count > 1 else 8)
    for query, ids, scores in zip(queries, found.ids.tolist(), found.scores, strict=True):
        cosines = indexed.vectors(ids, modality).astype(np.float64) @ query
        np.testing.assert_allclose(scores, cosines, atol=1e-5)
        assert (np.diff(scores) <= 0).all()


def test_a_filter_holds_inside_the_index(indexed, monkeypatch):
    monkeypatch.setattr(lance, "EXACT_ROWS", 100)
    found = indexed.search(rows(5, seed=3), 10, where="even = true")
    assert found.ids.shape == (5, 10)
    assert all(int(id[1:]) % 2 == 0 for id in found.ids.ravel())
    few = indexed.search(rows(5, seed=3), 10, where="id in ('r1', 'r2', 'r3')")
    assert {frozenset(ids) for ids in few.ids.tolist()} == {frozenset({"r1", "r2", "r3"})}


def test_a_snapshot_stays_as_it_was_and_cannot_be_written_to(on_disk, pairs):
    before, query = on_disk.snapshot(), pairs(1, seed=5).image_vectors
    found = before.search(query, 40).ids.tolist()
    on_disk.add(pairs(5, first=40))
    on_disk.delete(["row 0"])
    assert (len(before), len(on_disk)) == (40, 44)
    assert before.search(query, 40).ids.tolist() == found
    for change in (lambda: before.add(pairs(1, first=90)), lambda: before.delete(["row 1"]), before.index):
        with pytest.raises(UserError, match="is a snapshot, which cannot be changed"):
            change()
    assert len(Memory.open(on_disk.address, before.version)) == 40


def test_milvus_has_no_snapshots_and_says_so(tmp_path):
    memory = Memory.create(f"milvus://{tmp_path}/lite.db/pairs", width=4, model="m")
    with pytest.raises(UserError, match="keeps no versions"):
        memory.snapshot()


def test_a_reader_sees_what_another_wrote_when_it_looks_again(on_disk, pairs):
    reader = Memory.open(on_disk.address)
    more = pairs(3, first=40)
    on_disk.add(more)
    reader.refresh()
    assert reader.search(more.image_vectors, 1).ids[:, 0].tolist() == list(more.ids)


def test_matrices_are_written_once_mapped_and_those_of_old_versions_removed(on_disk, pairs):
    on_disk.search(pairs(1).image_vectors, 1)
    cache = on_disk.backend.address + "/cache"
    first = os.listdir(cache)
    assert isinstance(on_disk.backend._matrices.images.base, np.memmap | memoryview) or isinstance(
        on_disk.backend._matrices.images, np.memmap
    )
    Memory.open(on_disk.address).search(pairs(1).image_vectors, 1)
    assert os.listdir(cache) == first
    on_disk.add(pairs(1, first=40))
    on_disk.search(pairs(1).image_vectors, 1)
    assert os.listdir(cache) == [str(on_disk.version)] != first


def test_without_its_cache_a_memory_is_the_same(on_disk, pairs):
    query = pairs(3, seed=4).text_vectors
    found = on_disk.search(query, 5, "text").ids.tolist()
    shutil.rmtree(on_disk.address + "/cache")
    assert Memory.open(on_disk.address).search(query, 5, "text").ids.tolist() == found


def test_a_folder_that_cannot_be_written_to_can_be_searched(on_disk, pairs, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "read-only", str(path))

    monkeypatch.setattr("recollect.memory.backends.matrix.atomic_folder", refuse)
    more = pairs(40)
    assert on_disk.search(more.image_vectors, 1).ids[:, 0].tolist() == list(more.ids)


def test_a_folder_of_something_else_is_no_memory(tmp_path):
    import lancedb
    import pyarrow as pa

    lancedb.connect(str(tmp_path / "foreign")).create_table(lance.TABLE, pa.table({"id": ["a"]}))
    with pytest.raises(UserError, match="no memory of recollect"):
        Memory.open(tmp_path / "foreign")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    with pytest.raises(UserError, match=r"no memory \(it holds a.txt\)"):
        Memory.open(tmp_path / "notes")
