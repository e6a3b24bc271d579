"""Prefix conditioning's studies at smoke scale: every table and figure in the paper's form, each run made once."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

from recollect import cli
from recollect.core.errors import UserError
from recollect.data.sources import derived
from recollect.studies import STUDIES, find_study
from recollect.studies.prefix import paper as prefix_paper
from recollect.studies.prefix.world import PrefixArm, figures, prefix_world
from recollect.studies.study import StudyOptions
from recollect.tasks import glyph_labels as label_tasks
from recollect.tasks import worlds


@pytest.fixture(scope="module", autouse=True)
def few_pictures():
    """The world's tasks with a tenth of their pictures: what is tested here are tables, not accuracies."""
    with pytest.MonkeyPatch.context() as patch:
        few = replace(
            worlds.TASKS["glyphs"],
            label_set=partial(label_tasks.label_set_tasks, each=2),
            named={"prompts": partial(label_tasks.prompt_tasks, queries=60, each=2)},
        )
        patch.setitem(worlds.TASKS, "glyphs", few)
        patch.setattr(derived, "_MADE_TEXTS", 300)
        worlds._made.cache_clear()
        yield
    worlds._made.cache_clear()


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return StudyOptions("smoke", tmp_path_factory.mktemp("studies"), seeds=1, workers=1)


@pytest.fixture(scope="module")
def table_1(options):
    (table,) = find_study("prefix/table-1").load()(options).tables
    return table


def numbers(cells):
    return [float(cell.split(" ")[0]) for cell in cells]


def test_table_1_has_the_papers_rows_and_context_beside_them(table_1):
    rows = {row[:4]: row for row in table_1.rows}
    printed = {(*key[:3], "✓" if key[3] else ""): value for key, value in prefix_paper.TABLE_1.items()}
    assert [row[:4] for row in table_1.rows[:-3]] == list(printed)
    assert all(rows[key][-2:] == value for key, value in printed.items())
    assert [row[2:4] for row in table_1.rows[-3:]] == [("CLIxP", ""), ("CLIxP", "✓"), ("UniCL with context", "✓")]
    assert all(0 <= value <= 100 for row in table_1.rows for value in numbers(row[4:6]))


def test_a_cell_is_the_mean_over_sets_of_the_result_files(table_1, options):
    chosen = prefix_world(options)
    found = figures([PrefixArm(prefix=True)], options, chosen.zero_shot())
    values = {}
    for path in (options.out / "runs").glob("*/results-*/zero-shot--*caption-prefix*.json"):
        result = json.loads(path.read_text())
        recipe = json.loads((path.parents[1] / "recipe.json").read_text())
        if (recipe["data"]["labels"], recipe["data"]["captions"]) == (
            ["glyphs:labels"], [chosen.sources["captions"]],
        ) and recipe["objective"]["base"] == "softmax" and not recipe["objective"]["context"]:  # fmt: skip
            values[result["data"]] = next(row["value"] for row in result["rows"] if row["metric"] == "top-1")
    assert set(values) == set(found.data())
    unseen = [value for data, value in values.items() if "prompts" in data]
    (row,) = (row for row in table_1.rows if row[:4] == ("IN-21K", "CC-12M", "CLIP", "✓"))
    assert row[4] == f"{values['glyphs-labels-half-own']:.1f}"
    assert row[5] == f"{np.mean(unseen):.1f}"


def test_what_an_arm_is_decides_its_recipe(options):
    chosen = prefix_world(options)
    plain, prefixed = chosen.make(PrefixArm()), chosen.make(PrefixArm(prefix=True))
    assert (plain.data.sampling, prefixed.data.sampling) == ("equal", "debiased")
    assert (plain.model.prefixes, prefixed.model.prefixes) == ((), ("caption", "label"))
    assert chosen.make(PrefixArm("none")).data.labels == ()
    assert chosen.make(PrefixArm(captions="none")).data.captions == ()
    assert chosen.make(PrefixArm(base="label")).objective.base == "label"
    assert chosen.make(PrefixArm(context=True)).objective.context is not None
    assert plain.objective.context is None
    half = chosen.make(PrefixArm(batch=0.5))
    assert half.batch_size * half.steps == plain.batch_size * plain.steps


