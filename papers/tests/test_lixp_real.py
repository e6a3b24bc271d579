"""``lixp/real``: runs kept as small files, and tables that are a function of these alone."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.training import locked
from recollect_papers import cli, measurements
from recollect_papers.lixp import real, real_arms, real_effects, real_records, real_tables, sets
from recollect_papers.studies import find_study
from recollect_papers.study import StudyOptions

CONTEXT = {"alpha": 0.7, "tau": 0.01}
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
    objective = {"base": "softmax" if arm.startswith("CL") else "sigmoid", "context": CONTEXT if "IxP" in arm else None}
    return {
        "arm": arm, "against": against, "seed": seed,
        "recipe": {"batch_size": 64, "steps": 9, "objective": objective},
        "few-shot": cells, "few-shot on the span": projected, "outside": dict.fromkeys(SETS, 30.0 + seed),
        "zero-shot": {"a": {"group": "foreign", "top-1": accuracy / 2}}, "retrieval": {"pool": 10.0 + seed},
    }  # fmt: skip


@pytest.fixture
def records():
    baseline = [record("SigLIP", seed, 50.0 + seed, span=1.5) for seed in range(3)]
    context = [record("SigLIxP", seed, 50.0 + seed + gain, "SigLIP") for seed, gain in enumerate((1.0, 2.0, 4.0))]
    return baseline + context


def test_gains_are_paired_by_seed_and_tested_over_seeds_and_sets(records):
    found = real_records.runs_of(records).found

    def gain(names, over="SigLIP"):
        return found.paired({"arm": "SigLIxP", "measure": "few-shot"}, {"arm": over}, names)

    assert gain(["a", "c"]).summary().mean == pytest.approx(7 / 3)
    assert gain(["a"]).summary().std == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert gain(list(SETS)).up() == 4
    t = (7 / 3) / (np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert gain(["a", "b"]).over_seeds_p() == pytest.approx(2 * stats.t.sf(t, 2))
    assert gain(list(SETS)).over_places_p() == pytest.approx(2 * 0.5**4)  # all four up: the most extreme of 16 signs
    with pytest.raises(ValueError, match="share no seed"):
        gain(["a"], "CLIP")


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holms_correction_finds_what_his_procedure_does(p_values, level):
    """From the smallest on, each is held against the level over the number of those left; the first to fail ends it."""
    found = set()
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] > level / (len(p_values) - rank):
            break
        found.add(place)
    adjusted = measurements.holm(p_values)
    assert {place for place, p in enumerate(adjusted) if p <= level * (1 - 1e-12)} <= found
    assert found <= {place for place, p in enumerate(adjusted) if p <= level * (1 + 1e-12)}


def test_tests_of_several_pairs_are_corrected_for_their_number(records):
    others = [record("CLIP", seed, 40.0 + seed) for seed in range(3)]
    others += [record("CLIxP", seed, 40.0 + seed + gain, "CLIP") for seed, gain in enumerate((1.0, 2.0, 4.0))]
    note = real_tables.tables([*records, *others])[0].notes[-1]
    assert note == (
        "corrected for their number (Holm) 0 of these 4 tests are below 0.05; the smallest p is 0.47, the largest 0.5"
    )


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


def test_the_set_whose_group_came_late_is_shown_both_ways(records):
    named = [json.loads(json.dumps(each).replace('"c"', '"resisc12"')) for each in records]
    notes = real_tables.tables(named)[0].notes
    assert "with resisc12 among the foreign sets: +2.3 ± 1.5 on 3 foreign sets" in notes[2]


def test_the_gain_is_also_told_over_the_baseline_that_the_choosing_sets_pick(records):
    better = [record("SigLIP, other dropout", seed, 50.5 + seed, "SigLIP") for seed in range(3)]
    worse = [record("SigLIP, weight decay 0.3", seed, 49.0 + seed, "SigLIP") for seed in range(3)]
    notes = real_tables.tables([*records, *better, *worse])[0].notes
    assert notes[-1] == (
        "of 3 baselines the choosing sets pick 'SigLIP, other dropout'; SigLIxP over it on all test sets: +1.8 ± 1.5"
    )


def test_what_is_varied_stands_beside_the_main_setting(records):
    def at(arm, accuracy, against, size):
        one = record(arm, 0, accuracy, against)
        return one | {"axis": ["batch", size]}

    small = [at("SigLIP, batch 16", 40.0, "", 16), at("SigLIxP, batch 16", 40.5, "SigLIP, batch 16", 16)]
    tables = real_tables.tables([*records, *small])
    assert tables[-1].rows == (
        ("batch", "16", "1", "+0.5", "+0.5"),
        ("batch", "64", "3", "+2.3 ± 1.5", "+2.3 ± 1.5"),
    )
    assert "SigLIxP, batch 16" not in [row[0] for row in tables[0].rows]
    figure = real_effects.gain_figure(real_effects.points(real_records.runs_of([*records, *small])))
    lines = [container.lines[0] for container in figure.axes[0].containers]
    assert [line.get_xydata().tolist() for line in lines] == [[[16.0, 0.5], [64.0, pytest.approx(7 / 3)]]] * 2
    assert figure.get_supxlabel() == "bars: std over seeds, 1 to 3 of each point; without a bar: one"
    assert not {line.get_color() for line in lines} & {"#0072B2", "#D55E00"}  # the models' colours elsewhere


def test_other_batches_may_see_as_many_pairs(records):
    other = [
        record("SigLIP, batch 16, 36 steps", 0, 42.0),
        record("SigLIxP, batch 16, 36 steps", 0, 45.0, "SigLIP, batch 16, 36 steps"),
    ]
    varied = [each | {"axis": [real_arms.EQUAL_PAIRS, 16]} for each in other]
    found = real_effects.points(real_records.runs_of([*records, *varied]))
    assert [(point.axis, point.value, point.gain["foreign"].mean) for point in found] == [
        (real_arms.EQUAL_PAIRS, 16, 3.0), (real_arms.EQUAL_PAIRS, 64, pytest.approx(7 / 3))
    ]  # fmt: skip


def test_two_settings_at_once_and_what_the_choosing_sets_pick(records):
    def at(alpha, tau, gain, axis):
        one = record(f"SigLIxP, {alpha} {tau}", 0, 50.0 + gain, "SigLIP")
        one["recipe"]["objective"]["context"] = {"alpha": alpha, "tau": tau}
        return one | {"axis": axis}

    one_at_a_time = [at(0.5, 0.01, 0.5, ["alpha", 0.5]), at(0.7, 0.03, 1.5, ["tau_context", 0.03])]
    assert real_effects.alpha_and_tau(real_records.runs_of([*records, *one_at_a_time])) is None
    both = [*records, *one_at_a_time, at(0.5, 0.03, 1.2, [real_arms.ALPHA_AND_TAU, 0.5])]
    table = real_tables.tables(both)[-1]
    assert [(*row[:3], row[-1]) for row in table.rows] == [
        ("0.5", "0.01", "1", "+0.5"), ("0.5", "0.03", "1", "+1.2"),
        ("0.7", "0.01", "3", "+2.3 ± 1.5"), ("0.7", "0.03", "1", "+1.5"),
    ]  # fmt: skip
    best = "the best is alpha 0.7 and tau_context 0.03; its gain on all test sets: +1.5"
    assert table.notes == (f"by the choosing sets (1 seed of each) {best}",)  # seeds that others lack do not count


def test_classes_and_energy_are_told_from_the_files(records):
    for each in records:
        up = 10.0 if each["arm"] == "SigLIxP" else 0.0
        each["classes"] = {"ucm scenes": {"river": 20.0 + up, "road": 50.0 - up}, "gtsrb": {"stop": 30.0 + up / 2}}
        parts = ("between_inside", "between_outside", "within_inside", "within_outside")
        each["energy"] = {"gtsrb": dict.fromkeys(parts, 25.0)}
    split, classes = real_tables.tables(records)[-2:]
    assert split.rows[0] == ("SigLIP", *("25.0 ± 0.0",) * 4)
    assert classes.rows[0] == ("river", "ucm scenes", "+10.0 ± 0.0")
    assert classes.notes[0] == "of 3 classes 2 gain and 1 lose; seeds: 3"
    assert classes.notes[1] == "mean over classes: +0.0 in sets that captions speak of, +5.0 in the others"


def test_a_class_is_spoken_of_where_enough_captions_hold_all_words_of_its_name(monkeypatch):
    monkeypatch.setattr(sets, "NAMED_IN", 2)
    captions = ["two red Rivers", "a river, red at dusk", "a glass house", "the sea"]
    assert sets.times_spoken(("red river", "houses", "glasses", "90"), captions) == [2, 1, 0, 0]
    assert sets.share_spoken(("red river", "house"), captions) == 0.5


def test_the_shares_that_decide_a_sets_group_are_those_of_its_words(real_data):
    folder = real_data("emoji").parent
    captions = []
    for file in sets.TRAINING.values():
        real_data(file.split(".")[0])
        source = open_source(sets.place(folder, file), kind="caption")
        captions += [" . ".join(source.texts(row)) for row in range(len(source))]
    for name, one in sets.present(folder, sets.TESTING).items():
        if name in ("resisc12", "imagenette", "flowers12", "ucm scenes"):
            names = real._open(folder, name, one).class_names
            assert sets.share_spoken(names, captions) == pytest.approx(one.spoken, abs=0.1)
    # No threshold between these would change a test set's group.
    foreign = [one.spoken for one in sets.TESTING.values() if not one.scenes]
    assert max(foreign) <= 0.2
    assert min(one.spoken for one in sets.TESTING.values() if one.scenes) > 0.5


def test_a_control_whose_baseline_is_not_there_yet_is_left_out(records):
    alone = [*records, record("CLIxP", 0, 60.0, "CLIP")]
    assert "CLIxP" not in [row[0] for row in real_tables.tables(alone)[0].rows]


def test_the_gain_over_a_better_baseline_is_said_too(records):
    other = record("SigLIP, other dropout", 0, 50.5, "SigLIP")
    notes = real_tables.tables([*records, other])[0].notes
    assert notes[2].startswith("SigLIxP over 'SigLIP, other dropout': +0.5 on foreign test sets, +0.5 on")
    assert notes[3].startswith("of 2 baselines the choosing sets pick 'SigLIP, other dropout'; SigLIxP over it")


def test_a_baseline_of_other_batches_and_as_many_pairs_is_one_of_the_baselines(records):
    """The main setting's batch may not be the best that the baseline has for its pairs."""
    equal = [record("SigLIP, batch 16, 36 steps", seed, 51.0 + seed) for seed in range(2)]
    equal += [record("SigLIxP, batch 16, 36 steps", seed, 55.0 + seed, equal[0]["arm"]) for seed in range(2)]
    once = [record("SigLIP, batch 9, 64 steps", 0, 60.0)]  # of one run no spread can be told
    for one in (*equal, *once):
        one["axis"] = [real_arms.EQUAL_PAIRS, 16.0]
    notes = real_tables.tables([*records, *equal, *once])[0].notes
    assert notes[2].startswith("SigLIxP over 'SigLIP, batch 16, 36 steps': +0.5 ± 0.7 on foreign test sets")
    assert notes[3].startswith("of 2 baselines the choosing sets pick 'SigLIP, batch 16, 36 steps'")


