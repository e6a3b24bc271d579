"""The page of one index: open it, listen, and stop in time."""

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
from recollect.models.starter.words import noted_fingerprint, starter_words
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
PORT = 8517

PATIENCE = 5.0
"""Seconds to wait for requests under way before the process ends; finding duplicates may take a minute."""


class Page:
    """The page of an index, which starts to listen when it is made.

    Args:
        host: where to listen; on an address that others can reach only with a token.
        port: where to listen; 0 takes any free port.
        token: a secret of at least 16 letters and digits that a browser must know.
        labels: SQLite file for labels; in the folder of the index by default.
        out: folder for saved classifiers; in the folder of the index by default.
        folder: pictures that the index is filled with and follows.
        embedded: let a notebook on this machine show it in a cell.

    Raises:
        UserError: an option is wrong, the port is in use, or there is no place for labels.
    """

    def __init__(
        self,
        index: Index,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        token: str | None = None,
        labels: Path | None = None,
        out: Path | None = None,
        folder: Path | None = None,
        embedded: bool = False,
    ) -> None:
        check_address(host, port, token)
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
        self.listening.listen(128)  # so that a browser that opens the address now is answered
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = "127.0.0.1" if self.host == "localhost" else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{f'?token={self.token}' if self.token else ''}"

    @property
    def url(self) -> str:
        """The address by the name ``localhost``, as notebooks are opened: a frame keeps its cookies then."""
        return self.address.replace("127.0.0.1", "localhost")

    def _repr_html_(self) -> str:
        style = "width:100%;height:720px;border:1px solid #ccc;border-radius:6px"
        return f"<iframe src='{self.url}' style='{style}' allow='clipboard-write'></iframe>"

    def run(self) -> None:
        """Serve until interrupted."""
        timers = end_in_time(self._server)
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
    port: int = PORT,
    token: str | None = None,
    labels: Path | None = None,
    out: Path | None = None,
    open_browser: bool = False,
    wait: bool | None = None,
) -> "Page | None":
    """Show an index, or a folder of pictures, in the browser until interrupted; see `Page`.

    In a notebook the page is shown below the cell, which ends at once: ``page = recollect.serve(index)`` has
    ``page.url`` and ``page.stop()``.

    A folder of pictures is indexed while its page is open, and watched from then on; the same folder opens the same
    index (`recollect.web.folder`). Nothing is fetched from elsewhere, and nothing is sent anywhere.

    Args:
        index: an index, its address, or a folder of pictures.
        model: the model of the index, where that is not what the index remembers; of a new folder the model to use.
        wait: serve until interrupted, and return None; otherwise return the running page. In a notebook the default is
            False, elsewhere True.

    Raises:
        UserError: there is no such index or folder, the folder has no pictures, or as `Page`.
    """
    wait = not _in_notebook() if wait is None else wait
    check_address(host, port, token)
    port = 0 if port == PORT and not wait else port  # several cells may each show a page
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
    """What a new index is to remember of a model, and the model; the starter is opened when first needed, if known."""
    if model is None and (words := starter_words(known := noted_fingerprint())) is not None:
        return Record(words.width, str(known), STARTER, caption_prefix(words)), None
    encoder, name = encoder_and_name(model)
    return Record(encoder.width, encoder.fingerprint, name, caption_prefix(encoder)), encoder


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def _has_screen() -> bool:
    """Whether a browser can open a window; a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def check_address(host: str, port: int, token: str | None) -> None:
    """Reject a place to listen that is impossible, or unsafe.

    Raises:
        UserError: naming the option.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: between 0 and 65535")
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isalnum()):
        raise UserError("--token: at least 16 letters and digits, for example from `openssl rand -hex 16`")
    if host not in LOOPBACK and token is None:
        raise UserError(f"--host {host}: others could open the page. Set a secret with --token as well.")


def end_in_time(server: Any, patience: float = PATIENCE) -> list[threading.Timer]:
    """End the process ``patience`` seconds after a uvicorn server gets a signal, and at once after a second signal.

    The threads that answer requests cannot be stopped, so the process ends with them. Nothing is lost: every mark is on
    disk before it is answered, and other files are written whole or not at all.

    Returns:
        Timers, to be canceled when the server has ended by itself.
    """
    usual, timers = server.handle_exit, list[threading.Timer]()

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
        usual(number, frame)

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
            raise UserError(f"--port {port}: in use. Choose another, or 0 for any free one.") from None
        raise UserError(f"--host {host} --port {port}: {error.strerror}") from None
    return listening
