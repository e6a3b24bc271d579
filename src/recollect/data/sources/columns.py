"""Finding the image, caption and label columns of a table."""

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
"""Names tried in this order if the user names no column; case, and spaces around a name, do not matter."""

SUFFIXES = ("jpg", "png", "jpeg", "webp")
"""Columns of `_USUAL` that are named after the files of a WebDataset, where each sample has one of them."""

_INNER = ("caption", "captions", "text")

SPLITS: Mapping[str, str] = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip
"""Usual spellings of the three usual splits."""


@dataclass(frozen=True)
class Columns:
    """Which columns to read; for a name left out, the usual names are tried.

    Attributes:
        image: encoded bytes, a `datasets.Image`, or a path relative to the table; of several columns joined by commas,
            the first that is not empty in a row (``jpg,png``).
        caption: a text, a list of texts, several columns joined by commas, or a field inside a structured column
            (``json.caption``).
        label: an integer, a ``ClassLabel`` or a class name.
        class_name: the readable name that goes with an integer label.
        synonyms: other names of the class (text or list), which become the texts of a label source.
        id: unique for each row; by default the row number.
        domain: the kind of picture (photo, sketch, ...), for evaluation.
        split: the split of each row, if a table holds several.
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
        """Fill in the names that were left out from the columns of a table.

        Args:
            present: names of the columns.
            where: the table, for messages.
            first: maps the name of a column to its first value, which may be a structure.

        Raises:
            UserError: a named column is absent, holds structures, or no column could be the image.
        """
        present = list(present)
        plain = {name.strip().lower(): name for name in reversed(present)} | {name: name for name in present}
        found: dict[str, str | None] = {"synonyms": self.synonyms}
        for role, usual in _USUAL.items():
            found[role] = getattr(self, role) or next((plain[name] for name in usual if name in plain), None)
        if self.image is None and (found["image"] or "").lower() in SUFFIXES:
            found["image"] = ",".join(_by_suffix(present, first))
        if found["caption"] is None and found["label"] is None:
            pictures = (found["image"] or "").split(",")
            found["caption"] = _inner_caption([name for name in present if name not in pictures], first)
        named = [(role, name) for role, names in found.items() for name in (names or "").split(",") if name]
        absent = [(role, name) for role, name in named if name not in present and name.split(".")[0] not in present]
        for role, name in (("image", "image"),) if found["image"] is None else absent:
            raise UserError(_absent(role, name, present, where))
        for name in (found["caption"] or "").split(","):
            if name in present and (self.caption or not found["label"]) and (fields := fields_in(first(name))):
                guess = next((each for each in fields if each in _USUAL["caption"]), fields[0])
                raise UserError(
                    f"{where}: column '{name}' holds {', '.join(map(repr, fields[:8]))} of each row. Name one of them "
                    f"with --caption-column {quote(f'{name}.{guess}')}."
                )
        return Columns(**found)


def _by_suffix(present: Sequence[str], first: Callable[[str], Any]) -> list[str]:
    """The columns of pictures of a WebDataset, the usual ones first: samples of one set may be JPEG or PNG."""
    usual = [name for name in SUFFIXES if name in present]
    found = usual + [name for name in present if name not in usual and name.lower() in SUFFIXES]
    return found[:1] + [name for name in found[1:] if isinstance(first(name), bytes | str | Mapping | None)]


def is_text(type: "pa.DataType") -> bool:
    """Whether a column holds words."""
    import pyarrow as pa  # not at the top: the command line's options import this module

    return pa.types.is_string(type) or pa.types.is_large_string(type)


def is_bytes(type: "pa.DataType") -> bool:
    """Whether a column holds bytes."""
    import pyarrow as pa

    return pa.types.is_binary(type) or pa.types.is_large_binary(type)


def is_list(type: "pa.DataType") -> bool:
    """Whether a column holds lists."""
    import pyarrow as pa

    return pa.types.is_list(type) or pa.types.is_large_list(type)


def _absent(role: str, name: str, present: list[str], where: str) -> str:
    others = {each for other, usual in _USUAL.items() if other != role for each in usual}
    free = [each for each in present if each not in others and not each.startswith("__")]
    guess = next((each for each in present if each in _USUAL.get(role, ())), free[0] if free else "NAME")
    shown = ", ".join(repr(column) for column in present)
    option = role.replace("_", "-")
    return f"{where}: no column '{name}'; it has {shown}. Name it with --{option}-column {quote(guess)}."


def _inner_caption(present: Sequence[str], first: Callable[[str], Any]) -> str | None:
    """A field that is named like captions in a column of structures, as in WebDatasets with only .jpg and .json."""
    inner = (f"{name}.{field}" for name in present for field in fields_in(first(name)) if field in _INNER)
    return next(inner, None)


def fields_in(value: Any) -> tuple[str, ...]:
    """The names of the fields of a structure, of JSON text, or of the first of a list of structures."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _structure(value)
    if isinstance(value, list) and value:
        value = value[0]
    return tuple(map(str, value)) if isinstance(value, dict) else ()


def text_reader(table: "Table", columns: str) -> Callable[[int], tuple[str, ...]]:
    """A function from a row number of a table to the row's texts (see `texts_in`)."""
    names = [name if name in table.column_names else name.split(".")[0] for name in columns.split(",")]
    outer = {name: table.column(name) for name in names}
    return lambda row: texts_in({name: column[row].as_py() for name, column in outer.items()}, columns)


def texts_in(row: Mapping[str, Any], columns: str) -> tuple[str, ...]:
    """The texts of one row, given as its columns.

    Args:
        columns: names joined by commas; ``a.b``, if there is no such column, is field ``b`` of column ``a`` (a
            structure, a list of them, or JSON text). ``txt``, from a file of a WebDataset, has a caption on each line,
            as in the sets of CLIP_benchmark.
    """
    found: list[str] = []
    for name in columns.split(","):
        outer, *inner = (name,) if name in row else name.split(".")
        value = row.get(outer)
        if isinstance(value, str):
            value = _structure(value) if inner else value.splitlines() if name == "txt" else value
        found += _texts(_descend(value, inner) if inner else value)
    return tuple(found)


def _structure(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _descend(value: Any, path: list[str]) -> Any:
    for position, key in enumerate(path):
        if isinstance(value, list):
            return [_descend(item, path[position:]) for item in value]
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    text = str(value).strip()
    return [text] if text else []
