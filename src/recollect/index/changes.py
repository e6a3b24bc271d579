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

    def flagged(rows: Rows) -> Rows:
        changed = [row for row, before in enumerate(rows.removed) if before != removed]
        return replace(rows.take(changed), removed=[removed] * len(changed))

    return _rewrite(index, ids, flagged)


def set_captions(index: "Index", texts: Mapping[str, Sequence[str]], by: str) -> int:
    """Implement `Index.set_captions`; all ids must exist."""

    def updated(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
        rest = {key: value for key, value in own.items() if key not in ("captions", "by")}
        return rest | ({"captions": list(texts[id]), "by": by} if texts[id] else {})

    def captioned(rows: Rows) -> Rows:
        own = [updated(*each) for each in zip(rows.ids, rows.own, strict=True)]
        changed = [row for row, each in enumerate(own) if each != rows.own[row]]
        return with_merged_facts(index, replace(rows, own=own).take(changed))

    return _rewrite(index, list(texts), captioned)


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

    deleted = list[str]()

    def kept(rows: Rows) -> Rows:
        files = [tuple(file for file in each if not dropped(file)) for each in rows.files]
        keep = [bool(each) or removed for each, removed in zip(files, rows.removed, strict=True)]
        if gone := [id for id, stays in zip(rows.ids, keep, strict=True) if not stays]:
            index.store.delete(gone)
        deleted.extend(gone)
        return with_merged_facts(index, with_files(rows, files).take(np.flatnonzero(keep).tolist()))

    _rewrite(index, ids, kept)
    return len(deleted)


def rename_files(index: "Index", ids: Sequence[str], renamed: Mapping[str, str]) -> None:
    """Update the paths of files that were moved on disk.

    Keys do not change, since a table may refer to files by key; the next `Index.add` of a folder updates them.

    Args:
        renamed: new path by old path.
    """

    def rename(rows: Rows) -> Rows:
        files = [tuple(replace(file, path=renamed.get(file.path, file.path)) for file in each) for each in rows.files]
        before, after = ([list(map(_at_path, each)) for each in some] for some in (rows.files, files))
        return replace(with_files(replace(rows, files=before), after), files=files)

    _rewrite(index, ids, rename)


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

    def relocate(rows: Rows) -> Rows:
        return replace(rows, files=[tuple(map(relocated, files)) for files in rows.files])

    rows = index.store.dicts(["id", "files"], removed=None)
    _rewrite(index, [row["id"] for row in rows if any(file["source"] == source for file in row["files"])], relocate)


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


def with_merged_facts(index: "Index", rows: Rows) -> Rows:
    """Return rows with captions, labels, metadata, dates and cameras recomputed from files and user values.

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
    values: dict[str, Any] = {name: [each[name] for each in facts] for name in ("captions", "labels", "metadata")}
    for entry, name in enumerate(("taken", "camera")):
        values[name] = [_exif(*each, entry) for each in zip(rows.files, getattr(rows, name), strict=True)]
    return replace(rows, caption_vectors=[each.reshape(-1, index.width) for each in vectors], **values)


def _exif(files: Sequence[File], known: str, entry: int) -> str:
    """Return the first EXIF value among the files; ``known`` if there is none and some file has no EXIF record.

    Rows inserted as arrays have files without one.
    """
    values = [exif[entry] for file in files if (exif := json.loads(file.said).get("exif"))]
    return next(filter(None, values), "" if files and len(values) == len(files) else known)


def write_rows(index: "Index", rows: Rows) -> None:
    """Insert rows, or replace those with the same ids, in one commit."""
    if len(rows):
        index.store.upsert(rows.table(index.record, index.address))


def _rewrite(index: "Index", ids: Sequence[str], change: Callable[[Rows], Rows]) -> int:
    """Write the rows that ``change`` returns, in commits of 2,048 ids under the writer lock; return their number."""
    total = 0
    for start in range(0, len(ids), _COMMIT_ROWS):
        with index.store.writing():
            rows = change(Rows.of_table(index.store.rows(ids[start : start + _COMMIT_ROWS], COLUMNS)))
            write_rows(index, rows)
            total += len(rows)
    return total
