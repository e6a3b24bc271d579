"""Runs recover bit for bit from kills, power cuts, full disks and flipped bits at any write."""

import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from faults import full_disk, recorded, write_tree
from recollect.core.errors import UserError
from recollect.core.files import make_folder, write_text
from recollect.data.sources import open_source
from recollect.efsa.caption_file import CaptionFile
from recollect.evaluation.features import FeatureCache, Features
from recollect.evaluation.results import Result, load_results
from recollect.training.loop import train
from recollect.training.options import Data, Recipe
from run_files import files, metrics

RECIPE = Recipe(
    data=Data(sources=("stand-in",)), steps=2, batch_size=4, log_every=1, checkpoint_every=1, checkpoints_kept=1
)


def outcome(out: Path):
    """Return everything a run writes except timings."""
    assert not [path.name for path in out.rglob(".*")], "unfinished files left behind"
    return files(out / "model"), files(out / "checkpoints"), metrics(out)


@pytest.fixture
def after_each_fault(tmp_path, record_property):
    """Function that yields each fault, a folder in the state it leaves, and the number of marks before it.

    Checks the minimum number of states per fault, and reports the numbers after the run.
    """

    def each(disk, what, faults=None, **minimum):
        counts: Counter[str] = Counter()
        for number, (fault, tree, marks) in enumerate(disk.states.values()):
            if faults and fault not in faults:
                continue
            folder = write_tree(tree, tmp_path / f"{number}")
            yield fault, folder, marks
            shutil.rmtree(folder)
            counts[fault] += 1
        assert all(counts[fault.replace("_", " ")] >= number for fault, number in minimum.items())
        for fault, number in counts.items():
            record_property("faults", f"{what}, {fault}: {number}")

    return each


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize("steps", [2, 3])  # a new run; a finished run that is extended
def test_a_run_resumes_to_the_same_bits_after_a_kill_or_power_cut_at_any_write(
    small, tmp_path, after_each_fault, steps
):
    recipe, run = replace(RECIPE, steps=steps), tmp_path / "first" / "run"
    run.parent.mkdir()
    if steps > RECIPE.steps:
        train(RECIPE, run, device="cpu", assemble=small.parts)
    with recorded(tmp_path / "first") as disk:
        train(recipe, run, resume=steps > RECIPE.steps, device="cpu", assemble=small.parts)
    unbroken = outcome(run)
    for fault, folder, _ in after_each_fault(disk, f"training of {steps} steps", kill=6, power_cut=3):
        train(recipe, folder / "run", resume=True, device="cpu", assemble=small.parts)
        assert outcome(folder / "run") == unbroken, fault


def test_a_full_disk_at_any_write_gives_a_one_line_error_and_the_run_can_be_resumed(small, tmp_path, record_property):
    whole = tmp_path / "whole"
    train(RECIPE, whole, device="cpu", assemble=small.parts)
    unbroken = outcome(whole)
    met = 0
    for after in range(1, 200):
        out = tmp_path / f"{after}"
        out.mkdir()
        with full_disk(out, after) as refused:
            message = None
            try:
                train(RECIPE, out / "run", device="cpu", assemble=small.parts)
            except (UserError, OSError) as error:  # the command prints one line for either
                message = str(error)
        if not refused[0]:
            break
        assert message is None or (re.search("No space left|disk is full", message) and "\n" not in message)
        met += 1
        train(RECIPE, out / "run", resume=True, device="cpu", assemble=small.parts)
        assert outcome(out / "run") == unbroken, after
        shutil.rmtree(out)
    assert met > 10
    record_property("faults", f"training, full disk: {met}")


