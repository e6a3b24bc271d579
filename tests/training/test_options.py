"""Trainer options: LoRA, half precision, compiled towers, trackers, workers and activation checkpointing."""

import json
import math
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from recollect.core.errors import UserError
from recollect.core.types import Batch
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import open_source
from recollect.models import build_model, load_model
from recollect.models.transformers.families import TextTokens
from recollect.objectives import tiles
from recollect.training import step as steps
from recollect.training.adapted import ADAPTER, add_adapters
from recollect.training.assembly import duplicate_ids_of, row_tokenizer, workers_of
from recollect.training.loop import Hook, train
from recollect.training.options import Data, Model, Recipe
from recollect.training.precision import LossScale, tensor_cores
from recollect.training.recipes import RECIPES
from recollect.training.step import CompiledForward, StepOptions, train_step
from run_files import metrics, weights

RECIPE = Recipe(data=Data(sources=("stand-in",)), steps=6, batch_size=8, log_every=1, checkpoint_every=2)


def post_training(start, pairs, **changes):
    recipe = replace(RECIPES["siglixp-tiny"](), steps=4, batch_size=6, log_every=1, checkpoint_every=2)
    return replace(recipe, model=Model(str(start), lora=2), data=Data(captions=(str(pairs),)), **changes)


# --- LoRA ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted_run(start, pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapted") / "run"
    seen = []

    def measure(model):
        seen.append({name: value.clone() for name, value in model.encoder.named_parameters()})
        return {}

    train(post_training(start, pairs), out, device="cpu", hooks=[Hook(2, measure)])
    return out, seen


def test_lora_leaves_the_base_weights_unchanged_and_the_saved_model_is_merged(adapted_run, start):
    out, seen = adapted_run
    base = load_model(start, "cpu")
    for name, value in base.named_parameters():
        if "logit_" not in name:  # temperatures are set from the objective
            layer, _, which = name.rpartition(".")
            names = (name, f"{layer}.base_layer.{which}")  # PEFT wraps adapted layers
            assert all(torch.equal(next(kept[each] for each in names if each in kept), value) for kept in seen), name
    peft = pytest.importorskip("peft")
    merged = load_model(out / "model", "cpu")
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    changed = peft.PeftModel.from_pretrained(base.model, out / "model" / ADAPTER)
    with torch.no_grad():
        found = changed.get_base_model().get_image_features(pixel_values=pixels).pooler_output
        torch.testing.assert_close(merged.encode_images(pixels), found, atol=1e-5, rtol=0)
        assert (load_model(start, "cpu").encode_images(pixels) - found).abs().max() > 1e-4


def test_a_lora_checkpoint_contains_only_the_adapters(adapted_run, start):
    out, _ = adapted_run
    saved = out / "checkpoints" / "step-00000004"
    names = {path.name for path in (saved / "model").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "adapted.json"}
    assert {path.name for path in (out / "model" / ADAPTER).iterdir()} == names - {"adapted.json"}
    assert (saved / "training.safetensors").stat().st_size < (start / "model.safetensors").stat().st_size


def test_lora_resumes_to_the_same_bits(adapted_run, start, pairs, tmp_path, cut_and_resumed):
    whole = weights(adapted_run[0] / "model")
    again = weights(cut_and_resumed(post_training(start, pairs), tmp_path / "run", 3))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_resuming_lora_on_a_changed_base_checkpoint_is_rejected(start, pairs, tmp_path):
    first = load_model(start, "cpu")
    moved = tmp_path / "start"
    first.save(moved)
    recipe = replace(post_training(moved, pairs), steps=2)
    train(recipe, tmp_path / "run", device="cpu")
    with torch.no_grad():
        next(first.parameters()).add_(1.0)
    for file in moved.iterdir():
        file.unlink()
    first.save(moved)
    with pytest.raises(UserError, match="start"):
        train(replace(recipe, steps=4), tmp_path / "run", resume=True, device="cpu")


