"""``recollect classify``: examples or names in, a classifier that can be kept and predictions out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, run_by


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

    run = run_by("recollect.cli.classify_run:run_classify")
