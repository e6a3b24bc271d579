"""What names a result: the content of everything that decided it, rather than a path or name that may be reused."""

import hashlib
import json
import re
from collections.abc import Callable
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
from recollect.data.sources.generated import is_generated
from recollect.data.sources.images import note
from recollect.evaluation.results import RESULT_FORMAT, Result

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

    The content of a generated source is its address, which decides every sample. A source is hashed once per process
    unless its files were touched.

    Raises:
        UserError: the source does not exist.
    """
    if is_generated(spec):
        return spec
    path = Path(parse_address(spec).place).expanduser()
    if path.suffix.lower() in _NAMING:
        return _content.__wrapped__(spec, split, kind, ())
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    facts = [file.stat() for file in files]
    return _content(spec, split, kind, tuple((each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in facts))


@lru_cache(maxsize=256)
def _content(spec: str, split: str | None, kind: Kind | None, stamp: tuple[tuple[int, ...], ...]) -> str:
    return open_source(spec, split=split, kind=kind).fingerprint


def file_content(path: str | Path) -> str:
    """A digest of one file; the path itself if there is no such file, so that whoever reads it reports it."""
    path = Path(path)
    return content_hash([path]) if path.is_file() else str(path)


def kept(path: Path) -> Any:
    """The JSON value in a file; None if it does not exist or is damaged, which is reported."""
    if not path.exists():
        return None
    with suppress(UserError):
        found = read_json(path)
        if isinstance(found, dict) and found.get("digest") == content_key(found.get("value")):
            return found["value"]
    note(f"{path}: damaged; it is made again")
    path.unlink()
    return None


def kept_or_made(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON value in a file, or one that is made now and written there."""
    value = kept(path)
    if value is None:
        value = make()
        write_json(path, {"digest": content_key(value), "value": value})
    return value


def kept_results(path: Path, make: Callable[[], list[Result]]) -> list[Result]:
    """`kept_or_made` for results.

    Raises:
        UserError: the file was written by another version.
    """
    found = kept_or_made(path, lambda: json.loads(json.dumps([result.as_json() for result in make()])))
    if any(each.get("format") != RESULT_FORMAT for each in found):
        raise UserError(f"{path}: was written by another version. Remove it, and the study makes it again.")
    return [Result(**{key: value for key, value in each.items() if key != "format"}) for each in found]


def as_written(model: Path) -> bool:
    """Whether a run's model is unchanged since the first call, by the digest kept with it."""
    digest = model.with_name(".model.digest")
    now = content_hash(sorted(file for file in model.rglob("*") if file.is_file()))
    if not digest.exists():
        write_text(digest, now)
    return digest.read_text(encoding="utf-8") == now
