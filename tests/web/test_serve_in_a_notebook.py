"""Calling `search` and `serve` from Python and notebooks."""

import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

import recollect
from colors import COLORS, ColorEncoder, paint
from recollect.core.errors import UserError
from recollect.index import Index


@pytest.fixture
def index(tmp_path):
    for number, name in enumerate(("red", "green", "blue")):
        paint(tmp_path / "photos" / f"{name}.png", COLORS[name], number)
    Index.build(tmp_path / "photos", ColorEncoder(), out=tmp_path / "index")
    return Index.open(tmp_path / "index", ColorEncoder())


def test_search_accepts_texts_pictures_hits_and_vectors(index, tmp_path):
    file = tmp_path / "photos/green.png"
    hit = index.search("green", k=1)[0]
    vector = index.vectors([hit.id])[0]
    queries = ["green", file, Image.open(file), np.asarray(Image.open(file)), file.read_bytes(), hit, hit.picture,
             vector, vector[None], vector.tolist()]  # fmt: skip
    for each in queries:
        assert index.search(each, k=1)[0].path == file, type(each)
    with pytest.raises(UserError, match="not a query"):
        index.search([])


def test_in_a_notebook_the_page_runs_in_the_background(index):
    pytest.importorskip("uvicorn", reason="needs the web extra")
    page = recollect.serve(index, wait=False)
    frame = page._repr_html_()
    assert page.url in frame
    framed = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    with urllib.request.urlopen(urllib.request.Request(page.url, headers=framed), timeout=60) as answer:
        assert "frame-ancestors http://localhost:*" in answer.headers["content-security-policy"]
        assert b"<!doctype html>" in answer.read()
    page.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page.url, timeout=5)
