"""No data loss after kills, concurrent writes or full disks; damage is reported."""

import multiprocessing
import shutil
import signal
import zlib
from pathlib import Path

import numpy as np
import pytest

from faults import full_disk
from index_rows import WIDTH, HashEncoder, Pictures, make_rows, write_picture
from index_writers import insert_many, write
from recollect.core.errors import UserError
from recollect.index import Index, IngestOptions
from recollect.index.stores import lance


@pytest.fixture
def on_disk(tmp_path):
    """Forty rows in two commits, one of them removed; a search has created the cache."""
    index = Index.create(tmp_path / "index", width=WIDTH, model="model-a", precision="float16")
    index.insert(make_rows(25))
    index.insert(make_rows(15, first=25))
    index.remove(["row 39"])
    index.lookup(index.vectors(["row 1"]), 3)
    return index


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << (place % 8)
    file.write_bytes(data)


def files_of(folder):
    return sorted(file for file in Path(folder).rglob("*") if file.is_file() and file.stat().st_size)


def test_an_untouched_index_has_no_damage(on_disk):
    assert on_disk.verify() == []
    suffixes = {file.suffix for file in files_of(on_disk.folder)}
    assert suffixes >= {".manifest", ".txn", ".lance", ".json", ".bin", ".npy"}


def test_a_flipped_bit_in_any_file_is_reported(on_disk, tmp_path):
    names = [file.relative_to(on_disk.folder) for file in files_of(on_disk.folder)]
    draw = np.random.default_rng(0)
    for name in names:
        copy = shutil.copytree(on_disk.folder, tmp_path / "copy")
        flip(copy / name, int(draw.integers(0, (copy / name).stat().st_size)))
        assert lance.verify_folder(copy), f"a flipped bit in {name} was not reported"
        shutil.rmtree(copy)


def test_a_damaged_cache_is_rebuilt_and_changes_no_result(on_disk, tmp_path):
    queries = on_disk.vectors()[:4]
    expected = on_disk.lookup(queries, 10, read="text")
    for file in files_of(on_disk.folder / "cache"):
        copy = shutil.copytree(on_disk.folder, tmp_path / "copy")
        name = file.relative_to(on_disk.folder)
        flip(copy / name, (copy / name).stat().st_size // 2)
        result = Index.open(copy).lookup(queries, 10, read="text")
        assert result.ids.tolist() == expected.ids.tolist()
        assert np.array_equal(result.scores, expected.scores)
        assert np.array_equal(result.vectors, expected.vectors)
        assert lance.verify_folder(copy) == []
        shutil.rmtree(copy)


def test_labels_with_checksums_are_verified(on_disk):
    import sqlite3

    row = ("clicked", "row 1", "boat")
    with sqlite3.connect(on_disk.annotations) as database:
        database.execute("CREATE TABLE labels (name TEXT, id TEXT, value TEXT, crc INTEGER)")
        database.execute("INSERT INTO labels VALUES (?, ?, ?, ?)", (*row, zlib.crc32(repr(row).encode())))
    database.close()
    assert on_disk.verify() == []
    assert on_disk.ids_where("clicked = 'boat'") == ["row 1"]
    assert set(on_disk.ids_where("not clicked = 'cat' and id != 'x'")) == {"row 1"}
    assert on_disk.values("clicked", ["row 1", "row 2"]) == [["boat"], None]
    with sqlite3.connect(on_disk.annotations) as database:
        database.execute("UPDATE labels SET value = 'goat'")
    database.close()
    assert len(on_disk.verify()) == 1


# ---------------------------------------------------------------- kills


@pytest.fixture(scope="module")
def fresh():
    """Return a process class that avoids forking Lance; the imports run once in the fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "lancedb", "recollect.index.ingest", "recollect.index.stores.lance"])
    return context.Process


def was_killed(fresh, folder, photos, step):
    process = fresh(target=write, args=(folder, photos, step))
    process.start()
    process.join(120)
    return process.exitcode == -signal.SIGKILL


def test_after_a_kill_at_any_step_the_next_run_completes_the_index(fresh, tmp_path):
    photos = tmp_path / "photos"
    for number in range(10):
        write_picture(photos / f"{number}.png", number)
    Index.create(tmp_path / "index", width=WIDTH, model="model-a").insert(make_rows(5))
    kills = 0
    for step in range(2, 60, 14):
        copy = shutil.copytree(tmp_path / "index", tmp_path / "copy")
        if not was_killed(fresh, copy, photos, step):
            break
        kills += 1
        assert lance.verify_folder(copy) == []
        index = Index.open(copy, HashEncoder())
        assert {f"row {number}" for number in range(5)} <= set(index.ids) | {each.id for each in index.removed()}
        assert len(set(index.ids)) == len(index.ids)
        index.restore()
        index.add(photos)
        assert len(index) == 15
        assert index.verify() == []
        shutil.rmtree(copy)
    assert kills >= 2


def test_two_concurrent_writers_lose_nothing(fresh, tmp_path):
    Index.create(tmp_path / "index", width=WIDTH, model="model-a")
    writers = [fresh(target=insert_many, args=(tmp_path / "index", first)) for first in (0, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(600)
        assert writer.exitcode == 0
    index = Index.open(tmp_path / "index")
    assert set(index.ids) == {f"row {number}" for number in range(18)}
    assert len(index.ids) == 18
    assert index.verify() == []


def test_a_full_disk_leaves_the_index_unchanged_and_readable(on_disk):
    before, version = on_disk.ids, on_disk.version
    shutil.rmtree(on_disk.folder / "cache")
    with full_disk(on_disk.folder, 1):
        again = Index.open(on_disk.address)
        assert again.ids == before
        with pytest.raises(UserError):
            again.add(Pictures(3), options=IngestOptions())
    assert Index.open(on_disk.address).version == version


def test_a_reader_keeps_its_version_until_it_refreshes_and_a_snapshot_forever(on_disk):
    reader = Index.open(on_disk.address)
    snapshot, before = reader.snapshot(), (reader.version, reader.ids)
    on_disk.insert(make_rows(2, first=50))
    assert reader.pictures(["row 39"])[0].removed, "removed pictures are read from the reader's version too"
    assert (reader.version, reader.ids) == before
    assert reader.refresh()
    assert (len(reader), len(snapshot)) == (len(before[1]) + 2, len(before[1]))
    with pytest.raises(UserError):
        snapshot.insert(make_rows(1, first=70))
    writer = Index.open(on_disk.address)
    reader.insert(make_rows(1, first=60))
    writer.insert(make_rows(1, first=61))
    assert len(writer) == len(before[1]) + 4


def test_compacting_changes_no_row_and_frees_old_versions(on_disk):
    expected = on_disk.lookup(on_disk.vectors()[:3], 10, read="text")
    ids = on_disk.ids
    assert on_disk.compact(0) > 0
    with pytest.raises(UserError):
        Index.open(on_disk.address, version=1)
    assert set(on_disk.ids) == set(ids)
    assert [set(row) for row in on_disk.lookup(expected.vectors[:, 0], 39).ids] == [set(ids)] * 3
    assert on_disk.verify() == []
    assert len(on_disk.removed()) == 1
