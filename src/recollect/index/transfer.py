"""Copy or move picture files to a folder or to the trash; existing files are never overwritten."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from recollect.core.errors import user_errors
from recollect.core.files import create_numbered, move_file
from recollect.data.sources.images import BrokenImageError
from recollect.index.changes import rename_files
from recollect.index.index import Index
from recollect.index.picture import TRASH, File, Picture

_BLOCK = 2_048
_ENDINGS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}


@dataclass
class Transfer:
    """Outcome of copying or moving.

    Attributes:
        pictures: number of pictures copied or moved.
        files: (old path, new path) pairs; the old path is empty for a picture stored only in the index.
        missing: ids of pictures without an existing file (when moving: an unchanged one) or stored bytes.
    """

    pictures: int = 0
    files: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def copy_pictures(index: Index, ids: Sequence[str], folder: Path, done: Transfer | None = None) -> Transfer:
    """Copy one file of each picture to a folder, or write the picture stored in the index.

    If a file name exists, a number is added: ``boat (2).jpg``.

    Args:
        done: filled in place and returned, so it is valid even after an error.

    Raises:
        UserError: the folder cannot be created or written to; files already copied stay.
    """
    done = Transfer() if done is None else done
    with _write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for picture in _pictures(index, ids):
            path, stored = picture.path, None
            exists = path is not None and path.is_file()
            with suppress(BrokenImageError):
                stored = None if exists else picture.encoded()
            if stored is None and not exists:
                done.missing.append(picture.id)
                continue
            with create_numbered(folder / (path.name if path is not None else _name(picture, stored or b""))) as target:
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
    """Move all files of pictures to a folder, and update their paths in the index.

    Files whose pixels have changed since indexing are not moved.

    Args:
        folder: target folder; None for the trash folder of each file's source.
        files: paths of the files to move; default: all.
        done: see `copy_pictures`.

    Raises:
        UserError: a folder cannot be created or written to, or a file cannot be moved; files already moved stay there,
            with their paths updated.
    """
    done, chosen = Transfer() if done is None else done, None if files is None else set(files)
    try:
        for picture in _pictures(index, ids):
            movable = [file for file in picture.intact_files() if chosen is None or file.path in chosen]
            for file in movable:
                target = folder or trash_folder(file)
                with user_errors(f"{file.path}: cannot be moved to {target}", OSError):
                    target.mkdir(parents=True, exist_ok=True)
                    done.files.append((file.path, str(move_file(Path(file.path), target / Path(file.path).name))))
            if movable:
                done.pictures += 1
            else:
                done.missing.append(picture.id)
    finally:
        if done.files:
            rename_files(index, list(ids), dict(done.files))
    return done


def move_back(index: Index, ids: Sequence[str], files: Sequence[tuple[str, str]]) -> int:
    """Undo `move_pictures`: move each file back, under another name if the old path exists.

    Returns:
        Number of files moved back; missing files are skipped.
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
    """Write a file under a free name, never replacing an existing file; return its path.

    Raises:
        UserError: its folder cannot be written to.
    """
    with _write_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with create_numbered(target) as free:
            free.write_bytes(data)
    return free


def trash_folder(file: File) -> Path:
    """Return the trash folder of a file: at the top level of its source, so on the same disk."""
    path, place = Path(file.path), Path(file.place)
    return (place if file.place and path.is_relative_to(place) else path.parent) / TRASH


def path_before_trash(file: File) -> Path:
    """Return where a file in the trash was before; at the top level of its source if the subfolder is not known."""
    path, place = Path(file.path), Path(file.place)
    top, key = path.parent.parent, Path(file.key)
    is_path = top == place and file.key_stays_inside and key.suffix == path.suffix  # a key may also be an id
    return place / key if is_path else top / path.name


def _pictures(index: Index, ids: Sequence[str]) -> Iterator[Picture]:
    for start in range(0, len(ids), _BLOCK):
        yield from index.pictures(ids[start : start + _BLOCK])


def _name(picture: Picture, stored: bytes) -> str:
    name = Path(picture.files[0].key).name if picture.files else picture.id.replace("/", "-")
    ending = next((ending for start, ending in _ENDINGS.items() if stored.startswith(start)), "")
    return name if Path(name).suffix else f"{name}{ending}"


def _write_errors(folder: Path) -> AbstractContextManager[None]:
    """Convert `OSError` to a `UserError` that names the folder."""
    return user_errors(f"{folder}: cannot be written to", OSError)
