"""``lixp/real``: runs kept as small files, and tables that are a function of these alone."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from recollect import cli
from recollect.core.errors import UserError
from recollect.studies import find_study
from recollect.studies.lixp import real, real_tables, sets
from recollect.studies.study import StudyOptions
from recollect.training import locked

SETS = {"a": "foreign", "b": "foreign", "c": "scenes", "d": "choosing"}


def record(arm, seed, accuracy, against="", span=0.0):
    """A made file, whose figures a test can work out."""
    cells = {
        name: {"group": group, "prototype 4": accuracy + place, "softmax 4": accuracy + place + 2}
        for place, (name, group) in enumerate(SETS.items())
    }
    projected = {
        name: {key: value + span if key != "group" else value for key, value in each.items()}
        for name, each in cells.items()
    }
    return {
        "arm": arm, "against": against, "seed": seed,
        "recipe": {"batch_size": 64, "steps": 9, "objective": {"context": None}},
        "few-shot": cells, "few-shot on the span": projected, "outside": dict.fromkeys(SETS, 30.0 + seed),
        "zero-shot": {"a": {"group": "foreign", "top-1": accuracy / 2}}, "retrieval": {"pool": 10.0 + seed},
    }  # fmt: skip


@pytest.fixture
def records():
    baseline = [record("SigLIP", seed, 50.0 + seed, span=1.5) for seed in range(3)]
    context = [record("SigLIxP", seed, 50.0 + seed + gain, "SigLIP") for seed, gain in enumerate((1.0, 2.0, 4.0))]
    return baseline + context


def test_gains_are_paired_by_seed_and_tested_over_seeds_and_sets(records):
    gains = real_tables.paired(records, "SigLIxP", "SigLIP")
    assert gains.over(["a", "c"]).mean == pytest.approx(7 / 3)
    assert gains.over(["a"]).std == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert gains.sets_up(list(SETS)) == 4
    t = (7 / 3) / (np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert gains.over_seeds_p(["a", "b"]) == pytest.approx(2 * stats.t.sf(t, 2))
    assert gains.over_sets_p(list(SETS)) == pytest.approx(2 * 0.5**4)  # all four up: the most extreme of 16 signs
    with pytest.raises(ValueError, match="share no seed"):
        real_tables.paired(records, "SigLIxP", "CLIP")


def test_the_tables_say_what_the_files_say(records):
    gains, by_set, names, energy = real_tables.tables(records)
    cells = {row[0]: row[2:] for row in gains.rows}
    assert cells["SigLIP"] == ("3", "52.5 ± 1.0", "54.0 ± 1.0", "55.0 ± 1.0")
    assert cells["SigLIxP"] == ("3", "+2.3 ± 1.5", "+2.3 ± 1.5", "+2.3 ± 1.5")
    assert cells[f"SigLIP {real_tables.SPAN}"][1] == "+1.5 ± 0.0"
    assert "above SigLIP on 3 of 3 test sets" in gains.notes[1]
    assert by_set.rows[0] == ("a", "foreign test sets", "52.0 ± 1.0", "+2.3 ± 1.5", "+1.5 ± 0.0")
    assert names.rows[0] == ("SigLIP", "25.5 ± 0.5", "11.0 ± 1.0")
    assert energy.rows[1][0] == "SigLIxP"


def test_a_control_whose_baseline_is_not_there_yet_is_left_out(records):
    alone = [*records, record("CLIxP", 0, 60.0, "CLIP")]
    assert "CLIxP" not in [row[0] for row in real_tables.tables(alone)[0].rows]


def test_the_gain_over_a_better_baseline_is_said_too(records):
    other = record("SigLIP, other dropout", 0, 50.5, "SigLIP")
    notes = real_tables.tables([*records, other])[0].notes
    assert notes[2].startswith("SigLIxP over 'SigLIP, other dropout': +0.5 on foreign test sets, +0.5 on")


RESULTS = Path(__file__).parents[2] / "results" / "lixp" / "real"


def test_the_guides_tables_are_those_of_the_result_files():
    files = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    guide = (RESULTS.parents[2] / "docs" / "results.md").read_text()
    for table in real_tables.tables(files):
        for line in table.markdown().splitlines():
            assert line in guide, line
    for one in files:
        assert "/" not in one["command"].replace("lixp/real", "")


def test_choosing_and_testing_share_no_set_and_no_training_picture():
    assert not sets.CHOOSING.keys() & sets.TESTING.keys()
    chosen, tested = ({one.file for one in part.values()} for part in (sets.CHOOSING, sets.TESTING))
    assert not chosen & tested
    trained = {file.split("?")[0] for file in sets.TRAINING.values()}
    for one in {**sets.CHOOSING, **sets.TESTING}.values():
        if one.file in trained:  # its training split was trained on: examples come from it only where captions do
            assert one.query == "test"
            assert one.scenes


@pytest.mark.parametrize("scale", ["smoke", "small", "full"])
def test_arms_differ_from_their_baseline_in_what_their_name_says(scale, tmp_path):
    options = StudyOptions(scale, tmp_path, seeds=2)
    by_name = {arm.name: arm for arm in real.arms(options)}
    for name, plain in (("SigLIxP", "SigLIP"), ("CLIxP", "CLIP")):
        context = by_name[name].recipe
        assert by_name[name].against == plain
        assert replace(context, objective=replace(context.objective, context=None)) == by_name[plain].recipe
    assert by_name["SigLIP, weight decay 0.3"].recipe.optimiser.weight_decay == 0.3
    assert not by_name["SigLIxP, no mask"].recipe.objective.context.options.mask
    assert all(arm.against in ("", *by_name) for arm in by_name.values())
    jobs = [(arm.name, seed) for arm, seed in real._jobs(options)]
    assert jobs[:4] == [("SigLIP", 0), ("SigLIxP", 0), ("SigLIP", 1), ("SigLIxP", 1)]
    assert len(jobs) == len(set(jobs)) == 4 + 5


@pytest.fixture
def small_world(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(locked, "MADE_ROWS", 300)
    monkeypatch.setattr(real, "SHOTS", (1, 2))
    every = real.arms
    monkeypatch.setattr(real, "arms", lambda options: every(options)[:2])


def test_the_study_trains_measures_and_is_made_again_from_its_files_alone(small_world, tmp_path):
    options = StudyOptions("smoke", tmp_path / "out", seeds=1)
    report = find_study("lixp/real").load()(options)
    files = sorted((tmp_path / "out" / "real").iterdir())
    assert [file.stem for file in files] == ["siglip-seed0", "siglixp-seed0"]
    one = json.loads(files[0].read_text())
    assert one["command"] == "recollect study lixp/real --scale smoke --seeds 1"
    assert str(tmp_path) not in json.dumps(one)
    assert set(one["few-shot"]) == set(one["zero-shot"]) == set(one["outside"])
    shutil.rmtree(tmp_path / "out" / "runs")  # the models may go
    before = {file: file.stat().st_mtime_ns for file in files}
    again = find_study("lixp/real").load()(options)
    assert {file: file.stat().st_mtime_ns for file in files} == before
    assert again.markdown() == report.markdown()
    only_read = StudyOptions("small", tmp_path / "out")
    assert find_study("lixp/real").load()(only_read).tables == report.tables


def test_without_data_or_results_the_study_says_what_it_needs(tmp_path, capsys):
    words = ["study", "lixp/real", "--scale", "small", "--out", str(tmp_path)]
    assert cli.main(words) == 2
    assert "no results yet. Name the folder of the real files: --data FOLDER" in capsys.readouterr().err
    assert cli.main([*words, "--data", str(tmp_path)]) == 2
    assert "no emoji.parquet there. lixp/real needs the folder of its Parquet files" in capsys.readouterr().err
    with pytest.raises(UserError):
        find_study("lixp/real").load()(StudyOptions("small", tmp_path))
