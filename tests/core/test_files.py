import errno
import fcntl
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from recollect.core.errors import UserError
from recollect.core.files import (
    FullDiskError,
    atomic_folder,
    atomic_path,
    hold,
    locked,
    read_json,
    read_lines,
    read_text,
    write_json,
    write_text,
)
from recollect.core.paths import check_writable, new_folder, resolve_stored


def test_a_file_appears_only_when_complete(tmp_path):
    target = tmp_path / "result.json"
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("interrupted")
    assert list(tmp_path.iterdir()) == []


def _by_python(path):
    with path.open("w") as file:
        file.write("x")


def _by_arrow(path):
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file:
        file.write(b"x")


def _by_safetensors(_):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("write", [_by_python, _by_arrow, _by_safetensors])
def test_a_full_disk_gives_the_same_error_from_any_library(tmp_path, write):
    """Python, Arrow and safetensors raise three kinds of errors, none of which names the target file."""
    write_text(tmp_path / "result", "old")
    for target in (atomic_path(tmp_path / "result"), atomic_folder(tmp_path / "folder")):
        full = pytest.raises(UserError, match=rf"^{tmp_path}/(result|folder): the disk is full")
        with full as caught, target, atomic_path(tmp_path / "inner"):
            write(Path("/dev/full"))
        assert isinstance(caught.value, OSError)
        assert caught.value.strerror == "No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert read_text(tmp_path / "result") == "old"


def test_a_failed_rewrite_keeps_the_old_file(tmp_path):
    target = tmp_path / "result.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError):
        write_json(target, {"a": float("nan")})
    assert read_json(target) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_byte_order_mark_is_skipped_and_unreadable_text_is_rejected(tmp_path):
    file = tmp_path / "names"
    file.write_bytes(b"\xef\xbb\xbfcr\xc3\xa8me\r\n\n owl \n")
    assert read_text(file).startswith("crème")
    assert read_lines(file, "names") == ["crème", "owl"]
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(file) == {"a": 1}
    file.write_bytes(b'{"a": [1, 2')
    with pytest.raises(UserError):
        read_json(file)
    for written in (b"cr\xe8me", b"\n \n"):
        file.write_bytes(written)
        with pytest.raises(UserError):
            read_lines(file, "names")
    with pytest.raises(UserError):
        read_lines(tmp_path / "none", "names")


def test_a_folder_appears_only_when_complete(tmp_path):
    target = tmp_path / "run"
    with pytest.raises(RuntimeError), atomic_folder(target) as temporary:
        (temporary / "weights").write_text("half")
        raise RuntimeError("interrupted")
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(target) as temporary:
        (temporary / "weights").write_text("whole")
    assert (target / "weights").read_text() == "whole"
    with pytest.raises(FileExistsError), atomic_folder(target):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_written_files_have_ordinary_permissions(tmp_path):
    write_json(tmp_path / "a.json", 1)
    (tmp_path / "b.json").write_text("1")
    with atomic_folder(tmp_path / "model") as folder, atomic_path(tmp_path / "c.json") as temporary:
        (folder / "inner").mkdir()
        for written in (folder / "inner" / "weights", temporary):  # replace by an owner-only file, as safetensors does
            written.unlink(missing_ok=True)
            os.close(os.open(written, os.O_CREAT, 0o600))
    ordinary = os.stat(tmp_path / "b.json").st_mode
    for name in ("a.json", "c.json", "model/inner/weights"):
        assert os.stat(tmp_path / name).st_mode == ordinary, name
    (tmp_path / "ordinary").mkdir()
    assert os.stat(tmp_path / "model").st_mode == os.stat(tmp_path / "ordinary").st_mode


@pytest.mark.parametrize("system", ["this", "Windows"])
def test_a_lock_has_one_holder_at_a_time(tmp_path, monkeypatch, system):
    if system == "Windows":  # simulated with flock; real Windows locks apply to a process and a byte range
        ours = fcntl
        kinds = {"LK_LOCK": ours.LOCK_EX, "LK_NBLCK": ours.LOCK_EX | ours.LOCK_NB, "LK_UNLCK": ours.LOCK_UN}
        monkeypatch.setitem(sys.modules, "fcntl", None)
        locking = SimpleNamespace(**kinds, locking=lambda number, kind, _: ours.flock(number, kind))
        monkeypatch.setitem(sys.modules, "msvcrt", locking)
    with locked(tmp_path / "lock"), (tmp_path / "lock").open("a+b") as other:
        assert not hold(other, wait=False)
    other = (tmp_path / "lock").open("a+b")
    assert hold(other, wait=False)
    with locked(tmp_path / "lock", waits=other.close):
        assert other.closed, "must wait for the other holder"


def test_a_stored_relative_path_is_found_in_the_parent_folders_of_the_index(tmp_path, monkeypatch):
    index = tmp_path / "project" / "memories" / "mine"
    index.mkdir(parents=True)
    (tmp_path / "project" / "RUN" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for folder in (index, "project/memories/mine"):
        assert resolve_stored("RUN/model", folder) == str(tmp_path / "project/RUN/model")
    for name in ("openai/clip", "", str(tmp_path / "gone")):
        assert resolve_stored(name, index) == name
    assert resolve_stored("RUN/model", "milvus://host:1/mine") == "RUN/model"
    monkeypatch.chdir(tmp_path / "project")
    assert resolve_stored("RUN/model", tmp_path) == "RUN/model", "relative to the current folder"


def test_a_nonempty_folder_is_rejected(tmp_path):
    (tmp_path / "existing").write_text("x")
    with pytest.raises(UserError, match="already exists"):
        new_folder(tmp_path, "run")
    assert new_folder(tmp_path / "new", "run") == tmp_path / "new"


def test_a_folder_without_search_permission_is_reported_as_not_writable(tmp_path, monkeypatch):
    """For example another user's home, in a container that runs under a custom user id."""
    stat_of = os.stat

    def stat(path, **options):
        if str(path).startswith(f"{tmp_path}/home/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat_of(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    (tmp_path / "home").mkdir()
    check_writable(tmp_path / "home", "HF_HOME")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: os.stat(f"{dir}/new"))
    for place in ("home/cache/datasets", "home/cache"):
        with pytest.raises(
            UserError, match=rf"HF_HOME {tmp_path}/{place}: cannot be written there \(Permission denied\)"
        ):
            check_writable(tmp_path / place, "HF_HOME")


def test_an_unwritable_path_is_rejected_before_any_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    check_writable(None, "--out")
    check_writable(tmp_path / "a" / "b" / "result.json", "--out")
    check_writable(tmp_path, "--out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "the check leaves nothing behind"
    with pytest.raises(UserError, match=r"--out .*file/result.json: .*file is a file, not a folder"):
        check_writable(tmp_path / "file" / "result.json", "--out")


def test_a_full_disk_error_survives_pickling():
    unpickled = pickle.loads(pickle.dumps(FullDiskError("runs/model")))
    assert str(unpickled) == str(FullDiskError("runs/model"))
    assert unpickled.errno == errno.ENOSPC
