"""Files that are either whole or absent, whatever happens while they are written."""

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

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_SAYS_NO_ROOM = re.compile(r"os error (28|122)\b|No space left|quota exceeded", re.IGNORECASE)


class FullDiskError(UserError, OSError):
    """The disk is full.

    Args:
        place: what was to be written.
    """

    def __init__(self, place: object) -> None:
        super().__init__(f"{place}: the disk is full; nothing was changed. Free some space, and try again.")
        self.place = str(place)
        self.errno, self.strerror = errno.ENOSPC, os.strerror(errno.ENOSPC)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type["FullDiskError"], tuple[str]]:
        """Exceptions are pickled between processes."""
        return FullDiskError, (self.place,)


@contextmanager
def told_if_full(place: object) -> Iterator[None]:
    """Turn any library's error about a full disk into a `FullDiskError`.

    Args:
        place: what is being written in the block.

    Raises:
        FullDiskError: instead of the library's exception.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) and not isinstance(error, FullDiskError):
            raise
        if getattr(error, "errno", None) not in _NO_ROOM and not _SAYS_NO_ROOM.search(str(error)):
            raise
        raise FullDiskError(place) from error


def sync_file(file: IO[Any]) -> None:
    """Make what was written to an open file survive a power cut, and its name too."""
    file.flush()
    os.fsync(file.fileno())
    sync_folder(Path(file.name).parent)


def sync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` survive a power cut; a no-op where folders cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, that survive a power cut.

    Raises:
        UserError: a file has the name of the folder or of one of its parents.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{path}: a file is in the place of this folder. Name another place.") from None
    for folder in missing:
        sync_folder(folder.parent)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` to write to; on success it becomes ``path``, else it is removed.

    A reader sees the old file or the new one, never a part. The sibling's name starts with a dot, so that
    what a ``kill -9`` leaves behind is not taken for a result.

    Raises:
        FullDiskError: the disk is full.
    """
    path = Path(expanduser(path))
    with told_if_full(path):
        make_folder(path.parent)
        temporary = _sibling(path, path.suffix)
        temporary.touch(exist_ok=False)
        mode = stat.S_IMODE(temporary.stat().st_mode)
        try:
            yield temporary
            _sync(temporary)
            temporary.chmod(mode)  # a library may have put a file of its own in its place, for its owner alone
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling folder; on success it becomes ``path``, else it is removed.

    All files get the user's default permissions, also those that a library (safetensors) restricts to the owner.

    Raises:
        FileExistsError: ``path`` exists when the folder is finished; nothing is overwritten.
        FullDiskError: the disk is full.
    """
    path = Path(expanduser(path))
    with told_if_full(path):
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
    """An unused hidden name in the same folder. What is created there has the default permissions; reading the umask
    would mean setting it for all threads."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp{suffix}"


@contextmanager
def free_file(target: Path, source: Path | None = None) -> Iterator[Path]:
    """The target, or the first free name after it, as an empty new file.

    Where filling it fails it is removed again, unless ``source`` is gone: what was written is then the only copy.
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
    """Move a file without ever replacing another; returns where it is now."""
    if source.name == target.name and source.parent.resolve() == target.parent.resolve():
        return source
    with free_file(target, source) as free:
        try:
            os.replace(source, free)
        except OSError:  # another disk
            shutil.copy2(source, free)
            source.unlink()
    return free


@contextmanager
def locked(path: str | Path, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Wait until no other process or thread is inside a block locked with the same file; a dead one holds nothing.

    The file is made if it is not there, and stays: removing it would let two in.

    Args:
        waits: called once before a wait, for example to report it.
    """
    with Path(path).open("a+b") as file, held(file, waits):
        yield


@contextmanager
def held(file: BinaryIO, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Wait for the lock on an open file, and hold it while the block runs (see `locked`)."""
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
        wait: until it is free.

    Returns:
        Whether it is locked now.
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
        except OSError:  # held by another, for ten seconds so far
            if not wait:
                return False


def read_text(path: str | Path, what: str = "file") -> str:
    """Text that a person wrote, without the byte-order mark that some editors put in front of it.

    Args:
        what: kind of file, for the message if it does not exist.

    Raises:
        UserError: no such file, or not in UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise UserError(f"{path}: not a text file in UTF-8 ({where}). Save it as UTF-8.") from None


def read_lines(path: str | Path, what: str) -> list[str]:
    """The lines of a text file that say something.

    Args:
        what: its lines hold, for messages: ``class names``.

    Raises:
        UserError: as `read_text`, or no line says anything.
    """
    lines = [line.strip() for line in read_text(path, f"file of {what}, one a line").splitlines()]
    if found := [line for line in lines if line]:
        return found
    raise UserError(f"{path}: no {what} in it; write one a line")


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8.

    The bytes of a file's name that are no UTF-8 are written as escapes, which JSON reads back as they were.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON to ``path`` atomically; NaN and infinity are refused, since JSON has neither.

    Raises:
        ValueError: ``value`` holds a NaN or an infinity.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON, or say in one line what is wrong with the file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder, where a JSON file was expected. Name a file in it.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error}). Was it cut short? Make it again.") from None


@contextmanager
def fresh_folder(path: str | Path, what: str) -> Iterator[Path]:
    """Like `atomic_folder`, where nothing, or an empty folder, may be there.

    Raises:
        UserError: something is there already.
    """
    path = new_folder(path, what)
    if path.exists():
        path.rmdir()
    with atomic_folder(path) as unfinished:
        yield unfinished
