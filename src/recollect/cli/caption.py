"""``recollect caption``: captions for the pictures of an index, or of any source: by a model, or from a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg, run_by
from recollect.efsa.options import CaptionerOptions


@dataclass(frozen=True)
class Caption:
    """Give pictures captions: written by an image-to-text model, or read from a file.

    Captions of an index can be searched and read by a fusion, and searches can learn from them (--adapt). Pictures
    that have a caption keep it, unless a file has another one. The command can be stopped at any time; the same command
    continues.
    """

    target: Annotated[str, Arg(place="INDEX|SOURCE")]
    """An index; or a source, whose captions go into a file."""
    model: str | None = None
    """An image-to-text model of transformers: a folder or a hub id, such as llava-hf/llava-1.5-7b-hf or
    Salesforce/blip-image-captioning-base."""
    captions: Path | None = None
    """Instead of a model: a .jsonl file of {"id": ..., "caption": ...}, or a .csv with the columns id (or path) and
    caption. A picture is named by its id or by its file, relative to here or to the file's own folder; an empty
    caption removes one."""
    encoder: str | None = None
    """Model of the index, which embeds the captions (default: where it was when the index was built)."""
    out: Path | None = None
    """The .jsonl file for the captions of a source."""
    asked: Annotated[CaptionerOptions, Arg(flat=True, rare=True)] = field(default_factory=CaptionerOptions)
    batch_size: int = 8
    """Images described at a time."""
    split: str | None = None
    """Split of a source."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""

    run = run_by("recollect.cli.caption_run:run_caption")
