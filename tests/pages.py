"""A memory of coloured pictures, and its page on a free port."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import pytest

from colours import COLOURS, ColourEncoder, shade
from pictures import encoded
from recollect.memory.rows import Pairs
from recollect.memory.store import Memory

HOSTILE = '<img src=x onerror="window.hacked=1">green'


def colour_memory(folder, rows=60):
    """Red, green and blue in turn; the last caption is hostile, the last picture damaged."""
    names = list(COLOURS)
    images = [shade(COLOURS[names[i % 3]], i) for i in range(rows)]
    encoder = ColourEncoder()
    captions = [f"{names[i % 3]} number {i}" for i in range(rows)]
    captions[-2] = HOSTILE
    data = [encoded(image) for image in images]
    data[-1] = b"not a picture"
    memory = Memory.create(folder, width=3, model=encoder.fingerprint, model_name="colours")
    memory.add(
        Pairs(
            ids=[f"{names[i % 3]}/{i}.png" for i in range(rows)],
            image_vectors=encoder.embed_images(images).numpy(),
            text_vectors=encoder.embed_texts(captions).numpy(),
            captions=captions,
            model=encoder.fingerprint,
            sources=["paint"] * rows,
            metadata=[{"number": i} for i in range(rows)],
            images=data,
        )
    )
    return memory


@dataclass
class Page:
    """A running page."""

    address: str
    session: object
    folder: object

    def call(self, path, body=None, method=None, headers=None, raw=False):
        """Status and answer of a request, as the page's own script would make it."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        method = method or ("GET" if data is None else "POST")
        own = {"x-recollect": "1"} if headers is None else headers
        if data is not None:
            own = {"content-type": "application/json", **own}
        request = urllib.request.Request(self.address + path, data, own, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                content, status, given = answer.read(), answer.status, answer.headers
        except urllib.error.HTTPError as error:
            content, status, given = error.read(), error.code, error.headers
        return status, (content, given) if raw else (json.loads(content) if content else {})


def start(folder, token=None, encoder=None, name="colours"):
    """Serve the memory in a thread; returns the page and how to stop it."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs the web extra")
    from recollect.web.api import create_app
    from recollect.web.collection import Collection
    from recollect.web.label_store import LabelStore
    from recollect.web.session import Session

    labels = LabelStore(folder / "annotations.sqlite")
    kept = folder / "page/classifiers"
    session = Session(Collection(Memory.open(folder)), encoder or ColourEncoder(), labels, kept, name)
    session.prepare()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    app = create_app(session, frozenset(("127.0.0.1", "localhost")), token)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)

    def stop():
        server.should_exit = True
        thread.join(10)
        labels.close()
        session.collection.close()

    return Page(f"http://127.0.0.1:{listening.getsockname()[1]}", session, folder), stop
