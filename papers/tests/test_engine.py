"""Table forms: every kind of cell, and measurements in reports."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect_papers.engine import Column, Printed, Row, TableForm, TableStudy, paper_rows
from recollect_papers.measurements import Measurements
from recollect_papers.study import StudyOptions

PAPER = Printed(("top-1",), {"ours": ("60.1 ± 0.4",), "theirs": ("58.0",)})


@pytest.fixture
def found():
    """Two arms on two sets, with three seeds for one and two for the other."""
    made = Measurements({"notes": ["a note"]})
    for seed, (first, second) in enumerate(((50.0, 10.0), (52.0, 14.0), (57.0, 12.0))):
        made.add({"arm": "base", "set": "a"}, seed, first)
        made.add({"arm": "base", "set": "b"}, seed, second)
        if seed < 2:
            made.add({"arm": "ours", "set": "a"}, seed, first + 1 + seed)
            made.add({"arm": "ours", "set": "b"}, seed, second + 3)
    return made


def cells(form, found):
    return [row[len(form.heads) :] for row in form.fill(found).rows]


def form(rows, columns, **more):
    return TableForm("A table", ("arm",), rows, columns, **more)


def test_means_are_over_sets_then_over_seeds(found):
    table = form([Row(("base",), {"arm": "base"})], [Column("both", {"set": ("a", "b")}), Column("a", {"set": "a"})])
    means = [30.0, 33.0, 34.5]
    expected = f"{np.mean(means):.1f} ± {np.std(means, ddof=1):.1f}"
    assert cells(table, found) == [(expected, "53.0 ± 3.6")]


def test_gains_are_paired_over_common_seeds(found):
    columns = [Column("gain", {"set": "a"}, "gain", {"arm": "base"}),
               Column("both", {"set": "a"}, "mean (gain)", {"arm": "base"})]  # fmt: skip
    rows = [Row(("base",), {"arm": "base"}), Row(("ours",), {"arm": "ours"})]
    assert cells(form(rows, columns), found) == [("", "53.0 ± 3.6"), ("+1.5 ± 0.7", "52.5 ± 2.1 (+1.5)")]
    bare = [Row(("ours",), {"arm": "ours"}, only=("gain",), spread=False)]
    assert cells(form(bare, columns), found) == [("+1.5", "")]


def test_relative_changes_of_means_are_averaged_over_measures(found):
    column = Column("rel.", {"set": ("a", "b")}, "relative", {"arm": "base"})
    rows = [Row(("base",), {"arm": "base"}), Row(("ours",), {"arm": "ours"})]
    changes = [100 * (52.5 - 53.0) / 53.0, 100 * (15.0 - 12.0) / 12.0]
    assert cells(form(rows, [column]), found) == [("",), (f"{np.mean(changes):+.1f} %",)]


def test_a_plain_number_has_its_own_pattern_and_unit(found):
    column = Column("k", {"set": "a"}, "number", pattern="{:,.2f}", unit=1e-3)
    assert cells(form([Row(("base",), {"arm": "base"})], [column]), found) == [("53,000.00",)]


def test_the_papers_figures_are_shown_in_columns_and_rows(found):
    rows = [Row(("ours",), {"arm": "ours"}, "ours"), Row(("base",), {"arm": "base"}), *paper_rows(PAPER)]
    table = form(rows, [Column("a", {"set": "a"})], paper=PAPER)
    filled = table.fill(found)
    assert filled.columns == ("arm", "a", "paper: top-1")
    assert [row[-1] for row in filled.rows] == ["60.1 ± 0.4", "", "60.1 ± 0.4", "58.0"]
    assert filled.rows[-1] == ("paper: theirs", "", "58.0")
    assert table.as_printed("theirs").rows[0] == ("ours", "60.1 ± 0.4")
    assert table.as_printed("theirs").columns == ("arm", "top-1")


def test_missing_measurements_are_an_error_or_marked(found):
    rows, column = [Row(("nobody",), {"arm": "nobody"})], Column("a", {"set": "a"})
    with pytest.raises(ValueError, match="A table: nobody, a: not measured"):
        form(rows, [column]).fill(found)
    assert cells(form(rows, [column], missing="not run"), found) == [("not run",)]
    with pytest.raises(ValueError, match="not measured"):
        found.summary({"arm": "nobody"})


addresses = st.dictionaries(st.sampled_from(["arm", "set", "k"]), st.text(max_size=5), min_size=1)
numbers = st.floats(allow_nan=False, allow_infinity=False)


figures = st.lists(
    st.tuples(addresses, st.integers(0, 9), numbers), unique_by=lambda one: (str(sorted(one[0].items())), one[1])
)


@given(figures)
def test_reports_preserve_every_figure_exactly(figures):
    made = Measurements({"sets": ["a"]})
    for address, seed, value in figures:
        made.add(address, seed, value)
    kept = [made.at(address) for address, _, _ in figures]
    again = Measurements.from_json(json.loads(json.dumps(made.as_json())))
    assert again.context == made.context
    assert [again.at(address) for address, _, _ in figures] == kept
    for address, seed, value in figures:
        assert again.at(address)[seed] == value


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=6), st.floats(-100, 100))
def test_the_gain_over_a_shifted_arm_is_the_shift(values, shift):
    made = Measurements()
    for seed, value in enumerate(values):
        made.add({"arm": "a"}, seed, value)
        made.add({"arm": "b"}, seed, value + shift)
    gains = made.differences({"arm": "b"}, {"arm": "a"})
    assert math.isclose(np.mean(list(gains.values())), shift, abs_tol=1e-9)
    assert len(gains) == len(values)


def test_a_report_contains_the_measurements_of_its_tables(tmp_path, found):
    def shown(measured):
        table = form([Row(("base",), {"arm": "base"})], [Column("a", {"set": "a"})])
        return [table.fill(measured)], measured.context["notes"]

    study = TableStudy("some/study", lambda options: found, shown, {"smoke": "made up"})
    study(StudyOptions("smoke", tmp_path)).save(tmp_path)
    saved = json.loads((tmp_path / "some-study.json").read_text())
    assert [figure["set"] for figure in saved["measured"]["figures"]] == ["a"]  # only what cells show
    again, notes = shown(Measurements.from_json(saved["measured"]))
    assert [list(row) for row in again[0].rows] == saved["tables"][0]["rows"]
    assert list(notes) == saved["notes"]


def test_equal_gains_in_all_seeds_have_no_test_over_seeds():
    """Zero variance would make any gain significant; this happens with heads that do not change images."""
    made = Measurements()
    for seed in range(3):
        made.add({"arm": "base", "set": "a"}, seed, 50.0 + seed)
        made.add({"arm": "same", "set": "a"}, seed, 49.8 + seed)
        made.add({"arm": "ours", "set": "a"}, seed, 49.8 + 1.5 * seed)
    assert math.isnan(made.paired({"arm": "same"}, {"arm": "base"}, ("a",)).over_seeds_p())
    assert 0 < made.paired({"arm": "ours"}, {"arm": "base"}, ("a",)).over_seeds_p() < 1
