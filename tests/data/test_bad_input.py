"""Invalid data gives a one-line error: what is wrong, where, and what to do."""

import io
import json
import re
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.reader import BrokenCounter, readable_blocks
from recollect.data.sources.subset import Subset
from recollect.data.sources.tars import ShardState, read_shard


def open_error(spec, **options):
    with pytest.raises(UserError) as error:
        open_source(str(spec), **options)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    "spec",
    ["/no/such/file.parquet", "missing.csv", "a b c", "~nobody/x.tar", "nobody/no-such-set", "shard-{00..03}.tar"],
)
def test_the_error_names_a_missing_source(spec):
    assert spec in open_error(spec)


@pytest.mark.parametrize(
    ("columns", "options", "culprit"),
    [
        ({"photo": [b"x"], "words": ["a"], "image": None}, {}, "--image-column photo"),
        ({"Bild (alt)": [b"x"], "image": None}, {}, "--image-column 'Bild (alt)'"),
        ({"text": ["a"]}, {"columns": Columns(caption="captoin")}, "--caption-column text"),
        ({"caption": ["a"]}, {"kind": "label"}, "--label-column"),
        ({"image": [1, 2], "caption": ["a", "b"]}, {}, "'image' contains int64"),
        ({"label": [0.5, 1.0]}, {}, "0.5"),
        ({"label": [b"a", b"b"]}, {}, "'label'"),
        ({"label": [0, 0], "class_name": ["cat", "dog"]}, {}, "label 0"),
        ({"caption": ["a", "b"], "id": ["x", "x"]}, {"columns": Columns(id="id")}, "'id'"),
        ({"caption": [None, ""]}, {}, "set.parquet"),
    ],
)
def test_the_error_names_a_missing_or_invalid_column(make, columns, options, culprit):
    assert culprit in open_error(make.parquet(columns, rows=len(next(iter(columns.values())))), **options)


def test_the_error_for_a_structure_suggests_its_caption_field(make):
    """In WebDatasets of .jpg and .json, captions are inside a structure, whose text form is not a caption."""
    encoded_json = [json.dumps({"width": 8, "caption": f"picture {number}"}).encode() for number in range(3)]
    shard = make.tar(
        [(f"{n:04}", {"png": make.encoded(make.picture(n)), "json": each}) for n, each in enumerate(encoded_json)]
    )
    odd = make.tar([("0", {"png": make.encoded(make.picture(0)), "json": b'{"words": "a"}'})], "odd.tar")
    for stream in ("", "?stream=yes"):
        assert [open_source(f"{shard}{stream}").texts(row) for row in range(3)] == [(f"picture {n}",) for n in range(3)]
        assert "--caption-column json.caption" in open_error(f"{shard}{stream}", columns=Columns(caption="json"))
        assert "--caption-column json.words" in open_error(f"{odd}{stream}", columns=Columns(caption="json"))
    in_lists = make.parquet({"sentences": [[{"raw": "a cat", "tokens": 2}]], "label": ["cat"]}, "in_lists.parquet")
    assert open_source(str(in_lists), kind="label").class_names == ("cat",)
    assert open_source(str(in_lists), columns=Columns(caption="sentences.raw")).texts(0) == ("a cat",)
    assert "--caption-column sentences.raw" in open_error(in_lists, columns=Columns(caption="sentences"))


