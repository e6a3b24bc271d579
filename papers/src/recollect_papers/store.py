"""What names a result: the content of everything that decided it, rather than a path or name that may be reused."""

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
    """A hash of JSON values, for the name of a file or folder; ``size`` bytes, twice as many letters."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=size).hexdigest()


def slug(name: str) -> str:
    """A name as a part of file names."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


@lru_cache(maxsize=256)
def content(spec: str, split: str | None = "all", kind: Kind | None = None) -> str:
    """A digest of a source's content, computed once per process: changes whenever a sample changes, wherever the files
    are. The content of a generated source is its address, which decides every sample.

    Raises:
        UserError: the source does not exist.
    """
    return spec if is_generated(spec) else open_source(spec, split=split, kind=kind).fingerprint


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


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other study makes what is kept in a folder."""
    locks = folder.parent / ".locks"
    make_folder(locks)
    with locked(locks / folder.name, lambda: note(f"{folder.name}: another study makes it; this one waits")):
        yield
