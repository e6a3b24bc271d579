"""Rows named by what their user knows of them, and the texts and labels that they are given by these names."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.memory.backends.base import Backend
from recollect.memory.rows import picture_of

CAPTIONED_BY = "captioned_by"
"""Metadata: which model wrote the caption."""

LABELLED = "clicked"
"""Metadata: the classes that the page's clicks gave; a filter reads it: ``clicked = 'cat'``. Where somebody has filled
it with something else, ``clicked_2``, ``clicked_3``, … (`is_label_column`)."""

_LABEL_COLUMN = re.compile(rf"{LABELLED}(_\d+)?")

ROWS_OF_A_COMMIT = 2_048
"""Where texts or metadata of rows are changed."""


def ids_of(backend: Backend, names: Sequence[str], folder: Path | None = None) -> list[str]:
    """The ids of rows that are named by their id, by the file of their picture, or by id or file within a source.

    Args:
        folder: where names of files may be relative to, beside where this process is.

    Raises:
        UserError: a name is of no row, or of several.
    """
    known = backend.known(names)
    if len(known) == len(set(names)):
        return list(names)
    named: dict[str, set[str]] = {}
    for batch in backend.columns(["id", "source", "path"], {}):
        for id, source, path in zip(batch["id"], batch["source"], batch["path"], strict=True):
            if picture_of(id) == id:
                for name in (id.removeprefix(f"{source}:"), path):
                    if name:
                        named.setdefault(name, set()).add(id)
    found = []
    for name in names:
        files = [name, *(str((place / name).resolve()) for place in (Path(), folder) if place is not None)]
        here = {name} if name in known else next((ids for file in files if (ids := named.get(file))), set())
        if len(here) != 1:
            what = "no row" if not here else f"{len(here)} rows"
            raise UserError(f"{backend.address}: {what} of {name!r}. Name rows by their id or their picture's file.")
        found.append(next(iter(here)))
    return found


def set_captions(backend: Backend, captions: Mapping[str, str], encoder: Encoder, by: str, folder: Path | None) -> int:
    """Give rows a text, or another one (see `Memory.set_captions`)."""
    texts = dict(
        zip(ids_of(backend, list(captions), folder), (each.strip() for each in captions.values()), strict=True)
    )
    before: dict[str, str] = {}
    for start in range(0, len(texts), ROWS_OF_A_COMMIT):
        some = list(texts)[start : start + ROWS_OF_A_COMMIT]
        before |= {item.id: item.caption for item in backend.fetch(some, False)}
    wanted = [id for id, text in texts.items() if before[id] != text]
    return sum(
        _set_some(backend, {id: texts[id] for id in wanted[start : start + ROWS_OF_A_COMMIT]}, encoder, by)
        for start in range(0, len(wanted), ROWS_OF_A_COMMIT)
    )


def _set_some(backend: Backend, texts: Mapping[str, str], encoder: Encoder, by: str) -> int:
    record = backend.record
    vectors = {id: np.zeros(record.width, dtype=np.float32) for id in texts}
    if spoken := [id for id, text in texts.items() if text]:
        embedded = encoder.embed_texts([texts[id] for id in spoken], record.prefix).numpy()
        vectors |= dict(zip(spoken, embedded, strict=True))
    with backend.writing():
        ids = sorted(backend.known(list(texts)))  # another process may have removed some
        if not ids:
            return 0
        rows = backend.rows(ids)
        marks = {CAPTIONED_BY: by} if by else {}
        changed = replace(
            rows,
            text_vectors=np.stack([vectors[id] for id in ids]),
            captions=[texts[id] for id in ids],
            metadata=[
                {key: value for key, value in old.items() if key != CAPTIONED_BY} | marks for old in rows.metadata
            ],
        )
        backend.upsert(changed)
        return len(ids)


def is_label_column(key: str) -> bool:
    """Whether the page's clicks may have given a column of metadata."""
    return _LABEL_COLUMN.fullmatch(key) is not None


def label_columns(backend: Backend) -> dict[str, dict[str, Any]]:
    """What each column holds that the page's clicks may have given: values by id."""
    found: dict[str, dict[str, Any]] = {}
    for batch in backend.columns(["id", "metadata"], {}):
        for id, text in zip(batch["id"], batch["metadata"], strict=True):
            if LABELLED in text:
                for key, value in json.loads(text).items():
                    if value is not None and is_label_column(key):
                        found.setdefault(key, {})[id] = value
    return found


def set_metadata(backend: Backend, key: str, values: Mapping[str, Any], among: Collection[str] | None) -> int:
    """Give rows a value under one key, and take it from all others (see `Memory.set_metadata`)."""
    wanted, some = dict[str, Any](), None if among is None else set(among)
    for batch in backend.columns(["id", "metadata"], {}):
        for id, text in zip(batch["id"], batch["metadata"], strict=True):
            if (some is None or id in some) and json.loads(text).get(key) != values.get(id):
                wanted[id] = values.get(id)
    changed = 0
    for start in range(0, len(wanted), ROWS_OF_A_COMMIT):
        with backend.writing():
            ids = sorted(
                backend.known(list(wanted)[start : start + ROWS_OF_A_COMMIT])
            )  # another process may have removed some
            if not ids:
                continue
            rows = backend.rows(ids)
            metadata = [
                {name: value for name, value in old.items() if name != key}
                | ({} if wanted[id] is None else {key: wanted[id]})
                for id, old in zip(ids, rows.metadata, strict=True)
            ]
            backend.upsert(replace(rows, metadata=metadata))
            changed += len(ids)
    return changed
