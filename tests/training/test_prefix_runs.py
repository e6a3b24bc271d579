"""Prefix conditioning in training runs."""

import json
from dataclasses import replace

import pytest
import torch

from recollect.models import build_model, load_model
from recollect.training.assembly import start_model
from recollect.training.loop import train
from recollect.training.options import Data, Model, ObjectiveOptions
from recollect.training.recipes import RECIPES

BOTH = Data(captions=("glyphs:captions",), labels=("glyphs:labels",), sampling="debiased")


def make_recipe(data, prefixes=("caption", "label"), **changes):
    base = replace(RECIPES["prefix-tiny"](), model=Model("tiny-conv", prefixes=prefixes), data=data)
    return replace(base, **{"steps": 8, "batch_size": 8, "log_every": 1} | changes)


def rows(model):
    """Return the prefix embeddings by kind."""
    table, names = model.word_vectors.weight.detach(), model._names
    return {kind: table[[names.index(word) for word in words]] for kind, words in model.prefixes.items()}


def prefix_changes(recipe, out):
    found, start = load_model(train(recipe, out), "cpu"), start_model(recipe.model, _sources(recipe), recipe.seed)
    before, after = rows(start), rows(found)
    return {kind: (after[kind] - before[kind]).abs().max().item() for kind in before}


def _sources(recipe):
    from recollect.data.sources import open_source

    return tuple(open_source(spec, kind=kind) for spec, kind in recipe.data.specs)


CAPTIONS, LABELS = Data(captions=BOTH.captions), Data(labels=BOTH.labels)


@pytest.mark.parametrize(
    ("data", "kinds"), [(BOTH, ("caption", "label")), (CAPTIONS, ("caption",)), (LABELS, ("label",))]
)
def test_a_run_trains_the_prefixes_of_its_sources(tmp_path, data, kinds):
    change = prefix_changes(make_recipe(data, prefixes=kinds), tmp_path / "run")
    assert set(change) == set(kinds)
    assert min(change.values()) > 1e-3


def test_a_kind_listed_twice_gets_two_tokens_that_are_saved(tmp_path):
    recipe = make_recipe(BOTH, prefixes=("caption", "label", "label"), steps=2)
    model = load_model(train(recipe, tmp_path / "run"), "cpu")
    assert model.prefixes == {"caption": ("<|caption|>",), "label": ("<|label|>", "<|label:2|>")}
    assert model.tokenize(["a glyph"], "label")["input_ids"].shape[1] == 4


@pytest.mark.parametrize("base", ["softmax", "label"])
def test_prefixes_learn_with_context_objectives(tmp_path, base):
    from recollect.training.recipes import with_context

    recipe = with_context(make_recipe(BOTH, objective=ObjectiveOptions(base, scale=10.0), steps=4), tau=0.02)
    change = prefix_changes(recipe, tmp_path / "run")
    assert min(change.values()) > 1e-4
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"base_loss", "context_loss", "tau_context"} <= set(line)


def test_the_end_token_attends_to_the_prefix_but_not_to_padding():
    model = build_model("tiny-conv", texts=["a photo of a house"], prefixes=("caption", "label"))
    shown = {kind: model.text_attention(["a photo"], kind) for kind in ("caption", "label")}
    assert shown["label"].tokens == (("<|label|>", "a", "photo", "<end>"),)
    for found in shown.values():
        assert len(found.layers) == 2
        for layer in found.layers:
            torch.testing.assert_close(layer.sum(-1), torch.ones(1, 4))
            assert (layer[:, :, 0] > 0).all()
    padded = model.text_attention(["a photo", "a photo of a house"], "label")
    for layer, alone in zip(padded.layers, shown["label"].layers, strict=True):
        place = [0, 1, 2, -1]
        torch.testing.assert_close(layer[0][:, place], alone[0])  # padding has no effect
        assert layer[0, :, 3:-1].abs().max() == 0
    assert not torch.equal(model.embed_texts(["a photo"], "label"), model.embed_texts(["a photo"], "caption"))
