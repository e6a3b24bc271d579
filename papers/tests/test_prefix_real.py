"""``prefix/real``: runs kept as small files, tables that are a function of these alone, arms of one budget."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recollect.data.sources import open_source
from recollect.data.sources.derived import Subset
from recollect.training import locked
from recollect_papers import cli
from recollect_papers.prefix import real, real_arms, real_tables
from recollect_papers.studies import find_study
from recollect_papers.study import StudyOptions

GROUPS = {"a": "own", "b": "foreign", "c": "foreign"}


def record(arm, seed, readings):
    """A made file: a set's accuracy is its reading's, and 1, 2, … more from set to set."""
    cells = {name: {key: value + place for key, value in readings.items()} for place, name in enumerate(GROUPS)}
    pools = {"pool": {key: value / 2 for key, value in readings.items()}}
    made = {"batch_size": 64, "steps": 9}
    return {"arm": arm, "seed": seed, "recipe": made, "groups": GROUPS, "zero-shot": cells, "retrieval": pools}


@pytest.fixture
def records():
    return [
        made
        for seed in range(3)
        for made in (
            record(real_arms.PLAIN, seed, {"plain": 20.0 + seed}),
            record(real_arms.PREFIX, seed, {"caption": 21.0 + 2 * seed, "label": 19.0 + seed / 2}),
            record("captions alone", seed, {"plain": 10.0}),
        )
    ]


def test_gains_are_those_of_each_reading_paired_by_seed(records):
    groups, gains, by_set = real_tables.tables(records)
    assert [row[:2] for row in groups.rows] == [
        (real_arms.PLAIN, ""), (real_arms.PREFIX, "caption"), (real_arms.PREFIX, "label"), ("captions alone", ""),
    ]  # fmt: skip
    assert groups.rows[0][2:] == ("21.0 ± 1.0", "22.5 ± 1.0", "10.5 ± 0.5")
    cells = {row[0]: row[1:] for row in gains.rows}
    assert cells["caption reading over no prefixes"] == ("+2.0 ± 1.0",) * 2  # 1, 2, 3
    assert cells["label reading over no prefixes"] == ("-1.5 ± 0.5",) * 2  # -1, -1.5, -2
    assert cells["caption over label reading"] == ("+3.5 ± 1.5",) * 2  # 2, 3.5, 5
    assert "caption reading over no prefixes: up on 3 of 3 sets, +2.0 ± 1.0" in gains.notes[0]
    assert by_set.rows[0] == ("a", "21.0 ± 1.0", "23.0 ± 2.0", "19.5 ± 0.5", "10.0 ± 0.0")


def test_arms_have_one_budget_and_differ_in_what_their_name_says(tmp_path):
    options = StudyOptions("small", tmp_path)
    recipes = {arm.name: real.recipe_of(arm, 1, (Path("data"), Path("made")), options) for arm in real.ARMS}
    assert len({(one.batch_size, one.steps, one.seed, one.optimiser, one.objective) for one in recipes.values()}) == 1
    plain, prefixed = recipes[real_arms.PLAIN], recipes[real_arms.PREFIX]
    assert (plain.data, plain.model.prefixes, prefixed.model.prefixes) == (prefixed.data, (), ("caption", "label"))
    assert plain.data.labels == (f"made/{real.LABELS[0]}", f"data/{real.LABELS[1]}")
    assert recipes["captions alone"].data.labels == ()
    assert recipes["captions alone"].data.captions == plain.data.captions
    assert recipes["both, equal batches"].data.sampling == "equal"
    for attends, bag in ((real_arms.ATTENDING_PLAIN, plain), (real_arms.ATTENDING_PREFIX, prefixed)):
        assert recipes[attends] == replace(bag, model=replace(bag.model, start="patches-transformer"))


def test_no_tested_picture_is_trained_on():
    trained = {*real.CAPTIONS, *real.LABELS}
    for name, one in real.SETS.items():
        file, _, filters = one.file.partition("?")
        if "split=test" not in filters:  # emoji of trained concepts, in styles that are left out of training
            assert name == "emoji, held-out styles"
            assert filters.partition("&domain=")[2] == real.LABELS[0].partition("domain!=")[2]
            assert file == real.LABELS[0].partition("?")[0]
        assert one.file not in trained


def picture(number):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_emoji_become_classes_by_their_names(tmp_path, monkeypatch):
    names = ["cat", "dog", "cat", "ant"]
    table = pa.table(
        {
            "image": [picture(number) for number in range(4)],
            "captions": [[name, f"{name}, suggesting pet"] for name in names],
            "domain": ["a", "a", "b", "b"],
            "split": ["train"] * 3 + ["test"],
            "ambiguous": [False, True, False, False],
        }
    )
    monkeypatch.setattr(real, "CAPTIONS", ())
    monkeypatch.setattr(real, "POOLS", ())
    monkeypatch.setattr(real, "SETS", {})
    monkeypatch.setattr(real, "LABELS", real.LABELS[:1])
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "emoji.parquet")
    _, made = real._prepared(StudyOptions("small", tmp_path / "out", data=(str(tmp_path / "data"),)))
    source = open_source(str(made / "emoji-labels.parquet"), split="all")
    assert source.kind == "label"
    assert [source.class_names[label] for label in source.labels] == ["cat", "cat", "ant"]  # not the ambiguous one
    assert [np.asarray(source[row].image).tobytes() for row in range(3)] == [
        np.asarray(Image.open(io.BytesIO(picture(number)))).tobytes() for number in (0, 2, 3)
    ]


@pytest.fixture
def small_world(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(locked, "MADE_ROWS", 130)
    monkeypatch.setattr(real, "ARMS", real.ARMS[:2])
    every = real.world_tasks

    def few(spec):
        return [replace(task, query=Subset(task.query, np.arange(24))) for task in every(spec)[:2]]

    monkeypatch.setattr(real, "world_tasks", few)


def test_the_study_trains_measures_and_is_made_again_from_its_files_alone(small_world, tmp_path):
    options = StudyOptions("smoke", tmp_path / "out", seeds=1)
    report = find_study("prefix/real").load()(options)
    files = sorted((tmp_path / "out" / "readings").iterdir())
    assert [file.stem for file in files] == ["both-debiased-batches-prefixes-seed0", "both-debiased-batches-seed0"]
    prefixed, plain = (json.loads(file.read_text()) for file in files)
    assert prefixed["recipe"]["prefixes"] == ["caption", "label"]
    assert all(set(cells) == {"caption", "label"} for cells in prefixed["zero-shot"].values())
    assert all(set(cells) == {"plain"} for cells in plain["zero-shot"].values())
    assert str(tmp_path) not in json.dumps(prefixed)
    shutil.rmtree(tmp_path / "out" / "runs")
    assert find_study("prefix/real").load()(StudyOptions("small", tmp_path / "out")).tables == report.tables


def test_without_data_or_results_the_study_says_what_it_needs(tmp_path, capsys):
    words = ["prefix/real", "--scale", "small", "--out", str(tmp_path)]
    assert cli.main(words) == 2
    assert "no results yet. Name the folder of the real files: --data FOLDER" in capsys.readouterr().err
    assert cli.main([*words, "--data", str(tmp_path)]) == 2
    assert "no emoji.parquet there. prefix/real needs the folder of its Parquet files" in capsys.readouterr().err
