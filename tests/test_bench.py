"""The harness of `make bench` runs as a whole, in seconds, at sizes at which its figures mean nothing."""

import ast
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from recollect.evaluation.intervals import Kinds
from recollect_papers.page import read_results

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bench

    yield bench
    for name in ("bench", "training"):
        sys.modules.pop(name, None)


def test_the_harness_measures_every_section_and_its_file_holds_its_tables(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "bench.json"
    bench.main(bench.Options("tiny", rounds=1, out=out))
    found = json.loads(out.read_text())
    assert set(found["sections"]) == set(bench.SECTIONS)
    assert all(found["sections"].values())
    assert found["machine"]["versions"]["torch"]
    assert all(row["share_of_floor"] > 0 for row in found["sections"]["objectives"])
    assert {row["peer"] for row in found["sections"]["peers"]} >= {"scikit-learn"}
    shown = read_results(tmp_path, "bench.json").tables
    assert {table.title for table in shown} == {title for title, _, _ in bench._TABLES.values()}
    cells = {cell for table in shown for row in table.rows for cell in row}
    assert {"SigLIxP", "Parquet of 64-px JPEGs", "tiny"} <= cells


def test_the_kept_tables_are_those_of_the_kept_figures(bench):
    kept = json.loads((ROOT / "results" / "bench" / "cpu.json").read_text())
    made = [asdict(table) for table in bench.tables(kept["machine"], kept["sections"])]
    assert json.loads(json.dumps(made)) == kept["tables"]
    for row in kept["sections"]["objectives"]:
        assert row["share_of_floor"] == row["seconds"]["floor"] / row["seconds"]["blockwise"]


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_what_a_benchmark_imports_is_there(file):
    """The guides print their commands; one named a class that was gone, and nothing ran it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "recollect":
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_a_spread_over_seeds_is_that_of_a_sample(monkeypatch):
    """RECO's files once held the deviation of a population, a fifth less for three seeds, and called it std."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import fusion

    assert fusion._spread([1.0, 2.0, 3.0]) == [2.0, 1.0]
    assert fusion._spread([4.0]) == [4.0, 0.0]
    sys.modules.pop("fusion")


def test_gains_of_episodes_and_their_intervals_are_computed_again_from_what_is_kept(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import adaptation

    draw = np.random.default_rng(0)
    domains, pictures = np.repeat([0, 1, 2], 40), np.arange(120) // 2
    pool = adaptation.Pool(features=None, task=None, captions={}, texts=[], domains=domains, pictures=pictures)
    differences = draw.choice([-0.25, 0.0, 0.5, 1.0], 120)
    kept = json.loads(json.dumps(adaptation.gained(adaptation.kinds_of(differences, pool), 1)))
    found = kept["gain in R@1"]
    assert adaptation.gain({name: Kinds.from_text(text) for name, text in kept["pictures, R@1"].items()}) == found
    assert found["aerial"][0] == pytest.approx(100 * differences[40:80].mean(), abs=0.006)
    assert found["mean"][0] == pytest.approx(np.mean([found[name][0] for name in adaptation.DOMAINS]), abs=0.011)
    means = differences.reshape(3, 20, 2)[:, draw.integers(0, 20, (4000, 20))].mean(axis=(0, 2, 3))
    assert found["mean"][1:] == pytest.approx(list(100 * np.quantile(means, [0.025, 0.975])), abs=2.5)
    sys.modules.pop("adaptation")
