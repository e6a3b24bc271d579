"""A run that is interrupted at any moment and resumed equals an uninterrupted run."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recollect.core.errors import UserError
from recollect.training import checkpoints
from recollect.training.loop import Hook, train
from recollect.training.options import Data, Recipe
from recollect.training.ranks import check_agreement
from run_files import files, metrics, weights

RECIPE = Recipe(data=Data(sources=("stand-in",)), steps=7, batch_size=8, chunk=3, log_every=2, checkpoint_every=2)


@pytest.fixture(scope="module")
def unbroken(small, tmp_path_factory):
    """Model files, metrics and checkpoints of an uninterrupted run."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    train(RECIPE, out, device="cpu", assemble=small.parts)
    return files(out / "model"), metrics(out), files(out / "checkpoints")


def assert_same_run(out: Path, unbroken) -> None:
    model, logged, saved = unbroken
    assert files(out / "model") == model
    assert metrics(out) == logged
    assert files(out / "checkpoints") == saved
    assert not [path.name for path in out.rglob(".*")], "unfinished files left behind"


def test_a_run_killed_repeatedly_at_random_times_resumes_to_the_same_bits(small, tmp_path):
    recipe = replace(RECIPE, steps=40, checkpoint_every=5)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(recipe, whole, device="cpu", assemble=small.parts)

    def logged():
        return (broken / "metrics.jsonl").read_bytes().count(b"\n") if (broken / "metrics.jsonl").exists() else 0

    fork, chance, kills = multiprocessing.get_context("fork"), random.Random(0), 0
    for _ in range(12):
        arguments = {"resume": broken.exists(), "device": "cpu", "assemble": small.parts}
        child = fork.Process(target=train, args=(recipe, broken), kwargs=arguments)
        goal = logged() + chance.randint(1, 4)
        child.start()
        while child.is_alive() and logged() < goal:
            time.sleep(0.0005)
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
        if child.exitcode == 0:
            break
    train(recipe, broken, resume=True, device="cpu", assemble=small.parts)
    assert kills >= 2
    assert_same_run(broken, (files(whole / "model"), metrics(whole), files(whole / "checkpoints")))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_a_checkpoint_and_exits_with_its_usual_status(
    small, in_child, unbroken, tmp_path, number, status, capfd
):
    def signaled(step, *_):
        if step == 4:
            os.kill(os.getpid(), number)

    parts = small.watched(signaled)

    def work():
        try:
            train(RECIPE, tmp_path / "run", device="cpu", assemble=parts)
        except KeyboardInterrupt:
            sys.exit(130)

    assert in_child(work) == status
    assert "stopped after step 5 of 7" in capfd.readouterr().err
    assert checkpoints.latest(tmp_path / "run" / "checkpoints").name == "step-00000005"
    train(RECIPE, tmp_path / "run", resume=True, device="cpu", assemble=small.parts)
    model, logged, _ = unbroken
    assert files(tmp_path / "run" / "model") == model
    assert metrics(tmp_path / "run") == logged


def test_only_the_last_checkpoints_are_kept(unbroken):
    _, logged, saved = unbroken
    assert {name.split("/")[0] for name in saved} == {"step-00000006", "step-00000007"}
    assert [line["step"] for line in logged] == [1, 2, 4, 6, 7]


def test_a_nan_loss_stops_the_run_before_it_reaches_the_weights(small, tmp_path):
    def with_nan(step, inputs, place):
        return replace(inputs, images=inputs.images * float("nan")) if step == 4 else inputs

    parts = small.watched(with_nan)
    out = tmp_path / "run"
    with pytest.raises(UserError, match=r"step 5 has loss nan.*Last good checkpoint: .*step-00000004"):
        train(RECIPE, out, device="cpu", assemble=parts)
    assert [line["step"] for line in metrics(out)] == [1, 2, 4]
    saved = weights(out / "checkpoints" / "step-00000004" / "model")
    assert all(weight.isfinite().all() for weight in saved.values())


def test_an_existing_run_is_not_restarted(small, tmp_path):
    out = tmp_path / "run"
    train(RECIPE, out, device="cpu", assemble=small.parts)
    before = files(out)
    with pytest.raises(UserError, match="--resume"):
        train(RECIPE, out, device="cpu", assemble=small.parts)
    assert train(RECIPE, out, resume=True, device="cpu", assemble=small.parts) == out / "model"
    assert files(out) == before


