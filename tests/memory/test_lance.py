"""What only a memory on disk does: versions, an index, a cache, and files that may be damaged."""

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from recollect import cli
from recollect.core import checksums
from recollect.core.errors import UserError
from recollect.core.files import hold
from recollect.memory import Memory, Pairs
from recollect.memory.backends import cells, lance
from recollect.memory.backends.base import DamagedMemoryError
from recollect.memory.backends.cells import Cells, CellSearch, _recalls, nearest_centres
from recollect.memory.backends.matrix import ExactNeighbours, Matrices
from recollect.search.memory_pool import MemoryPool


def rows(count, width=32, seed=0):
    """Unit rows around twenty centres, as embeddings have them."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, width))
    values = centres[generator.integers(0, 20, count)] + 0.7 * generator.normal(size=(count, width))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """Two and a half thousand rows with an index on both sides."""
    memory = Memory.create(tmp_path_factory.mktemp("indexed") / "memory", width=32, model="m")
    ids = [f"r{number}" for number in range(2500)]
    metadata = [{"even": number % 2 == 0} for number in range(2500)]
    memory.add(Pairs(ids, rows(2500), rows(2500, seed=1), ["a"] * 2500, "m", metadata=metadata))
    memory.index(0.95)
    return memory


@pytest.fixture
def always_indexed(monkeypatch):
    """Whatever was faster on this machine."""
    monkeypatch.setattr(Cells, "faster", lambda self, queries: True)


def recall(found, truth):
    return np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(found.ids, truth.ids, strict=True)])


@pytest.mark.usefixtures("always_indexed")
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("modality", ["image", "text"])
def test_an_index_finds_what_exact_search_finds_and_scores_it_exactly(indexed, monkeypatch, count, modality):
    queries = rows(count, seed=2)
    truth = indexed.search(queries, 10, modality, exact=True)
    search = CellSearch(Cells.open(indexed.backend._index_path(modality)), indexed.backend._matrices, modality)
    everything = search.search(queries, 10, 10**6)
    np.testing.assert_array_equal(indexed.backend._matrices.ids_at(everything.rows), truth.ids)
    found = search.search(queries, 10, 60)
    scores = np.array([[query @ vector for vector in indexed.vectors(ids, modality)] for query, ids in zip(
        queries, indexed.backend._matrices.ids_at(found.rows).tolist(), strict=True)])  # fmt: skip
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.usefixtures("always_indexed")
def test_the_recall_that_an_index_states_is_the_one_it_has(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=32, model="m")
    memory.add(Pairs([f"r{n}" for n in range(2000)], rows(2000), rows(2000, seed=1), ["a"] * 2000, "m"))
    for target in (0.5, 0.9, 0.999):
        for record in memory.index(target):
            assert record.probes == 0 or record.reached >= target
            assert (record.target, record.rows) == (target, 2000)
            queries = memory.vectors([f"r{n}" for n in range(0, 2000, 4)], record.modality)
            truth = memory.search(queries, 11, record.modality, exact=True)
            if record.probes:  # another sample: three standard errors of 500 queries
                assert recall(memory.search(queries, 11, record.modality), truth) >= target - 0.05
    assert {record.modality for record in memory.info().indexes} == {"image", "text"}


def test_a_row_that_finds_only_itself_has_found_nothing():
    """Of eleven results one is the query's own row; recall counts the ten others."""
    own = np.array([0, 1])
    places, best = np.array([[0, *range(10, 20)], [1, *range(20, 30)]]), np.linspace(1, 0.5, 11, dtype=np.float32)
    truth = ExactNeighbours(places, np.stack([best, best]))
    missed = ExactNeighbours(
        np.array([[0, *[-1] * 10], [1, *range(20, 25), *[-1] * 5]]),
        np.stack([np.r_[best[:1], np.full(10, -1)], np.r_[best[:6], np.full(5, -1)]]).astype(np.float32),
    )
    assert _recalls(truth, truth, own).tolist() == [1.0, 1.0]
    assert _recalls(missed, truth, own).tolist() == [0.0, 0.5]


