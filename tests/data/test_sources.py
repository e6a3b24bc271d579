"""All supported data formats and the samples they give."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.table import InMemoryTable
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Source
from recollect.data.sources import files, open_source, split_names
from recollect.data.sources.columns import Columns
from recollect.data.sources.images import find_images
from recollect.data.sources.subset import Joined, Subset, corpus
from recollect.data.sources.table import Origin, TableSource
from recollect.index.watch import pictures_below


def test_parquet_with_captions(make, shade):
    path = make.parquet({"captions": [["a", "b"], ["c"]], "domain": ["photo", "sketch"], "year": [2001, 2002]})
    source = open_source(str(path))
    assert isinstance(source, Source)
    assert (source.kind, len(source), source.class_names) == ("caption", 2, ())
    sample = source[1]
    assert (sample.texts, sample.label, shade(sample), sample.image.mode) == (("c",), NO_LABEL, 1, "RGB")
    assert sample.extra == {"domain": "sketch", "year": 2002}
    assert sample.source == source.name == "set"


@pytest.mark.parametrize(
    ("columns", "names", "labels"),
    [
        ({"label": [5, 2, 5, -1], "class_name": ["bus_stop", "cat", "bus_stop", ""]}, ("cat", "bus stop"), [1, 0, 1]),
        ({"label": ["cat ", " cat", "cat", "dog", " "]}, ("cat", "dog"), [0, 0, 0, 1]),
        ({"label": [True, False, True]}, ("false", "true"), [1, 0, 1]),
        ({"label": [1.0, float("nan"), 0.0]}, (), [1, 0]),
        *(({"label": pa.array([1, None, 0], kind())}, (), [1, 0])
          for kind in (pa.uint8, pa.int8, pa.uint64, pa.float32)),
    ],
)  # fmt: skip
def test_labels_are_numbered_without_gaps_and_rows_without_a_class_are_skipped(make, columns, names, labels):
    source = open_source(str(make.parquet(columns)), kind="label")
    assert (source.class_names, [sample.label for sample in source]) == (names, labels)
    assert source[0].texts == ()


def test_empty_captions_are_skipped(make):
    found = open_source(str(make.parquet({"captions": [["a"], [" ", None], [], None, ["", "b"]]})))
    assert [sample.texts for sample in found] == [("a",), ("b",)]


def test_string_labels_have_the_same_number_in_every_split(make):
    words = ["owl", "ant", "bee", "bee", "cow", "owl"]
    path = make.parquet({"label": words, "split": ["train", "train", "train", "test", "test", "test"]})
    train, test = (open_source(str(path), split=split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("ant", "bee", "cow", "owl")
    assert [sample.label for sample in train] == [3, 0, 1]
    assert [sample.label for sample in test] == [1, 2, 3]


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_csv_separators_are_detected(make, separator):
    make.pictures(["one.png", "two.png"])
    rows = [("image", "caption"), ("pictures/one.png", "a"), ("pictures/two.png", '"b\nc"')]
    for end in ("", separator):  # rows may end in an empty cell
        text = "".join(separator.join(row) + (end if number else "") + "\r\n" for number, row in enumerate(rows))
        table = make.text(f"list{len(end)}.csv", "\ufeff" + text)
        assert [sample.texts for sample in open_source(str(table))] == [("a",), ("b\nc",)]


def test_synonyms_are_the_texts_of_a_label_source(make):
    path = make.parquet({"label": ["frog"], "names": [["frog", "toad"]]})
    source = open_source(str(path), kind="label", columns=Columns(synonyms="names"))
    assert source[0].texts == ("frog", "toad")


def test_captions_from_several_columns_or_a_nested_field(make):
    columns = {"caption_0": ["a", "b"], "caption_1": ["c", None], "meta": [{"raw": ["d"]}, {"raw": ["e", "f"]}]}
    path = str(make.parquet(columns))
    both = open_source(path, columns=Columns(caption="caption_0,caption_1"))
    assert [sample.texts for sample in both] == [("a", "c"), ("b",)]
    inner = open_source(path, columns=Columns(caption="meta.raw"))
    assert [sample.texts for sample in inner] == [("d",), ("e", "f")]


def test_webdataset_shards_with_different_json_and_missing_files(make, shade):
    samples = []
    for i in range(12):
        facts = {"caption": f"json {i}", "width": i if i > 8 else None}
        files = {"png": make.encoded(make.picture(i)), "json": make.json(facts)}
        samples.append((f"{i:04}", files | ({} if i == 2 else {"txt": f"text {i}".encode()})))
    make.tar(samples[:6], "shards/s-000.tar")
    make.tar(samples[6:], "shards/s-001.tar")
    for place in (make.folder / "shards", make.folder / "shards/s-{000..001}.tar", make.folder / "shards/s-*.tar"):
        source = open_source(str(place))
        assert len(source) == 11
        assert (source[10].texts, shade(source[10])) == (("text 11",), 11)
    from_json = open_source(str(place), columns=Columns(caption="json.caption"))
    assert [from_json[i].texts for i in (2, 11)] == [("json 2",), ("json 11",)]


def test_webdataset_shards_with_several_image_formats(make, shade):
    """A sample with an extra file, in any shard, does not affect the others."""
    kinds = ["png", "png", "jpg", "JPG", "webp"]
    for number, kind in enumerate(kinds[3:]):
        make.tar([(f"{number}", {kind: make.encoded(make.picture(number)), "txt": b"a"})], f"capitals/{number}.tar")
    assert [shade(sample) for sample in open_source(str(make.folder / "capitals"))] == [0, 1]
    for number, kind in enumerate(kinds):
        files = {kind: make.encoded(make.picture(9 * number)), "txt": b"a"}
        make.tar(
            [(f"{number}", files | ({"png": make.encoded(make.picture(99))} if kind == "jpg" else {}))],
            f"w/{number}.tar",
        )
    source = open_source(str(make.folder / "w"))
    assert [shade(sample) for sample in source] == [0, 9, 18, 27, 36]
    assert not any(key in source[0].extra for key in kinds)
    make.tar([("5", {"png": make.encoded(make.picture(0)), "txt": b"a"})], "w/5.tar")
    streamed = open_source(f"{make.folder / 'w'}?stream=yes")
    assert [shade(sample) for sample in streamed] == [0, 9, 18, 27, 36, 0]
    masks = open_source(str(make.folder / "w"), columns=Columns(image="png"))
    assert [shade(masks[number]) for number in range(3)] == [0, 9, 99]


def test_a_stream_has_captions_even_if_its_first_sample_has_none(make):
    picture = make.encoded(make.picture(0))
    make.tar([("0", {"png": picture}), ("1", {"png": picture, "txt": b"a dog"})], "1.tar")
    assert [sample.texts for sample in open_source(f"{make.folder / '1.tar'}?stream=yes")] == [(), ("a dog",)]


def test_text_files_in_a_webdataset_may_be_called_caption_and_have_a_byte_order_mark(make):
    files = {"png": make.encoded(make.picture(0)), "caption": b"\xef\xbb\xbfa dog"}
    for stream in ("", "?stream=yes"):
        source = open_source(f"{make.tar([('0', files)], '1.tar')}{stream}")
        assert [sample.texts for sample in source] == [("a dog",)]


def test_codes_in_a_csv_keep_their_zeros(make):
    make.pictures([f"{number}.png" for number in range(3)], ".")
    table = make.text("list.csv", "image,label,zip,year\n0.png,7,1234,07.5\n1.png,007,,0\n2.png,12,01234,10\n")
    source = open_source(str(table))
    assert [source.class_names[label] for label in source.labels] == ["7", "007", "12"]
    assert (source.values("zip"), source.values("year")) == (["1234", None, "01234"], [7.5, 0, 10])


def test_lists_of_captions_in_a_csv_are_lists(make):
    make.pictures(["0.png", "1.png", "2.png"], ".")
    table = make.text("list.csv", 'image,captions\n0.png,"[""a dog"", ""it, runs""]"\n1.png,[]\n2.png,[a] dog\n')
    source = open_source(str(table), keep_textless=True)
    assert [sample.texts for sample in source] == [("a dog", "it, runs"), (), ("[a] dog",)]


def test_captions_stored_as_bytes_are_text(make):
    source = open_source(str(make.parquet({"caption": [b"caf\xc3\xa9", b"b"]})))
    assert [sample.texts for sample in source] == [("caf\u00e9",), ("b",)]


def test_suffixes_in_a_webdataset_may_be_upper_case(make, shade):
    make.tar(
        [(f"{number}", {"JPG": make.encoded(make.picture(number)), "TXT": b"a dog"}) for number in range(2)], "1.tar"
    )
    for stream in ("", "?stream=yes"):
        source = open_source(f"{make.folder / '1.tar'}{stream}")
        assert [(sample.texts, shade(sample)) for sample in source] == [(("a dog",), 0), (("a dog",), 1)]


def test_webdataset_with_classes_and_a_file_of_class_names(make):
    for split, count in (("train", 4), ("test", 2)):
        rows = [
            (f"{i}", {"jpg": make.encoded(make.picture(i), "JPEG"), "cls": str(i % 2).encode()}) for i in range(count)
        ]
        make.tar(rows, f"wds/{split}/0.tar")
    make.text("wds/classnames.txt", "hot_dog\nnot hot dog\n")
    source = open_source(str(make.folder / "wds"), split="test")
    assert (source.kind, source.class_names) == ("label", ("hot dog", "not hot dog"))
    assert [sample.label for sample in source] == [0, 1]
    assert split_names(str(make.folder / "wds")) == ("test", "train")


def test_a_folder_of_images_per_class(make, shade):
    root = make.pictures(["train/cat/test_1.png", "train/old_bus/2.png", "val/cat/3.jpg", "val/old_bus/4.png"])
    source = open_source(str(root), split="train")
    assert source.class_names == ("cat", "old bus")
    assert [(sample.label, shade(sample)) for sample in source] == [(0, 0), (1, 1)]
    assert len(open_source(str(root), split="validation")) == 2
    assert repr(source) == "TableSource('pictures:train': 2 samples, labels, 2 classes)"


def test_class_names_for_folders_named_by_id(make, capfd):
    make.pictures(["train/n01440764/a.png", "train/n02102040/b.png", "val/n02102040/c.png"], "imagenet")
    folder, text = str(make.folder / "imagenet"), "crane\ncrane"  # ImageNet has two classes with this name
    assert open_source(folder).class_names == ("n01440764", "n02102040")
    assert "WordNet" in capfd.readouterr().err
    make.text("imagenet/classnames.txt", text)
    for split, labels in (("train", [0, 1]), ("val", [1])):
        source = open_source(folder, split=split)
        assert (source.class_names, [sample.label for sample in source]) == (("crane", "crane"), labels)
    make.text("imagenet/classnames.txt", text + "\nowl")
    assert open_source(folder).class_names == ("n01440764", "n02102040")
    assert "3 names" in capfd.readouterr().err


def test_text_files_next_to_pictures_are_captions(make, capfd):
    root = make.pictures(["train/cat/a.png", "train/cat/b.jpg", "train/owl/c.png", "val/owl/d.png"])
    (root / "train/cat/a.txt").write_text("a cat\n\n a gray cat \n", "utf-8")
    (root / "train/cat/b.TXT").write_bytes(b"\xef\xbb\xbfcaf\xe9")  # with a byte-order mark and invalid UTF-8
    source = open_source(str(root), split="train")
    assert [sample.texts for sample in source] == [("a cat", "a gray cat"), ("caf\ufffd",)]
    assert (source.class_names, [sample.label for sample in source]) == (("cat", "owl"), [0, 0])
    assert [sample.texts for sample in open_source(str(root), split="train", keep_textless=True)][2] == ()
    before = source.fingerprint
    (root / "train/cat/a.txt").write_text("a dog", "utf-8")
    changed = open_source(str(root), split="train")
    assert (changed[0].texts, changed.fingerprint == before) == (("a dog",), False)
    (root / "train/cat/b.TXT").unlink()  # one caption for four pictures is not enough
    capfd.readouterr()
    assert open_source(str(root), split="train").kind == "label"
    assert "a.txt" in capfd.readouterr().err


def test_an_unreadable_caption_file_leaves_its_picture_without_captions(make, monkeypatch):
    root, read = make.pictures(["a.png", "b.png"]), Path.read_bytes
    for name in ("a", "b"):
        (root / f"{name}.txt").write_text("a cat", "utf-8")

    def read_bytes(path):
        if path.name == "b.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)  # the tests may run as root, who may read everything
    assert [sample.texts for sample in open_source(str(root), keep_textless=True)] == [("a cat",), ()]


def test_caption_files_of_windows_powershell_are_in_utf_16(make):
    root = make.pictures(["a.png"])
    (root / "a.txt").write_text("caf\u00e9", "utf-16")
    assert [sample.texts for sample in open_source(str(root))] == [("caf\u00e9",)]


def test_skipped_links_and_unlisted_pictures_are_reported(make, capfd):
    make.pictures(["elsewhere/cat/a.png"])
    root = make.pictures(["a.png", "b.png", "sub/c.png"], "some")
    (root / "linked").symlink_to(make.folder / "pictures" / "elsewhere")
    assert len(open_source(str(root), keep_textless=True)) == 3
    error = capfd.readouterr().err
    assert "linked" in error
    assert "no metadata" not in error
    make.text("some/Metadata.CSV", "file_name,caption\n./a.png,a\n")
    assert [sample.texts for sample in open_source(str(root))] == [("a",)]
    assert "2 pictures" in capfd.readouterr().err


def test_class_names_in_any_unicode_form_are_one_class(make):
    names = ["caf\u00e9", "cafe\u0301", "bar"]
    root = make.pictures([f"{name}/{number}.png" for number, name in enumerate(names)])
    table = make.parquet({"label": names})
    for source in (open_source(str(root)), open_source(str(table))):
        assert source.class_names == ("bar", "caf\u00e9")
        assert sorted(sample.label for sample in source) == [0, 1, 1]


@pytest.mark.parametrize("content", ["0 0.5 0.5 0.25 0.25\n", "one long document\n" * 300, ""])
def test_other_text_files_next_to_pictures_are_ignored(make, content):
    root = make.pictures(["a.png", "b.png"])
    for name in ("a.txt", "b.txt"):
        (root / name).write_text(content, "utf-8")
    source = open_source(str(root), keep_textless=True)
    assert [sample.texts for sample in source] == [(), ()]
    assert "txt" not in source.table.column_names


def test_a_class_may_be_named_train_and_a_file_test(make):
    root = make.pictures(["train/a.png", "train/test-1.png", "bus/b.png", "tram/val.png"])
    source = open_source(str(root))
    assert source.class_names == ("bus", "train", "tram")
    assert len(source) == 4


def test_a_folder_of_images_with_metadata(make, shade):
    root = make.pictures(["one.png", "two.png"])
    make.text("pictures/metadata.csv", "file_name,caption,place\ntwo.png,the second,Rome\none.png,the first,Oslo\n")
    source = open_source(str(root))
    assert [(sample.texts, shade(sample), sample.extra["place"]) for sample in source] == [
        (("the second",), 1, "Rome"),
        (("the first",), 0, "Oslo"),
    ]


def test_metadata_per_split_keeps_captions_that_look_missing(make, shade):
    make.pictures(["train/x/one.png", "train/two.png", "test/three.png"])
    make.text("pictures/train/metadata.csv", "file_name,caption\nx/one.png,None\ntwo.png,NA\n")
    make.text("pictures/test/metadata.csv", "file_name,caption\nthree.png,null\n")
    train, test = (open_source(str(make.folder / "pictures"), split=split) for split in ("train", "test"))
    assert [(sample.texts, shade(sample)) for sample in train] == [(("None",), 0), (("NA",), 1)]
    assert [(sample.texts, shade(sample)) for sample in test] == [(("null",), 2)]


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("x", "", ["x", None]),
        ("", "7", [None, 7]),
        ("1", "1.5", [1.0, 1.5]),
        ("2024", "x", ["2024", "x"]),
        ("", "", [None, None]),
        ("true", "1", ["true", "1"]),
    ],
)
@pytest.mark.parametrize(("folders", "split"), [(("m", "n"), "train"), (("train", "test"), "train+test")])
def test_metadata_files_whose_columns_differ_in_type(make, one, two, expected, folders, split):
    root = make.pictures([f"{folder}/0.png" for folder in folders])
    for folder, value in zip(folders, (one, two), strict=True):
        make.text(f"pictures/{folder}/metadata.csv", f"file_name,caption,note\n0.png,a,{value}\n")
    assert open_source(str(root), split=split).values("note") == expected


def test_metadata_files_of_different_formats(make):
    root = make.pictures(["m/0.png", "n/0.png"])
    make.text("pictures/m/metadata.csv", "file_name,caption\n0.png,a\n")
    make.text("pictures/n/metadata.jsonl", '{"file_name": "0.png", "caption": "b"}\n')
    assert [sample.texts for sample in open_source(str(root))] == [("a",), ("b",)]


def test_folders_without_metadata_can_be_splits(make):
    root = make.pictures(["test/0.png", "other/1.png"])
    make.text("pictures/test/metadata.csv", "file_name,caption\n0.png,a\n")
    assert split_names(str(root)) == ("train",)
    root = make.pictures(["test/0.png", "train/1.png"], "two")
    make.text("two/test/metadata.csv", "file_name,caption\n0.png,a\n")
    assert [sample.texts for sample in open_source(str(root), split="test")] == [("a",)]
    with pytest.raises(UserError, match="train"):
        open_source(str(root))


def test_a_plain_image_folder_has_neither_captions_nor_labels(make, monkeypatch, capsys):
    """It needs no writable home folder either, e.g. in a container."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", "/proc/none/x")
    monkeypatch.setattr(files, "_cache_dir", files._cache_dir.__wrapped__)
    source = open_source(str(make.pictures(["a.png", "b.png"])))
    assert [(sample.texts, sample.label) for sample in source] == [((), NO_LABEL)] * 2
    assert "/proc/none/x" not in capsys.readouterr().err, "plain pictures need no cache"
    open_source(str(make.text("list.csv", "path,caption\npictures/a.png,old\n")))
    assert "/proc/none/x" in capsys.readouterr().err


