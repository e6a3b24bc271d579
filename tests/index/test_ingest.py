"""Ingest: one row per distinct picture, with a file entry per (source, key)."""

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from index_rows import HashEncoder, Pictures, write_picture
from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Sample, Source
from recollect.index import Index, IngestOptions, samples


def build(photos, tmp_path, encoder, **options):
    return Index.build(photos, encoder, out=tmp_path / "index", options=IngestOptions(**options))


@pytest.fixture
def index(photos, tmp_path, encoder):
    """An index of the photos."""
    return build(photos, tmp_path, encoder)


def keys(index):
    return sorted(tuple(sorted(file.key for file in each.files)) for each in index)


def test_a_picture_in_two_folders_is_one_row_with_two_files(index, encoder):
    assert len(index) == 11
    assert ("home/10.png", "norway/11.png") in keys(index)
    assert encoder.images == 11


def test_a_tilde_stands_for_the_home_folder(photos, tmp_path, encoder, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(photos)
    Index.build("~/photos", encoder, out="~/index")
    assert Index.exists("~/index")
    assert len(Index.open("~/index")) == len(Index.open(tmp_path / "index").save("~/copy")) == 11
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "index", "photos"]
    assert not (photos / "~").exists()


def test_ctrl_c_keeps_committed_rows(tmp_path, encoder, monkeypatch):
    class Interrupted(HashEncoder):
        def embed_images(self, images):
            if self.images >= 8:
                raise KeyboardInterrupt
            return super().embed_images(images)

    monkeypatch.setattr(samples, "BLOCK", 4)
    with pytest.raises(KeyboardInterrupt):
        Index.build(Pictures(20), Interrupted(), out=tmp_path / "index")
    assert len(Index.open(tmp_path / "index")) == 8
    assert len(Index.build(Pictures(20), encoder, out=tmp_path / "index")) == 20
    assert encoder.images == 12


def test_adding_an_unchanged_folder_changes_nothing(index, photos, tmp_path, encoder):
    before, version = keys(index), index.version
    report = index.add(photos)
    assert (keys(index), index.version) == (before, version)
    assert (report.unchanged, report.added, report.updated, report.deleted) == (12, 0, 0, 0)
    assert encoder.images == 11
    assert keys(build(photos, tmp_path, encoder)) == before


def test_a_renamed_file_is_the_same_row_and_is_not_embedded_again(index, photos, encoder):
    ids, embedded = set(index.ids), encoder.images
    os.rename(photos / "home" / "2.png", photos / "norway" / "boat.png")
    index.set_captions({index.find(["home/2.png"])[0]: "five stars"})
    index.add(photos)
    assert set(index.ids) == ids
    assert encoder.images == embedded
    assert index.ids_where("caption = 'five stars'") == index.find(["norway/boat.png"])


def test_a_moved_file_gets_its_new_folder(index, photos):
    home = index.count_where("folder = 'home'")
    (photos / "away").mkdir()
    (photos / "home" / "10.png").rename(photos / "away" / "10.png")
    (photos / "norway" / "11.png").unlink()
    index.add(photos)
    (moved,) = index.pictures(index.ids_where("folder = 'away'"))
    assert [file.key for file in moved.files] == ["away/10.png"]
    assert index.count_where("folder = 'home'") == home - 1


def test_a_moved_source_keeps_its_rows(index, photos, tmp_path, encoder):
    moved = shutil.move(photos, tmp_path / "elsewhere" / "photos")
    index.add(moved, name="photos")
    assert len(index) == 11
    assert encoder.images == 11
    assert all(each.path.exists() for each in index)


def test_a_file_with_new_pixels_moves_to_another_row(index, photos):
    old = index.find(["home/4.png"])[0]
    write_picture(photos / "home" / "4.png", 77)
    index.add(photos)
    assert old not in index.ids
    assert len(index) == 11
    assert index.find(["home/4.png"])[0] != old


def test_deleted_files_are_removed_and_unreadable_ones_kept(index, photos):
    (photos / "home" / "2.png").unlink()
    (photos / "home" / "4.png").write_bytes(b"no picture")
    report = index.add(photos)
    assert (report.deleted, len(report.broken), len(index)) == (1, 1, 10)


def test_a_removed_picture_stays_removed_under_any_name_until_it_is_restored(index, photos, encoder):
    removed = index.find(["home/6.png"])
    assert index.remove(removed) == 1
    index.add(photos)
    shutil.copy(photos / "home" / "6.png", photos / "copy.png")
    report = index.add(photos)
    assert report.excluded == 2
    assert not set(removed) & set(index.ids)
    assert (photos / "home" / "6.png").exists()
    embedded = encoder.images
    assert index.restore() == 1
    assert set(removed) <= set(index.ids)
    assert encoder.images == embedded


def test_a_removed_picture_stays_removed_if_its_file_disappears_and_returns(index, photos, tmp_path):
    index.remove(index.find(["home/6.png"]))
    (photos / "home" / "6.png").rename(tmp_path / "moved.png")
    index.add(photos)
    (tmp_path / "moved.png").rename(photos / "again.png")
    index.add(photos)
    assert len(index) == 10


