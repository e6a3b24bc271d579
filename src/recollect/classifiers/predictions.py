"""Predictions for files, with warnings about the examples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.heads.trust import MIN_EXAMPLES, TOO_FEW_EXAMPLES
from recollect.classifiers.pictures import embed_files
from recollect.classifiers.teaching import Support
from recollect.core.ordering import best_first
from recollect.core.types import Encoder
from recollect.core.words import counted, normalized_name
from recollect.data.sources.images import BrokenImageError, decode
from recollect.index.same_picture import PreparedPicture, near_identical

FEW_EXAMPLES = 4
"""With fewer examples of a class, its accuracy depends strongly on their choice."""

NEAR_DUPLICATE = 0.995
"""Minimum cosine of two examples to be reported as nearly the same picture."""

COPY_CANDIDATE = 0.8
"""Minimum cosine of two examples to compare their pixels. A copy at half the pixels reaches 0.86 with the starter."""

MAX_COMPARED = 200
"""Maximum number of pairs whose pixels are compared, most similar first."""

SHOWN_PAIRS = 8
"""Maximum number of near-duplicate pairs of different classes to list, most similar first."""

_BLOCK = 1024
"""Block size of pictures and of examples compared with all examples: all pairs of 40,000 would take 6 GB."""

SHOWN_NEIGHBORS = 3
"""Number of nearest examples of a prediction."""

NONE_OF_THESE = "none of these"
"""Name of unknown pictures in tables."""


@dataclass(frozen=True)
class NearestExample:
    """An example and its cosine to a picture."""

    file: Path
    label: str
    similarity: float


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image.

    Attributes:
        label: the most probable class, even if ``unknown``.
        confidence: its probability (0 to 1), calibrated if the classifier is.
        unknown: whether the image may belong to none of the classes.
        possible: classes that cannot be ruled out; empty with too few examples to tell.
    """

    file: Path
    label: str
    confidence: float
    runner_up: str
    unknown: bool
    possible: tuple[str, ...]
    nearest: tuple[NearestExample, ...]

    @property
    def doubt_key(self) -> tuple[bool, float]:
        """Sort key: most doubtful first."""
        return not self.unknown, self.confidence


@dataclass(frozen=True)
class Classification:
    """Predictions for files, and warnings about them."""

    class_names: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    warnings: tuple[str, ...] = ()


def example_warnings(classifier: Classifier) -> list[str]:
    """Return problems with the examples: unreadable files, copies, too few, the same picture in two classes."""
    warnings = list(classifier.notes)
    support, names = classifier.support, classifier.classes
    known: dict[str, str] = {}
    warnings += [
        f"{other} and {name} are separate classes. If they are the same, use one name and teach again."
        for name in names
        if (other := known.setdefault(normalized_name(name), name)) != name
    ]
    if not len(support):
        return [*warnings, "only class names, no examples: confidence is not calibrated, no picture is marked unknown"]
    counts = np.bincount(support.labels, minlength=len(names))
    if without := classifier.without_examples:
        warnings.append(
            f"no examples of {', '.join(without)}: until every class has examples, only names are used and no "
            "picture is marked unknown"
        )
    if not classifier.enough_examples:
        warnings.append(f"{TOO_FEW_EXAMPLES} its accuracy or which classes are possible: {MIN_EXAMPLES} are needed")
    few = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if 0 < count < FEW_EXAMPLES]
    if few:
        warnings.append(f"fewer than {FEW_EXAMPLES} examples, so results depend on their choice: {', '.join(few)}")
    copies = _copies(support)
    if own := [pair for pair in copies if support.labels[pair[0]] == support.labels[pair[1]]]:
        one, other = (support.files[row] for row in own[0][:2])
        warnings.append(
            f"held-out accuracy is too high: {counted(len(own), 'pair')} of examples of a class show the same picture, "
            f"such as {one} and {other}. Keep one of each."
        )
    across = {pair[:2]: pair for pair in (*copies, *_near_duplicates(support)) if pair not in own}
    pairs = sorted(across.values(), key=lambda pair: -pair[2])
    for first, second, similarity in pairs[:SHOWN_PAIRS]:
        identical = support.digests[first] == support.digests[second]
        kind = "the same picture" if identical else f"nearly the same picture ({similarity:.3f})"
        warnings.append(
            f"{kind} in two classes, {names[support.labels[first]]} and {names[support.labels[second]]}: "
            f"{support.files[first]} and {support.files[second]}"
        )
    if len(pairs) > SHOWN_PAIRS:
        warnings.append(f"{len(pairs) - SHOWN_PAIRS:,} further pairs of nearly the same picture in two classes")
    return warnings


