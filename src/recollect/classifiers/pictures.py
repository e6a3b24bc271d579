"""Examples and pictures as people have them: folders, a CSV, a list of names."""

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.files import read_lines, read_text
from recollect.core.progress import progress
from recollect.core.types import Encoder, ImageLike
from recollect.core.words import counted
from recollect.data.sources.images import (
    BrokenImageError,
    Picture,
    as_images,
    as_picture,
    decode,
    find_images,
    pixel_digest,
)

FILE_COLUMNS = ("file", "path", "image", "filename")
LABEL_COLUMNS = ("label", "class", "class_name", "category")


@dataclass(frozen=True, eq=False)
class InMemory:
    """A picture that is no file, and what to call it."""

    picture: ImageLike
    name: str

    def __str__(self) -> str:
        return self.name


Example = tuple[Path | InMemory, str]
"""A picture and the class it shows."""

Place = str | Path
Examples = Place | Mapping[str, Picture | Iterable[Picture]] | Iterable[tuple[Picture, str]]
"""What a classifier is taught from (`Classifier.teach`)."""


File = TypeVar("File", Path, Path | InMemory)


@dataclass(frozen=True)
class PictureFiles(Generic[File]):
    """Readable images of a folder and their embeddings; what could not be read is named in ``broken``."""

    files: tuple[File, ...]
    features: np.ndarray
    digests: tuple[str, ...]
    broken: tuple[str, ...]


def find_examples(place: Path, least: int = 2) -> list[tuple[Path, str]]:
    """Examples with their classes: the images of each sub-folder of a folder, or the rows of a CSV.

    Args:
        place: a folder with a folder of images for each class, or a ``.csv`` with a column of files (``file``,
            ``path``, ``image`` or ``filename``; relative to the CSV's folder) and one of classes (``label``, ``class``,
            ``class_name`` or ``category``).
        least: classes that there must be; one is enough where a classifier has others already.

    Raises:
        UserError: fewer classes, a class without images, or a table that cannot be read so.
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
    if odd := next((path for path in classes if any("\ud800" <= sign <= "\udfff" for sign in path.name)), None):
        raise UserError(
            f"{place}: {os.fsencode(odd.name)!r} is the name of a class, and not UTF-8. Rename that folder."
        )
    return [(file, path.name) for path in classes for file in find_images(path)]


def example_pairs(examples: Examples) -> list[Example]:
    """Examples in any of their forms with their classes.

    Raises:
        UserError: as `find_examples`; a class has no example, or a name that is no text.
    """
    if isinstance(examples, str | Path):
        return [*find_examples(Path(examples), least=1)]
    if isinstance(examples, Mapping):
        of_classes = [(name, list(_pictures(those))) for name, those in examples.items()]
        if empty := next((name for name, those in of_classes if not those), None):
            raise UserError(f"examples of {empty!r}: none. Give some, or its name alone in names.")
    else:
        of_classes = [(name, list(_pictures([picture]))) for picture, name in examples]
    check_names((name for name, _ in of_classes), "examples")
    counts: Counter[str] = Counter()
    pairs: list[Example] = []
    for name, those in of_classes:
        for each in those:
            counts[name] += 1
            pairs.append(
                (each if isinstance(each, Path) else InMemory(each, f"picture {counts[name]} of {name}"), name)
            )
    return pairs


def _pictures(given: Picture | Iterable[Picture]) -> Iterator[Path | ImageLike]:
    """Pictures of one class: one or several, or all of a folder. That a file is there is seen when it is read."""
    if isinstance(given, str | Path):
        yield from find_images(Path(given))
    elif isinstance(given, np.ndarray | Image.Image | bytes) or not isinstance(given, Iterable):
        yield from as_images(given)
    else:
        for each in given:
            yield from [Path(each)] if isinstance(each, str | Path) else as_images(each)


def check_names(names: Iterable[object], where: str) -> None:
    """Refuse names of classes that are no texts, or empty.

    Raises:
        UserError: naming one.
    """
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"{where}: {name!r} is no text, and a class's name is read as one. Write str({name!r}).")
        if not name.strip():
            raise UserError(f"{where}: a class needs a name")


def named_classes(names: Mapping[str, Sequence[str] | str] | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Classes by name, each with the texts that describe it, or with none where its name says it.

    Raises:
        UserError: one text in place of several names, what is no text, or a name that is empty or given twice.
    """
    if isinstance(names, str):
        raise UserError(f"names {names!r}: one text. Give several, as in [{names!r}, 'dog'].")
    if isinstance(names, Mapping):
        given = [(name, (texts,) if isinstance(texts, str) else tuple(texts)) for name, texts in names.items()]
    else:
        given = [(name, ()) for name in names]
    check_names((name for name, _ in given), "names")
    if strange := [text for _, texts in given for text in texts if not isinstance(text, str)]:
        raise UserError(f"names: {strange[0]!r} is no text")
    return _named(given, "names") if given else {}