def test_a_picture_has_the_captions_of_all_its_files_and_those_of_the_user(encoder):
    index = Index.build(Pictures(10, same=5), encoder)
    assert len(index) == 5
    assert index.texts == 5
    assert all(len(each.captions) == 2 and len(each.files) == 2 for each in index)
    index.set_captions({index.ids[0]: "my own words"}, by="captioner")
    assert index.pictures(index.ids[:5])[-1].captions != ()
    changed = next(each for each in index if each.captioned_by)
    assert (changed.caption, len(changed.captions)) == ("my own words", 3)
    index.set_captions({changed.id: ""})
    assert len(index.pictures([changed.id])[0].captions) == 2


def test_broken_pictures_are_listed_and_all_others_kept(encoder, capfd):
    index = Index.build(Pictures(40, broken=(3, *range(7, 20))), encoder)
    assert len(index) == 26
    assert len(index.report.broken) == 14
    assert capfd.readouterr().err.count("skipped") == 14
    with pytest.raises(UserError, match="cannot be read"):
        Index.build(Pictures(40, broken=tuple(range(30))), encoder)


def test_date_camera_and_orientation_come_from_exif(tmp_path, encoder):
    exif = Image.Exif()
    exif[0x0110], exif[0x010F], exif[0x0112] = "X100", "Fuji", 6
    exif.get_ifd(0x8769)[0x9003] = "2022:07:01 12:30:00"
    folder = tmp_path / "photos" / "Norway" / "Bergen"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "a.jpg", exif=exif)
    write_picture(tmp_path / "photos" / "b.png", 1)
    index = Index.build(tmp_path / "photos", encoder)
    (id,) = index.ids_where("folder = 'Norway' and taken > '2022' and width = 8 and height = 12")
    (picture,) = index.pictures([id])
    assert (picture.taken, picture.camera, picture.folder) == ("2022-07-01T12:30:00", "Fuji X100", "Norway/Bergen")
    assert index.ids_where("folder = 'photos'") != [id]


def test_a_name_of_another_source_is_rejected(index, photos, tmp_path):
    write_picture(tmp_path / "b" / "photos" / "x.png", 50)
    with pytest.raises(UserError, match="--name"):
        index.add(tmp_path / "b" / "photos")


def test_forgetting_a_source_keeps_pictures_of_other_sources(index, photos, tmp_path):
    shutil.copytree(photos / "home", tmp_path / "second")
    index.add(tmp_path / "second")
    assert index.forget("photos") == 5
    assert {file.source for each in index for file in each.files} == {"second"}