def _near_duplicates(support: Support) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of examples of different classes that are nearly the same picture, with their cosine."""
    for start in range(0, len(support), _BLOCK):
        similarity = support.features[start : start + _BLOCK] @ support.features.T
        near = np.triu(similarity >= NEAR_DUPLICATE, start + 1)
        near &= support.labels[start : start + _BLOCK, None] != support.labels
        for row, second in np.argwhere(near).tolist():
            yield start + row, second, float(similarity[row, second])


def _copies(support: Support) -> list[tuple[int, int, float]]:
    """Return pairs of examples whose files are copies of one picture (`near_identical`), with their cosine, most
    similar first. Each example is compared with its nearest; examples without a readable file are skipped."""
    nearest: dict[tuple[int, int], float] = {}
    for start in range(0, len(support), _BLOCK):
        similarity = support.features[start : start + _BLOCK] @ support.features.T
        rows = np.arange(len(similarity))
        similarity[rows, start + rows] = -1.0
        for row, second in enumerate(similarity.argmax(axis=1).tolist(), start):
            nearest[min(row, second), max(row, second)] = float(similarity[row - start, second])
    likely = sorted((-cosine, pair) for pair, cosine in nearest.items() if cosine >= COPY_CANDIDATE)[:MAX_COMPARED]

    @lru_cache(64)  # a prepared picture takes up to 4 MB
    def prepared(row: int) -> PreparedPicture | None:
        try:
            return PreparedPicture(decode(Path(support.files[row]), support.files[row], needed=1024))
        except BrokenImageError:  # in memory, moved or deleted
            return None

    found = []
    for negative, (first, second) in likely:
        one, other = prepared(first), prepared(second)
        if one is not None and other is not None and near_identical(one, other):
            found.append((first, second, -negative))
    return found


def classify(
    classifier: Classifier,
    encoder: Encoder,
    images: Sequence[Path],
    *,
    alpha: float = 0.1,
) -> Classification:
    """Classify every readable image.

    Args:
        alpha: error rate of the sets of possible classes.

    Raises:
        UserError: a different model, or no readable image.
    """
    classifier.check_model(encoder)
    queries = embed_files(encoder, images, "images")
    predictions: list[Prediction] = []
    for start in range(0, len(queries.files), _BLOCK):
        block = slice(start, start + _BLOCK)
        predictions += _predictions(classifier, queries.files[block], queries.features[block], alpha)
    warnings = example_warnings(classifier) + [f"not classified: {message}" for message in queries.broken]
    if count := sum(each.unknown for each in predictions):
        errors = classifier.unknown_trust
        warnings.append(f"{count} of {len(predictions)} images may belong to none of the classes ({errors})")
    return Classification(classifier.classes, tuple(predictions), tuple(warnings))


def _predictions(
    classifier: Classifier, files: Sequence[Path], features: np.ndarray, alpha: float
) -> Iterator[Prediction]:
    probabilities = classifier.predict_proba(features)
    unknown = classifier.is_unknown(features)
    enough = classifier.enough_examples
    possible = classifier.predict_set(features, alpha) if enough else np.zeros(probabilities.shape, dtype=bool)
    similarity = classifier.similarity(features)
    names, support = classifier.classes, classifier.support
    for row, file in enumerate(files):
        best, second = best_first(probabilities[row])[:2]
        near = best_first(similarity[row])[:SHOWN_NEIGHBORS]
        yield Prediction(
            file,
            names[best],
            float(probabilities[row, best]),
            names[second],
            bool(unknown[row]),
            tuple(names[c] for c in np.flatnonzero(possible[row])),
            tuple(
                NearestExample(Path(support.files[i]), names[support.labels[i]], float(similarity[row, i]))
                for i in near
            ),
        )
