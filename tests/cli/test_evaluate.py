"""``recollect evaluate`` and ``recollect classify`` from the command line."""

import csv
import json
import shutil
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from recollect.core.errors import UserError
from recollect.evaluation.results import joint_identity, load_results
from recollect.evaluation.tasks import catalogue

METHODS = ["zero-shot", "prototype", "tip-adapter-cv", "softmax+zero-shot", "proker", "gda"]


def test_few_shot_compares_several_methods_and_models(recollect, trained, shapes, tmp_path):
    done = recollect(
        "evaluate", "few-shot", *trained, "--data", shapes, "--methods", *METHODS, "--shots", 1, 8, "--seeds", 1,
        "--out", tmp_path, "--cache", tmp_path / "cache",
    )  # fmt: skip
    results = load_results(tmp_path)
    assert [result.model[:-9] for result in results] == ["/".join(model.parts[-2:]) for model in trained]
    assert str(trained[0].parent.parent) not in str([result.as_json() for result in results]), "no absolute paths"
    for result in results:
        assert {row["method"] for row in result.rows} == set(METHODS)
        assert len(result.rows) == 1 + (len(METHODS) - 1) * 2
        assert result.settings["pool"] == 36
        assert all(0 <= row["value"] <= 100 for row in result.rows)
    best = max(row["value"] for result in results for row in result.rows if row["shots"] == 8)
    assert best > 60  # three shapes, so chance is 33
    assert "tip-adapter-cv" in done.stdout
    assert f"{results[1].model} minus {results[0].model}" in done.stdout
    figures = sorted(tmp_path.glob("*.png"))
    key = joint_identity(results)
    assert [path.name for path in figures] == [f"{name}--{key}.png" for name in ("few-shot", "gain-per-data-set-1")]
    assert all(np.asarray(Image.open(path)).std() > 5 for path in figures)
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_a_retrieval_suite_uses_local_copies(recollect, trained, pairs, tmp_path, monkeypatch):
    opened = catalogue.open_source

    def open_local(spec, **options):
        if not spec.startswith(str(pairs)):
            raise UserError(f"{spec}: the hub does not answer")
        return opened(spec, **options)

    monkeypatch.setattr(catalogue, "open_source", open_local)
    words = ("evaluate", "retrieval", trained[0], "--suite", "efsa-9", "--copies", f"nasa={pairs}?split=train")
    done = recollect(*words, "--out", tmp_path / "out.json")
    (result,) = json.loads((tmp_path / "out.json").read_text())
    assert result["protocol"] == "retrieval"
    assert done.stdout.count("skipped:") == 8


def test_a_few_shot_suite_uses_local_copies_and_lists_missing_sets(recollect, trained, tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for label in range(5):
            place = tmp_path / "cassava" / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                color = tuple(np.random.default_rng([label, number]).integers(0, 256, 3).tolist())
                Image.new("RGB", (32, 32), color).save(place / f"{number}.png")
    done = recollect(
        "evaluate", "few-shot", trained[0], "--suite", "lixp-21", "--copies", f"cassava={tmp_path / 'cassava'}",
        "--shots", 1, 2, "--seeds", 2, "--out", tmp_path / "out",
    )  # fmt: skip
    (result,) = load_results(tmp_path / "out")
    assert (result.data, result.settings["classes"], result.settings["queries"]) == ("cassava", 5, 10)
    assert done.stdout.count("skipped: ") == 20
    assert "skipped: cub-200-2011: " in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["MODEL", "--data", "SHAPES", "--shots", "1", "50"], "circle"),
        (["MODEL", "--data", "SHAPES", "--methods", "knn"], "knn"),
        (["MODEL", "--data", "PAIRS"], "pairs"),
        (["MODEL"], "--data"),
        (["NOWHERE", "--data", "SHAPES"], "NOWHERE"),
        (["MODEL", "--suite", "imagenet"], "imagenet"),
        (["MODEL", "--suite", "lixp-21", "--copies", "eurosat"], "eurosat"),
    ],
)
def test_bad_input_of_few_shot_gives_a_one_line_error(check_error, trained, shapes, pairs, words, message):
    places = {"MODEL": trained[0], "SHAPES": shapes, "PAIRS": pairs}
    check_error(message, "evaluate", "few-shot", *(places.get(word, word) for word in words))


