"""Files behind an address, read part by part: what a dropped connection has left out is asked for again, from there on.

``http://``, ``https://`` and ``hf://`` need nothing but Python; other addresses are opened by fsspec.
"""

import hashlib
import http.client
import io
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from recollect.core.errors import UserError

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each new try, where a store that has answered before stops doing so."""

_SECONDS = 30.0  # without a byte
_PIECE = 2**20
_HUB = re.compile(r"hf://(?:(?P<kind>datasets|spaces)/)?(?P<set>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a store that may be others in a moment."""

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "oss": "ossfs"}
"""What to install for fsspec to know some addresses."""

_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
"""How stores call what changes with a file's content."""

_ENDS = 2**16

_answered: set[str] = set()
"""Stores that have answered this process before: one that never has is said at once."""


class AbsentFileError(UserError):
    """A store has answered that it has no such file, or none for us."""


def is_address(file: str) -> bool:
    """Whether a file is named by an address, not by a path of this machine."""
    return "://" in file


def open_remote(file: str) -> Any:
    """Open a file behind an address, to read any part of it.

    Raises:
        UserError: it is not there, cannot be read in parts, or the package that knows such addresses is not here.
        OSError, ValueError: whatever that package says.
    """
    if _is_ours(file):
        return RemoteFile(file)
    store, path = _fsspec(file)
    return store.open(path, "rb")


def listed(pattern: str) -> list[str]:
    """The addresses that a pattern with ``*`` stands for, or of the files in and below a folder (``…/``); sorted.

    Raises:
        UserError: nothing is there, it cannot be asked, or its store lists nothing.
    """
    if urlsplit(pattern).scheme in ("http", "https"):
        raise UserError(f"{pattern}: a web server does not say which files it has. Name them: shard-{{000..099}}.tar")
    store, path = _fsspec(pattern)
    try:
        found = sorted(store.find(path) if pattern.endswith("/") else store.glob(path))
    except Exception as error:  # of a store's own library, whatever it raises
        raise UserError(f"{pattern}: cannot be listed ({' '.join(str(error).split())[:200]})") from error
    if not found:
        raise UserError(f"{pattern}: no file is there")
    return [str(store.unstrip_protocol(name)) for name in found]


def version_of(file: str) -> str:
    """What changes with the content of a file behind an address: the commit of the hub that it names, else its ETag
    where its store tells one, else its size and its first and last 64 KiB; "" of a store that tells none and gives
    whole files only.

    Raises:
        UserError: it cannot be reached.
    """
    if commit := _commit(file):
        return commit
    try:
        if _is_ours(file):
            store = _Store(file)
            size, version = store.about()
            if version or size is None:
                return version or ""
            head, tail = (b"".join(store.parts(*part)) for part in _ends(size))
        else:
            kept, path = _fsspec(file)
            if version := _told(kept, path):
                return version
            size = kept.size(path)
            head, tail = (kept.cat_file(path, *part) for part in _ends(size))
    except UserError:
        raise
    except Exception as error:  # of a store's own library, whatever it raises
        raise UserError(f"{file}: cannot be reached ({' '.join(str(error).split())[:200]})") from error
    return _version(size, head, tail)


def _commit(file: str) -> str | None:
    """The commit that an address of the hub names; None where a branch may move."""
    match = _HUB.fullmatch(file)
    return match["revision"] if match and re.fullmatch(r"[0-9a-f]{40}", match["revision"] or "") else None


def _ends(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, min(size, _ENDS)), (max(0, size - _ENDS), size)


def _version(size: int, head: bytes, tail: bytes) -> str:
    return f"{size} {hashlib.blake2b(head + tail, digest_size=16).hexdigest()}"


def _told(store: Any, path: str) -> str | None:
    """What fsspec's file system calls the version of a file."""
    about = store.info(path)
    return next((str(about[name]) for name in _VERSIONS if about.get(name)), None)


def _is_ours(file: str) -> bool:
    return urlsplit(file).scheme in ("http", "https") or _HUB.fullmatch(file) is not None


def _fsspec(file: str) -> tuple[Any, str]:
    """The file system that knows an address, and what it calls the file.

    Raises:
        UserError: no package here does.
    """
    from fsspec.core import url_to_fs

    kind = file.partition("://")[0]
    try:
        return url_to_fs(file)
    except ImportError as error:
        package = _PACKAGES.get(kind)
        advice = f"Install it with: pip install {package}" if package else f"{error}."
        raise UserError(f"{file}: {kind}:// needs a package that is not installed. {advice}") from error
    except ValueError as error:
        raise UserError(f"{file}: no address that can be read ({' '.join(str(error).split())[:200]})") from error
    except Exception as error:  # no key, no network, whatever the package raises
        raise UserError(f"{file}: cannot be reached ({' '.join(str(error).split())[:200]})") from error


def download(file: str, target: io.BufferedIOBase) -> str:
    """Copy a whole file to ``target``.

    Returns:
        Its version, as `version_of` says it.

    Raises:
        UserError, OSError, ValueError: see `open_remote`; UserError too if the store stops answering.
    """
    if _is_ours(file):
        store = _Store(file)
        version = _copied(store.parts(0, None), target)
        return _commit(file) or store.version or version
    kept, path = _fsspec(file)
    with kept.open(path, "rb") as source:
        version = _copied(iter(lambda: source.read(2**22), b""), target)
    return _told(kept, path) or version