@pytest.mark.usefixtures("always_indexed")
def test_rows_added_and_deleted_later_are_in_the_index_without_training(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=32, model="m")
    memory.add(Pairs([f"r{n}" for n in range(1000)], rows(1000), rows(1000, seed=1), ["a"] * 1000, "m"))
    memory.index(0.99)
    centres = Cells.open(memory.backend._index_path("image")).centres
    memory.add(Pairs([f"n{n}" for n in range(500)], rows(500, seed=7), rows(500, seed=8), ["a"] * 500, "m"))
    memory.delete(["r5", "n9"])
    cells = Cells.open(memory.backend._index_path("image"))
    assert (cells.centres == centres).all()
    search = CellSearch(cells, memory.backend._matrices, "image")
    found = search.search(rows(500, seed=7), 1, 10**6)
    ids = memory.backend._matrices.ids_at(found.rows)[:, 0].tolist()
    assert [id for n, id in enumerate(ids) if n != 9] == [f"n{n}" for n in range(500) if n != 9]
    assert ids[9] != "n9"
    memory.add(Pairs([f"m{n}" for n in range(1000)], rows(1000, seed=3), rows(1000, seed=4), ["a"] * 1000, "m"))
    memory.renew_indexes()
    assert {record.rows for record in memory.info().indexes} == {2498}
    assert (Cells.open(memory.backend._index_path("image")).centres == centres).all()  # measured again, not trained


@pytest.mark.usefixtures("always_indexed")
def test_an_open_memory_finds_what_came_after_its_last_search_through_the_index(tmp_path, monkeypatch):
    memory = Memory.create(tmp_path / "memory", width=32, model="m")
    held = rows(200)
    memory.add(Pairs([f"r{n}" for n in range(200)], held, rows(200, seed=1), ["a"] * 200, "m"))
    memory.index(0.5)
    cells = Cells.open(memory.backend._index_path("image"))
    probing = replace(cells.record, probes=len(cells.centres))  # whatever was faster here
    replace(cells, record=probing).save(memory.backend._index_path("image"))
    memory.refresh()
    memory.backend._indexes.clear()
    monkeypatch.setattr(Matrices, "search", lambda *_: pytest.fail("searched without the index"))
    assert memory.search(held[:5], 1).ids[:, 0].tolist() == [f"r{n}" for n in range(5)]
    memory.add(Pairs([f"n{n}" for n in range(3)], rows(3, seed=7), rows(3, seed=8), ["a"] * 3, "m"))
    memory.delete(["r0", "r4"])
    assert memory.search(rows(3, seed=7), 1).ids[:, 0].tolist() == ["n0", "n1", "n2"]
    assert not {"r0", "r4"} & set(memory.search(held[:5], 5).ids.ravel())


@pytest.mark.usefixtures("always_indexed")
def test_filters_exclusions_and_near_duplicates_are_exact_beside_an_index(indexed, monkeypatch):
    monkeypatch.setattr(CellSearch, "search", lambda *_: pytest.fail("searched through the index"))
    queries = rows(5, seed=3)
    found = indexed.search(queries, 10, where="even = true")
    assert all(int(id[1:]) % 2 == 0 for id in found.ids.ravel())
    few = indexed.search(queries, 10, where="id in ('r1', 'r2', 'r3')")
    assert {frozenset(ids) for ids in few.ids.tolist()} == {frozenset({"r1", "r2", "r3"})}
    indexed.search(queries, 5, max_score=0.9)
    indexed.search(queries, 5, exclude=["r1"] * 5)
    indexed.search(queries, 5, exact=True)
    indexed.near_duplicates(queries, 0.9)
    assert MemoryPool(indexed, exact=True).nearest(torch.from_numpy(queries), 5).ids.shape == (5, 5)


def test_a_damaged_index_is_as_none(indexed, tmp_path):
    shutil.copytree(indexed.address, tmp_path / "copy")
    copy = Memory.open(tmp_path / "copy")
    truth = copy.search(rows(3, seed=2), 5, exact=True)
    (tmp_path / "copy" / "index" / "image.safetensors").write_bytes(b"not an index")
    again = Memory.open(tmp_path / "copy")
    assert again.search(rows(3, seed=2), 5).ids.tolist() == truth.ids.tolist()
    assert [record.modality for record in again.info().indexes] == ["text"]


