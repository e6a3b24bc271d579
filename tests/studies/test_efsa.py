"""EFSA's studies at smoke scale: every table and figure in the paper's form, each search made once."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect import cli
from recollect.models import build_model
from recollect.models.transformers.encoder import quiet
from recollect.studies import find_study
from recollect.studies.efsa import paper as efsa_paper
from recollect.studies.study import StudyOptions

DOMAINS = ("glyphs:scenes", "hard scenes")


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return StudyOptions("smoke", tmp_path_factory.mktemp("studies"), workers=1)


def run(name, options):
    return find_study(f"efsa/{name}").load()(options)


@pytest.fixture(scope="module")
def table_3(options):
    return run("table-3", options)


def searches(out: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in (out / "searches").glob("*.json")}


@pytest.mark.parametrize(("number", "printed"), [(2, efsa_paper.TABLE_2), (7, efsa_paper.TABLE_7)])
def test_every_method_stands_beside_the_papers_average(options, number, printed):
    report = run(f"table-{number}", options)
    table, costs = report.tables
    assert [row[0] for row in table.rows] == ["Z.S", "F.T", "T2T", "RLCF", "EFSA", "full parameters"]
    assert table.columns[1:10] == tuple(f"{name} R@{k}" for name in (*DOMAINS, "average") for k in (1, 5, 10))
    assert table.columns[-3:] == ("paper: average R@1", "paper: average R@5", "paper: average R@10")
    beside = {"Z.S": "zero-shot", "F.T": "fine-tuning", "T2T": "text-to-text", "RLCF": "rlcf", "EFSA": "episode"}
    for row in table.rows:
        known = printed.get(beside.get(row[0], ""))
        assert row[-3:] == (known[-1] if known else ("", "", ""))
    assert [row[0] for row in costs.rows] == [row[0] for row in table.rows]
    assert float(costs.rows[4][3]) == 6  # an episode passes its k images back
    assert float(costs.rows[0][3]) == 0
    assert "glyphs" in report.world


def test_an_average_is_that_of_its_domains_and_a_gain_is_over_zero_shot(table_3):
    table = table_3.tables[0]
    for row in table.rows:
        first, second, average = (float(row[place]) for place in (1, 4, 7))
        assert average == pytest.approx((first + second) / 2, abs=0.06)
    zero_shot, episode = (float(table.rows[place][7]) for place in (0, 4))
    assert float(table.rows[4][10]) == pytest.approx(episode - zero_shot, abs=0.11)
    assert "zero-shot R@6" in table_3.notes[0]  # the most an episode of six candidates can reach


def test_a_cell_is_mean_and_deviation_over_base_models(options, tmp_path):
    """Worked out by hand from the files."""
    report = run("figure-1", replace(options, out=tmp_path, seeds=2))
    values = {}
    for path in searches(tmp_path):
        for result in json.loads(path.read_text()):
            for row in result["rows"]:
                if (row["metric"], row.get("direction"), row.get("k")) == ("recall", "text to image", 10):
                    values.setdefault(row["domain"], []).append(row["value"])
    (row,) = report.tables[0].rows
    for place, domain in enumerate(DOMAINS):
        first, second = values[domain]
        cell = f"{(first + second) / 2:.1f} ± {abs(first - second) / 2**0.5:.1f}"
        assert row[3 + 3 * place] == cell
    assert len(list((tmp_path / "runs").iterdir())) == 2  # base models; each judges for the other


def test_base_models_and_searches_are_made_once(table_3, options):
    before, runs = searches(options.out), sorted((options.out / "runs").iterdir())
    assert run("table-3", options) == table_3
    assert searches(options.out) == before
    run("table-4", options)
    assert sorted((options.out / "runs").iterdir()) == runs
    made = [json.loads(path.read_text())[0] for path in searches(options.out) if path not in before]
    methods = [result["settings"]["methods"] for result in made]
    assert all(set(each) == {"zero-shot", "episode"} for each in methods)


@pytest.mark.parametrize(
    ("number", "names"),
    [
        (4, ["zero-shot", "Hinge", "Contrastive", "Combined", "Contrastive, temperature 1", "Combined, temperature 1",
             "Combined, both ways"]),
        (5, ["zero-shot", "2", "4", "8"]),
        (6, ["zero-shot", "Ground-truth", "stand-in: 10 %", "stand-in: 25 %", "stand-in: 50 %"]),
    ],
)  # fmt: skip
def test_every_ablation_has_its_rows_and_the_papers_figures(options, number, names):
    (table,) = run(f"table-{number}", options).tables
    assert [row[0].startswith(name) for row, name in zip(table.rows, names, strict=True)] == [True] * len(names)
    printed = [row[11:] for row in table.rows]
    expected = {4: ("Hinge", efsa_paper.TABLE_4["hinge"]), 6: ("Ground-truth", efsa_paper.TABLE_6["Ground-truth"])}
    if number in expected:
        name, triples = expected[number]
        assert printed[names.index(name)] == tuple(cell for triple in triples for cell in triple)
    else:
        assert printed[names.index("8")][:3] == efsa_paper.TABLE_5[8][0]
        assert "zero-shot R@4" in table.rows[2][0]


@pytest.mark.parametrize("number", [1, 3, 4, 5, 6])
def test_every_figure_is_drawn(options, number):
    report = run(f"figure-{number}", options)
    (name,) = report.figures
    picture = np.asarray(Image.open(options.out / name).convert("L"))
    assert min(picture.shape) > 200
    assert (picture < 128).mean() > 0.001
    if number != 3:
        assert report.tables[0].rows[0][0] == "zero-shot"


def test_figure_3_counts_what_episodes_change(options):
    """Against the ranks that the evaluation itself finds."""
    report = run("figure-3", options)
    before, after = (_first_hits(options.out, method) for method in ("zero-shot", "episode"))
    said = report.notes[0]
    gained, lost = int(said.split(" rank for ")[1].split(" ")[0]), int(said.split("from it for ")[1].split(";")[0])
    assert gained - lost == after - before


def _first_hits(out, method):
    """How many queries find a true match first, in the search of both domains with the study's own settings."""
    for path in searches(out):
        result, *others = json.loads(path.read_text())
        if others or len(result["settings"]["methods"]) != 6 or "softmax" not in result["model"]:
            continue
        rows = [row for row in result["rows"] if row["method"] == method and row["metric"] == "recall"]
        (row,) = [row for row in rows if (row["direction"], row["domain"], row["k"]) == ("text to image", "all", 1)]
        return round(row["value"] * row["queries"] / 100)
    raise AssertionError("no such search")


