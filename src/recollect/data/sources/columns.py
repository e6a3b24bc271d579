"""Detecting the image, caption and label columns of a table."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

from recollect.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets.table import Table

_USUAL: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "jpg", "png", "img", "jpeg", "webp", "image_bytes", "file_name", "filename", "filepath",
              "file_path", "image_path", "image_name", "impath", "path", "file"),
    "caption": ("captions", "caption", "text", "txt", "texts", "sentences", "sentence", "title", "comment"),
    "label": ("label", "labels", "cls", "fine_label", "class", "class_id", "category", "target"),
    "class_name": ("class_name", "class_names", "classname", "label_name", "label_names"),
    "id": ("id",),
    "domain": ("domain",),
    "split": ("split",),
}  # fmt: skip
"""Default names of each column, in order of preference; case and surrounding spaces are ignored."""

SUFFIXES = ("jpg", "png", "jpeg", "webp")
"""Image columns of a WebDataset, named after file suffixes; each sample has one of them."""

_INNER_CAPTIONS = ("caption", "captions", "text")

SPLITS: Mapping[str, str] = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip
"""Common spellings of the standard splits."""


@dataclass(frozen=True)
class Columns:
    """Columns to read; those not given are detected by their usual names.

    Attributes:
        image: column of pictures (default: by its name): bytes, or paths relative to the table; of several columns
            joined by commas, each row uses the first nonempty one (jpg,png).
        caption: column of captions (default: by its name): texts or lists of texts, several columns joined by commas,
            or a field of a structured column (json.caption).
        label: column of classes (default: by its name): numbers or names.
        class_name: column of class names, if the classes are numbers.
        synonyms: column of other names of the class (texts or lists), used as the texts of a label source.
        id: column of a unique id for each row; by default the row number.
        domain: column of the kind of picture (photo, sketch, ...), for evaluation.
        split: column of the split of each row, if a table contains several.
    """

    image: str | None = None
    caption: str | None = None
    label: str | None = None
    class_name: str | None = None
    synonyms: str | None = None
    id: str | None = None
    domain: str | None = None
    split: str | None = None

    def resolve(self, present: Iterable[str], where: str, first: Callable[[str], Any] = lambda name: None) -> "Columns":
        """Detect the columns that are not given.

        Args:
            present: names of the table's columns.
            where: name of the table, for messages.
            first: returns the first value of a column, which may be a structure.

        Raises:
            UserError: a given column is missing or structured, or there is no image column.
        """
        present = list(present)
        plain = {name.strip().lower(): name for name in reversed(present)} | {name: name for name in present}
        chosen: dict[str, str | None] = {"synonyms": self.synonyms}
        for role, usual in _USUAL.items():
            chosen[role] = getattr(self, role) or next((plain[name] for name in usual if name in plain), None)
        if self.image is None and (chosen["image"] or "").lower() in SUFFIXES:
            chosen["image"] = ",".join(_webdataset_images(present, first))
        if chosen["caption"] is None and chosen["label"] is None:
            pictures = (chosen["image"] or "").split(",")
            chosen["caption"] = _inner_caption([name for name in present if name not in pictures], first)
        named = [(role, name) for role, names in chosen.items() for name in (names or "").split(",") if name]
        absent = [(role, name) for role, name in named if name not in present and name.split(".")[0] not in present]
        for role, name in (("image", "image"),) if chosen["image"] is None else absent:
            raise UserError(_missing_column(role, name, present, where))
        for name in (chosen["caption"] or "").split(","):
            if name in present and (self.caption or not chosen["label"]) and (fields := _fields_in(first(name))):
                guess = next((each for each in fields if each in _USUAL["caption"]), fields[0])
                raise UserError(
                    f"{where}: column '{name}' has the fields {', '.join(map(repr, fields[:8]))}. Choose one, for "
                    f"example with --caption-column {quote(f'{name}.{guess}')}."
                )
        return Columns(**chosen)


def _webdataset_images(present: Sequence[str], first: Callable[[str], Any]) -> list[str]:
    """Return all image columns of a WebDataset, which may mix JPEG and PNG samples."""
    exact = [name for name in SUFFIXES if name in present]
    names = exact + [name for name in present if name not in exact and name.lower() in SUFFIXES]
    return names[:1] + [name for name in names[1:] if isinstance(first(name), bytes | str | Mapping | None)]


def is_text(type: "pa.DataType") -> bool:
    """Whether a column contains text."""
    import pyarrow as pa  # not at the top: the command line's options import this module

    return pa.types.is_string(type) or pa.types.is_large_string(type)


def is_bytes(type: "pa.DataType") -> bool:
    """Whether a column contains bytes."""
    import pyarrow as pa

    return pa.types.is_binary(type) or pa.types.is_large_binary(type)


def is_list(type: "pa.DataType") -> bool:
    """Whether a column contains lists."""
    import pyarrow as pa

    return pa.types.is_list(type) or pa.types.is_large_list(type)


def _missing_column(role: str, name: str, present: list[str], where: str) -> str:
    others = {each for other, usual in _USUAL.items() if other != role for each in usual}
    free = [each for each in present if each not in others and not each.startswith("__")]
    guess = next((each for each in present if each in _USUAL.get(role, ())), free[0] if free else "NAME")
    shown = ", ".join(repr(column) for column in present)
    option = role.replace("_", "-")
    return f"{where}: no column '{name}'; it has {shown}. Name it with --{option}-column {quote(guess)}."


def _inner_caption(present: Sequence[str], first: Callable[[str], Any]) -> str | None:
    """Return a caption field of a structured column, as in WebDatasets with only .jpg and .json, or None."""
    inner = (f"{name}.{field}" for name in present for field in _fields_in(first(name)) if field in _INNER_CAPTIONS)
    return next(inner, None)


def _fields_in(value: Any) -> tuple[str, ...]:
    """Return the field names of a structure, of JSON text, or of the first structure in a list."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _structure(value)
    if isinstance(value, list) and value:
        value = value[0]
    return tuple(map(str, value)) if isinstance(value, dict) else ()


def text_reader(table: "Table", columns: str) -> Callable[[int], tuple[str, ...]]:
    """Return a function from row numbers of a table to the row's texts (see `texts_in`)."""
    names = [name if name in table.column_names else name.split(".")[0] for name in columns.split(",")]
    outer = {name: table.column(name) for name in names}
    return lambda row: texts_in({name: column[row].as_py() for name, column in outer.items()}, columns)


def texts_in(row: Mapping[str, Any], columns: str) -> tuple[str, ...]:
    """Return the texts of one row.

    Args:
        row: values by column.
        columns: names joined by commas. ``a.b``, if there is no such column, is field ``b`` of column ``a`` (a
            structure, a list of structures, or JSON text). ``txt``, a WebDataset file, has one caption per line, as in
            CLIP_benchmark's data sets. A JSON list of texts, as `recollect index export` writes to CSV, is a list.
    """
    texts: list[str] = []
    for name in columns.split(","):
        outer, *inner = (name,) if name in row else name.split(".")
        value = row.get(outer)
        if isinstance(value, str):
            value = _structure(value) if inner else value.splitlines() if name == "txt" else _listed(value)
        texts += _texts(_lookup(value, inner) if inner else value)
    return tuple(texts)


def _listed(text: str) -> Any:
    found = _structure(text) if text.startswith('["') or text == "[]" else None
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else text


def _structure(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _lookup(value: Any, path: list[str]) -> Any:
    for position, key in enumerate(path):
        if isinstance(value, list):
            return [_lookup(item, path[position:]) for item in value]
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    text = (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()
    return [text] if text else []
