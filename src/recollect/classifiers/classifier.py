"""Picture classifier that can be saved, loaded and extended, with its measured accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from recollect.classifiers import EmbeddingClassifier
from recollect.classifiers.folder import load_classifier, save_classifier
from recollect.classifiers.heads.base import as_numpy, unit_rows
from recollect.classifiers.heads.methods import BEST, CANDIDATES, FEW_SHOT_METHODS, choose_method, text_classifier
from recollect.classifiers.heads.trust import (
    MIN_EXAMPLES,
    TOO_FEW_EXAMPLES,
    UnknownRule,
    can_report,
    format_share,
    held_out_check,
    unknown_rule,
)
from recollect.classifiers.pictures import Examples
from recollect.classifiers.teaching import ClassifierModel, Support, with_examples
from recollect.classifiers.texts import learned_scale
from recollect.core.errors import UserError, user_errors
from recollect.core.paths import expanduser, resolve_stored
from recollect.core.types import Encoder, Kind, caption_prefix
from recollect.core.validation import check_choice, check_number
from recollect.core.words import counted
from recollect.models import load_model


@dataclass(frozen=True, eq=False)
class Classifier:
    """Few-shot classifier of pictures, taught with examples, class names or both.

    >>> classifier = Classifier.teach(model, {"cat": cats, "dog": dogs}, model_name="RUN/model")   # doctest: +SKIP
    >>> classifier.save("cats")                                                                    # doctest: +SKIP
    >>> Classifier.load("cats").predict("new/")                                                    # doctest: +SKIP

    Probabilities are calibrated on held-out examples; with names alone they are the model's own and not calibrated.
    Fitting is deterministic, so a loaded classifier makes the same predictions as the saved one.

    Attributes:
        classes: class names, sorted.
        class_texts: prompts of classes that have their own; the others use their name in CLIP's templates.
        texts: unit-norm embeddings of the class texts (classes, width).
        requested_method: the method to use, or ``best``.
        notes: problems with the examples: damaged files, copies.
        encoder: the model; if None, it is loaded by name on first use.
        accuracies: held-out accuracy of every compared method.
    """

    classes: tuple[str, ...]
    class_texts: Mapping[str, tuple[str, ...]]
    texts: Float[np.ndarray, "classes width"]
    support: Support
    model: ClassifierModel
    requested_method: str = BEST
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = field(default=None, repr=False)
    folder: Path | None = field(default=None, repr=False)
    method: str = field(init=False)
    accuracies: Mapping[str, float] = field(init=False)
    estimator: EmbeddingClassifier = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_choice(self.requested_method, (BEST, *FEW_SHOT_METHODS), "--method: method")
        if len(self.classes) < 2:
            raise UserError(f"{counted(len(self.classes), 'class')}; a classifier needs two or more")
        if not self.without_examples:
            method, estimator, accuracies = self._choose(self.support.features, self.support.labels)
        elif self.requested_method in (BEST, "zero-shot"):
            method, estimator, accuracies = "zero-shot", text_classifier(self.texts, self.model.scale), {}
        else:
            names = ", ".join(self.without_examples)
            raise UserError(f"--method {self.requested_method} needs examples of every class. Add examples of {names}.")
        for name, value in (("method", method), ("estimator", estimator), ("accuracies", accuracies)):
            object.__setattr__(self, name, value)

    @classmethod
    def teach(
        cls,
        encoder: Encoder,
        examples: Examples = (),
        names: Mapping[str, Sequence[str] | str] | Sequence[str] = (),
        *,
        method: str = BEST,
        model_name: str = "",
        prefix: Kind | None = None,
    ) -> "Classifier":
        """Teach a classifier with examples, class names or both.

        Args:
            examples: files, pictures or a folder for each class; or (picture, class) pairs; or a folder with one
                sub-folder of pictures per class, or a CSV (`find_examples`).
            names: class names, or a mapping from names to descriptive texts.
            method: a name in `FEW_SHOT_METHODS`, or ``best`` for the most accurate on held-out examples.
            model_name: path or hub id, to load the model later.
            prefix: prefix token of class texts, for models with prefixes (default: that of captions).

        Raises:
            UserError: fewer than two classes, a class without readable examples, or an invalid name.
        """
        prefix = prefix or caption_prefix(encoder)
        model = ClassifierModel(model_name, encoder.fingerprint, learned_scale(encoder), prefix)
        known = with_examples({}, encoder, prefix, examples, names)
        return cls(**known, model=model, requested_method=method, encoder=encoder)

    def add(
        self,
        encoder: Encoder,
        examples: Examples = (),
        names: Mapping[str, Sequence[str] | str] | Sequence[str] = (),
    ) -> "Classifier":
        """Return a classifier with additional examples or classes; only new ones are embedded.

        Raises:
            UserError: as in `teach`, or ``encoder`` is a different model.
        """
        self.check_model(encoder)
        return replace(self, encoder=encoder, **with_examples(vars(self), encoder, self.model.prefix, examples, names))

    @classmethod
    def load(cls, folder: str | Path) -> "Classifier":
        """Load a saved classifier.

        Raises:
            UserError: the classifier is missing, damaged or in a newer format.
        """
        folder = Path(expanduser(folder))
        opened = load_classifier(folder, cls._from_record)
        object.__setattr__(opened, "folder", folder)
        return opened

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the classifier to a folder atomically.

        Raises:
            UserError: the folder exists and ``replace`` is false.
        """
        support = self.support
        numbers: dict[str, np.ndarray] = {
            "texts": np.asarray(self.texts, dtype=np.float32),
            "support": np.asarray(support.features, dtype=np.float32),
            "labels": np.asarray(support.labels, dtype=np.int64),
        }
        trust = f"{self.trust}; none of these: {self.unknown_trust}."
        trust += " These figures only hold for pictures like the examples." if self.enough_examples else ""
        return save_classifier(self._record(), numbers, trust, Path(expanduser(folder)), replace)

    def _record(self) -> dict[str, Any]:
        """Return everything except arrays, as JSON."""
        support = self.support
        counts = np.bincount(support.labels, minlength=len(self.classes))
        return {
            "classes": [
                {"name": name, "texts": list(self.class_texts.get(name, ())), "examples": int(count)}
                for name, count in zip(self.classes, counts, strict=True)
            ],
            "model": asdict(self.model),
            "method": {"asked": self.requested_method, "used": self.method, "settings": self.settings},
            "held_out": {**self.calibration, "methods": dict(self.accuracies)},
            "calibration": {
                "calibrated": self.calibrated,
                "temperature": float(self.estimator.temperature_),
                "unknown_below": self.unknown_rule.threshold,
                "unknown_rejected": self.unknown_rule.rejected,
                "unknown_accepted": self.unknown_rule.accepted,
            },
            "examples": [
                {"file": file, "class": self.classes[label], "digest": digest}
                for file, label, digest in zip(support.files, support.labels.tolist(), support.digests, strict=True)
            ],
        }

    @classmethod
    def _from_record(cls, record: Mapping[str, Any], numbers: Mapping[str, np.ndarray]) -> "Classifier":
        examples = record["examples"]
        support = Support(
            numbers["support"],
            numbers["labels"],
            tuple(each["file"] for each in examples),
            tuple(each["digest"] for each in examples),
        )
        if not len(support) == len(support.features) == len(support.labels):
            raise ValueError("the number of examples differs from the length of their arrays")
        return cls(
            tuple(each["name"] for each in record["classes"]),
            {each["name"]: tuple(each["texts"]) for each in record["classes"] if each["texts"]},
            numbers["texts"],
            support,
            ClassifierModel(**record["model"]),
            record["method"]["asked"],
        )

    def __repr__(self) -> str:
        names = shorten(", ".join(self.classes), 60)
        known = f"{counted(len(self.classes), 'class')}: {names}; {counted(len(self.support), 'example')}"
        return f"Classifier({known}; {self.method})"

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return self.texts.shape[1]

    @property
    def without_examples(self) -> tuple[str, ...]:
        """Classes known only by name."""
        counts = np.bincount(self.support.labels, minlength=len(self.classes))
        return tuple(name for name, count in zip(self.classes, counts, strict=True) if not count)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Scalar settings chosen by the method."""
        plain = (bool, int, float, str, np.integer, np.floating)
        return {
            name.rstrip("_"): value.item() if isinstance(value, np.generic) else value
            for name, value in sorted(vars(self.estimator).items())
            if name.endswith("_") and isinstance(value, plain) and not name.startswith(("n_", "loo_", "temperature"))
        }

    @property
    def calibrated(self) -> bool:
        """Whether probabilities were calibrated on held-out examples."""
        return len(self.estimator.loo_rows_) > 0

    @cached_property
    def calibration(self) -> dict[str, float | int]:
        """Number of held-out examples, accuracy with 95 % interval, and calibration error (`held_out_check`).

        With too few examples (`can_report`) only their number; empty without any.
        """
        if not self.calibrated:
            return {}
        support = self.support
        found = held_out_check(lambda *examples: self._choose(*examples)[1], support.features, support.labels)
        return {"examples": len(self.estimator.loo_rows_)} if found is None else asdict(found)

    @property
    def trust(self) -> str:
        """Accuracy and calibration on held-out examples, as text."""
        if not self.calibrated:
            if self.without_examples:
                return "confidence is the model's own, not calibrated (not every class has examples)"
            return "confidence is a guess, not calibrated (no class has two examples)"
        checked = self.calibration
        if not self.enough_examples:
            return f"{checked['examples']} held out: {TOO_FEW_EXAMPLES}"
        low, high = 100 * checked["low"], 100 * checked["high"]
        return (
            f"{format_share(checked['accuracy'], int(checked['examples']))} held-out examples are right "
            f"(95 % interval {low:.0f} to {high:.0f} %), calibration error {checked['calibration_error']:.3f}"
        )

    @property
    def unknown_trust(self) -> str:
        """Error rates of "none of these", measured on the examples, as text."""
        rule = self.unknown_rule
        if rule.rejected is None:
            return TOO_FEW_EXAMPLES
        accepted = TOO_FEW_EXAMPLES if rule.accepted is None else f"about {100 * rule.accepted:.0f} %"
        known = f"{100 * rule.rejected:.0f} % of pictures of the classes wrongly rejected"
        return f"{known}; pictures of other classes accepted: {accepted}"

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[str, EmbeddingClassifier, Mapping[str, float]]:
        methods = CANDIDATES if self.requested_method == BEST else (self.requested_method,)
        return choose_method(methods, self.texts, self.model.scale, support, labels)

    @property
    def enough_examples(self) -> bool:
        """Whether there are enough held-out examples to report accuracy and to rule out classes."""
        return can_report(len(self.estimator.loo_rows_))

    @cached_property
    def unknown_rule(self) -> UnknownRule:
        """The rule for "none of these" with its error rates; never applies if a class has no examples."""
        support = self.support
        if self.without_examples:
            return unknown_rule(support.features[:0], support.labels[:0])
        digests = [f"{digest} {label}" for digest, label in zip(support.digests, support.labels.tolist(), strict=True)]
        _, first = np.unique(digests, return_index=True)
        return unknown_rule(support.features[first], support.labels[first])

    def predict_proba(self, features: Any) -> Float[np.ndarray, "queries classes"]:
        """Return calibrated probabilities, assuming that each picture belongs to one of the classes.

        Args:
            features: embeddings (queries, width); or pictures, files or a folder, which the classifier's model embeds
                (`DualEncoder.embed_images`). Other methods accept the same.

        Raises:
            UserError: embeddings of the wrong width, or an unreadable picture.
        """
        checked = self._checked(features)
        if not len(checked):  # scikit-learn rejects empty input
            return np.empty((0, len(self.classes)))
        return self.estimator.predict_proba(checked).astype(np.float64)

    def predict(self, features: Any) -> np.ndarray:
        """Return the name of the most probable class of each row, picture or file (`predict_proba`)."""
        return np.array(self.classes)[self.predict_proba(features).argmax(axis=1)]

    def predict_set(self, features: Any, alpha: float = 0.1) -> Bool[np.ndarray, "queries classes"]:
        """Return the classes that cannot be ruled out; they include the true class with probability 1 − alpha.

        These are conformal sets (`EmbeddingClassifier.predict_set`); an empty set means none of the classes.

        Raises:
            UserError: too few examples to calibrate on, or alpha is not between 0 and 1.
        """
        check_number("alpha", alpha, above=0, below=1)
        if not self.enough_examples:
            held = len(self.estimator.loo_rows_)
            raise UserError(
                f"{TOO_FEW_EXAMPLES} which classes are possible: {held} can be held out, {MIN_EXAMPLES} are needed. "
                "Add more."
            )
        checked = self._checked(features)
        return self.estimator.predict_set(checked, alpha) if len(checked) else np.empty((0, len(self.classes)), bool)

    def similarity(self, features: Any) -> Float[np.ndarray, "queries n"]:
        """Return the cosines to the examples."""
        return self._checked(features) @ self.support.features.T

    def is_unknown(self, features: Any) -> Bool[np.ndarray, " queries"]:
        """Return whether each picture belongs to none of the classes (`unknown_rule`)."""
        return self.unknown_rule.is_unknown(self._checked(features))

    def check_model(self, encoder: Encoder) -> None:
        """Raise UserError unless ``encoder`` is the model that embedded the examples."""
        if encoder.fingerprint != self.model.fingerprint:
            raise UserError(
                f"the classifier was taught with {self.model.name or 'a model'} ({self.model.fingerprint[:12]}); this "
                f"is another model ({encoder.fingerprint[:12]}). Use the first one, or teach again."
            )

    def with_method(self, method: str) -> "Classifier":
        """Return a classifier with the same classes and examples but another method."""
        return replace(self, requested_method=method)

    def _checked(self, images: Any) -> np.ndarray:
        array = self._embedded(images)
        if array.ndim != 2 or array.shape[1] != self.width:
            raise UserError(f"embeddings have shape {array.shape}; the classifier needs (n, {self.width})")
        if not np.isfinite(array).all():
            raise UserError("embeddings contain NaN or infinity")
        with user_errors("embeddings cannot be compared", ValueError):
            return unit_rows(np.ascontiguousarray(array, dtype=np.float32), "embeddings")

    def _embedded(self, images: Any) -> np.ndarray:
        """Return embeddings as an array; embed pictures, files and folders with the classifier's model."""
        if hasattr(images, "detach"):
            return as_numpy(images)
        if isinstance(images, np.ndarray) and images.ndim <= 2 and images.dtype.kind == "f":
            return images
        if self.encoder is None:
            encoder = load_model(resolve_stored(self.model.name, self.folder or ""))
            self.check_model(encoder)
            object.__setattr__(self, "encoder", encoder)
        return self.encoder.embed_images(images).numpy()  # type: ignore[union-attr]
