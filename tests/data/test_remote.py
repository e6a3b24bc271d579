"""Remote streams, read from a local server that supports ranges, drops connections and goes silent."""

import json
import os
import time
from collections import Counter
from unittest import mock

import pytest

from recollect.core.errors import UserError
from recollect.data.sources import open_source, remote, tars
from recollect.data.sources import stream as streams
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.subset import corpus
from shards import stream, tar_of, texts, write_parquet, write_tars
from web import SHA, serving

SHARDS, EACH = 60, 5
TARS = [f"s-{shard:03}.tar" for shard in range(SHARDS)]
EVERY = Counter(f"picture {number}" for number in range(SHARDS * EACH))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Folder with the same pictures as tars with sizes, and as two Parquet files with many row groups."""
    folder = tmp_path_factory.mktemp("store")
    write_tars(folder, SHARDS, EACH)
    (folder / "sizes.json").write_text(json.dumps(dict.fromkeys(TARS, EACH)))
    for part in range(2):
        write_parquet(folder / f"train-{part}.parquet", range(part * 150, part * 150 + 150), EACH)
    return folder


@pytest.fixture
def store(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "RETRY_SECONDS", (0.01, 0.01))
    with serving(shards) as web:
        web.specs = {
            "tar": f"{web.address}/s-{{000..059}}.tar?stream=yes",
            "parquet": f"{web.address}/train-{{0..1}}.parquet?stream=yes",
            "hub": "some/set?stream=yes",
        }
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", web.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the hub is this machine
        yield web


def drop(web) -> None:
    """Make the next responses for two thirds of the tars, and three for each Parquet file, break off or be a 503."""
    web.cut.update(dict.fromkeys(TARS[::3], 1))
    web.refused.update(dict.fromkeys(TARS[1::3], 1))
    web.cut.update({f"train-{part}.parquet": 2 for part in range(2)})
    web.refused.update({f"train-{part}.parquet": 1 for part in range(2)})


@pytest.mark.parametrize("kind", ["tar", "parquet", "hub"])
def test_every_sample_is_read_once_despite_dropped_connections(store, kind, unchecked):
    """On ranks and workers. 25 steps of 12 are one pass through 300 samples; a run can also start at step 17."""
    whole = texts(stream(open_source(store.specs[kind])).iterate(0, 25))
    assert Counter(whole) == EVERY
    source = open_source(store.specs[kind])
    drop(store)
    ranks = [texts(stream(source, rank=rank, world_size=2).iterate(0, 25, workers=rank)) for rank in range(2)]
    assert [text for step in range(25) for each in ranks for text in each[step * 6 : step * 6 + 6]] == whole
    assert texts(stream(open_source(store.specs[kind])).iterate(17, 25)) == whole[17 * 12 :]
    files = {name for name in store.requests if name.endswith(".tar" if kind == "tar" else ".parquet")}
    if kind != "tar":
        assert sum(store.cut[name] + store.refused[name] for name in files) == 0, "every fault must have occurred"
    assert len(files) == (SHARDS if kind == "tar" else 2)


def test_workers_download_a_tar_once_and_resume_after_a_fault(store, unchecked):
    drop(store)
    assert Counter(texts(stream(open_source(store.specs["tar"])).iterate(0, 25, workers=2))) == EVERY
    # A download, a request after a fault, and a version request per worker.
    assert all(2 <= store.requests[name] <= 4 for name in TARS)
    assert sum(store.cut[name] + store.refused[name] for name in TARS) == 0


def test_a_tar_removed_from_the_cache_stays_readable(store, tmp_path):
    source = open_source(store.specs["tar"])
    assert source.texts(3) == ("picture 3",)
    for kept in (tmp_path / "cache" / "streams").glob("*.tar"):
        kept.unlink()
    assert source.texts(4) == ("picture 4",)
    assert open_source(store.specs["tar"]).texts(4) == ("picture 4",)


def test_a_cached_tar_is_downloaded_again_if_it_changed_on_the_server(store, tmp_path):
    store.folder = tmp_path / "web"
    store.folder.mkdir()
    (store.folder / "sizes.json").write_text('{"s.tar": 5}')
    spec, requests = f"{store.address}/s.tar?stream=yes", []
    for numbers, version in ((range(5), '"0"'), (range(5), '"0"'), (range(5, 10), '"1"'), (range(5), None)):
        (store.folder / "s.tar").write_bytes(tar_of(numbers))
        store.version = version
        source = open_source(spec)
        assert [source.texts(index) for index in (0, 4)] == [(f"picture {numbers[index]}",) for index in (0, 4)]
        requests.append(store.requests["s.tar"])
    assert requests == [2, 3, 5, 9], "the second time, only the version is requested"


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_an_unavailable_store_ends_the_run_with_a_one_line_error(store, kind):
    """Unreachable samples are not replaced, since the run would no longer be determined by its seed."""
    source = open_source(store.specs[kind])
    batches = stream(source).iterate(0, 25)
    next(batches)
    store.refused.update(dict.fromkeys([*TARS, "train-0.parquet", "train-1.parquet"], 1000))
    with pytest.raises(UserError, match="503") as caught:
        texts(batches)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="503"):
        texts(stream(open_source(store.specs["tar"])).iterate(3, 25, workers=1))


def test_an_unreachable_server_is_reported_at_once(shards):
    with serving(shards) as web:
        gone = web.address
    began = time.monotonic()
    for spec in ("train-0.parquet", "s-{000..002}.tar"):
        with pytest.raises(UserError, match="refused") as caught:
            open_source(f"{gone}/{spec}?stream=yes")
        assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 0.4


@pytest.mark.parametrize(("spec", "culprit"), [("none.parquet", "none.parquet"), ("none-{0..1}.tar", "sizes.json")])
def test_missing_remote_files_give_a_one_line_error(store, spec, culprit):
    with pytest.raises(UserError, match=culprit) as caught:
        open_source(f"{store.address}/{spec}?stream=yes")
    assert "\n" not in str(caught.value)


def test_the_error_for_a_url_without_streaming_suggests_it(store):
    with pytest.raises(UserError, match=r"/train-0\.parquet\?stream=yes"):
        open_source(f"{store.address}/train-0.parquet")


def test_without_range_requests_tars_work_and_parquet_is_rejected(store):
    store.ranges = False
    store.cut["s-001.tar"] = 1
    assert open_source(store.specs["tar"])[7].texts == ("picture 7",)
    with pytest.raises(UserError, match=r"train-0\.parquet"):
        open_source(store.specs["parquet"])


def test_a_file_that_changes_during_reading_stops_the_run(store):
    source = open_source(store.specs["parquet"])
    store.version = '"1"'
    with pytest.raises(UserError, match=r"train-0\.parquet"):
        source.texts(70)


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_the_content_hash_of_a_stream_depends_on_file_versions(store, kind):
    spec = store.specs[kind].replace("{000..059}", "{000..001}")
    before = open_source(spec).content
    streams._remote_parquet.cache_clear()
    source = open_source(spec)
    assert source.content == before
    store.version = '"1"'
    assert source.content != before
    store.version = None  # without versions, the ends of the files are hashed
    assert source.content == source.content != before


def test_a_hub_data_set_is_streamed_by_split_and_configuration(store, shards, tmp_path):
    files = {"plain/train-0.parquet", "plain/validation-0.parquet", "more/test-0.parquet"}
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((shards / "train-0.parquet").read_bytes())
    store.folder = tmp_path

    def found(query, **options):
        blocks = open_source(f"some/set?stream=yes{query}", **options).blocks
        return {block.file.partition(f"@{SHA}/")[2] for block in blocks}

    assert found("") == {"plain/train-0.parquet"}
    source, requests = open_source("some/set?stream=yes"), store.requests.total()
    before, store.version = source.content, '"another"'
    assert source.content == before, "only the commit counts"
    assert store.requests.total() == requests
    assert found("", split="val") == {"plain/validation-0.parquet"}
    assert found("&config=more&split=test") == {"more/test-0.parquet"}
    for query, culprit in (("&split=test&config=plain", "plain"), ("&config=other", "other")):
        with pytest.raises(UserError, match=f"some/set.*'{culprit}'"):
            found(query)


def test_the_error_for_a_full_disk_names_the_cache_folder(store, monkeypatch, tmp_path):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(tars, "download", full)
    kept = tmp_path / "cache" / "streams"
    with pytest.raises(UserError, match=rf"^{kept}: .*s-000.tar"):
        tars.open_tar(f"{store.address}/s-000.tar", 5)
    assert not list(kept.glob("*.tar"))


def test_a_worker_reopens_remote_files(store):
    """fsspec's remote file systems do not work after a fork."""
    file = f"{store.address}/train-0.parquet"
    opened = streams._parquet(file)
    assert streams._parquet(file) is opened
    child = os.fork()
    if not child:
        os._exit(int(streams._parquet(file) is opened))
    assert os.waitpid(child, 0)[1] == 0


def test_wrong_sizes_are_detected(store, shards, tmp_path):
    for size, error, message in (
        (EACH - 1, UserError, r"s-000.tar: contains 5 samples"),
        (EACH + 1, BrokenImageError, "s-000.tar, sample 5"),
    ):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "s-000.tar").write_bytes((shards / "s-000.tar").read_bytes())
        (folder / "sizes.json").write_text(json.dumps({"s-000.tar": size}))
        with serving(folder) as web, pytest.raises(error, match=message):
            open_source(f"{web.address}/s-{{000..000}}.tar?stream=yes")[5 if size > EACH else 0]


def test_the_corpus_of_a_large_stream_is_sampled_from_some_shards(store):
    source = open_source(store.specs["parquet"])
    found = list(corpus(source, 40))
    assert 40 <= len(set(found)) == len(found) <= 45
    assert source.opened == 9
    numbers = sorted(int(text.split()[1]) for text in found)
    assert numbers[0] < 50
    assert numbers[-1] > 250
    assert Counter(corpus(source)) == EVERY
