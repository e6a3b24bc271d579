"""The demo: one page and one JSON, whose sentences follow from the figures."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recollect.evaluation.reports import plots
from recollect.index import Hit, Hits, Picture
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recollect.training import locked
from recollect_papers import plots as paper_plots
from recollect_papers import runs
from recollect_papers.demo import context, reading
from recollect_papers.demo import report as module
from recollect_papers.demo.context import NO_MASK, SIGLIP, SIGLIXP, SPANS, DemoFindings, conclusions, worlds
from recollect_papers.demo.reading import Readings
from recollect_papers.demo.report import demo
from recollect_papers.towers import patches
from recollect_papers.worlds.glyph_table import glyph_table

PROJECTED = SPANS[f"{SIGLIP}+span"]


def found(gain, spread=0.1, seeds=3, span=0.0):
    """Frames in which every model but SigLIP is better by ``gain``."""
    better = {SIGLIP: 0.0, SIGLIXP: gain, NO_MASK: 0.0, PROJECTED: span}
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
        (5.0, "context raises the mean of six few-shot classifiers at 32 shots by 5.0 ± 0.1 points"),
        (-2.0, "context lowers the mean of six few-shot classifiers at 32 shots by 2.0 ± 0.1 points"),
        (
            0.08,
            "context does not clearly change the mean of six few-shot classifiers at 32 shots (+0.1 ± 0.1 points",
        ),
    ],
)
def test_the_sentences_say_what_the_figures_say(gain, words):
    first, second = conclusions({"latents": found(gain), "pictures": found(-1.0, span=3.0, spread=0.0)})
    assert words in first
    assert "over SigLIP's 50.0 ± 0.0 %" in first
    assert "without the mask the change is +0.0 ± 0.1" in first
    assert "it lowers that mean by 1.0 ± 0.0 points over 50.0 ± 0.0 %" in second
    assert "projecting SigLIP onto the span of its texts gives +3.0 ± 0.0 without any training" in second


def read_as(memory, search):
    """What the other sections found, with these accuracies of a memory and ranks of search."""
    prefixes = {"label set": {"caption": 1.0, "label": 2.0}, "captions only": {"caption": 4.0, "label": 3.0}}
    ranks = {when: {"R@1": value} for when, value in zip(("before", "after"), search, strict=True)}
    found = dict(zip(("alone", "with the memory"), memory, strict=True))
    pictures = (Figure(), Figure(), Figure())
    return Readings(prefixes, 90.0, found, ("both", 3), "label", ranks, 400, 100, pictures).sentences()


def test_the_other_papers_sentences_say_theirs():
    prefixes, memory, search = read_as((5.0, 6.0), (40.0, 60.0))
    assert "label set are named best when read as a label (2.0 %, as a caption 1.0 %)" in prefixes
    assert "only captions speak of when read as a caption (4.0 %, as a label 3.0 %)" in prefixes
    assert "does not clearly change how many" in memory
    assert "5.0 % alone, 6.0 % with it" in memory
    assert "improves the rank of the right picture" in search
    assert ": first for 40.0 % of the queries before and 60.0 % after" in search
    assert "lowers how many" in read_as((50.0, 30.0), (40.0, 20.0))[1]
    assert "worsens the rank" in read_as((50.0, 30.0), (40.0, 20.0))[2]


def test_no_reading_is_the_better_one_where_both_figures_look_the_same():
    assert reading._better({"caption": 21.43, "label": 21.41}) == "either way (21.4 %)"


def test_a_change_is_told_where_it_is_more_than_twice_its_error():
    error = 100 * np.sqrt(2 * 0.25 / 100)  # of the difference of two shares of a hundred trials, near a half
    assert reading.change(50.0, 50.0 + 2.1 * error, 100) == "raises"
    assert reading.change(50.0 + 2.1 * error, 50.0, 100) == "lowers"
    assert reading.change(50.0, 50.0 + 1.8 * error, 100) == "does not clearly change"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The whole demo with a few steps of tiny batches."""
    out = tmp_path_factory.mktemp("demo")
    shorten = lambda recipe: replace(recipe, steps=3, batch_size=32, log_every=1)  # noqa: E731
    glyph_table()  # drawn once on a machine: found where it is kept, before the cache is another
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOLLECT_CACHE", str(out / "cache"))
        patch.setattr(locked, "MADE_ROWS", 300)
        patch.setattr(patches, "FIT_PICTURES", 200)
        for name, few in (("_PATCHES", 4000), ("_LEARNED_FROM", 4000), ("_ROUNDS", 1)):
            patch.setattr(patches, name, few)
        patch.setitem(reading._SIZES, "smoke", replace(reading._SIZES["smoke"], tasks=1, asked=3))
        patch.setattr(context, "shortened", shorten)
        patch.setattr(context, "_LOOKED_UP", context._LOOKED_UP[:20])
        every = runs.open_tasks

        def one_each(selection, purpose):
            own = [every(replace(selection, data=(spec,)), purpose).tasks[0] for spec in selection.data]
            return SimpleNamespace(tasks=own)

        patch.setattr(runs, "open_tasks", one_each)
        asked, zero_shot = [], reading.zero_shot

        def noted(encoder, task, *, model, prefix):
            asked.append((isinstance(encoder, RetrievalEnhancedEncoder), task.name, prefix))
            return zero_shot(encoder, task, model=model, prefix=prefix)

        patch.setattr(reading, "zero_shot", noted)
        patch.setattr(
            module, "worlds", lambda scale: {name: replace(world, seeds=1) for name, world in worlds(scale).items()}
        )
        page = demo(out, "smoke", workers=1)
    return page.read_text(), json.loads((out / "results.json").read_text()), out, asked


