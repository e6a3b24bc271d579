"""``recollect classify``: teach a classifier from examples or names, save it, and apply it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, say, show_table, warn_unused
from recollect.core.paths import check_writable, new_folder, resolve_stored
from recollect.core.validation import check_choice, check_number, refuse
from recollect.core.words import counted

if TYPE_CHECKING:
    from recollect.classifiers.classifier import Classifier
    from recollect.classifiers.predictions import Classification
    from recollect.core.types import Encoder


@dataclass(frozen=True)
class Classify:
    """Teach a classifier from a few examples or from class names, save it and apply it, without long training.

    Teach: --support examples/ --save cats/. Apply: --with cats/ --images new/. Extend: --with cats/ --support more/
    --save cats/. With --images, predictions are written to OUT/predictions.csv, .json and .html (a gallery, least
    certain first).
    """

    support: Path | None = None
    """Examples: a folder with one subfolder of images per class, named after the class (examples/cat/1.jpg), or a CSV
    with the columns file and label."""
    names: tuple[str, ...] = ()
    """Names of classes, with or without examples: cat dog "polka dot", a .txt file with one name per line, or a .json
    file that maps names to descriptions."""
    images: Path | None = None
    """Folder of images to classify."""
    kept: Annotated[Path | None, Arg(name="with")] = None
    """Saved classifier to apply, or to extend by --support and --names."""
    save: Path | None = None
    """Folder to save the classifier to; may be the folder given to --with."""
    model: str | None = None
    """RUN/model, the folder of a CLIP-type checkpoint, or a hub id (default: the model of --with or --index, else the
    starter)."""
    method: str | None = None
    """best (the default) chooses a method by leave-one-out accuracy; or tip-adapter-cv, prototype, ..."""
    alpha: float = 0.1
    """Error rate of the prediction sets (the classes that cannot be ruled out)."""
    out: Path = Path("predictions")
    """Folder for predictions."""
    device: str | None = None
    """Device, e.g. cpu or cuda (default: the fastest available)."""
    fusion_options: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)

    def run(self) -> None:
        """Teach or open a classifier, save it, classify images, and print a summary."""
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
        recorded = resolve_stored(opened.model.name, self.kept or "") if opened else self.fusion_options.model
        name = self.model or recorded or default_model()
        encoder = self.fusion_options.encoder(load_model(name, self.device))
        if opened is None:
            taught = Classifier.teach(encoder, examples, names, method=self.method or BEST, model_name=name)
        else:
            opened.check_model(encoder)
            taught = (
                opened if self.method in (None, opened.requested_method) else opened.with_method(self.method or BEST)
            )
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
        """Whether the opened classifier is overwritten."""
        return self.kept is not None and self.save is not None and self.kept.resolve() == self.save.resolve()

    def _check(self) -> None:
        from recollect.classifiers.heads.methods import BEST, FEW_SHOT_METHODS

        nothing = self.kept is None and self.support is None and not self.names
        refuse(
            (nothing, "nothing to learn from: give --support examples/, --names cat dog, or --with cats/"),
            (
                self.images is None and self.save is None,
                "nothing to do: give --images to classify, or --save to save the classifier",
            ),
            (self.fusion_options.near is not None, "--near: only for evaluation. Remove it."),
        )
        if self.images is None:
            warn_unused(self, "alpha", "out", why="there are no predictions without --images FOLDER")
        check_choice(self.method or BEST, (BEST, *FEW_SHOT_METHODS), "--method")
        check_number("--alpha", self.alpha, above=0, below=1)
        check_writable(self.save, "--save", "folder")
        if self.save is not None and not self._replaces():
            new_folder(self.save, "classifier")
        if self.images is not None:
            check_writable(self.out, "--out", "folder")
            check_writable(self.out / "predictions.csv", "--out", "new file")
        self.fusion_options.check()

    def _apply(self, taught: "Classifier", encoder: "Encoder", images: list[Path], name: str) -> None:
        from contextlib import ExitStack

        from recollect.classifiers.predictions import classify
        from recollect.cli.sheet import save_csv, save_json, save_sheet
        from recollect.core.files import atomic_path, full_disk_errors

        found = classify(taught, encoder, images, alpha=self.alpha)
        model = self.fusion_options.name(name, encoder)
        about = _about(taught) | {"model": model, "alpha": self.alpha}
        summary = f"{counted(len(found.predictions), 'image')}; {_sentence(taught)}; model {model}"
        with full_disk_errors(self.out), ExitStack() as stack:  # write all three files or none
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
    classes, examples = counted(len(taught.classes), "class"), counted(len(taught.support), "example")
    return f"{classes}, {examples}, method {taught.method}; {taught.trust}"


def _show(found: "Classification") -> None:
    from recollect.classifiers.predictions import NONE_OF_THESE

    rows = []
    for name in found.class_names:
        confidences = [item.confidence for item in found.predictions if item.label == name and not item.unknown]
        rows.append((name, str(len(confidences)), f"{min(confidences):.2f}" if confidences else ""))
    if unknown := sum(item.unknown for item in found.predictions):
        rows.append((NONE_OF_THESE, str(unknown), ""))
    show_table(("class", "images", "lowest confidence"), rows)
    for warning in found.warnings:
        _note(warning)


def _note(text: str) -> None:
    say(f"note: {text}", "yellow")