def test_a_flipped_bit_in_any_checkpoint_file_is_detected(small, tmp_path, record_property, capfd):
    """Flip a bit near the start, middle and end of every file."""
    recipe = replace(RECIPE, steps=3, checkpoints_kept=2)
    whole = tmp_path / "whole"
    train(recipe, whole, device="cpu", assemble=small.parts)
    unbroken = outcome(whole)
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "model")
    flips = 0
    for name, data in unbroken[1].items():
        if not name.startswith("step-00000003"):
            continue
        for place in sorted({0, len(data) // 2, len(data) - 1}):
            out = tmp_path / "again"
            shutil.copytree(broken, out)
            (out / "checkpoints" / name).write_bytes(flipped(data, place))
            train(recipe, out, resume=True, device="cpu", assemble=small.parts)
            assert "step-00000003: damaged" in " ".join(capfd.readouterr().err.split()), name
            assert outcome(out) == unbroken, name
            shutil.rmtree(out)
            flips += 1
    assert flips >= 12
    record_property("faults", f"checkpoint, flipped bit: {flips}")


def test_written_captions_survive_any_kill_or_power_cut(tmp_path, after_each_fault):
    written = {f"{number}": f"a picture called {number}" for number in range(4)}
    (tmp_path / "first").mkdir()
    with recorded(tmp_path / "first") as disk:
        for id, text in written.items():
            CaptionFile(tmp_path / "first" / "deep" / "captions.jsonl").write({id: text})
            disk.mark()
    for fault, folder, done in after_each_fault(disk, "captions"):
        path = folder / "deep" / "captions.jsonl"
        assert len(CaptionFile(path).captions) >= done, fault
        CaptionFile(path).write({id: text for id, text in written.items() if id not in CaptionFile(path).captions})
        assert CaptionFile(path).captions == written
        assert path.read_text().count("\n") == len(written)


# --- evaluations and studies ------------------------------------------------------------------------------------------


@pytest.fixture
def study(small, monkeypatch):
    """Study of two small trainings with two results each."""
    from recollect_papers import runs

    def quick(recipe, folder, resume=False):
        return train(recipe, folder, resume=resume, device="cpu", assemble=small.parts)

    def evaluated(model, *_):
        weight = float(sum(value.sum() for value in small.Model.load(model).state_dict().values()))
        return [
            Result("zero-shot", "m", "world", 0, ({"metric": metric, "value": weight},))
            for metric in ("top-1", "top-5")
        ]

    monkeypatch.setattr(runs, "train", quick)
    monkeypatch.setattr(runs, "load_model", lambda folder: folder)
    monkeypatch.setattr(runs, "evaluate_model", evaluated)
    monkeypatch.setattr(runs, "_training_content", lambda recipe: [])
    jobs = [
        runs.Job(f"arm {seed}", replace(RECIPE, steps=1, seed=seed), runs.StudyEvaluation(draws=1)) for seed in range(2)
    ]
    return lambda out: list(runs.run(jobs, out, workers=1).rows())


def test_an_interrupted_study_continues_to_the_same_results(study, tmp_path, after_each_fault, unchecked):
    (tmp_path / "first").mkdir()
    with recorded(tmp_path / "first") as disk:
        unbroken = study(tmp_path / "first" / "out")
    assert len(unbroken) == 4
    for fault, folder, _ in after_each_fault(disk, "study", ("kill", "power cut"), kill=16):
        assert study(folder / "out") == unbroken, fault


def test_features_and_results_are_complete_or_absent_and_flipped_bits_are_detected(
    tmp_path, after_each_fault, record_property, unchecked
):
    encoder, source = SimpleNamespace(fingerprint="e"), open_source("latents:captions")
    images = np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32)
    kept = Features(images, np.arange(4), tuple("abcd"), ("",) * 4, np.arange(4))
    result = Result("zero-shot", "m", "d", 0, ({"value": 1.5},))
    (tmp_path / "first").mkdir()
    with recorded(tmp_path / "first") as disk:
        FeatureCache(tmp_path / "first" / "cache").save(encoder, source, kept)
        disk.mark()
        result.save(tmp_path / "first" / "results")
        disk.mark()
    for fault, folder, done in after_each_fault(disk, "evaluation"):
        found = FeatureCache(folder / "cache").load(encoder, source)
        assert (found is None and not done) or np.array_equal(found.images, images), fault
        files = list((folder / "results").glob("*.json"))
        assert len(files) == 1 if done == 2 else len(files) <= 1, fault
        assert all(load_results(file)[0].rows[0]["value"] == 1.5 for file in files)
    cache = FeatureCache(tmp_path / "first" / "cache")
    path = cache.path(encoder, source)
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(flipped(data, place))
        found = cache.load(encoder, source)
        assert found is None or (np.array_equal(found.images, images) and np.array_equal(found.labels, kept.labels))
    record_property("faults", f"evaluation, flipped bit: {len(range(0, len(data), 7))}")


# --- the simulated faults find planted bugs ---------------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_a_missing_fsync_is_detected(tmp_path, monkeypatch, forgotten):
    """Without the fsync of a file or its folder, the file is empty or missing after a power cut."""
    import os

    from recollect.core import files

    (tmp_path / "disk").mkdir()
    if forgotten == "folder":
        monkeypatch.setattr(files, "sync_folder", lambda folder: None)
    with recorded(tmp_path / "disk") as disk:
        planted = os.fsync
        if forgotten == "file":
            monkeypatch.setattr(
                files.os, "fsync", lambda handle: None if os.path.isfile(f"/proc/self/fd/{handle}") else planted(handle)
            )
        write_text(tmp_path / "disk" / "a.txt", "whole")
        disk.mark()
        disk.capture()
    left = [tree.get("a.txt") for _, tree, done in disk.states.values() if done]
    assert left
    assert any(content != b"whole" for content in left)


def test_a_correct_write_is_complete_after_any_fault(tmp_path):
    (tmp_path / "disk").mkdir()
    with recorded(tmp_path / "disk") as disk:
        make_folder(tmp_path / "disk" / "a" / "b")
        write_text(tmp_path / "disk" / "a" / "b" / "c.txt", "whole")
        disk.mark()
        disk.capture()
    for fault, tree, done in disk.states.values():
        assert tree.get("a/b/c.txt") in ((b"whole",) if done else (None, b"whole")), fault