@pytest.mark.parametrize(
    ("endings", "content", "why"),
    [
        (("png", "json", "txt"), b'{"caption":', "1.json is not JSON"),
        (("png", "json", "txt"), b"\xff\xfe", "1.txt is not UTF-8"),
        (("png", "txt", "png"), b"a", "two files 1.png"),
        (("png", "txt", "txt"), b"a", "two files 1.txt"),
    ],
)
def test_damaged_files_in_a_tar_are_named_and_affect_no_other_sample(make, endings, content, why):
    path = make.folder / "damaged.tar"
    with tarfile.open(path, "w") as archive:
        for row in range(3):
            for ending in endings if row == 1 else ("png", "txt"):
                data = make.encoded(make.picture(row)) if ending == "png" else content if row == 1 else b"a"
                member = tarfile.TarInfo(f"{row}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    source = open_source(str(path))
    assert len(source) == 3
    assert not any("damage" in key for key in source[0].extra)
    with pytest.raises(BrokenImageError, match=f"damaged.tar, row 1: .*{why}"):
        source[1]
    assert [index for block in readable_blocks(source, 2, share=0.5) for index, _ in block] == [0, 2]
    streamed = open_source(f"{path}?stream=yes")
    if "JSON" not in why:  # a stream does not read the JSON
        with pytest.raises(BrokenImageError, match=f"damaged.tar, sample 1: .*{why}"):
            streamed[1]
    assert [streamed[row].texts for row in (0, 2)] == [("a",)] * 2
    assert not any("\ufffd" in text for text in source.texts(1))


def test_a_label_without_a_class_name_is_rejected(make):
    make.tar([("0", {"png": make.encoded(make.picture(0)), "cls": b"7"})])
    make.text("classnames.txt", "cat\ndog\n")
    assert "label 7" in open_error(make.folder / "shard-000.tar")


@pytest.mark.parametrize("split", ["dev", None, "a[1", "a[5:]", "a+a"])
def test_the_error_names_an_unknown_split(make, split):
    path = make.parquet({"caption": ["x", "y"], "split": ["a", "b"]})
    assert (split or "a, b") in open_error(path, split=split)


@pytest.mark.parametrize(
    "query", ["style=foto", "stil=photo", "image=x", "style", "shuffle=yes", "without=5/5", "only=1", "paths=all"]
)
def test_the_error_names_an_invalid_query(make, query):
    path = make.parquet({"caption": ["x", "y"], "style": ["photo", "map"]})
    assert query.partition("=")[0] in open_error(f"{path}?{query}")


def test_an_empty_folder_or_file_is_rejected(make):
    (make.folder / "empty").mkdir()
    assert "empty" in open_error(make.folder / "empty")
    assert "empty.parquet" in open_error(make.text("empty.parquet", ""))


def test_the_error_names_truncated_or_damaged_files(make):
    intact = make.parquet({"caption": ["a"] * 50}, "parts/train-1.parquet").read_bytes()
    (make.folder / "parts" / "train-2.parquet").write_bytes(intact[: len(intact) // 2])
    assert "train-2.parquet: damaged" in open_error(make.folder / "parts")
    (make.folder / "junk.parquet").write_bytes(b"hello" * 99)
    assert "junk.parquet: damaged" in open_error(make.folder / "junk.parquet")
    shard = make.tar([(f"{i}", {"png": make.encoded(make.picture(i)), "txt": b"a"}) for i in range(9)], "tars/0.tar")
    cut = make.folder / "tars" / "1.tar"
    cut.write_bytes(shard.read_bytes()[:9000])
    assert "1.tar: damaged" in open_error(cut)
    assert "1.tar: damaged" in open_error(make.folder / "tars")
    assert "two.csv: line 3 has 4 cells" in open_error(make.text("two.csv", "image,caption\na,b\na,b,c,d\n"))
    assert "first.csv: the first row has 3 cells" in open_error(make.text("first.csv", "image,caption\na,b,c\na,b,c\n"))
    assert "no rows" in open_error(make.text("none.csv", "image,caption\n"))
    for text in (b"image,caption\na,\xff\xfe\n", b"image,caption\n" + b"a,b\n" * 9999 + b"a,\xe4\n"):
        (make.folder / "bytes.csv").write_bytes(text)
        assert "bytes.csv: not in UTF-8" in open_error(make.folder / "bytes.csv")


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("file,caption\na.png,x\n", "metadata.csv: no column 'file_name'"),
        ("file_name,image,caption\na.png,x,y\n", "a column 'image'"),
        ("file_name,label\na.png,0\n", "metadata.csv and metadata.jsonl"),  # each picture would appear twice
    ],
)
def test_invalid_metadata_is_rejected(make, metadata, why):
    make.pictures(["a.png"])
    make.text("pictures/metadata.csv", metadata)
    if "jsonl" in why:
        make.text("pictures/metadata.jsonl", '{"file_name": "a.png", "label": 0}\n')
    assert why in open_error(make.folder / "pictures")


def test_unsupported_file_types_are_rejected(make):
    assert "shard-000.tar" in open_error(make.tar([("a", {"exe": b"x"})]))
    assert "x.zip" in open_error(make.text("x.zip", "x"))
    make.text("mixed/a.csv", "image\nx\n")
    make.text("mixed/b.tsv", "image\nx\n")
    assert ".csv, .tsv" in open_error(make.folder / "mixed")


@pytest.mark.parametrize("path", ["gone.png", "https://a.b/c.png", ""])
def test_the_error_names_the_row_of_a_missing_picture(make, path):
    make.pictures(["a.png"])
    table = make.text("list.csv", f'image,caption\npictures/a.png,x\n"{path}",y\n')
    with pytest.raises(BrokenImageError, match=re.escape(path or "row 1")) as error:
        open_source(str(table))[1]
    assert str(error.value).startswith("list.csv, row 1")


# --- broken images -----------------------------------------------------------------------------------------------


def broken_set(make, count, broken):
    good = [make.encoded(make.picture(i % 200)) for i in range(count)]
    images = [data[: len(data) // 2] if i in broken else data for i, data in enumerate(good)]
    return open_source(str(make.parquet({"image": images, "caption": ["x"] * count})))


def test_broken_images_are_skipped_counted_and_named(make, capfd):
    source = broken_set(make, 150, {7, 120})
    read = [each for block in readable_blocks(source, 16, share=0.02) for each in block]
    assert [place for place, _ in read] == [int(sample.id) for _, sample in read]
    assert [place for place, _ in read] == [i for i in range(150) if i not in (7, 120)]
    warning = capfd.readouterr().err
    assert "set.parquet, row 7" in warning
    assert "2 of 150 images" in warning


@pytest.mark.parametrize(("count", "broken"), [(100, {5, 50}), (20, {5})])
def test_too_many_broken_images_give_an_error_that_names_the_first(make, count, broken):
    with pytest.raises(UserError, match=r"set\.parquet, row 5"):
        list(readable_blocks(broken_set(make, count, broken), 1))


def test_a_few_broken_images_at_the_start_of_a_large_source_are_tolerated(captions):
    large = Subset(captions, np.zeros(10**6, dtype=np.int64), name="large")
    counters = BrokenCounter(share=0.01)
    counters.add(large, 64, [f"row {i}" for i in range(10)])  # ten in the first batch; at least a thousand images count
    counters.add(large, 10_000, [f"row {i}" for i in range(90)])
    with pytest.raises(UserError):
        counters.add(large, 1, ["row 999"])
    assert counters.summary() == {"large": 91}


# --- shards that lose samples ------------------------------------------------------------------------------------


def shard(make, count=120, name="shard-000.tar", first=0):
    samples = [
        (f"{i:04}", {"png": make.encoded(make.picture(i % 200)), "txt": b"a"}) for i in range(first, first + count)
    ]
    return make.tar(samples, name)


def member_offsets(path):
    with tarfile.open(path) as archive:
        return [member.offset for member in archive]


def flip(path, place, bit=1):
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(bytes(data))


def test_a_damaged_header_is_not_mistaken_for_the_end_of_a_shard(make, capfd):
    path = shard(make)
    flip(path, member_offsets(path)[120] + 3)
    assert "the header of file 121 is damaged" in open_error(path)
    assert len(open_source(str(path), lost_share=0.6)) == 60
    assert "the header of file 121 is damaged" in capfd.readouterr().err


def test_a_small_loss_gives_a_warning_and_a_larger_one_an_error(make, capfd):
    intact, damaged = shard(make, 200, "parts/0.tar"), shard(make, 200, "parts/1.tar", 200)
    flip(damaged, member_offsets(damaged)[398] + 100)
    assert len(open_source(str(make.folder / "parts"))) == 399
    warning = " ".join(capfd.readouterr().err.split())
    assert f"{damaged}: the header of file 399 is damaged" in warning
    assert "1 more" in warning
    flip(damaged, member_offsets(damaged)[300] + 100)
    assert f"{damaged}: the header of file 301 is damaged" in open_error(make.folder / "parts")
    assert len(open_source(str(intact))) == 200


def test_a_shard_cut_between_two_files_is_detected(make):
    path = shard(make)
    cut = make.folder / "cut.tar"
    for more in (0, 100):  # without and with a partial header, which tar readers treat alike
        cut.write_bytes(path.read_bytes()[: member_offsets(path)[100] + more])
        assert "cut.tar: damaged, cut short" in open_error(cut)
        assert len(open_source(str(cut), lost_share=1.0)) == 50


@pytest.mark.parametrize("stream", ["", "?stream=yes"])
@pytest.mark.parametrize(
    "beyond", [512 + 3, -100]
)  # cut after a header; cut before the next header, inside the padding
def test_a_shard_cut_within_a_file_is_rejected_whatever_loss_is_allowed(beyond, stream, make, capfd):
    path = shard(make)
    cut, start = make.folder / "cut.tar", member_offsets(path)[101 if beyond > 0 else 102]
    cut.write_bytes(path.read_bytes()[: start + beyond])
    for share in (0.0, 1.0):
        with pytest.raises(UserError, match=r"cut.tar: damaged, cut short in the middle of file 102"):
            open_source(f"{cut}{stream}", lost_share=share)
    assert "cut.tar" not in capfd.readouterr().err


def test_data_after_the_end_of_a_tar_is_reported(make):
    path = make.folder / "both.tar"
    path.write_bytes(shard(make, 30).read_bytes() + shard(make, 20, "other.tar", 30).read_bytes())
    assert "40 files" in open_error(path)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@settings(max_examples=12)
@given(sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 5000]), min_size=1, max_size=6), long=st.booleans())
def test_files_are_counted_in_tars_of_every_format(form, sizes, long, tmp_path_factory):
    path = tmp_path_factory.mktemp("tars") / "x.tar"
    with tarfile.open(path, "w", format=form) as archive:
        for number, size in enumerate(sizes):
            name = f"{'n' * 90}/{'m' * 60}/{number}" if long else f"caf\u00e9-{number}"
            member = tarfile.TarInfo(f"{name}.bin")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(range(250)) * (size // 250 + 1)))
    with path.open("rb") as file:
        rows, found = read_shard(file, path.stat().st_size)
    assert found == ShardState(len(rows), ("bin",), len(sizes))
    assert [len(row) for row in rows] == [1] * len(sizes)


# --- the hub, and paths outside the folder -----------------------------------------------------------------------


def test_a_typo_in_a_local_path_does_not_query_the_hub(make, monkeypatch):
    shard(make, name="sets/pears.tar")
    monkeypatch.chdir(make.folder)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: pytest.fail("queried the hub"))
    assert "Did you mean sets/pears.tar?" in open_error("sets/pear.tar")
    for place in ("sets/pears", "sets/pears?stream=yes"):
        assert "sets/pears.tar?" in open_error(place)