def test_a_missing_source_creates_no_index(tmp_path, encoder):
    with pytest.raises(UserError):
        Index.build(tmp_path / "none.csv", encoder, out=tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_an_index_of_another_model_is_rejected(photos, tmp_path, encoder):
    build(photos, tmp_path, encoder)
    with pytest.raises(UserError, match="another model"):
        build(photos, tmp_path, HashEncoder("b"))


def test_early_commits_contain_all_rows_read_so_far(photos, tmp_path, encoder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("recollect.index.ingest.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("recollect.index.samples.BLOCK", 4)
    index = Index.create(tmp_path / "index", width=encoder.width, model=encoder.fingerprint)
    index.model.use(encoder, "the model")
    seen, now[0] = [], 0.0

    def pass_time(report, total):
        index.refresh()
        seen.append((report.read, len(index)))
        now[0] += 10

    index.add(photos, options=IngestOptions(early=True), on_block=pass_time)
    assert seen[0] == (4, 0), "no commit is due yet"
    assert len(seen) == 3
    assert all(held >= read - 1 for read, held in seen[1:]), "two files have the same picture"


def test_a_picture_of_a_custom_source_that_becomes_unreadable_is_kept(encoder):
    """Its name is unknown until it is read, so it could be any missing one."""
    index = Index.build(Pictures(10), encoder)
    index.add(Pictures(9, broken=(4,)))
    assert len(index) == 10
    index.add(Pictures(9))
    assert len(index) == 9


def test_a_table_row_without_a_picture_does_not_keep_removed_ones(tmp_path, encoder):
    """It cannot be one of the pictures missing from the table."""
    table = tmp_path / "list.csv"

    def write(files):
        table.write_text("file_name,caption\n" + "".join(f"{file},a caption\n" for file in files))

    files = [write_picture(tmp_path / f"{number}.png", number).name for number in range(5)]
    write(files)
    index = Index.build(str(table), encoder)
    write([*files[:4], ""])
    index.add(str(table))
    assert len(index) == 4


def photograph(file, number, **tags):
    """Write a picture with EXIF tags; equal numbers give equal pixels."""
    exif = Image.Exif()
    exif.update({{"taken": 0x0132, "camera": 0x0110}[name]: value for name, value in tags.items()})
    write_picture(file, number)
    with Image.open(file) as opened:
        opened.load()
        opened.save(file, exif=exif)


def test_changed_exif_updates_the_index(tmp_path, encoder):
    photos = tmp_path / "photos"
    photograph(photos / "a.png", 1, taken="2020:01:01 00:00:00", camera="X100")
    index = build(photos, tmp_path, encoder, pictures="bytes")
    photograph(photos / "a.png", 1, taken="2021:06:07 08:09:10")
    index.add(photos, options=IngestOptions(pictures="bytes"))
    (picture,) = index
    assert (picture.taken, picture.camera) == ("2021-06-07T08:09:10", "")
    assert picture.encoded() == (photos / "a.png").read_bytes()
    photograph(photos / "copy.png", 1, taken="1999:01:01 00:00:00", camera="X200")
    index.add(photos, options=IngestOptions(pictures="bytes"))
    assert [(each.taken, each.camera) for each in index] == [("2021-06-07T08:09:10", "X200")], "the first file counts"
    photograph(photos / "copy.png", 1)
    index.add(photos, options=IngestOptions(pictures="bytes"))
    assert [each.taken for each in index] == ["2021-06-07T08:09:10"]
    (photos / "a.png").unlink()
    index.add(photos, options=IngestOptions(pictures="bytes"))
    assert [(each.taken, each.camera) for each in index] == [("", "")], "no file has a date"


def test_rewriting_a_file_keeps_its_position_and_the_folder_of_its_picture(tmp_path, encoder):
    photos = tmp_path / "photos"
    for folder in ("home", "trip"):
        photograph(photos / folder / "a.png", 1)
    index = build(photos, tmp_path, encoder)
    photograph(photos / "home" / "a.png", 1, camera="X100")
    index.add(photos)
    (picture,) = index
    assert ([file.key for file in picture.files], picture.folder) == (["home/a.png", "trip/a.png"], "home")
    (photos / "home" / "a.png").unlink()
    index.add(photos)
    (picture,) = index
    assert ([file.key for file in picture.files], picture.folder) == (["trip/a.png"], "trip")


def test_pictures_at_the_top_follow_the_name_of_their_folder(tmp_path, encoder):
    photograph(tmp_path / "photos" / "a.png", 1)
    index = build(tmp_path / "photos", tmp_path, encoder)
    index.add((tmp_path / "photos").rename(tmp_path / "holidays"), name="photos")
    assert [each.folder for each in index] == ["holidays"]


def test_class_numbers_without_names_are_labels(tmp_path, encoder):
    for number in range(2):
        write_picture(tmp_path / f"{number}.png", number)
    (tmp_path / "table.csv").write_text("image,label\n0.png,7\n1.png,9\n")
    index = build(tmp_path / "table.csv", tmp_path, encoder)
    assert sorted(each.labels for each in index) == [("7",), ("9",)]
    (id,) = index.ids_where("label = '7'")
    assert [file.key for file in index.pictures([id])[0].files] == ["0.png"]


def test_a_limit_keeps_captions_from_later_rows(tmp_path, encoder):
    table, pictures = tmp_path / "table.parquet", list[bytes]()
    for number in range(3):
        write_picture(tmp_path / f"{number}.png", number)
        pictures.append((tmp_path / f"{number}.png").read_bytes())

    def write(*captions):
        images = [pictures[number] for number in (0, 1, 0, 2)]
        pq.write_table(pa.table({"image": images, "caption": captions}), table)

    write("one", "two", "three", "four")
    index = build(table, tmp_path, encoder)
    index.add(table, options=IngestOptions(limit=2))
    assert {each.captions for each in index} == {("one", "three"), ("two",), ("four",)}
    write("one", "new", "three", "four")
    index.add(table, options=IngestOptions(limit=2))
    assert {each.captions for each in index} == {("one", "three"), ("new",), ("four",)}


class Clusters(Source):
    """Clustered vectors with some exact copies."""

    name = "clusters"

    def __init__(self, seed, count=150, width=8):
        draw = np.random.default_rng(seed)
        rows = draw.normal(size=(12, width))[draw.integers(0, 12, count)] + draw.normal(size=(count, width)) * 0.2
        rows[draw.integers(0, count, 20)] = rows[draw.integers(0, count, 20)]
        self.rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return Sample(self.rows[index], (), NO_LABEL, self.name, "caption", f"{self.name} {index}")


class VectorEncoder(HashEncoder):
    def embed_images(self, images):
        return torch.tensor(np.array(images))


def test_near_duplicates_match_a_loop_over_all_pictures(monkeypatch):
    monkeypatch.setattr("recollect.index.samples.BLOCK", 16)
    monkeypatch.setattr("recollect.index.ingest._MAX_PENDING", 24)
    index, kept = Index.create(width=8, model="model-a"), list[np.ndarray]()
    index.model.use(VectorEncoder(), "the model")
    for seed in range(2):
        source, copies = Clusters(seed), 0
        source.name = f"clusters {seed}"
        for row in source.rows:
            same = any(np.array_equal(row, each) for each in kept)
            copies += same
            if not same and all(row.astype(np.float64) @ each.astype(np.float64) < 0.94 for each in kept):
                kept.append(row)
        report = index.add(source, options=IngestOptions(near=0.94))
        assert len(index) == len(kept)
        assert (report.copies, report.near) == (copies, len(source) - report.added - copies)
    assert {each.tobytes() for each in kept} == {each.tobytes() for each in index.vectors()}
