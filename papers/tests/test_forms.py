"""The form of every table, on figures that were measured once at smoke scale and kept in ``stored/``."""

import json
from pathlib import Path

import numpy as np
import pytest

from recollect_papers import cli
from recollect_papers.engine import TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.studies import find_study

STORED = {file.stem: file for file in sorted((Path(__file__).parent / "stored").glob("*.json"))}


@pytest.fixture(scope="module", params=STORED, ids=list(STORED))
def stored(request):
    return json.loads(STORED[request.param].read_text(encoding="utf-8"))


def test_tables_are_a_function_of_the_figures_alone(stored):
    study = find_study(stored["name"]).load()
    assert isinstance(study, TableStudy)
    assert study.name == stored["name"]
    tables, notes = study.form(Measurements.from_json(stored["measured"]))
    assert [table.title for table in tables] == [table["title"] for table in stored["tables"]]
    for made, kept in zip(tables, stored["tables"], strict=True):
        assert list(made.columns) == kept["columns"]
        assert [list(row) for row in made.rows] == kept["rows"]
        assert list(made.notes) == kept["notes"]
    assert list(notes) == stored["notes"]


def test_another_figure_is_another_cell(stored):
    """Every figure by itself: what is stored in vain would be seen here."""
    study = find_study(stored["name"]).load()
    tables, _ = study.form(Measurements.from_json(stored["measured"]))
    moved = json.loads(json.dumps(stored["measured"]))
    for figure in moved["figures"]:
        figure["seeds"] = {seed: value + 1000 for seed, value in figure["seeds"].items()}
    others, _ = study.form(Measurements.from_json(moved))
    assert all(
        one.rows != other.rows for one, other in zip(tables, others, strict=True) if "as the paper" not in one.title
    )


RESULTS = Path(__file__).parents[2] / "results"
FIGURES = {file: json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*/figure-*.json"))}
KEPT = [report["name"] for report in FIGURES.values() if report["measured"].get("context")]  # the points, and of what


def kept_figure(name):
    """The study of a figure of numbers, and its report in ``results``."""
    study = find_study(name).load()
    assert study.draw is not None
    return study, json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def drawn(figure):
    """Every number that a figure shows as a bar or as a point of a line."""
    lines = [value for axis in figure.axes for line in axis.lines for value in line.get_ydata()]
    sizes = [max(bar.get_width(), bar.get_height()) for axis in figure.axes for bar in axis.patches]
    spots = [value for axis in figure.axes for each in axis.collections for value in np.ravel(each.get_offsets())]
    return np.array([*lines, *sizes, *spots], dtype=float)


@pytest.mark.parametrize("name", KEPT)
def test_figures_and_what_is_said_of_them_are_a_function_of_the_kept_file(name):
    study, report = kept_figure(name)
    tables, notes = study.form(Measurements.from_json(report["measured"]))
    shown = [(table.title, list(table.columns), [list(row) for row in table.rows]) for table in tables]
    assert shown == [(table["title"], table["columns"], table["rows"]) for table in report["tables"]]
    assert list(notes) == report["notes"]
    figure = study.draw(Measurements.from_json(report["measured"]))
    moved = json.loads(json.dumps(report["measured"]))
    for each in moved["figures"]:
        each["seeds"] = {seed: 2 * value for seed, value in each["seeds"].items()}
    other = study.draw(Measurements.from_json(moved))
    if moved["figures"]:
        assert len(drawn(figure)) == len(drawn(other)) > 5
        assert (drawn(figure) != drawn(other)).mean() > 0.5


def test_post_training_is_drawn_from_its_file_as_measured(tmp_path, capsys):
    file = RESULTS / "lixp" / "figure-4.json"
    study, report = kept_figure("lixp/figure-4")
    figure = study.draw(Measurements.from_json(report["measured"]))
    (axis,) = figure.axes
    means = {each["arm"]: np.mean(list(each["seeds"].values())) for each in report["measured"]["figures"]}
    for line, name in zip((axis.containers[0][0], axis.containers[1][0]), ("SigLIP", "SigLIxP"), strict=True):
        arms = ["SigLIP", f"SigLIP + 1/3 x {name}", f"SigLIP + 2/3 x {name}"]
        assert line.get_ydata() == pytest.approx([means[arm] for arm in arms])
        assert line.get_xdata() == pytest.approx([800, 800 * 4 / 3, 800 * 5 / 3])
    assert "3 training seeds" in axis.get_title()
    assert cli.main(["lixp/figure-4", "--kept", str(file), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "lixp-figure-4.png").stat().st_size > 5_000
    assert [each.name for each in tmp_path.iterdir()] == ["lixp-figure-4.png"]
    report["measured"]["figures"].pop()
    (tmp_path / "less.json").write_text(json.dumps(report), encoding="utf-8")
    for words, said in {
        ("lixp/table-4", file): "lixp/table-4: --kept draws figures of numbers, and this is none",
        ("lixp/figure-1", file): "no report of lixp/figure-1",
        ("lixp/figure-4", tmp_path / "less.json"): "less.json: does not hold all points of the figure",
        ("lixp/figure-4", tmp_path / "none.json"): "none.json: no such file",
    }.items():
        name, place, *more = map(str, words)
        assert cli.main([name, "--kept", place, "--out", str(tmp_path), *more]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
