"""Streamed shards give every sample once per pass, on any ranks and workers, from any position."""

import json
import re
import sys
from collections import Counter
from functools import partial

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.core.seeding import derive_seed
from recollect.data.batches.order import BlockOrder
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.stream import open_stream
from recollect.objectives.shards import WHOLE, find_copies
from recollect.training.assembly import duplicate_ids_of
from shards import png, stream, tar_of, texts, write_parquet, write_tars

SHARDS, EACH = 60, 5


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Sources of the same pictures as tars and as one Parquet file with many row groups."""
    folder = tmp_path_factory.mktemp("streams")
    write_tars(folder / "tars", SHARDS, EACH)
    write_parquet(folder / "all.parquet", range(SHARDS * EACH), EACH)
    return {"tar": f"{folder}/tars?stream=yes", "parquet": f"{folder}/all.parquet?stream=yes", "folder": folder}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_stream_contains_the_samples_of_its_shards(places, kind):
    source = open_source(places[kind])
    assert len(source) == SHARDS * EACH
    for index in (0, 7, SHARDS * EACH - 1, -1):
        sample = source[index]
        assert sample.texts == (f"picture {index % len(source)}",)
        assert np.asarray(sample.image)[0, 0, 0] == index % len(source) % 256
    assert len({source.read(index).id for index in range(len(source))}) == len(source)
    with pytest.raises(IndexError):
        source[len(source)]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_every_sample_is_read_once_per_pass_on_any_ranks_and_workers(places, kind):
    """25 steps of 12 are one pass through 300 samples."""
    source = open_source(places[kind])
    whole = texts(stream(source).iterate(0, 50))
    for start in (0, 300):
        assert Counter(whole[start : start + 300]) == Counter(f"picture {number}" for number in range(300))
    assert whole[:300] != whole[300:600]
    ranks = [texts(stream(source, rank=rank, world_size=3).iterate(0, 25, workers=rank % 2)) for rank in range(3)]
    joined = [text for step in range(25) for each in ranks for text in each[step * 4 : step * 4 + 4]]
    assert joined == whole[:300]


def test_consecutive_steps_read_few_shards_and_each_rank_only_some(places):
    source = open_source(places["parquet"])
    for _ in stream(source).iterate(0, 6):  # 72 of the first 80 samples, which share 16 blocks
        pass
    assert source.opened == 16
    for rank in range(2):
        own = open_source(places["parquet"])
        for _ in stream(own, rank=rank, world_size=2).iterate(0, 6):
            pass
        assert own.opened <= 14, "half a batch, sorted by block, is in about half of the blocks"


@settings(max_examples=8)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=60, max_size=90), together=st.integers(1, 20), seed=st.integers(0, 99)
)
def test_block_order_passes_are_permutations_without_duplicates_across_the_boundary(sizes, together, seed):
    sizes = np.array(sizes)
    total = int(sizes.sum())
    order = BlockOrder(sizes, together, partial(derive_seed, seed))
    drawn = order(np.arange(3 * total))
    for turn in range(3):
        assert sorted(drawn[turn * total : (turn + 1) * total]) == list(range(total))
    one_by_one = np.concatenate([order(np.array([place])) for place in (0, total - 1, total, 2 * total + 1)])
    assert one_by_one.tolist() == drawn[[0, total - 1, total, 2 * total + 1]].tolist()
    around = slice(total - int(np.sort(sizes)[:together].sum()), total + int(np.sort(sizes)[:together].sum()))
    assert len(set(drawn[around].tolist())) == around.stop - around.start, "no duplicates across the end of a pass"


def test_keys_that_restart_in_each_shard_are_not_duplicates(tmp_path):
    for folder, name in (("a", "0.tar"), ("a", "1.tar"), ("b", "0.tar")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(tar_of(range(3)))
    source = open_source(f"{tmp_path}?stream=yes")
    ids = [source[index].id for index in range(9)]
    assert len(set(ids)) == 9
    assert ids[4] == "a/1.tar/000001"
    assert find_copies(duplicate_ids_of(stream(source, batch=9).batch(0), "ids"), WHOLE) is None


def test_parquet_texts_are_read_without_pictures(tmp_path, monkeypatch):
    """Training a tokenizer on a stream reads a million texts."""
    rows = [{"image": {"bytes": png(n), "path": None}, "json": {"a": f"a {n}"}, "b.c": f"c {n}", "x": "x" * 99}
            for n in range(4)]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet", row_group_size=2)
    requested, read = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *given: requested.append(given[2]) or read(*given))
    source = open_stream("s", [str(tmp_path / "all.parquet")], Columns(caption="json.a,b.c"))
    assert [source.texts(index) for index in range(4)] == [(f"a {n}", f"c {n}") for n in range(4)]
    assert requested == [["json", "b.c"]] * 2
    assert [source.read(index).texts for index in (0, 1)] == [("a 0", "c 0"), ("a 1", "c 1")]
    assert source.texts(0) == ("a 0", "c 0")
    assert requested[2:] == [["image", "json", "b.c"]]


def test_streams_are_read_through_fsspec(places):
    memory = fsspec.filesystem("memory")
    with memory.open("/set/all.parquet", "wb") as file:
        file.write((places["folder"] / "all.parquet").read_bytes())
    for shard in range(3):
        with memory.open(f"/set/s-{shard}.tar", "wb") as file:
            file.write(tar_of(range(shard * EACH, (shard + 1) * EACH)))
    parquet = open_source("memory://set/all.parquet?stream=yes")
    assert parquet[123].texts == ("picture 123",)
    with pytest.raises(UserError, match=r"memory://set/sizes.json"):
        open_source("memory://set/s-{0..2}.tar?stream=yes")
    with memory.open("/set/sizes.json", "wb") as file:
        file.write(json.dumps({f"s-{shard}.tar": EACH for shard in range(3)}).encode())
    tars = open_source("memory://set/s-{0..2}.tar?stream=yes")
    assert [tars[index].texts[0] for index in (0, 7, 14)] == ["picture 0", "picture 7", "picture 14"]
    for spec in ("memory://set/s-*.tar?stream=yes", "memory://set/?stream=yes"):
        assert [block.file for block in open_source(spec).blocks] == [
            f"memory:///set/s-{shard}.tar" for shard in range(3)
        ]
    assert open_source(f"file://{places['folder']}/all*.parquet?stream=yes").texts(7) == ("picture 7",)
    before = tars.content
    assert open_source("memory://set/s-{0..2}.tar?stream=yes").content == before
    data = tar_of(range(EACH, 2 * EACH)).replace(b"picture 7", b"picture 8")
    with memory.open("/set/s-1.tar", "wb") as file:
        file.write(data)
    assert open_source("memory://set/s-{0..2}.tar?stream=yes").content != before, "content changed at equal size"


def test_remote_files_belong_to_the_split_in_their_name(places):
    memory = fsspec.filesystem("memory")
    for name in ("train-0", "train-1", "test-0"):
        with memory.open(f"/named/{name}.parquet", "wb") as file:
            file.write((places["folder"] / "all.parquet").read_bytes())
    spec = "memory://named/*.parquet?stream=yes"
    assert len(open_source(spec)) == 2 * SHARDS * EACH, "test rows must not be used for training"
    assert len(open_source(spec, split="test")) == len(open_source(f"{spec}&split=test")) == SHARDS * EACH
    with pytest.raises(UserError, match="'validation'"):
        open_source(spec, split="validation")


def test_a_damaged_picture_in_a_shard_is_counted_and_replaced(tmp_path):
    write_tars(tmp_path, 4, 50)
    source = open_source(f"{tmp_path}?stream=yes")
    data = bytearray((tmp_path / "s-002.tar").read_bytes())
    data[512:600] = bytes(88)  # the first picture
    (tmp_path / "s-002.tar").write_bytes(data)
    with pytest.raises(BrokenImageError, match=r"s-002.tar, sample 0"):
        source[100]
    batches = stream(source, batch=50, broken_share=0.1)
    assert "picture 100" not in texts(batches.iterate(0, 4))
    assert sum(batches.counters.broken.values()) >= 1


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damaged_shards_are_reported(places, tmp_path, capfd, damage):
    """A plain tar reader would mistake a damaged header for the end and silently lose half of the shard."""
    for shard in range(4):
        data = bytearray((places["folder"] / "tars" / f"s-{shard:03}.tar").read_bytes())
        if shard == 2 and damage == "flip":
            data[4 * 1024 + 20] ^= 1  # in the name of the third picture
        elif shard == 2:
            data = data[: 4 * 1024]
        (tmp_path / f"s-{shard}.tar").write_bytes(data)
    for _ in range(2):  # first counted, then read from the cache
        with pytest.raises(UserError, match=r"s-2\.tar"):
            open_source(f"{tmp_path}?stream=yes")
        source = open_source(f"{tmp_path}?stream=yes", lost_share=1.0)
        assert len(source) == 17
        assert source[16].texts == ("picture 19",)
        assert "s-2.tar" in " ".join(capfd.readouterr().err.split())


@pytest.fixture
def no_s3fs(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)


@pytest.mark.usefixtures("no_s3fs")
@pytest.mark.parametrize(
    ("spec", "options", "culprit"),
    [
        ("PARQUET?stream=yes&caption=a", {}, "caption=a"),
        ("PARQUET?stream=yes", {"kind": "label"}, "all.parquet"),
        ("PARQUET?stream=no", {}, "stream=no"),
        ("PARQUET?stream=yes", {"split": "test"}, "'test'"),
        ("FOLDER/nothing-{0..3}.tar?stream=yes", {}, "nothing-{0..3}.tar"),
        ("PARQUET?stream=yes&revision=main", {}, "revision=main"),
        ("PARQUET?config=small", {}, "config=small"),
        ("s3://bucket/a.parquet?stream=yes", {}, "nstall s3fs"),
        ("s3://bucket/a.tar?stream=yes", {}, "nstall s3fs"),
        ("s3://bucket/?stream=yes", {}, "nstall s3fs"),
        ("what://bucket/a.tar?stream=yes", {}, "what://bucket"),
        ("http://localhost:1/*.tar?stream=yes", {}, "http://localhost:1/*.tar"),
        ("memory://nowhere/*.tar?stream=yes", {}, "memory://nowhere/*.tar"),
        ("memory://nowhere/a.parquet?stream=yes", {}, "memory://nowhere/a.parquet"),
        ("FOLDER/words.csv?stream=yes", {}, ".csv"),
        ("FOLDER/cut.parquet?stream=yes", {}, "cut.parquet"),
        ("FOLDER/cut.tar?stream=yes", {}, "cut.tar"),
    ],
)
def test_invalid_stream_addresses_give_a_one_line_error(places, spec, options, culprit):
    folder = places["folder"]
    (folder / "words.csv").write_text("a,b\n1,2\n")
    (folder / "cut.parquet").write_bytes((folder / "all.parquet").read_bytes()[:500])
    (folder / "cut.tar").write_bytes(b"no tar at all" * 100)
    spec = spec.replace("PARQUET", str(folder / "all.parquet")).replace("FOLDER", str(folder))
    with pytest.raises(UserError, match=re.escape(culprit)) as caught:
        open_source(spec, **options)
    assert "\n" not in str(caught.value)


def test_shard_sizes_are_cached_until_a_shard_changes(tmp_path, monkeypatch):
    shard = tmp_path / "s.tar"
    shard.write_bytes(tar_of(range(7)))
    assert len(open_stream("s", [str(shard)])) == 7
    counted = next((tmp_path / "cache" / "shard-states").glob("*.json"))
    whole = counted.read_text()
    for damaged in ("{", "[]", whole.replace('"samples": 7', '"samples": 3')):
        assert damaged != whole
        counted.write_text(damaged)
        assert len(open_stream("s", [str(shard)])) == 7
        assert counted.read_text() == whole
    shard.write_bytes(tar_of(range(9)))
    monkeypatch.setenv("RECOLLECT_CACHE", "/proc/none")
    assert len(open_stream("s", [str(shard)])) == 9
