"""LIxP's Table 2: published methods, and voting on SigLIxP."""

import json

import numpy as np
import pytest

from recollect.evaluation.tasks.classification import ClassificationTask
from recollect_papers import cli
from recollect_papers.engine import printed
from recollect_papers.lixp import peers
from recollect_papers.lixp.world import settings
from recollect_papers.measurements import Measurements
from recollect_papers.runs import StudyTuning
from recollect_papers.studies import find_study
from recollect_papers.study import StudyOptions
from recollect_papers.worlds.arrays import ArraySource


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run the study's command at smoke scale on three classes of noise; return folder, report and a second run."""
    out, names, labels = tmp_path_factory.mktemp("peers"), ("letter a", "letter b", "letter c"), np.arange(12) % 3
    pictures = np.random.default_rng(0).integers(0, 256, (2, 12, 32, 32, 3), dtype=np.uint8)
    support, query = (ArraySource(f"noise {role}", pictures[role], labels, names) for role in (0, 1))
    task = ClassificationTask("noise", support, query, names, (), tuple((name,) for name in names))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect_papers.worlds.tasks.world_tasks", lambda spec: [task, task])
        words = ["lixp/table-2", "--out", str(out), "--seeds", "1", "--workers", "1"]
        assert cli.main(words) == 0
        again = find_study("lixp/table-2").load()(StudyOptions("smoke", out, seeds=1, workers=1))
    return out, json.loads((out / "lixp-table-2.json").read_text()), again


def test_every_method_is_measured_and_cached(made):
    out, report, again = made
    (table,) = report["tables"]
    assert {"one training seed", "paper: as printed there"} < set(table["notes"])
    values = {}
    for file in (out / "runs").glob("*/figures-*.json"):
        recipe = json.loads((file.parent / "recipe.json").read_text())
        name = "SigLIxP" if recipe["objective"]["context"] else "SigLIP"
        values |= {(name, at.get("method")): value for at, value in json.loads(file.read_text())["value"]}
    for peer, row in zip(peers.PEERS, table["rows"], strict=True):
        assert row[:3] == [peer.label, peer.model, "✓" if peer.free else "✗"]
        assert row[3] == ("" if peer.method is None else f"{values[peer.model, peer.method]:.1f}")
    assert {method for name, method in values if name == "SigLIxP"} == {"softmax+zero-shot", None}
    assert len(list((out / "runs").glob("[!.]*"))) == 3  # the pair, and CasPL's teacher
    assert [list(row) for row in again.tables[0].rows] == table["rows"]


def test_cells_are_means_over_seeds_next_to_the_papers_figures():
    found = Measurements({"sets": ["a", "b"], "notes": ["one"], "shots": 16})
    for number, peer in enumerate(peers.PEERS):
        for seed, name in ((0, "a"), (1, "a"), (0, "b"), (1, "b")):
            if peer.method:
                address = {"arm": peer.model, "method": peer.method, "set": name, "measure": "accuracy"}
                address["shots"] = "0" if peer.method == "zero-shot" else "16"
                found.add(address, seed, 10.0 + number + 2 * seed + (name == "b") * 30)
    (table,), _ = peers.table_2.form(found)
    paper = printed("lixp", "table-2")
    assert table.columns == ("method", "on", "train-free", "a", "b", *(f"paper: {name}" for name in paper.columns))
    rows = {row[:2]: row[3:] for row in table.rows}
    assert rows["MaPLe", "SigLIP"] == ("18.0 ± 1.4", "48.0 ± 1.4", *paper.rows["maple"])
    assert rows["DMN", ""] == ("", "", *paper.rows["dmn"])
    assert rows["Softmax NN + zero-shot", "SigLIxP"][2:] == ("77.9", "76.7", "92.6", "94.4", "92.8")
    assert rows["Softmax NN + zero-shot", "SigLIP"][2:] == ("",) * 5
    printed_row = [row[5:] for row in table.rows if any(row[5:])]
    assert printed_row == list(paper.rows.values())  # all rows of the paper in order


def test_full_scale_shares_the_runs_of_table_1(tmp_path):
    options = StudyOptions("full", tmp_path, data=("pairs.csv",))
    setting, teacher = peers._pair(options)
    assert setting in settings(options)
    assert (setting.base.model.start, teacher.model.start) == ("vit-b-16", "vit-l-16")
    asked = peers._evaluations(options, teacher)
    assert asked["SigLIP"].tuning == StudyTuning(peers.TUNED, 1.0, True, teacher)
    assert {each.suite for each in asked.values()} == {"lixp-5"}
    assert asked["SigLIP"].shots == (16,)
