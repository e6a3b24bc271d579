"""Random access to files at URLs; reads resume after dropped connections.

``http://``, ``https://`` and ``hf://`` need only the standard library; all other URLs are opened by fsspec.
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

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry, for servers that have answered this process before."""

_TIMEOUT = 30.0
_CHUNK = 2**20
_EDGE_BYTES = 2**16  # bytes hashed at each end of a file to identify its version
_HUB = re.compile(r"hf://(?:(?P<kind>datasets|spaces)/)?(?P<set>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
"""Keys of fsspec's file info that change with the content."""

_answered: set[str] = set()
"""Servers that have answered this process; others are not retried."""


class AbsentFileError(UserError):
    """The server has no such file, or denies access."""


def is_address(file: str) -> bool:
    """Whether a file is a URL rather than a local path."""
    return "://" in file


def open_remote(file: str) -> Any:
    """Open a file for random access.

    Raises:
        UserError: the file does not exist, the server does not support range requests, or a package for this kind of
            URL is not installed.
        OSError, ValueError: from fsspec's file system.
    """
    if not _on_web(file):
        files, path = _file_system(file)
        return files.open(path, "rb")
    opened = WebFile(file)
    if opened.size is None:
        raise UserError(f"{file}: its server does not support range requests. Download the file first.")
    return opened


def listed(pattern: str) -> list[str]:
    """Return all URLs that match a pattern with ``*``, or all files in and below a folder (``…/``), sorted.

    Raises:
        UserError: nothing matches, or the server cannot list files.
    """
    if urlsplit(pattern).scheme in ("http", "https"):
        raise UserError(f"{pattern}: web servers cannot list files. Name them: shard-{{000..099}}.tar")
    store, path = _file_system(pattern)
    with user_errors(f"{pattern}: cannot be listed"):
        names = sorted(store.find(path) if pattern.endswith("/") else store.glob(path))
    if not names:
        raise UserError(f"{pattern}: no such file")
    return [str(store.unstrip_protocol(name)) for name in names]


def version_of(file: str) -> str:
    """Return a string that changes with a file's content.

    It is the hub commit in the URL, else the ETag, else the size and a digest of the first and last 64 KiB. It is empty
    if the server sends no ETag and does not support range requests.

    Raises:
        UserError: the file cannot be reached.
    """
    match = _HUB.fullmatch(file)
    if match and re.fullmatch(r"[0-9a-f]{40}", match["revision"] or ""):  # a commit, not a branch
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
        for start in (0, max(0, size - _EDGE_BYTES)):
            opened.seek(start)
            digest.update(opened.read(_EDGE_BYTES))
        return f"{size} {digest.hexdigest()}"


def download(file: str, target: io.BufferedIOBase) -> None:
    """Copy a whole file to ``target``.

    Raises:
        UserError, OSError, ValueError: see `open_remote`; also UserError if the server stops responding.
    """
    if _on_web(file):
        for data in WebFile(file).parts(0, None):
            target.write(data)
    else:
        with open_remote(file) as source:
            shutil.copyfileobj(source, target, _CHUNK)


def _on_web(file: str) -> bool:
    return urlsplit(file).scheme in ("http", "https") or _HUB.fullmatch(file) is not None


def _file_system(file: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    with (
        user_errors(f"{file}: cannot be reached"),
        user_errors(f"{file}: not a supported URL", ValueError),
        user_errors(f"{file}: needs a package that is not installed", ImportError),  # fsspec's message names it
    ):
        return url_to_fs(file)


class WebFile(io.RawIOBase):
    """File on a web server or the hub, read with range requests.

    Attributes:
        version: ETag; None if there is none, or before the first request.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.version: str | None = None
        self._url, self._headers = _url_and_headers(file)
        self._position = 0
        self._size: int | None = -1

    @property
    def size(self) -> int | None:
        """Size in bytes; None if the server does not support range requests."""
        failures = 0
        while self._size == -1:
            try:
                with self._request(0, 1) as answer:
                    total = (answer.headers["Content-Range"] or "").rpartition("/")[2]
                    self._size = int(total) if answer.status == 206 and total.isdecimal() else None
            except (OSError, http.client.HTTPException) as error:
                failures = self._back_off(failures, error)
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size or 0}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        start, stop = self._position, min(self.size or 0, self._position + len(buffer))
        for data in self.parts(start, stop):
            buffer[self._position - start : self._position - start + len(data)] = data
            self._position += len(data)
        return self._position - start

    def parts(self, start: int, stop: int | None) -> Iterator[bytes]:
        """Yield the bytes from ``start`` up to ``stop`` (None: the end) as they arrive."""
        failures = 0
        while stop is None or start < stop:
            try:
                with self._request(start, stop) as answer:
                    skip = 0 if answer.status == 206 else start  # other statuses return the whole file
                    if stop is None and "Content-Length" in answer.headers:
                        stop = start + int(answer.headers["Content-Length"]) - skip
                    while skip:
                        skip -= len(answer.read(min(skip, _CHUNK)) or _raise_dropped())
                    while data := answer.read(_CHUNK if stop is None else min(_CHUNK, stop - start)):
                        start, failures = start + len(data), 0
                        yield data
                if stop is None or start >= stop:
                    return
                _raise_dropped()
            except (OSError, http.client.HTTPException) as error:
                failures = self._back_off(failures, error)

    def _request(self, start: int, stop: int | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url)
        if start or stop is not None:
            request.add_header("Range", f"bytes={start}-{'' if stop is None else stop - 1}")
        for name, value in self._headers.items():  # not sent to servers after a redirect
            request.add_unredirected_header(name, value)
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
        _answered.add(urlsplit(self._url).netloc)
        version = answer.headers["ETag"]
        if self.version not in (None, version):
            raise UserError(f"{self.file}: changed during reading. Start again.")
        self.version = version
        return answer

    def _back_off(self, failures: int, error: Exception) -> int:
        """Wait before a retry, and return the number of consecutive failures."""
        reason, retry = one_line(error), urlsplit(self._url).netloc in _answered
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            reason, retry = f"{error.code} {reason}", True
            if error.code not in _TEMPORARY:
                raise AbsentFileError(f"{self.file}: {reason}") from error
        if not retry or failures == len(RETRY_SECONDS):
            raise UserError(f"{self.file}: cannot be reached ({reason}) after {failures + 1} attempts") from error
        time.sleep(RETRY_SECONDS[failures])
        return failures + 1


def _raise_dropped() -> bytes:
    raise ConnectionError("the connection was dropped")


def _url_and_headers(file: str) -> tuple[str, dict[str, str]]:
    """Return the URL to request, and headers that must not be sent to other servers."""
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
