"""Server of the page: open the index, listen, and shut down promptly."""

import errno
import os
import socket
import sys
import threading
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from recollect.core.errors import UserError
from recollect.core.progress import output, printable
from recollect.core.types import Encoder, caption_prefix
from recollect.index import Index, Record
from recollect.index.model import encoder_and_name
from recollect.models.pretrained import STARTER
from recollect.models.starter.words import cached_fingerprint, starter_words
from recollect.web.folder import open_folder, pictures_in

try:
    import uvicorn

    from recollect.web.api import create_app
    from recollect.web.guard import Guard
    from recollect.web.libraries import Libraries
    from recollect.web.session import open_session
except ImportError:
    raise UserError("the page needs fastapi and uvicorn: pip install 'recollect[web]'") from None

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORT = 8517

_SHUTDOWN_TIMEOUT = 5.0
"""Seconds to wait for running requests before the process ends; finding duplicates may take a minute."""


class Page:
    """Web page of an index; creating it binds the port.

    Args:
        host: address to listen on; an address that other machines can reach requires a token.
        port: port to listen on; 0 chooses a free port.
        token: secret that browsers must send, at least 16 letters and digits.
        labels: SQLite file for labels; in the folder of the index by default.
        out: folder for saved classifiers; in the folder of the index by default.
        folder: folder of pictures to add to the index and watch.
        embedded: let a notebook on this machine show the page in a cell.

    Raises:
        UserError: an option is invalid, the port is in use, or labels cannot be saved.
    """

    def __init__(
        self,
        index: Index,
        *,
        host: str = "127.0.0.1",
        port: int = _PORT,
        token: str | None = None,
        labels: Path | None = None,
        out: Path | None = None,
        folder: Path | None = None,
        embedded: bool = False,
    ) -> None:
        _check_address(host, port, token)
        self.host, self.token = host, token
        self.listening = _listen(host, port)
        self.port = int(self.listening.getsockname()[1])
        try:
            self.session = open_session(index, folder, labels, out, local=host in LOOPBACK)
        except BaseException:
            self.listening.close()
            raise
        hosts = frozenset(LOOPBACK) if host in LOOPBACK else frozenset[str]()
        self.libraries = Libraries(self.session)
        app = Guard(create_app(self.libraries), hosts, token, embedded)
        self.listening.listen(128)  # from now on, a browser that opens the address waits for the server
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Address to open in a browser, with the token."""
        host = "127.0.0.1" if self.host == "localhost" else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{f'?token={self.token}' if self.token else ''}"

    @property
    def url(self) -> str:
        """Address with the host name ``localhost`` like notebooks, so a frame in a notebook keeps its cookies."""
        return self.address.replace("127.0.0.1", "localhost")

    def _repr_html_(self) -> str:
        style = "width:100%;height:720px;border:1px solid #ccc;border-radius:6px"
        return f"<iframe src='{self.url}' style='{style}' allow='clipboard-write'></iframe>"

    def run(self) -> None:
        """Serve until interrupted."""
        timers = exit_after_timeout(self._server)
        self.session.start()
        try:
            self._server.run(sockets=[self.listening])
        finally:
            for timer in timers:
                timer.cancel()
            self.close()

    def start(self) -> "Page":
        """Serve in a thread, until `stop`."""
        self.session.start()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self.listening]}, name="page", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)
        self.close()

    def close(self) -> None:
        """Close the files."""
        self.libraries.close()
        self.listening.close()


def serve(
    index: Index | str | Path,
    model: Encoder | str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = _PORT,
    token: str | None = None,
    labels: Path | None = None,
    out: Path | None = None,
    open_browser: bool = False,
    wait: bool | None = None,
) -> "Page | None":
    """Show an index or a folder of pictures in the browser until interrupted.

    In a notebook, the call returns immediately and the page appears below the cell: ``page = recollect.serve(index)``
    has ``page.url`` and ``page.stop()``.

    A folder is indexed in the background and then watched; the same folder always opens the same index
    (`recollect.web.folder`). The page loads nothing from the internet and sends nothing to it.

    Args:
        index: an index, its address, or a folder of pictures.
        model: model for a new folder, or the model of the index if it has moved; by default the starter, or the model
            recorded in the index.
        host, port, token, labels, out: see `Page`.
        open_browser: open the page in the default browser.
        wait: serve until interrupted and return None; if False, return the running page. True by default, except in
            notebooks.

    Raises:
        UserError: the index or folder does not exist, the folder has no pictures, or as in `Page`.
    """
    wait = not _in_notebook() if wait is None else wait
    _check_address(host, port, token)
    port = 0 if port == _PORT and not wait else port  # several cells may each show their own page
    folder = None if isinstance(index, Index) else pictures_in(str(index))
    if folder is not None:
        index = open_folder(folder, *_model_of_folder(model))
    elif not isinstance(index, Index):
        index = Index.open(index, model)
    page = Page(
        index, host=host, port=port, token=token, labels=labels, out=out, folder=folder, embedded=not wait
    )  # fmt: skip
    if not wait:
        return page.start()
    what = f"{len(page.session.library.index):,} pictures" if folder is None else str(folder)
    output().print(printable(f"page: {page.address} ({what}; stop with Ctrl-C)"), highlight=False, soft_wrap=True)
    if open_browser and _has_screen():
        with suppress(webbrowser.Error):
            webbrowser.open(page.address)
    page.run()
    return None


def _model_of_folder(model: Encoder | str | None) -> tuple[Record, Encoder | None]:
    """Return the model's record for a new index, and the model; None to open the starter on first use, if possible."""
    if model is None and (words := starter_words(known := cached_fingerprint())) is not None:
        return Record(words.width, str(known), STARTER, caption_prefix(words)), None
    encoder, name = encoder_and_name(model)
    return Record(encoder.width, encoder.fingerprint, name, caption_prefix(encoder)), encoder


def _in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def _has_screen() -> bool:
    """Whether a browser can open a window; without a screen, a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _check_address(host: str, port: int, token: str | None) -> None:
    """Reject an invalid or unsafe address to listen on.

    Raises:
        UserError: an option is invalid, or --token is missing.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: must be between 0 and 65535")
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isalnum()):
        raise UserError("--token: must have at least 16 letters and digits, e.g. from `openssl rand -hex 16`")
    if host not in LOOPBACK and token is None:
        raise UserError(f"--host {host}: other machines could open the page. Also set a secret with --token.")


def exit_after_timeout(server: Any, patience: float = _SHUTDOWN_TIMEOUT) -> list[threading.Timer]:
    """End the process ``patience`` seconds after a uvicorn server gets a signal, or immediately after a second signal.

    Threads that answer requests cannot be stopped, so the process is ended with them. No data is lost: every mark is on
    disk before the response, and all other files are written atomically.

    Returns:
        Timers, to be canceled when the server has stopped by itself.
    """
    handle_exit, timers = server.handle_exit, list[threading.Timer]()

    def leave(number: int) -> None:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(128 + number)

    def handle(number: int, frame: FrameType | None) -> None:
        if timers:
            leave(number)
        timers.append(threading.Timer(patience, leave, [number]))
        timers[0].daemon = True
        timers[0].start()
        handle_exit(number, frame)

    server.handle_exit = handle
    return timers


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"--port {port}: in use. Choose another port, or 0 for any free port.") from None
        raise UserError(f"--host {host} --port {port}: {error.strerror}") from None
    return listening
