"""Copy or move the files of pictures to a folder, or to a trash folder; nothing is ever overwritten."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from recollect.core.errors import user_errors
from recollect.core.files import free_file, move_file
from recollect.data.sources.images import BrokenImageError
from recollect.index.changes import rename_files
from recollect.index.index import Index
from recollect.index.picture import File, Picture

TRASH = ".recollect-trash"
"""Folder for deleted files, at the top of their source; sources do not read hidden folders."""

_BLOCK = 2_048
_ENDINGS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}


@dataclass
class Transfer:
    """What was copied or moved.

    Attributes:
        pictures: how many.
        files: pairs of the old place and the new one; the old place of a picture that was no file is empty.
        missing: ids of pictures whose files are gone or changed, and that the index does not store.
    """

    pictures: int = 0
    files: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def copy_pictures(index: Index, ids: Sequence[str], folder: Path, done: Transfer | None = None) -> Transfer:
    """Copy one file of each picture to a folder, or write the picture that the index stores.

    A name that is taken gets a number: ``boat (2).jpg``.

    Args:
        done: is filled and returned; has what was copied before an error as well.

    Raises:
        UserError: the folder cannot be made or written to; what was copied before stays.
    """
    done = Transfer() if done is None else done
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for picture in _pictures(index, ids):
            path, stored = picture.path, None
            there = path is not None and path.is_file()
            with suppress(BrokenImageError):
                stored = None if there else picture.encoded()
            if stored is None and not there:
                done.missing.append(picture.id)
                continue
            with free_file(folder / (path.name if path is not None else _name(picture, stored or b""))) as target:
                if stored is not None:
                    target.write_bytes(stored)
                elif path is not None:
                    shutil.copy2(path, target)
            done.pictures += 1
            done.files.append((str(path or ""), str(target)))
    return done


def move_pictures(
    index: Index,
    ids: Sequence[str],
    folder: Path | None,
    files: Collection[str] | None = None,
    done: Transfer | None = None,
) -> Transfer:
    """Move every file of some pictures to a folder, and note their new places in the index.

    A file that holds other pixels than when it was indexed stays where it is.

    Args:
        folder: where to; None for the trash folder of each file's source.
        files: paths of the files to move; all by default.
        done: as in `copy_pictures`.

    Raises:
        UserError: a folder cannot be made or written to, or a file cannot be moved; what was moved before stays moved,
            and the index knows.
    """
    done, chosen = Transfer() if done is None else done, None if files is None else set(files)
    try:
        for picture in _pictures(index, ids):
            there = [file for file in picture.intact_files() if chosen is None or file.path in chosen]
            for file in there:
                to = folder or trash_of(file)
                with user_errors(f"{file.path}: cannot be moved to {to}", OSError):
                    to.mkdir(parents=True, exist_ok=True)
                    done.files.append((file.path, str(move_file(Path(file.path), to / Path(file.path).name))))
            if there:
                done.pictures += 1
            else:
                done.missing.append(picture.id)
    finally:
        if done.files:
            rename_files(index, list(ids), dict(done.files))
    return done


def move_back(index: Index, ids: Sequence[str], files: Sequence[tuple[str, str]]) -> int:
    """Undo `move_pictures`: each file returns to its old place, under another name if that is taken now.

    Returns:
        How many files were moved back; the others are gone.
    """
    back: dict[str, str] = {}
    try:
        for old, new in reversed(files):
            if Path(new).is_file():
                with user_errors(f"{new}: cannot be moved back to {old}", OSError):
                    Path(old).parent.mkdir(parents=True, exist_ok=True)
                    back[new] = str(move_file(Path(new), Path(old)))
    finally:
        rename_files(index, list(ids), back)
    return len(back)


def write_new(target: Path, data: bytes) -> Path:
    """Write a file without ever replacing another; returns where it is.

    Raises:
        UserError: its folder cannot be written to.
    """
    with _told(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with free_file(target) as free:
            free.write_bytes(data)
    return free


def trash_of(file: File) -> Path:
    """Where a deleted file goes: on the same disk, at the top of its source."""
    path, place = Path(file.path), Path(file.place)
    return (place if file.place and path.is_relative_to(place) else path.parent) / TRASH


def _pictures(index: Index, ids: Sequence[str]) -> Iterator[Picture]:
    for start in range(0, len(ids), _BLOCK):
        yield from index.pictures(ids[start : start + _BLOCK])


def _name(picture: Picture, stored: bytes) -> str:
    name = Path(picture.files[0].key).name if picture.files else picture.id.replace("/", "-")
    ending = next((ending for start, ending in _ENDINGS.items() if stored.startswith(start)), "")
    return name if Path(name).suffix else f"{name}{ending}"


def _told(folder: Path) -> AbstractContextManager[None]:
    """Turn an error of the disk into one line that names the folder."""
    return user_errors(f"{folder}: cannot be written to", OSError)
