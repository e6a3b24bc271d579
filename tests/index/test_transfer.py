"""Copying, moving and deleting files: never partially, never over another file, and with undo."""

import errno
import os
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from colors import COLORS, ColorEncoder, shade
from pictures import encoded
from recollect.core.errors import UserError
from recollect.core.files import move_file
from recollect.index import Index, Rows, transfer
from recollect.index.changes import relocate_source
from recollect.index.picture import TRASH, File
from recollect.index.transfer import Transfer, copy_pictures, move_back, move_pictures, path_before_trash


@pytest.fixture
def album(tmp_path):
    """Six pictures in two folders with the same file names, and a copy of one of them."""
    for number, name in enumerate(("a", "b", "c")):
        for place in ("one", "two's 100% ü"):
            file = tmp_path / "photos" / place / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            color = COLORS[list(COLORS)[number]]
            file.write_bytes(encoded(shade(color, number + (100 if place == "one" else 0))))
    twin = tmp_path / "photos/twin.png"
    twin.write_bytes((tmp_path / "photos/one/a.png").read_bytes())
    return Index.build(tmp_path / "photos", ColorEncoder(), out=tmp_path / "index")


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_copying_never_replaces_a_file(album, tmp_path):
    before, out = contents(tmp_path / "photos"), tmp_path / "out"
    out.mkdir()
    (out / "a.png").write_bytes(b"mine")
    done = copy_pictures(album, album.ids, out)
    assert done.pictures == 6
    assert (out / "a.png").read_bytes() == b"mine"
    assert sorted(each.name for each in out.iterdir()) == [
        "a (2).png", "a (3).png", "a.png", "b (2).png", "b.png", "c (2).png", "c.png",
    ]  # fmt: skip
    assert {data for name, data in contents(out).items() if name != "a.png"} == set(before.values())
    assert contents(tmp_path / "photos") == before


def test_the_index_follows_moved_files_and_moves_them_back(album, tmp_path):
    before = contents(tmp_path / "photos")
    done = move_pictures(album, album.ids, tmp_path / "out")
    assert (done.pictures, len(done.files)) == (6, 7)
    assert contents(tmp_path / "photos") == {}
    assert set(contents(tmp_path / "out").values()) == set(before.values())
    for picture in Index.open(tmp_path / "index").pictures(album.ids):
        assert picture.path.parent == tmp_path / "out"
        picture.open()
    assert move_back(album, album.ids, done.files) == 7
    assert contents(tmp_path / "photos") == before
    album.add(tmp_path / "photos")
    assert len(album) == 6


def test_a_file_whose_picture_has_changed_is_not_moved(album, tmp_path):
    changed, touched = tmp_path / "photos/one/b.png", tmp_path / "photos/one/c.png"
    changed.write_bytes(encoded(shade(COLORS["red"], 7)))
    os.utime(touched)  # rewritten with the same pixels
    done = move_pictures(album, album.ids, None)
    assert (len(done.files), len(done.missing)) == (6, 1)
    assert changed.is_file()
    assert not touched.exists()


def test_a_picture_with_a_symlink_moves_once_and_back(album, tmp_path):
    (tmp_path / "photos/link.png").symlink_to("one/b.png")
    (tmp_path / "photos/copy.png").write_bytes((tmp_path / "photos/one/b.png").read_bytes())
    album.add(tmp_path / "photos")
    before, (id,) = contents(tmp_path / "photos"), album.find(["one/b.png"])
    done = move_pictures(album, [id], tmp_path / "out")
    assert sorted(Path(old).name for old, _ in done.files) == ["b.png", "copy.png"]
    move_back(album, [id], done.files)
    assert contents(tmp_path / "photos") == before


def test_files_moved_to_their_own_folder_keep_their_names(album, tmp_path):
    before = contents(tmp_path / "photos")
    ids = [each.id for each in album if each.folder == "one"]
    done = move_pictures(album, ids, tmp_path / "photos/two's 100% ü/../one", [str(tmp_path / "photos/one/b.png")])
    assert len(done.files) == 1
    assert contents(tmp_path / "photos") == before
    move_back(album, ids, done.files)
    assert contents(tmp_path / "photos") == before


