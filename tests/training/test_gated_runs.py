"""REACT's gated blocks through the trainer: they learn alone, resume, and are part of one model."""

import json
from dataclasses import replace

import pytest
import torch

from recollect.core.errors import UserError
from recollect.models import load_model
from recollect.training.loop import Hook, train
from recollect.training.options import Data, Model
from recollect.training.recipes import RECIPES


@pytest.fixture(scope="module")
def start(tiny):
    return str(tiny)


@pytest.fixture(scope="module")
def recipe(start, noise):
    recipe = replace(RECIPES["post-train-react"](), steps=4, batch_size=6, chunk=4, precision="float32", log_every=1)
    optimiser = replace(recipe.optimiser, learning_rate=0.05)
    model, data = Model(start, gated=True), Data(captions=(str(noise),))
    return replace(recipe, model=model, data=data, checkpoint_every=2, optimiser=optimiser)


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    out, seen = tmp_path_factory.mktemp("gated") / "run", []

    def note(model):
        seen.append({name for name, value in model.named_parameters() if value.grad is not None})
        return {}

    train(recipe, out, device="cpu", hooks=[Hook(1, note)])
    return out, seen


def metrics(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_new_blocks_learn_and_nothing_else(run, start):
    out, seen = run
    base, made = load_model(start, "cpu"), load_model(out / "model", "cpu")
    wanted = {f"gated.{name}" for name, _ in made.gated.named_parameters()}
    assert all(names == wanted for names in seen)
    old, new = (dict(model.model.named_parameters()) for model in (base, made))
    assert all(torch.equal(old[name], value) for name, value in new.items() if "logit_" not in name)
    base.add_gated(seed=0)
    for (name, before), after in zip(base.gated.named_parameters(), made.gated.parameters(), strict=True):
        assert not torch.equal(before, after) or "mixed.bias" in name, name
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert (made.embed_images(pixels) - base.embed_images(pixels)).abs().max() > 1e-4
    assert torch.equal(made.embed_texts(["noise"]), base.embed_texts(["noise"]))


def test_the_first_step_has_the_loss_of_the_checkpoint(run, recipe, tmp_path):
    plain = replace(recipe, model=replace(recipe.model, gated=False), steps=1)
    train(plain, tmp_path / "run", device="cpu")
    first, other = (
        json.loads((out / "metrics.jsonl").read_text().splitlines()[0]) for out in (run[0], tmp_path / "run")
    )
    assert first["loss"] == other["loss"]


def test_a_run_resumes_to_the_same_bits_and_its_card_says_what_opens_it(run, recipe, tmp_path, cut_and_resumed):
    again = load_model(cut_and_resumed(recipe, tmp_path / "run", 3), "cpu")
    assert again.fingerprint == load_model(run[0] / "model", "cpu").fingerprint
    card = (run[0] / "model" / "README.md").read_text()
    assert "library_name: recollect" in card
    assert "open it with recollect" in card


def test_recomputed_activations_change_nothing_and_a_model_with_blocks_goes_on(run, recipe, tmp_path):
    """Where the first block of a tower reads what needs no gradient, recomputing must not lose the others'."""
    model = train(replace(recipe, checkpoint_activations=True, chunk=None), tmp_path / "again", device="cpu")
    norms = [[line["gradient_norm"] for line in metrics(out)[:2]] for out in (run[0], tmp_path / "again")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)  # of the gates alone at first, of all the blocks then
    again = load_model(model, "cpu")
    further = replace(recipe, model=Model(str(model), gated=True), steps=1)
    further = replace(further, optimiser=replace(further.optimiser, learning_rate=0.0))
    assert (
        load_model(train(further, tmp_path / "further", device="cpu"), "cpu").gated[0].gate_mlp
        == again.gated[0].gate_mlp
    )


@pytest.mark.parametrize(
    "more", [{"start": "tiny"}, {"locked": "image"}, {"lora": 2}, {"freeze": "text"}, {"prefixes": ("caption",)}]
)
def test_what_cannot_be_combined_with_gated_blocks_is_one_line(more, recipe, tmp_path):
    with pytest.raises(UserError, match=r"--model\.gated"):
        train(replace(recipe, model=replace(recipe.model, **more)), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
