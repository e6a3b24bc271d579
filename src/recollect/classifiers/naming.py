"""Pictures named from a list of words: one call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from recollect.classifiers.classifier import Classifier
from recollect.models import DualEncoder, load_model


@dataclass(frozen=True)
class Naming:
    """What pictures are, of some names.

    Attributes:
        names: sorted.
        probabilities: of each name for each picture, at the model's own temperature; not calibrated.
    """

    names: tuple[str, ...]
    probabilities: Float[np.ndarray, "pictures names"]

    @property
    def labels(self) -> list[str]:
        """The likeliest name of each picture."""
        return [self.names[place] for place in self.probabilities.argmax(axis=1).tolist()]

    def __repr__(self) -> str:
        said = zip(self.labels, self.probabilities.max(axis=1).tolist(), strict=True)
        first = ", ".join(f"{name} {p:.2f}" for name, p in list(said)[:5])
        return f"Naming({len(self.probabilities)} pictures: {first}{', ...' if len(self.probabilities) > 5 else ''})"


def name_pictures(
    model: DualEncoder | str | Path, images: Any, names: Mapping[str, Sequence[str] | str] | Sequence[str]
) -> Naming:
    """Name pictures by words alone (CLIP's zero-shot classification, in its 80 templates).

    >>> name_pictures(model, "photos/", ["cat", "dog", "polar bear"]).labels                      # doctest: +SKIP

    Args:
        model: opened, or a folder or hub id.
        images: whatever `DualEncoder.embed_images` takes: a file, a folder, PIL pictures, arrays; one or many.
        names: two or more; a mapping gives names texts of their own.

    Raises:
        UserError: fewer than two names, or a picture that cannot be read.
    """
    encoder = model if isinstance(model, DualEncoder) else load_model(str(model))
    classifier = Classifier.teach(encoder, names=names)
    return Naming(classifier.classes, classifier.predict_proba(encoder.embed_images(images)))