def test_folders_are_labels_only_if_all_pictures_are_at_the_same_depth(make):
    source = open_source(str(make.pictures(["train/cat/a.png", "train/dog/b.png", "test/dog/c.png"])), split="test")
    assert [source.class_names[sample.label] for sample in source] == ["dog"]
    make.pictures(["train/d.png"])
    assert {sample.label for sample in open_source(str(make.pictures(["train/d.png"])), split="train")} == {NO_LABEL}


def test_files_may_have_any_name_and_undecodable_names_are_skipped_with_a_warning(make, capsys):
    """Brackets, as in a browser's second download, are not glob patterns."""
    names = ["[b]old/x].png", "a::b.png", "image[1].png", "line\nbreak, 100 %41.png", "what?*.png"]
    root = make.pictures([*names, "z.png"])
    try:
        os.rename(root / "z.png", os.fsencode(root) + b"/caf\xe9.png")
    except OSError:
        pytest.skip("this file system rejects such names")
    source = open_source(str(root))
    assert [str(source.original(place)) for place in range(len(source))] == [str(root / name) for name in names]
    warning = capsys.readouterr().err
    assert all(name in warning for name in ("1 file", "caf"))
    table = make.text("list[2].csv", "path,caption\npictures/image[1].png,old\n")
    assert open_source(str(table))[0].texts == ("old",)


