"""Methods that tune the model itself, in the few-shot protocol: the same draws, the same tested pictures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recollect.classifiers.heads.base import softmax
from recollect.classifiers.heads.calibration import conformal_thresholds, expected_calibration_error, fit_temperature
from recollect.classifiers.heads.draws import support_of
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.heads.protocol import Protocol
from recollect.classifiers.heads.scoring import SET_ALPHA
from recollect.classifiers.heads.trust import conformal_groups, enough_to_tell
from recollect.classifiers.tuning.cascade import BoostingPrompts, CascadedPrompts
from recollect.classifiers.tuning.classifier import TunedClassifier
from recollect.classifiers.tuning.learners import PromptSRC
from recollect.classifiers.tuning.methods import CASCADE, TUNING_METHODS
from recollect.classifiers.tuning.shots import LabelledPictures
from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder, ImageLike, Source
from recollect.data.sources.derived import Subset
from recollect.evaluation.results import ResultRow
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.zero_shot import mean_per_class, top_1
from recollect.models.dual import DualEncoder

_BLOCK = 256


@dataclass(frozen=True)
class TuningRequest:
    """Which methods tune the model, and how much.

    Attributes:
        methods: names of `TUNING_METHODS`, or ``caspl``.
        effort: share of the published steps, above 0.
        flip: mirror half of the training crops.
        teacher: a larger model, for ``caspl``.
        held_out: tune again without parts of the shots, to say how far the result may be trusted.
    """

    methods: Sequence[str] = ()
    effort: float = 1.0
    flip: bool = True
    teacher: Encoder | None = None
    held_out: bool = False

    def __post_init__(self) -> None:
        if unknown := [name for name in self.methods if name not in (*TUNING_METHODS, CASCADE)]:
            raise ValueError(f"unknown method {unknown[0]!r}; choose from {', '.join(TUNING_METHODS)}, {CASCADE}")
        if self.methods and not self.effort > 0:
            raise ValueError(f"effort is a share of the published steps above 0, got {self.effort:g}")
        if CASCADE in self.methods and not isinstance(self.teacher, DualEncoder):
            raise ValueError("caspl learns from a larger model: name it as the teacher")

    def settings(self) -> dict[str, Any]:
        """What decides the figures, for a `Result`."""
        made = {name: self._make(name, 0) for name in self.methods}
        described = {name: asdict(method) for name, method in made.items()}
        asked = {"tuning": described, "teacher": self.teacher.fingerprint if self.teacher else None}
        return asked | ({"held_out": True} if self.held_out else {})

    def _make(self, name: str, seed: int) -> Any:
        if name != CASCADE:
            return TUNING_METHODS[name](self.effort, self.flip, seed)
        options: Mapping[str, Any] = {"effort": self.effort, "flip": self.flip, "seed": seed}
        return CascadedPrompts(BoostingPrompts(**options), PromptSRC(**options))

    def fit(
        self, name: str, seed: int, encoder: DualEncoder, shots: LabelledPictures, unlabelled: Sequence[ImageLike]
    ) -> TunedClassifier:
        """Tune by one method; ``unlabelled`` pictures are read by ``caspl`` alone."""
        method = self._make(name, seed)
        if isinstance(method, CascadedPrompts):
            assert isinstance(self.teacher, DualEncoder)
            return method.fit(encoder, shots, self.teacher, unlabelled)
        return method.fit(encoder, shots)


@dataclass(frozen=True)
class _Pictures(Sequence[ImageLike]):
    """The pictures of a source, read when they are asked for."""

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
) -> Iterator[ResultRow]:
    """Rows of the few-shot protocol, one for each method, number of shots and draw.

    Args:
        orders: the draws, as indices into the support.
        readable: places of the tested pictures that can be read.

    Raises:
        UserError: a model that cannot be tuned, or vectors in place of pictures.
    """
    if not isinstance(encoder, DualEncoder):
        raise UserError("methods that tune the model need the model itself, not one that reads a memory")
    labels, right = task.query.labels[readable], top_1 if protocol.metric == "top-1" else mean_per_class
    for name in request.methods:
        for seed, order in orders.items():
            for shots in protocol.shots:
                rows, _ = support_of(order, shots)
                examples = _support(task, rows)
                tuned = request.fit(name, seed, encoder, examples, _Pictures(task.support))
                scores = _scores(tuned, task.query, readable)
                held = _held_out(name, seed, encoder, task, request, rows, examples) if request.held_out else None
                yield {
                    "method": name, "shots": shots, "seed": seed, "metric": protocol.metric,
                    "value": right(scores.argmax(axis=1), labels), **_trust(scores, labels, held),
                }  # fmt: skip


def _held_out(
    name: str,
    seed: int,
    encoder: DualEncoder,
    task: ClassificationTask,
    request: TuningRequest,
    rows: np.ndarray,
    examples: LabelledPictures,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of shots (held, classes) by models that were tuned without them, and their labels (held,).

    Those that are held out are not among the unlabelled pictures either.
    """
    plan = HoldOut.of(examples.labels)
    scores = np.empty((len(plan.rows), len(task.class_names)))
    for learn, choose in plan.folds():
        learned, held = ([examples.pictures[row] for row in part.tolist()] for part in (learn, choose))
        shots = LabelledPictures(learned, examples.labels[learn], examples.names)
        others = np.setdiff1d(np.arange(len(task.support)), np.delete(rows, learn))
        tuned = request.fit(name, seed, encoder, shots, _Pictures(Subset(task.support, others)))
        scores[np.searchsorted(plan.rows, choose)] = tuned.scores(held)
    return scores, plan.held_labels


def _trust(scores: np.ndarray, labels: np.ndarray, held: tuple[np.ndarray, np.ndarray] | None) -> dict[str, float]:
    """What a row says beside its accuracy, in percent: without held-out examples the calibration error alone, at the
    scale that was trained; with them all that the methods on embeddings say, by the same definitions."""
    if held is None:
        return {"ece": 100 * expected_calibration_error(softmax(scores), labels)}
    known, own = held
    temperature = fit_temperature(known, own) if len(own) else 1.0
    probabilities, fits = softmax(scores / temperature), softmax(known / temperature)[np.arange(len(own)), own]
    error = {"ece": 100 * expected_calibration_error(probabilities, labels)}
    if not enough_to_tell(len(own)):
        return error
    group = conformal_groups(np.bincount(own, minlength=scores.shape[1]), SET_ALPHA)
    kept = probabilities >= conformal_thresholds(fits, group[own], int(group.max()) + 1, SET_ALPHA)[group]
    return {
        "loo": 100 * float((known.argmax(axis=1) == own).mean()),
        **error,
        "coverage": 100 * float(kept[np.arange(len(labels)), labels].mean()),
        "set_size": float(kept.sum(axis=1).mean()),
    }


def _support(task: ClassificationTask, rows: np.ndarray) -> LabelledPictures:
    pictures = [sample.image for sample in task.support.read_block(rows)]
    return LabelledPictures(pictures, task.support.labels[rows], task.class_names)


def _scores(tuned: TunedClassifier, source: Source, rows: np.ndarray) -> np.ndarray:
    found = []
    with progress(f"classify {source.name}", len(rows), "images") as counter:
        for start in range(0, len(rows), _BLOCK):
            block = source.read_block(rows[start : start + _BLOCK])
            found.append(tuned.scores([sample.image for sample in block]))
            counter.advance(len(block))
    return np.concatenate(found)