def test_a_frozen_tower_gets_no_adapters(start):
    towers = add_adapters(load_model(start, "cpu"), Model(str(start), lora=2, lora_alpha=4.0, freeze="image"), 0)
    learning = [name for name, value in towers.named_parameters() if value.requires_grad]
    assert learning
    assert all("text_model." in name and "lora_" in name for name in learning)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model("tiny", lora=2), "--model.lora"),
        (Model("START", lora=0), "--model.lora 0"),
        (Model("START", lora=2, locked="image"), "--model.lora and --model.locked"),
        (Model("START", lora=2, prefixes=("caption",)), "--model.lora and --model.prefixes"),
    ],
)
def test_invalid_lora_combinations_are_rejected(model, message, start, pairs, tmp_path):
    if model.start == "START":
        model = replace(model, start=str(start))
    with pytest.raises(UserError, match=message):
        train(replace(post_training(start, pairs), model=model), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


# --- precision ----------------------------------------------------------------------------------------------------


def test_a_float16_overflow_skips_the_step_and_halves_the_scale(small, tmp_path, monkeypatch):
    from recollect.training import loop

    real, calls, seeds = loop.train_step, [], set()

    def overflow(model, objective, inputs, options):
        report = real(model, objective, inputs, options)
        calls.append(options.loss_scale)
        seeds.add(options.seed)
        if len(calls) in (2, 3):
            next(iter(model.parameters())).grad.fill_(math.inf)
        return report

    monkeypatch.setattr(loop, "train_step", overflow)
    monkeypatch.setattr(loop.LossScale, "of", lambda precision: LossScale(2.0**8))
    train(replace(RECIPE, precision="float16"), tmp_path / "run", device="cpu", assemble=small.parts)
    assert calls == [2.0**8] * 2 + [2.0**7] + [2.0**6] * 3
    assert len(seeds) == 6  # every step has its own random numbers
    lines = metrics(tmp_path / "run")
    assert [line["loss_scale"] for line in lines] == calls
    assert ["gradient_norm" in line for line in lines] == [True, False, False, True, True, True]
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000006" / "state.json").read_text())
    assert state["loss_scale"] == [2.0**6, 3]


def test_a_float16_run_resumes_to_the_same_bits(small, tmp_path, cut_and_resumed):
    recipe = replace(RECIPE, precision="float16")
    whole = weights(train(recipe, tmp_path / "whole", device="cpu", assemble=small.parts))
    again = weights(cut_and_resumed(recipe, tmp_path / "run", 3, assemble=small.parts))
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_the_loss_scale_doubles_after_many_good_steps_and_never_falls_below_one():
    scale = LossScale(2.0, 1998)
    assert scale.after(True).after(True) == LossScale(4.0)
    assert scale.after(False) == LossScale(1.0)
    assert not LossScale(1.0).may_shrink
    assert LossScale.of("bfloat16").after(True) == LossScale()


def test_tf32_is_enabled_only_for_the_towers():
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with tensor_cores("tf32"):
        assert matmul.allow_tf32
        with tiles.no_autocast(torch.device("cuda")):
            assert not matmul.allow_tf32
        assert matmul.allow_tf32
    assert matmul.allow_tf32 == before
    with tensor_cores("float32"):
        assert not matmul.allow_tf32


# --- compiled towers ----------------------------------------------------------------------------------------------


def test_compiled_towers_give_the_same_gradients(small, monkeypatch):
    monkeypatch.setattr(steps, "COMPILE_BACKEND", "aot_eager")  # the compiler without code generation
    found = []
    for way in (lambda model: nullcontext(), lambda model: CompiledForward(model).in_use()):
        torch.manual_seed(0)
        model, objective = small.Model(0.0), small.Objective()
        inputs = small.inputs(0)
        with way(model):
            train_step(model, objective, inputs, StepOptions(chunk=6))
        assert "encode_images" not in vars(model)
        found.append([value.grad for value in (*model.parameters(), *objective.parameters()) if value.grad is not None])
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_a_compiled_run_saves_plain_weights(small, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "COMPILE_BACKEND", "eager")
    model = train(replace(RECIPE, steps=2, compile=True), tmp_path / "run", device="cpu", assemble=small.parts)
    assert set(weights(model)) == set(small.Model().state_dict())


# --- trackers -----------------------------------------------------------------------------------------------------


def test_tensorboard_shows_all_metrics_even_after_a_resume(small, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def stop(model):
        raise RuntimeError("power")

    out = tmp_path / "run"
    arguments = {"device": "cpu", "assemble": small.parts, "trackers": ["tensorboard"]}
    with pytest.raises(RuntimeError, match="power"):
        train(RECIPE, out, **arguments, hooks=[Hook(3, stop)])
    train(RECIPE, out, **arguments, resume=True, hooks=[Hook(3, lambda model: {"accuracy": 0.5})])
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    shown = {event.step: event.value for event in events.Scalars("loss")}
    wanted = {line["step"]: line["loss"] for line in metrics(out) if "loss" in line}
    assert shown.keys() == wanted.keys() == set(range(1, 7))
    assert all(shown[step] == pytest.approx(wanted[step], rel=1e-6) for step in wanted)
    assert len(events.Scalars("loss")) == 6, "steps logged after the last checkpoint must not appear twice"
    assert [event.step for event in events.Scalars("evaluation/accuracy")] == [3, 6]
    assert "seen/even" in events.Tags()["scalars"]


def test_wandb_gets_all_metrics_and_a_resumed_run_keeps_its_id(small, tmp_path, monkeypatch):
    logged, opened = [], []

    def init(**options):
        opened.append(options)
        return SimpleNamespace(
            log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append("end")
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, __spec__=SimpleNamespace()))
    arguments = {"device": "cpu", "assemble": small.parts, "trackers": ["wandb"]}
    train(replace(RECIPE, steps=2), tmp_path / "run", **arguments)
    train(replace(RECIPE, steps=3), tmp_path / "run", **arguments, resume=True)
    assert [line[0] for line in logged if line != "end"] == [1, 2, 3]
    assert logged.count("end") == 2
    assert opened[0]["id"] == opened[1]["id"]
    assert opened[1]["resume"] == "allow"
    assert opened[0]["config"]["steps"] == 2
    assert {"loss", "seen/even", "learning_rate"} <= logged[0][1].keys()


def test_a_compile_error_in_the_backward_pass_gives_a_one_line_error(small, tmp_path, monkeypatch):
    """The backward pass is compiled on first use, outside the towers' methods."""
    from torch._inductor.exc import CppCompileError, InductorError

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return rows.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise InductorError(CppCompileError(["g++"], "no header"), None)

    plain = small.Model.encode_images
    monkeypatch.setattr(steps, "COMPILE_BACKEND", "eager")
    monkeypatch.setattr(small.Model, "encode_images", lambda self, pixels: Failing.apply(plain(self, pixels)))
    with pytest.raises(UserError, match="--compile"):
        train(replace(RECIPE, compile=True), tmp_path / "run", device="cpu", assemble=small.parts)


def test_duplicates_are_found_by_id_or_by_caption_ignoring_case_and_spaces():
    texts, ids = ("A red  boat", "a red boat ", "a red boats", "A red  boat"), ("0", "1", "2", "0")
    batch = Batch(torch.zeros(4, 1), texts, torch.zeros(4), ("caption",) * 4, ("s", "s", "s", "other"), ids)
    by_id, by_caption = duplicate_ids_of(batch, "ids"), duplicate_ids_of(batch, "captions")
    assert by_id.shape == (4, 1)
    assert len(by_id.unique()) == 4, "ids of different sources never match"
    assert torch.equal(by_caption[:, :1], by_id)
    assert [by_caption[:, 1].tolist().index(mark) for mark in by_caption[:, 1].tolist()] == [0, 0, 2, 0]
    assert by_caption.min() >= 0


# --- workers and memory -------------------------------------------------------------------------------------------


def test_the_default_number_of_workers_depends_on_cores_run_length_and_source(monkeypatch, pairs):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(6), raising=False)
    files, generated = open_source(str(pairs)), open_source("latents:captions")
    long = replace(RECIPE, steps=100_000)
    assert workers_of(long, [generated, files], 1) == 5
    assert workers_of(long, [files], 2) == 2
    assert workers_of(long, [files], 6) == 0
    assert workers_of(long, [generated], 1) == 0, "generated sources need no workers"
    assert workers_of(RECIPE, [files], 1) == 0, "a short run ends before workers would start"
    assert workers_of(replace(RECIPE, workers=3), [generated], 1) == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(64), raising=False)
    assert workers_of(long, [files], 1) == 8


