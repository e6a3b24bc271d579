"""Teach a classifier, keep it, apply it: what `recollect classify` runs."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.heads.methods import BEST, FEW_SHOT_METHODS
from recollect.classifiers.pictures import find_examples, find_images, read_names
from recollect.classifiers.predictions import NONE_OF_THESE, Classification, classify, example_warnings
from recollect.classifiers.sheet import save_csv, save_json, save_sheet
from recollect.cli.classify import Classify
from recollect.cli.defaults import default_model
from recollect.cli.parser import say, warn_unused
from recollect.core.files import atomic_path, told_if_full
from recollect.core.paths import beside, check_writable, new_folder
from recollect.core.progress import output
from recollect.core.types import Encoder
from recollect.core.validation import check_choice, check_number, refuse
from recollect.core.words import counted
from recollect.models import load_model


def run_classify(options: Classify) -> None:
    """Teach or open, keep, classify, print a summary and write."""
    _check(options)
    examples = find_examples(options.support, 1 if options.kept or options.names else 2) if options.support else []
    names = read_names(options.names) if options.names else {}
    images = find_images(options.images) if options.images else []
    opened = Classifier.load(options.kept) if options.kept else None
    kept = beside(opened.model.name, options.kept or "") if opened else options.reading.model
    name = options.model or kept or default_model()
    encoder = options.reading.encoder(load_model(name, options.device))
    if opened is None:
        taught = Classifier.teach(encoder, examples, names, method=options.method or BEST, model_name=name)
    else:
        opened.check_model(encoder)
        taught = opened if options.method in (None, opened.asked) else opened.with_method(options.method or BEST)
        taught = taught.add(encoder, examples, names) if examples or names else taught
    _describe(taught)
    if options.save is not None:
        taught.save(options.save, replace=_replaces(options))
    if images:
        _apply(options, taught, encoder, images, name)
    elif options.save is not None:
        for warning in example_warnings(taught):
            _note(warning)
    if options.save is not None:
        say(f"classifier: {options.save}")


def _replaces(options: Classify) -> bool:
    """Whether the classifier that is opened is the one that is written."""
    return options.kept is not None and options.save is not None and options.kept.resolve() == options.save.resolve()


def _check(options: Classify) -> None:
    nothing = options.kept is None and options.support is None and not options.names
    refuse(
        (nothing, "nothing to learn from: name --support examples/, --names cat dog, or a classifier --with cats/"),
        (
            options.images is None and options.save is None,
            "nothing to do: name --images to classify, or --save to keep the classifier",
        ),
        (options.reading.near is not None, "--near: is for evaluation; here nothing is tested."),
    )
    if options.images is None:
        warn_unused(options, "alpha", "out", why="nothing is predicted without --images FOLDER")
    check_choice(options.method or BEST, (BEST, *FEW_SHOT_METHODS), "--method")
    check_number("--alpha", options.alpha, above=0, below=1)
    check_writable(options.save, "--save")
    if options.save is not None and not _replaces(options):
        new_folder(options.save, "classifier")
    check_writable(options.out if options.images is not None else None, "--out")
    options.reading.check()


def _apply(options: Classify, taught: Classifier, encoder: Encoder, images: list[Path], name: str) -> None:
    found = classify(taught, encoder, images, alpha=options.alpha)
    model = options.reading.name(name, encoder)
    about = _about(taught) | {"model": model, "alpha": options.alpha}
    summary = f"{counted(len(found.predictions), 'image')}; {_sentence(taught)}; model {model}"
    with told_if_full(options.out), ExitStack() as stack:  # all or none, so that the three files agree
        table, values, sheet = (
            stack.enter_context(atomic_path(options.out / f"predictions.{kind}")) for kind in ("csv", "json", "html")
        )
        save_csv(found, table)
        save_json(found, values, about)
        save_sheet(found, sheet, summary, options.images)
    _show(found)
    say(f"predictions: {options.out}")


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
    return f"{said}; {taught.trust}"


def _describe(taught: Classifier) -> None:
    say(_sentence(taught))
    say(f"{NONE_OF_THESE}: {taught.unknown_trust}")


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
    say(f"note: {text}", "yellow")
