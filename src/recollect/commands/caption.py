"""``recollect caption``: describe the images of a memory, or of any source, once."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from recollect.core.errors import UserError
from recollect.core.progress import output, track
from recollect.data.sources import open_source
from recollect.memory.store import Memory
from recollect.search.baselines.pool_wide import item_blocks
from recollect.search.captioning.captioner import CaptionerOptions, TransformersCaptioner, source_items, write_captions
from recollect.search.captioning.file import CaptionFile
from recollect.search.memory_pool import MemoryPool, caption_path


@dataclass(frozen=True)
class Caption:
    """Describe images with an image-to-text model, for searches that learn from captions (--rerank episode).

    Images of a memory that have a caption already keep it. Stopped at any time, the command goes on where it was.
    """

    target: tyro.conf.Positional[str]
    """A memory; or a source, whose captions then go into a file."""
    model: str
    """An image-to-text model of transformers: a folder or a hub id, such as llava-hf/llava-1.5-7b-hf or
    Salesforce/blip-image-captioning-base."""
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
        memory = Memory.open(self.target) if _is_memory(self.target) else None
        path = self.out or (None if memory is None else caption_path(memory))
        if path is None:
            raise UserError(f"{self.target}: name the file that captions go to, with --out FILE.jsonl")
        if path.suffix != ".jsonl":
            raise UserError(f"--out {path}: captions go into a .jsonl file. Name one that ends so.")
        file = CaptionFile(path)
        if memory is None:
            source = open_source(self.target, split=self.split)
            blocks = track(source_items(source, block := 64), "describe", -(-len(source) // block), "blocks")
        else:
            blocks = item_blocks(MemoryPool(memory, written=file), "describe")
        captioner = TransformersCaptioner(self.model, self.asked, self.device)
        report = write_captions(blocks, captioner, file, self.batch_size)
        console = output()
        console.print(
            f"{report.written:,} captions written to {path}; {report.known:,} images had one", highlight=False
        )
        if report.gone:
            console.print(f"{report.gone:,} images cannot be opened any more and have none", style="yellow")
        if report.empty:
            console.print(f"{report.empty:,} captions are empty: the model said nothing", style="yellow")


def _is_memory(address: str) -> bool:
    return address.startswith("milvus://") or (Path(address) / "pairs.lance").exists()