RESULTS = Path(__file__).parents[2] / "results" / "lixp" / "real"


def test_the_kept_files_make_every_table_and_name_no_local_folder():
    files = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    assert all(table.rows for table in real_tables.tables(files))
    for one in files:
        assert "/" not in one["command"].replace("lixp/real", "")


def test_a_set_whose_file_is_missing_is_left_out_of_new_measurements(tmp_path):
    for name in ("emoji", "flowers12"):
        (tmp_path / f"{name}.parquet").touch()
    assert list(sets.present(tmp_path, sets.TESTING)) == ["flowers12"]


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
    assert by_name["SigLIxP, shuffled context"].recipe.objective.context.options.shuffled
    assert by_name["SigLIP, label smoothing 0.1"].recipe.objective.smoothing == 0.1
    assert all(arm.against in ("", *by_name) for arm in by_name.values())
    for arm in by_name.values():
        arm.recipe.check()
        if (
            arm.axis
            and arm.name.startswith("SigLIxP")
            and arm.axis[0] in ("batch", "steps", real_arms.EQUAL_PAIRS, "pairs")
        ):
            plain = by_name[arm.against]
            changed = replace(arm.recipe, objective=replace(arm.recipe.objective, context=None))
            assert (changed, arm.weights) == (plain.recipe, plain.weights)
    whole = [arm for arm in by_name.values() if arm.recipe.batch_size == sets.TRAINING_PAIRS]
    seen = by_name["SigLIP"].recipe.batch_size * by_name["SigLIP"].recipe.steps
    assert len(whole) == (0 if scale == "smoke" else 2)
    assert all(abs(arm.recipe.steps * sets.TRAINING_PAIRS - seen) < sets.TRAINING_PAIRS for arm in whole)
    jobs = [(arm.name, seed) for arm, seed in real._jobs(options)]
    assert jobs[:4] == [("SigLIP", 0), ("SigLIxP", 0), ("SigLIP", 1), ("SigLIxP", 1)]
    assert len(jobs) == len(set(jobs)) == sum(min(2, arm.seeds or 2) for arm in by_name.values())


@pytest.fixture
def small_world(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(locked, "MADE_ROWS", 300)
    monkeypatch.setattr(real, "_SHOTS", (1, 2))
    every = real.arms
    monkeypatch.setattr(real, "arms", lambda options: every(options)[:2])


def test_the_study_trains_measures_and_is_made_again_from_its_files_alone(small_world, tmp_path):
    options = StudyOptions("smoke", tmp_path / "out", seeds=1)
    report = find_study("lixp/real").load()(options)
    files = sorted((tmp_path / "out" / "real").iterdir())
    assert [file.stem for file in files] == ["siglip-seed0", "siglixp-seed0"]
    one = json.loads(files[0].read_text())
    assert one["command"] == "recollect-papers lixp/real --scale smoke --seeds 1"
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
    words = ["lixp/real", "--scale", "small", "--out", str(tmp_path)]
    assert cli.main(words) == 2
    assert "no results yet. Name the folder of the real files: --data FOLDER" in capsys.readouterr().err
    assert cli.main([*words, "--data", str(tmp_path)]) == 2
    assert "no emoji.parquet there. lixp/real needs the folder of its Parquet files" in capsys.readouterr().err
    with pytest.raises(UserError):
        find_study("lixp/real").load()(StudyOptions("small", tmp_path))
