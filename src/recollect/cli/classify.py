"""``recollect classify``: examples or names in, a classifier that can be kept and predictions out."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from recollect.apps.classify.choosing import BEST
from recollect.apps.classify.classifier import Classifier
from recollect.apps.classify.pictures import find_examples, find_images, read_names
from recollect.apps.classify.predictions import NONE_OF_THESE, Classification, classify, example_warnings, unknown_text
from recollect.apps.classify.sheet import save_csv, save_json, save_sheet
from recollect.cli.default_model import default_model
from recollect.cli.memory_options import MemoryOptions
from recollect.cli.memory_reading import reading, reading_name
from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.files import atomic_path, beside, check_writable, new_folder, told_if_full
from recollect.core.progress import output
from recollect.core.types import Encoder
from recollect.core.words import counted
from recollect.fewshot.methods import FEW_SHOT_METHODS
from recollect.fewshot.trust import TOO_FEW, share_text
from recollect.models import load_model


@dataclass(frozen=True)
class Classify:
    """Teach a classifier from a few examples or from names alone, keep it, apply it; nothing is trained for long.

    Teach and keep: --support examples/ --save cats/. Apply: --with cats/ --images new/. Extend: --with cats/
    --support more/ --save cats/. With --images it writes OUT/predictions.csv, .json and .html, a sheet to look at with
    the doubtful ones first.
    """

    support: Path | None = None
    """Examples: a folder with a folder of images for each class, named as the class (examples/cat/1.jpg), or a CSV with
    columns file and label."""
    names: tuple[str, ...] = ()
    """Class names, for classes without examples or beside them: cat dog "polka dot", a .txt with one a line, or a .json
    of names with texts that describe them."""
    images: Path | None = None
    """Folder of images to classify."""
    kept: Annotated[Path | None, tyro.conf.arg(name="with")] = None
    """A classifier that --save wrote: apply it, or add --support and --names to it."""
    save: Path | None = None
    """Folder to keep the classifier in; the one named by --with may be replaced."""
    model: str | None = None
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id; the starter by default, with
    --with the one it was taught with, with --memory the one that embedded that."""
    method: str | None = None
    """How: best (the default) chooses by leaving each example out; or tip-adapter-cv, prototype, gda, ..."""
    alpha: float = 0.1
    """Level of the sets of classes that cannot be ruled out."""
    out: Path = Path("predictions")
    """Folder for predictions."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)

    def run(self) -> None:
        """Teach or open, keep, classify, print a summary and write."""
        self._check()
        examples = find_examples(self.support, 1 if self.kept or self.names else 2) if self.support else []
        names = read_names(self.names) if self.names else {}
        images = find_images(self.images) if self.images else []
        opened = Classifier.load(self.kept) if self.kept else None
        kept = beside(opened.model.name, self.kept or "") if opened else self.reading.model
        name = self.model or kept or default_model()
        encoder = reading(self.reading, load_model(name, self.device))
        if opened is None:
            taught = Classifier.teach(encoder, examples, names, method=self.method or BEST, model_name=name)
        else:
            opened.check_model(encoder)
            taught = opened if self.method in (None, opened.asked) else opened.with_method(self.method or BEST, encoder)
            taught = taught.add(encoder, examples, names) if examples or names else taught
        _describe(taught)
        if self.save is not None:
            taught.save(self.save, replace=self._replaces)
        if images:
            self._apply(taught, encoder, images, name)
        elif self.save is not None:
            for warning in example_warnings(taught):
                _note(warning)
        if self.save is not None:
            output().print(f"classifier: {self.save}", highlight=False, soft_wrap=True)

    @property
    def _replaces(self) -> bool:
        """Whether the classifier that is opened is the one that is written."""
        return self.kept is not None and self.save is not None and self.kept.resolve() == self.save.resolve()

    def _check(self) -> None:
        if self.kept is None and self.support is None and not self.names:
            raise UserError(
                "nothing to teach from: name --support examples/, --names cat dog, or a classifier --with cats/"
            )
        if self.images is None and self.save is None:
            raise UserError("nothing to do: name --images to classify, or --save to keep the classifier")
        if self.images is None:
            refuse_unread(self, "alpha", "out", why="is of predictions. Name what to classify with --images FOLDER.")
        if self.method is not None and self.method != BEST and self.method not in FEW_SHOT_METHODS:
            known = ", ".join((BEST, *FEW_SHOT_METHODS))
            raise UserError(f"--method {self.method}: no such method. Choose one of: {known}.")
        if not 0 < self.alpha < 1:
            raise UserError(f"--alpha {self.alpha:g}: a share of errors lies between 0 and 1")
        check_writable(self.save, "--save")
        if self.save is not None and not self._replaces:
            new_folder(self.save, "classifier")
        check_writable(self.out if self.images is not None else None, "--out")
        self.reading.check()
        if self.reading.near is not None:
            raise UserError("--near: is for evaluation; here nothing is tested.")

    def _apply(self, taught: Classifier, encoder: Encoder, images: list[Path], name: str) -> None:
        found = classify(taught, encoder, images, alpha=self.alpha)
        model = reading_name(self.reading, name, encoder)
        about = _about(taught) | {"model": model, "alpha": self.alpha}
        summary = f"{counted(len(found.predictions), 'image')}; {_sentence(taught)}; model {model}"
        with told_if_full(self.out), ExitStack() as stack:  # all of them or none, so that they are of the same images
            table, values, sheet = (
                stack.enter_context(atomic_path(self.out / f"predictions.{kind}")) for kind in ("csv", "json", "html")
            )
            save_csv(found, table)
            save_json(found, values, about)
            save_sheet(found, sheet, summary, self.images)
        _show(found)
        output().print(f"predictions: {self.out}", highlight=False, soft_wrap=True)


def _about(taught: Classifier) -> dict[str, Any]:
    return {
        "method": taught.method,
        "settings": taught.settings,
        "examples": len(taught.support),
        "calibrated": taught.calibrated,
        "held_out": {**taught.calibration, "methods": dict(taught.accuracies)},
        "unknown_rejected": taught.unknown_rule.rejected,
        "unknown_accepted": taught.unknown_rule.accepted,
    }


def _sentence(taught: Classifier) -> str:
    said = f"{counted(len(taught.classes), 'class')}, {counted(len(taught.support), 'example')}, method {taught.method}"
    if not taught.calibration:
        kind = "the model's own" if taught.without_examples else "a guess"
        return f"{said}; confidence is not calibrated but {kind} (no two examples of a class)"
    checked = taught.calibration
    error, low, high = (checked.get(name, 0.0) for name in ("calibration_error", "low", "high"))
    if not taught.enough_examples:
        return f"{said}; {checked['examples']} held out: {TOO_FEW}"
    return (
        f"{said}; {share_text(checked['accuracy'], int(checked['examples']))} held-out examples are right "
        f"(95 % interval {100 * low:.0f} to {100 * high:.0f} %), calibration error {error:.3f}"
    )


def _describe(taught: Classifier) -> None:
    output().print(_sentence(taught), highlight=False, soft_wrap=True)
    output().print(f"{NONE_OF_THESE}: {unknown_text(taught)}", highlight=False, soft_wrap=True)


def _show(found: Classification) -> None:
    table = Table("class", "images", "least sure")
    for name in found.class_names:
        sure = [item.confidence for item in found.predictions if item.label == name and not item.unknown]
        table.add_row(name, str(len(sure)), f"{min(sure):.2f}" if sure else "")
    if unknown := sum(item.unknown for item in found.predictions):
        table.add_row(NONE_OF_THESE, str(unknown), "")
    output().print(table)
    for warning in found.warnings:
        _note(warning)


def _note(text: str) -> None:
    output().print(f"note: {text}", style="yellow", highlight=False, soft_wrap=True)
