"""``recollect demo``: the main job on real pictures, in one page."""

from dataclasses import dataclass
from pathlib import Path

from recollect.cli.parser import run_by


@dataclass(frozen=True)
class Demo:
    """Find pictures by words, teach classes from five examples each, sort a folder, and write one page about it.

    Writes OUT/report.html and leaves an index, OUT/index, that `recollect serve` opens. The pictures are crops of
    photographs that come with scikit-image, or those of your own folder, which is only read.
    """

    pictures: Path | None = None
    """Folder of your own pictures; with a folder for each class, it also shows few-shot accuracy (default:
    scikit-image's photographs)."""
    out: Path = Path("demo")
    """Folder for the page and the index."""
    model: str | None = None
    """Model to embed with (default: the small one that comes with recollect)."""

    run = run_by("recollect.cli.demo_run:run_demo")
