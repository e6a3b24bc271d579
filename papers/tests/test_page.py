"""Filling Markdown pages from result files; the pages in docs are up to date."""

import json
import re
import shutil
from pathlib import Path

import pytest

from recollect.cli.parser import parse
from recollect.core.errors import UserError
from recollect_papers import cli
from recollect_papers.engine import TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.page import fill_page
from recollect_papers.run_study import RunStudy
from recollect_papers.studies import STUDIES

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "results"
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
         if re.search("<!-- (table|cell|words|value) ", page.read_text(encoding="utf-8"))]  # fmt: skip

REPORT = {
    "name": "some/study", "scale": "small", "world": "made up", "notes": ["better by 3.5; a remark"],
    "command": "recollect-papers some/study --scale small",
    "tables": [
        {"title": "Table 1. Accuracy", "columns": ["arm", "kind", "top-1", "paper: top-1"],
         "rows": [["base", "", "50.0 ± 1.0", "60"], ["ours", "x", "53.5 ± 1.0", ""], ["ours", "y", "51.0", ""]],
         "notes": ["a note", "paper: as printed there"]},
        {"title": "Table 2. Cost", "columns": ["arm", "ms"], "rows": [["base", "3"]], "notes": []},
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "one.json").write_text(json.dumps(REPORT))
    return results


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert fill_page(text, RESULTS) == text, "run `make results`"


def test_edited_figures_are_detected(tmp_path, capsys):
    shutil.copytree(RESULTS, tmp_path / "results")
    page, text = tmp_path / "page.md", PAGE.read_text(encoding="utf-8")
    assert "53.5 ± 1.0" not in text
    page.write_text(re.sub(r"(-->)\d+\.\d ± \d\.\d(<!-- end)", r"\g<1>53.5 ± 1.0\2", text, count=1), encoding="utf-8")
    words = ["results", str(page), "--results", str(tmp_path / "results")]
    assert cli.main([*words, "--check"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(words) == 0
    assert page.read_text(encoding="utf-8") == text
    assert cli.main([*words, "--check"]) == 0


def test_tables_are_filled_with_notes_file_and_command(folder):
    made = fill_page('# A page\n<!-- table one.json "Accuracy" without="paper: .*" -->\nold\n<!-- end -->\n', folder)
    assert made == (
        '# A page\n<!-- table one.json "Accuracy" without="paper: .*" -->\n\n'
        "| arm | kind | top-1 |\n| --- | --- | --- |\n"
        "| base |  | 50.0 ± 1.0 |\n| ours | x | 53.5 ± 1.0 |\n| ours | y | 51.0 |\n\na note\n\n"
        "`results/one.json`: `recollect-papers some/study --scale small`\n\n<!-- end -->\n"
    )
    assert fill_page(made, folder) == made
    only = fill_page('<!-- table one.json "Accuracy" only="top-1" --><!-- end -->', folder)
    assert "| arm | top-1 |" in only


def test_cells_and_notes_are_filled_in_prose(folder):
    text = (
        'gains <!-- cell one.json "Table 1" "ours / x" "top-1" -->1<!-- end --> points, '
        '<!-- words one.json "better by " --><!-- end -->'
    )
    made = fill_page(text, folder)
    assert re.sub(r"<!--.*?-->", "", made) == "gains 53.5 ± 1.0 points, 3.5"


def test_numbers_of_any_json_file_are_filled_in_prose(folder):
    (folder / "speed.json").write_text(json.dumps({"figures": {"one (ms)": 52.81, "rows": [{"n": 2000}, {"n": 5000}]}}))
    for mark, shown in (
        ('"figures > one (ms)" ".1f"', "52.8"),
        ('"figures > rows > 1 > n" ",.0f"', "5,000"),
        ('"figures > rows > 0 > n" ".2f" over="figures > rows > 1 > n"', "0.40"),
        ('"figures > one (ms)" ".0f" times="1000"', "52810"),
    ):
        made = fill_page(f"takes <!-- value speed.json {mark} -->?<!-- end --> ms", folder)
        assert re.sub(r"<!--.*?-->", "", made) == f"takes {shown} ms"
        assert fill_page(made, folder) == made


@pytest.mark.parametrize(
    "mark",
    [
        '<!-- table two.json "Cost" --><!-- end -->',
        '<!-- table one.json "Speed" --><!-- end -->',
        '<!-- table one.json "Table" --><!-- end -->',
        '<!-- cell one.json "Cost" "base" "s" --><!-- end -->',
        '<!-- cell one.json "Accuracy" "ours" "top-1" --><!-- end -->',
        '<!-- words one.json "worse by " --><!-- end -->',
        '<!-- cell one.json "Cost" --><!-- end -->',
        '<!-- value one.json "tables > 0 > rank" ".1f" --><!-- end -->',
        '<!-- value one.json "tables > 7" ".1f" --><!-- end -->',
        '<!-- value one.json "world" ".1f" --><!-- end -->',
        '<!-- table one.json "Cost" -->',
    ],
)
def test_invalid_marks_are_rejected_in_one_line(folder, mark):
    with pytest.raises(UserError) as error:
        fill_page(mark, folder)
    assert "\n" not in str(error.value)


def test_reports_contain_the_command_that_reproduces_them(tmp_path):
    """With file names, options that differ from their defaults, and no output folder."""
    words = ["reco/figure-2", "--scale", "full", "--seeds", "2", "--out", str(tmp_path)]
    words += ["--data", str(tmp_path / "a.parquet?split=test"), "glyphs:scenes", "--search.episode.k", "8"]
    words += ["--workers", "1"]
    assert parse(RunStudy, words, "recollect-papers")._command() == (
        "recollect-papers reco/figure-2 --scale full --data 'a.parquet?split=test' glyphs:scenes --seeds 2 "
        "--search.episode.k 8"
    )


def test_committed_tables_are_those_that_their_studies_form_from_the_measurements():
    formed = 0
    for file in RESULTS.rglob("*.json"):
        kept = json.loads(file.read_text())
        study = STUDIES[kept["name"]].load() if isinstance(kept, dict) and kept.get("name") in STUDIES else None
        if isinstance(study, TableStudy) and kept["measured"]:
            tables, notes = study.form(Measurements.from_json(kept["measured"]))
            expected = [
                (each["title"], each["columns"], each["rows"], each.get("notes", [])) for each in kept["tables"]
            ]
            found = [(each.title, [*each.columns], [[*row] for row in each.rows], [*each.notes]) for each in tables]
            assert (found, list(notes)) == (expected, kept["notes"]), file
            formed += 1
    assert formed > 30