def test_a_move_that_fails_midway_is_recorded_and_can_be_undone(album, tmp_path, monkeypatch):
    before, real, done, left = contents(tmp_path / "photos"), move_file, Transfer(), [3]

    def fails(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "Input/output error")
        return real(source, target)

    def indexed_files():
        return {file.path for each in Index.open(tmp_path / "index").pictures(album.ids) for file in each.files}

    monkeypatch.setattr(transfer, "move_file", fails)
    with pytest.raises(UserError):
        move_pictures(album, album.ids, tmp_path / "out", done=done)
    assert len(done.files) == 3
    left[0] = 1
    with pytest.raises(UserError):
        move_back(album, album.ids, done.files)
    monkeypatch.undo()
    on_disk = {str(file) for place in ("photos", "out") for file in (tmp_path / place).rglob("*.png")}
    assert indexed_files() == on_disk, "the index knows where every file is"
    move_back(album, album.ids, done.files)
    assert contents(tmp_path / "photos") == before
    assert indexed_files() == {str(tmp_path / "photos" / name) for name in before}


def test_deleted_files_go_to_a_hidden_folder_that_is_not_ingested(album, tmp_path):
    ids = album.ids[:2]
    done = move_pictures(album, ids, None)
    assert all(new.startswith(str(tmp_path / "photos" / TRASH)) for _, new in done.files)
    album.remove(ids)
    album.add(tmp_path / "photos")
    assert len(album) == 4
    move_back(album, ids, done.files)
    album.restore(ids)
    album.add(tmp_path / "photos")
    assert len(album) == 6


def test_a_missing_file_is_reported_and_the_others_are_copied(album, tmp_path):
    (tmp_path / "photos/one/b.png").unlink()
    done = copy_pictures(album, album.ids, tmp_path / "out")
    assert (done.pictures, len(done.missing)) == (5, 1)


def test_a_folder_that_cannot_be_created_is_an_error(album, tmp_path):
    with pytest.raises(UserError, match="cannot be written to"):
        copy_pictures(album, album.ids, tmp_path / "photos/one/a.png/below a file")


def test_a_move_to_a_full_disk_leaves_only_the_original(tmp_path, monkeypatch):
    def half(source, target):
        Path(target).write_text(Path(source).read_text()[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    monkeypatch.setattr(shutil, "copy2", half)
    (tmp_path / "boat.jpg").write_text("whole")
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="No space"):
        move_file(tmp_path / "boat.jpg", tmp_path / "target" / "boat.jpg")
    assert (tmp_path / "boat.jpg").read_text() == "whole"
    assert not list((tmp_path / "target").iterdir())


def test_a_move_interrupted_after_the_rename_keeps_the_file(tmp_path, monkeypatch):
    real = os.replace

    def replace_then_interrupt(source, target):
        real(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace_then_interrupt)
    (tmp_path / "boat.jpg").write_text("whole")
    (tmp_path / "target").mkdir()
    with pytest.raises(KeyboardInterrupt):
        move_file(tmp_path / "boat.jpg", tmp_path / "target" / "boat.jpg")
    assert [path.read_text() for path in (tmp_path / "target").iterdir()] == ["whole"]


def test_a_moved_file_gets_its_new_folder(album, tmp_path):
    photos = tmp_path / "photos"
    (id,) = album.find(["two's 100% ü/b.png"])

    def folder():
        return album.pictures([id])[0].folder

    first = move_pictures(album, [id], photos / "trip")
    assert folder() == "trip"
    second = move_pictures(album, [id], photos / "trip" / "Rome")
    assert folder() == "trip/Rome"
    assert album.ids_where("folder = 'trip'") == [id]
    move_back(album, [id], second.files)
    move_back(album, [id], first.files)
    assert folder() == "two's 100% ü"
    move_pictures(album, [id], photos / "trip")
    album.add(photos)
    assert folder() == "trip"
    assert [file.key for file in album.pictures([id])[0].files] == ["trip/b.png"]


def test_moving_a_missing_file_creates_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        move_file(tmp_path / "boat.jpg", tmp_path / "moved.jpg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["../../autostart/a.jpg", "/etc/a.jpg"])
def test_a_hostile_key_restores_no_file_outside_its_source(key):
    file = File("table", key, path=f"/photos/{TRASH}/a.jpg", place="/photos")
    assert path_before_trash(file) == Path("/photos/a.jpg")


def test_a_hostile_key_leads_to_no_file_outside_a_moved_folder(tmp_path):
    index = Index.create(tmp_path / "index", width=1, model="none")
    file = File("photos", "../secret.jpg", path="/elsewhere/a.jpg", place="/photos")
    index.insert(Rows(ids=["a"], image_vectors=np.ones((1, 1), np.float32), files=[(file,)]))
    relocate_source(index, "photos", "renamed", tmp_path / "renamed")
    assert index[0].files[0].path == "/elsewhere/a.jpg"
