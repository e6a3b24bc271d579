"""Streams behind an address: a real server, that gives parts of files, drops connections and falls silent."""

import errno
import json
import os
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.core.errors import UserError
from recollect.data.sources import open_source, remote, tars
from recollect.data.sources import stream as streams
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.subset import corpus
from shards import png, stream, tar_of, texts
from web import SHA, serving

SHARDS, EACH = 60, 5
EVERY = Counter(f"picture {number}" for number in range(SHARDS * EACH))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The same pictures as tars with their sizes, and as two Parquet files of many row groups."""
    folder = tmp_path_factory.mktemp("store")
    for shard in range(SHARDS):
        (folder / f"s-{shard:02}.tar").write_bytes(tar_of(range(shard * EACH, (shard + 1) * EACH)))
    (folder / "sizes.json").write_text(json.dumps({f"s-{shard:02}.tar": EACH for shard in range(SHARDS)}))
    for part in range(2):
        numbers = range(part * 150, part * 150 + 150)
        pictures = [{"bytes": png(number), "path": None} for number in numbers]
        table = pa.table({"image": pictures, "caption": [f"picture {number}" for number in numbers]})
        pq.write_table(table, folder / f"train-{part}.parquet", row_group_size=EACH)
    return folder


@pytest.fixture
def store(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAITS", (0.01, 0.01))
    with serving(shards) as web:
        web.specs = {
            "tar": f"{web.address}/s-{{00..59}}.tar?stream=yes",
            "parquet": f"{web.address}/train-{{0..1}}.parquet?stream=yes",
            "hub": "some/set?stream=yes",
        }
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", web.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the hub is this machine
        yield web


def drop(web) -> None:
    """Let the next answers of every third tar, and three of each Parquet file, stop in the middle or be a 503."""
    web.cut.update({f"s-{shard:02}.tar": 1 for shard in range(0, SHARDS, 3)})
    web.refused.update({f"s-{shard:02}.tar": 1 for shard in range(1, SHARDS, 3)})
    web.cut.update({f"train-{part}.parquet": 2 for part in range(2)})
    web.refused.update({f"train-{part}.parquet": 1 for part in range(2)})


@pytest.mark.parametrize("kind", ["tar", "parquet", "hub"])
def test_every_sample_comes_once_through_dropped_connections_on_ranks_and_workers(store, kind, unchecked):
    """Counted: 25 steps of 12 are one pass through 300 samples; and step 17 is found again at its very place."""
    whole = texts(stream(open_source(store.specs[kind])).iterate(0, 25))
    assert Counter(whole) == EVERY
    source = open_source(store.specs[kind])
    drop(store)
    ranks = [texts(stream(source, rank=rank, world_size=2).iterate(0, 25, workers=rank)) for rank in range(2)]
    assert [text for step in range(25) for each in ranks for text in each[step * 6 : step * 6 + 6]] == whole
    assert texts(stream(open_source(store.specs[kind])).iterate(17, 25)) == whole[17 * 12 :]
    files = {name for name in store.asked if name.endswith(".tar" if kind == "tar" else ".parquet")}
    if kind != "tar":
        assert sum(store.cut[name] + store.refused[name] for name in files) == 0, "every fault was met"
    assert len(files) == (SHARDS if kind == "tar" else 2)


def test_a_tar_is_fetched_once_by_all_workers_and_taken_up_where_it_broke(store, unchecked):
    drop(store)
    assert Counter(texts(stream(open_source(store.specs["tar"])).iterate(0, 25, workers=2))) == EVERY
    tars = [f"s-{shard:02}.tar" for shard in range(SHARDS)]
    # One download; one more request after a fault, and one for the version in each worker.
    assert all(2 <= store.asked[name] <= 4 for name in tars)
    assert sum(store.cut[name] + store.refused[name] for name in tars) == 0


def test_a_tar_that_another_process_removes_from_the_cache_stays_readable(store, tmp_path):
    source = open_source(store.specs["tar"])
    assert source.texts(3) == ("picture 3",)
    for kept in (tmp_path / "cache" / "streams").glob("*.tar"):
        kept.unlink()
    assert source.texts(4) == ("picture 4",)
    assert open_source(store.specs["tar"]).texts(4) == ("picture 4",)


def test_a_tar_that_was_fetched_before_is_fetched_again_where_its_store_has_another(store, tmp_path):
    store.folder = tmp_path / "web"
    store.folder.mkdir()
    (store.folder / "sizes.json").write_text('{"s.tar": 5}')
    spec, asked = f"{store.address}/s.tar?stream=yes", []
    for numbers, version in ((range(5), '"0"'), (range(5), '"0"'), (range(5, 10), '"1"'), (range(5), None)):
        (store.folder / "s.tar").write_bytes(tar_of(numbers))
        store.version = version
        source = open_source(spec)
        assert [source.texts(index) for index in (0, 4)] == [(f"picture {numbers[index]}",) for index in (0, 4)]
        asked.append(store.asked["s.tar"])
    assert asked == [2, 3, 5, 9], "only its version is requested the second time"


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_store_that_falls_silent_ends_the_run_in_one_line(store, kind):
    """No other sample takes the place of one that cannot be reached: the run would not be that of its seed."""
    source = open_source(store.specs[kind])
    made = stream(source).iterate(0, 25)
    next(made)
    store.refused.update({f"s-{shard:02}.tar": 1000 for shard in range(SHARDS)})
    store.refused.update({f"train-{part}.parquet": 1000 for part in range(2)})
    with pytest.raises(UserError, match="503") as met:
        texts(made)
    assert "\n" not in str(met.value)
    with pytest.raises(UserError, match="503"):
        texts(stream(open_source(store.specs["tar"])).iterate(3, 25, workers=1))


def test_a_store_that_never_answered_is_said_at_once(shards):
    with serving(shards) as web:
        gone = web.address
    began = time.monotonic()
    for spec in ("train-0.parquet", "s-{00..02}.tar"):
        with pytest.raises(UserError, match="refused") as met:
            open_source(f"{gone}/{spec}?stream=yes")
        assert "\n" not in str(met.value)
    assert time.monotonic() - began < 0.4


@pytest.mark.parametrize(("spec", "culprit"), [("none.parquet", "none.parquet"), ("none-{0..1}.tar", "sizes.json")])
def test_what_is_not_there_is_one_line(store, spec, culprit):
    with pytest.raises(UserError, match=culprit) as met:
        open_source(f"{store.address}/{spec}?stream=yes")
    assert "\n" not in str(met.value)


def test_an_address_that_is_not_streamed_says_how_to_read_it(store):
    with pytest.raises(UserError, match=r"/train-0\.parquet\?stream=yes"):
        open_source(f"{store.address}/train-0.parquet")


def test_a_store_without_parts_gives_tars_and_says_what_to_do_with_parquet(store):
    store.ranges = False
    store.cut["s-01.tar"] = 1
    assert open_source(store.specs["tar"])[7].texts == ("picture 7",)
    with pytest.raises(UserError, match=r"train-0\.parquet"):
        open_source(store.specs["parquet"])


def test_a_file_that_changes_while_it_is_read_stops_the_run(store):
    source = open_source(store.specs["parquet"])
    store.version = '"1"'
    with pytest.raises(UserError, match=r"train-0\.parquet"):
        source.texts(70)


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_the_content_of_a_stream_is_told_by_the_versions_of_its_files(store, kind):
    spec = store.specs[kind].replace("{00..59}", "{00..01}")
    before = open_source(spec).content
    streams._remote_parquet.cache_clear()
    source = open_source(spec)
    assert source.content == before
    store.version = '"1"'
    assert source.content != before
    store.version = None  # a store that has none: by the ends of the files
    assert source.content == source.content != before


def test_a_hub_set_is_streamed_by_split_and_configuration(store, shards, tmp_path):
    files = {"plain/train-0.parquet", "plain/validation-0.parquet", "more/test-0.parquet"}
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((shards / "train-0.parquet").read_bytes())
    store.folder = tmp_path

    def found(query, **options):
        blocks = open_source(f"some/set?stream=yes{query}", **options).blocks
        return {block.file.partition(f"@{SHA}/")[2] for block in blocks}

    assert found("") == {"plain/train-0.parquet"}
    source, asked = open_source("some/set?stream=yes"), store.asked.total()
    before, store.version = source.content, '"another, of another server"'
    assert source.content == before, "the commit tells it"
    assert store.asked.total() == asked
    assert found("", split="val") == {"plain/validation-0.parquet"}
    assert found("&config=more&split=test") == {"more/test-0.parquet"}
    for query, culprit in (("&split=test&config=plain", "plain"), ("&config=other", "other")):
        with pytest.raises(UserError, match=f"some/set.*'{culprit}'"):
            found(query)


def test_no_room_for_a_fetched_shard_says_which_folder(store, monkeypatch, tmp_path):
    def full(file, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tars, "download", full)
    kept = tmp_path / "cache" / "streams"
    with pytest.raises(UserError, match=rf"^{kept}: .*s-00.tar"):
        tars.open_tar(f"{store.address}/s-00.tar", 5)
    assert not list(kept.glob("*.tar"))


def test_a_worker_opens_the_files_of_a_store_anew(store, monkeypatch):
    """fsspec's file systems of stores refuse to work behind a fork."""
    file = f"{store.address}/train-0.parquet"
    here = streams._parquet(file)
    assert streams._parquet(file) is here
    child = os.fork()
    if not child:
        os._exit(int(streams._parquet(file) is here))
    assert os.waitpid(child, 0)[1] == 0


def test_sizes_that_are_wrong_lose_no_sample_silently(store, shards, tmp_path):
    for size, error, message in (
        (EACH - 1, UserError, r"s-00.tar: contains 5 samples"),
        (EACH + 1, BrokenImageError, "s-00.tar, sample 5"),
    ):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "s-00.tar").write_bytes((shards / "s-00.tar").read_bytes())
        (folder / "sizes.json").write_text(json.dumps({"s-00.tar": size}))
        with serving(folder) as web, pytest.raises(error, match=message):
            open_source(f"{web.address}/s-{{00..00}}.tar?stream=yes")[5 if size > EACH else 0]


def test_a_tokenizer_reads_a_part_of_the_shards_of_a_large_stream(store):
    source = open_source(store.specs["parquet"])
    found = list(corpus(source, 40))
    assert 40 <= len(set(found)) == len(found) <= 45
    assert source.opened == 9
    numbers = sorted(int(text.split()[1]) for text in found)
    assert numbers[0] < 50
    assert numbers[-1] > 250
    assert Counter(corpus(source)) == EVERY
