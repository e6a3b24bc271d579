"""Trainer features: weight averages, evaluation while training, model cards, recipes as input."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch

from recollect import cli
from recollect.cli.train import Train
from recollect.core.errors import UserError
from recollect.training.card import model_card
from recollect.training.checkpoints import latest
from recollect.training.loop import Hook, train
from recollect.training.optimizer import Averages
from recollect.training.options import Data, Model, Recipe
from recollect.training.run_folder import as_json
from run_files import metrics, weights

RECIPE = Recipe(data=Data(sources=("stand-in",)), steps=6, batch_size=8, log_every=3, checkpoint_every=3)


# --- weight averages ----------------------------------------------------------------------------------------------


def test_averages_are_exponential_moving_averages_of_the_weights():
    parameter = torch.nn.Parameter(torch.zeros(3))
    averages, slow = Averages({"w": parameter}, 0.9), torch.zeros(3, dtype=torch.float64)
    for step in range(1, 200):
        with torch.no_grad():
            parameter.copy_(torch.tensor([step, -step, 1.0]))
        averages.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        slow = decay * slow + (1 - decay) * parameter.detach().double()
        torch.testing.assert_close(averages.tensors()["w"].double(), slow, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(averages.tensors()["w"].double(), slow, rtol=1e-6, atol=0)
    with averages.in_place():
        torch.testing.assert_close(parameter.detach().double(), slow, rtol=1e-6, atol=0)
    assert parameter.tolist() == [199, -199, 1]


def test_the_saved_model_is_the_average_also_after_a_resume(small, tmp_path, cut_and_resumed):
    recipe = replace(RECIPE, average=0.5)
    last = weights(train(RECIPE, tmp_path / "plain", device="cpu", assemble=small.parts))
    mean = weights(train(recipe, tmp_path / "mean", device="cpu", assemble=small.parts))
    moved = [name for name in last if not torch.equal(last[name], mean[name])]
    assert "image.0.weight" in moved
    raw = weights(tmp_path / "mean" / "checkpoints" / "step-00000006" / "model")
    assert all(torch.equal(last[name], raw[name]) for name in raw if name != "scale"), (
        "averaging must not affect training"
    )

    again = weights(cut_and_resumed(recipe, tmp_path / "again", 4, assemble=small.parts))
    assert all(torch.equal(mean[name], again[name]) for name in mean)


def test_the_statistics_of_batch_norms_are_averaged_like_the_weights(small, tmp_path):
    model, seen = small.Model(), []
    model.image[1] = torch.nn.BatchNorm1d(8)

    def parts(recipe, place, saved_model):
        return replace(small.parts(recipe, place, saved_model), model=model)

    def remember(*_):
        seen.append(model.image[1].running_mean.clone())

    place = train(replace(RECIPE, average=0.5), tmp_path, device="cpu", assemble=small.watched(remember, parts))
    remember()
    expected = seen[0]
    for step, after in enumerate(seen[1:], 1):
        expected = expected.lerp(after, 1 - min(0.5, (1 + step) / (10 + step)))
    torch.testing.assert_close(weights(place)["image.1.running_mean"], expected)
    assert not torch.allclose(seen[-1], expected)


@pytest.mark.parametrize(("step", "stays"), [(0, False), (4, True)])
def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_folder(small, tmp_path, step, stays):
    gone_at = small.failing(step, UserError("0.jpg: no such file"))
    with pytest.raises(UserError, match="no such file"):
        train(RECIPE, tmp_path / "runs" / "new", device="cpu", assemble=gone_at)
    assert (tmp_path / "runs").exists() == stays
    assert (tmp_path / "runs" / "new" / "recipe.json").exists() == stays
    if not stays:  # the same command works once the data exist
        train(RECIPE, tmp_path / "runs" / "new", device="cpu", assemble=small.parts)


# --- evaluation while training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [2, 3])  # of three evaluations; the last follows the last step
def test_a_signal_interrupts_an_evaluation_and_the_resumed_run_repeats_it(small, tmp_path, at):
    calls = []

    def measure(model):
        calls.append(float(model.image[0].weight.detach().norm()))
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return {"weight": calls[-1]}

    hooks = [Hook(2, lambda model: {"a": 1.0}), Hook(2, measure)]
    with pytest.raises(SystemExit) as stopped:
        train(RECIPE, tmp_path / "cut", device="cpu", assemble=small.parts, hooks=hooks)
    assert stopped.value.code == 143
    assert latest(tmp_path / "cut" / "checkpoints").name == f"step-0000000{2 * at}"
    assert not (tmp_path / "cut" / "model").exists()
    cut = train(RECIPE, tmp_path / "cut", device="cpu", assemble=small.parts, hooks=hooks, resume=True)
    whole = train(RECIPE, tmp_path / "whole", device="cpu", assemble=small.parts, hooks=hooks)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(cut).items())


def test_a_failing_evaluation_loses_no_steps(small, tmp_path, capfd):
    """A checkpoint is saved after a failure between two checkpoints, and before the evaluation at the last step."""
    latest_seen, recipe = [], replace(RECIPE, average=0.5, checkpoint_every=4)
    options = {"device": "cpu", "assemble": small.parts}

    def measure(model):
        latest_seen.append(latest(tmp_path / "cut" / "checkpoints"))
        if len(latest_seen) == 2:
            raise UserError("photos.parquet: gone")
        return {"weight": float(model.image[0].weight.detach().norm())}

    with pytest.raises(UserError, match=r"^photos\.parquet: gone$"):
        train(recipe, tmp_path / "cut", hooks=[Hook(3, measure)], **options)
    assert "at step 6" in " ".join(capfd.readouterr().err.split())
    assert [place.name if place else None for place in latest_seen] == [None, "step-00000006"]
    shutil.rmtree(tmp_path / "cut")
    latest_seen[:] = [None]
    with pytest.raises(UserError, match="gone"):
        train(replace(recipe, steps=7), tmp_path / "cut", hooks=[Hook(3, measure)], **options)
    assert latest(tmp_path / "cut" / "checkpoints").name == "step-00000003"
    train(replace(recipe, steps=7), tmp_path / "cut", hooks=[Hook(3, measure)], resume=True, **options)
    latest_seen[:] = [None] * 3
    train(replace(recipe, steps=7), tmp_path / "whole", hooks=[Hook(3, measure)], **options)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    one, other = (weights(tmp_path / name / "model") for name in ("cut", "whole"))
    assert all(torch.equal(value, one[name]) for name, value in other.items())


_KILLED = "DataLoader worker (pid 7) is killed by signal: "
_BUS = f"{_KILLED}Bus error. It is possible that dataloader's workers are out of shared memory."


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "--chunk"),
        (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: you"), "--chunk"),
        (MemoryError(), "--chunk"),
        (RuntimeError(f"{_KILLED}Killed. "), "--workers"),
        (RuntimeError(_BUS), "Docker: --shm-size"),
    ],
)
def test_running_out_of_memory_or_losing_a_worker_gives_advice(small, tmp_path, error, message):
    parts = small.failing(4, error)
    with pytest.raises(UserError, match=message) as caught:
        train(RECIPE, tmp_path / "run", device="cpu", assemble=parts)
    assert "\n" not in str(caught.value)
    assert "--resume" in str(caught.value)
    train(replace(RECIPE, chunk=3), tmp_path / "run", device="cpu", resume=True, assemble=small.parts)


def test_hooks_log_their_figures_without_affecting_training(small, tmp_path):
    seen: list = []

    def measure(model):
        seen.append((model.training, torch.is_grad_enabled()))
        torch.rand(7)  # an evaluation may use the global generator
        return {"weight": float(model.image[0].weight.detach().norm())}

    plain = train(RECIPE, tmp_path / "plain", device="cpu", assemble=small.parts)
    hooks = [Hook(4, measure)]
    watched = train(RECIPE, tmp_path / "watched", device="cpu", assemble=small.parts, hooks=hooks)
    assert seen == [(False, False)] * 2
    lines = metrics(tmp_path / "watched")
    measured = [line for line in lines if "evaluation" in line]
    assert [line["step"] for line in measured] == [4, 6]
    assert measured[1]["evaluation"]["weight"] == pytest.approx(float(weights(watched)["image.0.weight"].norm()))
    assert [line for line in lines if "evaluation" not in line] == metrics(tmp_path / "plain")
    assert (plain / "model.safetensors").read_bytes() == (watched / "model.safetensors").read_bytes()


def test_nonfinite_figures_are_logged_as_null(small, tmp_path):
    figures = {"good": 1.0, "nan": float("nan"), "far": float("inf")}
    train(RECIPE, tmp_path / "run", device="cpu", assemble=small.parts, hooks=[Hook(RECIPE.steps, lambda _: figures)])
    assert metrics(tmp_path / "run")[-1]["evaluation"] == {"good": 1.0, "nan": None, "far": None}


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["--evaluate-every", "0", "--evaluate", "zero-shot=latents:captions"], "--evaluate-every"),
        (["--evaluate", "zero-shot=no/such.parquet"], "no/such.parquet"),
        (["--evaluate", "recall=some.parquet"], "zero-shot, few-shot, probe, retrieval"),
        (["--evaluate", "zero-shot"], "PROTOCOL=SOURCE"),
        (["--evaluate", "zero-shot=no/such.parquet", "--track", "wandb"], "pip install wandb"),
    ],
)
def test_invalid_evaluations_and_trackers_are_rejected_before_the_first_step(
    tmp_path, words, culprit, capfd, monkeypatch
):
    monkeypatch.setattr("recollect.training.trackers.find_spec", lambda name: None)
    out = tmp_path / "run"
    assert cli.main(["train", "latents-siglip", "--out", str(out), *words]) == 2
    assert culprit in " ".join(capfd.readouterr().err.split())
    assert not out.exists()


# --- model cards, and recipes as input ----------------------------------------------------------------------------


def test_the_model_card_describes_the_training(small, tmp_path):
    card = (train(RECIPE, tmp_path / "run", device="cpu", assemble=small.parts) / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "6 steps of\n8 pairs" in card
    assert "- `even`: 24 samples seen" in card
    assert "| loss |" in card
    assert json.loads(card.split("```json\n")[1].split("```")[0]) == as_json(RECIPE)


def test_the_model_card_reveals_no_local_path_or_secret():
    sources = ("/home/me/a.parquet?split=all", "https://me:word@host/s-{0..9}.tar?X-Signature=secret?stream=yes", "a/b")
    recipe = replace(RECIPE, model=Model("/home/me/clip"), data=Data(captions=sources))
    card = model_card(as_json(recipe), {"pairs": 3}, {})
    shown = json.loads(card.split("```json\n")[1].split("```")[0])
    assert shown["data"]["captions"] == ["a.parquet?split=all", "https://host/s-{0..9}.tar", "a/b"]
    assert shown["model"]["start"] == "clip"
    assert not any(word in card for word in ("/home", "secret", "word@"))


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"stpes": 3}, "stpes"),
        ({"steps": "many"}, "steps"),
        ({"steps": True}, "steps"),
        ({"model": {"freeze": "both"}}, "model.freeze"),
        ({"compile": 1}, "compile"),
        ({"data": {"sources": "pairs.parquet"}}, "data.sources"),
        ({"data": {"sources": [3]}}, "data.sources"),
        ({"model": 3}, "model"),
        ({"objective": {"context": {"stages": 2}}}, "stages"),
    ],
)
def test_the_error_names_an_invalid_field_of_a_recipe_file(tmp_path, change, culprit):
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(change))
    with pytest.raises(UserError, match=culprit):
        Train.parse(["--config", str(file)], "recollect train")


def test_the_saved_recipe_of_a_run_can_start_another(tmp_path, capfd):
    short = ["--steps", "2", "--batch-size", "16", "--device", "cpu"]
    assert cli.main(["train", "latents-siglip", "--out", str(tmp_path / "one"), *short]) == 0
    recipe = str(tmp_path / "one" / "recipe.json")
    assert cli.main(["train", "--config", recipe, "--out", str(tmp_path / "two"), "--device", "cpu"]) == 0
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    (tmp_path / "reco.json").write_text(json.dumps({"index": "m", "fusion": {}}))
    for words, culprit in (((), "--config"), ((str(tmp_path / "none.json"),), "none.json"),
                           ((str(tmp_path),), tmp_path.name), ((str(tmp_path / "reco.json"),), "index")):  # fmt: skip
        capfd.readouterr()
        assert cli.main(["train", "--config", *words]) == 2
        assert culprit in "".join(capfd.readouterr().err.split())


def test_zero_shot_accuracy_is_evaluated_while_training(tmp_path):
    words = ["train", "latents-siglip", "--steps", "4", "--batch-size", "32", "--evaluate-every", "2"]
    out = tmp_path / "run"
    assert cli.main([*words, "--device", "cpu", "--evaluate", "zero-shot=latents:strong", "--out", str(out)]) == 0
    figures = [line["evaluation"] for line in metrics(out) if "evaluation" in line]
    assert len(figures) == 2
    assert all(0 <= value <= 100 for line in figures for value in line.values())
    assert any(name.startswith("zero-shot/") and name.endswith("top-1") for name in figures[0])
