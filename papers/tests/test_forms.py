"""The form of every table, on figures that were measured once at smoke scale and kept in ``stored/``."""

import json
from pathlib import Path

import numpy as np
import pytest

from recollect_papers import cli
from recollect_papers.engine import TableStudy, printed
from recollect_papers.measurements import Measurements
from recollect_papers.studies import find_study

STORED = {file.stem: file for file in sorted((Path(__file__).parent / "stored").glob("*.json"))}


@pytest.fixture(scope="module", params=STORED, ids=list(STORED))
def stored(request):
    return json.loads(STORED[request.param].read_text(encoding="utf-8"))


def formed(name):
    """The tables of a stored study, formed from its figures."""
    kept = json.loads(STORED[name].read_text(encoding="utf-8"))
    tables, _ = find_study(kept["name"]).load().form(Measurements.from_json(kept["measured"]))
    return tables


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


def test_most_figures_of_numbers_have_their_points():
    assert len(KEPT) >= 5


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


@pytest.mark.parametrize("number", [2, 7])
def test_every_search_stands_beside_the_papers_average(number):
    table, costs = formed(f"efsa-table-{number}")
    assert [row[0] for row in table.rows] == ["Z.S", "F.T", "T2T", "RLCF", "EFSA", "full parameters"]
    domains = ("glyphs:scenes", "hard scenes", "average")
    assert table.columns[1:10] == tuple(f"{name} R@{k}" for name in domains for k in (1, 5, 10))
    assert table.columns[-3:] == ("paper: average R@1", "paper: average R@5", "paper: average R@10")
    paper = printed("efsa", f"table-{number}").rows
    arms_by_row = {"Z.S": "zero-shot", "F.T": "fine-tuning", "T2T": "text-to-text", "RLCF": "rlcf", "EFSA": "episode"}
    for row in table.rows:
        known = paper.get(arms_by_row.get(row[0], ""))
        assert row[-3:] == (known[-3:] if known else ("", "", ""))
    assert [row[0] for row in costs.rows] == [row[0] for row in table.rows]
    assert float(costs.rows[4][3]) == 6  # an episode passes its k images back
    assert float(costs.rows[0][3]) == 0


@pytest.mark.parametrize(
    ("number", "names"),
    [
        (4, ["zero-shot", "Hinge", "Contrastive", "Combined", "Contrastive, temperature 1", "Combined, temperature 1",
             "Combined, both ways"]),
        (5, ["zero-shot", "2", "4", "8"]),
        (6, ["zero-shot", "Ground-truth", "stand-in: 10 %", "stand-in: 25 %", "stand-in: 50 %"]),
    ],
)  # fmt: skip
def test_every_ablation_of_episodes_has_its_rows_and_the_papers_figures(number, names):
    (table,) = formed(f"efsa-table-{number}")
    assert [row[0].startswith(name) for row, name in zip(table.rows, names, strict=True)] == [True] * len(names)
    arms_by_row, paper = [row[11:] for row in table.rows], printed("efsa", f"table-{number}").rows
    key = {4: ("Hinge", "hinge"), 5: ("8", "8"), 6: ("Ground-truth", "Ground-truth")}[number]
    assert arms_by_row[names.index(key[0])] == paper[key[1]]
    if number == 5:
        assert "zero-shot R@4" in table.rows[2][0]


def test_reco_table_1_has_every_model_beside_the_papers():
    (table,) = formed("reco-table-1")
    assert [row[0] for row in table.rows[:4]] == [
        "random filters", "random filters + RECO", "random filters + RECO that learns to read", "convnet",
    ]  # fmt: skip
    below = [row for row in table.rows if row[0].startswith("paper: ")]
    assert [row[-7:] for row in below] == list(printed("reco", "table-1").rows.values())
    assert all(len(set(row[1:6])) == 1 for row in below)
    model, fused = (float(row[1]) for row in table.rows[3:5])
    assert fused - model == pytest.approx(2 * (6 * 256**2 + 10 * 256) / 1e6, abs=0.011)  # two blocks


def test_reco_table_4_leaves_out_modes_that_a_fusion_does_not_have():
    (table,) = formed("reco-table-4")
    filled = [[bool(cell) for cell in row[1:10]] for row in table.rows]
    assert filled[1:] == [[False, True, False] * 3, [True, False, False] * 3, [True] * 9]
    paper = printed("reco", "table-4").rows
    assert [row[-9:] for row in table.rows[1:]] == [paper[modality] for modality in ("text", "image", "both")]


