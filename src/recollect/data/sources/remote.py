"""Files at URLs, read in parts. A read that is interrupted by a dropped connection continues where it stopped.

``http://``, ``https://`` and ``hf://`` need only Python; fsspec opens all other URLs.
"""

import hashlib
import http.client
import io
import re
import shutil
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
    if not _on_web(file):
        files, path = _file_system(file)
        return files.open(path, "rb")
    found = WebFile(file)
    if found.size is None:
        raise UserError(f"{file}: its server does not give parts of files. Download it first.")
    return found


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
    match = _HUB.fullmatch(file)
    if match and re.fullmatch(r"[0-9a-f]{40}", match["revision"] or ""):  # a branch may move, a commit does not
        return match["revision"]
    with user_errors(f"{file}: cannot be reached"):
        if _on_web(file):
            opened: Any = WebFile(file)
            size, version = opened.size, opened.version
        else:
            files, path = _file_system(file)
            about = files.info(path)
            size, version = files.size(path), next((str(about[name]) for name in _VERSIONS if about.get(name)), None)
            opened = None if version else files.open(path, "rb")
        if version or size is None:
            return version or ""
        digest = hashlib.blake2b(digest_size=16)
        for start in (0, max(0, size - _ENDS)):
            opened.seek(start)
            digest.update(opened.read(_ENDS))
        return f"{size} {digest.hexdigest()}"


def download(file: str, target: io.BufferedIOBase) -> None:
    """Copy a whole file to ``target``.

    Raises:
        UserError, OSError, ValueError: see `open_remote`; UserError too if the server stops answering.
    """
    if _on_web(file):
        for data in WebFile(file).parts(0, None):
            target.write(data)
    else:
        with open_remote(file) as source:
            shutil.copyfileobj(source, target, _PIECE)


def _on_web(file: str) -> bool:
    return urlsplit(file).scheme in ("http", "https") or _HUB.fullmatch(file) is not None


def _file_system(file: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    with (
        user_errors(f"{file}: cannot be reached"),
        user_errors(f"{file}: not a URL that can be read", ValueError),
        user_errors(f"{file}: needs a package that is not installed", ImportError),  # fsspec names it
    ):
        return url_to_fs(file)


class WebFile(io.RawIOBase):
    """A file on a web server or the hub, requested in ranges of bytes.

    Attributes:
        version: its ETag; None if it has none, or nothing was requested yet.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.version: str | None = None
        self._url, self._headers = _resolved(file)
        self._place = 0
        self._size: int | None = -1

    @property
    def size(self) -> int | None:
        """In bytes; None if the server gives whole files only."""
        failures = 0
        while self._size == -1:
            try:
                with self._ask(0, 1) as answer:
                    total = (answer.headers["Content-Range"] or "").rpartition("/")[2]
                    self._size = int(total) if answer.status == 206 and total.isdecimal() else None
            except (OSError, http.client.HTTPException) as error:
                failures = self._wait(failures, error)
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size or 0}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        start, stop = self._place, min(self.size or 0, self._place + len(buffer))
        for data in self.parts(start, stop):
            buffer[self._place - start : self._place - start + len(data)] = data
            self._place += len(data)
        return self._place - start

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
        reason, again = one_line(error), urlsplit(self._url).netloc in _answered
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            reason, again = f"{error.code} {reason}", True
            if error.code not in _TEMPORARY:
                raise AbsentFileError(f"{self.file}: {reason}") from error
        if not again or failures == len(WAITS):
            raise UserError(f"{self.file}: cannot be reached ({reason}), tried {failures + 1} times") from error
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