def test_choices_are_made_on_other_pools_than_those_of_the_tables(table_3, options):
    (table,) = run("choices", options).tables
    names = [row[0] for row in table.rows]
    assert any("all parameters" in name for name in names)
    assert any("fine-tuning" in name for name in names)
    assert any("RLCF" in name for name in names)
    sizes = set()
    for path in searches(options.out):
        for result in json.loads(path.read_text()):
            sizes.add(result["settings"]["images"])
    assert {4 * 6 + 20, 6 * 6 + 30} <= sizes  # validation; the test pools have 6 groups and 30 scenes


def test_base_models_of_several_lengths_in_one_table(options):
    (table,) = run("base-model", options).tables
    assert [row[0] for row in table.rows] == ["2 steps", "6 steps"]
    assert all(float(row[2]) >= float(row[1]) for row in table.rows)  # R@k is no less than R@1


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's pool of pictures with two captions each, and a model."""
    folder = tmp_path_factory.mktemp("own")
    lines = ["path,caption,second"]
    for number in range(12):
        Image.new("RGB", (40, 40), (20 * number, 250 - 20 * number, 90)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,a sign of {'red ' * number}paint,paint {'green ' * (12 - number)}here")
    (folder / "coco.csv").write_text("\n".join(lines))
    with quiet():
        build_model("tiny", texts=[line.split(",")[1] for line in lines]).save(folder / "model")
    return folder


def test_full_scale_is_the_users_pool_captions_and_model(own, tmp_path, capsys):
    words = ["study", "efsa/table-3", "--scale", "full", "--data", own / "coco.csv", "--search.models", own / "model"]
    words += ["--search.captions", "column:second", "--search.split", "all", "--search.episode.k", 4]
    words += ["--search.episode.rank", 2, "--search.tuning.epochs", 1, "--search.queries", 5, "--out", tmp_path]
    assert cli.main([str(word) for word in words]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "RLCF is left out" in printed
    report = json.loads((tmp_path / "efsa-table-3.json").read_text())
    table = report["tables"][0]
    assert [row[0] for row in table["rows"]] == ["Z.S", "F.T", "T2T", "EFSA", "full parameters"]
    assert "paper: coco R@1" in table["columns"]  # a set of that name stands beside the paper's
    assert efsa_paper.TABLE_3["episode"][0][0] in table["rows"][3]
    assert "captions of the pool: column:second" in table["notes"][0]


@pytest.mark.parametrize(
    "words",
    [
        ["--search.split", "test", "--search.validation-split", "test"],
        ["--search.split", "all"],
        ["--search.validation", "{data}", "--search.split", "validation"],
    ],
)
def test_choices_are_never_made_on_what_is_tested(own, tmp_path, capsys, words):
    data = str(own / "coco.csv")
    asked = ["study", "efsa/choices", "--scale", "full", "--data", data, "--search.models", str(own / "model")]
    asked += ["--search.captions", "column:second", *(word.format(data=data) for word in words)]
    assert cli.main([*asked, "--out", str(tmp_path)]) == 2
    assert f"but these are tested: {data}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--scale full searches your pools. Name them with --data"),
        (["--data", "nothing.csv"], "Name them with --search.captions"),
        (["--data", "nothing.csv", "--search.captions", "true", "--search.models", "./nothing"], "nothing"),
        (["--data", "nothing.csv", "--search.episode.k", "1"], "k 1: an episode needs at least 2 images"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    assert cli.main(["study", "efsa/table-2", "--scale", "full", *words, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.strip().count("\n") == 0
