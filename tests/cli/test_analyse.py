"""``recollect analyse attention|embeddings`` as a user runs them."""

import json

import numpy as np
import pytest
from PIL import Image

from recollect.models import build_model

TEXTS = ["a photo of a circle", "a white cross on a dark ground", "a drawing of a square"]


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory):
    """A model with both prefixes, its rows far apart so that they show, and one without."""
    folder = tmp_path_factory.mktemp("prefixed")
    for name, prefixes in (("with", ("caption", "label")), ("without", ())):
        build_model("tiny", texts=TEXTS * 5, prefixes=prefixes).save(folder / name)
    return folder


def drawn(path):
    picture = np.asarray(Image.open(path).convert("L"))
    return min(picture.shape) > 200 and (picture < 128).mean() > 0.0005


def test_attention_of_every_prefix_and_of_a_model_without_any(recollect, prefixed, tmp_path):
    words = ("--texts", *TEXTS[:2], "--out", tmp_path / "a.png", "--json", tmp_path / "a.json")
    done = recollect("analyse", "attention", prefixed / "with", prefixed / "without", *words)
    maps = json.loads((tmp_path / "a.json").read_text())
    assert [each["prefix"] for each in maps] == ["label", "caption", None] * 2
    assert [each["text"] for each in maps] == [TEXTS[0]] * 3 + [TEXTS[1]] * 3
    for each in maps:
        assert len(each["layers"]) == 2
        assert all(sum(layer) == pytest.approx(1, abs=1e-4) for layer in each["layers"])
        assert (f"<|{each['prefix']}|>" in each["words"]) == (each["prefix"] is not None)
    assert maps[0]["layers"] != maps[1]["layers"]
    assert drawn(tmp_path / "a.png")
    assert "label prefix" in done.stdout
    assert "model without" in done.stdout


@pytest.mark.parametrize("show", ["classes", "prefixes", "captions", "images"])
def test_embeddings_as_a_map_and_as_figures(recollect, prefixed, shapes, pairs, tmp_path, show):
    words = ("--show", show, "--data", shapes, "--templates", 10, "--samples", 20, "--split", "all")
    files = ("--out", tmp_path / "e.pdf", "--json", tmp_path / "e.json")
    models = (prefixed / "with",) if show == "prefixes" else (prefixed / "with", prefixed / "without")
    recollect("analyse", "embeddings", *models, *words, "--captions", pairs, *files)
    assert (tmp_path / "e.pdf").read_bytes().startswith(b"%PDF")
    rows = json.loads((tmp_path / "e.json").read_text())
    readings = [row.get("read with") for row in rows]
    assert readings == {"classes": ["label prefix", "caption prefix", "model without prefixes"], "prefixes": [None],
                        "captions": [None] * 2, "images": [None] * 2}[show]  # fmt: skip
    if show == "prefixes":
        assert rows[0]["sets"] == "label prefix, caption prefix"
    if show == "classes":
        assert all(row["within"] > 0 and row["between"] > 0 for row in rows)
        assert rows[0]["within"] != rows[1]["within"]


def test_the_same_seed_draws_the_same_map(recollect, prefixed, shapes, tmp_path):
    for name in ("one", "other"):
        words = ("--data", shapes, "--classes", 2, "--templates", 8, "--out", tmp_path / f"{name}.png")
        recollect("analyse", "embeddings", prefixed / "with", *words)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("attention", "MODEL", "--out", "a.jpeg"), "ending"),
        (("attention", "MODEL", "--texts", " "), "without words"),
        (("attention",), "MODEL"),
        (("attention", "BAG"), "bag of words"),
        (("attention", "nowhere/model"), "nowhere/model"),
        (("embeddings", "MODEL"), "--data"),
        (("embeddings", "MODEL", "--data", "SHAPES", "--show", "captions"), "--captions"),
        (("embeddings", "PLAIN", "--data", "SHAPES", "--show", "prefixes"), "compares two"),
        (("embeddings", "MODEL", "--data", "SHAPES", "--classes", "2", "--templates", "1"), "too few"),
        (("embeddings", "MODEL", "--data", "nowhere.parquet"), "nowhere.parquet"),
    ],
)
def test_bad_input_is_one_clear_line(recollect, prefixed, shapes, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    if "BAG" in words:
        build_model("vector-mlp", texts=TEXTS).save(tmp_path / "bag")
    names = {"MODEL": prefixed / "with", "PLAIN": prefixed / "without", "SHAPES": shapes, "BAG": tmp_path / "bag"}
    done = recollect("analyse", *(names.get(word, word) for word in words), check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
