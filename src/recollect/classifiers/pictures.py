"""Reads examples, pictures and class names: folders, tables, pictures in memory, lists of names."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from PIL import Image

from recollect.core.cells import read_cells
from recollect.core.errors import UserError
from recollect.core.files import read_lines, read_text
from recollect.core.paths import expanduser
from recollect.core.progress import progress
from recollect.core.types import Encoder, ImageLike
from recollect.core.words import counted, is_utf8
from recollect.data.sources.images import (
    BrokenImageError,
    PictureInput,
    as_images,
    as_picture,
    decode,
    find_images,
    pixel_digest,
    prepared,
    reduced,
)
from recollect.data.sources.reader import blocks_ahead

FILE_COLUMNS = ("file", "path", "image", "filename")
LABEL_COLUMNS = ("label", "class", "class_name", "category")

_BLOCK = 64  # pictures decoded and embedded at once


@dataclass(frozen=True, eq=False)
class InMemory:
    """A picture that is not a file, and a name for it."""

    picture: ImageLike
    name: str

    def __str__(self) -> str:
        return self.name


Example = tuple[Path | InMemory, str]
"""A picture and the class it shows."""

Place = str | Path
Examples = Place | Mapping[str, PictureInput | Iterable[PictureInput]] | Iterable[tuple[PictureInput, str]]
"""Examples of each class (`Classifier.teach`)."""

_File = TypeVar("_File", Path, Path | InMemory)


@dataclass(frozen=True)
class _PictureFiles(Generic[_File]):
    """Embeddings of readable pictures, and error messages of the others (``broken``)."""

    files: tuple[_File, ...]
    features: np.ndarray
    digests: tuple[str, ...]
    broken: tuple[str, ...]


def find_examples(place: Path, least: int = 2) -> list[tuple[Path, str]]:
    """Examples with their classes from a folder or a CSV.

    Args:
        place: a folder with a folder of images for each class, or a ``.csv`` with a column of files (``file``,
            ``path``, ``image`` or ``filename``; relative to the CSV's folder) and one of classes (``label``, ``class``,
            ``class_name`` or ``category``).

    Raises:
        UserError: fewer classes, a class without images, or a table of another form.
    """
    if place.suffix.lower() == ".csv":
        examples = _table_examples(place)
        found = sorted({name for _, name in examples})
        if len(found) < least:
            raise UserError(f"{place}: {counted(len(found), 'class')}; a classifier needs examples of two or more")
        return examples
    if not place.is_dir():
        raise UserError(f"{place}: no such folder")
    classes = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < least:
        raise UserError(
            f"{place}: {len(classes)} sub-folders; a classifier needs one folder of examples for each of two or more "
            "classes, e.g. examples/cat/1.jpg and examples/dog/1.jpg"
        )
    if odd := next((path for path in classes if not is_utf8(path.name)), None):
        raise UserError(
            f"{place}: {os.fsencode(odd.name)!r} is the name of a class, and not UTF-8. Rename that folder."
        )
    return [(file, path.name.strip()) for path in classes for file in find_images(path)]


def example_pairs(examples: Examples) -> list[Example]:
    """Examples in any form, with their classes.

    Raises:
        UserError: as `find_examples`; a class without examples, or an invalid class name.
    """
    if isinstance(examples, str | Path):
        return [*find_examples(Path(expanduser(examples)), least=1)]
    if isinstance(examples, Mapping):
        of_classes = [(name, list(_pictures(those))) for name, those in examples.items()]
        if empty := [name for name, those in of_classes if not those]:
            raise UserError(f"examples of {empty[0]!r}: none. Add some, or pass the name in names instead.")
    else:
        of_classes = [(name, list(_pictures([picture]))) for picture, name in examples]
    of_classes = [(_class_name(name, "examples"), those) for name, those in of_classes]
    counts: Counter[str] = Counter()
    pairs: list[Example] = []
    for name, those in of_classes:
        for each in those:
            counts[name] += 1
            pairs.append(
                (each if isinstance(each, Path) else InMemory(each, f"picture {counts[name]} of {name}"), name)
            )
    return pairs


def _pictures(given: PictureInput | Iterable[PictureInput]) -> Iterator[Path | ImageLike]:
    """Pictures of one class: one or several, or all of a folder. Files are not opened yet."""
    if isinstance(given, str | Path):
        yield from find_images(Path(expanduser(given)))
    elif isinstance(given, np.ndarray | Image.Image | bytes) or not isinstance(given, Iterable):
        yield from as_images(given)
    else:
        for each in given:
            yield from [Path(expanduser(each))] if isinstance(each, str | Path) else as_images(each)


def _class_name(name: object, where: str) -> str:
    """A class name without surrounding spaces.

    Raises:
        UserError: it is not text, or empty.
    """
    if isinstance(name, str) and name.strip():
        return name.strip()
    raise UserError(f"{where}: {name!r} is not a class name. Use text that is not empty.")


def named_classes(
    names: Mapping[str, Sequence[str] | str] | Sequence[str], where: str = "names"
) -> dict[str, tuple[str, ...]]:
    """Class names, each with the texts that describe it, if there are any.

    Raises:
        UserError: one text instead of several names, not text, empty, or given twice.
    """
    if isinstance(names, str):
        raise UserError(f"{where}: one text, {names!r}. Give several, as in [{names!r}, 'dog'].")
    found: dict[str, tuple[str, ...]] = {}
    for key, given in names.items() if isinstance(names, Mapping) else ((name, ()) for name in names):
        name, texts = _class_name(key, where), (given,) if isinstance(given, str) else tuple(given)
        if name in found:
            raise UserError(f"{where}: {name!r} is given twice")
        found[name] = tuple(_class_name(text, f"{where}, texts of {name!r}") for text in texts)
    return found


def _table_examples(table: Path) -> list[tuple[Path, str]]:
    columns, rows = read_cells(table)
    files = next((name for name in FILE_COLUMNS if name in columns), None)
    labels = next((name for name in LABEL_COLUMNS if name in columns), None)
    if files is None or labels is None:
        raise UserError(
            f"{table}: needs a column of files ({', '.join(FILE_COLUMNS)}) and one of classes "
            f"({', '.join(LABEL_COLUMNS)}); it has {', '.join(map(repr, columns)) or 'none'}"
        )
    examples = []
    for number, row in enumerate(rows, start=2):
        file, label = (row[files] or "").strip(), (row[labels] or "").strip()
        if not file or not label:
            raise UserError(
                f"{table}, line {number}: {'no file' if not file else 'no class'}. Fill it in, or remove it."
            )
        examples.append((table.parent / file, label))
    if not examples:
        raise UserError(f"{table}: no rows")
    return examples


def read_names(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Class names, each with the texts that describe it, if there are any.

    Args:
        words: names; or a ``.txt`` file with one name per line; or a ``.json`` file that maps names to their texts.

    Raises:
        UserError: the file cannot be read, or a name is empty or given twice.
    """
    if len(words) == 1 and words[0].lower().endswith((".txt", ".json")):
        return named_classes(_names_file(Path(words[0])), words[0])
    return named_classes(words, "--names")


