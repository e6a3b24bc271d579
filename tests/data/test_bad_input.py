"""Whatever is wrong with a user's data, one line says what, where and what to do."""

import re

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.derived import Subset
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.reading import BrokenCounter, readable_samples


def complaint(spec, **options):
    with pytest.raises(UserError) as error:
        open_source(str(spec), **options)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("spec", ["/no/such/file.parquet", "./nothing", "missing.csv", "a b c", "~nobody/x.tar"])
def test_a_place_where_nothing_is(spec):
    assert "no such file or folder" in complaint(spec)


def test_a_hub_id_that_cannot_be_had():
    assert "neither a path here nor a data set the hub gave us" in complaint("nobody/no-such-set")


def test_a_pattern_that_fits_nothing(make):
    assert "no file fits this pattern" in complaint(make.folder / "shard-{00..03}.tar")


def test_a_wrong_column_is_named_with_what_is_there(make):
    path = make.parquet({"photo": [b"x"], "words": ["a"], "image": None}, rows=1)
    assert complaint(path) == (
        "set.parquet: no column 'image'; it has 'photo', 'words'. Name it with --image-column photo."
    )
    path = make.parquet({"text": ["a"]})
    assert "no column 'captoin'; it has 'image', 'text'. Name it with --caption-column text." in complaint(
        path, columns=Columns(caption="captoin")
    )


def test_a_label_source_without_labels(make):
    assert "Name it with --label-column NAME" in complaint(make.parquet({"caption": ["a"]}), kind="label")


def test_a_column_that_holds_no_pictures(make):
    assert "column 'image' holds int64, not pictures" in complaint(
        make.parquet({"image": [1, 2], "caption": ["a", "b"]})
    )


def test_labels_that_are_no_labels(make):
    assert "not whole numbers" in complaint(make.parquet({"label": [0.5, 1.0]}))
    assert "they must be numbers or words" in complaint(make.parquet({"label": [b"a", b"b"]}))


def test_one_label_with_two_names(make):
    path = make.parquet({"label": [0, 0], "class_name": ["cat", "dog"]})
    assert "label 0 is called both" in complaint(path)


def test_more_labels_than_names(make):
    make.tar([("0", {"png": make.encoded(make.picture(0)), "cls": b"7"})])
    make.text("classnames.txt", "cat\ndog\n")
    assert "label 7, but there are names for only 2 classes" in complaint(make.folder / "shard-000.tar")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("dev", "no split 'dev'; it has a, b, or all"),
        (None, "name a split; it has a, b"),
        ("a[1", "'a[1' is not a split"),
        ("a[5:]", "an empty source"),
        ("a+a", "holds some rows twice"),
    ],
)
def test_a_wrong_split(make, split, message):
    path = make.parquet({"caption": ["x", "y"], "split": ["a", "b"]})
    assert message in complaint(path, split=split)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("style=foto", "no row has 'foto' in column 'style'. It has map, photo."),
        ("stil=photo", "no column 'stil' to filter by; it has image, caption, style"),
        ("image=x", "filter by a column of words or numbers"),
        ("style", "key=value"),
        ("shuffle=yes", "shuffle takes a whole number"),
    ],
)
def test_a_wrong_filter(make, query, message):
    path = make.parquet({"caption": ["x", "y"], "style": ["photo", "map"]})
    assert message in complaint(f"{path}?{query}")


def test_an_empty_source(make):
    assert "an empty source" in complaint(make.parquet({"caption": [None, ""]}))
    (make.folder / "empty").mkdir()
    assert "an empty source; it holds no images" in complaint(make.folder / "empty")
    assert "an empty file" in complaint(make.text("empty.parquet", ""))