def test_all_readers_find_the_same_pictures_and_report_unsupported_formats(make, capsys):
    """Readers are sources, `watch` and the file lister."""
    root = make.pictures(["train/cat/a.png", "train/cat/b.png", "train/dog/c.png", "train/dog/d.webp"])
    (root / "train/cat/b.png").rename(root / "train/cat/b.qoi")
    (root / "train/dog/c.png").rename(root / "train/dog/c.PFM")
    for name in ("e.dng", "f.DNG", "g.svg", "film.mpg", "paper.pdf", "notes.txt"):
        (root / "train" / "cat" / name).write_bytes(b"unsupported")
    source = open_source(str(root))
    names = [source.original(place).name for place in range(len(source))]
    assert (names, source.class_names) == (["a.png", "b.qoi", "c.PFM", "d.webp"], ("cat", "dog"))
    unsupported = "2 .dng, 1 .svg"
    assert capsys.readouterr().err.count(unsupported) == 1
    assert [file.name for file in find_images(root)] == names
    assert capsys.readouterr().err.count(unsupported) == 1
    assert sorted(Path(file).name for file in pictures_below(root)) == sorted(names)
    for name in names:
        next(root.rglob(name)).unlink()
    for read in (lambda: open_source(str(root)), lambda: find_images(root)):
        with pytest.raises(UserError, match=r"2 \.dng, 1 \.svg"):
            read()
    for name in ("g.svg", "notes.txt"):
        with pytest.raises(UserError, match=name):
            find_images(root / "train" / "cat" / name)