@pytest.mark.parametrize("path", ["../secret.png", "pictures/../../secret.png", "{outside}/secret.png"])
def test_a_table_opens_files_outside_its_folder_only_if_allowed(make, path):
    make.picture(9).save(make.folder / "secret.png")
    make.pictures(["a.png"], "inner/pictures")
    path = path.format(outside=make.folder)
    table = make.text("inner/list.csv", f"image,caption\npictures/a.png,x\n{path},y\n")
    assert f"list.csv, row 1: {path}" in open_error(table)
    assert len(open_source(f"{table}?paths=anywhere")) == 2
    inside = make.text("inner/good.csv", f"image,caption\n{make.folder}/inner/pictures/a.png,x\n./pictures/a.png,y\n")
    assert open_source(str(inside))[1].image.size == open_source(str(inside))[0].image.size


def test_an_outside_path_is_ignored_if_the_picture_is_embedded(make):
    cells = [{"bytes": make.encoded(make.picture(3)), "path": "/home/somebody/3.png"}]
    assert open_source(str(make.parquet({"image": cells, "caption": ["x"]})))[0].image
    cells = [{"bytes": None, "path": "/etc/hostname"}]
    assert "/etc/hostname" in open_error(make.parquet({"image": cells, "caption": ["x"]}, "other.parquet"))
