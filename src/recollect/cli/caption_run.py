"""Write captions by a model, or read them from a file: what `recollect caption` runs."""

from pathlib import Path

from recollect.cli.caption import Caption
from recollect.cli.parser import warn_unused
from recollect.cli.split import split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.progress import output, track
from recollect.core.words import counted
from recollect.data.sources import open_source
from recollect.efsa.caption_file import CaptionFile, read_captions
from recollect.efsa.captioner import TransformersCaptioner, source_items, write_captions
from recollect.memory.opening import open_model_of
from recollect.memory.store import Memory
from recollect.models import DualEncoder
from recollect.search.baselines.pool_wide import item_blocks
from recollect.search.memory_pool import MemoryPool, caption_path


def run_caption(options: Caption) -> None:
    """Describe, and say what was done."""
    if options.batch_size < 1:
        raise UserError(f"--batch-size {options.batch_size}: at least 1")
    check_writable(options.out, "--out")
    if (options.model is None) == (options.captions is None):
        raise UserError("name either a model that describes the pictures, --model, or a file of --captions")
    if not _is_memory(options.target) and "/" in options.target and not Path(options.target).exists():
        raise UserError(f"{options.target}: no such memory or source. `recollect memory build` makes a memory.")
    memory = Memory.open(options.target) if _is_memory(options.target) else None
    if memory is not None:
        warn_unused(options, "split", why="a memory has no splits")
    if options.captions is not None:
        why = "--captions are read from a file"
        warn_unused(options.asked, why=why)
        warn_unused(options, "batch_size", "out", why=why)
    if options.captions is not None:
        _take(options, memory, options.captions)
        return
    assert options.model is not None
    path = options.out or (None if memory is None else caption_path(memory))
    if path is None:
        raise UserError(f"{options.target}: name the file that captions go to, with --out FILE.jsonl")
    if path.suffix != ".jsonl":
        raise UserError(f"--out {path}: captions go into a .jsonl file. Name one that ends so.")
    file = CaptionFile(path)
    if memory is None:
        source = open_source(options.target, split=split_for(options.target, options.split), keep_textless=True)
        blocks = track(source_items(source, block := 64), "describe", -(-len(source) // block), "blocks")
    else:
        blocks = item_blocks(MemoryPool(memory, written=file), "describe")
    captioner = TransformersCaptioner(options.model, options.asked, options.device)
    report = write_captions(blocks, captioner, file, options.batch_size)
    console = output()
    console.print(
        f"{counted(report.written, 'caption')} written to {path}; {counted(report.known, 'image')} had one",
        highlight=False,
    )
    if report.gone:
        console.print(f"{counted(report.gone, 'image')} cannot be opened any more, without a caption", style="yellow")
    if report.empty:
        console.print(f"{counted(report.empty, 'empty caption')}: the model said nothing", style="yellow")
    if memory is not None:
        _embed(options, memory, file)


def _take(options: Caption, memory: Memory | None, path: Path) -> None:
    """Captions of a file, into the memory."""
    if memory is None:
        raise UserError(f"{options.target}: no memory. Captions of a file are read into a memory.")
    captions = read_captions(path)
    encoder = _encoder(options, memory)
    changed = memory.set_captions(captions, encoder, folder=path.parent)
    texts = f"{changed:,} of {len(captions):,} captions are new; {memory.texts:,} of {len(memory):,} rows have a text"
    output().print(texts, highlight=False)


def _embed(options: Caption, memory: Memory, file: CaptionFile) -> None:
    """What a model wrote becomes the text of rows that have none; those of rows that are gone are passed over."""
    there = memory.backend.known(list(file.captions)) if file.captions else set()
    own = {item.id for item in memory.fetch(sorted(there), pictures=False) if item.caption.strip()} if there else set()
    new = {id: text for id, text in file.captions.items() if id in there - own and text.strip()}
    if not new:
        return
    try:
        encoder = _encoder(options, memory)
    except UserError as error:
        output().print(
            f"they serve --rerank episode, but cannot be searched as texts yet: {error}",
            style="yellow",
            highlight=False,
        )
        return
    changed = memory.set_captions(new, encoder, by=options.model or "")
    output().print(f"{counted(changed, 'row')} without a text before, with one now", highlight=False)


def _encoder(options: Caption, memory: Memory) -> DualEncoder:
    return open_model_of(memory, options.encoder, options.device, "--encoder")[0]


def _is_memory(address: str) -> bool:
    return address.startswith("milvus://") or (Path(address) / "pairs.lance").exists()
