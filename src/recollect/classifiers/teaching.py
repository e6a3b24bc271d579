"""Training data of a classifier: embedded class texts and examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.classifiers.pictures import Example, Examples, InMemory, embed_files, example_pairs, named_classes
from recollect.classifiers.texts import prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.core.words import counted
from recollect.data.prompts import GENERAL_TEMPLATES, fill, readable


@dataclass(frozen=True)
class ClassifierModel:
    """Model whose embeddings a classifier uses.

    Attributes:
        name: path or hub id.
        scale: inverse temperature of the model.
        prefix: prefix token of class texts, for models with prefixes.
    """

    name: str
    fingerprint: str
    scale: float
    prefix: Kind | None = None


SAME_PICTURE = 1 - 1e-5
"""Minimum cosine to an example without a pixel digest to count as the same picture. Embeddings of one picture in two
batches or on two devices reach 1 − 1e-6."""

_NON_PIXEL = "?"


def non_pixel_digest(digest: str) -> str:
    """Mark a digest that does not depend on pixels, such as a name."""
    return digest if digest.startswith(_NON_PIXEL) else f"{_NON_PIXEL}{digest}"


@dataclass(frozen=True)
class Support:
    """Embedded examples.

    Attributes:
        features: unit-norm (n, width).
        labels: indices of classes (n,).
        files: origin of each example, for display only.
        digests: pixel digest of each example, or another one marked by `non_pixel_digest`.
    """

    features: Float[np.ndarray, "n width"]
    labels: Int[np.ndarray, " n"]
    files: tuple[str, ...]
    digests: tuple[str, ...]

    @classmethod
    def empty(cls, width: int) -> "Support":
        """Return a support set without examples."""
        return cls(np.empty((0, width), np.float32), np.empty(0, np.int64), (), ())

    def __len__(self) -> int:
        return len(self.files)

    def joined(self, other: "Support") -> "Support":
        """Return both, without pictures that already are examples of the same class.

        Pictures are compared by pixel digest, or by embedding if an existing example has none; it then gets one.
        """
        digests = list(self.digests)
        known = set(zip(digests, self.labels.tolist(), strict=True))
        first: dict[tuple[str, int], int] = {}
        for row, pair in enumerate(zip(other.digests, other.labels.tolist(), strict=True)):
            first.setdefault(pair, row)
        new = []
        undigested = np.array([digest.startswith(_NON_PIXEL) for digest in digests], dtype=bool)
        for (digest, label), row in first.items():
            if (digest, label) in known:
                continue
            alike = np.flatnonzero(undigested & (self.labels == label))
            if len(alike) and (cosines := self.features[alike] @ other.features[row]).max() >= SAME_PICTURE:
                same = int(alike[cosines.argmax()])
                digests[same], undigested[same] = digest, False
                continue
            new.append(row)
        return Support(
            np.concatenate([self.features, other.features[new]]),
            np.concatenate([self.labels, other.labels[new]]),
            self.files + tuple(other.files[i] for i in new),
            tuple(digests) + tuple(other.digests[i] for i in new),
        )


def class_prompts_of(name: str, texts: Sequence[str]) -> list[str]:
    """Return the prompts of a class: its own texts, or its name in CLIP's templates."""
    return list(texts) or [fill(template, readable(name)) for template in GENERAL_TEMPLATES]


def with_examples(
    known: Mapping[str, Any],
    encoder: Encoder,
    prefix: Kind | None,
    examples: Examples,
    names: Mapping[str, Sequence[str] | str] | Sequence[str],
) -> dict[str, Any]:
    """Add examples or classes to ``classes``, ``class_texts``, ``texts`` and ``support`` of a `Classifier`; only new
    ones are embedded.

    Returns:
        These four, and ``notes`` about the new examples.

    Raises:
        UserError: fewer than two classes in total, or no new example of a class can be read.
    """
    pairs, given = example_pairs(examples), named_classes(names)
    classes: tuple[str, ...] = known.get("classes", ())
    every = tuple(sorted({*classes, *given, *(name for _, name in pairs)}))
    if len(every) < 2:
        raise UserError(f"{counted(len(every), 'class')}; a classifier needs two or more. Add examples or names.")
    described = {**known.get("class_texts", {}), **{name: each for name, each in given.items() if each}}
    vectors = dict(zip(classes, known.get("texts", ()), strict=True))
    if new := [name for name in every if name not in vectors or given.get(name)]:
        prompts = [class_prompts_of(name, described.get(name, ())) for name in new]
        vectors |= zip(new, prompt_ensemble(encoder, prompts, prefix), strict=True)
    support: Support = known.get("support", Support.empty(encoder.width))
    moved = np.array([every.index(name) for name in classes], dtype=np.int64)
    support = replace(support, labels=moved[support.labels] if len(support) else support.labels)
    notes: list[str] = []
    if pairs:
        found, broken = _embedded(encoder, pairs, every)
        joined = support.joined(found)
        notes = [f"left out: {message}" for message in broken]
        if copies := len(support) + len(found) - len(joined):
            notes.append(f"{copies} exact copies of examples of the same class were ignored")
        support = joined
    texts = np.stack([vectors[name] for name in every])
    return {"classes": every, "class_texts": described, "texts": texts, "support": support, "notes": tuple(notes)}


def _embedded(encoder: Encoder, pairs: Sequence[Example], classes: Sequence[str]) -> tuple[Support, tuple[str, ...]]:
    """Return readable examples, and error messages for unreadable ones."""
    named: dict[Path | InMemory, list[str]] = {}
    for file, name in pairs:
        if name not in named.setdefault(file, []):
            named[file].append(name)
    found = embed_files(encoder, list(named), "examples")
    rows = [(row, name) for row, file in enumerate(found.files) for name in named[file]]
    if lost := sorted({name for _, name in pairs} - {name for _, name in rows}):
        files = [str(file) for file, name in pairs if name in lost]
        why = next((f" ({message})" for message in found.broken if any(map(message.startswith, files))), "")
        raise UserError(f"no example of {', '.join(lost)} can be read{why}. Replace its files.")
    positions = [row for row, _ in rows]
    support = Support(
        found.features[positions],
        np.array([classes.index(name) for _, name in rows], dtype=np.int64),
        tuple(str(found.files[row]) for row in positions),
        tuple(found.digests[row] for row in positions),
    )
    return support, found.broken
