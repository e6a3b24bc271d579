"""The demo: one page and one JSON, whose sentences follow from the figures."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from recollect.apps import demo as module
from recollect.apps.demo import NO_MASK, SIGLIP, SIGLIXP, DemoFindings, conclusions, demo, worlds
from recollect.reports import plots
from recollect.studies import runs
from recollect.tasks.opening import open_tasks

ROOT = Path(__file__).parents[2]


def found(gain, spread=0.1, seeds=3, span=0.0):
    """Frames in which every model but SigLIP is better by ``gain``."""
    better = {SIGLIP: 0.0, SIGLIXP: gain, NO_MASK: 0.0, f"{SIGLIP}+span": span}
    lines = [
        {"protocol": protocol, "model": model, "data": data, "training_seed": seed, "method": method, "shots": 32,
         "seed": 0, "value": 50 + more + spread * (seed - 1) * (model != SIGLIP)}
        for protocol, method in (("few-shot", "prototype"), ("few-shot", "softmax"), ("zero-shot", None))
        for model, more in better.items()
        for data in ("a", "b")
        for seed in range(seeds)
    ]  # fmt: skip
    frame = pd.DataFrame(lines)
    return DemoFindings(frame[frame["protocol"] == "few-shot"], frame[frame["protocol"] == "zero-shot"], 32)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (5.0, "context raises the mean of six few-shot classifiers at 32 shots, by +5.0 ± 0.1 points"),
        (-2.0, "context lowers the mean of six few-shot classifiers at 32 shots, by -2.0 ± 0.1 points"),
        (
            0.08,
            "context does not clearly change the mean of six few-shot classifiers at 32 shots, by +0.1 ± 0.1 points",
        ),
    ],
)
def test_the_sentences_say_what_the_figures_say(gain, words):
    parts = {"latents": found(gain), "held back": found(1.0, span=3.0), "strong": found(-1.0, spread=0.0, seeds=1)}
    first, second = conclusions(parts)
    assert words in first
    assert "over SigLIP's 50.0 ± 0.0 %" in first
    assert "without the mask the change is +0.0 ± 0.1" in first
    assert "held back by +1.0 ± 0.1 points" in second
    assert "gives +3.0 ± 0.1 without any training" in second
    assert "a strong one by -1.0 (over 50.0 %)" in second


@pytest.fixture
def short(monkeypatch):
    """The demo with fewer steps, tasks and seeds, to see its parts."""

    def few_tasks(selection, purpose):
        opened = open_tasks(selection, purpose)
        return replace(opened, tasks=opened.tasks[:3])

    monkeypatch.setattr(runs, "open_tasks", few_tasks)
    monkeypatch.setattr(module, "_shortened", lambda recipe: replace(recipe, steps=4, batch_size=64, log_every=1))
    monkeypatch.setattr(
        module, "worlds", lambda scale: {name: replace(world, seeds=1) for name, world in worlds(scale).items()}
    )


def test_page_and_json_hold_every_part(short, tmp_path):
    page = demo(tmp_path, "smoke", workers=1).read_text()
    assert page.count("<figure>") == 3 * 3 + 1
    assert page.count("<table>") == 3
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # one file, nothing to load
    saved = json.loads((tmp_path / "results.json").read_text())
    assert set(saved["worlds"]) == {"latents", "held back", "strong"}
    assert saved["worlds"]["latents"]["gain"].keys() == {SIGLIXP, NO_MASK}
    assert saved["worlds"]["held back"]["gain"].keys() == {SIGLIXP, f"{SIGLIP}+span", f"{SIGLIXP}+span"}
    for sentence in saved["conclusions"]:
        assert sentence.replace("'", "&#39;") in page
    for words in ("Command: recollect demo --scale smoke", "Machine:", "Time:", module.PAPER):
        assert words in page
    for term, meaning in (*module.TERMS, *module.NEXT):
        assert f"<dt>{term}</dt>" in page
        assert meaning.replace("'", "&#39;") in page
    columns = saved["worlds"]["latents"]["few_shot"]
    assert len({len(column) for column in columns.values()}) == 1
    # By default there are six numbers of shots for these three, and at most three seeds for this one.
    assert (tmp_path / "results.json").stat().st_size < 1e6 / (2 * 3)


def test_a_model_has_one_colour_in_every_figure_and_no_curve_lies_on_another():
    colours = module.COLOURS
    assert len(set(colours.values())) == len(colours) == 5
    frame = found(0.0, seeds=2).few.assign(shots=4)
    names = [SIGLIP, SIGLIXP, NO_MASK]
    curves = plots.few_shot_curves(frame, names, ["prototype"], colours=colours)
    lines = [line for line in curves.axes[0].get_lines() if len(line.get_xdata())]
    places = {line.get_color(): float(line.get_xdata()[0]) for line in lines}
    assert len({places[colours[name]] for name in names}) == 3
    bars = plots.gain_per_classifier(frame, {SIGLIXP: (SIGLIXP, SIGLIP)}, ["prototype"], 4, colours)
    assert to_hex(bars.axes[0].patches[0].get_facecolor()).upper() == colours[SIGLIXP]
    logs = {name: pd.DataFrame({"step": [1, 2], "base_loss": [2.0, 1.0]}) for name in names}
    dynamics = plots.training_dynamics(logs, colours).axes[0].get_lines()
    assert [line.get_color() for line in dynamics] == [colours[name] for name in names]
    assert np.all(np.diff([line.get_linewidth() for line in dynamics]) < 0)


def test_the_default_has_three_seeds_and_the_no_mask_control_where_the_effect_is_measured():
    parts = worlds("default")
    assert parts["latents"].seeds >= 3
    assert list(parts["latents"].recipes) == [SIGLIP, SIGLIXP, NO_MASK]
    assert parts["latents"].recipes[NO_MASK].objective.context.options.mask is False
    budgets = [{(r.steps, r.batch_size) for r in part.recipes.values()} for part in parts.values()]
    assert all(len(budget) == 1 for budget in budgets)


def test_the_stated_duration_is_the_same_in_the_readme_and_in_the_help():
    told = [ROOT / "README.md", ROOT / "src/recollect/commands/demo.py", ROOT / "src/recollect/commands/texts/demo.txt"]
    for file in told:
        assert "about eight minutes on two cores" in " ".join(file.read_text(encoding="utf-8").split()), file