@pytest.mark.usefixtures("always_indexed")
def test_flipped_bits_of_an_index_and_of_its_cells_are_found_and_cost_no_recall(indexed, tmp_path):
    shutil.copytree(indexed.address, tmp_path / "copy")
    queries, address = rows(40, seed=5), str(tmp_path / "copy")
    Memory.open(address).search(queries, 10)
    truth = Memory.open(address).search(queries, 10)
    (cells,) = (tmp_path / "copy" / "cache").glob("*/cells-image-*")
    with cells.open("r+b") as file:
        file.seek(-4 * 2400, os.SEEK_END)
        kept = np.frombuffer(file.read(), dtype=np.int32)
        file.seek(-4 * 2400, os.SEEK_END)
        file.write((kept ^ 1).tobytes())  # other cells, that are there too
    assert Memory.examine(address) == [f"{cells}: differs from its checksum"]
    assert Memory.open(address).search(queries, 10).ids.tolist() == truth.ids.tolist()
    assert Memory.examine(address) == []  # it was made again

    index = tmp_path / "copy" / "index" / "image.safetensors"
    centres = index.read_bytes()
    index.write_bytes(centres[:-2000] + bytes(byte ^ 4 for byte in centres[-2000:]))
    assert Memory.examine(address) == [
        f"{index}: is damaged; searches among images are exact until `recollect memory index` makes it again"
    ]
    assert recall(Memory.open(address).search(queries, 10), indexed.search(queries, 10, exact=True)) == 1


def test_an_index_that_is_made_again_leaves_nothing_of_the_older_one(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=32, model="m")
    ids = [f"r{number}" for number in range(200)]
    memory.add(Pairs(ids, rows(200), rows(200, seed=1), ["a"] * 200, "m"))
    for count in (1, 2):
        memory.index(0.5)
        memory.delete([f"r{count}"])  # other rows, so other centres
    names = sorted(path.name[:11] for path in (tmp_path / "memory" / "cache").glob("*/cells-*"))
    assert names == ["cells-image", "cells-text-"]


def test_rows_that_are_equal_cost_no_recall(tmp_path):
    """Texts made of class names are; which of a hundred equal ones is found is nobody's loss."""
    memory = Memory.create(tmp_path / "memory", width=32, model="m", precision="float16")
    ids = [f"r{number}" for number in range(600)]
    texts = np.repeat(rows(6, seed=8), 100, axis=0)
    memory.add(Pairs(ids, rows(600), texts, ["a"] * 600, "m"))
    _, record = memory.index(0.9)
    assert record.modality == "text"
    assert record.reached >= 0.9
    assert record.probes < record.cells


def test_cells_of_other_centres_are_never_taken_for_those_of_an_index(tmp_path):
    """Also where a memory has as many rows as when it was indexed before."""
    memory = Memory.create(tmp_path / "memory", width=32, model="m")
    ids = [f"r{number}" for number in range(200)]
    memory.add(Pairs(ids, rows(200), rows(200, seed=1), ["a"] * 200, "m"))
    memory.index(0.5)
    memory.delete(ids[:20])
    memory.add(Pairs([f"n{number}" for number in range(20)], rows(20, seed=6), rows(20, seed=7), ["a"] * 20, "m"))
    memory.index(0.5)
    cells = Cells.open(memory.backend._index_path("image"))
    parts = memory.backend._matrices.parts
    search = CellSearch(cells, memory.backend._matrices, "image")
    for part in parts:
        assert search._assigned(part).tolist() == nearest_centres(part.images, cells.centres).tolist()


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(28, "No space left on device")])
def test_an_index_that_cannot_be_written_is_refused_in_our_own_words(indexed, monkeypatch, error):
    def refuse(path):
        raise error

    monkeypatch.setattr("recollect.memory.backends.cells.atomic_path", refuse)
    with pytest.raises(UserError, match=rf"the index of images cannot be written \({error.strerror}\)"):
        indexed.index(0.5)
    monkeypatch.undo()

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(cells, "save_file", full)
    with pytest.raises(UserError, match=r"the index of images cannot be written \(No space left on device\)"):
        indexed.index(0.5)
    monkeypatch.setattr("recollect.memory.backends.lance.locked", refuse)
    monkeypatch.setattr("recollect.memory.backends.lance.train_cells", lambda *_: pytest.fail("worked for nothing"))
    with pytest.raises(UserError, match="cannot be written to"):
        indexed.index(0.5)