@pytest.mark.parametrize(("name", "comma"), [("list.csv", ","), ("list.tsv", "\t")])
def test_a_csv_of_paths_keeps_texts_that_look_missing(make, shade, name, comma):
    make.pictures(["a.png", "b.png", "c.png"])
    rows = [["path", "caption"], ["pictures/c.png", "None"], ["pictures/b.png", "NA"], ["pictures/a.png", ""]]
    path = make.text(name, "\n".join(comma.join(row) for row in rows))
    source = open_source(str(path))
    assert [(shade(sample), sample.texts) for sample in source] == [(2, ("None",)), (1, ("NA",))]


def hub_set(make, count=6):
    features = datasets.Features(
        {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["cat", "bus_stop", "owl"])}
    )
    rows = {"img": [make.picture(i) for i in range(count)], "fine_label": [i % 3 for i in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def test_a_data_set_in_the_hub_layout(make, shade):
    rows = hub_set(make)
    rows.to_parquet(make.folder / "hub" / "data" / "train-00000-of-00001.parquet")
    rows.select([4, 5]).to_parquet(make.folder / "hub" / "data" / "test-00000-of-00001.parquet")
    source = open_source(str(make.folder / "hub"), split="test")
    assert (source.kind, source.class_names) == ("label", ("cat", "bus stop", "owl"))
    assert [(sample.label, shade(sample)) for sample in source] == [(1, 4), (2, 5)]


def test_a_data_set_written_by_save_to_disk(make, shade):
    rows = hub_set(make)
    datasets.DatasetDict({"train": rows, "test": rows.select([3])}).save_to_disk(make.folder / "saved")
    assert [shade(sample) for sample in open_source(str(make.folder / "saved"), split="test")] == [3]
    rows.select([5, 1]).save_to_disk(make.folder / "single")
    assert [shade(sample) for sample in open_source(str(make.folder / "single"))] == [5, 1]


def test_a_hub_id_is_loaded_with_datasets(make, monkeypatch, shade):
    # The hub is unreachable in tests, so load the same layout from a folder.
    hub_set(make).to_parquet(make.folder / "hub" / "data" / "train-00000-of-00001.parquet")
    load, requests = datasets.load_dataset, []

    def from_folder(name, config=None, revision=None):
        requests.append((name, config, revision))
        return load(str(make.folder / "hub"))

    monkeypatch.setattr(datasets, "load_dataset", from_folder)
    source = open_source("owner/some-set?config=small&revision=refs/convert/parquet&split=train[:2]")
    assert requests == [("owner/some-set", "small", "refs/convert/parquet")]
    assert [shade(sample) for sample in source] == [0, 1]


# --- splits and filters ------------------------------------------------------------------------------------------


@pytest.fixture
def twenty(make):
    split = ["train"] * 10 + ["val"] * 4 + ["test"] * 6
    style = ["photo", "sketch, rough", "map+plan"]
    rows = {"caption": [f"n{i}" for i in range(20)], "split": split, "style": [style[i % 3] for i in range(20)]}
    return str(make.parquet(rows | {"ambiguous": [i % 5 == 0 for i in range(20)]}))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (None, range(10)),
        ("train", range(10)),
        ("validation", range(10, 14)),
        ("val", range(10, 14)),
        ("test[:2]", [14, 15]),
        ("test[4:]", [18, 19]),
        ("train[2:4]", [2, 3]),
        ("train[80%:]", [8, 9]),
        ("train[:1_0]", range(10)),
        ("test[:3]+train[9:]", [14, 15, 16, 9]),
        ("all", range(20)),
        ("all[:50%]", range(10)),
    ],
)
def test_splits_and_slices(twenty, split, expected, shade):
    assert [shade(sample) for sample in open_source(twenty, split=split)] == list(expected)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("style=photo", [0, 3, 6, 9]),
        ("style=photo,map%2Bplan", [0, 2, 3, 5, 6, 8, 9]),
        ("style!=photo,map%2Bplan", [1, 4, 7]),
        ("style=sketch%2C%20rough", [1, 4, 7]),
        ("style=sketch%2C+rough", [1, 4, 7]),
        ("ambiguous=false&style=photo", [3, 6, 9]),
        ("style=photo&split=test", [15, 18]),
        ("style=photo&split=train[:2]", [0, 3]),
        ("style=photo&split=train[:2]+test", [0, 3, 15, 18]),
    ],
)
def test_filters(twenty, query, expected, shade):
    assert [shade(sample) for sample in open_source(f"{twenty}?{query}")] == expected


