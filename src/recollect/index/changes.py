"""Changes of rows that exist: what the user sets, removes and restores, and files that move or go."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.validation import refuse
from recollect.index.picture import File
from recollect.index.rows import COLUMNS, Rows, merged_facts

_ROWS_OF_A_COMMIT = 2_048


def set_removed(index: Any, ids: Sequence[str], removed: bool) -> int:
    """Note whether the user removed some pictures; returns how many differ."""

    def rewrite(rows: Rows) -> int:
        places = [place for place, before in enumerate(rows.removed) if before != removed]
        if places:
            _upsert(index, replace(rows.take(places), removed=[removed] * len(places)))
        return len(places)

    return _in_commits(index, ids, rewrite)


def set_captions(index: Any, texts: Mapping[str, Sequence[str]], by: str) -> int:
    """See `Index.set_captions`; the ids exist."""

    def changed(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = {key: value for key, value in own.items() if key not in ("captions", "by")}
        return kept | ({"captions": list(texts[id]), "by": by} if texts[id] else {})

    def rewrite(rows: Rows) -> int:
        own = [changed(*each) for each in zip(rows.ids, rows.own, strict=True)]
        places = [place for place, each in enumerate(own) if each != rows.own[place]]
        if places:
            upsert_merged(index, replace(rows, own=own).take(places))
        return len(places)

    return _in_commits(index, list(texts), rewrite)


def drop_source(index: Any, source: str) -> int:
    """See `Index.forget`."""
    with index.store.writing():
        rows = list(index.store.dicts(["id", "files"], removed=None))
        mine = [row["id"] for row in rows if any(file["source"] == source for file in row["files"])]
        known = ", ".join(sorted({file["source"] for row in rows for file in row["files"]})) or "none"
        refuse((not mine, f"{index.address}: no source called {source!r}; there are: {known}"))
        return drop_files(index, mine, lambda file: file.source == source)


def drop_files(index: Any, ids: Sequence[str], dropped: Callable[[File], bool]) -> int:
    """Take files from pictures, and delete those that are left without one; returns how many were deleted.

    A picture that the user removed stays, so that it is known wherever it turns up again.
    """

    def drop(rows: Rows) -> int:
        files = [tuple(file for file in each if not dropped(file)) for each in rows.files]
        kept = {place for place, each in enumerate(files) if each or rows.removed[place]}
        if kept:
            upsert_merged(index, with_files(rows, files).take(sorted(kept)))
        lost = [id for place, id in enumerate(rows.ids) if place not in kept]
        if lost:
            index.store.delete(lost)
        return len(lost)

    return _in_commits(index, ids, drop)


def rename_files(index: Any, ids: Sequence[str], renamed: Mapping[str, str]) -> None:
    """Note where files of some pictures are now, after they were moved on disk.

    Their keys stay, by which a table may name them; the next reading of a folder tells.

    Args:
        renamed: the new path of each old one.
    """

    def rename(rows: Rows) -> int:
        files = [tuple(replace(file, path=renamed.get(file.path, file.path)) for file in each) for each in rows.files]
        before, after = ([list(map(_at_path, each)) for each in some] for some in (rows.files, files))
        _upsert(index, replace(with_files(replace(rows, files=before), after), files=files))
        return len(rows)

    _in_commits(index, ids, rename)


def relocate_source(index: Any, source: str, name: str, folder: Path) -> None:
    """Update the files of a source whose folder was renamed or moved.

    Args:
        name: new name of the source.
        folder: its new folder.
    """

    def relocated(file: File) -> File:
        if file.source != source:
            return file
        return replace(file, source=name, place=str(folder), path=file.path and str((folder / file.key).resolve()))

    def relocate(rows: Rows) -> int:
        _upsert(index, replace(rows, files=[tuple(map(relocated, files)) for files in rows.files]))
        return len(rows)

    rows = index.store.dicts(["id", "files"], removed=None)
    _in_commits(index, [row["id"] for row in rows if any(file["source"] == source for file in row["files"])], relocate)


def _at_path(file: File) -> File:
    """A file with the key that a folder gives it where it is now."""
    below = Path(file.path).is_relative_to(file.place) if file.path and file.place else False
    return replace(file, key=Path(file.path).relative_to(file.place).as_posix()) if below else file


def with_files(rows: Rows, files: Sequence[Sequence[File]]) -> Rows:
    """Rows with other files: their folder is that of the first one, unless they had a folder of none of their files."""
    folder = [
        after[0].folder if after and (not before or old in {file.folder for file in before}) else old
        for after, before, old in zip(files, rows.files, rows.folder, strict=True)
    ]
    return replace(rows, files=files, folder=folder)


def upsert_merged(index: Any, rows: Rows) -> None:
    """Write rows whose captions, labels, metadata, dates and cameras follow from their files and what the user set.

    Vectors of captions that a row had are kept, others are embedded.
    """
    facts = [merged_facts(files, own) for files, own in zip(rows.files, rows.own, strict=True)]
    known = [dict(zip(*each, strict=True)) for each in zip(rows.captions, rows.caption_vectors, strict=True)]
    wanted = [(text, old) for each, old in zip(facts, known, strict=True) for text in each["captions"]]
    made: dict[str, np.ndarray] = {}
    if missing := list(dict.fromkeys(text for text, old in wanted if text not in old)):
        embedded = index.encoder.embed_texts(missing, index.record.prefix).numpy()
        made = dict(zip(missing, embedded, strict=True))
    vectors = [
        np.array([old[text] if text in old else made[text] for text in each["captions"]], dtype=np.float32)
        for each, old in zip(facts, known, strict=True)
    ]
    merged: dict[str, Any] = {name: [each[name] for each in facts] for name in ("captions", "labels", "metadata")}
    for place, name in enumerate(("taken", "camera")):
        merged[name] = [_exif(*each, place) for each in zip(rows.files, getattr(rows, name), strict=True)]
    _upsert(index, replace(rows, caption_vectors=[each.reshape(-1, index.width) for each in vectors], **merged))


def _exif(files: Sequence[File], known: str, place: int) -> str:
    """What the first file says that says anything; ``known`` where one was read before files said it, or none is."""
    said = [exif[place] for file in files if (exif := json.loads(file.said).get("exif"))]
    return next(filter(None, said), "" if files and len(said) == len(files) else known)


def _upsert(index: Any, rows: Rows) -> None:
    index.store.upsert(rows.table(index.record, index.address))


def _in_commits(index: Any, ids: Sequence[str], write: Callable[[Rows], int]) -> int:
    """Pass rows to ``write``, 2,048 at a time while other writers wait; returns the sum of its counts."""
    total = 0
    for start in range(0, len(ids), _ROWS_OF_A_COMMIT):
        with index.store.writing():
            total += write(Rows.of_table(index.store.rows(ids[start : start + _ROWS_OF_A_COMMIT], COLUMNS)))
    return total
