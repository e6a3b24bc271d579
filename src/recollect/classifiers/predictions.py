"""What a classifier says of files, with what a person should know about its examples."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.heads.trust import ENOUGH_EXAMPLES, TOO_FEW
from recollect.classifiers.pictures import embed_files
from recollect.classifiers.teaching import Support
from recollect.core.ordering import best_first
from recollect.core.types import Encoder

FEW_EXAMPLES = 4
"""Below this many examples of a class, its accuracy swings by many points with the choice of examples."""

NEAR_DUPLICATE = 0.995
"""Cosine from which two examples are taken for the same picture."""

SHOWN_PAIRS = 8
"""Such pairs of two classes that are named, the most alike first; of the others only their number is said."""

EXAMPLES_AT_ONCE = 1024
"""Examples whose similarities to all others are in memory at a time: all pairs of 40,000 would take 6 GB."""

NONE_OF_THESE = "none of these"
"""What an unknown picture is called in tables."""


@dataclass(frozen=True)
class NearestExample:
    """An example and its cosine to a picture."""

    file: Path
    label: str
    similarity: float


@dataclass(frozen=True)
class Prediction:
    """What the classifier says of one image.

    Attributes:
        label: the most probable class, also where ``unknown``.
        confidence: its probability (0 to 1), calibrated if the classifier is.
        runner_up: the second most probable class.
        unknown: no example is near; the image may belong to none of the classes.
        possible: the classes that cannot be ruled out at the level asked; empty where there are too few examples
            to tell.
        nearest: the examples nearest to it, nearest first.
    """

    file: Path
    label: str
    confidence: float
    runner_up: str
    unknown: bool
    possible: tuple[str, ...]
    nearest: tuple[NearestExample, ...]

    @property
    def doubt(self) -> tuple[bool, float]:
        """Sorts the most doubtful first."""
        return not self.unknown, self.confidence


@dataclass(frozen=True)
class Classification:
    """Predictions for files and what the user should know about them."""

    class_names: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    warnings: tuple[str, ...] = field(default_factory=tuple)


def looks_of(name: str) -> str:
    """The same for names that people take for one: they differ in capitals, or in how a letter with a sign is kept."""
    return unicodedata.normalize("NFKC", " ".join(name.split()).casefold())


def example_warnings(classifier: Classifier) -> list[str]:
    """What is doubtful about the examples: unreadable files, copies, too few, the same picture in two classes."""
    warnings = list(classifier.notes)
    support, names = classifier.support, classifier.classes
    known: dict[str, str] = {}
    warnings += [
        f"{other} and {name} are two classes: if they are one, give them one name and teach anew"
        for name in names
        if (other := known.setdefault(looks_of(name), name)) != name
    ]
    if not len(support):
        return [*warnings, "names alone, no examples: confidence is the model's own, and nothing is called unknown"]
    counts = np.bincount(support.labels, minlength=len(names))
    if without := classifier.without_examples:
        told = "all is told by names alone until each class has one, and nothing is called unknown"
        warnings.append(f"no example yet of {', '.join(without)}: {told}")
    if not classifier.enough_examples:
        told = f"{TOO_FEW} how often it is right, or which classes are possible"
        warnings.append(f"{told}: {ENOUGH_EXAMPLES} or more, of which two are of one class")
    few = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if 0 < count < FEW_EXAMPLES]
    if few:
        warnings.append(f"fewer than {FEW_EXAMPLES} examples, so expect the choice to matter: {', '.join(few)}")
    pairs = sorted(_alike(support), key=lambda pair: -pair[2])
    for first, second, similarity in pairs[:SHOWN_PAIRS]:
        identical = support.digests[first] == support.digests[second]
        kind = "the same picture" if identical else f"nearly the same picture ({similarity:.3f})"
        warnings.append(
            f"{kind} in two classes, {names[support.labels[first]]} and {names[support.labels[second]]}: "
            f"{support.files[first]} and {support.files[second]}"
        )
    if len(pairs) > SHOWN_PAIRS:
        warnings.append(f"{len(pairs) - SHOWN_PAIRS:,} further pairs of examples of two classes are as alike")
    return warnings


def _alike(support: Support) -> Iterator[tuple[int, int, float]]:
    """Pairs of examples of two classes that are nearly one picture, and their cosine."""
    for start in range(0, len(support), EXAMPLES_AT_ONCE):
        similarity = support.features[start : start + EXAMPLES_AT_ONCE] @ support.features.T
        near = np.triu(similarity >= NEAR_DUPLICATE, start + 1)
        near &= support.labels[start : start + EXAMPLES_AT_ONCE, None] != support.labels
        for row, second in np.argwhere(near).tolist():
            yield start + row, second, float(similarity[row, second])


def unknown_text(classifier: Classifier) -> str:
    """How often "none of these" is wrong, both ways, as measured on the examples."""
    rule = classifier.unknown_rule
    if rule.rejected is None:
        return TOO_FEW
    accepted = TOO_FEW if rule.accepted is None else f"about {100 * rule.accepted:.0f} %"
    return (
        f"by mistake {100 * rule.rejected:.0f} % of pictures of the classes; pictures of other classes taken for one "
        f"of these: {accepted}"
    )


def classify(
    classifier: Classifier,
    encoder: Encoder,
    images: Sequence[Path],
    *,
    neighbours: int = 3,
    alpha: float = 0.1,
) -> Classification:
    """Predict every readable image.

    Args:
        neighbours: examples to show beside each prediction.
        alpha: level of the sets of possible classes.

    Raises:
        UserError: the model is another, or no image can be read.
    """
    classifier.check_model(encoder)
    queries = embed_files(encoder, images, "images")
    chances = classifier.predict_proba(queries.features)
    unknown = classifier.is_unknown(queries.features)
    possible = classifier.predict_set(queries.features, alpha) if classifier.enough_examples else None
    similarity = classifier.similarity(queries.features)
    names, support = classifier.classes, classifier.support
    predictions = []
    for row, file in enumerate(queries.files):
        best, second = best_first(chances[row])[:2]
        near = best_first(similarity[row])[:neighbours]
        predictions.append(
            Prediction(
                file,
                names[best],
                float(chances[row, best]),
                names[second],
                bool(unknown[row]),
                ()
                if possible is None
                else tuple(name for name, kept in zip(names, possible[row], strict=True) if kept),
                tuple(
                    NearestExample(Path(support.files[i]), names[support.labels[i]], float(similarity[row, i]))
                    for i in near
                ),
            )
        )
    warnings = example_warnings(classifier) + [f"not classified: {message}" for message in queries.broken]
    if count := int(unknown.sum()):
        told = unknown_text(classifier)
        warnings.append(f"{count} of {len(predictions)} images may belong to none of the classes ({told})")
    return Classification(names, tuple(predictions), tuple(warnings))
