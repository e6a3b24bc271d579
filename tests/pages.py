"""Index of colored pictures, and its page on a free port."""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import pytest

from colors import COLORS, ColorEncoder, shade
from pictures import encoded
from recollect.index import File, Index, Rows

HOSTILE = '<img src=x onerror="window.hacked=1">green'


def color_index(folder, rows=60):
    """Index red, green and blue pictures; the second-to-last caption is hostile, the last picture damaged."""
    names = list(COLORS)
    images = [shade(COLORS[names[i % 3]], i) for i in range(rows)]
    encoder = ColorEncoder()
    captions = [f"{names[i % 3]} number {i}" for i in range(rows)]
    captions[-2] = HOSTILE
    data = [encoded(image) for image in images]
    data[-1] = b"not a picture"
    ids = [f"{names[i % 3]}/{i}.png" for i in range(rows)]
    index = Index.create(folder, width=3, model=encoder.fingerprint, model_name="colors")
    index.insert(
        Rows(
            ids=ids,
            image_vectors=encoder.embed_images(images).numpy(),
            captions=[(caption,) for caption in captions],
            caption_vectors=list(encoder.embed_texts(captions).numpy()[:, None]),
            files=[(File("paint", id),) for id in ids],
            metadata=[{"number": i} for i in range(rows)],
            images=data,
        )
    )
    return index


@dataclass
class RunningPage:
    """A running page."""

    address: str
    session: object
    folder: object

    def call(self, path, body=None, method=None, headers=None, raw=False):
        """Send a request as the page's script does; return its status and body."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        method = method or ("GET" if data is None else "POST")
        own = {"x-recollect": "1"} if headers is None else headers
        if data is not None:
            own = {"content-type": "application/json", **own}
        request = urllib.request.Request(self.address + path, data, own, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content, status, received = answer.read(), answer.status, answer.headers
        except urllib.error.HTTPError as error:
            content, status, received = error.read(), error.code, error.headers
        return status, (content, received) if raw else (json.loads(content) if content else {})

    def list(self, **ask):
        """Return the response of `POST /api/list`."""
        status, answer = self.call("/api/list", ask)
        assert status == 200, answer
        return answer


def until(condition, seconds=60):
    """Wait for a condition to become true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def start(folder, encoder=None):
    """Serve an index in a thread; return the page and a function that stops it."""
    pytest.importorskip("uvicorn", reason="needs the web extra")
    from recollect.web import Page

    page = Page(Index.open(folder, encoder or ColorEncoder()), port=0).start()
    page.session.prepare()
    address = f"http://127.0.0.1:{page.listening.getsockname()[1]}"
    return RunningPage(address, page.session, folder), page.stop
