"""Few-shot protocol for methods that tune the model, with the same draws and tested pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.tuning import TUNING_METHODS, LabeledPictures, MakeTuning, TunedClassifier
from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder, ImageLike, Source
from recollect.core.validation import check_choice, check_number
from recollect.data.sources.subset import Subset
from recollect.evaluation.few_shot_protocol import Answers, Protocol, answers, support_of
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.models.dual import DualEncoder

_BLOCK = 256


@dataclass(frozen=True)
class TuningRequest:
    """Methods that tune the model, and their settings.

    Attributes:
        effort: share of the published steps, above 0.
        held_out: tune again on folds of the shots, to measure calibration and held-out accuracy.
    """

    methods: Sequence[str] = ()
    effort: float = 1.0
    flip: bool = True
    held_out: bool = False
    known: Mapping[str, MakeTuning] = field(default_factory=lambda: TUNING_METHODS)

    def __post_init__(self) -> None:
        for name in self.methods:
            check_choice(name, self.known, "--methods: method")
        check_number("--effort", self.effort, above=0)

    def settings(self) -> dict[str, Any]:
        """Return the settings for a `Result`."""
        methods = {name: asdict(self.make(name, 0)) for name in self.methods}
        return {"tuning": methods} | ({"held_out": True} if self.held_out else {})

    def make(self, name: str, seed: int) -> Any:
        """Create a method with these settings."""
        return self.known[name](self.effort, self.flip, seed)


@dataclass(frozen=True)
class _Pictures(Sequence[ImageLike]):
    """The pictures of a source, read on access."""

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Any:
        return self.source[index].image


def tuned_rows(
    encoder: Encoder,
    task: ClassificationTask,
    protocol: Protocol,
    request: TuningRequest,
    orders: Mapping[int, np.ndarray],
    readable: np.ndarray,
) -> list[dict[str, Any]]:
    """Return rows of the few-shot protocol for each method, number of shots and draw.

    Raises:
        UserError: a model that cannot be tuned, or vectors instead of pictures.
    """
    if not isinstance(encoder, DualEncoder):
        raise UserError("methods that tune the model need a plain model, not one that reads an index")
    labels, rows = task.query.labels[readable], []
    for name in request.methods:
        for shots in protocol.shots:
            for seed, order in orders.items():
                drawn, _ = support_of(order, shots)
                examples = _support(task, drawn)
                method = request.make(name, seed)
                scores = _scores(method.fit(encoder, examples), task.query, readable)
                held = _held_out(method, encoder, task, drawn, examples) if request.held_out else None
                figures = tuned_answers(scores, labels, held).figures(labels, protocol.metric)
                rows.append({"method": name, "shots": shots, "seed": seed, **figures})
    return rows


def _held_out(
    method: Any, encoder: DualEncoder, task: ClassificationTask, rows: np.ndarray, examples: LabeledPictures
) -> tuple[np.ndarray, np.ndarray]:
    """Score held-out shots (held, classes) with models tuned without them; also return their labels (held,).

    The unlabeled pictures exclude held-out shots too.
    """
    plan = HoldOut.of(examples.labels)

    def score(learn: np.ndarray, choose: np.ndarray) -> np.ndarray:
        learned, held = ([examples.pictures[row] for row in part.tolist()] for part in (learn, choose))
        others = np.setdiff1d(np.arange(len(task.support)), np.delete(rows, learn))
        unlabeled = _Pictures(Subset(task.support, others))
        shots = LabeledPictures(learned, examples.labels[learn], examples.names, unlabeled)
        return method.fit(encoder, shots).scores(held)

    return plan.scored(score, (len(examples.names),), np.float64), plan.held_labels


class _GivenScores(EmbeddingClassifier):
    """Classifier whose queries are scores (n, classes), to calibrate and measure them."""

    temperature_ = 1.0

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return queries


def tuned_answers(scores: np.ndarray, labels: np.ndarray, held: tuple[np.ndarray, np.ndarray] | None) -> Answers:
    """Return answers from scores of the tested pictures (n, classes), calibrated on held-out scores and labels, if any.

    Without held-out examples the calibration error is that of the trained temperature.
    """
    estimator = _GivenScores()
    estimator.classes_ = np.arange(scores.shape[1])
    estimator._calibrate(*(held or (scores[:0], labels[:0])))
    return answers(estimator, scores, labels)


def _support(task: ClassificationTask, rows: np.ndarray) -> LabeledPictures:
    pictures = [sample.image for sample in task.support.read_block(rows)]
    return LabeledPictures(pictures, task.support.labels[rows], task.class_names, _Pictures(task.support))


def _scores(tuned: TunedClassifier, source: Source, rows: np.ndarray) -> np.ndarray:
    found = []
    with progress(f"classify {source.name}", len(rows), "images") as counter:
        for start in range(0, len(rows), _BLOCK):
            block = source.read_block(rows[start : start + _BLOCK])
            found.append(tuned.scores([sample.image for sample in block]))
            counter.advance(len(block))
    return np.concatenate(found)