def test_the_page_is_one_file_with_a_picture_for_each_paper(made):
    page, _, _, _ = made
    assert page.count("<figure>") == 3 + 5 + 3
    assert page.count("<table>") == 2 + 3
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # one file, nothing to load
    for words in (
        "LIxP",
        "Saito et al.",
        "Iscen et al.",
        "Huzaifa",
        "Command: recollect-papers demo",
        "Machine:",
        "Time:",
    ):
        assert words in page
    for term, meaning in (*module._TERMS, *((f"<code>{command}</code>", what) for command, what in module.NEXT)):
        assert f"<dt>{term}</dt>" in page
        assert meaning.replace("'", "&#39;").split("“")[0] in page


def test_the_json_holds_every_sentence_and_figure_and_is_small(made):
    page, saved, out, _ = made
    assert set(saved["worlds"]) == {"latents", "pictures"}
    assert saved["worlds"]["latents"]["gain"].keys() == {SIGLIXP, NO_MASK}
    assert saved["worlds"]["pictures"]["gain"].keys() == {SIGLIXP, *SPANS.values()}
    assert saved["readings"].keys() == {"prefixes", "apart", "memory", "search"}
    assert len(saved["conclusions"]) == 5
    for sentence in saved["conclusions"]:
        assert sentence.replace("'", "&#39;") in page
    columns = saved["worlds"]["pictures"]["few_shot"]
    assert len({len(column) for column in columns.values()}) == 1
    # The default has six numbers of shots for smoke's three, and five seeds in all for these two.
    assert (out / "results.json").stat().st_size < 1e6 / (2 * 3)


def test_names_that_look_things_up_are_read_as_what_they_look_up_and_choices_see_no_tested_character(made):
    *_, asked = made
    assert {prefix for looks_up, _, prefix in asked if looks_up} == {"caption"}
    assert {prefix for looks_up, _, prefix in asked if not looks_up} == set(reading._READINGS)
    tested = [looks_up for looks_up, name, _ in asked if "-test-" in name]
    assert tested == [False, True]  # once alone and once with the memory, after all choices
    assert all("-validation-" in name for _, name, _ in asked[:-2])


def test_the_memory_holds_every_character_that_may_be_asked_for():
    known, *new = reading.remembered(reading._SIZES["default"])
    for source, name in zip(new, ("validation", "test"), strict=True):
        assert set(source.characters.tolist()) == set(known.world.split[name].tolist())


def test_the_default_has_three_seeds_and_the_no_mask_control_where_the_effect_is_measured():
    parts = worlds("default")
    assert parts["latents"].seeds >= 3
    assert list(parts["latents"].recipes) == [SIGLIP, SIGLIXP, NO_MASK]
    assert parts["latents"].recipes[NO_MASK].objective.context.options.mask is False
    assert all(recipe.model.locked == "image" for recipe in parts["pictures"].recipes.values())
    budgets = [{(r.steps, r.batch_size) for r in part.recipes.values()} for part in parts.values()]
    assert all(len(budget) == 1 for budget in budgets)


