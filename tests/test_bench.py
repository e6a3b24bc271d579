"""Run the whole `make bench` harness in seconds, at sizes too small for meaningful figures."""

import ast
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from recollect_papers.page import read_results

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bench

    yield bench
    for name in ("bench", "training"):
        sys.modules.pop(name, None)


def test_the_harness_measures_every_section_and_saves_its_tables(bench, tmp_path, monkeypatch):
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


def test_the_saved_tables_match_the_saved_figures(bench):
    saved = json.loads((ROOT / "results" / "bench" / "cpu.json").read_text())
    tables = [asdict(table) for table in bench.tables(saved["machine"], saved["sections"])]
    assert json.loads(json.dumps(tables)) == saved["tables"]
    for row in saved["sections"]["objectives"]:
        assert row["share_of_floor"] == row["seconds"]["floor"] / row["seconds"]["blockwise"]


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_everything_a_benchmark_imports_exists(file):
    """The guides print benchmark commands that no test runs."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "recollect":
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
