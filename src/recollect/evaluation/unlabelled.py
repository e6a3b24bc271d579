"""What a zero-shot method may read besides one picture and the class texts, and the table of such methods."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from recollect.core.plugins import Table
from recollect.core.types import Encoder, Source


@dataclass(frozen=True)
class NamedPictures:
    """Inputs of a method, without labels.

    Attributes:
        source, rows: the pictures, and indices of the readable ones.
        images: their unit embeddings (n, width).
        texts: unit class texts (classes, width).
        seed: of the stream's order and of the views.
    """

    encoder: Encoder
    source: Source
    rows: np.ndarray
    images: np.ndarray
    texts: np.ndarray
    scale: float
    seed: int = 0


Reads = Literal["folder", "stream", "views"]


@dataclass(frozen=True)
class Named:
    """Predictions of a method.

    Attributes:
        confidence: its probability, or its share of votes (n,).
    """

    labels: np.ndarray
    confidence: np.ndarray


@dataclass(frozen=True)
class UnlabelledMethod:
    """A method, and what it reads in addition to one picture and the texts."""

    reads: Reads
    predict: Callable[[NamedPictures], Named]


UNLABELLED_METHODS: Table[UnlabelledMethod] = Table("unlabelled_methods")
"""Packages add theirs (`recollect.core.plugins`); recollect-papers has TransCLIP, StatA, ADAPT, TDA and ZERO."""
