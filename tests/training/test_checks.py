"""Contradictions in a recipe are errors before the first step; options without effect are warnings."""

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
from recollect.training.checks import check_at_once, warn_idle
from recollect.training.options import Data, Model, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.recipes import RECIPES
from recollect_papers.lixp.ablations import ContextOptions

CAPTIONS, LABELS = ("--captions", "glyphs:captions"), ("--labels", "glyphs:labels")
ERRORS = {
    "prefix without labels": ("prefix-tiny", CAPTIONS, "--model.prefixes label"),
    "prefix without captions": ("clip-tiny", (*LABELS, "--model.prefixes", "caption"), "--model.prefixes caption"),
    "weights of three": ("prefix-tiny", ("--data.weights", "2", "1", "1"), "--data.weights"),
    "weights of nothing": ("prefix-tiny", ("--data.weights", "2", "0"), "--data.weights"),
    "one share": ("clip-tiny", ("--shard-weights",), "--shard-weights"),
    "lora of a preset": ("glyphs-siglip", ("--lora", "2"), "--model.lora"),
    "prefixes that are still": ("prefix-tiny", ("--model.freeze", "text"), "--model.prefixes"),
    "a start that is not there": ("glyphs-siglip", ("--model", "./nowhere"), "./nowhere: no such folder"),
    "an objective that is not there": ("clip-tiny", ("--objective", "softmx"), "softmx"),
    "no recipe": (None, ("--steps", "3"), "RECIPE"),
}
"""Recipe, words of a command, and what the error names before anything is opened."""


@pytest.mark.parametrize("name", ERRORS)
def test_what_no_run_can_be_made_of_is_refused_before_anything_is_opened(name, tmp_path, capsys, monkeypatch):
    recipe, words, named = ERRORS[name]
    for work in ("open_sources", "load_model", "build_model"):
        monkeypatch.delattr(assembly, work)
    out = ("--out", str(tmp_path / "run"), "--device", "cpu")
    assert cli.main(["train", *([recipe] if recipe else []), *words, *out]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1
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
    "nothing": ("siglip-tiny", {}),  # its bias comes from the recipe, not from the user
}
"""Recipe, and options without effect."""


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_a_warning_and_the_run_goes_on(name, tmp_path, capfd):
    recipe, options = IDLE[name]
    words = [word for option, values in options.items() for word in (option, *values)]
    data = ("--data", "glyphs:captions?size=40", "--objective", "sigmoid" if name == "words" else "softmax")
    assert cli.main(["train", recipe, *data, *words, *SHORT, "--out", str(tmp_path / "run")]) == 0
    warned = [line.split()[0] for line in capfd.readouterr().err.splitlines() if "no effect" in line]
    assert sorted(warned) == sorted(options)


def test_adapters_that_could_not_be_saved_and_weights_that_could_not_be_split_are_refused_at_once(monkeypatch):
    monkeypatch.setattr("recollect.models.lora.find_spec", lambda name: None)
    recipe = Recipe(model=Model("m/m", lora=2), data=Data(captions=("none.csv",)))
    with pytest.raises(UserError, match="PEFT"):
        check_at_once(recipe, None, resumed=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(UserError, match="--shard-weights: needs torch"):
        check_at_once(replace(recipe, model=Model("m/m"), shard_weights=True), None, resumed=False)


def test_a_column_of_one_kind_of_file_need_not_be_in_files_of_the_other(tmp_path):
    captions, labels = tmp_path / "captions.csv", tmp_path / "labels.csv"
    Image.new("RGB", (8, 8), "red").save(tmp_path / "0.png")
    for file, column in ((captions, "told"), (labels, "bird")):
        file.write_text(f"path,{column}\n0.png,word\n")
    data = Data(captions=(str(captions),), labels=(str(labels),), caption_column="told", label_column="bird")
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
def test_ablations_of_which_one_would_say_nothing_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options)) if "stop_gradient" in options else "augmented"):
        ContextOptions(**options)
    for name, value in options.items():
        assert getattr(ContextOptions(**{name: value}), name) == value


def test_prefixes_that_could_not_learn_or_of_another_number_than_a_checkpoint_has_are_refused(tmp_path):
    bare, known = (str(build_model("tiny-conv", texts=["a photo"], prefixes=kinds).save(tmp_path / str(len(kinds))))
                   for kinds in ((), ("caption",)))  # fmt: skip
    for still in ({"freeze": "text"}, {"locked": "both"}):
        with pytest.raises(UserError, match=r"--model\.prefixes"):
            start_model(Model(bare, prefixes=("caption",), **still), (), 0)
        assert start_model(Model(known, prefixes=("caption",), **still), (), 0).prefixes["caption"] == ("<|caption|>",)
    with pytest.raises(UserError, match=r"--model\.prefixes"):
        start_model(Model(known, prefixes=("caption", "caption")), (), 0)


def test_a_batch_of_which_processes_could_not_have_equal_shares_is_refused_before_anything_is_opened():
    recipe = replace(RECIPES["clip-tiny"](), batch_size=8)
    with pytest.raises(UserError, match="--batch-size 8: does not divide over 3 processes"):
        check_at_once(recipe, ProcessRanks(0, 3, torch.device("cpu")), resumed=False)


def test_activations_of_towers_that_do_not_learn_are_not_recomputed(capfd):
    recipe, model = RECIPES["siglip-tiny"](), build_model("tiny", texts=["a photo"])
    for still, learns in (({"locked": "image"}, True), ({"freeze": "text"}, True), ({"locked": "both"}, False),
                          ({"locked": "image", "freeze": "text"}, False)):  # fmt: skip
        asked = replace(recipe, checkpoint_activations=True, model=Model("tiny", **still))
        warn_idle(asked, (), model, ProcessRanks(0, 1, torch.device("cpu")))
        assert ("--checkpoint-activations has no effect" in capfd.readouterr().err) != learns
    assert PRESETS["tiny"].recomputable == model.recomputable


def test_a_crop_and_a_flip_are_heard_by_towers_that_add_none_by_themselves():
    model, picture = (
        build_model("tiny-conv", texts=["a photo"]),
        np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3),
    )
    center = training_transform(model, Data()).pixels(picture)
    generator = np.random.default_rng(0)
    mirrored = training_transform(model, Data(flip=True))
    seen = {mirrored.pixels(picture, generator).tobytes() for _ in range(8)}
    assert seen == {center.tobytes(), np.ascontiguousarray(center[:, ::-1]).tobytes()}
    cropped = training_transform(model, Data(crop=0.3))
    assert isinstance(cropped, ImageTransform)
    assert len({cropped.pixels(picture, generator).tobytes() for _ in range(8)}) == 8


def test_a_table_without_captions_is_refused_with_its_columns(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("file,description\na.png,a red boat\n")
    spec = f"{tmp_path}/list.csv"
    with pytest.raises(UserError, match=r"list\.csv: .*'description'.*--data\.caption-column"):
        open_sources(Data(sources=(spec,)))
    (source,) = open_sources(Data(sources=(spec,), caption_column="description"))
    assert source[0].texts == ("a red boat",)