def test_a_model_has_one_colour_in_every_figure_and_no_curve_lies_on_another():
    colours = context._COLOURS
    assert len(set(colours.values())) == len(colours) == 5
    frame = found(0.0, seeds=2).few.assign(shots=4)
    names = [SIGLIP, SIGLIXP, NO_MASK]
    curves = plots.few_shot_curves(frame, names, ["prototype"], colours=colours)
    lines = [line for line in curves.axes[0].get_lines() if len(line.get_xdata()) and line.get_marker() != "None"]
    drawn = {line.get_color(): (float(line.get_xdata()[0]), line.get_marker()) for line in lines}
    points = {drawn[colours[name]] for name in names}
    assert len(points) == len({x for x, _ in points}) == 3
    bars = paper_plots.gain_per_classifier(frame, {SIGLIXP: (SIGLIXP, SIGLIP)}, ["prototype"], 4, colours)
    assert plots.matplotlib.colors.to_hex(bars.axes[0].patches[0].get_facecolor()).upper() == colours[SIGLIXP]
    logs = {name: pd.DataFrame({"step": [1, 2], "base_loss": [2.0, 1.0]}) for name in names}
    dynamics = paper_plots.training_dynamics(logs, colours).axes[0].get_lines()
    assert [line.get_color() for line in dynamics] == [colours[name] for name in names]
    assert np.all(np.diff([line.get_linewidth() for line in dynamics]) < 0)


def test_lines_of_equal_zero_shot_accuracy_fill_each_others_gaps():
    frame = found(0.0, seeds=1).few.assign(shots=4)
    zero = {SIGLIP: 50.0, SIGLIXP: 50.0}
    axis = plots.few_shot_curves(frame, [SIGLIP, SIGLIXP], ["prototype"], zero, context._COLOURS).axes[0]
    lines = [line for line in axis.get_lines() if list(line.get_ydata()) == [50.0, 50.0]]
    (first, dashes), (second, same) = (line._unscaled_dash_pattern for line in lines)
    assert dashes == same
    assert abs(second - first) % sum(dashes) == dashes[0] == dashes[1]


def test_a_row_of_pictures_keeps_its_lines_and_frames_what_is_right():
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    tiles = [paper_plots.Tile(picture, "one\ntwo", right) for right in (False, True)]
    _, wrong, right = paper_plots.picture_rows([("row", tiles)]).axes
    assert wrong.get_xlabel() == "one\ntwo"
    assert [axis.spines["left"].get_visible() for axis in (wrong, right)] == [False, True]


def test_no_word_of_a_row_of_pictures_is_cut_or_lies_on_a_picture():
    picture, long = np.zeros((4, 4, 3), dtype=np.uint8), "mathematical bold fraktur capital y and words " * 4
    rows = [("a title of several words", [paper_plots.Tile(picture, words, True) for words in (long, "short")])] * 3
    for heading in ("", "query: " + long):
        figure = paper_plots.picture_rows(rows, heading=heading)
        FigureCanvasAgg(figure).draw()
        page = figure.bbox
        pictures = [axis.get_window_extent() for axis in figure.axes if axis.images]
        words = [axis.xaxis.label.get_window_extent() for axis in figure.axes if axis.images]
        words += [text.get_window_extent() for text in figure.texts]
        assert len(words) == 6 + bool(heading)
        assert all(page.x0 <= box.x0 and page.y0 <= box.y0 and box.x1 <= page.x1 and box.y1 <= page.y1 for box in words)
        assert not any(box.overlaps(other) for box in words for other in [*pictures, *words] if other is not box)
        assert all(round(box.width) == round(box.height) for box in pictures)


def test_ranks_before_and_after_an_episode_are_those_of_the_best_true_picture():
    places = (("a", 3), ("b", 1), ("c", 2), ("d", None))
    hits = Hits([Hit(Picture(name), 1.0, zero_shot_rank=rank) for name, rank in places])
    assert reading._ranks(hits, {"b", "c"}) == (1, 2)
    assert reading._ranks(hits, {"d"}) == (4, 4)
    assert reading._ranks(hits, {"z"}) == (reading._NOWHERE, reading._NOWHERE)
