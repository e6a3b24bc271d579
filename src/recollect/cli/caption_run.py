"""Write captions by a model, or read them from a file: what `recollect caption` runs."""

from pathlib import Path

from recollect.cli.caption import Caption
from recollect.cli.parser import say, warn_unused
from recollect.core.errors import UserError
from recollect.core.paths import check_writable
from recollect.core.progress import output, track
from recollect.core.validation import check_number, refuse
from recollect.core.words import counted
from recollect.data.sources import open_source
from recollect.data.sources.opening import split_of
from recollect.efsa.caption_file import CaptionFile, read_captions
from recollect.efsa.captioner import CaptionReport, TransformersCaptioner, caption_index, source_items, write_captions
from recollect.index import Index

_BLOCK = 64


def run_caption(options: Caption) -> None:
    """Describe, and print what was done."""
    check_number("--batch-size", options.batch_size, least=1)
    check_writable(options.out, "--out")
    absent = not is_index(options.target) and "/" in options.target and not Path(options.target).exists()
    refuse(
        (
            (options.model is None) == (options.captions is None),
            "name either a --model that describes the pictures, or a file of --captions",
        ),
        (absent, f"{options.target}: no such index or source. `recollect index build` makes an index."),
    )
    if not is_index(options.target):
        _source(options)
        return
    warn_unused(options, "split", "out", why="an index keeps its captions itself.")
    index = Index.open(options.target)
    index.open_model(options.encoder, options.device, "--encoder")
    if options.captions is not None:
        warn_unused(options, "asked", "batch_size", why="--captions are read from a file.")
        _take(index, options.captions)
        return
    assert options.model is not None
    captioner = TransformersCaptioner(options.model, options.asked, options.device)
    _print(caption_index(index, captioner, options.model, options.batch_size), options.target)


def _source(options: Caption) -> None:
    """Captions of a source, into a file."""
    unsuited = options.out is None or options.out.suffix != ".jsonl"
    refuse(
        (options.model is None, f"{options.target}: not an index. --captions can only be added to an index."),
        (unsuited, f"{options.target}: name the file for its captions with --out FILE.jsonl"),
    )
    assert options.model is not None
    assert options.out is not None
    split = None if split_of(options.target) else options.split
    source = open_source(options.target, split=split, keep_textless=True)
    blocks = track(source_items(source, _BLOCK), "describe", -(-len(source) // _BLOCK), "blocks")
    captioner = TransformersCaptioner(options.model, options.asked, options.device)
    _print(write_captions(blocks, captioner, CaptionFile(options.out), options.batch_size), str(options.out))


def _take(index: Index, path: Path) -> None:
    """Captions of a file, by id or by the file of a picture, into the index."""
    captions = read_captions(path)
    names = {name: name for name in index.ids}
    for table in index.store.scan(["id", "files"]):
        for id, files in zip(table["id"].to_pylist(), table["files"].to_pylist(), strict=True):
            names |= {name: id for file in files for name in (file["path"], file["key"]) if name}
    found = {}
    for name, text in captions.items():
        id = names.get(name) or names.get(str(Path(name).resolve())) or names.get(str((path.parent / name).resolve()))
        if id is None:
            raise UserError(f"{path}: no picture called {name!r} in {index.address}; nothing was changed")
        found[id] = text
    changed = index.set_captions(found)
    line = f"{changed:,} of {len(captions):,} captions are new; {index.texts:,} of {len(index):,} pictures have one"
    say(line)


def _print(report: CaptionReport, place: str) -> None:
    line = f"{counted(report.written, 'caption')} written to {place}; {counted(report.known, 'picture')} had one"
    say(line)
    if report.gone:
        output().print(f"{counted(report.gone, 'picture')} cannot be opened and got none", style="yellow")
    if report.empty:
        output().print(f"{counted(report.empty, 'empty caption')}: the model wrote nothing", style="yellow")


def is_index(address: str) -> bool:
    """Whether an address is that of an index, also one of an older version."""
    tables = (Path(address) / f"{name}.lance" for name in ("pictures", "pairs"))
    return address.startswith("milvus://") or any(table.is_dir() for table in tables)
