"""The harness of `make bench` runs as a whole, in seconds, at sizes at which its figures mean nothing."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bench

    yield bench
    for name in ("bench", "training"):
        sys.modules.pop(name, None)


def test_the_harness_measures_every_section_and_its_table_is_made_from_the_file(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "bench.json"
    bench.main(bench.Options("tiny", rounds=1, out=out))
    found = json.loads(out.read_text())
    assert set(found["sections"]) == set(bench.SECTIONS)
    assert all(found["sections"].values())
    assert found["machine"]["versions"]["torch"]
    assert all(row["share_of_floor"] > 0 for row in found["sections"]["objectives"])
    assert {row["peer"] for row in found["sections"]["peers"]} >= {"scikit-learn"}
    for words in ("SigLIxP", "Parquet of 64-px JPEGs", "exact search", "| tiny"):
        assert words in bench.table(found)


def test_the_tables_of_the_guide_are_those_of_the_files(bench):
    files = sorted((ROOT / "results" / "bench").glob("*.json"))
    if not files:
        pytest.skip("nothing was measured with this harness yet: make bench")
    guide = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    for file in files:
        assert bench.table(json.loads(file.read_text(encoding="utf-8"))).strip() in guide
