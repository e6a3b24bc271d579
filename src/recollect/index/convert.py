"""One-time conversion of a memory of pairs, as older versions wrote them, to an index of pictures."""

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.errors import UserError
from recollect.core.files import locked
from recollect.index.arrow import vector_matrix
from recollect.index.changes import ChangeableIndex
from recollect.index.picture import File
from recollect.index.rows import Record, Rows, unit_vectors
from recollect.index.stores.lance import LanceStore, open_database

_TABLE, _LOCK, _REMOVED = "pairs", ".writers", "removed.jsonl"
_OLD = (f"{_TABLE}.lance", "cache", "index", _REMOVED)
_FURTHER = re.compile(r"#\d+$")
_ROWS = 4_096
BEFORE = "before-conversion"
"""Folder inside the index with the files of the memory as it was; it may be deleted."""


def is_memory(folder: Path) -> bool:
    """Whether a folder holds a memory of an older version and no index."""
    return (folder / f"{_TABLE}.lance").is_dir() and not (folder / "pictures.lance").exists()


def convert_memory(folder: Path) -> int:
    """Turn a memory into an index in the same folder; nothing is embedded again.

    Rows of the same pixels become one picture with all their captions and files. The index is written next to the
    memory first, and published by one rename, so that a kill leaves the memory as it was; the old files are kept in
    `BEFORE`.

    Returns:
        How many pictures there are.

    Raises:
        UserError: the memory is damaged, or older than format 2.
    """
    with locked(folder / _LOCK):
        if not is_memory(folder):  # another process converted it
            return int(LanceStore(str(folder)).count())
        table, record = _opened(folder)
        unfinished = folder / ".converting"
        shutil.rmtree(unfinished, ignore_errors=True)
        index = ChangeableIndex(LanceStore.create(str(unfinished), record))
        pictures = _pictures(table)
        for start in range(0, len(pictures), _ROWS):
            index.insert(_rows(list(pictures.items())[start : start + _ROWS], table, record))
        index.insert(_removed(folder / _REMOVED, pictures))
        with suppress(FileExistsError):
            (folder / BEFORE).mkdir()
        (unfinished / "pictures.lance").rename(folder / "pictures.lance")  # from here on it is an index
        (unfinished / "checksums.json").replace(folder / "checksums.json")
        for name in _OLD:
            if (folder / name).exists():
                (folder / name).rename(folder / BEFORE / name)
        shutil.rmtree(unfinished, ignore_errors=True)
        return len(pictures)


def _opened(folder: Path) -> tuple[Any, Record]:
    try:
        table = open_database(folder).open_table(_TABLE)
        known = json.loads(table.schema.metadata[b"recollect"])
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{folder}: an old memory that cannot be read ({str(error)[:200]}). Build it again.") from error
    if known.get("format") != 2:
        raise UserError(f"{folder}: written by a version that is too old to convert. Build it again.")
    kept = {name: known[name] for name in ("width", "model", "model_name", "prefix", "precision", "key")}
    return table.to_arrow(), Record(**kept)


def _pictures(table: Any) -> Mapping[str, list[int]]:
    """The rows of each picture, by the digest of its pixels, else by the name it had."""
    found: dict[str, list[int]] = {}
    ids, digests = table["id"].to_pylist(), table["digest"].to_pylist()
    for row, (id, digest) in enumerate(zip(ids, digests, strict=True)):
        found.setdefault(digest or _FURTHER.sub("", id), []).append(row)
    return found


def _rows(pictures: list[tuple[str, list[int]]], table: Any, record: Record) -> Rows:
    flat = [row for _, rows in pictures for row in rows]
    part = table.take(flat)
    columns = {name: part[name].to_pylist() for name in part.column_names if "vector" not in name}
    vectors = (vector_matrix(part[f"{by}_vector"]) for by in ("image", "text"))
    images, texts = (unit_vectors(each, record.width, "index") for each in vectors)
    made = Rows(image_vectors=np.empty((0, record.width), dtype=np.float32))
    made_images, start = [], 0
    lists: dict[str, list[Any]] = {name: [] for name in ("ids", "captions", "caption_vectors", "files", "labels")}
    lists |= {name: [] for name in ("images", "metadata", "phash", "own")}
    for id, rows in pictures:
        mine = range(start, start + len(rows))
        start += len(rows)
        made_images.append(images[mine[0]])
        captions = {columns["caption"][row]: texts[row] for row in mine if columns["has_text"][row]}
        metadata = {key: value for row in mine for key, value in _metadata(columns["metadata"][row]).items()}
        label = metadata.pop("label", None)
        by = metadata.pop("captioned_by", "")
        lists["ids"].append(id)
        lists["captions"].append(tuple(captions))
        lists["caption_vectors"].append(np.array(list(captions.values()), dtype=np.float32).reshape(-1, record.width))
        lists["labels"].append((label,) if isinstance(label, str) else ())
        lists["files"].append(_with_said(_files(columns, mine), tuple(captions), label, metadata))
        lists["images"].append(next((columns["image"][row] for row in mine if columns["image"][row]), None))
        lists["metadata"].append(metadata)
        lists["phash"].append(next((columns["look"][row] for row in mine if columns["look"][row]), ""))
        lists["own"].append({"by": by} if by else {})
    made.image_vectors = np.array(made_images, dtype=np.float32)
    for name, values in lists.items():
        setattr(made, name, values)
    return made


def _with_said(files: list[File], captions: tuple[str, ...], label: Any, metadata: Any) -> tuple[File, ...]:
    """What a picture's sources said, kept with its first file, so that reading the source again replaces it."""
    if not files:
        return ()
    said = {"captions": captions, "labels": [label] if isinstance(label, str) else [], "metadata": metadata}
    kept = {key: value for key, value in said.items() if value}
    return (replace(files[0], said=json.dumps(kept, ensure_ascii=False)), *files[1:])


def _removed(file: Path, pictures: Mapping[str, list[int]]) -> Rows:
    """Pictures that the user removed from the memory, which stay away from the index."""
    found: dict[str, File] = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with suppress(ValueError, TypeError):  # a damaged line costs only itself
            source, id, _, digest = json.loads(line[9:])
            if digest not in pictures:
                found[digest] = File(source, id.removeprefix(f"{source}:"))
    return Rows(ids=list(found), files=[(each,) for each in found.values()], removed=[True] * len(found))


def _files(columns: Mapping[str, list[Any]], rows: range) -> list[File]:
    """Where a picture came from; stamps are left out, so that the next reading of the source compares the pixels."""
    found: dict[File, None] = {}
    for row in rows:
        source = columns["source"][row]
        key = _FURTHER.sub("", columns["id"][row]).removeprefix(f"{source}:")
        if source:
            found[File(source, key, columns["path"][row] or "", columns["place"][row] or "")] = None
    return list(found)


def _metadata(text: str | Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(text) if isinstance(text, str) else text)
