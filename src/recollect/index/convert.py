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
    for row, (id, digest) in enumerate(zip(table["id"].to_pylist(), table["digest"].to_pylist(), strict=True)):
        found.setdefault(digest or _FURTHER.sub("", id), []).append(row)
    return found


def _rows(pictures: list[tuple[str, list[int]]], table: Any, record: Record) -> Rows:
    part = table.take([place for _, places in pictures for place in places])
    vectors = (vector_matrix(part[f"{by}_vector"]) for by in ("image", "text"))
    images, texts = (unit_vectors(each, record.width, "index") for each in vectors)
    flat, made, start = part.drop_columns(["image_vector", "text_vector"]).to_pylist(), list[Rows](), 0
    for id, places in pictures:
        rows, own = flat[start : start + len(places)], texts[start : start + len(places)]
        spoken = {row["caption"]: text for row, text in zip(rows, own, strict=True) if row["has_text"]}
        metadata = {key: value for row in rows for key, value in _metadata(row["metadata"]).items()}
        label, by = metadata.pop("label", None), metadata.pop("captioned_by", "")
        labels = [label] if isinstance(label, str) else []
        said = {"captions": tuple(spoken), "labels": labels, "metadata": metadata}
        made.append(Rows(
            images[start : start + 1], [tuple(spoken)],
            [np.array([*spoken.values()], dtype=np.float32).reshape(-1, record.width)],
            [id], [_files(rows, {key: value for key, value in said.items() if value})], [labels],
            phash=[next((row["look"] for row in rows if row["look"]), "")],
            images=[next((row["image"] for row in rows if row["image"]), None)],
            metadata=[metadata], own=[{"by": by} if by else {}],
        ))  # fmt: skip
        start += len(places)
    return Rows.joined(made)


def _removed(file: Path, pictures: Mapping[str, list[int]]) -> Rows:
    """Pictures that the user removed from the memory, which stay away from the index."""
    found: dict[str, File] = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with suppress(ValueError, TypeError):  # a damaged line costs only itself
            source, id, _, digest = json.loads(line[9:])
            if digest not in pictures:
                found[digest] = File(source, id.removeprefix(f"{source}:"))
    return Rows(ids=list(found), files=[(each,) for each in found.values()], removed=[True] * len(found))


def _files(rows: list[dict[str, Any]], said: Mapping[str, Any]) -> tuple[File, ...]:
    """Where a picture came from; stamps are left out, so that the next reading of the source compares the pixels.

    What its sources said is kept with the first file, so that reading the source again replaces it.
    """
    found: dict[File, None] = {}
    for row in rows:
        key = _FURTHER.sub("", row["id"]).removeprefix(f"{row['source']}:")
        if row["source"]:
            found[File(row["source"], key, row["path"] or "", row["place"] or "")] = None
    first = [replace(file, said=json.dumps(said, ensure_ascii=False)) for file in [*found][:1]]
    return (*first, *[*found][1:])


def _metadata(text: str | Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(text) if isinstance(text, str) else text)
