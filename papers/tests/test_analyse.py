"""``recollect-papers analyse attention|embeddings`` as a user runs them."""

import contextlib
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from recollect.core import progress
from recollect.models import build_model
from recollect_papers import cli

COLOURS = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}

TEXTS = ["a photo of a circle", "a white cross on a dark ground", "a drawing of a square"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def analyse(*words, check=True):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.console, "_file", err)
        status = cli.main(["analyse", *map(str, words)])
    assert not check or status == 0, err.getvalue()
    return Done(status, out.getvalue(), err.getvalue())


def noise(colour, seed):
    random = np.random.default_rng(seed)
    return Image.fromarray((np.array(colour) + random.integers(0, 30, (32, 32, 3))).astype(np.uint8))


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A folder of pictures for each of three colours."""
    folder = tmp_path_factory.mktemp("classes")
    for name, colour in COLOURS.items():
        (folder / "test" / name).mkdir(parents=True)
        for number in range(8):
            noise(colour, number).save(folder / "test" / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A CSV of pictures with captions."""
    folder, lines = tmp_path_factory.mktemp("pairs"), ["path,caption"]
    for number in range(60):
        name = list(COLOURS)[number % 3]
        noise(COLOURS[name], 100 + number).save(folder / f"{number}.png")
        lines.append(f"{number}.png,a {name} field")
    (folder / "pairs.csv").write_text("\n".join(lines))
    return folder / "pairs.csv"


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


def test_attention_of_every_prefix_and_of_a_model_without_any(prefixed, tmp_path):
    words = ("--texts", *TEXTS[:2], "--out", tmp_path / "a.png", "--json", tmp_path / "a.json")
    done = analyse("attention", prefixed / "with", prefixed / "without", *words)
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
def test_embeddings_as_a_map_and_as_figures(prefixed, classes, pairs, tmp_path, show):
    words = ("--show", show, "--data", classes, "--templates", 10, "--samples", 20, "--split", "all")
    files = ("--out", tmp_path / "e.pdf", "--json", tmp_path / "e.json")
    models = (prefixed / "with",) if show == "prefixes" else (prefixed / "with", prefixed / "without")
    analyse("embeddings", *models, *words, "--captions", pairs, *files)
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


def test_the_same_seed_draws_the_same_map(prefixed, classes, tmp_path):
    for name in ("one", "other"):
        words = ("--data", classes, "--classes", 2, "--templates", 8, "--out", tmp_path / f"{name}.png")
        analyse("embeddings", prefixed / "with", *words)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("attention", "MODEL", "--out", "a.jpeg"), "--out"),
        (("attention", "MODEL", "--texts", " "), "without words"),
        (("attention",), "MODEL"),
        (("attention", "BAG"), "bag of words"),
        (("attention", "nowhere/model"), "nowhere/model"),
        (("embeddings", "MODEL"), "--data"),
        (("embeddings", "MODEL", "--data", "SHAPES", "--show", "captions"), "--captions"),
        (("embeddings", "PLAIN", "--data", "SHAPES", "--show", "prefixes"), "--show prefixes"),
        (("embeddings", "MODEL", "--data", "SHAPES", "--classes", "2", "--templates", "1"), "too few"),
        (("embeddings", "MODEL", "--data", "nowhere.parquet"), "nowhere.parquet"),
    ],
)
def test_bad_input_is_one_clear_line(prefixed, classes, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    if "BAG" in words:
        build_model("vector-mlp", texts=TEXTS).save(tmp_path / "bag")
    names = {"MODEL": prefixed / "with", "PLAIN": prefixed / "without", "SHAPES": classes, "BAG": tmp_path / "bag"}
    done = analyse(*(names.get(word, word) for word in words), check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


def test_span_measures_energy_outside_the_captions(prefixed, classes, pairs, tmp_path):
    analyse(
        "span", prefixed / "with", "--captions", pairs, "--data", classes, "--out", tmp_path / "s.json", "--share", 1
    )
    (row,) = json.loads((tmp_path / "s.json").read_text())
    assert 1 <= row["rank"] <= 3  # three captions span at most two directions around their mean
    assert 0.5 < row["outside"][classes.name] < 1
    assert analyse("span", prefixed / "with", check=False).returncode == 2


@pytest.mark.parametrize("command", ["span NO/MODEL --captions none.txt --data none.csv --out {}.json",
                                     "attention NO/MODEL --out {}.png"])  # fmt: skip
def test_a_place_that_cannot_be_written_to_is_reported_before_any_work(command):
    done = analyse(*command.format("/proc/none/x").split(), check=False)
    assert done.returncode == 2
    assert "/proc/none/x" in done.stderr
