"""What names a result: the content of all that decided it, not a path or a name that may mean something else later."""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from recollect.core.content import content_hash
from recollect.core.types import Kind
from recollect.data.sources import open_source
from recollect.data.sources.address import parse_address

_NAMING = (".csv", ".tsv", ".jsonl")
"""Tables that may name pictures elsewhere, so that their own stamp does not tell whether a sample changed."""


def content_key(*parts: Any, size: int = 8) -> str:
    """A hash of JSON values, for the name of a file or folder; ``size`` bytes, twice as many letters."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=size).hexdigest()


def content(spec: str, split: str | None = "all", kind: Kind | None = None) -> str:
    """What a source holds, by content: changes whenever a sample would, wherever it lies.

    Args:
        spec: as `open_source` takes it. A built-in world is its address, since that decides every sample.
        split, kind: as `open_source` takes them.

    Raises:
        UserError: there is no such source.
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
    return tuple(number for file in files for number in (file.stat().st_size, file.stat().st_mtime_ns))


def file_content(path: str | Path) -> str:
    """What one file holds; the path itself where there is none, so that whoever reads it says so."""
    path = Path(path)
    return content_hash([path]) if path.is_file() else str(path)
