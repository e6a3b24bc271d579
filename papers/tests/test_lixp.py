"""LIxP's studies at smoke scale: tables and figures in the paper's form, with cached runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recollect_papers import cli
from recollect_papers.lixp import tables as lixp_tables
from recollect_papers.lixp import world as lixp_world
from recollect_papers.lixp.ablations import ContextOptions
from recollect_papers.measurements import Measurements
from recollect_papers.studies import STUDIES, find_study
from recollect_papers.worlds import tasks as worlds


@pytest.fixture(scope="module", autouse=True)
def few_tasks():
    """Keep two of the world's eight tasks; these tests are about tables, not accuracies."""
    with pytest.MonkeyPatch.context() as patch:
        for makers in (worlds.FEW_SHOT, worlds.ZERO_SHOT):
            patch.setitem(makers, "latents", lambda world, split, make=makers["latents"]: make(world, split)[:2])
        worlds._created.cache_clear()
        yield
    worlds._created.cache_clear()


@pytest.fixture(scope="module")
def options(options):
    return replace(options, seeds=2)


@pytest.fixture(scope="module")
def table_6(options):
    return find_study("lixp/table-6").load()(options)


def test_a_cell_is_mean_and_deviation_of_the_result_files(table_6, options):
    """Computed from the JSON: mean over tasks, then mean ± std over training seeds."""
    seeds = {}
    for file in (options.out / "runs").glob("*/figures-*.json"):
        recipe = json.loads((file.parent / "recipe.json").read_text())
        if ((recipe["objective"]["context"] or {}).get("options") or {}).get("augmented") == "buffer":
            values = [value for at, value in json.loads(file.read_text())["value"] if at.get("shots") == "16"]
            assert len(values) == 2
            seeds[recipe["seed"]] = sum(values) / len(values)
    first, second = seeds[0], seeds[1]
    expected = f"{(first + second) / 2:.1f} ± {abs(first - second) / 2**0.5:.1f}"
    (table,) = table_6.tables
    assert [row[0] for row in table.rows[:2]] == ["SigLIP", "SigLIxP"]
    (row,) = (row for row in table.rows if row[0] == "buffer only")
    assert row[2] == expected
    assert "latents" in table_6.world


def test_runs_are_cached(table_6, options):
    def times() -> dict[Path, float]:
        return {path: path.stat().st_mtime for path in (options.out / "runs").glob("*/model/*")}

    before = times()
    assert find_study("lixp/table-6").load()(options) == table_6
    assert times() == before
    runs = {path.parent.parent for path in before}
    assert len(runs) == 5 * 2
    contexts = [json.loads((run / "recipe.json").read_text())["objective"]["context"] for run in runs]
    augmented = [context.get("options", {"augmented": "none"})["augmented"] for context in contexts if context]
    assert sorted(set(augmented)) == ["all", "all+infonce", "buffer", "none"]


def test_every_ablation_changes_its_own_setting(options):
    setting = lixp_world.main_setting(options)
    changed = {key: lixp_tables._ablated(setting, changes).objective.context
               for arms in lixp_tables.ABLATIONS.values() for key, (_, changes) in arms.items()}  # fmt: skip
    plain, batch = setting.context().objective.context, setting.base.batch_size
    assert changed["alpha-0.8"] == replace(plain, alpha=0.8)
    assert changed["frozen-0.1"].options == ContextOptions(freeze_temperature=True)
    assert changed["frozen-0.1"].tau == 0.1
    assert changed["no-mask"].options == ContextOptions(mask=False)
    assert changed["stale-4x"].options == ContextOptions(stale_rows=4 * batch)
    assert changed["subset-1/16"].options == ContextOptions(active_rows=batch // 16)
    assert len({repr(context) for context in changed.values()} | {repr(plain)}) == len(changed) + 1


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_every_figure_can_be_drawn_from_its_report(options, draw, number):
    study, report = find_study(f"lixp/figure-{number}").load(), draw(f"lixp/figure-{number}", replace(options, seeds=1))
    again = Measurements.from_json(json.loads(json.dumps(report.measured)))
    assert list(study.form(again)[1]) == list(report.notes)
    study.draw(again)


def test_the_command_prints_and_saves_a_report(table_6, options, capsys):
    words = ["lixp/table-6", "--out", str(options.out), "--seeds", "2", "--workers", "1"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "Augmented entries" in shown
    assert "World: latents" in shown
    saved = json.loads((options.out / "lixp-table-6.json").read_text())
    assert [table["title"] for table in saved["tables"]] == ["Table 6. Augmented entries"]
    assert "| buffer only |" in (options.out / "lixp-table-6.md").read_text()


def test_every_listed_study_can_be_loaded(capsys):
    assert cli.main([]) == 0
    listed = capsys.readouterr().out
    for name, study in STUDIES.items():
        assert callable(study.load())
        assert name in listed