def test_more_workers_than_cores_give_no_warning_and_the_same_model(pairs, start, tmp_path):
    recipe = replace(post_training(start, pairs), steps=1, workers=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ahead = weights(train(recipe, tmp_path / "run", device="cpu"))
    alone = weights(train(replace(recipe, workers=0), tmp_path / "alone", device="cpu"))
    assert all(torch.equal(ahead[name], alone[name]) for name in alone), "workers must not affect the result"


@pytest.fixture(scope="module")
def towers():
    return build_model("tiny", texts=["noise number many colors"])


def test_tokenization_runs_in_the_workers(towers, pairs, monkeypatch):
    stream = BatchStream(DataMix((open_source(str(pairs)),)), 40, towers.training_transform())
    expected, here, tokenize = towers.tokenize(stream.batch(0).texts), [], TextTokens.__call__
    monkeypatch.setattr(TextTokens, "__call__", lambda *given: here.append(1) or tokenize(*given))
    (batch,) = stream.iterate(0, 1, 2, tokenize=row_tokenizer(towers))
    assert not here, "must tokenize in other processes"
    assert torch.equal(batch.tokens["input_ids"], expected["input_ids"])
    assert torch.equal(batch[3:5].tokens["input_ids"], expected["input_ids"][3:5])
    assert next(stream.iterate(0, 1)).tokens is None


def test_workers_tokenize_only_if_padding_is_independent_of_the_batch(towers, monkeypatch):
    by_row, texts = row_tokenizer(towers), ["a", "a b a b a b " * 30, "b"]
    whole = by_row(texts, ["caption"] * 3)
    assert torch.equal(whole["input_ids"], torch.cat([by_row([each], ["caption"])["input_ids"] for each in texts]))
    monkeypatch.setattr(towers, "text", replace(towers.text, padding="longest"))
    assert row_tokenizer(towers) is None
    assert row_tokenizer(build_model("tiny-conv", texts=["a b"])) is None


# --- activation checkpointing -------------------------------------------------------------------------------------


def test_activation_checkpointing_trains_the_same_model(start, pairs, tmp_path):
    recipe = replace(post_training(start, pairs), model=Model(str(start)), steps=2)
    plain = weights(train(recipe, tmp_path / "plain", device="cpu"))
    again = weights(train(replace(recipe, checkpoint_activations=True), tmp_path / "again", device="cpu"))
    torch.testing.assert_close(again, plain, rtol=0, atol=1e-6)
