"""Result cache: files are keyed by the content of all inputs, since paths and names may be reused."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from recollect.core.content import content_hash
from recollect.core.errors import UserError
from recollect.core.files import locked, make_folder, read_json, write_json
from recollect.core.types import Kind
from recollect.data.sources import open_source
from recollect.data.sources.generated import is_generated
from recollect.data.sources.images import note


def content_key(*parts: Any, size: int = 8) -> str:
    """Return a hex digest of JSON values, for file and folder names; ``size`` bytes, so twice as many characters."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=size).hexdigest()


def slug(name: str) -> str:
    """Convert a name to lowercase letters, digits, dots and hyphens, for use in file names."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


@lru_cache(maxsize=256)
def content(spec: str, split: str | None = "all", kind: Kind | None = None) -> str:
    """Return a digest of a source's samples, independent of where its files are; cached per process.

    A generated source is identified by its address, which determines every sample.

    Raises:
        UserError: the source does not exist.
    """
    return spec if is_generated(spec) else open_source(spec, split=split, kind=kind).fingerprint


def file_content(path: str | Path) -> str:
    """Return a digest of one file, or the path itself if the file is missing: reading it reports the error."""
    path = Path(path)
    return content_hash([path]) if path.is_file() else str(path)


def load_cached(path: Path) -> Any:
    """Return the JSON value in a file, or None if the file is missing or damaged (with a warning)."""
    if not path.exists():
        return None
    with suppress(UserError):
        entry = read_json(path)
        if isinstance(entry, dict) and entry.get("digest") == content_key(entry.get("value")):
            return entry["value"]
    note(f"{path}: damaged; computing it again")
    path.unlink()
    return None


def cached(path: Path, compute: Callable[[], Any]) -> Any:
    """Return the JSON value in a file, computing and writing it if the file is missing or damaged."""
    value = load_cached(path)
    if value is None:
        value = compute()
        write_json(path, {"digest": content_key(value), "value": value})
    return value


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a run folder, waiting while another study works in it."""
    locks = folder.parent / ".locks"
    make_folder(locks)
    with locked(locks / folder.name, lambda: note(f"{folder.name}: waiting for another study")):
        yield