def test_an_index_of_too_few_rows_or_an_impossible_recall_is_refused(on_disk, indexed):
    with pytest.raises(UserError, match=r"40 rows of images need no index"):
        on_disk.index()
    with pytest.raises(UserError, match=r"--recall 1.5: lies above 0 and at most at 1"):
        indexed.index(1.5)


def test_a_snapshot_stays_as_it_was_and_cannot_be_written_to(on_disk, pairs):
    before, query = on_disk.snapshot(), pairs(1, seed=5).image_vectors
    found = before.search(query, 40).ids.tolist()
    on_disk.add(pairs(5, first=40))
    on_disk.delete(["row 0"])
    assert (len(before), len(on_disk)) == (40, 44)
    assert before.search(query, 40).ids.tolist() == found
    for change in (lambda: before.add(pairs(1, first=90)), lambda: before.delete(["row 1"])):
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


def parts(memory):
    return sorted(name for name in os.listdir(memory.address + "/cache") if not name.startswith("."))


def test_matrices_are_written_once_mapped_and_grow_by_what_is_new(on_disk, pairs):
    on_disk.search(pairs(1).image_vectors, 1)
    (first,) = parts(on_disk)
    assert isinstance(on_disk.backend._matrices.parts[0].images, np.memmap)
    written = os.stat(f"{on_disk.address}/cache/{first}/images.npy").st_mtime_ns
    Memory.open(on_disk.address).search(pairs(1).image_vectors, 1)
    on_disk.add(pairs(3, first=40))
    on_disk.delete(["row 7"])
    found = on_disk.search(pairs(43).image_vectors, 42)
    assert [len(part.numbers) for part in on_disk.backend._matrices.parts] == [40, 3]
    assert os.stat(f"{on_disk.address}/cache/{first}/images.npy").st_mtime_ns == written
    assert set(found.ids.ravel()) == {f"row {row}" for row in range(43)} - {"row 7"}
    for start in range(43, 63, 2):
        on_disk.add(pairs(2, first=start))
        on_disk.search(pairs(1).image_vectors, 1)
    assert len(parts(on_disk)) <= 9
    on_disk.delete(where="year < 2040")
    assert on_disk.search(pairs(63).image_vectors[40:], 1).ids[:, 0].tolist() == [f"row {row}" for row in range(40, 63)]
    assert len(parts(on_disk)) == 1  # most was gone, so it was written anew


def test_a_snapshot_reads_beside_a_memory_that_is_rewritten(on_disk, pairs):
    before, query = on_disk.snapshot(), pairs(40).image_vectors
    on_disk.upsert(pairs(40, seed=3))
    on_disk.search(query, 1)
    assert before.search(query, 1).ids[:, 0].tolist() == [f"row {row}" for row in range(40)]
    np.testing.assert_array_equal(before.vectors(["row 3"], "text"), pairs(40).text_vectors[3:4])
    np.testing.assert_array_equal(on_disk.vectors(["row 3"], "text"), pairs(40, seed=3).text_vectors[3:4])


def test_without_its_cache_a_memory_is_the_same(on_disk, pairs):
    query = pairs(3, seed=4).text_vectors
    found = on_disk.search(query, 5, "text").ids.tolist()
    shutil.rmtree(on_disk.address + "/cache")
    assert Memory.open(on_disk.address).search(query, 5, "text").ids.tolist() == found