def test_rows_without_a_split_are_skipped_with_a_warning(make, shade, capfd):
    path = str(make.parquet({"caption": list("abcde"), "split": ["train", None, "test", None, ""]}))
    for split, expected in ((None, [0]), ("test", [2]), ("all", [0, 1, 2, 3, 4])):
        assert [shade(sample) for sample in open_source(path, split=split)] == expected
        warned = "3 of 5 rows" in " ".join(capfd.readouterr().err.split())
        assert warned == (split != "all")
    assert split_names(path) == ("test", "train")


@pytest.mark.parametrize("split", ["test", "val", "train"])
def test_the_only_split_is_read_with_a_note_unless_it_is_the_training_split(make, split, capfd):
    path = str(make.parquet({"caption": list("abc"), "split": [split] * 3}))
    for wanted in (None, split):
        assert len(open_source(path, split=wanted)) == 3
        noted = "only split" in " ".join(capfd.readouterr().err.split())
        assert noted == (wanted is None and split != "train")


def test_slices_of_a_shuffled_split_cover_it(make, shade):
    path = str(make.parquet({"label": [f"class {i // 10}" for i in range(40)]}))
    head, tail = (open_source(f"{path}?shuffle=0", split=split) for split in ("train[:25]", "train[25:]"))
    shades = [[shade(sample) for sample in part] for part in (head, tail)]
    assert sorted(shades[0] + shades[1]) == list(range(40))
    assert {sample.label for sample in head} == {sample.label for sample in tail} == set(range(4))


