"""What names a result: the content of all that decided it, not a path or a name that may mean something else later."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from recollect.core.content import content_hash
from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json, write_text
from recollect.core.types import Kind
from recollect.data.sources import open_source
from recollect.data.sources.address import parse_address
from recollect.data.sources.images import note

_NAMING = (".csv", ".tsv", ".jsonl")
"""Tables that may name pictures elsewhere, so that their own stamp does not tell whether a sample changed."""


def content_key(*parts: Any, size: int = 8) -> str:
    """A hash of JSON values, for the name of a file or folder; ``size`` bytes, twice as many letters."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=size).hexdigest()


def slug(name: str) -> str:
    """A name as a part of file names."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def content(spec: str, split: str | None = "all", kind: Kind | None = None) -> str:
    """A digest of a source's content: changes whenever a sample changes, wherever the files are.

    Args:
        spec: as `open_source` takes it. A built-in world is its address, since that decides every sample.
        split, kind: as `open_source` takes them.

    Raises:
        UserError: the source does not exist.
    """
    path = Path(parse_address(spec).place).expanduser()
    if path.suffix.lower() in _NAMING:
        return _content.__wrapped__(spec, split, kind, ())
    return _content(spec, split, kind, _stamp(path))


@lru_cache(maxsize=256)
def _content(spec: str, split: str | None, kind: Kind | None, stamp: tuple[int, ...]) -> str:
    if spec.startswith(("glyphs:", "latents:")):
        return spec
    return open_source(spec, split=split, kind=kind).fingerprint


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when files change, cheaply: a source is hashed once in a process unless its files were touched."""
    if path.is_file():
        files: Iterable[Path] = (path,)
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:
        return ()
    facts = [file.stat() for file in files]
    return tuple(number for each in facts for number in (each.st_size, each.st_mtime_ns, each.st_ctime_ns))


def kept_or_made(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON value that a file keeps, or one that is made now and kept; a damaged file is named and made again."""
    if path.exists():
        with suppress(UserError):
            found = read_json(path)
            if isinstance(found, dict) and found.get("digest") == content_key(found.get("value")):
                return found["value"]
        note(f"{path}: damaged; it is made again")
    value = make()
    write_json(path, {"digest": content_key(value), "value": value})
    return value


def finish(folder: Path) -> None:
    """Say in ``folder/done`` which result files are there, and what each holds."""
    folder.mkdir(parents=True, exist_ok=True)  # of a training alone nothing was saved there
    write_json(folder / "done", {file.name: file_content(file) for file in sorted(folder.glob("*.json"))})


def finished(folder: Path) -> bool:
    """Whether all results are there as they were written: a mean over fewer sets is another figure.

    A file that is damaged or gone is named.
    """
    done = folder / "done"
    if not done.exists():
        return False
    with suppress(UserError):
        files = read_json(done)
        wrong = [name for name, held in files.items() if file_content(folder / name) != held]
        if not wrong:
            return True
        note(f"{folder / wrong[0]}: damaged or gone; this run is measured again")
    return False


def as_written(model: Path) -> bool:
    """Whether a run's model is unchanged since the first call, by the digest kept with it."""
    digest = model.with_name(".model.digest")
    now = content_hash(sorted(file for file in model.rglob("*") if file.is_file()))
    if not digest.exists():
        write_text(digest, now)
    return digest.read_text(encoding="utf-8") == now


def file_content(path: str | Path) -> str:
    """What one file holds; the path itself where there is none, so that whoever reads it says so."""
    path = Path(path)
    return content_hash([path]) if path.is_file() else str(path)