@pytest.mark.parametrize("name", ["numbers.npy", "ids.arrow", "images.npy", "texts.npy", "checksums.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped", "longer"])
def test_a_damaged_cache_is_made_again(on_disk, pairs, name, damage):
    query = pairs(3, seed=4).text_vectors
    truth = on_disk.search(query, 40, "text")
    file = f"{on_disk.address}/cache/{parts(on_disk)[0]}/{name}"
    with open(file, "rb") as opened:
        content = opened.read()
    os.remove(file)
    if damage != "gone":
        middle = len(content) // 2
        flipped = (
            content[:middle] + bytes(each ^ 0x5A for each in content[middle : middle + 40]) + content[middle + 40 :]
        )
        changed = {"empty": b"", "cut": content[:middle], "flipped": flipped, "longer": content + b"x"}[damage]
        with open(file, "wb") as opened:
            opened.write(changed)
    again = Memory.open(on_disk.address).search(query, 40, "text")
    assert again.ids.tolist() == truth.ids.tolist()
    np.testing.assert_array_equal(again.scores, truth.scores)
    assert Memory.open(on_disk.address).damage() == []


def test_vectors_that_are_damaged_under_a_running_search_return_no_cosine_above_one(on_disk, pairs):
    truth = on_disk.search(pairs(3).image_vectors, 5)
    file = f"{on_disk.address}/cache/{parts(on_disk)[0]}/images.npy"
    with open(file, "r+b") as opened:
        opened.seek(1000)
        opened.write(np.full(400, 1e8, dtype=np.float32).tobytes())
    again = on_disk.search(pairs(3).image_vectors, 5)
    assert again.ids.tolist() == truth.ids.tolist()
    assert Memory.open(on_disk.address).damage() == []


