"""Resolve, check and list paths given by users."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from recollect.core.errors import UserError


def expanduser(place: str | Path) -> str:
    """Expand ``~`` to the user's home folder, which shells do not do in ``--out=~/runs``."""
    return os.path.expanduser(str(place))


def resolve_stored(name: str, place: str | Path) -> str:
    """Resolve a relative path that was stored in a file or folder.

    The path was relative to the working directory at that time. If it does not exist relative to the current one, try
    ``place`` and its parents, nearest first.

    Args:
        name: the stored path; anything else (a hub id) is returned unchanged.
        place: the file or folder that stores the path.
    """
    if not name or "://" in str(place) or os.path.isabs(name) or os.path.exists(name):
        return name
    here = Path(os.path.abspath(place))
    return next((str(folder / name) for folder in (here, *here.parents) if (folder / name).exists()), name)


def visible_files(
    folder: Path, on_error: Callable[[OSError], None] | None = None, links: list[Path] | None = None
) -> Iterator[str]:
    """Yield the files in a folder and its subfolders in any order, without hidden ones and without following links.

    Args:
        on_error: called for each folder that cannot be read; they are skipped by default.
        links: list to which links to folders are added.
    """
    for place, folders, names in os.walk(folder, onerror=on_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if links is not None:
            links += [Path(place, name) for name in folders if os.path.islink(os.path.join(place, name))]
        yield from (os.path.join(place, name) for name in names if not name.startswith("."))


def files_in(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """List the files in a folder and its subfolders, without hidden ones; links to folders are not followed.

    Returns:
        The files; the files and folders without read permission; and the links to folders. Each is sorted.

    Raises:
        UserError: the folder itself cannot be read.
    """
    files, unreadable, links = list[str](), list[Path](), list[Path]()
    for path in visible_files(folder, lambda error: unreadable.append(Path(error.filename)), links):
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                files.append(path)
        except PermissionError:
            unreadable.append(Path(path))
        except OSError:
            continue  # a broken or circular link
    if folder in unreadable:
        raise UserError(f"{folder}: no permission to read this folder. Name another folder, or change its permissions.")
    files.sort(key=lambda path: path.split(os.sep))  # the order of Path; sorting a million Paths takes a minute
    return [Path(path) for path in files], sorted(unreadable), sorted(links)


def may_exist_unlisted(path: Path) -> bool:
    """Whether a file that was not listed may exist in a folder without read permission."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return not os.access(path.parent, os.R_OK)


def did_you_mean(path: Path) -> str:
    """Return ``. Did you mean ...?`` with similar names in the folder of a missing path, or ""."""
    with suppress(OSError):
        close = get_close_matches(path.name, [other.name for other in path.parent.iterdir()], 3, 0.6)
        if close:
            return f". Did you mean {' or '.join(str(path.parent / name) for name in close)}?"
    return ""


def reject_typo(place: str, what: str) -> None:
    """Reject a missing path in an existing folder instead of looking it up on the hub: "data/pears" is probably a typo.

    Args:
        place: a path or a hub id.
        what: kind of file or folder, for the error message.

    Raises:
        UserError: the path does not exist, but its folder does.
    """
    path = Path(expanduser(place))
    if not os.path.exists(path) and path.parent != Path() and os.path.isdir(path.parent):
        here = f"'{path.parent}' is a local folder, so the hub is not searched"
        raise UserError(f"{place}: no such {what}{did_you_mean(path)} ({here})")


def check_writable(path: str | Path | None, option: str, kind: Literal["new file", "folder"] | None = None) -> None:
    """Check before any work that a file or folder can be written, without leaving anything behind.

    Args:
        path: path that will be written; None is not checked.
        option: option that gave the path.
        kind: kind of the path. An existing file is replaced only if the user at the terminal agrees. None allows both
            kinds and never asks.

    Raises:
        UserError: the path cannot be written.
    """
    if path is None:
        return
    place = Path(expanduser(path)).absolute()
    if kind == "folder" and os.path.isfile(place):
        raise UserError(f"{option} {path}: is a file. Name a folder.")
    if kind == "new file" and os.path.isdir(place):
        raise UserError(f"{option} {path}: is a folder. Name a file.")
    if kind == "new file" and os.path.lexists(place):
        interactive = sys.stdin is not None and sys.stdin.isatty()
        if not (interactive and input(f"{path} already exists. Replace it? [y/N] ").strip().lower() in ("y", "yes")):
            raise UserError(f"{option} {path}: already exists. Name another file, or remove it.")
    # os.path treats folders without permission as missing; Path would raise.
    place = place if os.path.isdir(place) else place.parent
    existing = next(folder for folder in (place, *place.parents) if os.path.exists(folder))
    if not os.path.isdir(existing):
        raise UserError(f"{option} {path}: {existing} is a file, not a folder. Choose another path.")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written there ({error.strerror}). Choose another path.") from None


def new_folder(path: str | Path, what: str) -> Path:
    """Return ``path`` if it does not exist or is an empty folder.

    Raises:
        UserError: ``path`` is a file or a folder that is not empty.
    """
    path = Path(expanduser(path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: already exists and is not empty. Name another folder for the {what}, or remove it.")
    return path


def cache_folder() -> Path:
    """Return the folder for files that can be rebuilt: RECOLLECT_CACHE, or ``recollect`` in the user's cache folder.

    It may be emptied whenever no command is running.
    """
    if folder := os.environ.get("RECOLLECT_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recollect"
