"""Files of pictures are copied and moved whole or not at all, and never over another file."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from recollect.index.transfer import move_file


def test_a_taken_name_gets_a_number(tmp_path):
    (tmp_path / "there").mkdir()
    for text in "ab":
        (tmp_path / "boat.jpg").write_text(text)
        move_file(tmp_path / "boat.jpg", tmp_path / "there" / "boat.jpg")
    found = {path.name: path.read_text() for path in (tmp_path / "there").iterdir()}
    assert found == {"boat.jpg": "a", "boat (2).jpg": "b"}


def test_a_move_to_a_full_disk_leaves_the_file_where_it_was_and_nothing_else(tmp_path, monkeypatch):
    def half(source, target):
        Path(target).write_text(Path(source).read_text()[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def other_disk(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "replace", other_disk)
    monkeypatch.setattr(shutil, "copy2", half)
    (tmp_path / "boat.jpg").write_text("whole")
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match="No space"):
        move_file(tmp_path / "boat.jpg", tmp_path / "there" / "boat.jpg")
    assert (tmp_path / "boat.jpg").read_text() == "whole"
    assert not list((tmp_path / "there").iterdir())


def test_a_move_that_is_interrupted_after_the_file_has_moved_keeps_the_only_copy(tmp_path, monkeypatch):
    real = os.replace

    def then_interrupted(source, target):
        real(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", then_interrupted)
    (tmp_path / "boat.jpg").write_text("whole")
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyboardInterrupt):
        move_file(tmp_path / "boat.jpg", tmp_path / "there" / "boat.jpg")
    assert [path.read_text() for path in (tmp_path / "there").iterdir()] == ["whole"]
