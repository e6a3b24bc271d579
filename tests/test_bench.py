"""The harness of `make bench` runs as a whole, in seconds, at sizes at which its figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_harness_measures_every_section_and_its_table_is_made_from_the_file(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py")]
    out = tmp_path / "bench.json"
    subprocess.run(
        [*command, "--scale", "tiny", "--rounds", "1", "--out", str(out)], check=True, capture_output=True, timeout=300
    )
    found = json.loads(out.read_text())
    assert set(found["sections"]) == {"objectives", "steps", "peers", "input", "towers"}
    assert all(found["sections"].values())
    assert found["machine"]["versions"]["torch"]
    assert all(row["share_of_floor"] > 0 for row in found["sections"]["objectives"])
    assert {row["peer"] for row in found["sections"]["peers"]} >= {"scikit-learn"}
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import bench

        text = bench.table(found)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    for words in ("SigLIxP", "Parquet of 64-px JPEGs", "exact search", "| tiny"):
        assert words in text


def test_the_tables_of_the_guide_are_those_of_the_files():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import bench
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    files = sorted((ROOT / "results" / "bench").glob("*.json"))
    if not files:
        pytest.skip("nothing was measured with this harness yet: make bench")
    guide = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    for file in files:
        assert bench.table(json.loads(file.read_text(encoding="utf-8"))).strip() in guide
