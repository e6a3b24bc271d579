"""Sharded weights give the gradients, norms, checkpoints and models of whole weights."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor

from recollect.core.errors import UserError
from recollect.models import build_model
from recollect.objectives import ContextObjective
from recollect.training.loop import Hook, train
from recollect.training.options import Context, Data, Model, ObjectiveOptions, Recipe
from recollect.training.sharded import clip_gradients, shard_weights, whole, whole_weights
from recollect.training.step import Inputs, StepOptions, train_step
from run_files import weights

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
splits = pytest.mark.skipif(TORCH < (2, 13), reason="needs torch 2.13")
ROWS = 8
TEXTS = [f"a {color} {thing}" for color in ("red", "green", "blue", "white") for thing in ("cup", "hat")]


def parts():
    model = build_model("tiny", texts=TEXTS).double().train()
    return model, ContextObjective(scale=5.0, bias=-2.0, tau_context=0.3).double()


def inputs(model, rank=0, size=1):
    pixels = torch.randn(ROWS, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    part = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    return Inputs(pixels[part], model.tokenize(TEXTS[part]))


def learned(model, objective):
    return {**dict(model.named_parameters()), **{f"objective.{n}": p for n, p in objective.named_parameters()}}


def step_of(model, objective, given, chunk=None):
    """Return the gradients, their norm, and the clipped gradients."""
    train_step(model, objective, given, StepOptions(chunk=chunk))
    found = {name: each for name, each in learned(model, objective).items() if each.grad is not None}
    before = {name: whole(each.grad).clone() for name, each in found.items()}
    norm = clip_gradients(found, 0.01)
    return before, norm, {name: whole(each.grad) for name, each in found.items()}


@splits
def test_gradients_and_their_norm_match_whole_weights(in_ranks, unchecked):
    def work(rank):
        model, objective = parts()
        shard_weights(model)
        split = [name for name, each in model.named_parameters() if isinstance(each, DTensor)]
        found = step_of(model, objective, inputs(model, rank, 2), chunk=2)  # layers are gathered for each chunk
        with whole_weights(model):
            return split, {name: each.detach().clone() for name, each in model.named_parameters()}, *found

    shares = in_ranks(work, 2)
    model, objective = parts()
    before, norm, after = step_of(model, objective, inputs(model))
    for split, gathered, own_before, own_norm, own_after in shares:
        sizes = {name: each.numel() for name, each in model.named_parameters()}
        assert sum(sizes[name] for name in split) > 0.7 * sum(sizes.values())
        torch.testing.assert_close(gathered, {n: p.detach() for n, p in model.named_parameters()}, rtol=0, atol=0)
        assert own_norm.item() == pytest.approx(norm.item(), rel=1e-9)
        for found, expected in ((own_before, before), (own_after, after)):
            assert found.keys() == expected.keys()
            for name, gradient in expected.items():
                torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-9 * norm.item(), msg=name)


def test_clipping_unsharded_gradients_matches_torch():
    one, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    one.grad, other.grad = torch.full((3,), 2.0), torch.full((2,), -1.0)
    assert clip_gradients({"one": one, "other": other}, 1.0).item() == pytest.approx(14**0.5)
    assert torch.cat([one.grad, other.grad]).norm().item() == pytest.approx(1.0, rel=1e-4)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    start = tmp_path_factory.mktemp("start") / "model"
    build_model("tiny", texts=TEXTS).save(start)
    objective = ObjectiveOptions(context=Context(tau=0.3))
    return Recipe(
        Model(str(start)), Data(captions=("glyphs:captions",)), objective, steps=4, batch_size=8, chunk=3, average=0.9,
        checkpoint_every=2, log_every=1, shard_weights=True,
    )  # fmt: skip


@splits
def test_a_sharded_run_matches_a_whole_one_and_resumes(recipe, in_processes, tmp_path, unchecked):
    """With EMA and an evaluation. Two processes, since a sum of two terms does not depend on their order."""
    split, whole_run = tmp_path / "split", tmp_path / "whole"

    def measure(towers):
        assert not any(isinstance(each, DTensor) for each in towers.parameters())
        return {"texts": float(len(towers.encoder.embed_texts(TEXTS[:2])))}

    def together(out, steps, split, resume=False):
        changed = replace(recipe, steps=steps, shard_weights=split)
        in_processes(lambda rank: train(changed, out, device="cpu", hooks=[Hook(2, measure)], resume=resume), 2)

    together(whole_run, 4, split=False)
    together(split, 2, split=True)
    kept = (out / "checkpoints" / "step-00000002" / "training.safetensors" for out in (split, whole_run))
    close(*map(load_file, kept))
    together(split, 4, split=True, resume=True)
    close(*(weights(out / "model") for out in (split, whole_run)))
    lines = [json.loads(line) for line in (split / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "evaluation" in line] == [2, 4]


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() <= 1e-4 * (1 + tensor.abs().max()), name


def test_unsupported_sharding_is_rejected(recipe, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    with pytest.raises(UserError, match="--shard-weights and --compile"):
        replace(recipe, compile=True).check()
    with pytest.raises(UserError, match=r"--shard-weights and --model\.lora"):
        replace(recipe, model=replace(recipe.model, lora=4)).check()
    vectors = build_model("glyph-random", texts=TEXTS)
    with pytest.raises(UserError, match="--shard-weights: splits layers of transformers"):
        shard_weights(vectors)
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(UserError, match=r"needs torch 2\.13 or newer, and this is 2\.9\.1"):
        shard_weights(vectors)
