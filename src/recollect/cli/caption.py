"""``recollect caption``: captions for the pictures of a memory, or of any source: by a model, or from a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg
from recollect.efsa.options import CaptionerOptions


@dataclass(frozen=True)
class Caption:
    """Give pictures captions: written by an image-to-text model, or read from a file.

    In a memory they can then be searched as texts and read by a fusion, and searches may learn from them (--rerank
    episode). Pictures that have a caption keep it, unless a file has another one. Stopped at any time, the command goes
    on where it was.
    """

    target: Annotated[str, Arg(place="MEMORY|SOURCE")]
    """A memory; or a source, whose captions then go into a file."""
    model: str | None = None
    """An image-to-text model of transformers: a folder or a hub id, such as llava-hf/llava-1.5-7b-hf or
    Salesforce/blip-image-captioning-base."""
    captions: Path | None = None
    """Instead of a model: a .jsonl file of {"id": ..., "caption": ...}, or a .csv with the columns id (or path) and
    caption. A picture goes by its id in the memory or by its file, from here or from the file's own folder; an empty
    caption takes one away."""
    encoder: str | None = None
    """The model that embedded the memory, for the texts; by default where it was then."""
    out: Path | None = None
    """The .jsonl file that captions go to; by default in the memory's folder, where searches find it."""
    asked: Annotated[CaptionerOptions, Arg(flat=True, rare=True)] = field(default_factory=CaptionerOptions)
    batch_size: int = 8
    """Images described at a time."""
    split: str | None = None
    """Split of a source."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""

    def run(self) -> None:
        """Describe, and print what was done."""
        from recollect.cli.caption_run import run_caption

        run_caption(self)