def test_lixp_table_1_gives_accuracy_and_gain_of_every_classifier():
    (table,) = formed("lixp-table-1")
    assert [row[0] for row in table.rows] == [
        "Zero-shot", "Prototypical", "Default Tip", "XVal Tip", "Plurality NN", "Rank NN", "Softmax NN",
        "average few-shot gain",
    ]  # fmt: skip
    assert table.columns[1:3] == ("SigLIP, MLP 0.3M", "SigLIxP gain")
    assert table.rows[1][-5:] == printed("lixp", "table-1").rows["prototype"]
    gains = [float(row[2].split(" ")[0]) for row in table.rows[1:-1]]
    assert float(table.rows[-1][2]) == pytest.approx(np.mean(gains), abs=0.11)


def test_lixp_table_3_is_about_clip():
    (table,) = formed("lixp-table-3")
    assert table.columns[1:3] == ("CLIP, MLP 0.3M", "CLIxP gain")
    assert table.rows[2][-5:] == printed("lixp", "table-3").rows["tip-adapter"]
    assert table.rows[4][-5:] == ("",) * 5  # plurality: not printed for CLIP


def test_lixp_table_4_has_every_ablation_beside_the_papers_figure():
    tables, paper = formed("lixp-table-4"), printed("lixp", "ablations").rows
    parts = {table.columns[0]: [row[0] for row in table.rows] for table in tables}
    assert all(rows[:2] == ["SigLIP", "SigLIxP"] for rows in parts.values())
    assert {part: len(rows) - 2 for part, rows in parts.items()} == {
        "Self-attention mask": 1, "Loss weight": 3, "Form of the objective": 3, "Temperatures": 6, "Gradient": 3,
    }  # fmt: skip
    assert tables[0].columns[-2:] == ("paper: zero-shot", "paper: 16-shot")
    assert [row[-2:] for row in tables[0].rows] == [paper[key] for key in ("siglip", "siglixp", "no-mask")]


def test_lixp_table_5_has_every_buffer_beside_the_papers_figure():
    tables = formed("lixp-table-5")
    assert [(table.title, len(table.rows) - 2) for table in tables] == [
        ("Table 5a. Separate batch", 1), ("Table 5b. Value heads", 3), ("Table 5c. Normalised queries and keys", 1),
        ("Table 5d. Layer norm", 3), ("Table 5e. Stale entries", 3), ("Table 5f. Active buffer", 3),
    ]  # fmt: skip
    stale = {row[0]: row[-2:] for row in tables[4].rows}
    assert stale["+ 4 x batch of past steps"] == printed("lixp", "ablations").rows["stale-4x"]
    assert tables[5].rows[-1][0] == "32 of 128"


def test_prefix_table_1_has_the_papers_rows_and_context_beside_them():
    (table,) = formed("prefix-table-1")
    paper = printed("prefix", "table-1").rows
    keys = [" / ".join([*row[:3], *(["prefix"] if row[3] else [])]) for row in table.rows[:-3]]
    assert keys == list(paper)
    assert [row[-2:] for row in table.rows[:-3]] == list(paper.values())
    assert [row[2:4] for row in table.rows[-3:]] == [("CLIxP", ""), ("CLIxP", "✓"), ("UniCL with context", "✓")]
    assert all(0 <= float(cell.split(" ")[0]) <= 100 for row in table.rows for cell in row[4:6])


@pytest.mark.parametrize(
    ("number", "rows", "columns"), [(2, 4, 12), (3, 3, 4), (4, 9, 12), (5, 8, 11), (7, 8, 12), (8, 3, 18), (9, 6, 8)]
)
def test_every_prefix_table_has_the_papers_rows(number, rows, columns):
    tables = formed(f"prefix-table-{number}")
    assert (len(tables[0].rows), len(tables[0].columns)) == (rows, columns)
    text = "".join(table.markdown() for table in tables)
    assert "not run" not in text
    assert list(printed("prefix", f"table-{number}").rows.values())[-1][0] in text
    assert [row[:2] for row in tables[0].rows] == [row[:2] for row in tables[-1].rows]
