"""Tables and figures formed from the measurements in ``results/``."""

import json
from pathlib import Path

import numpy as np
import pytest

from recollect_papers import cli
from recollect_papers.engine import TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.studies import find_study

RESULTS = Path(__file__).parents[2] / "results"
KEPT = {
    file: report
    for file in [*sorted(RESULTS.glob("*/table-*.json")), *sorted(RESULTS.glob("*/figure-*.json"))]
    if (report := json.loads(file.read_text(encoding="utf-8")))["measured"].get("context")
}


@pytest.fixture(params=KEPT, ids=[report["name"] for report in KEPT.values()])
def kept(request):
    """A study and its report."""
    report = KEPT[request.param]
    study = find_study(report["name"]).load()
    assert isinstance(study, TableStudy)
    assert study.name == report["name"]
    return study, report


def moved(measured, change):
    """Apply ``change`` to every value."""
    figures = [
        {**figure, "seeds": {seed: change(value) for seed, value in figure["seeds"].items()}}
        for figure in measured["figures"]
    ]
    return Measurements.from_json({**measured, "figures": figures})


def test_tables_and_notes_follow_from_the_measurements(kept):
    study, report = kept
    tables, notes = study.form(Measurements.from_json(report["measured"]))
    for made, table in zip(tables, report["tables"], strict=True):
        assert made.title == table["title"]
        assert list(made.columns) == table["columns"]
        assert [list(row) for row in made.rows] == table["rows"]
        assert list(made.notes) == table["notes"]
    assert list(notes) == report["notes"]


def test_every_table_depends_on_the_measurements(kept):
    study, report = kept
    tables, _ = study.form(Measurements.from_json(report["measured"]))
    others, _ = study.form(moved(report["measured"], lambda value: value + 1000))
    for one, other in zip(tables, others, strict=True):
        assert one.rows != other.rows or "as the paper" in one.title


def drawn(figure):
    """Return all numbers drawn as bars or points."""
    lines = [value for axis in figure.axes for line in axis.lines for value in line.get_ydata()]
    sizes = [max(bar.get_width(), bar.get_height()) for axis in figure.axes for bar in axis.patches]
    spots = [value for axis in figure.axes for each in axis.collections for value in np.ravel(each.get_offsets())]
    return np.array([*lines, *sizes, *spots], dtype=float)


@pytest.mark.parametrize("kept", [file for file in KEPT if file.name.startswith("figure")], indirect=True)
def test_every_plot_depends_on_the_measurements(kept):
    study, report = kept
    figure = drawn(study.draw(Measurements.from_json(report["measured"])))
    other = drawn(study.draw(moved(report["measured"], lambda value: 2 * value)))
    if report["measured"]["figures"]:
        assert len(figure) == len(other) > 5
        assert (figure != other).mean() > 0.5


def test_post_training_is_drawn_from_its_report(tmp_path, capsys):
    file = RESULTS / "lixp" / "figure-4.json"
    report = KEPT[file]
    (axis,) = find_study("lixp/figure-4").load().draw(Measurements.from_json(report["measured"])).axes
    means = {each["arm"]: np.mean(list(each["seeds"].values())) for each in report["measured"]["figures"]}
    for line, name in zip((axis.containers[0][0], axis.containers[1][0]), ("SigLIP", "SigLIxP"), strict=True):
        arms = ["SigLIP", f"SigLIP + 1/3 x {name}", f"SigLIP + 2/3 x {name}"]
        assert line.get_ydata() == pytest.approx([means[arm] for arm in arms])
        assert line.get_xdata() == pytest.approx([800, 800 * 4 / 3, 800 * 5 / 3])
    assert cli.main(["lixp/figure-4", "--kept", str(file), "--out", str(tmp_path)]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["lixp-figure-4.png"]
    less = {**report["measured"], "figures": report["measured"]["figures"][:-1]}
    (tmp_path / "less.json").write_text(json.dumps({**report, "measured": less}), encoding="utf-8")
    for name, place in (
        ("lixp/table-4", file),  # no figure
        ("lixp/figure-1", file),
        ("lixp/figure-4", tmp_path / "less.json"),
        ("lixp/figure-4", tmp_path / "none.json"),
    ):
        assert cli.main([name, "--kept", str(place), "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
