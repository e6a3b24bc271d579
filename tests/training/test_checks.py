"""Contradictory recipes are rejected before the first step; options without effect give warnings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from recollect import cli
from recollect.core.errors import UserError
from recollect.data.transforms import ImageTransform
from recollect.models import PRESETS, build_model
from recollect.training import assembly
from recollect.training.assembly import open_sources, start_model, training_transform
from recollect.training.checks import check_without_data, warn_unused_options
from recollect.training.options import Data, Model, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.recipes import RECIPES
from recollect_papers.lixp.ablations import ContextOptions

CAPTIONS, LABELS = ("--captions", "glyphs:captions"), ("--labels", "glyphs:labels")
ERRORS = {
    "prefix without labels": ("prefix-tiny", CAPTIONS, "--model.prefixes label"),
    "prefix without captions": ("clip-tiny", (*LABELS, "--model.prefixes", "caption"), "--model.prefixes caption"),
    "too many weights": ("prefix-tiny", ("--data.weights", "2", "1", "1"), "--data.weights"),
    "zero weight": ("prefix-tiny", ("--data.weights", "2", "0"), "--data.weights"),
    "sharding one process": ("clip-tiny", ("--shard-weights",), "--shard-weights"),
    "lora on a preset": ("glyphs-siglip", ("--lora", "2"), "--model.lora"),
    "lora on new heads": ("clip-tiny", ("--model", "vit", "--model.text", "bert", "--lora", "2"), "--model.text"),
    "prefixes of a frozen tower": ("prefix-tiny", ("--model.freeze", "text"), "--model.prefixes"),
    "missing start": ("glyphs-siglip", ("--model", "./nowhere"), "./nowhere: no such folder"),
    "unknown objective": ("clip-tiny", ("--objective", "softmx"), "softmx"),
    "no recipe": (None, ("--steps", "3"), "RECIPE"),
}
"""Recipe, command-line words, and the part named in the error."""


@pytest.mark.parametrize("name", ERRORS)
def test_an_impossible_run_is_rejected_before_anything_is_opened(name, tmp_path, capsys, monkeypatch):
    recipe, words, culprit = ERRORS[name]
    for work in ("open_sources", "load_model", "build_model"):
        monkeypatch.delattr(assembly, work)
    out = ("--out", str(tmp_path / "run"), "--device", "cpu")
    assert cli.main(["train", *([recipe] if recipe else []), *words, *out]) == 2
    error = capsys.readouterr().err
    assert culprit in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


SHORT = ("--steps", "1", "--batch-size", "8", "--device", "cpu")
_MANY = {
    "--objective.bias": ("-3",), "--data.sampling": ("equal",), "--data.weights": ("2",), "--data.merge-classes": (),
    "--data.label-column": ("x",), "--precision": ("tf32",), "--model.views": ("2",),
    "--model.lora-alpha": ("2",), "--model.width": ("96",), "--data.broken-share": ("0.5",), "--data.flip": (),
}  # fmt: skip
IDLE = {
    "CLIP on captions": ("clip-tiny", _MANY),
    "words": ("glyphs-siglip", {"--checkpoint-activations": (), "--model.tokenizer": ("t",)}),
    "nothing": ("siglip-tiny", {}),  # the recipe's own bias causes no warning
}
"""Recipe, and options without effect on it."""


@pytest.mark.parametrize("name", IDLE)
def test_options_without_effect_give_warnings_and_the_run_continues(name, tmp_path, capfd):
    recipe, options = IDLE[name]
    words = [word for option, values in options.items() for word in (option, *values)]
    data = ("--data", "glyphs:captions?size=40", "--objective", "sigmoid" if name == "words" else "softmax")
    assert cli.main(["train", recipe, *data, *words, *SHORT, "--out", str(tmp_path / "run")]) == 0
    warned = [line.split()[0] for line in capfd.readouterr().err.splitlines() if "no effect" in line]
    assert sorted(warned) == sorted(options)


def test_lora_without_peft_and_sharding_with_an_old_torch_are_rejected_at_once(monkeypatch):
    monkeypatch.setattr("recollect.models.lora.find_spec", lambda name: None)
    recipe = Recipe(model=Model("m/m", lora=2), data=Data(captions=("none.csv",)))
    with pytest.raises(UserError, match="PEFT"):
        check_without_data(recipe, None, resumed=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(UserError, match="--shard-weights: needs torch"):
        check_without_data(replace(recipe, model=Model("m/m"), shard_weights=True), None, resumed=False)


def test_column_options_apply_only_to_the_sources_that_need_them(tmp_path):
    captions, labels = tmp_path / "captions.csv", tmp_path / "labels.csv"
    Image.new("RGB", (8, 8), "red").save(tmp_path / "0.png")
    for file, column in ((captions, "text"), (labels, "bird")):
        file.write_text(f"path,{column}\n0.png,word\n")
    data = Data(captions=(str(captions),), labels=(str(labels),), caption_column="text", label_column="bird")
    first, second = open_sources(data)
    assert (first.texts(0), second.class_names) == (("word",), ("word",))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": False, "augmented": "all"},
        {"stop_gradient": "keys", "layer_norm": "both"},
        {"stop_gradient": "both", "value_head": 1},
    ],
)
def test_ablations_without_effect_in_combination_are_rejected(options):
    with pytest.raises(ValueError, match=next(iter(options)) if "stop_gradient" in options else "augmented"):
        ContextOptions(**options)
    for name, value in options.items():
        assert getattr(ContextOptions(**{name: value}), name) == value


def test_prefixes_that_cannot_learn_or_differ_in_length_from_the_checkpoint_are_rejected(tmp_path):
    bare, known = (str(build_model("tiny-conv", texts=["a photo"], prefixes=kinds).save(tmp_path / str(len(kinds))))
                   for kinds in ((), ("caption",)))  # fmt: skip
    for still in ({"freeze": "text"}, {"locked": "both"}):
        with pytest.raises(UserError, match=r"--model\.prefixes"):
            start_model(Model(bare, prefixes=("caption",), **still), (), 0)
        assert start_model(Model(known, prefixes=("caption",), **still), (), 0).prefixes["caption"] == ("<|caption|>",)
    with pytest.raises(UserError, match=r"--model\.prefixes"):
        start_model(Model(known, prefixes=("caption", "caption")), (), 0)


def test_a_batch_size_that_does_not_divide_over_the_processes_is_rejected_at_once():
    recipe = replace(RECIPES["clip-tiny"](), batch_size=8)
    with pytest.raises(UserError, match="--batch-size 8: does not divide over 3 processes"):
        check_without_data(recipe, ProcessRanks(0, 3, torch.device("cpu")), resumed=False)


def test_activation_checkpointing_of_frozen_towers_gives_a_warning(capfd):
    recipe, model = RECIPES["siglip-tiny"](), build_model("tiny", texts=["a photo"])
    for still, learns in (({"locked": "image"}, True), ({"freeze": "text"}, True), ({"locked": "both"}, False),
                          ({"locked": "image", "freeze": "text"}, False)):  # fmt: skip
        frozen = replace(recipe, checkpoint_activations=True, model=Model("tiny", **still))
        warn_unused_options(frozen, (), model, ProcessRanks(0, 1, torch.device("cpu")))
        assert ("--checkpoint-activations has no effect" in capfd.readouterr().err) != learns
    assert PRESETS["tiny"].recomputable == model.recomputable


def test_crop_and_flip_options_apply_to_towers_without_default_augmentation():
    model, picture = build_model("tiny-conv", texts=["a"]), np.arange(7200, dtype=np.uint8).reshape(40, 60, 3)
    center = training_transform(model, Data()).pixels(picture)
    generator = np.random.default_rng(0)
    mirrored = training_transform(model, Data(flip=True))
    seen = {mirrored.pixels(picture, generator).tobytes() for _ in range(8)}
    assert seen == {center.tobytes(), np.ascontiguousarray(center[:, ::-1]).tobytes()}
    cropped = training_transform(model, Data(crop=0.3))
    assert isinstance(cropped, ImageTransform)
    assert len({cropped.pixels(picture, generator).tobytes() for _ in range(8)}) == 8


def test_the_error_for_a_table_without_captions_lists_its_columns(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("file,description\na.png,a red boat\n")
    spec = f"{tmp_path}/list.csv"
    with pytest.raises(UserError, match=r"list\.csv: .*'description'.*--data\.caption-column"):
        open_sources(Data(sources=(spec,)))
    (source,) = open_sources(Data(sources=(spec,), caption_column="description"))
    assert source[0].texts == ("a red boat",)
