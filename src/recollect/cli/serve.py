"""``recollect serve``: a memory in the browser."""

import errno
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.cli.positionals import MemoryPlace
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.progress import output, printable
from recollect.memory.opening import open_model_of
from recollect.memory.store import Memory
from recollect.web.collection import Collection
from recollect.web.label_store import LabelStore
from recollect.web.session import Session
from recollect.web.stopping import end_in_time

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Serve:
    """Open a memory in the browser: search, look, teach classes by clicks, keep them as classifiers.

    Everything stays on this machine: nothing is fetched from elsewhere and nothing is reported. Clicks are kept in
    MEMORY/annotations.sqlite before they are answered.
    """

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    model: str | None = None
    """The model that embedded the memory; by default where it was then."""
    host: str = "127.0.0.1"
    """Where to listen. Beyond this machine only with --token."""
    port: int = 8517
    """Where to listen; 0 takes any that is free."""
    token: str | None = None
    """A secret of at least 16 letters that a browser must know; needed when others can reach the page."""
    log: Path | None = None
    """File for the clicks (default: MEMORY/annotations.sqlite). A clicks.jsonl of an earlier version is taken over."""
    out: Path | None = None
    """Folder that classifiers are saved in; MEMORY/page/classifiers by default."""
    device: str | None = None
    """Where to compute; the best there is by default."""

    def run(self) -> None:
        """Open, listen, say where, until interrupted."""
        self._check()
        try:
            import uvicorn

            from recollect.web.api import create_app
        except ImportError:
            raise UserError("the page needs fastapi and uvicorn: pip install 'recollect[web]'") from None
        listening = self._listen()
        with listening:
            session = self._session()
            loopback = self.host in LOOPBACK
            app = create_app(session, frozenset(LOOPBACK) if loopback else frozenset(), self.token)
            listening.listen(128)  # whoever opens the address that is printed now is answered in a moment
            output().print(
                f"page: {self.address(listening.getsockname()[1])} ({session.collection.tiles:,} pictures; stop with "
                "Ctrl-C)",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
            config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
            server = uvicorn.Server(config)
            ended = end_in_time(server)
            try:
                server.run(sockets=[listening])
            finally:
                ended.set()
                session.labels.close()
                session.collection.close()

    def address(self, port: int) -> str:
        """What to open in a browser."""
        host = "127.0.0.1" if self.host == "localhost" else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/{f'?token={self.token}' if self.token else ''}"

    def _check(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port {self.port}: between 0 and 65535")
        if self.token is not None and (len(self.token) < 16 or not self.token.isascii() or not self.token.isalnum()):
            raise UserError("--token: at least 16 letters and digits, for example from `openssl rand -hex 16`")
        check_writable(self.log, "--log")
        check_writable(self.out, "--out")
        if self.host not in LOOPBACK and self.token is None:
            raise UserError(f"--host {self.host}: others could open the page. Name a secret with --token as well.")

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE:
                raise UserError(f"--port {self.port}: in use. Name another, or 0 for any that is free.") from None
            raise UserError(f"--host {self.host} --port {self.port}: {error.strerror}") from None
        return listening

    def _session(self) -> Any:

        memory = Memory.open(self.memory)
        if "://" in self.memory and self.log is None:
            raise UserError(f"{self.memory}: is no folder. Name a file for the clicks with --log.")
        page = Path(self.memory) / "page"
        log = self.log or Path(self.memory) / "annotations.sqlite"
        old = log if log.suffix == ".jsonl" else page / "clicks.jsonl"
        labels = LabelStore(log.with_suffix(".sqlite") if log == old else log, old)
        began = time.perf_counter()
        encoder, name = open_model_of(memory, self.model, self.device)
        output().print(f"model loaded in {time.perf_counter() - began:.1f} s", highlight=False)
        began = time.perf_counter()
        collection = Collection(memory)
        out = self.out or (self.log.parent if self.log else page) / "classifiers"
        session = Session(collection, encoder, labels, out, name)
        threading.Thread(target=session.prepare, name="prepare", daemon=True).start()  # nobody waits for it
        output().print(f"memory opened in {time.perf_counter() - began:.1f} s", highlight=False)
        self._say_what_cannot_be_written(labels.path)
        return session

    def _say_what_cannot_be_written(self, log: Path) -> None:
        """Now, rather than when somebody has clicked for an hour."""
        if "://" in self.memory:
            return
        try:
            check_writable(self.memory, "MEMORY")
        except UserError:
            text = f"note: {self.memory} cannot be written to: clicks are kept in {log}, but no labels in the memory"
            output().print(printable(text), style="yellow", highlight=False, soft_wrap=True)
