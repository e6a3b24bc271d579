"""``recollect caption``: captions for the pictures of a memory, or of any source: by a model, or from a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from recollect.cli.unread import refuse_unread, split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.progress import output, track
from recollect.core.words import counted
from recollect.data.sources import open_source
from recollect.efsa.caption_file import CaptionFile, read_captions
from recollect.efsa.captioner import CaptionerOptions, TransformersCaptioner, source_items, write_captions
from recollect.memory.opening import open_model_of
from recollect.memory.store import Memory
from recollect.models import DualEncoder
from recollect.search.baselines.pool_wide import item_blocks
from recollect.search.memory_pool import MemoryPool, caption_path


@dataclass(frozen=True)
class Caption:
    """Give pictures captions: written by an image-to-text model, or read from a file.

    In a memory they can then be searched as texts and read by a fusion, and searches may learn from them (--rerank
    episode). Pictures that have a caption keep it, unless a file has another one. Stopped at any time, the command goes
    on where it was.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MEMORY|SOURCE")]
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
    asked: tyro.conf.OmitArgPrefixes[CaptionerOptions] = field(default_factory=CaptionerOptions)
    batch_size: int = 8
    """Images that are described at a time."""
    split: str | None = None
    """Of a source."""
    device: str | None = None
    """Where to compute; the best there is by default."""

    def run(self) -> None:
        """Describe, and say what was done."""
        if self.batch_size < 1:
            raise UserError(f"--batch-size {self.batch_size}: at least 1")
        check_writable(self.out, "--out")
        if (self.model is None) == (self.captions is None):
            raise UserError("name either a model that describes the pictures, --model, or a file of --captions")
        if not _is_memory(self.target) and "/" in self.target and not Path(self.target).exists():
            raise UserError(f"{self.target}: no such memory or source. `recollect memory build` makes a memory.")
        memory = Memory.open(self.target) if _is_memory(self.target) else None
        if memory is not None:
            refuse_unread(self, "split", why="is of a source, and a memory has no splits. Leave it out.")
        if self.captions is not None:
            why = "is of a model that describes pictures. Leave it out beside --captions."
            refuse_unread(self.asked, why=why)
            refuse_unread(self, "batch_size", "out", why=why)
        if self.captions is not None:
            self._take(memory, self.captions)
            return
        assert self.model is not None
        path = self.out or (None if memory is None else caption_path(memory))
        if path is None:
            raise UserError(f"{self.target}: name the file that captions go to, with --out FILE.jsonl")
        if path.suffix != ".jsonl":
            raise UserError(f"--out {path}: captions go into a .jsonl file. Name one that ends so.")
        file = CaptionFile(path)
        if memory is None:
            source = open_source(self.target, split=split_for(self.target, self.split), keep_textless=True)
            blocks = track(source_items(source, block := 64), "describe", -(-len(source) // block), "blocks")
        else:
            blocks = item_blocks(MemoryPool(memory, written=file), "describe")
        captioner = TransformersCaptioner(self.model, self.asked, self.device)
        report = write_captions(blocks, captioner, file, self.batch_size)
        console = output()
        console.print(
            f"{counted(report.written, 'caption')} written to {path}; {counted(report.known, 'image')} had one",
            highlight=False,
        )
        if report.gone:
            console.print(
                f"{counted(report.gone, 'image')} cannot be opened any more, without a caption", style="yellow"
            )
        if report.empty:
            console.print(f"{counted(report.empty, 'empty caption')}: the model said nothing", style="yellow")
        if memory is not None:
            self._embed(memory, file)

    def _take(self, memory: Memory | None, path: Path) -> None:
        """Captions of a file, into the memory."""
        if memory is None:
            raise UserError(f"{self.target}: no memory. Captions of a file are read into a memory.")
        captions = read_captions(path)
        encoder = self._encoder(memory)
        changed = memory.set_captions(captions, encoder, folder=path.parent)
        texts = (
            f"{changed:,} of {len(captions):,} captions are new; {memory.texts:,} of {len(memory):,} rows have a text"
        )
        output().print(texts, highlight=False)

    def _embed(self, memory: Memory, file: CaptionFile) -> None:
        """What a model wrote becomes the text of rows that have none; those of rows that are gone are passed over."""
        there = memory.backend.known(list(file.captions)) if file.captions else set()
        own = (
            {item.id for item in memory.fetch(sorted(there), pictures=False) if item.caption.strip()}
            if there
            else set()
        )
        new = {id: text for id, text in file.captions.items() if id in there - own and text.strip()}
        if not new:
            return
        try:
            encoder = self._encoder(memory)
        except UserError as error:
            output().print(
                f"they serve --rerank episode, but cannot be searched as texts yet: {error}",
                style="yellow",
                highlight=False,
            )
            return
        changed = memory.set_captions(new, encoder, by=self.model or "")
        output().print(f"{counted(changed, 'row')} without a text before, with one now", highlight=False)

    def _encoder(self, memory: Memory) -> DualEncoder:
        return open_model_of(memory, self.encoder, self.device, "--encoder")[0]


def _is_memory(address: str) -> bool:
    return address.startswith("milvus://") or (Path(address) / "pairs.lance").exists()
