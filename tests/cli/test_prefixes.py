"""``--prefix``, shifts of names and of domains, as a user evaluates a model that was trained with prefix tokens."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.evaluation.results import load_results
from recollect.models import build_model

NAMES = ("circle", "cross", "square")
OTHERS = ("disc", "saltire", "box")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    texts = [f"a photo of a {name}" for name in (*NAMES, *OTHERS)]
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
                "synonyms": [NAMES[number], OTHERS[number]], "domain": "odd" if int(path.stem) % 2 else "even",
                "captions": [f"a {NAMES[number]} of number {path.stem}"],
            })  # fmt: skip
    path = tmp_path_factory.mktemp("table") / "shapes.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("command", ["zero-shot", "few-shot"])
def test_every_prefix_is_another_result_in_a_file_of_its_own(recollect, models, table, tmp_path, command):
    few = ("--shots", 1, "--seeds", 1, "--methods", "zero-shot", "prototype") if command == "few-shot" else ()
    for prefix in ("label", "caption", "none"):
        words = ("--data", table, "--prefix", prefix, "--out", tmp_path, *few)
        recollect("evaluate", command, models / "with", *words)
    found = {result.settings["prefix"]: result.rows for result in load_results(tmp_path)}
    assert set(found) == {"label", "caption", None}


def test_captions_are_the_reading_unless_another_is_asked_for(recollect, models, table, tmp_path):
    recollect("evaluate", "zero-shot", models / "with", models / "without", "--data", table, "--out", tmp_path)
    found = {result.model.split()[0]: result.settings["prefix"] for result in load_results(tmp_path)}
    assert found == {"with": "caption", "without": None}
    none = recollect("evaluate", "zero-shot", models / "without", "--data", table, "--prefix", "label", check=False)
    assert none.returncode == 2
    assert "without has no prefix for labels. Remove the option." in none.stderr


def test_classes_under_their_names_and_under_synonyms(recollect, models, table, tmp_path):
    words = ("--data", table, "--synonyms-column", "synonyms", "--out", tmp_path / "r.json")
    recollect("evaluate", "zero-shot", models / "with", *words)
    results = json.loads((tmp_path / "r.json").read_text())
    assert [result["data"] for result in results] == ["shapes:names", "shapes:synonyms"]
    assert {result["settings"]["classes"] for result in results} == {3}
    missing = recollect(
        "evaluate", "zero-shot", models / "with", "--data", table, "--synonyms-column", "x", check=False
    )
    assert missing.returncode == 2
    assert "'x'" in missing.stderr
    none = recollect(
        "evaluate", "zero-shot", models / "with", "--data", "glyphs:captions", "--synonyms-column", "x", check=False
    )
    assert none.returncode == 2
    assert "no classes with synonyms" in none.stderr