def test_classify_sorts_pictures_by_folders_of_examples(recollect, trained, shapes, tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    for shape in ("circle", "square"):
        for number in range(4):
            shutil.copy(shapes / "test" / shape / f"{number}.png", new / f"{shape}-{number}.png")
    (new / "broken.png").write_bytes(b"not a picture")
    words = ("--images", new, "--model", trained[1], "--out", tmp_path / "out")
    done = recollect("classify", "--support", shapes / "train", *words)
    rows = list(csv.DictReader((tmp_path / "out" / "predictions.csv").open()))
    assert len(rows) == 8
    right = sum(row["prediction"] in row["file"].split("/")[-1] for row in rows)
    assert right >= 5
    assert all(row["nearest_example"].startswith(str(shapes / "train")) for row in rows)
    assert "broken.png" in done.stdout
    page = (tmp_path / "out" / "predictions.html").read_text()
    assert page.count("data:image/jpeg;base64") >= 8


def test_a_full_disk_leaves_the_earlier_predictions_unchanged(recollect, shapes, saved, tmp_path, monkeypatch):
    """A new table next to an old sheet would be inconsistent."""
    words = ("classify", "--with", saved, "--images", shapes / "test" / "circle", "--out", tmp_path / "out")
    recollect(*words)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda question: "y")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr("recollect.cli.sheet.save_sheet", full)
        done = recollect(*words, "--alpha", 0.3, check=False)
    assert (done.returncode, f"{tmp_path}/out: the disk is full; nothing was changed" in done.stderr) == (2, True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
    recollect(*words, "--alpha", 0.3)
    assert (tmp_path / "out" / "predictions.json").read_bytes() != before["predictions.json"]


@pytest.fixture(scope="module")
def saved(recollect, trained, shapes, tmp_path_factory):
    """A classifier saved by a command."""
    folder = tmp_path_factory.mktemp("saved") / "shapes"
    recollect("classify", "--support", shapes / "train", "--model", trained[0], "--save", folder)
    return folder


def test_a_saved_classifier_can_be_applied(recollect, trained, shapes, saved, tmp_path):
    done = recollect("classify", "--with", saved, "--images", shapes / "test", "--out", tmp_path / "with")
    assert "held-out examples are right" in done.stdout
    recollect(
        "classify", "--support", shapes / "train", "--images", shapes / "test", "--model", trained[0], "--out",
        tmp_path / "direct",
    )  # fmt: skip
    first, second = ((tmp_path / each / "predictions.csv").read_text() for each in ("with", "direct"))
    assert first == second
    record = json.loads((tmp_path / "with" / "predictions.json").read_text())
    assert record["calibrated"]
    assert set(record["held_out"]["methods"]) >= {"zero-shot", "prototype-cosine"}


def test_a_classifier_from_names_alone_can_be_extended_with_examples(recollect, trained, shapes, tmp_path):
    saved = tmp_path / "saved"
    words = ("classify", "--names", "circle", "cross", "square", "--model", trained[0], "--save", saved)
    done = recollect(*words, "--images", shapes / "test", "--out", tmp_path / "out")
    assert "confidence is not calibrated" in done.stdout
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())["predictions"]) == 24
    recollect("classify", "--with", saved, "--support", shapes / "train", "--save", saved)
    done = recollect("classify", "--with", saved, "--images", shapes / "test", "--out", tmp_path / "grown")
    assert "36 examples" in done.stdout
    assert recollect(*words, check=False).returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "knn"], "knn"),
        (["--support", "ONE"], "1 sub-folder"),
        (["--support", ""], "--support"),
        (["--images", ""], "--images"),
        (["--support", "", "--names", "cat"], "1 class"),
        (["--with", "ONE"], "circle"),
        (["--with", "SAVED", "--model", "OTHER"], "model"),
        (["--alpha", "2"], "--alpha 2"),
        (["--support", "", "--names", "cat", "dog", "--method", "gda"], "gda"),
    ],
)
def test_bad_input_of_classify_gives_a_one_line_error(check_error, trained, shapes, saved, words, message, tmp_path):
    (tmp_path / "circle").mkdir()
    options = {"--support": [shapes / "train"], "--images": [shapes / "test"], "--model": [trained[0]]}
    places = {"ONE": tmp_path, "SAVED": saved, "OTHER": trained[1]}
    option = ""
    for word in words:
        if word.startswith("--"):
            option = word
            options[option] = []
        elif word:
            options[option].append(places.get(word, word))
    check_error(message, "classify", *(word for key, values in options.items() if values for word in (key, *values)))
