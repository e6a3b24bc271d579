"""What the few-shot protocol evaluates: the methods, shots and draws, and the embeddings of one task."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from recollect.classifiers.heads.base import EmbeddingClassifier, unit_rows
from recollect.classifiers.heads.draws import ShortClasses, nested_supports, support_of
from recollect.classifiers.heads.holdout import SupportSimilarity
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PAPER_METHODS, PROMPT_METHODS
from recollect.classifiers.heads.together import TrainedHead, fit_together
from recollect.core.types import TEXT_SCALE, Metric


@dataclass(frozen=True)
class Protocol:
    """What to evaluate.

    Attributes:
        methods: names in `FEW_SHOT_METHODS`.
        shots: examples of each class, ascending.
        seeds: draws of the support.
        metric: share of right predictions, or its mean over classes (the convention of some sets).
        short_classes: what to do where a class has fewer examples than shots: refuse, or take all that it has.
        memory: bytes that a block of queries may take; decides the block's size, not the result.
    """

    methods: Sequence[str] = ("zero-shot", *PAPER_METHODS)
    shots: Sequence[int] = (1, 2, 4, 8, 16, 32)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    metric: Metric = "top-1"
    memory: int = 32 * 2**20
    short_classes: ShortClasses = "refuse"

    def __post_init__(self) -> None:
        if unknown := [name for name in self.methods if name not in FEW_SHOT_METHODS]:
            raise ValueError(f"unknown method {unknown[0]!r}; choose from {', '.join(FEW_SHOT_METHODS)}")
        if not self.shots or list(self.shots) != sorted(set(self.shots)) or self.shots[0] < 1:
            raise ValueError(f"shots must be ascending and at least 1, got {list(self.shots)}")
        if not self.seeds:
            raise ValueError("no seeds, so no draw of the support: name at least one")

    def settings(self) -> dict[str, Any]:
        """What decides the figures."""
        told = {key: value for key, value in asdict(self).items() if key != "memory"}
        if self.short_classes == "refuse":  # results from before there was a choice keep their names
            del told["short_classes"]
        return told

    def block(self, task: "FewShotTask") -> int:
        """Queries at a time: a block holds about five numbers for each query and each of the most examples in use."""
        widest = len(task.support) + 4 * self.shots[-1] * task.classes
        return max(1, self.memory // (4 * widest))


@dataclass(frozen=True)
class FewShotTask:
    """Embeddings of one task; labels are 0…C - 1 and index the rows of ``texts``.

    Attributes:
        support: unit-norm pool to draw examples from (pool, width).
        support_labels: (pool,).
        queries: unit-norm (queries, width).
        query_labels: (queries,).
        texts: unit-norm class texts (classes, width); None where there are none: class means of the shots stand in.
        scale: inverse temperature that the model learned; methods that turn text scores into probabilities need it.
        prompts: unit-norm prompts that the class texts are means of (classes, prompts, width), for `PROMPT_METHODS`;
            None gives them the means.
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
            raise ValueError(f"scale {self.scale}: an inverse temperature is positive and finite")
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
        """How many."""
        return int(self.support_labels.max()) + 1 if self.texts is None else len(self.texts)

    def fitted(
        self, name: str, order: np.ndarray, shots: int, similarity: SupportSimilarity | None = None
    ) -> EmbeddingClassifier:
        """A method of `FEW_SHOT_METHODS`, fitted to the first so many shots of a draw.

        Args:
            order: as `nested_supports` gives it.
            similarity: of these examples among themselves, where it is known.
        """
        rows, labels = support_of(order, shots)
        return self._unfitted(name).fit_checked(self.support[rows], labels, similarity)

    def fitted_together(self, name: str, orders: Sequence[np.ndarray], shots: int) -> Iterator[EmbeddingClassifier]:
        """As `fitted`, for each draw; what is trained by gradient is trained for all of them at once."""
        first = self._unfitted(name)
        if not isinstance(first, TrainedHead):
            yield from (self.fitted(name, order, shots) for order in orders)
            return
        drawn = [support_of(order, shots) for order in orders]
        models = [clone(first) for _ in orders]
        fit_together(models, [self.support[rows] for rows, _ in drawn], [labels for _, labels in drawn])
        yield from models

    def _unfitted(self, name: str) -> EmbeddingClassifier:
        texts = self.prompts if name in PROMPT_METHODS and self.prompts is not None else self.texts
        return FEW_SHOT_METHODS[name](texts, self.scale)


def draw(labels: np.ndarray, classes: int, protocol: Protocol) -> dict[int, np.ndarray]:
    """For each seed of the protocol its `nested_supports`."""
    most = protocol.shots[-1]
    return {seed: nested_supports(labels, classes, most, seed, protocol.short_classes) for seed in protocol.seeds}