def test_folds_keep_rows_with_the_same_text_together_and_cover_everything(make, shade):
    names = [f"{'Thing' if i % 2 else 'thing '} {i // 4}" for i in range(40)]  # four rows per text, in two spellings
    path = str(make.parquet({"caption": names}))
    parts = [open_source(f"{path}?only={part}/3") for part in range(3)]
    assert sorted(shade(sample) for part in parts for sample in part) == list(range(40))
    for number, part in enumerate(parts):
        inside = {shade(sample) // 4 for sample in part}
        assert len(part) == 4 * len(inside)
        rest = open_source(f"{path}?without={number}/3")
        assert inside.isdisjoint({shade(sample) // 4 for sample in rest})
        assert len(part) + len(rest) == 40
        assert part.name != rest.name
        assert part.fingerprint != rest.fingerprint
    again = str(make.parquet({"caption": ["another", *names]}, "again.parquet"))
    moved = open_source(f"{again}?only=1/3")
    assert {text for i in range(len(parts[1])) for text in parts[1].texts(i)} <= {
        text for i in range(len(moved)) for text in moved.texts(i)
    }


def test_folds_of_a_label_source_split_by_class_name(make):
    path = str(make.parquet({"label": [f"class {i % 8}" for i in range(40)]}))
    parts = [open_source(f"{path}?only={part}/2") for part in range(2)]
    assert sorted(len(part) for part in parts) != [0, 40]
    assert set(parts[0].labels.tolist()).isdisjoint(parts[1].labels.tolist())


# --- identity ----------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_unaffected_by_filters(twenty):
    everything = {sample.id: sample.texts for sample in open_source(twenty, split="all")}
    assert len(everything) == 20
    for sample in open_source(f"{twenty}?style=photo", split="test"):
        assert everything[sample.id] == sample.texts


def test_the_fingerprint_depends_on_the_content_not_on_the_path(make):
    def fingerprint(folder, *captions):
        return open_source(str(make.parquet({"caption": captions}, f"{folder}/set.parquet"))).fingerprint

    assert fingerprint(1, "a", "b") == fingerprint(2, "a", "b") != fingerprint(3, "a", "c")


def test_the_fingerprint_changes_with_split_filter_and_columns(twenty):
    sources = [open_source(twenty, split=split) for split in (None, "test", "train[:5]", "train[5:]")]
    sources += [open_source(f"{twenty}?style=photo"), open_source(twenty, columns=Columns(caption="style"))]
    assert len({source.fingerprint for source in sources}) == len(sources)


def test_the_fingerprint_of_a_csv_covers_its_images(make):
    root = make.pictures(["a.png"])
    path = str(make.text("list.csv", "image,caption\npictures/a.png,x\n"))
    before = open_source(path).fingerprint
    Image.new("RGB", (12, 10), (9, 9, 9)).save(root / "a.png")
    assert open_source(path).fingerprint != before


def test_a_copy_has_the_same_portable_hash_and_changed_content_a_different_one(tmp_path, monkeypatch):
    from recollect.core import content

    random = np.random.default_rng(0)
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    files = [tmp_path / "here" / f"{number:03}.bin" for number in range(40)]
    for file in files:
        file.write_bytes(random.bytes(int(random.integers(1, 4000))))
    copies = [tmp_path / "there" / file.name for file in files]
    found = set()
    for whole in (10**9, 1000):  # full reads; probes
        monkeypatch.setattr(content, "_MAX_FULL_READ", whole)
        monkeypatch.setattr(content, "_PROBE_SIZE", 50)
        monkeypatch.setattr(content, "_MAX_PROBES", 160)
        for file, copy in zip(files, copies, strict=True):
            copy.write_bytes(file.read_bytes())
            os.utime(copy, (1, 1))
        before = content.portable_hash(files)
        assert content.portable_hash(copies) == before
        found.add(before)
        for change in (lambda data: b"x" + data[1:], lambda data: data[:-1] + b"x", lambda data: data + b"x"):
            copies[8].write_bytes(change(files[8].read_bytes()))
            found.add(content.portable_hash(copies))
        copies[8].write_bytes(files[8].read_bytes())
        found |= {content.portable_hash(copies[:-1]), content.portable_hash([*copies[1:], copies[0]])}
    assert len(found) == 12


def test_the_content_hash_of_a_hub_data_set_depends_only_on_its_rows(make):
    def content(name, **columns):
        source = open_source(str(make.parquet({"caption": ["a", "b"], **columns}, f"{name}.parquet")))
        fetched = Origin("owner/name", (make.folder / f"{name}.arrow",), None)
        return replace(source, origin=fetched).content

    assert content("one") == content("two")
    assert len({content("one"), content("three", caption=["a", "c"]), content("four", year=[1, 2])}) == 3


# --- derived sources ---------------------------------------------------------------------------------------------


def test_a_source_is_pickled_by_path(captions, shade):
    captions[0]  # fills a cache that must not be pickled
    data = pickle.dumps(captions)
    assert len(data) < 20_000
    assert [shade(sample) for sample in pickle.loads(data)] == list(range(40))


def test_a_subset_reads_the_samples_of_its_source(labels, shade):
    subset = Subset(
        labels, np.array([4, 0, 2]), name="few", class_names=("bus", "polka"), renumber=np.array([-1, 1, 0])
    )
    assert [shade(sample) for sample in subset] == [4, 0, 2]
    assert [sample.label for sample in subset] == subset.labels.tolist() == [1, NO_LABEL, 0]
    assert subset[0].source == "few"
    assert subset.fingerprint not in {labels.fingerprint, Subset(labels, np.array([0, 4, 2])).fingerprint}


def test_a_joined_source_contains_every_sample_once(captions, labels, shade):
    pool = Joined((captions, Subset(labels, np.arange(3))))
    assert len(pool) == 43
    assert [shade(pool[i]) for i in (0, 39, 40, 42, -1)] == [0, 39, 0, 2, 2]
    assert len({sample.id for sample in pool}) == 43
    assert pool.values("domain") == [None] * 43
    with pytest.raises(IndexError):
        pool[43]


def test_the_corpus_contains_captions_class_names_and_templates(captions, labels):
    assert list(corpus(captions))[:3] == ["picture 0", "picture 1", "number 1"]
    assert len(list(corpus(captions, limit=10))) < 20
    names, prompts = list(corpus(labels))[:3], list(corpus(labels))[3:]
    assert names == ["cat", "polka dot", "bus"]
    assert len(prompts) == 80
    assert "a bad photo of a ." in prompts  # the templates' words also occur in training and evaluation


def test_classes_with_codes_can_take_their_names_from_captions(make):
    path = make.parquet(
        {"code": ["1F2", "0A", "1F2"], "captions": [["a fox", "a fox, suggesting fur"], ["owl"], ["a fox"]]}
    )
    source = open_source(str(path), kind="label", columns=Columns(label="code", class_name="captions"))
    assert source.class_names == ("owl", "a fox")  # ordered by code
    assert [source[row].label for row in range(3)] == [1, 0, 1]


def test_a_pattern_over_several_folders_gives_one_source(make):
    path = make.parquet({"caption": ["a", "b"]})
    for name in ("one", "two"):
        (make.folder / name).mkdir()
        (make.folder / name / "x.parquet").write_bytes(path.read_bytes())
    assert len(open_source(f"{make.folder}/{{one,two}}/*.parquet")) == 4


def test_a_changed_table_of_the_same_size_and_time_is_read_again(make):
    """Unpacking can restore a file's time, so the cache must not rely on it."""
    path = make.folder / "pairs.csv"
    for word in ("cat", "dog"):
        make.pictures(["1.png"], ".")
        path.write_text(f"path,caption\n1.png,{word}\n")
        os.utime(path, (1e9, 1e9))
        assert open_source(str(path))[0].texts == (word,)


DOG, CAT = ["a dog", "it runs"], ["a cat"]
PLAIN = [{"Image": "0.png", "Captions": DOG}, {"Image": "1.png", "Captions": CAT}]
SHUFFLED = [{"image_id": 5, "caption": CAT[0]}] + [{"image_id": 7, "caption": text} for text in DOG]
COCO = {"images": [{"id": 7, "file_name": "0.png"}, {"id": 5, "file_name": "1.png"}], "annotations": SHUFFLED}
KARPATHY = [
    {"filepath": "pictures", "filename": f"{i}.png", "split": split, "sentences": [{"raw": text} for text in texts]}
    for i, (split, texts) in enumerate([("test", DOG), ("train", CAT)])
]
LAYOUTS = {
    "list.csv": "image,caption\n0.png,a dog\n1.png,a cat\n0.png,it runs\n",
    "captions.txt": "image,caption\n0.png,a dog\n0.png,it runs\n1.png,a cat\n",  # Flickr8k
    "results.csv": "image_name| comment_number| comment\n0.png| 0| a dog\n0.png| 1| it runs\n1.png| 0| a cat\n",  # 30k
    "list.ndjson": "\n".join(map(json.dumps, PLAIN)),
    "list.json": json.dumps(PLAIN),
    "annotations/captions_val2017.json": json.dumps(COCO),
    "dataset_coco.json": json.dumps({"images": KARPATHY}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_common_caption_layouts_are_supported(make, shade, name):
    make.pictures(["0.png", "1.png"])
    table = make.text(name, LAYOUTS[name])
    source = open_source(str(table), split="all")
    assert [(sample.texts, shade(sample)) for sample in source] == [(tuple(DOG), 0), (tuple(CAT), 1)]
    assert split_names(str(table)) == (("test", "train") if "split" in LAYOUTS[name] else ("train",))


def test_restval_of_karpathys_split_is_training_data(make, shade):
    make.pictures([f"{number}.png" for number in range(4)])
    splits = ["train", "restval", "test", "val"]
    images = [{"filename": f"{i}.png", "split": split, "sentences": [{"raw": "a"}]} for i, split in enumerate(splits)]
    table = str(make.text("dataset_coco.json", json.dumps({"images": images})))
    chosen = {None: [0, 1], "train": [0, 1], "train+restval": [0, 1], "restval": [1], "train[:1]": [0], "val": [3]}
    for split, expected in chosen.items():
        assert [shade(sample) for sample in open_source(table, split=split)] == expected, split


def test_several_coco_files_form_one_source(make):
    make.pictures(["0.png", "1.png"])
    for number, file in enumerate(("captions_train2017.json", "captions_val2017.json")):
        rows = {"images": COCO["images"][number:][:1], "annotations": SHUFFLED}
        make.text(f"annotations/{file}", json.dumps(rows))
    pattern = str(make.folder / "annotations" / "captions_*.json")
    assert [sample.texts for sample in open_source(pattern, split="all")] == [tuple(DOG), tuple(CAT)]
    make.text("annotations/captions_other.json", json.dumps(PLAIN))
    with pytest.raises(UserError):
        open_source(pattern, split="all")


@pytest.mark.parametrize("kind", ["named bytes", "bytes"])
def test_rows_with_the_same_image_bytes_are_merged_into_one_sample(make, kind):
    texts = {"caption": ["a", "b", "c", "d", "e"], "label": [0, 1, 0, 0, 0]}
    pictures = [make.encoded(make.picture(number)) for number in (0, 0, 1, 2, 2)]
    pictures[3:] = [picture + b"longer" for picture in pictures[3:]]
    if kind == "named bytes":  # a shared name does not matter
        pictures = [{"path": "image.png", "bytes": picture} for picture in pictures]
    path = str(make.parquet({"image": pictures, **texts}))
    assert [sample.texts for sample in open_source(path)] == [("a", "b"), ("c",), ("d", "e")]
    assert [sample.texts for sample in open_source(path, split="train[1:4]")] == [("b",), ("c",), ("d",)]
    assert len(open_source(path, kind="label")) == 5
    assert len({open_source(path, split=split).fingerprint for split in ("train", "train[:1]", "train[:2]")}) == 3
    lists = make.parquet({"image": pictures, "captions": [[text] for text in texts["caption"]]}, "lists.parquet")
    assert len(open_source(str(lists))) == 5, "rows with lists of captions are not merged"


def test_each_line_of_a_shards_text_file_is_a_caption(make):
    texts = [b"a dog\nit runs\n", b"a cat"]
    path = make.tar([(str(i), {"png": make.encoded(make.picture(i)), "txt": text}) for i, text in enumerate(texts)])
    assert [sample.texts for sample in open_source(str(path))] == [("a dog", "it runs"), ("a cat",)]


def test_a_column_may_change_its_type_after_many_rows(tmp_path):
    """`datasets` infers types from the first 10,000 rows of a CSV and the first 10 MiB of JSON lines."""
    count, columns = 12_000, {"note": ("", "text"), "size": (1, 2.5), "code": (7, "n/a"), "good": ("true", "maybe")}
    rows = [{name: values[row > 11_000] for name, values in columns.items()} for row in range(count)]
    lines = [",".join(map(str, (f"{row}.png", "a caption", *rows[row].values()))) for row in range(count)]
    (tmp_path / "list.csv").write_text("\n".join(["file_name,caption,note,size,code,good", *lines]))
    found = open_source(str(tmp_path / "list.csv"))
    for name, wanted in (columns | {"note": (None, "text"), "code": ("7", "n/a")}).items():
        values = found.values(name)
        assert (len(values), values[0], values[-1]) == (count, *wanted)
    long = {"caption": "long " * 200}
    late = [{"note": "late"} if row > 11_000 else {} for row in range(count)]
    lines = [json.dumps({"file_name": f"{row}.png", **long, **late[row]}) for row in range(count)]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    assert open_source(str(tmp_path / "list.jsonl")).values("note") == [None] * 11_001 + ["late"] * 999


def test_files_of_one_table_may_have_different_column_types(tmp_path):
    for number, note in enumerate(("", "7", "text")):
        (tmp_path / f"part-{number}.csv").write_text(f"file_name,caption,note\n{number}.png,a caption,{note}\n")
        note = [int(note) if note == "7" else note or None]
        table = pa.table({"image": [bytes([number])], "caption": [str(number)], "note": note})
        (tmp_path / "parquet").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "parquet" / f"part-{number}.parquet")
    assert open_source(str(tmp_path / "part-*.csv")).values("note") == [None, "7", "text"]
    assert open_source(str(tmp_path / "parquet")).values("note") == [None, "7", "text"]


@pytest.mark.parametrize("embedded", [False, True])
def test_a_table_may_contain_more_than_two_gigabytes_of_pictures(tmp_path, make, embedded):
    part = pa.array([make.encoded(make.picture(1)) + bytes(100_000)] * 250)
    if embedded:
        part = pa.StructArray.from_arrays([part, pa.array([f"{row}.png" for row in range(250)])], ["bytes", "path"])
    pictures = pa.chunked_array([part] * 90)  # sharing one buffer
    rows = pa.table({"image": pictures, "caption": ["words"] * len(pictures)})
    table = datasets.Dataset(InMemoryTable(rows), fingerprint="large")
    rows, columns = np.arange(len(table)), Columns(image="image", caption="caption")
    labels = np.full(len(table), NO_LABEL)
    local = TableSource("large", "caption", (), table, rows, labels, columns, Origin("large", (), tmp_path))
    assert local[-1].image.size == make.picture(1).size
    hub = replace(local, origin=Origin("hub/large", (tmp_path / "large.arrow",)))
    assert hub.content


def test_an_id_column_with_duplicates_is_not_used_as_id(make):
    columns = {"caption": ["a", "b", "c"], "id": [7, 8, 7]}
    found = open_source(str(make.parquet(columns)))
    assert [found[row].id for row in range(3)] == ["0", "1", "2"]
    assert found.values("id") == [7, 8, 7]