def test_tables_share_their_runs(table_1, options):
    def runs():
        return {path.parent.name for path in (options.out / "runs").glob("*/recipe.json")}

    before = runs()
    find_study("prefix/table-4").load()(options)
    assert runs() == before
    find_study("prefix/table-2").load()(options)
    assert len(runs()) == len(before) + 2  # the prefix with equal sampling, and debiased sampling without it


@pytest.mark.parametrize(
    ("number", "rows", "columns"), [(2, 4, 12), (3, 3, 4), (4, 9, 12), (5, 8, 11), (7, 8, 12), (8, 3, 18), (9, 6, 8)]
)
def test_every_table_has_the_papers_rows(table_1, options, number, rows, columns):
    report = find_study(f"prefix/table-{number}").load()(options)
    table = report.tables[0]
    assert (len(table.rows), len(table.columns)) == (rows, columns)
    assert "not run" not in report.markdown()
    assert "glyphs" in report.world
    assert list(getattr(prefix_paper, f"TABLE_{number}").values())[-1][0] in report.markdown()


def test_another_prefix_at_the_test_is_another_row(table_1, options):
    ours, printed = find_study("prefix/table-4").load()(options).tables
    assert [row[:2] for row in ours.rows] == [row[:2] for row in printed.rows]
    for first in range(0, 9, 3):
        label, caption = ours.rows[first + 1], ours.rows[first + 2]
        assert (label[1], caption[1]) == ("label", "caption")
        assert label[2:] != caption[2:]


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8, 9])
def test_every_figure_is_drawn_with_what_is_measured(table_1, options, number):
    report = find_study(f"prefix/figure-{number}").load()(options)
    (name,) = report.figures
    picture = np.asarray(Image.open(options.out / name).convert("L"))
    assert min(picture.shape) > 200
    assert (picture < 128).mean() > 0.001
    (table,) = report.tables
    assert len(table.rows) >= 2
    assert any(prefix_paper.FIGURES[number] in note for note in report.notes)


def test_every_study_of_the_paper_has_its_function():
    named = [name for name in STUDIES if name.startswith("prefix/")]
    assert len(named) == 15
    assert all(callable(STUDIES[name].load()) for name in named)


def test_the_command_prints_and_saves_a_report(table_1, options, capsys):
    words = ["study", "prefix/table-4", "--out", str(options.out), "--seeds", "1", "--workers", "1"]
    assert cli.main(words) == 0
    assert "Test-time prefix" in capsys.readouterr().out
    assert len(json.loads((options.out / "prefix-table-4.json").read_text())["tables"]) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((), "captions is missing"),
        (("captions=a.parquet",), "labels-large is missing"),
        (("a.parquet",), "write NAME=SOURCE"),
        (("pictures=a.parquet",), "write NAME=SOURCE"),
    ],
)
def test_the_papers_own_scale_says_what_it_needs(options, data, message):
    with pytest.raises(UserError, match=message):
        prefix_world(replace(options, scale="full", data=data))


def test_the_papers_own_scale_takes_the_papers_recipe(options):
    data = ("captions=c.parquet", "labels-large=l.parquet", "labels-small=s.parquet", "shift=v2.parquet", "search=coco")
    chosen = prefix_world(replace(options, scale="full", data=data))
    recipe = chosen.make(PrefixArm(prefix=True))
    assert (recipe.model.start, recipe.batch_size, recipe.optimiser.weight_decay) == ("swin-t", 1024, 0.1)
    assert recipe.data.captions == ("c.parquet",)
    assert chosen.make(PrefixArm("small")).steps == 125_000
    assert chosen.own == ("s.parquet", "v2.parquet")
    assert chosen.suite == "prefix-11"
    assert not chosen.has(PrefixArm("rest"))
    evaluation = chosen.zero_shot()
    assert (evaluation.templates, evaluation.prefixes) == (1, ("label", "caption"))