def test_files_cut_short_or_damaged_are_named(make):
    whole = make.parquet({"caption": ["a"] * 50}, "parts/train-1.parquet").read_bytes()
    (make.folder / "parts" / "train-2.parquet").write_bytes(whole[: len(whole) // 2])
    assert "train-2.parquet: damaged, cut short" in complaint(make.folder / "parts")
    (make.folder / "junk.parquet").write_bytes(b"hello" * 99)
    assert "junk.parquet: damaged" in complaint(make.folder / "junk.parquet")
    shard = make.tar([(f"{i}", {"png": make.encoded(make.picture(i)), "txt": b"a"}) for i in range(9)], "tars/0.tar")
    cut = make.folder / "tars" / "1.tar"
    cut.write_bytes(shard.read_bytes()[:9000])
    assert "1.tar: damaged, cut short" in complaint(cut)
    assert "1.tar: damaged, cut short" in complaint(make.folder / "tars")
    assert "two.csv: damaged" in complaint(make.text("two.csv", "image,caption\na,b\na,b,c,d\n"))
    (make.folder / "bytes.csv").write_bytes(b"image,caption\na,\xff\xfe\n")
    assert "bytes.csv: damaged" in complaint(make.folder / "bytes.csv")


def test_a_tar_that_is_no_webdataset(make):
    assert "no samples; a WebDataset shard holds" in complaint(make.tar([("a", {"exe": b"x"})]))


def test_kinds_of_files_that_cannot_be_opened(make):
    assert "not a kind of file that can be opened" in complaint(make.text("x.zip", "x"))
    make.text("mixed/a.csv", "image\nx\n")
    make.text("mixed/b.tsv", "image\nx\n")
    assert "files of different kinds (.csv, .tsv)" in complaint(make.folder / "mixed")


def test_ids_that_name_rows_twice(make):
    assert "column 'id' names some rows twice" in complaint(make.parquet({"caption": ["a", "b"], "id": ["x", "x"]}))


@pytest.mark.parametrize(
    ("paths", "message"),
    [("gone.png", r"\(gone.png\): no such file"), ("https://a.b/c.png", "an address on the web"), ("", "no picture")],
)
def test_pictures_that_are_not_there(make, paths, message):
    make.pictures(["a.png"])
    path = make.text("list.csv", f'image,caption\npictures/a.png,x\n"{paths}",y\n')
    with pytest.raises(BrokenImageError, match=message) as error:
        open_source(str(path))[1]
    assert str(error.value).startswith("list.csv, row 1")


# --- broken images are left out, counted and named ---------------------------------------------------------------


def broken_set(make, count, broken):
    good = [make.encoded(make.picture(i % 200)) for i in range(count)]
    images = [data[: len(data) // 2] if i in broken else data for i, data in enumerate(good)]
    return open_source(str(make.parquet({"image": images, "caption": ["x"] * count})))


def test_broken_images_are_left_out_counted_and_named(make, shade, capfd):
    source = broken_set(make, 150, {7, 120})
    samples = list(readable_samples(source, share=0.02))
    assert [int(sample.id) for sample in samples] == [i for i in range(150) if i not in (7, 120)]
    said = capfd.readouterr().err
    assert "set.parquet, row 7: cannot be read" in said
    assert "2 of 150 images could not be read" in said


def test_too_many_broken_images_stop_with_the_first_ones_name(make):
    source = broken_set(make, 100, {5, 50})
    with pytest.raises(
        UserError, match=r"set\.parquet, row 5: .*2 of 51 images of set cannot be read, more than 1\.0%"
    ):
        list(readable_samples(source))


def test_a_single_broken_image_among_few_is_too_many(make):
    with pytest.raises(UserError, match="row 3"):
        list(readable_samples(broken_set(make, 20, {3})))


def test_bad_luck_at_the_start_of_a_large_source_does_not_stop(captions):
    large = Subset(captions, np.zeros(10**6, dtype=np.int64), name="large")
    tally = BrokenCounter(share=0.01)
    tally.add(large, 64, [f"row {i}" for i in range(10)])  # ten in the first batch, of a thousand that count
    tally.add(large, 10_000, [f"row {i}" for i in range(90)])
    with pytest.raises(UserError, match="101 of 10,065"):
        tally.add(large, 1, ["row 999"])
    assert tally.summary() == {"large": 91}


def test_only_the_first_broken_images_are_shown(make, capfd):
    list(readable_samples(broken_set(make, 50, set(range(10, 30))), share=0.9))
    said = capfd.readouterr().err
    assert len(re.findall("left out\n", said)) == 4  # three of them, and the sum
    assert "further broken images are only counted" in said