def _names_file(file: Path) -> Mapping[str, Sequence[str]] | Sequence[str]:
    if file.suffix.lower() == ".txt":
        return read_lines(file, "names")
    try:
        values = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: cannot be read ({error})") from None
    lists = values.values() if isinstance(values, Mapping) else [values]
    if not values or not all(isinstance(each, list) for each in lists):
        raise UserError(f'{file}: write a list of names, or names with their texts: {{"cat": ["a photo of a cat"]}}')
    return values


def embed_files(encoder: Encoder, files: Sequence[_File], what: str) -> _PictureFiles[_File]:
    """Decode and embed files or pictures in memory, skipping unreadable ones.

    Raises:
        UserError: none can be read.
    """
    kept: list[_File] = []
    digests: list[str] = []
    features: list[np.ndarray] = []
    broken: list[str] = []

    def read(index: int) -> tuple[_File, str, ImageLike] | BrokenImageError:
        file = files[index]
        try:
            image = decode(file, str(file)) if isinstance(file, Path) else as_picture(file.picture)
        except BrokenImageError as error:
            return error
        return file, pixel_digest(image), prepared(encoder, reduced(encoder, image))

    with progress(f"embed {what}", len(files), "images") as counter:
        for block in blocks_ahead(read, range(len(files)), _BLOCK):
            broken += [str(each) for each in block if isinstance(each, BrokenImageError)]
            good = [each for each in block if not isinstance(each, BrokenImageError)]
            if good:
                kept += [file for file, _, _ in good]
                digests += [digest for _, digest, _ in good]
                features.append(encoder.embed_images([image for _, _, image in good]).numpy())
            counter.advance(len(block))
    if not kept:
        raise UserError(f"{what}: none of {len(files)} images can be read; the first: {broken[0]}")
    return _PictureFiles(tuple(kept), np.concatenate(features), tuple(digests), tuple(broken))
