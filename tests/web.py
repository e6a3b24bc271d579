"""A server of files, that answers as a store or as the Hugging Face hub does, and can be told to fail."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"


class Web:
    """What is served, what fails, and what was asked.

    Attributes:
        folder: of the files.
        cut: for each file, how many more answers stop in the middle, as a connection that is dropped does.
        refused: likewise, how many are 503.
        asked: how often each was asked for.
        ranges: whether parts of files are given.
        version: of all files; None where none is told.
        address: of the server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.ranges = True
        self.version: str | None = '"0"'
        self.lock = threading.Lock()
        self.address = ""

    def due(self, faults: Counter[str], name: str) -> bool:
        """Whether it is this answer's turn to fail."""
        with self.lock:
            due = faults[name] > 0
            faults[name] -= due
            return due


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the length is told, so that a dropped connection can be known
    web: Web

    def log_message(self, *_) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def tell(self, value: object) -> None:
        self.give(json.dumps(value).encode(), True, "application/json", "")

    def answer(self, body: bool) -> None:
        place = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/revision/\w+)?", place):
            files = [file.relative_to(self.web.folder).as_posix() for file in sorted(self.web.folder.rglob("*.*"))]
            self.tell({"id": match[1], "sha": SHA, "siblings": [{"rfilename": file} for file in files]})
        else:
            name = re.sub(r"^/datasets/[^/]+/[^/]+/resolve/\w+/", "/", place).lstrip("/")
            file = self.web.folder / name
            if not file.is_file():
                self.send_error(404)
                return
            with self.web.lock:
                self.web.asked[name] += 1
            if body and self.web.due(self.web.refused, name):
                self.send_error(503)
                return
            self.give(file.read_bytes(), body, "application/octet-stream", name)

    def give(self, data: bytes, body: bool, kind: str, name: str) -> None:
        first, last, status = 0, len(data), 200
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted and self.web.ranges and name:
            status = 206
            if wanted[1]:
                first, last = int(wanted[1]), min(len(data), int(wanted[2] or len(data)) + 1)
            else:
                first = len(data) - int(wanted[2])
        part = data[first:last]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(part)))
        if name and self.web.version:
            self.send_header("ETag", self.web.version)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        if name and self.web.due(self.web.cut, name):
            part = part[: len(part) // 2]
            self.close_connection = True
        self.wfile.write(part)


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """Serve a folder while the block runs."""
    web = Web(folder)
    handler = type("Handler", (_Handler,), {"web": web})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    web.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
