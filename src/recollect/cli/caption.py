"""``recollect caption``: captions for the pictures of an index, or of any source: by a model, or from a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.errors import UserError
from recollect.core.paths import check_writable
from recollect.core.validation import check_number, refuse
from recollect.core.words import counted
from recollect.efsa.options import CaptionerOptions

if TYPE_CHECKING:
    from recollect.efsa.captioner import CaptionReport
    from recollect.index import Index


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

    def run(self) -> None:
        """Describe, and print what was done."""
        from recollect.efsa.captioner import TransformersCaptioner, caption_index
        from recollect.index import Index

        check_number("--batch-size", self.batch_size, least=1)
        check_writable(self.out, "--out")
        absent = not _is_index(self.target) and "/" in self.target and not Path(self.target).exists()
        refuse(
            (
                (self.model is None) == (self.captions is None),
                "name either a --model that describes the pictures, or a file of --captions",
            ),
            (absent, f"{self.target}: no such index or source. `recollect index build` makes an index."),
        )
        if not _is_index(self.target):
            self._source()
            return
        warn_unused(self, "split", "out", why="an index keeps its captions itself.")
        index = Index.open(self.target)
        index.model.open(self.encoder, self.device, "--encoder")
        if self.captions is not None:
            warn_unused(self, "asked", "batch_size", why="--captions are read from a file.")
            _take(index, self.captions)
            return
        assert self.model is not None
        captioner = TransformersCaptioner(self.model, self.asked, self.device)
        _print(caption_index(index, captioner, self.model, self.batch_size), self.target)

    def _source(self) -> None:
        """Captions of a source, into a file."""
        from recollect.data.sources import open_source, split_of
        from recollect.efsa.caption_file import CaptionFile
        from recollect.efsa.captioner import TransformersCaptioner, caption_source

        unsuited = self.out is None or self.out.suffix != ".jsonl"
        refuse(
            (self.model is None, f"{self.target}: not an index. --captions can only be added to an index."),
            (unsuited, f"{self.target}: name the file for its captions with --out FILE.jsonl"),
        )
        assert self.model is not None
        assert self.out is not None
        split = None if split_of(self.target) else self.split
        source = open_source(self.target, split=split, keep_textless=True)
        captioner = TransformersCaptioner(self.model, self.asked, self.device)
        _print(caption_source(source, captioner, CaptionFile(self.out), self.batch_size), str(self.out))


def _take(index: "Index", path: Path) -> None:
    """Captions of a file, by id or by the file of a picture, into the index."""
    from recollect.efsa.caption_file import read_captions

    captions = read_captions(path)
    names = {name: name for name in index.ids}
    for table in index.store.scan(["id", "files"]):
        for id, files in zip(table["id"].to_pylist(), table["files"].to_pylist(), strict=True):
            names |= {name: id for file in files for name in (file["path"], file["key"]) if name}
    found: dict[str, list[str]] = {}
    for name, text in captions:
        id = names.get(name) or names.get(str(Path(name).resolve())) or names.get(str((path.parent / name).resolve()))
        if id is None:
            raise UserError(f"{path}: no picture called {name!r} in {index.address}; nothing was changed")
        found.setdefault(id, []).append(text)
    changed = index.set_captions(found)
    line = f"{changed:,} of {len(found):,} pictures have new captions; {index.texts:,} of {len(index):,} have one"
    say(line)


def _print(report: "CaptionReport", place: str) -> None:
    line = f"{counted(report.written, 'caption')} written to {place}; {counted(report.known, 'picture')} had one"
    say(line)
    if report.gone:
        say(f"{counted(report.gone, 'picture')} cannot be opened and got none", "yellow")
    if report.empty:
        say(f"{counted(report.empty, 'empty caption')}: the model wrote nothing", "yellow")


def _is_index(address: str) -> bool:
    return address.startswith("milvus://") or (Path(address) / "pictures.lance").is_dir()
