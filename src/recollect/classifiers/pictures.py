"""Examples and class names from folders, tables, memory and lists."""

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
from recollect.core.words import counted, is_utf8, shortened
from recollect.data.sources.images import (
    BrokenImageError,
    PictureInput,
    as_images,
    as_picture,
    decode,
    find_images,
    pixel_digest,
    prepare_image,
)
from recollect.data.sources.reader import blocks_ahead

FILE_COLUMNS = ("file", "path", "image", "filename")
LABEL_COLUMNS = ("label", "class", "class_name", "category")

_BLOCK = 64  # pictures decoded and embedded at once


@dataclass(frozen=True, eq=False)
class InMemory:
    """Picture without a file, and its display name."""

    picture: ImageLike
    name: str

    def __str__(self) -> str:
        return self.name


Example = tuple[Path | InMemory, str]
"""A picture and its class."""

Place = str | Path
Examples = Place | Mapping[str, PictureInput | Iterable[PictureInput]] | Iterable[tuple[PictureInput, str]]
"""Examples of each class (`Classifier.teach`)."""

_File = TypeVar("_File", Path, Path | InMemory)


@dataclass(frozen=True)
class _PictureFiles(Generic[_File]):
    """Embeddings of readable pictures, and error messages for unreadable ones (``broken``)."""

    files: tuple[_File, ...]
    features: np.ndarray
    digests: tuple[str, ...]
    broken: tuple[str, ...]


def find_examples(place: Path, least: int = 2) -> list[tuple[Path, str]]:
    """Return (file, class) pairs from a folder or a CSV.

    Args:
        place: a folder with one sub-folder of images per class, or a ``.csv`` with a file column (``file``, ``path``,
            ``image`` or ``filename``; relative to the CSV's folder) and a class column (``label``, ``class``,
            ``class_name`` or ``category``).
        least: minimum number of classes.

    Raises:
        UserError: too few classes, a class without images, or a CSV without these columns.
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
            f"{place}: {counted(len(classes), 'sub-folder')}; a classifier needs two or more, one per class, "
            "e.g. examples/cat/1.jpg and examples/dog/1.jpg"
        )
    if odd := next((path for path in classes if not is_utf8(path.name)), None):
        raise UserError(f"{place}: the class name {os.fsencode(odd.name)!r} is not UTF-8. Rename the folder.")
    return [(file, path.name.strip()) for path in classes for file in find_images(path)]


def example_pairs(examples: Examples) -> list[Example]:
    """Return (picture, class) pairs from examples in any form.

    Raises:
        UserError: as `find_examples`; a class without examples, or an invalid class name.
    """
    if isinstance(examples, str | Path):
        return [*find_examples(Path(expanduser(examples)), least=1)]
    if isinstance(examples, Mapping):
        of_classes = [(name, list(_pictures(given))) for name, given in examples.items()]
        if empty := [name for name, pictures in of_classes if not pictures]:
            raise UserError(f"no examples of {empty[0]!r}. Add some, or pass the name in names instead.")
    else:
        examples = list(examples)
        if odd := [each for each in examples if not isinstance(each, tuple | list) or len(each) != 2]:
            raise UserError(f"{shortened(odd[0])} is not a (picture, class) pair. Give zip(pictures, classes).")
        of_classes = [(name, list(_pictures([picture]))) for picture, name in examples]
    of_classes = [(_class_name(name, "examples"), pictures) for name, pictures in of_classes]
    counts: Counter[str] = Counter()
    pairs: list[Example] = []
    for name, pictures in of_classes:
        for each in pictures:
            counts[name] += 1
            pairs.append(
                (each if isinstance(each, Path) else InMemory(each, f"picture {counts[name]} of {name}"), name)
            )
    return pairs


def _pictures(given: PictureInput | Iterable[PictureInput]) -> Iterator[Path | ImageLike]:
    """Yield the pictures of a class (one, several or a folder) without opening files."""
    if isinstance(given, str | Path):
        yield from find_images(Path(expanduser(given)))
    elif isinstance(given, np.ndarray | Image.Image | bytes) or not isinstance(given, Iterable):
        yield from as_images(given)
    else:
        for each in given:
            yield from [Path(expanduser(each))] if isinstance(each, str | Path) else as_images(each)


def _class_name(name: object, where: str) -> str:
    """Return a class name without surrounding white space.

    Raises:
        UserError: not text, or empty.
    """
    if isinstance(name, str) and name.strip():
        return name.strip()
    raise UserError(f"{where}: {name!r} is not a class name. Use non-empty text.")


def named_classes(
    names: Mapping[str, Sequence[str] | str] | Sequence[str], where: str = "names"
) -> dict[str, tuple[str, ...]]:
    """Return the descriptive texts of each class, if any, by class name.

    Raises:
        UserError: one string instead of several names, or a name that is not text, empty or repeated.
    """
    if isinstance(names, str):
        raise UserError(f"{where}: only one name, {names!r}. Pass several, as in [{names!r}, 'dog'].")
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
        if row.get("clicked") in ("0", "-1"):  # in a table from the page: a prediction, or a picture of another class
            continue
        file, label = (row[files] or "").strip(), (row[labels] or "").strip()
        if not file or not label:
            raise UserError(
                f"{table}, line {number}: {'no file' if not file else 'no class'}. Fill it in, or remove the line."
            )
        examples.append((table.parent / file, label))
    if not examples:
        raise UserError(f"{table}: no rows")
    return examples


def read_names(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the descriptive texts of each class, if any, by class name.

    Args:
        words: names; or a ``.txt`` file with one name per line; or a ``.json`` file that maps names to their texts.

    Raises:
        UserError: the file is unreadable, or a name is empty or repeated.
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
        return file, pixel_digest(image), prepare_image(encoder, image)

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
        raise UserError(f"{what}: none of {len(files)} images can be read. The first error: {broken[0]}")
    return _PictureFiles(tuple(kept), np.concatenate(features), tuple(digests), tuple(broken))
