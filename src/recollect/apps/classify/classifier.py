"""Folders of examples in, predictions for other images out: a classifier in one call."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.base import ClassifierMixin

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder
from recollect.data.sources.images import BrokenImageError, decode

FEW_EXAMPLES = 4
"""Below this many examples of a class, its accuracy swings by many points with the choice of examples."""

NEAR_DUPLICATE = 0.995
"""Cosine from which two examples are taken for the same picture."""

UNKNOWN_QUANTILE = 0.02
"""An image is called unlike all classes when it is farther from every example than all but 2 % of the examples are
from their own class."""

PICTURE_ENDINGS = frozenset(Image.registered_extensions())


@dataclass(frozen=True)
class PictureFiles:
    """Readable images of a folder and their embeddings; what could not be read is named in ``broken``."""

    files: tuple[Path, ...]
    features: np.ndarray
    digests: tuple[str, ...]
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Neighbour:
    """A support image and its cosine to the query."""

    file: Path
    label: str
    similarity: float


@dataclass(frozen=True)
class Prediction:
    """What the classifier says of one image.

    Attributes:
        confidence: probability of ``label`` under the classifier (0 to 1).
        runner_up: the second most probable class.
        unknown: no example is near; the image may belong to none of the classes.
        nearest: the examples nearest to it, nearest first.
    """

    file: Path
    label: str
    confidence: float
    runner_up: str
    unknown: bool
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Classification:
    """Predictions for a folder and what the user should know about the examples."""

    class_names: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    warnings: tuple[str, ...] = field(default_factory=tuple)


def find_images(folder: Path) -> list[Path]:
    """Every image file under ``folder``, sorted; hidden files and folders are left out.

    Raises:
        UserError: no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in PICTURE_ENDINGS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not files:
        raise UserError(f"{folder}: no image files (.jpg, .png, .webp, ...) in it")
    return files


def find_examples(folder: Path) -> list[tuple[Path, str]]:
    """The images of each sub-folder of ``folder`` with the sub-folder's name as their class.

    Raises:
        UserError: fewer than two classes, or a class without images.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise UserError(
            f"{folder}: {len(classes)} sub-folders; a classifier needs one folder of examples for each of two or more "
            "classes, e.g. examples/cat/1.jpg and examples/dog/1.jpg"
        )
    return [(file, path.name) for path in classes for file in find_images(path)]


def embed_files(encoder: Encoder, files: Sequence[Path], what: str, block: int = 64) -> PictureFiles:
    """Decode and embed ``files``, leaving out those that cannot be read.

    Raises:
        UserError: none can be read.
    """
    kept: list[Path] = []
    digests: list[str] = []
    features: list[np.ndarray] = []
    broken: list[str] = []
    with progress(f"embed {what}", len(files), "images") as counter:
        for start in range(0, len(files), block):
            images = []
            for file in files[start : start + block]:
                try:
                    image = decode(file, str(file))
                except BrokenImageError as error:
                    broken.append(str(error))
                    continue
                images.append(image)
                kept.append(file)
                digests.append(hashlib.blake2b(image.tobytes() + repr(image.size).encode()).hexdigest())
            if images:
                features.append(encoder.embed_images(images).numpy())
            counter.advance(min(block, len(files) - start))
    if not kept:
        raise UserError(f"{what}: none of {len(files)} images can be read; the first: {broken[0]}")
    return PictureFiles(tuple(kept), np.concatenate(features), tuple(digests), tuple(broken))


def own_class_similarity(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each example the cosine to the nearest other example of its class; lone examples are left out."""
    similarity = features @ features.T
    similarity[labels[:, None] != labels[None, :]] = -np.inf
    np.fill_diagonal(similarity, -np.inf)
    nearest = similarity.max(axis=1)
    return nearest[np.isfinite(nearest)]


def example_warnings(examples: PictureFiles, labels: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """What is doubtful about the examples: too few, the same picture in two classes, unreadable files."""
    warnings = [f"left out: {message}" for message in examples.broken]
    counts = np.bincount(labels, minlength=len(class_names))
    few = [f"{name} ({count})" for name, count in zip(class_names, counts, strict=True) if count < FEW_EXAMPLES]
    if few:
        warnings.append(f"fewer than {FEW_EXAMPLES} examples, so expect the choice to matter: {', '.join(few)}")
    same = defaultdict(list)
    for row, digest in enumerate(examples.digests):
        same[digest].append(row)
    similarity = examples.features @ examples.features.T
    for first, second in np.argwhere(np.triu(similarity >= NEAR_DUPLICATE, 1)):
        identical = examples.digests[first] == examples.digests[second]
        pair = f"{examples.files[first]} and {examples.files[second]}"
        if labels[first] != labels[second]:
            kind = "the same picture" if identical else f"nearly the same picture ({similarity[first, second]:.3f})"
            warnings.append(f"{kind} in two classes, {class_names[labels[first]]} and "
                            f"{class_names[labels[second]]}: {pair}")  # fmt: skip
    copies = sum(len(rows) - 1 for rows in same.values() if len({int(labels[row]) for row in rows}) == 1)
    if copies:
        warnings.append(f"{copies} examples are exact copies of another of their class and add nothing")
    return warnings


def classify(
    classifier: ClassifierMixin,
    encoder: Encoder,
    support: Sequence[tuple[Path, str]],
    images: Sequence[Path],
    *,
    neighbours: int = 3,
) -> Classification:
    """Fit ``classifier`` on the examples and predict every readable image.

    Args:
        classifier: not fitted; its classes are the examples' class names, in sorted order.
        support: files and their classes, at least two classes.
        neighbours: examples to show beside each prediction.

    Raises:
        UserError: no example of a class, or no image at all, can be read.
    """
    class_names = tuple(sorted({name for _, name in support}))
    label_of = {file: class_names.index(name) for file, name in support}
    examples = embed_files(encoder, [file for file, _ in support], "examples")
    labels = np.array([label_of[file] for file in examples.files])
    if missing := sorted(set(range(len(class_names))) - set(labels.tolist())):
        names = ", ".join(class_names[index] for index in missing)
        raise UserError(f"no example of {names} can be read. Replace the damaged files.")
    classifier.fit(examples.features, labels)
    queries = embed_files(encoder, images, "images")
    probabilities = classifier.predict_proba(queries.features)
    similarity = queries.features @ examples.features.T
    own = own_class_similarity(examples.features, labels)
    threshold = np.quantile(own, UNKNOWN_QUANTILE) if own.size else -np.inf

    def neighbours_of(row: int) -> tuple[Neighbour, ...]:
        nearest = np.argsort(-similarity[row], kind="stable")[:neighbours]
        return tuple(
            Neighbour(examples.files[index], class_names[labels[index]], float(similarity[row, index]))
            for index in nearest
        )

    predictions = []
    for row, file in enumerate(queries.files):
        best, second = np.argsort(-probabilities[row], kind="stable")[:2]
        predictions.append(
            Prediction(
                file,
                class_names[best],
                float(probabilities[row, best]),
                class_names[second],
                bool(similarity[row].max() < threshold),
                neighbours_of(row),
            )
        )
    warnings = example_warnings(examples, labels, class_names)
    warnings += [f"not classified: {message}" for message in queries.broken]
    if unknown := sum(prediction.unknown for prediction in predictions):
        warnings.append(f"{unknown} of {len(predictions)} images are unlike every example; they may belong to no class")
    return Classification(class_names, tuple(predictions), tuple(warnings))
