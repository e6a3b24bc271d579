"""Cached results are keyed by the content of their inputs."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.models import build_model
from recollect.training.options import Data
from recollect.training.recipes import RECIPES
from recollect_papers import runs, store
from recollect_papers.efsa.methods import MethodOptions
from recollect_papers.efsa.world import Captions, EfsaWorld, SearchRun, searched
from recollect_papers.runs import Job, StudyEvaluation, run
from recollect_papers.store import cached, content
from recollect_papers.study import StudyOptions
from recollect_papers.worlds.arrays import ArraySource


def write_pairs(folder: Path, seed: int, count: int = 12) -> str:
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    lines = ["path,caption"]
    for number in range(count):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,picture {number}")
    (folder / "pairs.csv").write_text("\n".join(lines))
    return str(folder / "pairs.csv")


def test_a_changed_picture_changes_the_content(tmp_path):
    spec = write_pairs(tmp_path / "set", seed=0)
    before = content(spec)
    content.cache_clear()  # cached per process
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(tmp_path / "set" / "3.png")
    assert content(spec) != before


def test_changed_data_changes_run_and_results(tmp_path):
    spec = write_pairs(tmp_path / "set", seed=0)
    recipe = replace(RECIPES["siglip-tiny"](), data=Data(captions=(spec,)))
    world = replace(recipe, data=Data(captions=("glyphs:captions",)))
    job, tested = Job("a", recipe, StudyEvaluation()), Job("a", world, StudyEvaluation(retrieval=(spec,)))
    folder, results, same = job.folder(tmp_path), tested.results(tmp_path), tested.folder(tmp_path)
    write_pairs(tmp_path / "set", seed=1)
    content.cache_clear()
    assert job.folder(tmp_path) != folder
    assert tested.folder(tmp_path) == same
    assert tested.results(tmp_path) != results


def test_a_search_is_repeated_if_its_pool_changes(tmp_path):
    spec = write_pairs(tmp_path / "pool", seed=0)
    model = build_model("tiny", texts=[f"picture {number}" for number in range(12)])
    model.save(tmp_path / "model")
    search = SearchRun(("zero-shot",), MethodOptions(), Captions("none", "true"), "single", (spec,), (1,))
    where = EfsaWorld("w", (spec,), (), (str(tmp_path / "model"),), (), "all", None, MethodOptions())
    options = StudyOptions("smoke", tmp_path / "out")

    def searches() -> int:
        searched(search, where, options)
        return len(list((tmp_path / "out" / "searches").glob("*.json")))

    assert searches() == searches() == 1
    write_pairs(tmp_path / "pool", seed=1)
    content.cache_clear()
    assert searches() == 2


def test_queries_can_be_limited_per_class():
    labels = np.array([1, 0, 1, 1, 0, 2, 1])
    images = np.arange(7, dtype=np.float32)[:, None]
    source = ArraySource("seven", images, labels, ("a", "b", "c"))
    task = ClassificationTask("seven", source, source, source.class_names, ("{}",))
    limited = StudyEvaluation(queries=2).limited(task)
    assert [float(limited.query[row].image[0]) for row in range(len(limited.query))] == [0, 1, 2, 4, 5]
    assert limited.query.labels.tolist() == [1, 0, 1, 0, 2]
    assert (limited.support, StudyEvaluation().limited(task)) == (source, task)


def test_a_job_that_only_trains_has_no_results(tmp_path):
    recipe = replace(RECIPES["latents-siglip"](), steps=1, batch_size=8)
    job = Job("a", recipe, StudyEvaluation())
    assert not list(run([job], tmp_path, 1).rows())
    made = job.folder(tmp_path) / "model" / "model.safetensors"
    before = made.stat().st_mtime_ns
    assert not list(run([job], tmp_path, 1).rows())
    assert made.stat().st_mtime_ns == before


def test_a_study_waits_for_a_run_of_another_study(tmp_path, monkeypatch):
    folder, order, waits = tmp_path / "runs" / "one", [], threading.Event()
    monkeypatch.setattr(store, "note", lambda text: (order.append(text), waits.set()))
    monkeypatch.setattr(runs, "train", lambda recipe, out, resume: order.append("trained") or tmp_path)
    second = threading.Thread(target=runs.train_once, args=(RECIPES["latents-siglip"](), folder))
    with store.exclusive(folder):
        second.start()
        assert waits.wait(20)
        order.append("made")
    second.join(20)
    assert order[1:] == ["made", "trained"]


def test_damaged_results_are_computed_again(tmp_path, capsys):
    path, made = tmp_path / "kept.json", []

    def kept():
        return cached(path, lambda: made.append(1) or {"R@1": 1.25})

    assert [kept(), kept(), len(made)] == [{"R@1": 1.25}, {"R@1": 1.25}, 1]
    for damaged in (path.read_text().replace("1.25", "1.26"), path.read_text()[:20], ""):
        path.write_text(damaged)
        assert kept() == {"R@1": 1.25}
    assert len(made) == 4
    assert capsys.readouterr().err.count("kept.json: damaged; computing it again") == 3
