"""File server that imitates object storage and the Hugging Face hub, and can fail on demand."""

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
    """Served files, planned failures and received requests.

    Attributes:
        folder: folder of the files.
        cut: for each file, how many more responses break off in the middle, like a dropped connection.
        refused: for each file, how many more responses are 503.
        requests: number of requests for each file.
        ranges: whether range requests are supported.
        version: ETag of all files; None to send none.
        address: URL of the server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.ranges = True
        self.version: str | None = '"0"'
        self.lock = threading.Lock()
        self.address = ""

    def due(self, faults: Counter[str], name: str) -> bool:
        """Return whether this response must fail, and count it."""
        with self.lock:
            due = faults[name] > 0
            faults[name] -= due
            return due


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # responses have a length, so clients notice dropped connections
    web: Web

    def log_message(self, *_) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def send_json(self, value: object) -> None:
        self.send(json.dumps(value).encode(), True, "application/json", "")

    def answer(self, body: bool) -> None:
        place = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/revision/\w+)?", place):
            files = [file.relative_to(self.web.folder).as_posix() for file in sorted(self.web.folder.rglob("*.*"))]
            self.send_json({"id": match[1], "sha": SHA, "siblings": [{"rfilename": file} for file in files]})
        else:
            name = re.sub(r"^/datasets/[^/]+/[^/]+/resolve/\w+/", "/", place).lstrip("/")
            file = self.web.folder / name
            if not file.is_file():
                self.send_error(404)
                return
            with self.web.lock:
                self.web.requests[name] += 1
            if body and self.web.due(self.web.refused, name):
                self.send_error(503)
                return
            self.send(file.read_bytes(), body, "application/octet-stream", name)

    def send(self, data: bytes, body: bool, kind: str, name: str) -> None:
        first, last, status = 0, len(data), 200
        requested = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if requested and self.web.ranges and name:
            status = 206
            if requested[1]:
                first, last = int(requested[1]), min(len(data), int(requested[2] or len(data)) + 1)
            else:
                first = len(data) - int(requested[2])
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