def _copied(parts: Iterator[bytes], target: io.BufferedIOBase) -> str:
    size, head, tail = 0, b"", b""
    for data in parts:
        target.write(data)
        size, head, tail = size + len(data), head + data[: _ENDS - len(head)], (tail + data[-_ENDS:])[-_ENDS:]
    return _version(size, head, tail)


class RemoteFile(io.RawIOBase):
    """A file of a store that gives parts of files.

    Raises:
        UserError: there is no such file, or its store gives whole files only.
    """

    def __init__(self, file: str) -> None:
        self._store, self._place = _Store(file), 0
        self.size = self._store.length()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readall(self) -> bytes:
        data = b"".join(self._store.parts(self._place, self.size)) if self._place < self.size else b""
        self._place += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        stop = min(self.size, self._place + len(buffer))
        start = self._place
        if start < stop:
            for data in self._store.parts(start, stop):
                buffer[self._place - start : self._place - start + len(data)] = data
                self._place += len(data)
        return self._place - start


class _Store:
    """Asks for parts of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.address, self.secret = _resolved(file)
        self.version: str | None = None

    def length(self) -> int:
        """Bytes of the file.

        Raises:
            UserError: its store gives whole files only.
        """
        size, _ = self.about()
        if size is None:
            raise UserError(f"{self.file}: its store gives whole files only, no parts of them. Copy it here.")
        return size

    def about(self) -> tuple[int | None, str | None]:
        """Bytes of the file, None where its store gives whole files only; and its ETag, None where it gives none."""
        failures = 0
        while True:
            try:
                with self._ask(0, 1) as answer:
                    size = (answer.headers["Content-Range"] or "").rpartition("/")[2]
                    return int(size) if answer.status == 206 and size.isdecimal() else None, self.version
            except (OSError, http.client.HTTPException) as error:
                failures = self._wait(failures, error)

    def parts(self, start: int, stop: int | None) -> Iterator[bytes]:
        """The bytes from ``start`` to ``stop`` (the end of the file), as they come."""
        failures = 0
        while stop is None or start < stop:
            try:
                with self._ask(start, stop) as answer:
                    skip = 0 if answer.status == 206 else start  # of a store that gives whole files only
                    expected = (
                        int(answer.headers["Content-Length"]) - skip if "Content-Length" in answer.headers else None
                    )
                    end = stop if stop is not None else None if expected is None else start + expected
                    while skip:
                        skip -= len(answer.read(min(skip, _PIECE)) or _dropped())
                    while data := answer.read(_PIECE if end is None else min(_PIECE, end - start)):
                        start, failures = start + len(data), 0
                        yield data
                if end is None or start >= end:
                    return
                _dropped()
            except (OSError, http.client.HTTPException) as error:
                failures = self._wait(failures, error)

    def _ask(self, start: int, stop: int | None) -> http.client.HTTPResponse:
        asked = urllib.request.Request(self.address)
        if start or stop is not None:
            asked.add_header("Range", f"bytes={start}-{'' if stop is None else stop - 1}")
        for name, value in self.secret.items():  # not for those to whom the store sends us on
            asked.add_unredirected_header(name, value)
        answer: http.client.HTTPResponse = urllib.request.urlopen(asked, timeout=_SECONDS)
        _answered.add(urlsplit(self.address).netloc)
        version = answer.headers["ETag"]
        if self.version not in (None, version):
            raise UserError(f"{self.file}: has changed while it was read. Start again.")
        self.version = version
        return answer

    def _wait(self, failures: int, error: Exception) -> int:
        """Wait before a new try; the number of tries that have failed in a row.

        Raises:
            UserError: one more is of no use.
        """
        said = " ".join(str(getattr(error, "reason", "") or error or type(error).__name__).split())[:200]
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            said = f"{error.code} {said}"
            if error.code not in _LATER:
                raise AbsentFileError(f"{self.file}: {said}") from error
        elif urlsplit(self.address).netloc not in _answered:
            raise UserError(f"{self.file}: cannot be reached ({said})") from error
        if failures == len(WAITS):
            raise UserError(f"{self.file}: cannot be reached any more ({said}), tried {failures + 1} times") from error
        time.sleep(WAITS[failures])
        return failures + 1


def _dropped() -> bytes:
    raise ConnectionError("the connection was dropped")


def _resolved(file: str) -> tuple[str, dict[str, str]]:
    """The address to ask, and what tells the store who asks."""
    match = _HUB.fullmatch(file)
    if match is None:
        return file, {}
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    folder = f"{match['kind']}/" if match["kind"] else ""
    revision, path = quote(unquote(match["revision"] or "main"), safe=""), quote(match["path"])
    address = f"{constants.ENDPOINT}/{folder}{match['set']}/resolve/{revision}/{path}"
    headers = {name.title(): value for name, value in build_hf_headers().items()}
    return address, {name: value for name, value in headers.items() if name in ("Authorization", "User-Agent")}