def _table_examples(table: Path) -> list[tuple[Path, str]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            rows, columns = list(reader), list(reader.fieldnames or ())
    except FileNotFoundError:
        raise UserError(f"{table}: no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{table}: not a CSV in UTF-8 ({error})") from None
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
    """Class names, each with texts that describe it, or with none where its name says it.

    Args:
        words: names; or one ``.txt`` file with a name a line; or one ``.json`` file that maps a name to its texts.

    Raises:
        UserError: a file that cannot be read so, or a name that is empty or given twice.
    """
    if len(words) == 1 and words[0].lower().endswith((".txt", ".json")):
        return _named(_names_file(Path(words[0])), words[0])
    return _named([(word, ()) for word in words], "--names")


def _names_file(file: Path) -> list[tuple[str, tuple[str, ...]]]:
    if file.suffix.lower() == ".txt":
        return [(line, ()) for line in read_lines(file, "names")]
    try:
        values = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: cannot be read ({error})") from None
    if isinstance(values, list) and all(isinstance(name, str) for name in values):
        return [(name, ()) for name in values]
    if isinstance(values, Mapping) and all(
        isinstance(texts, list) and all(isinstance(text, str) and text.strip() for text in texts)
        for texts in values.values()
    ):
        return [(name, tuple(texts)) for name, texts in values.items()]
    raise UserError(f'{file}: a list of names, or names with their texts: {{"cat": ["a photo of a cat"]}}')


def _named(pairs: Sequence[tuple[str, tuple[str, ...]]], where: str) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for name, texts in pairs:
        name = name.strip()
        if not name:
            raise UserError(f"{where}: a class needs a name")
        if name in names:
            raise UserError(f"{where}: {name!r} is given twice")
        names[name] = texts
    if not names:
        raise UserError(f"{where}: no names")
    return names


def embed_files(encoder: Encoder, files: Sequence[File], what: str, block: int = 64) -> PictureFiles[File]:
    """Decode and embed files, or pictures in memory, leaving out those that cannot be read.

    Raises:
        UserError: none can be read.
    """
    kept: list[File] = []
    digests: list[str] = []
    features: list[np.ndarray] = []
    broken: list[str] = []
    with progress(f"embed {what}", len(files), "images") as counter:
        for start in range(0, len(files), block):
            images = []
            for file in files[start : start + block]:
                try:
                    image = decode(file, str(file)) if isinstance(file, Path) else as_picture(file.picture)
                except BrokenImageError as error:
                    broken.append(str(error))
                    continue
                images.append(image)
                kept.append(file)
                digests.append(pixel_digest(image))
            if images:
                features.append(encoder.embed_images(images).numpy())
            counter.advance(min(block, len(files) - start))
    if not kept:
        raise UserError(f"{what}: none of {len(files)} images can be read; the first: {broken[0]}")
    return PictureFiles(tuple(kept), np.concatenate(features), tuple(digests), tuple(broken))