@pytest.mark.parametrize(("name", "sums"), [("data", True), ("_versions", True), ("data", False)])
def test_a_damaged_table_is_said_in_our_own_words_wherever_it_is_damaged(on_disk, capsys, name, sums):
    """Whoever notices first: the checksums, the library, or the vectors that are of no unit norm any more."""
    folder, listed = f"{on_disk.address}/pairs.lance/{name}", f"{on_disk.address}/checksums.json"
    if not sums:
        os.remove(listed)
    file = max(os.listdir(folder), key=lambda file: os.stat(f"{folder}/{file}").st_size)
    with open(f"{folder}/{file}", "rb") as opened:
        content = opened.read()
    for start in (0, len(content) // 2, len(content) - 40):
        flipped = bytes(255 - byte for byte in content[start : start + 40])
        with open(f"{folder}/{file}", "wb") as opened:
            opened.write(content[:start] + flipped + content[start + 40 :])
        found = Memory.examine(on_disk.address)
        if sums:
            assert found == [f"{folder}/{file}: differs from its checksum"]
        assert all(on_disk.address in line or line.startswith("row '") for line in found)
    assert found, "what stands at a file's end is always needed"
    assert cli.main(["memory", "info", on_disk.address, "--check"]) == 2
    assert f"{len(found)} damages found" in capsys.readouterr().err
    with open(f"{folder}/{file}", "wb") as opened:
        opened.write(content)
    assert Memory.examine(on_disk.address) == []


def test_what_is_damaged_stays_damaged_when_rows_are_added(on_disk, pairs):
    """The checksum of a file is taken once, when it was written."""
    folder = f"{on_disk.address}/pairs.lance/data"
    (file,) = os.listdir(folder)
    with open(f"{folder}/{file}", "r+b") as opened:
        opened.seek(100)
        byte = opened.read(1)[0]
        opened.seek(100)
        opened.write(bytes([byte ^ 1]))
    on_disk.add(pairs(1, first=40))
    assert Memory.examine(on_disk.address) == [f"{folder}/{file}: differs from its checksum"]


@pytest.mark.parametrize("change", ["captions", "metadata"])
def test_a_row_that_is_removed_while_it_is_changed_stays_removed(on_disk, encoder, monkeypatch, change):
    """Whoever looks at rows to change them holds the writers' lock until they are changed."""
    other, rows_of = Memory.open(on_disk.address), type(on_disk.backend).rows
    removal = threading.Thread(target=lambda: other.delete(["row 1"]))

    def looked_at(backend, ids):
        found = rows_of(backend, ids)
        if backend is other.backend:  # who removes looks at rows, too
            return found
        removal.start()
        removal.join(0.5)  # it waits for us; without a lock it is done long before
        return found

    monkeypatch.setattr(type(on_disk.backend), "rows", looked_at)
    if change == "captions":
        on_disk.set_captions({"row 1": "words", "row 2": "more"}, encoder)
    else:
        on_disk.set_metadata("kept", {"row 1": True, "row 2": True})
    removal.join()
    assert Memory.open(on_disk.address).backend.known(["row 1", "row 2"]) == {"row 2"}


def test_checksums_that_are_damaged_themselves_are_no_proof_of_soundness(on_disk, pairs):
    listed = f"{on_disk.address}/checksums.json"
    with open(listed, "r+b") as file:
        file.write(b"\x5b")  # one bit of the first byte
    assert [line.split(": ")[0] for line in Memory.examine(on_disk.address)] == [listed]
    on_disk.add(pairs(1, first=40))  # they are written down anew
    assert Memory.examine(on_disk.address) == []


def test_optimizing_joins_files_and_frees_what_is_gone_and_changes_no_row(on_disk, pairs):
    for number in range(40, 60, 2):
        on_disk.add(pairs(2, first=number))
    on_disk.delete(where="year < 2010")
    reader, query = Memory.open(on_disk.address), pairs(60).image_vectors
    before = on_disk.search(query, 50)
    done = on_disk.optimize(keep_days=0.0)
    assert done.files[1] == 1 < done.files[0]
    assert done.versions[1] < done.versions[0]
    assert done.bytes[1] < done.bytes[0]
    for memory in (on_disk, Memory.open(on_disk.address)):
        after = memory.search(query, 50)
        assert after.ids.tolist() == before.ids.tolist()
        np.testing.assert_array_equal(after.scores, before.scores)
        assert memory.damage() == []
    reader.refresh()
    assert reader.search(query, 50).ids.tolist() == before.ids.tolist()
    on_disk.add(pairs(1, first=99))
    assert len(on_disk) == 51


def test_optimizing_keeps_young_versions_and_the_index(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=32, model="m")
    memory.add(Pairs([f"r{n}" for n in range(600)], rows(600), rows(600, seed=1), ["a"] * 600, "m"))
    memory.add(Pairs([f"s{n}" for n in range(20)], rows(20, seed=2), rows(20, seed=3), ["a"] * 20, "m"))
    memory.index(0.9)
    version, records = memory.version, memory.info().indexes
    assert memory.optimize().files == (2, 1)
    assert len(Memory.open(memory.address, version)) == 620
    assert memory.info().indexes == records
    truth = memory.search(rows(3, seed=9), 5, exact=True)
    search = CellSearch(Cells.open(memory.backend._index_path("image")), memory.backend._matrices, "image")
    found = search.search(rows(3, seed=9), 5, 10**6)
    assert memory.backend._matrices.ids_at(found.rows).tolist() == truth.ids.tolist()


def test_a_check_names_the_part_that_is_damaged(on_disk, pairs, monkeypatch):
    monkeypatch.setattr("recollect.memory.backends.parts._READ_THROUGH", 0)  # as if it were large
    on_disk.search(pairs(3).image_vectors, 5)
    file = f"{on_disk.address}/cache/{parts(on_disk)[0]}/texts.npy"
    with open(file, "r+b") as opened:
        opened.seek(500)
        opened.write(b"damage")
    assert on_disk.damage() == [f"{file}: differs from its checksum"]


def test_a_flipped_bit_of_a_large_part_is_found_when_its_vectors_are_used(on_disk, pairs, monkeypatch):
    """Those of the other modality are not read for it."""
    monkeypatch.setattr("recollect.memory.backends.parts._READ_THROUGH", 0)  # as if it were large
    query = pairs(40).image_vectors
    truth = on_disk.search(query, 40)
    file = f"{on_disk.address}/cache/{parts(on_disk)[0]}/images.npy"
    with open(file, "r+b") as opened:
        opened.seek(400)
        byte = opened.read(1)[0]
        opened.seek(400)
        opened.write(bytes([byte ^ 1]))  # the lowest bit of a number: still a cosine below 1
    again, read = Memory.open(on_disk.address), []
    crc = checksums.checksum
    monkeypatch.setattr(checksums, "checksum", lambda path: read.append(path.name) or crc(path))
    again.search(query, 40, "text")
    assert "images.npy" not in read
    for made in (again.search(query, 40), Memory.open(on_disk.address).search(query, 40)):
        np.testing.assert_array_equal(made.scores, truth.scores)
        assert made.ids.tolist() == truth.ids.tolist()
    assert again.damage() == []


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_matrix_of_a_memory_has_every_row_once_and_of_length_one(tmp_path, pairs, precision):
    memory = Memory.create(tmp_path / "memory", width=16, model="model-a", precision=precision)
    assert memory.matrix("image")[0] == []
    memory.add(pairs(25))
    memory.prepare()
    assert memory.matrix("text")[1].shape == (25, 16)
    memory.add(pairs(15, first=25))
    memory.delete(["row 3", "row 30"])
    for modality in ("image", "text"):
        ids, vectors = memory.matrix(modality)
        assert sorted(ids) == sorted({f"row {number}" for number in range(40)} - {"row 3", "row 30"})
        np.testing.assert_allclose(vectors, memory.vectors(ids, modality), atol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert vectors.dtype == np.float32


def test_rows_are_read_by_number_where_the_matrices_are_open(on_disk, pairs, monkeypatch):
    on_disk.add(pairs(200, first=40))
    on_disk.delete(["row 7", "row 60"])
    ids = [f"row {number}" for number in (3, 100, 2, 239, 100)]
    scanned = on_disk.fetch(ids)
    on_disk.prepare()
    monkeypatch.setattr(on_disk.backend, "_scan", lambda *_, **__: pytest.fail("all rows were read"))
    assert on_disk.fetch(ids) == scanned
    assert [item.id for item in on_disk.fetch(ids[:1], pictures=False)] == ["row 3"]
    assert on_disk.backend.known(["row 3", "row 7", "row 60", "none", "row 238"]) == {"row 3", "row 238"}
    few, many = on_disk.vectors(["row 9"], "image"), on_disk.vectors([f"row {n}" for n in range(9, 60)], "image")
    np.testing.assert_array_equal(few[0], many[0])
    for wrong in (["row 7"], ["none"]):
        with pytest.raises(UserError, match="no row with id"):
            on_disk.fetch(wrong)


@pytest.mark.parametrize(
    "error", [PermissionError(13, "denied"), OSError(28, "No space left"), OSError(30, "Read-only")]
)
def test_a_folder_that_cannot_be_written_to_can_be_searched(on_disk, pairs, monkeypatch, error):
    def refuse(path):
        raise error

    monkeypatch.setattr("recollect.memory.backends.parts.atomic_folder", refuse)
    more = pairs(40)
    assert on_disk.search(more.image_vectors, 1).ids[:, 0].tolist() == list(more.ids)
    assert not os.path.exists(on_disk.address + "/cache")
    monkeypatch.setattr("recollect.memory.backends.lance.write_removals", lambda *_: refuse(None))
    with pytest.raises(UserError, match=r"cannot be written to|the disk is full"):
        on_disk.delete(["row 1"])
    assert len(on_disk) == 40, "what cannot be noted is not removed"
    monkeypatch.setattr("recollect.memory.backends.lance.locked", refuse)
    for change in (lambda: on_disk.add(pairs(1, first=40)), on_disk.optimize, lambda: on_disk.delete(["row 1"])):
        with pytest.raises(UserError, match=r"cannot be written to \((denied|No space left|Read-only)\)"):
            change()


def test_a_disk_that_is_full_in_the_middle_leaves_nothing_behind(on_disk, pairs, monkeypatch):
    """A map of a file that the disk has no room for would end the process; a write is refused."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recollect.memory.backends.parts.np.save", full)
    assert on_disk.search(pairs(40).image_vectors, 1).ids[:, 0].tolist() == list(pairs(40).ids)
    assert os.listdir(on_disk.address + "/cache") == []


@pytest.mark.parametrize("change", ["add", "upsert", "delete", "optimize", "create"])
def test_a_full_disk_is_called_full_and_not_damaged(on_disk, pairs, monkeypatch, change):
    """As Lance says it, with the place in its own source where it noticed."""

    def full(*_, **__):
        raise RuntimeError(
            "lance error: LanceError(IO): No space left on device (os error 28), /root/x/writer.rs:191:9"
        )

    name = {"upsert": "merge_insert", "create": "count_rows"}.get(change, change)
    monkeypatch.setattr(type(on_disk.backend.table), name, full)
    monkeypatch.setattr("lancedb.db.LanceDBConnection.create_table", full)
    ask = {"add": lambda: on_disk.add(pairs(1, first=40)), "upsert": lambda: on_disk.upsert(pairs(1)),
           "delete": lambda: on_disk.delete(["row 1"]), "optimize": on_disk.optimize,
           "create": lambda: Memory.create(on_disk.address + "-new", width=3, model="m")}[change]  # fmt: skip
    with pytest.raises(UserError, match="the disk is full; nothing was changed") as caught:
        ask()
    monkeypatch.undo()
    assert not os.path.exists(on_disk.address + "-new")
    assert on_disk.removals() == [], "what is not removed is not kept away, under whatever name it comes"
    assert not isinstance(caught.value, DamagedMemoryError)
    assert "writer.rs" not in str(caught.value)
    assert Memory.examine(on_disk.address) == []


def test_each_process_tidies_what_is_its_own_and_what_the_dead_left(on_disk, pairs):
    cache = on_disk.address + "/cache"
    for name, owner in (("alive", os.getpid()), ("dead", 2**22 - 3), ("unknown", None)):
        os.makedirs(f"{cache}/.{name}.tmp")
        if owner is not None:
            with open(f"{cache}/.{name}.tmp/owner", "w") as file:
                file.write(str(owner))
    on_disk.search(pairs(1).image_vectors, 1)
    assert {name for name in os.listdir(cache) if name.startswith(".")} == {".alive.tmp", ".unknown.tmp"}


def test_every_change_is_one_commit(on_disk, pairs, encoder):
    """So a kill leaves all of it or nothing: there is no version between."""
    changes = [
        lambda: on_disk.add(pairs(3, first=40)),
        lambda: on_disk.upsert(pairs(5, first=38, seed=1)),
        lambda: on_disk.set_captions({"row 1": "words", "row 2": ""}, encoder),
        lambda: on_disk.set_metadata("kept", {"row 1": True}),
        lambda: on_disk.delete(["row 1", "row 5"]),
    ]
    for change in changes:
        version = on_disk.version
        change()
        assert on_disk.version == version + 1


def test_first_readers_at_once_all_find_everything(on_disk, pairs):
    found = []

    def read():
        found.append(len(set(Memory.open(on_disk.address).search(pairs(40).image_vectors, 1).ids.ravel())))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [40] * 6


def test_two_handles_never_add_an_id_twice(on_disk, pairs):
    handles = [Memory.open(on_disk.address) for _ in range(4)]
    refused = []

    def add(handle):
        try:
            handle.add(pairs(50, first=100))
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=add, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Memory.open(on_disk.address)) == 90
    assert len(refused) == 3
    assert all("50 of 50 ids are there already" in line for line in refused)


@pytest.mark.parametrize("change", ["add", "upsert"])
def test_rows_are_written_only_by_who_holds_the_lock(on_disk, pairs, monkeypatch, change):
    held, backend = [], on_disk.backend
    for name in ("append", "upsert"):
        write = getattr(backend, name)

        def checked(rows, write=write):
            with (Path(on_disk.address) / ".writers").open("a+b") as file:
                held.append(not hold(file, wait=False))
            return write(rows)

        monkeypatch.setattr(backend, name, checked)
    getattr(on_disk, change)(pairs(5, first=500))
    if change == "upsert":
        on_disk.upsert(pairs(5, first=500, seed=1))
    assert held == [True] * len(held) != []


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


def test_an_index_states_what_a_search_takes_and_not_its_kernel_alone(indexed, monkeypatch):
    """A search that is slowed down by a pause is stated to take at least the pause."""
    search = type(indexed.backend).search

    def slow(self, *args, **options):
        time.sleep(0.005)
        return search(self, *args, **options)

    monkeypatch.setattr(type(indexed.backend), "search", slow)
    for record in indexed.index(0.9):
        if record.probes:
            assert min(record.single_ms) >= 5
