"""``recollect classify``: folders of examples in, predictions for a folder of images out."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.table import Table

from recollect.apps.classify.classifier import Classification, classify, find_examples, find_images
from recollect.apps.classify.sheet import save_csv, save_sheet
from recollect.commands.memory_options import MemoryOptions
from recollect.core.errors import UserError
from recollect.core.progress import output
from recollect.data.prompts import GENERAL_TEMPLATES, fill, readable
from recollect.evaluation.features import prompt_ensemble
from recollect.evaluation.few_shot import learned_scale
from recollect.fewshot.protocol import FEW_SHOT_METHODS
from recollect.models import load_model


@dataclass(frozen=True)
class Classify:
    """Classify a folder of images from folders of examples, one folder for each class; nothing is trained.

    Writes OUT/predictions.csv and OUT/predictions.html, a sheet to look at, with the doubtful ones first.
    """

    support: Path
    """Folder with a folder of example images for each class, named as the class: examples/cat/1.jpg."""
    images: Path
    """Folder of images to classify."""
    model: str = "google/siglip2-base-patch16-224"
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id."""
    method: str = "tip-adapter-cv"
    """How: tip-adapter-cv uses examples and class names; prototype, softmax and others only the examples."""
    out: Path = Path("predictions")
    """Folder for the results."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)

    def run(self) -> None:
        """Classify, print a summary and write."""
        if self.method not in FEW_SHOT_METHODS:
            raise UserError(f"--method {self.method}: no such method. Choose one of: {', '.join(FEW_SHOT_METHODS)}.")
        support, images = find_examples(self.support), find_images(self.images)
        self.reading.check()
        if self.reading.near is not None:
            raise UserError("--near: is for evaluation; here nothing is tested.")
        encoder = self.reading.apply(load_model(self.model, self.device))
        names = sorted({name for _, name in support})
        prompts = [[fill(template, readable(name)) for template in GENERAL_TEMPLATES] for name in names]
        classifier = FEW_SHOT_METHODS[self.method](prompt_ensemble(encoder, prompts), learned_scale(encoder))
        found = classify(classifier, encoder, support, images)
        summary = f"{len(found.predictions)} images, {len(names)} classes, {len(support)} examples; {self.method}"
        save_csv(found, self.out / "predictions.csv")
        save_sheet(found, self.out / "predictions.html", f"{summary}, model {self.reading.name(self.model, encoder)}")
        _show(found, summary, self.out)


def _show(found: Classification, summary: str, out: Path) -> None:
    console = output()
    table = Table("class", "images", "mean confidence", title=summary, title_justify="left")
    for name in found.class_names:
        sure = [item.confidence for item in found.predictions if item.label == name]
        table.add_row(name, str(len(sure)), f"{100 * sum(sure) / len(sure):.0f} %" if sure else "")
    console.print(table)
    for warning in found.warnings:
        console.print(f"note: {warning}", style="yellow", highlight=False)
    console.print(f"{out / 'predictions.csv'}\n{out / 'predictions.html'}", highlight=False)
