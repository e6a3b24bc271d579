"""``recollect caption``: caption the pictures of an index or source, with a model or from a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.errors import UserError, user_errors
from recollect.core.paths import check_writable
from recollect.core.validation import check_number, refuse
from recollect.core.words import counted
from recollect.efsa.options import CaptionerOptions

if TYPE_CHECKING:
    from recollect.efsa.captioner import CaptionReport
    from recollect.index import Index


@dataclass(frozen=True)
class Caption:
    """Caption pictures with an image-to-text model, or read captions from a file.

    Captions in an index can be searched, read by a fusion, and used to adapt searches (--adapt). Existing captions are
    kept unless a file replaces them. If interrupted, run the same command again to continue.
    """

    target: Annotated[str, Arg(place="INDEX|SOURCE")]
    """An index, or a source whose captions are written to --out."""
    model: str | None = None
    """Image-to-text model of transformers: a folder or a hub id, e.g. llava-hf/llava-1.5-7b-hf or
    Salesforce/blip-image-captioning-base."""
    captions: Path | None = None
    """File to read captions from instead: .jsonl with {"id": ..., "caption": ...} per line, or .csv with the columns id
    (or path) and caption. An id is a picture's id or its file, relative to the working directory or to this file's
    folder. An empty caption removes the existing one."""
    encoder: str | None = None
    """Model to embed the captions with (default: the model of the index)."""
    out: Path | None = None
    """.jsonl file for the captions of a source."""
    captioner: Annotated[CaptionerOptions, Arg(flat=True, rare=True)] = field(default_factory=CaptionerOptions)
    batch_size: int = 8
    """Images per batch."""
    split: str | None = None
    """Split of the source."""
    device: str | None = None
    """Device, e.g. cpu or cuda (default: the fastest available)."""

    def run(self) -> None:
        """Caption, and print a summary."""
        from recollect.efsa.captioner import TransformersCaptioner, caption_index
        from recollect.index import Index
        from recollect.index.stores.base import is_index

        check_number("--batch-size", self.batch_size, least=1)
        check_writable(self.out, "--out")
        missing = not is_index(self.target) and "/" in self.target and not Path(self.target).exists()
        refuse(
            (
                (self.model is None) == (self.captions is None),
                "give either --model to caption the pictures, or --captions to read them from a file",
            ),
            (missing, f"{self.target}: no such index or source. `recollect index build` creates an index."),
        )
        if not is_index(self.target):
            self._caption_source()
            return
        warn_unused(self, "split", "out", why="captions of an index are stored in the index.")
        index = Index.open(self.target)
        index.model.open(self.encoder, self.device, "--encoder")
        if self.captions is not None:
            why = "--captions reads a file."
            warn_unused(self.captioner, why=why)
            warn_unused(self, "batch_size", why=why)
            _read_into_index(index, self.captions)
            return
        assert self.model is not None
        captioner = TransformersCaptioner(self.model, self.captioner, self.device)
        _print(caption_index(index, captioner, self.model, self.batch_size), index.address)

    def _caption_source(self) -> None:
        """Write captions of a source to a file."""
        from recollect.cli.defaults import split_for
        from recollect.data.sources import open_source
        from recollect.efsa.caption_file import CaptionFile
        from recollect.efsa.captioner import TransformersCaptioner, caption_source

        unsuited = self.out is None or self.out.suffix != ".jsonl"
        refuse(
            (self.model is None, f"{self.target}: not an index. --captions can only be added to an index."),
            (unsuited, f"{self.target}: give the file for the captions with --out FILE.jsonl"),
        )
        assert self.model is not None
        assert self.out is not None
        warn_unused(self, "encoder", why="captions of a source are not embedded.")
        source = open_source(self.target, split=split_for(self.target, self.split), keep_textless=True)
        captioner = TransformersCaptioner(self.model, self.captioner, self.device)
        _print(caption_source(source, captioner, CaptionFile(self.out), self.batch_size), str(self.out))


def _read_into_index(index: "Index", path: Path) -> None:
    """Read captions by picture id or picture file into the index."""
    from recollect.efsa.caption_file import read_captions

    captions, found = read_captions(path), dict[str, list[str]]()
    with user_errors(f"{path}: nothing was changed", UserError):
        ids = index.find([name for name, _ in captions], folder=path.parent)
    for id, (_, text) in zip(ids, captions, strict=True):
        found.setdefault(id, []).append(text)
    changed = index.set_captions(found)
    say(f"{changed:,} of {len(found):,} pictures have new captions; {index.texts:,} of {len(index):,} have a caption")


def _print(report: "CaptionReport", place: str) -> None:
    say(f"{counted(report.written, 'caption')} written to {place}; {counted(report.known, 'picture')} had one already")
    if report.unreadable:
        say(f"{counted(report.unreadable, 'picture')} skipped: the file cannot be opened", "yellow")
    if report.empty:
        say(f"{counted(report.empty, 'empty caption')}: the model returned no text", "yellow")
