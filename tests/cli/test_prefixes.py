"""``--prefix`` and ``--synonyms-column`` when evaluating a model trained with prefix tokens."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.evaluation.results import load_results
from recollect.models import build_model

NAMES = ("circle", "cross", "square")
SYNONYMS = ("disc", "saltire", "box")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    texts = [f"a photo of a {name}" for name in (*NAMES, *SYNONYMS)]
    for name, prefixes in (("with", ("caption", "label")), ("without", ())):
        build_model("tiny", texts=texts * 3, prefixes=prefixes).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def table(shapes, tmp_path_factory):
    """The shapes as Parquet with synonyms, captions and two domains."""
    rows = []
    for split in ("train", "test"):
        for path in sorted((shapes / split).glob("*/*.png")):
            number = NAMES.index(path.parent.name)
            rows.append({
                "image": path.read_bytes(), "split": split, "label": number, "class_name": NAMES[number],
                "synonyms": [NAMES[number], SYNONYMS[number]], "domain": "odd" if int(path.stem) % 2 else "even",
                "captions": [f"a {NAMES[number]} of number {path.stem}"],
            })  # fmt: skip
    path = tmp_path_factory.mktemp("table") / "shapes.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("command", ["zero-shot", "few-shot"])
def test_every_prefix_gives_a_separate_result(recollect, models, table, tmp_path, command):
    few = ("--shots", 1, "--seeds", 1, "--methods", "zero-shot", "prototype") if command == "few-shot" else ()
    for prefix in ("label", "caption", "none"):
        words = ("--data", table, "--prefix", prefix, "--out", tmp_path, *few)
        recollect("evaluate", command, models / "with", *words)
    prefixes = {result.settings["prefix"]: result.rows for result in load_results(tmp_path)}
    assert set(prefixes) == {"label", "caption", None}


def test_the_default_prefix_is_that_of_captions(recollect, check_error, models, table, tmp_path):
    recollect("evaluate", "zero-shot", models / "with", models / "without", "--data", table, "--out", tmp_path)
    prefixes = {result.model.split()[0]: result.settings["prefix"] for result in load_results(tmp_path)}
    assert prefixes == {"with": "caption", "without": None}
    words = ("evaluate", "zero-shot", models / "without", "--data", table, "--prefix", "label")
    check_error("without has no prefix for labels. Remove the option.", *words)


def test_classes_are_evaluated_by_name_and_by_synonym(recollect, check_error, models, table, tmp_path):
    words = ("--data", table, "--synonyms-column", "synonyms", "--out", tmp_path / "r.json")
    recollect("evaluate", "zero-shot", models / "with", *words)
    results = json.loads((tmp_path / "r.json").read_text())
    assert [result["data"] for result in results] == ["shapes:names", "shapes:synonyms"]
    assert {result["settings"]["classes"] for result in results} == {3}
    for data, message in ((table, "'x'"), ("glyphs:captions", "no classes with synonyms")):
        check_error(message, "evaluate", "zero-shot", models / "with", "--data", data, "--synonyms-column", "x")
