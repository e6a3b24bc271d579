"""``recollect classify``: examples or names in, a classifier that can be kept and predictions out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.paths import beside, check_writable, new_folder
from recollect.core.validation import check_choice, check_number, refuse
from recollect.core.words import counted

if TYPE_CHECKING:
    from recollect.classifiers.classifier import Classifier
    from recollect.classifiers.predictions import Classification
    from recollect.core.types import Encoder


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
    """Class names, of classes with or without examples: cat dog "polka dot", a .txt file with one a line, or a .json
    file of names with texts that describe them."""
    images: Path | None = None
    """Folder of images to classify."""
    kept: Annotated[Path | None, Arg(name="with")] = None
    """A classifier that --save wrote: apply it, or add --support and --names to it."""
    save: Path | None = None
    """Folder to keep the classifier in; the one named by --with may be replaced."""
    model: str | None = None
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id (default: the model of --with or --index, else
    the starter)."""
    method: str | None = None
    """best (the default) chooses a method by leaving each example out; or tip-adapter-cv, prototype, ..."""
    alpha: float = 0.1
    """Error rate of the sets of classes that cannot be ruled out."""
    out: Path = Path("predictions")
    """Folder for predictions."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""
    reading: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)

    def run(self) -> None:
        """Teach or open, keep, classify, print a summary and write."""
        from recollect.classifiers.classifier import Classifier
        from recollect.classifiers.heads.methods import BEST
        from recollect.classifiers.pictures import find_examples, find_images, read_names
        from recollect.classifiers.predictions import NONE_OF_THESE, example_warnings
        from recollect.cli.defaults import default_model
        from recollect.models import load_model

        self._check()
        examples = find_examples(self.support, 1 if self.kept or self.names else 2) if self.support else []
        names = read_names(self.names) if self.names else {}
        images = find_images(self.images) if self.images else []
        opened = Classifier.load(self.kept) if self.kept else None
        kept = beside(opened.model.name, self.kept or "") if opened else self.reading.model
        name = self.model or kept or default_model()
        encoder = self.reading.encoder(load_model(name, self.device))
        if opened is None:
            taught = Classifier.teach(encoder, examples, names, method=self.method or BEST, model_name=name)
        else:
            opened.check_model(encoder)
            taught = opened if self.method in (None, opened.asked) else opened.with_method(self.method or BEST)
            taught = taught.add(encoder, examples, names) if examples or names else taught
        say(_sentence(taught))
        say(f"{NONE_OF_THESE}: {taught.unknown_trust}")
        if self.save is not None:
            taught.save(self.save, replace=self._replaces())
        if images:
            self._apply(taught, encoder, images, name)
        elif self.save is not None:
            for warning in example_warnings(taught):
                _note(warning)
        if self.save is not None:
            say(f"classifier: {self.save}")

    def _replaces(self) -> bool:
        """Whether the classifier that is opened is the one that is written."""
        return self.kept is not None and self.save is not None and self.kept.resolve() == self.save.resolve()

    def _check(self) -> None:
        from recollect.classifiers.heads.methods import BEST, FEW_SHOT_METHODS

        nothing = self.kept is None and self.support is None and not self.names
        refuse(
            (nothing, "nothing to learn from: name --support examples/, --names cat dog, or a classifier --with cats/"),
            (
                self.images is None and self.save is None,
                "nothing to do: name --images to classify, or --save to keep the classifier",
            ),
            (self.reading.near is not None, "--near: is for evaluation; here nothing is tested."),
        )
        if self.images is None:
            warn_unused(self, "alpha", "out", why="nothing is predicted without --images FOLDER")
        check_choice(self.method or BEST, (BEST, *FEW_SHOT_METHODS), "--method")
        check_number("--alpha", self.alpha, above=0, below=1)
        check_writable(self.save, "--save", "folder")
        if self.save is not None and not self._replaces():
            new_folder(self.save, "classifier")
        if self.images is not None:
            check_writable(self.out, "--out", "folder")
            check_writable(self.out / "predictions.csv", "--out", "new file")
        self.reading.check()

    def _apply(self, taught: "Classifier", encoder: "Encoder", images: list[Path], name: str) -> None:
        from contextlib import ExitStack

        from recollect.classifiers.predictions import classify
        from recollect.cli.sheet import save_csv, save_json, save_sheet
        from recollect.core.files import atomic_path, told_if_full

        found = classify(taught, encoder, images, alpha=self.alpha)
        model = self.reading.name(name, encoder)
        about = _about(taught) | {"model": model, "alpha": self.alpha}
        summary = f"{counted(len(found.predictions), 'image')}; {_sentence(taught)}; model {model}"
        with told_if_full(self.out), ExitStack() as stack:  # all or none, so that the three files agree
            table, values, sheet = (
                stack.enter_context(atomic_path(self.out / f"predictions.{kind}")) for kind in ("csv", "json", "html")
            )
            save_csv(found, table)
            save_json(found, values, about)
            save_sheet(found, sheet, summary, self.images)
        _show(found)
        say(f"predictions: {self.out}")


def _about(taught: "Classifier") -> dict[str, Any]:
    return {
        "method": taught.method,
        "settings": taught.settings,
        "examples": len(taught.support),
        "calibrated": taught.calibrated,
        "held_out": {**taught.calibration, "methods": dict(taught.accuracies)},
        "unknown_rejected": taught.unknown_rule.rejected,
        "unknown_accepted": taught.unknown_rule.accepted,
    }


def _sentence(taught: "Classifier") -> str:
    said = f"{counted(len(taught.classes), 'class')}, {counted(len(taught.support), 'example')}, method {taught.method}"
    return f"{said}; {taught.trust}"


def _show(found: "Classification") -> None:
    from rich.table import Table

    from recollect.classifiers.predictions import NONE_OF_THESE
    from recollect.core.progress import output

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
    say(f"note: {text}", "yellow")
