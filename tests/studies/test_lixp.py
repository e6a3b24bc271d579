"""LIxP's studies at smoke scale: every table and figure in the paper's form, each run made once."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect import cli
from recollect.evaluation.results import load_results
from recollect.studies import STUDIES, find_study
from recollect.studies.lixp import paper as lixp_paper
from recollect.studies.study import StudyOptions


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return StudyOptions("smoke", tmp_path_factory.mktemp("studies"), seeds=1, workers=1)


@pytest.fixture(scope="module")
def table_4(options):
    return find_study("lixp/table-4").load()(options)


def test_table_4_has_every_ablation_beside_the_papers_figure(table_4):
    parts = {table.columns[0]: [row[0] for row in table.rows] for table in table_4.tables}
    assert all(rows[:2] == ["SigLIP", "SigLIxP"] for rows in parts.values())
    assert {part: len(rows) - 2 for part, rows in parts.items()} == {
        "Self-attention mask": 1, "Loss weight": 3, "Form of the objective": 3, "Temperatures": 6, "Gradient": 3,
    }  # fmt: skip
    first = table_4.tables[0]
    assert first.columns[-2:] == ("paper: zero-shot", "paper: 16-shot")
    assert [row[-2:] for row in first.rows] == [lixp_paper.ABLATIONS[key] for key in ("siglip", "siglixp", "no-mask")]
    assert "latents" in table_4.world


def test_a_cell_is_mean_and_deviation_of_the_result_files(options, tmp_path):
    """Worked out from the JSON by hand: mean over draws, then tasks; mean ± std over training seeds."""
    (table,) = find_study("lixp/table-6").load()(replace(options, out=tmp_path, seeds=2)).tables
    tasks = {0: [], 1: []}
    for folder in (tmp_path / "runs").glob("*/results-*"):
        for result in load_results(folder):
            if (result.model, result.protocol) == ("augmented-buffer", "few-shot"):
                values = [row["value"] for row in result.rows if row["method"] == "prototype" and row["shots"] == 16]
                tasks[result.seed].append(sum(values) / len(values))
    assert len(tasks[0]) == len(tasks[1]) == 8
    first, second = (sum(each) / len(each) for each in tasks.values())
    expected = f"{(first + second) / 2:.1f} ± {abs(first - second) / 2**0.5:.1f}"
    (row,) = (row for row in table.rows if row[0] == "buffer only")
    assert row[2] == expected


def test_runs_are_shared_and_not_made_again(table_4, options):
    def times() -> dict[Path, float]:
        return {path: path.stat().st_mtime for path in (options.out / "runs").glob("*/model/*")}

    before = times()
    again = find_study("lixp/table-4").load()(options)
    assert again == table_4
    assert times() == before
    find_study("lixp/table-6").load()(options)
    made = {path.parent.parent for path in times().keys() - before.keys()}
    augmented = [json.loads((run / "recipe.json").read_text())["objective"]["context"]["options"] for run in made]
    assert sorted(options["augmented"] for options in augmented) == ["all", "all+infonce", "buffer"]


def test_table_1_gives_accuracy_and_gain_of_every_classifier(options):
    (table,) = find_study("lixp/table-1").load()(options).tables
    assert [row[0] for row in table.rows] == [
        "Zero-shot", "Prototypical", "Default Tip", "XVal Tip", "Plurality NN", "Rank NN", "Softmax NN",
        "average few-shot gain",
    ]  # fmt: skip
    assert table.columns[1:3] == ("SigLIP, MLP 0.3M", "SigLIxP gain")
    assert table.rows[1][-5:] == lixp_paper.TABLE_1["prototype"]
    gains = [float(row[2].split(" ")[0]) for row in table.rows[1:-1]]
    assert float(table.rows[-1][2]) == pytest.approx(np.mean(gains), abs=0.11)


def test_table_5_has_every_buffer_beside_the_papers_figure(options):
    report = find_study("lixp/table-5").load()(options)
    assert [(table.title, len(table.rows) - 2) for table in report.tables] == [
        ("Table 5a. Separate batch", 1), ("Table 5b. Value heads", 3), ("Table 5c. Normalised queries and keys", 1),
        ("Table 5d. Layer norm", 3), ("Table 5e. Stale entries", 3), ("Table 5f. Active buffer", 3),
    ]  # fmt: skip
    stale = {row[0]: row[-2:] for row in report.tables[4].rows}
    assert stale["+ 4 x batch of past steps"] == lixp_paper.ABLATIONS["stale-4x"]


def test_table_3_is_about_clip(options):
    (table,) = find_study("lixp/table-3").load()(options).tables
    assert table.columns[1:3] == ("CLIP, MLP 0.3M", "CLIxP gain")
    assert table.rows[2][-5:] == lixp_paper.TABLE_3["tip-adapter"]
    assert table.rows[4][-5:] == ("",) * 5  # plurality: not printed for CLIP


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_every_figure_is_drawn(options, number):
    report = find_study(f"lixp/figure-{number}").load()(options)
    (name,) = report.figures
    picture = np.asarray(Image.open(options.out / name).convert("L"))
    assert min(picture.shape) > 200
    assert (picture < 128).mean() > 0.001


def test_the_command_prints_and_saves_a_report(options, capsys):
    words = ["study", "lixp/table-4", "--out", str(options.out), "--seeds", "1", "--workers", "1"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "Self-attention mask" in printed
    assert "World: latents" in printed
    saved = json.loads((options.out / "lixp-table-4.json").read_text())
    assert len(saved["tables"]) == 5
    assert "| no mask |" in (options.out / "lixp-table-4.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lixp/table-9"], "lixp/table-9: no such study. Choose one of: lixp/table-1"),
        (["lixp/table-1", "--scale", "full"], "--scale full trains on your data. Name it with --data"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    assert cli.main(["study", *words, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_every_study_that_is_listed_can_be_loaded(capsys):
    assert cli.main(["study"]) == 0
    listed = capsys.readouterr().out
    for name, study in STUDIES.items():
        assert callable(study.load())
        assert name in listed
