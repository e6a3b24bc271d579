"""Changes to existing rows: removed flags, captions, and files that are renamed or dropped."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.core.validation import refuse
from recollect.index.picture import File
from recollect.index.rows import COLUMNS, Rows, merged_facts

if TYPE_CHECKING:
    from recollect.index.index import Index

_COMMIT_ROWS = 2_048


def set_removed(index: "Index", ids: Sequence[str], removed: bool) -> int:
    """Set the ``removed`` flag of pictures; return the number of rows changed."""

    def rewrite(rows: Rows) -> int:
        changed = [row for row, before in enumerate(rows.removed) if before != removed]
        if changed:
            _upsert(index, replace(rows.take(changed), removed=[removed] * len(changed)))
        return len(changed)

    return _in_commits(index, ids, rewrite)


def set_captions(index: "Index", texts: Mapping[str, Sequence[str]], by: str) -> int:
    """Implement `Index.set_captions`; all ids must exist."""

    def updated(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
        rest = {key: value for key, value in own.items() if key not in ("captions", "by")}
        return rest | ({"captions": list(texts[id]), "by": by} if texts[id] else {})

    def rewrite(rows: Rows) -> int:
        own = [updated(*each) for each in zip(rows.ids, rows.own, strict=True)]
        changed = [row for row, each in enumerate(own) if each != rows.own[row]]
        if changed:
            upsert_merged(index, replace(rows, own=own).take(changed))
        return len(changed)

    return _in_commits(index, list(texts), rewrite)


def drop_source(index: "Index", source: str) -> int:
    """Implement `Index.forget`."""
    with index.store.writing():
        rows = list(index.store.dicts(["id", "files"], removed=None))
        mine = [row["id"] for row in rows if any(file["source"] == source for file in row["files"])]
        known = ", ".join(sorted({file["source"] for row in rows for file in row["files"]})) or "none"
        refuse((not mine, f"{index.address}: no source called {source!r}. Sources: {known}"))
        return drop_files(index, mine, lambda file: file.source == source)


def drop_files(index: "Index", ids: Sequence[str], dropped: Callable[[File], bool]) -> int:
    """Drop files from pictures and delete pictures left without files; return the number deleted.

    Pictures that the user removed are never deleted, so they stay excluded if they reappear in any source.
    """

    def drop(rows: Rows) -> int:
        files = [tuple(file for file in each if not dropped(file)) for each in rows.files]
        kept = {row for row, each in enumerate(files) if each or rows.removed[row]}
        if kept:
            upsert_merged(index, with_files(rows, files).take(sorted(kept)))
        deleted = [id for row, id in enumerate(rows.ids) if row not in kept]
        if deleted:
            index.store.delete(deleted)
        return len(deleted)

    return _in_commits(index, ids, drop)


def rename_files(index: "Index", ids: Sequence[str], renamed: Mapping[str, str]) -> None:
    """Update the paths of files that were moved on disk.

    Keys do not change, since a table may refer to files by key; the next `Index.add` of a folder updates them.

    Args:
        renamed: new path by old path.
    """

    def rename(rows: Rows) -> int:
        files = [tuple(replace(file, path=renamed.get(file.path, file.path)) for file in each) for each in rows.files]
        before, after = ([list(map(_at_path, each)) for each in some] for some in (rows.files, files))
        _upsert(index, replace(with_files(replace(rows, files=before), after), files=files))
        return len(rows)

    _in_commits(index, ids, rename)


def relocate_source(index: "Index", source: str, name: str, folder: Path) -> None:
    """Update the files of a source whose folder was renamed or moved.

    Args:
        name: new name of the source.
        folder: its new folder.
    """

    def relocated(file: File) -> File:
        return file if file.source != source else replace(file, source=name, place=str(folder), path=moved(file))

    def moved(file: File) -> str:
        path = Path(file.path)
        if not file.path or path.exists() or not file.key_stays_inside:  # not a file, or moved elsewhere by the user
            return file.path
        inside = path.is_relative_to(file.place)  # false below a symbolic link, since paths are resolved
        return str((folder / (path.relative_to(file.place) if inside else file.key)).resolve())

    def relocate(rows: Rows) -> int:
        _upsert(index, replace(rows, files=[tuple(map(relocated, files)) for files in rows.files]))
        return len(rows)

    rows = index.store.dicts(["id", "files"], removed=None)
    _in_commits(index, [row["id"] for row in rows if any(file["source"] == source for file in row["files"])], relocate)


def _at_path(file: File) -> File:
    """Return the file with its key set to its current path relative to the source folder."""
    below = Path(file.path).is_relative_to(file.place) if file.path and file.place else False
    return replace(file, key=Path(file.path).relative_to(file.place).as_posix()) if below else file


def with_files(rows: Rows, files: Sequence[Sequence[File]]) -> Rows:
    """Replace the files of rows; ``folder`` follows the first file unless it was set independently of the files."""
    folder = [
        after[0].folder if after and (not before or old in {file.folder for file in before}) else old
        for after, before, old in zip(files, rows.files, rows.folder, strict=True)
    ]
    return replace(rows, files=files, folder=folder)


def upsert_merged(index: "Index", rows: Rows) -> None:
    """Recompute captions, labels, metadata, dates and cameras from files and user values, and write the rows.

    Existing caption vectors are reused; new captions are embedded.
    """
    facts = [merged_facts(files, own) for files, own in zip(rows.files, rows.own, strict=True)]
    known = [dict(zip(*each, strict=True)) for each in zip(rows.captions, rows.caption_vectors, strict=True)]
    wanted = [(text, old) for each, old in zip(facts, known, strict=True) for text in each["captions"]]
    new: dict[str, np.ndarray] = {}
    if missing := list(dict.fromkeys(text for text, old in wanted if text not in old)):
        embedded = index.encoder.embed_texts(missing, index.record.prefix).numpy()
        new = dict(zip(missing, embedded, strict=True))
    vectors = [
        np.array([old[text] if text in old else new[text] for text in each["captions"]], dtype=np.float32)
        for each, old in zip(facts, known, strict=True)
    ]
    merged: dict[str, Any] = {name: [each[name] for each in facts] for name in ("captions", "labels", "metadata")}
    for entry, name in enumerate(("taken", "camera")):
        merged[name] = [_exif(*each, entry) for each in zip(rows.files, getattr(rows, name), strict=True)]
    _upsert(index, replace(rows, caption_vectors=[each.reshape(-1, index.width) for each in vectors], **merged))


def _exif(files: Sequence[File], known: str, entry: int) -> str:
    """Return the first EXIF value among the files; ``known`` if there is none and some file has no EXIF record.

    Rows inserted as arrays have files without one.
    """
    values = [exif[entry] for file in files if (exif := json.loads(file.said).get("exif"))]
    return next(filter(None, values), "" if files and len(values) == len(files) else known)


def _upsert(index: "Index", rows: Rows) -> None:
    index.store.upsert(rows.table(index.record, index.address))


def _in_commits(index: "Index", ids: Sequence[str], write: Callable[[Rows], int]) -> int:
    """Pass rows to ``write`` in chunks of 2,048, each under the writer lock; return the sum of its counts."""
    total = 0
    for start in range(0, len(ids), _COMMIT_ROWS):
        with index.store.writing():
            total += write(Rows.of_table(index.store.rows(ids[start : start + _COMMIT_ROWS], COLUMNS)))
    return total