def test_a_folder_with_other_files_is_left_unchanged(small, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(UserError, match="not empty"):
            train(RECIPE, tmp_path, resume=resume, device="cpu", assemble=small.parts)
    for out in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        with pytest.raises(UserError, match="a file has the name of this folder"):
            train(RECIPE, out, device="cpu", assemble=small.parts)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def stopped_at(small, out: Path, step: int, data=None) -> None:
    """Interrupt a run of `RECIPE` at a step."""
    parts = small.failing(step, RuntimeError("power"), lambda *given: replace(small.parts(*given), data=data or {}))
    with pytest.raises(RuntimeError, match="power"):
        train(RECIPE, out, device="cpu", assemble=parts)


def test_resuming_with_other_data_is_rejected_with_the_difference(small, unbroken, tmp_path, capfd):
    out, last = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000004"
    stopped_at(small, out, 5, {"even.csv": {"samples": 6400, "bytes": 9}, "odd": {"samples": 3}})

    def resume(**data) -> Path:
        def parts(*given):
            return replace(small.parts(*given), data=data)

        return train(RECIPE, out, resume=True, device="cpu", assemble=parts)

    before = files(out)
    changed = {"even.csv": {"samples": 40, "bytes": 8}, "odd": {"samples": 3}, "new": {"samples": 1}}
    with pytest.raises(UserError) as refused:
        resume(**changed)
    assert "even.csv had 6,400 samples, has 40 samples; even.csv had 9 bytes, has 8 bytes" in str(refused.value)
    assert files(out) == before
    capfd.readouterr()
    resume(odd={"samples": 3, "content": "5f"})  # fields recorded on one side only are not compared
    assert f"{last.name}: does not record the content of odd" in " ".join(capfd.readouterr().err.split())
    assert files(out / "model") == unbroken[0]


@pytest.mark.parametrize(  # flipped bits: test_faults.py
    ("name", "damage"),
    [("training.safetensors", "cut"), ("state.json", "gone"), ("checksums.json", "cut"), ("checksums.json", "gone"),
     ("model/config.json", "gone")],
)  # fmt: skip
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_resumes_to_the_same_bits(
    small, unbroken, tmp_path, capfd, name, damage
):
    out = tmp_path / "run"
    stopped_at(small, out, 5)
    file = out / "checkpoints" / "step-00000004" / name
    data = file.read_bytes()
    file.unlink() if damage == "gone" else file.write_bytes(data[: len(data) // 2])
    train(RECIPE, out, resume=True, device="cpu", assemble=small.parts)
    assert "step-00000004: damaged" in " ".join(capfd.readouterr().err.split())
    assert_same_run(out, unbroken)


def test_a_run_with_only_damaged_checkpoints_cannot_be_resumed(small, tmp_path):
    out = tmp_path / "run"
    stopped_at(small, out, 5)
    for file in (out / "checkpoints").glob("*/training.safetensors"):
        file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(UserError, match="damaged"):
        train(RECIPE, out, resume=True, device="cpu", assemble=small.parts)


def test_damaged_metrics_lines_are_reported_and_skipped(small, unbroken, tmp_path, capfd):
    """A flipped bit can make a line invalid ASCII or JSON, or change a key; the last line is cut short."""
    out = tmp_path / "run"
    stopped_at(small, out, 5)
    first, second, *_ = (out / "metrics.jsonl").read_bytes().splitlines()
    wrong = [second.replace(b"loss", b"lo\xf3s"), second[:9], second.replace(b'"step', b'"stdp'), b"5", b"null", b"[1]"]
    (out / "metrics.jsonl").write_bytes(b"\n".join([first, *wrong, second, second[:20]]))
    train(RECIPE, out, resume=True, device="cpu", assemble=small.parts)
    assert "6 damaged lines" in " ".join(capfd.readouterr().err.split())
    assert [line["step"] for line in metrics(out)] == [1, 2, 6, 7]
    assert files(out / "model") == unbroken[0]


def test_user_made_copies_of_a_checkpoint_are_left_unchanged(small, unbroken, tmp_path):
    out = tmp_path / "run"
    stopped_at(small, out, 5)
    kept = ["step-00000004 (copy)", "step-00000002.bak", "step-best"]
    for name in kept:
        shutil.copytree(out / "checkpoints" / "step-00000004", out / "checkpoints" / name)
    train(RECIPE, out, resume=True, device="cpu", assemble=small.parts)
    found = {path.name for path in (out / "checkpoints").iterdir()}
    assert found == {*kept, "step-00000006", "step-00000007"}
    for name in kept:
        shutil.rmtree(out / "checkpoints" / name)
    assert_same_run(out, unbroken)


def test_options_that_do_not_affect_the_model_may_change_on_resume(small, tmp_path, capfd):
    out = tmp_path / "run"
    stopped_at(small, out, 5)
    other = replace(RECIPE, workers=1, chunk=None, log_every=1, checkpoint_every=1, checkpoints_kept=1)
    train(other, out, resume=True, device="cpu", assemble=small.parts)
    printed = capfd.readouterr().err
    assert "chunk None (was 3)" in printed
    assert "log-every 1 (was 2)" in printed
    assert [line["step"] for line in metrics(out)] == [1, 2, 4, 5, 6, 7]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000007"]
    assert json.loads((out / "recipe.json").read_text())["workers"] == 1
    train(other, out, resume=True, device="cpu", assemble=small.parts)


def test_a_run_resumes_with_another_path_to_the_same_files(small, unbroken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in (tmp_path / "stand-in", tmp_path / "elsewhere" / "stand-in"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    out = tmp_path / "run"
    stopped_at(small, out, 5, {"stand-in": {"samples": 3}})

    def resume(path, samples=3):
        parts = lambda *given: replace(small.parts(*given), data={path: {"samples": samples}})  # noqa: E731
        return train(replace(RECIPE, data=Data(sources=(path,))), out, resume=True, device="cpu", assemble=parts)

    with pytest.raises(UserError, match=r"data\.sources was"):
        resume("elsewhere/stand-in")
    with pytest.raises(UserError, match="stand-in had 3 samples, has 4 samples"):
        resume(str(tmp_path / "stand-in"), 4)
    with pytest.raises(UserError, match=r"data\.sources was"):
        resume(str(tmp_path / "stand-in?split=train"))
    assert files(resume(str(tmp_path / "stand-in"))) == unbroken[0]


def test_a_finished_run_can_be_extended_but_not_shortened(small, unbroken, tmp_path, capfd):
    out = tmp_path / "run"
    train(RECIPE, out, device="cpu", assemble=small.parts)
    longer = replace(RECIPE, steps=10)
    train(longer, out, resume=True, device="cpu", assemble=small.parts)
    assert "learning rate" in " ".join(capfd.readouterr().err.split())
    assert [line["step"] for line in metrics(out)] == [1, 2, 4, 6, 7, 8, 10]
    assert files(out / "model") != unbroken[0]
    model = files(out / "model")
    assert "10 steps of" in model.pop("README.md").decode()
    assert model == files(out / "checkpoints" / "step-00000010" / "model")
    with pytest.raises(UserError, match="--steps 7"):
        train(RECIPE, out, resume=True, device="cpu", assemble=small.parts)
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(UserError, match="checkpoints"):
        train(replace(RECIPE, steps=12), out, resume=True, device="cpu", assemble=small.parts)


def test_a_second_process_in_the_same_run_folder_is_rejected(small, in_child, unbroken, tmp_path):
    """Even if it resumes, since it would overwrite the metrics and checkpoints of the first."""
    out = tmp_path / "run"
    outcomes = []

    def second():
        try:
            train(RECIPE, out, resume=True, device="cpu", assemble=small.parts)
        except UserError as error:
            sys.exit(2 if "another process is training there" in str(error) else 1)

    def start_second(step, *_):
        if step == 3:
            outcomes.append(in_child(second))

    parts = small.watched(start_second)
    train(RECIPE, out, device="cpu", assemble=parts)
    assert outcomes == [2]
    assert_same_run(out, unbroken)


def test_two_processes_train_like_one_and_only_one_writes(small, in_processes, tmp_path):
    """Dropout is off, since processes draw different numbers; the second process starts with different weights."""

    def parts(recipe, place, saved):
        check_agreement({"even.csv": "samples 9"})
        if place.size > 1:
            with pytest.raises(UserError, match=r"^odd\.csv: process 1 .*\(1; 0\)"):
                check_agreement({"even.csv": "samples 9", "odd.csv": str(place.rank)})
        result = without_dropout(small)(recipe, place, saved)
        with torch.no_grad():
            for parameter in [*result.model.parameters(), *result.objective.parameters()]:
                parameter.add_(place.rank)
        return result

    train(RECIPE, tmp_path / "one", device="cpu", assemble=parts)
    in_processes(lambda rank: train(RECIPE, tmp_path / "two", device="cpu", assemble=parts), 2)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    for a, b in zip(one, two, strict=True):
        assert a["seen"] == b["seen"]
        assert {k: v for k, v in a.items() if k != "seen"} == pytest.approx(
            {k: v for k, v in b.items() if k != "seen"}, rel=1e-4
        )
    first = weights(tmp_path / "one" / "model")
    for name, weight in weights(tmp_path / "two" / "model").items():
        assert (weight - first[name]).abs().max() < 1e-5


def without_dropout(small):
    def parts(recipe, place, saved):
        result = small.parts(recipe, place, saved)
        for module in result.model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        return result

    return parts


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_checkpoint_resumes_on_another_number_of_processes(small, in_processes, tmp_path, before, after):
    parts = without_dropout(small)
    train(RECIPE, tmp_path / "whole", device="cpu", assemble=parts)

    def stopped_together(rank):
        """Exit all processes after step 5, as in a power cut."""

        feeding = small.watched(lambda step, *_: os._exit(0) if step == 5 else None, parts)
        train(RECIPE, tmp_path / "run", device="cpu", assemble=feeding)

    in_processes(stopped_together, before)
    assert checkpoints.latest(tmp_path / "run" / "checkpoints").name == "step-00000004"
    in_processes(lambda rank: train(RECIPE, tmp_path / "run", device="cpu", assemble=parts, resume=True), after)
    whole = weights(tmp_path / "whole" / "model")
    for name, weight in weights(tmp_path / "run" / "model").items():
        assert (weight - whole[name]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (UserError("photos.parquet: gone"), "photos.parquet: gone"),
        (ValueError("no such\nclass"), "ValueError: no such class"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
    ],
)
def test_a_failure_of_the_first_process_ends_all_processes_with_the_reason(
    small, tmp_path, in_processes, monkeypatch, failure, message
):
    """If an evaluation or a checkpoint fails, the others must not wait for the backend's timeout."""

    def fail(*_):
        raise failure

    hooks = [Hook(1, fail)]
    if isinstance(failure, OSError):
        hooks = []
        monkeypatch.setattr(checkpoints, "save_file", fail)

    def work(rank):
        try:
            train(RECIPE, tmp_path / "run", device="cpu", assemble=small.parts, hooks=hooks)
        except (UserError, type(failure)) as error:
            (tmp_path / f"error-{rank}").write_text(f"{type(error).__name__}: {error}")

    in_processes(work, 2)
    first, other = ((tmp_path / f"error-{rank}").read_text() for rank in range(2))
    assert other.startswith("UserError: ")
    assert message in other
    assert "\n" not in other
    assert first == (f"ValueError: {failure}" if isinstance(failure, ValueError) else other)


def test_a_process_that_dies_gives_the_others_a_one_line_error(small, tmp_path, in_processes):
    def dies(step, inputs, place):
        if place.rank == 1 and step == 3:
            os._exit(0)  # like the out-of-memory killer

    feeding = small.watched(dies)

    def work(rank):
        try:
            train(RECIPE, tmp_path / "run", device="cpu", assemble=feeding)
        except UserError as error:
            (tmp_path / "error").write_text(str(error))

    in_processes(work, 2)
    message = (tmp_path / "error").read_text()
    assert "another process" in message
    assert "--resume" in message
    assert "\n" not in message
    assert checkpoints.latest(tmp_path / "run" / "checkpoints").name == "step-00000002"
