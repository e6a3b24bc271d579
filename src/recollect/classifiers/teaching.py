"""What a classifier is taught: the texts of its classes and examples of them, embedded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from recollect.classifiers.pictures import Example, Examples, InMemory, embed_files, example_pairs, named_classes
from recollect.classifiers.texts import prompt_ensemble, prompts_and_ensemble
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind, caption_prefix
from recollect.core.words import counted
from recollect.data.prompts import GENERAL_TEMPLATES, fill, readable


@dataclass(frozen=True)
class ClassifierModel:
    """Which model embeds for a classifier.

    Attributes:
        name: what to open it by.
        fingerprint: of its weights and transforms; another model is refused.
        scale: inverse temperature that it was trained with.
        prefix: how class texts are read, for a model that has prefix tokens.
    """

    name: str
    fingerprint: str
    scale: float
    prefix: Kind | None = None


SAME_PICTURE = 1 - 1e-5
"""Cosine from which an example is the same picture as one whose pixels are not known any more: one picture embedded in
two batches, or on two devices, comes to 1 − 1e-6."""

_NOT_OF_PIXELS = "?"


def not_of_pixels(digest: str) -> str:
    """A digest that tells nothing about pixels: of an earlier edition, or only a name."""
    return digest if digest.startswith(_NOT_OF_PIXELS) else f"{_NOT_OF_PIXELS}{digest}"


@dataclass(frozen=True)
class Support:
    """Embedded examples.

    Attributes:
        features: unit-norm (n, width).
        labels: indices of classes (n,).
        files: where each came from, for people to look at; nothing is read from there again.
        digests: of the pixels, or `not_of_pixels`.
    """

    features: Float[np.ndarray, "n width"]
    labels: Int[np.ndarray, " n"]
    files: tuple[str, ...]
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    def joined(self, other: "Support") -> "Support":
        """Both, without pictures that are there already under the same class.

        By their pixels; where those of an example are not known, by its embedding, and they are from then on.
        """
        digests = list(self.digests)
        known = set(zip(digests, self.labels.tolist(), strict=True))
        first: dict[tuple[str, int], int] = {}
        for place, pair in enumerate(zip(other.digests, other.labels.tolist(), strict=True)):
            first.setdefault(pair, place)
        new = []
        vague = np.array([digest.startswith(_NOT_OF_PIXELS) for digest in digests], dtype=bool)
        for (digest, label), place in first.items():
            if (digest, label) in known:
                continue
            alike = np.flatnonzero(vague & (self.labels == label))
            if len(alike) and (cosines := self.features[alike] @ other.features[place]).max() >= SAME_PICTURE:
                same = int(alike[cosines.argmax()])
                digests[same], vague[same] = digest, False
                continue
            new.append(place)
        return Support(
            np.concatenate([self.features, other.features[new]]),
            np.concatenate([self.labels, other.labels[new]]),
            self.files + tuple(other.files[i] for i in new),
            tuple(digests) + tuple(other.digests[i] for i in new),
        )


@dataclass(frozen=True)
class Lessons:
    """What a classifier knows before a method is chosen.

    Attributes:
        classes: names, sorted.
        class_texts: what describes each class, where its name in CLIP's templates does not.
        texts: unit-norm class texts (classes, width).
        support: the examples.
        notes: what was odd about those that were read last.
        prompts: unit-norm texts of each class (classes, prompts, width); None where they were not asked for.
    """

    classes: tuple[str, ...]
    class_texts: Mapping[str, tuple[str, ...]]
    texts: Float[np.ndarray, "classes width"]
    support: Support
    notes: tuple[str, ...] = ()
    prompts: Float[np.ndarray, "classes prompts width"] | None = None

    @classmethod
    def nothing(cls, width: int) -> "Lessons":
        """No class and no example yet."""
        empty = Support(np.empty((0, width), np.float32), np.empty(0, np.int64), (), ())
        return cls((), {}, np.empty((0, width), np.float32), empty)


def class_prefix(encoder: Encoder) -> Kind | None:
    """How a model reads class names: as captions if it has that prefix (as ``--prefix auto`` does)."""
    return caption_prefix(encoder)


def class_prompts_of(name: str, texts: Sequence[str]) -> list[str]:
    """What to embed for a class: its own texts, or its name in CLIP's templates."""
    return list(texts) or [fill(template, readable(name)) for template in GENERAL_TEMPLATES]


def prompts_of(
    encoder: Encoder, classes: Sequence[str], class_texts: Mapping[str, tuple[str, ...]], model: ClassifierModel
) -> np.ndarray:
    """Every text of every class by itself (classes, prompts, width)."""
    texts = [class_prompts_of(name, class_texts.get(name, ())) for name in classes]
    return prompts_and_ensemble(encoder, texts, model.prefix)[0]


def extended(
    known: Lessons,
    encoder: Encoder,
    model: ClassifierModel,
    examples: Examples,
    names: Mapping[str, Sequence[str] | str] | Sequence[str],
    with_prompts: bool = False,
) -> Lessons:
    """What is known with more examples or classes; only what is new is embedded.

    Args:
        with_prompts: embed every text of every class by itself too.

    Raises:
        UserError: fewer than two classes in all, or a class none of whose new examples can be read.
    """
    pairs = example_pairs(examples)
    given = named_classes(names)
    every = tuple(sorted({*known.classes, *given, *(name for _, name in pairs)}))
    described = {**known.class_texts, **{name: each for name, each in given.items() if each}}
    vectors = dict(zip(known.classes, known.texts, strict=True))
    if len(every) < 2:
        raise UserError(
            f"{counted(len(every), 'class')}; a classifier needs two or more: examples of each, or their names"
        )
    new = [name for name in every if name not in vectors or given.get(name)]
    if new:
        prompts = [class_prompts_of(name, described.get(name, ())) for name in new]
        vectors |= zip(new, prompt_ensemble(encoder, prompts, model.prefix), strict=True)
    moved = np.array([every.index(name) for name in known.classes], dtype=np.int64)
    support = known.support
    support = replace(support, labels=moved[support.labels] if len(support) else support.labels)
    notes: list[str] = []
    if pairs:
        found, broken = _embedded(encoder, pairs, every)
        joined = support.joined(found)
        notes = [f"left out: {message}" for message in broken]
        if copies := len(support) + len(found) - len(joined):
            notes.append(f"{copies} examples are exact copies of another of their class and add nothing")
        support = joined
    means = np.stack([vectors[name] for name in every])
    each = prompts_of(encoder, every, described, model) if with_prompts else None
    return Lessons(every, described, means, support, tuple(notes), each)


def _embedded(encoder: Encoder, pairs: Sequence[Example], classes: Sequence[str]) -> tuple[Support, tuple[str, ...]]:
    """Readable examples, and what is wrong with the others."""
    named: dict[Path | InMemory, list[str]] = {}
    for file, name in pairs:
        if name not in named.setdefault(file, []):
            named[file].append(name)
    found = embed_files(encoder, list(named), "examples")
    rows = [(row, name) for row, file in enumerate(found.files) for name in named[file]]
    if lost := sorted({name for _, name in pairs} - {name for _, name in rows}):
        raise UserError(f"no example of {', '.join(lost)} can be read. Replace the damaged files.")
    places = [row for row, _ in rows]
    support = Support(
        found.features[places],
        np.array([classes.index(name) for _, name in rows], dtype=np.int64),
        tuple(str(found.files[row]) for row in places),
        tuple(found.digests[row] for row in places),
    )
    return support, found.broken
