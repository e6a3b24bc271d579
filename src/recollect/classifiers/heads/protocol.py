"""The few-shot protocol: methods, shots, draws of the support, and the embeddings of one task.

Draws are nested: for one seed, K shots are the first K of each class in one random order. So whatever a method computes
from similarities to 2K shots (class sums, cache sums, nearest examples) extends what it computed from K shots.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier, unit_rows
from recollect.classifiers.heads.holdout import SupportSimilarity
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PAPER_METHODS
from recollect.core.types import TEXT_SCALE, Metric
from recollect.core.validation import check_choice, refuse

ShortClasses = Literal["refuse", "all"]

NO_ROW = -1
"""Marks in a draw that the class has no further example."""


@dataclass(frozen=True)
class Protocol:
    """What to evaluate.

    Attributes:
        shots: examples per class, ascending.
        metric: accuracy, or its mean over classes (the convention of some data sets).
        short_classes: refuse classes with fewer examples than shots, or use all their examples.
        memory: bytes for a block of queries; does not change the result.
    """

    methods: Sequence[str] = ("zero-shot", *PAPER_METHODS)
    shots: Sequence[int] = (1, 2, 4, 8, 16, 32)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    metric: Metric = "top-1"
    memory: int = 32 * 2**20
    short_classes: ShortClasses = "refuse"

    def __post_init__(self) -> None:
        for name in self.methods:
            check_choice(name, FEW_SHOT_METHODS, "--methods: method")
        ascending = list(self.shots) == sorted(set(self.shots)) and min(self.shots, default=0) >= 1
        refuse(
            (not ascending, f"--shots: must be ascending and at least 1, got {list(self.shots)}"),
            (not self.seeds, "no seeds: name at least one"),
        )

    def settings(self) -> dict[str, Any]:
        """The settings that determine the figures."""
        settings = {key: value for key, value in asdict(self).items() if key != "memory"}
        if self.short_classes == "refuse":  # keeps the identity of results from before this setting existed
            del settings["short_classes"]
        return settings

    def block(self, task: "FewShotTask") -> int:
        """Queries in one block, which holds about five numbers for each pair of query and example."""
        widest = len(task.support) + 4 * self.shots[-1] * task.classes
        return max(1, self.memory // (4 * widest))


@dataclass(frozen=True)
class FewShotTask:
    """Embeddings of one task; labels are 0…C - 1 and index the rows of ``texts``.

    Attributes:
        support: unit-norm pool that examples are drawn from (pool, width).
        support_labels: (pool,).
        queries: unit-norm (queries, width).
        query_labels: (queries,).
        texts: unit-norm class texts (classes, width); None uses the class means of the shots.
        scale: the model's inverse temperature, for probabilities of text scores.
        prompts: unit-norm prompts (classes, prompts, width), for methods that read them instead of ``texts``.
    """

    support: np.ndarray
    support_labels: np.ndarray
    queries: np.ndarray
    query_labels: np.ndarray
    texts: np.ndarray | None
    scale: float = TEXT_SCALE
    prompts: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"scale must be positive and finite, got {self.scale}")
        what, width = (
            ("class texts", self.texts.shape[1]) if self.texts is not None else ("support", self.support.shape[1])
        )
        for name in ("support", "queries", "texts"):
            matrix = getattr(self, name)
            if matrix is None:
                continue
            if not np.isfinite(matrix).all():
                raise ValueError(f"{name}: embeddings hold NaN or infinity")
            if matrix.shape[1] != width:
                raise ValueError(f"{name} are {matrix.shape[1]} wide, the {what} {width}")
            object.__setattr__(self, name, unit_rows(matrix, name).astype(np.float32, copy=False))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.support_labels.max()) + 1 if self.texts is None else len(self.texts)

    def fitted(
        self, name: str, order: np.ndarray, shots: int, similarity: SupportSimilarity | None = None
    ) -> EmbeddingClassifier:
        """A method of `FEW_SHOT_METHODS`, fitted to the first ``shots`` shots of a draw.

        Args:
            similarity: between these examples, if it is known.
        """
        rows, labels = support_of(order, shots)
        return self._unfitted(name).fit_checked(self.support[rows], labels, similarity)

    def _unfitted(self, name: str) -> EmbeddingClassifier:
        made = FEW_SHOT_METHODS[name](self.texts, self.scale)
        return made if self.prompts is None or not made.reads_prompts else made.set_params(text_features=self.prompts)


def draw(labels: np.ndarray, classes: int, protocol: Protocol) -> dict[int, np.ndarray]:
    """The `nested_supports` of each seed."""
    most = protocol.shots[-1]
    return {seed: nested_supports(labels, classes, most, seed, protocol.short_classes) for seed in protocol.seeds}


def nested_supports(
    labels: np.ndarray, classes: int, shots: int, seed: int, short_classes: ShortClasses = "refuse"
) -> np.ndarray:
    """Rows of the pool in the order in which they are drawn: (shots, classes), column c from class c.

    Args:
        short_classes: ``all`` pads classes that have fewer examples with `NO_ROW`.

    Raises:
        ValueError: a class has fewer than ``shots`` examples, or none.
    """
    counts = np.bincount(labels, minlength=classes)
    if counts.min() < (shots if short_classes == "refuse" else 1):
        raise ValueError(f"class {int(counts.argmin())} has {counts.min()} examples, fewer than {shots} shots")
    generator = np.random.default_rng([seed, 0x5EED])
    drawn = np.full((shots, classes), NO_ROW)
    for label in range(classes):
        mine = generator.permutation(np.flatnonzero(labels == label))[:shots]
        drawn[: len(mine), label] = mine
    return drawn


def support_of(order: np.ndarray, shots: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of the first ``shots`` shots of a draw, shot by shot."""
    rows = order[:shots].ravel()
    labels = np.tile(np.arange(order.shape[1]), len(order[:shots]))
    return rows[rows != NO_ROW], labels[rows != NO_ROW]
