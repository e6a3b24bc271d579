"""Files at URLs, read in parts. A read that is interrupted by a dropped connection continues where it stopped.

``http://``, ``https://`` and ``hf://`` need only Python; fsspec opens all other URLs.
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

from recollect.core.errors import UserError, one_line, user_errors

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry, for a server that has answered this process before."""

_TIMEOUT = 30.0
_PIECE = 2**20
_ENDS = 2**16  # bytes at each end of a file that identify its version
_HUB = re.compile(r"hf://(?:(?P<kind>datasets|spaces)/)?(?P<set>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "oss": "ossfs"}
"""The package that fsspec needs for a URL scheme."""

_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
"""Keys of fsspec's file info that change with the content."""

_answered: set[str] = set()
"""Servers that have answered this process; others are not retried."""


class AbsentFileError(UserError):
    """The server answered that it has no such file, or denied access."""


def is_address(file: str) -> bool:
    """Whether a file is given as a URL, not as a local path."""
    return "://" in file


def open_remote(file: str) -> Any:
    """Open a file for random access.

    Raises:
        UserError: no such file, its server gives whole files only, or a package for such URLs is missing.
        OSError, ValueError: from fsspec's file system.
    """
    store = _store(file)
    return RemoteFile(store) if isinstance(store, _WebFile) else store.open()


def listed(pattern: str) -> list[str]:
    """All URLs that match a pattern with ``*``, or all files in and below a folder (``…/``), sorted.

    Raises:
        UserError: nothing matches, or files cannot be listed there.
    """
    if urlsplit(pattern).scheme in ("http", "https"):
        raise UserError(f"{pattern}: a web server cannot list its files. Name them: shard-{{000..099}}.tar")
    store, path = _file_system(pattern)
    with user_errors(f"{pattern}: cannot be listed"):
        found = sorted(store.find(path) if pattern.endswith("/") else store.glob(path))
    if not found:
        raise UserError(f"{pattern}: no such file")
    return [str(store.unstrip_protocol(name)) for name in found]


def version_of(file: str) -> str:
    """A text that changes with the content of a file: the hub commit in its URL, else its ETag, else its size and a
    digest of its first and last 64 KiB; "" if the server gives no ETag and whole files only.

    Raises:
        UserError: it cannot be reached.
    """
    if commit := _commit(file):
        return commit
    with user_errors(f"{file}: cannot be reached"):
        store = _store(file)
        size, version = store.about()
        if version or size is None:
            return version or ""
        ends = ((0, min(size, _ENDS)), (max(0, size - _ENDS), size))
        return _version(size, b"".join(data for part in ends for data in store.parts(*part)))


def download(file: str, target: io.BufferedIOBase) -> str:
    """Copy a whole file to ``target`` and return its version (see `version_of`).

    Raises:
        UserError, OSError, ValueError: see `open_remote`; UserError too if the server stops answering.
    """
    store, size, head, tail = _store(file), 0, b"", b""
    for data in store.parts(0, None):
        target.write(data)
        size, head, tail = size + len(data), head + data[: _ENDS - len(head)], (tail + data[-_ENDS:])[-_ENDS:]
    return _commit(file) or store.version or _version(size, head + tail)


def _commit(file: str) -> str | None:
    """The commit in a hub URL; None for a branch, which may move."""
    match = _HUB.fullmatch(file)
    return match["revision"] if match and re.fullmatch(r"[0-9a-f]{40}", match["revision"] or "") else None


def _version(size: int, ends: bytes) -> str:
    return f"{size} {hashlib.blake2b(ends, digest_size=16).hexdigest()}"


def _store(file: str) -> "_WebFile | _StoredFile":
    ours = urlsplit(file).scheme in ("http", "https") or _HUB.fullmatch(file) is not None
    return _WebFile(file) if ours else _StoredFile(file)


def _file_system(file: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    kind = file.partition("://")[0]
    package = _PACKAGES.get(kind)
    advice = f". Install it with: pip install {package}" if package else ""
    with (
        user_errors(f"{file}: cannot be reached"),
        user_errors(f"{file}: not a URL that can be read", ValueError),
        user_errors(f"{file}: {kind}:// needs a package that is not installed", ImportError, then=advice),
    ):
        return url_to_fs(file)


class _StoredFile:
    """A file that fsspec can read."""

    def __init__(self, file: str) -> None:
        self._files, self._path = _file_system(file)

    def open(self) -> Any:
        return self._files.open(self._path, "rb")

    def about(self) -> tuple[int | None, str | None]:
        info = self._files.info(self._path)
        return self._files.size(self._path), next((str(info[name]) for name in _VERSIONS if info.get(name)), None)

    @property
    def version(self) -> str | None:
        return self.about()[1]

    def parts(self, start: int, stop: int | None) -> Iterator[bytes]:
        with self.open() as source:
            source.seek(start)
            while data := source.read(_PIECE if stop is None else min(_PIECE, stop - source.tell())):
                yield data


class RemoteFile(io.RawIOBase):
    """Random access to a file on a web server.

    Raises:
        UserError: no such file, or its server gives whole files only.
    """

    def __init__(self, store: "_WebFile") -> None:
        self._store, self._place = store, 0
        size, _ = store.about()
        if size is None:
            raise UserError(f"{store.file}: its server does not give parts of files. Download it first.")
        self.size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        start, stop = self._place, min(self.size, self._place + len(buffer))
        for data in self._store.parts(start, stop):
            buffer[self._place - start : self._place - start + len(data)] = data
            self._place += len(data)
        return self._place - start


class _WebFile:
    """A file on a web server or the hub, requested in ranges of bytes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._url, self._headers = _resolved(file)
        self.version: str | None = None

    def about(self) -> tuple[int | None, str | None]:
        """Size in bytes, None if the server gives whole files only; and the ETag, if any."""
        failures = 0
        while True:
            try:
                with self._ask(0, 1) as answer:
                    size = (answer.headers["Content-Range"] or "").rpartition("/")[2]
                    return int(size) if answer.status == 206 and size.isdecimal() else None, self.version
            except (OSError, http.client.HTTPException) as error:
                failures = self._wait(failures, error)

    def parts(self, start: int, stop: int | None) -> Iterator[bytes]:
        """The bytes from ``start`` to ``stop`` (default: the end), as they arrive."""
        failures = 0
        while stop is None or start < stop:
            try:
                with self._ask(start, stop) as answer:
                    skip = 0 if answer.status == 206 else start  # the server gives whole files only
                    if stop is None and "Content-Length" in answer.headers:
                        stop = start + int(answer.headers["Content-Length"]) - skip
                    while skip:
                        skip -= len(answer.read(min(skip, _PIECE)) or _dropped())
                    while data := answer.read(_PIECE if stop is None else min(_PIECE, stop - start)):
                        start, failures = start + len(data), 0
                        yield data
                if stop is None or start >= stop:
                    return
                _dropped()
            except (OSError, http.client.HTTPException) as error:
                failures = self._wait(failures, error)

    def _ask(self, start: int, stop: int | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url)
        if start or stop is not None:
            request.add_header("Range", f"bytes={start}-{'' if stop is None else stop - 1}")
        for name, value in self._headers.items():  # not sent to servers that this one redirects to
            request.add_unredirected_header(name, value)
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
        _answered.add(urlsplit(self._url).netloc)
        version = answer.headers["ETag"]
        if self.version not in (None, version):
            raise UserError(f"{self.file}: changed while it was read. Start again.")
        self.version = version
        return answer

    def _wait(self, failures: int, error: Exception) -> int:
        """Wait before a retry, and return the number of failures in a row."""
        said, again = one_line(error), urlsplit(self._url).netloc in _answered
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            said, again = f"{error.code} {said}", True
            if error.code not in _TEMPORARY:
                raise AbsentFileError(f"{self.file}: {said}") from error
        if not again or failures == len(WAITS):
            raise UserError(f"{self.file}: cannot be reached ({said}), tried {failures + 1} times") from error
        time.sleep(WAITS[failures])
        return failures + 1


def _dropped() -> bytes:
    raise ConnectionError("the connection was dropped")


def _resolved(file: str) -> tuple[str, dict[str, str]]:
    """The URL to request, and headers that only its own server may see."""
    match = _HUB.fullmatch(file)
    if match is None:
        return file, {}
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    folder = f"{match['kind']}/" if match["kind"] else ""
    revision, path = quote(unquote(match["revision"] or "main"), safe=""), quote(match["path"])
    url = f"{constants.ENDPOINT}/{folder}{match['set']}/resolve/{revision}/{path}"
    headers = {name.title(): value for name, value in build_hf_headers().items()}
    return url, {name: value for name, value in headers.items() if name in ("Authorization", "User-Agent")}
