"""Search results as JSON and as a self-contained page."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from recollect.cli.gallery import hits_as_json, save_results, thumbnail
from recollect.index import File, Hit, Hits, Picture


def png(red):
    buffer = io.BytesIO()
    Image.fromarray(np.full((300, 400, 3), (red, 0, 0), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def picture(id, caption, data, source="", path=""):
    files = (File(source, path, path),) if source else ()
    return Picture(id, (caption,) if caption else (), files=files, where=id, _bytes=lambda: data)


HITS = (
    Hit(picture("one", "a <b>red</b> tree", png(200), "trees", "/p/a tree.png"), 0.31, "episode", 0.25, 4),
    Hit(picture("two", "", None), 0.3, "episode", 0.28, 1),
    Hit(picture("three", "a car & a river", png(20)), 0.29, "model", 0.29, 3),
)
RESULTS = [
    Hits(HITS, 'a "red" <tree>', ("1 of 3 pictures cannot be opened",), 1, 9, 6),
    Hits((), " ", ("empty query",)),
]


def test_a_page_shows_every_hit_and_escapes_captions(tmp_path):
    save_results(RESULTS, {"index": "m", "where": None}, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "a &lt;b&gt;red&lt;/b&gt; tree" in page
    assert "<b>red" not in page
    assert "a car &amp; a river" in page
    assert page.count("<figure>") == 3
    assert page.count("data:image/jpeg") == 2
    assert "cannot be opened" in page
    assert "▲ 3" in page
    assert "▼ 1" in page
    assert "no results" in page
    assert not re.search(r'src="(?!data:)', page)  # no external resources
    assert set(re.findall(r'href="([^#"][^"]*)"', page)) == {"file:///p/a%20tree.png"}


def test_scores_of_two_models_are_in_separate_lists(tmp_path):
    save_results(RESULTS, {}, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    heads = re.findall(r"scored by: (\w+)", page)
    assert heads == ["episode", "model"]
    assert page.index("scored by: model") > page.index('<div class="quiet">two</div>')
    plain = Hits([Hit(hit.picture, hit.score) for hit in HITS], "a tree")
    save_results([plain], {}, tmp_path / "page.html")
    assert "scored by" not in (tmp_path / "page.html").read_text()


def test_a_thumbnail_is_small_and_keeps_shape_and_color():
    data = thumbnail(HITS[0].picture)
    shown = Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2])))
    assert max(shown.size) <= 224
    assert shown.size[0] / shown.size[1] == pytest.approx(4 / 3, abs=0.02)
    assert np.asarray(shown).reshape(-1, 3).mean(axis=0) == pytest.approx([200, 0, 0], abs=6)
    assert thumbnail(HITS[1].picture) is None


def test_a_json_file_has_every_field(tmp_path):
    save_results(RESULTS, {"index": "m"}, tmp_path / "results.json")
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved == hits_as_json(RESULTS, {"index": "m"})
    assert [hit["id"] for hit in saved["results"][0]["hits"]] == ["one", "two", "three"]
    assert saved["results"][0]["hits"][0] == {
        "rank": 1, "id": "one", "score": 0.31, "scored_by": "episode", "model_score": 0.25, "zero_shot_rank": 4,
        "captions": ["a <b>red</b> tree"], "path": "/p/a tree.png", "source": "trees", "metadata": {},
    }  # fmt: skip
    assert (saved["results"][0]["searched"], saved["results"][0]["cut"]) == (9, 6)
    assert saved["results"][0]["hits"][1]["captions"] == []
