"""Studies of prefix conditioning at smoke scale: tables and figures in the paper's form, with cached runs."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect_papers.engine import paper_quote
from recollect_papers.prefix.world import PrefixArm, prefix_world
from recollect_papers.studies import find_study
from recollect_papers.worlds import LABEL_SETS
from recollect_papers.worlds import glyph_tasks as label_tasks
from recollect_papers.worlds import tasks as worlds


@pytest.fixture(scope="module", autouse=True)
def few_pictures():
    """Reduce pictures and prompts of the world's tasks; these tests are about tables, not accuracies."""
    with pytest.MonkeyPatch.context() as patch:
        own = partial(label_tasks.label_set_tasks, each=2)
        for makers in (worlds.FEW_SHOT, worlds.ZERO_SHOT):
            for name in LABEL_SETS:
                patch.setitem(makers, name, own)
        patch.setitem(worlds.ZERO_SHOT, "glyphs:prompts", partial(label_tasks.prompt_tasks, queries=60, each=2))
        patch.setattr(label_tasks, "GENERAL_TEMPLATES", label_tasks.GENERAL_TEMPLATES[:8])
        worlds._created.cache_clear()
        yield
    worlds._created.cache_clear()


@pytest.fixture(scope="module")
def table_4(options):
    ours, _ = find_study("prefix/table-4").load()(options).tables
    return ours


def test_a_cell_is_the_mean_over_sets_of_the_result_files(table_4, options):
    captions = prefix_world(options).sources["captions"]
    values = {}
    for path in (options.out / "runs").glob("*/figures-*.json"):
        recipe = json.loads((path.parent / "recipe.json").read_text())
        if (recipe["data"]["labels"], recipe["data"]["captions"]) == (["glyphs:labels"], list(captions)):
            found = json.loads(path.read_text())["value"]
            values |= {at["set"]: value for at, value in found
                       if (at.get("read"), at["measure"]) == ("caption", "top-1")}  # fmt: skip
    unseen = [value for data, value in values.items() if "prompts" in data]
    assert len(unseen) == 15
    (row,) = (row for row in table_4.rows if row[:2] == ("IN-21K + CC-12M", "caption"))
    assert row[2] == f"{values['glyphs-labels-half-own']:.1f}"
    assert row[-1] == f"{np.mean(unseen):.1f}"


def test_recipes_follow_from_arms(options):
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


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8, 9])
def test_every_figure_is_drawn_with_its_measurements(table_4, options, draw, number):
    report = draw(f"prefix/figure-{number}", options)
    (table,) = report.tables
    assert len(table.rows) >= 2
    assert any(paper_quote("prefix", f"figure-{number}") in note for note in report.notes)


@pytest.mark.parametrize("data", [(), ("captions=a.parquet",), ("a.parquet",), ("pictures=a.parquet",)])
def test_full_scale_rejects_missing_sources(options, data):
    with pytest.raises(UserError):
        prefix_world(replace(options, scale="full", data=data))


def test_full_scale_uses_the_papers_recipe(options):
    data = ("captions=c.parquet", "labels-large=l.parquet", "labels-small=s.parquet", "shift=v2.parquet", "search=coco")
    chosen = prefix_world(replace(options, scale="full", data=data))
    recipe = chosen.make(PrefixArm(prefix=True))
    assert (recipe.model.start, recipe.batch_size, recipe.optimizer.weight_decay) == ("swin-t", 1024, 0.1)
    assert recipe.data.captions == ("c.parquet",)
    assert chosen.make(PrefixArm("small")).steps == 125_000
    assert chosen.own == ("s.parquet", "v2.parquet")
    assert chosen.suite == "prefix-11"
    assert not chosen.has(PrefixArm("rest"))
    evaluation = chosen.zero_shot()
    assert (evaluation.templates, evaluation.prefixes) == (1, ("label", "caption"))
