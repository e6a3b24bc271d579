"""RECO's studies at smoke scale: tables and figures in the paper's form, with cached results."""

import re
from dataclasses import replace

import numpy as np
import pytest

from recollect.data.sources.subset import Subset
from recollect.evaluation.entities import harmonic_mean
from recollect.index import Index
from recollect.reco.block import FusionSettings
from recollect_papers.engine import printed
from recollect_papers.reco import figures as reco_pictures
from recollect_papers.reco.bench import FusionArm
from recollect_papers.reco.glyphs import glyph_entities, glyph_tasks, memory_sources, training_sources
from recollect_papers.reco.world import benches
from recollect_papers.studies import find_study


@pytest.fixture(scope="module")
def bench(options):
    (bench,) = benches(options, "convnet")
    return bench


def tables(name, options):
    return find_study(f"reco/{name}").load()(options).tables


def number(cell):
    return float(cell.split(" ")[0])


def test_characters_of_pretraining_fusion_and_tasks_are_disjoint():
    world = training_sources(1, 1, 1)[0].world
    new, known = (set(source.characters.tolist()) for source in training_sources(1, 1, 1))
    trained, held_out = set(world.split["train"].tolist()), set(world.split["test"].tolist())
    assert known == trained
    assert not new & (trained | held_out)
    names = {world.table.names[character] for character in new}
    tasks = [
        glyph_tasks(split)[column] for split in ("validation", "test") for column in ("new characters", "new scripts")
    ]
    asked = {name for each in tasks for task in each for name in task.class_names}
    assert not names & asked
    stored = [set(source.characters.tolist()) for source in memory_sources(1, 1)]
    assert set().union(*stored) >= trained | held_out | new
    task, seen = glyph_entities()
    assert len(set(task.class_names)) == len(task.class_names) == len(task.query)
    assert 0 < seen.sum() < len(seen)


def test_pictures_of_index_and_training_differ():
    training, memory = training_sources(2, 2, 40), memory_sources(2, 40)
    pictures = [source[row].image.tobytes() for source in (*training, *memory) for row in range(len(source))]
    assert len(set(pictures)) == len(pictures)
    source = memory[0]
    assert source[3].extra["character"] == source.characters[1]
    with pytest.raises(IndexError):
        source[len(source)]


def test_table_2_matches_the_measurements(options, bench):
    (table,) = tables("table-2", options)
    rows = {row[0]: row for row in table.rows}
    assert len(rows) == 7 + len(printed("reco", "table-2").rows)
    figures = bench.figures(FusionArm(), "entities")
    assert [number(cell) for cell in rows["convnet + RECO"][1:4]] == pytest.approx(list(figures.values()), abs=0.051)
    assert figures["harmonic mean"] == pytest.approx(harmonic_mean(figures["seen"], figures["unseen"]))
    assert rows["paper: CLIP-L/14 + RECO"][-3:] == ("11.5 (+5.9)", "13.3 (+8.4)", "12.3 (+7.0)")


def test_table_3_has_the_eight_variants_in_the_papers_order(options, bench):
    (table,) = tables("table-3", options)
    paper = printed("reco", "table-3").rows
    assert [" / ".join(row[:3]) for row in table.rows[1:9]] == [name for name in paper if name != "none"]
    assert [row[-6:] for row in table.rows[:9]] == list(paper.values())
    base, mean = bench.figures(None), bench.figures(FusionArm(FusionSettings(1, "mean", "cross", "uni")))
    gains = [float(re.search(r"\((.*)\)", cell)[1]) for cell in table.rows[8][3:7]]
    assert gains == pytest.approx([mean[column] - base[column] for column in base], abs=0.051)
    change = np.mean([100 * (mean[column] - base[column]) / base[column] for column in base if base[column]])
    assert number(table.rows[8][7]) == pytest.approx(change, abs=0.051)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_every_figure_is_drawn(options, draw, number):
    draw(f"reco/figure-{number}", options)


def test_shares_of_relevant_rows_match_an_explicit_count(bench):
    shares = reco_pictures.relevant_shares(bench, "new characters", k=3)
    index, right = Index.open(bench.memory_of()), []
    for task in bench.tasks["new characters"]:
        samples = [task.query[row] for row in range(len(task.query))]
        found = index.lookup(bench.model.embed_images([sample.image for sample in samples]), 3, "text").ids
        names = {each.id: each.metadata["name"] for each in index.pictures(sorted(set(found.ravel())))}
        for sample, ids in zip(samples, found, strict=True):
            right += [names[id] == task.class_names[sample.label] for id in ids]
    assert shares["image", "cross"] == pytest.approx(100 * np.mean(right))


def test_the_second_control_also_trains_on_retrieved_pairs(bench):
    pairs = bench._with_retrieved(FusionArm())
    assert len(pairs) > len(bench.pairs)
    added = pairs.pictures[len(bench.pairs) :]
    assert not set(added) & set(bench.pairs.pictures)
    index = Index.open(bench.memory_of())
    np.testing.assert_array_equal(index.vectors(added, "text"), pairs.texts[len(bench.pairs) :])


def test_memories_are_cached_by_content(bench, tmp_path):
    """Names of folders and sources do not matter."""
    source = bench.memory[0]
    first, second = (Subset(source, np.arange(start, start + 40), name="pairs") for start in (0, 100))
    one, other = (replace(bench, folder=tmp_path, memory=(memory,), training=(memory,)) for memory in (first, second))
    captions = [{each.caption for each in index.pictures(index.ids)} for index in (
        Index.open(each.memory_of()) for each in (one, other))]  # fmt: skip
    assert captions == [{sample.texts[0] for sample in part} for part in (first, second)]
    assert one.memory_of() == replace(one, label="another name").memory_of()
    arm = FusionArm(FusionSettings(1, "mlp"))  # uses no index: only its training pairs differ
    assert one.fusion(arm).fingerprint != other.fusion(arm).fingerprint
    assert one.fusion(arm).fingerprint == one.fusion(arm).fingerprint


def test_figures_are_cached_by_task(bench, tmp_path):
    """Different classes, prompts or entities on the same images have different figures."""
    column, tasks = next(iter(bench.tasks.items()))
    asked = replace(bench, folder=tmp_path, tasks={column: tasks[:1]})
    task = tasks[0]
    turned = replace(task, class_names=(*task.class_names[1:], task.class_names[0]))
    wrong = replace(asked, tasks={column: [turned]})
    prompted = replace(asked, tasks={column: [replace(task, templates=("nothing of {}",))]})
    model = asked.model
    assert len({each._figure_file(model, "tasks") for each in (asked, wrong, prompted)}) == 3
    entities, seen = asked.entities
    other = replace(asked, entities=(entities, ~seen))
    assert asked._figure_file(model, "entities") != other._figure_file(model, "entities")
    assert asked._figure_file(model, "tasks") == other._figure_file(model, "tasks")
