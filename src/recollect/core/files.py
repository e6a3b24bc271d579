"""Atomic file writes: readers see the old file or the new one, never a partial one."""

import errno
import itertools
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from recollect.core.errors import UserError
from recollect.core.paths import expanduser, new_folder

_DISK_FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
_DISK_FULL_MESSAGE = re.compile(r"os error (28|122)\b|No space left|quota exceeded", re.IGNORECASE)


class FullDiskError(UserError, OSError):
    """The disk is full.

    Args:
        place: file or folder that could not be written.
    """

    def __init__(self, place: object) -> None:
        super().__init__(f"{place}: the disk is full; nothing was changed. Free some space and try again.")
        self.place = str(place)
        self.errno, self.strerror = errno.ENOSPC, os.strerror(errno.ENOSPC)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type["FullDiskError"], tuple[str]]:
        """Support pickling, since exceptions cross process boundaries."""
        return FullDiskError, (self.place,)


@contextmanager
def full_disk_errors(place: object) -> Iterator[None]:
    """Convert disk-full errors from any library into `FullDiskError`.

    Args:
        place: file or folder that the block writes.

    Raises:
        FullDiskError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) and not isinstance(error, FullDiskError):
            raise
        if getattr(error, "errno", None) not in _DISK_FULL_CODES and not _DISK_FULL_MESSAGE.search(str(error)):
            raise
        raise FullDiskError(place) from error


def sync_file(file: IO[Any]) -> None:
    """Flush an open file and its directory entry to disk (fsync)."""
    file.flush()
    os.fsync(file.fileno())
    sync_folder(Path(file.name).parent)


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of ``folder`` to disk; a no-op on systems that cannot open folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and flush them to disk.

    Raises:
        UserError: a file has the name of the folder or of one of its parents.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{path}: a file has the name of this folder or a parent. Choose another path.") from None
    for folder in missing:
        sync_folder(folder.parent)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` to write to; on success it becomes ``path``, else it is removed.

    The sibling's name starts with a dot, so a file left behind by ``kill -9`` is not mistaken for a result.

    Raises:
        FullDiskError: the disk is full.
    """
    path = Path(expanduser(path))
    with full_disk_errors(path):
        make_folder(path.parent)
        temporary = _sibling(path, path.suffix)
        temporary.touch(exist_ok=False)
        mode = stat.S_IMODE(temporary.stat().st_mode)  # the default; reading the umask would set it for all threads
        try:
            yield temporary
            _sync(temporary)
            temporary.chmod(mode)  # a library may have replaced the file by one that only its owner can read
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling folder; on success it becomes ``path``, else it is removed.

    All files get the user's default permissions, even if a library (safetensors) restricts them to the owner.

    Raises:
        FileExistsError: ``path`` exists when the block ends; nothing is overwritten.
        FullDiskError: the disk is full.
    """
    path = Path(expanduser(path))
    with full_disk_errors(path):
        make_folder(path.parent)
        temporary = _sibling(path)
        temporary.mkdir()
        mode = stat.S_IMODE(temporary.stat().st_mode) & 0o666
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    file.chmod(stat.S_IMODE(file.stat().st_mode) | mode)
                    _sync(file)
                elif file.is_dir():
                    sync_folder(file)
            sync_folder(temporary)
            if path.exists():
                raise FileExistsError(f"{path}: already exists")
            temporary.rename(path)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _sibling(path: Path, suffix: str = "") -> Path:
    """Return an unused hidden name in the same folder."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp{suffix}"


@contextmanager
def create_numbered(target: Path, source: Path | None = None) -> Iterator[Path]:
    """Create an empty file at ``target``, or at the first free numbered name, and yield its path.

    If the block fails, the file is removed, unless ``source`` is gone: the new file is then the only copy.
    """
    numbered = (target.with_name(f"{target.stem} ({number}){target.suffix}") for number in itertools.count(2))
    for name in itertools.chain([target], numbered):
        with suppress(FileExistsError):
            name.open("xb").close()
            break
    try:
        yield name
    except BaseException:
        if source is None or source.exists() or (name.exists() and not name.stat().st_size):
            name.unlink(missing_ok=True)
        raise


def move_file(source: Path, target: Path) -> Path:
    """Move a file without ever replacing another one, and return its new path."""
    if source.name == target.name and source.parent.resolve() == target.parent.resolve():
        return source
    with create_numbered(target, source) as free:
        try:
            os.replace(source, free)
        except OSError:  # another disk
            shutil.copy2(source, free)
            source.unlink()
    return free


@contextmanager
def locked(path: str | Path, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file while the block runs, across processes and threads.

    A process that dies releases its lock. The file is created if missing and never removed, since removing it would
    let two holders in.

    Args:
        waits: called once if the lock is taken, before waiting; for example to report it.
    """
    with Path(path).open("a+b") as file, held(file, waits):
        yield


@contextmanager
def held(file: BinaryIO, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on an open file while the block runs (see `locked`)."""
    if not hold(file, wait=False):
        if waits is not None:
            waits()
        hold(file)
    try:
        yield
    finally:
        file.flush()
        try:
            import fcntl
        except ImportError:
            _lock_on_windows(file, "LK_UNLCK")
        else:
            fcntl.flock(file, fcntl.LOCK_UN)


def hold(file: BinaryIO, wait: bool = True) -> bool:
    """Lock an open file until it is closed.

    Args:
        wait: wait until the lock is free.

    Returns:
        Whether the lock was acquired.
    """
    try:
        import fcntl
    except ImportError:
        return _lock_on_windows(file, "LK_LOCK" if wait else "LK_NBLCK", wait)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _lock_on_windows(file: BinaryIO, mode: str, wait: bool = False) -> bool:
    import msvcrt

    while True:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), getattr(msvcrt, mode), 1)  # type: ignore[attr-defined]
            return True
        except OSError:  # still taken; LK_LOCK gives up after ten seconds
            if not wait:
                return False


def read_text(path: str | Path, what: str = "file") -> str:
    """Read a handwritten UTF-8 file, without the byte-order mark that some editors add.

    Args:
        what: kind of file, for the error message if it is missing.

    Raises:
        UserError: the file is missing or not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise UserError(f"{path}: not a text file in UTF-8 ({where}). Save it as UTF-8.") from None


def read_lines(path: str | Path, what: str) -> list[str]:
    """Return the nonblank lines of a text file, stripped.

    Args:
        what: what the lines contain, for error messages: ``class names``.

    Raises:
        UserError: the file is missing, not UTF-8, or blank.
    """
    lines = [line.strip() for line in read_text(path, f"file of {what}, one per line").splitlines()]
    if found := [line for line in lines if line]:
        return found
    raise UserError(f"{path}: contains no {what}; write one per line")


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8.

    Non-UTF-8 bytes in file names are written as escapes, which JSON restores.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON to ``path`` atomically.

    Raises:
        ValueError: ``value`` contains NaN or infinity, which JSON does not have.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing, a folder, or not valid JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder, but a JSON file was expected. Name a file in it.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error}). It may be truncated; create it again.") from None


@contextmanager
def fresh_folder(path: str | Path, what: str) -> Iterator[Path]:
    """Like `atomic_folder`, but ``path`` may be an empty folder.

    Raises:
        UserError: ``path`` exists and is not an empty folder.
    """
    path = new_folder(path, what)
    if path.exists():
        path.rmdir()
    with atomic_folder(path) as unfinished:
        yield unfinished
