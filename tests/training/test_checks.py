"""Contradictions in a recipe are errors before the first step; options without effect are warnings."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from recollect import cli
from recollect.core.errors import UserError
from recollect.data.definitions import Knowledge
from recollect.data.sources import open_source
from recollect.data.transforms import ImageTransform
from recollect.models import PRESETS, build_model
from recollect.objectives import ContextOptions, ContrastiveObjective
from recollect.training import assembly
from recollect.training.assembly import open_sources, start_model, training_transform
from recollect.training.checks import check_at_once, say_defined, warn_of_model
from recollect.training.loop import train
from recollect.training.options import Data, Model, ObjectiveOptions, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.recipes import RECIPES

CAPTIONS, LABELS = ("--captions", "glyphs:captions"), ("--labels", "glyphs:labels")
ERRORS = {
    "prefix without labels": ("prefix-tiny", CAPTIONS, "--model.prefixes label"),
    "prefix without captions": ("clip-tiny", (*LABELS, "--model.prefixes", "caption"), "--model.prefixes caption"),
    "weights of three": ("prefix-tiny", ("--data.weights", "2", "1", "1"), "--data.weights"),
    "weights of nothing": ("prefix-tiny", ("--data.weights", "2", "0"), "--data.weights"),
    "one share": ("clip-tiny", ("--shard-weights",), "--shard-weights"),
    "gates of a preset": ("glyphs-siglip", ("--model.gated",), "--model.gated"),
    "lora of a preset": ("glyphs-siglip", ("--lora", "2"), "--model.lora"),
    "prefixes that are still": ("prefix-tiny", ("--model.freeze", "text"), "--model.prefixes"),
    "a start that is not there": ("glyphs-siglip", ("--model", "./nowhere"), "./nowhere: no such folder"),
    "definitions that are not there": ("clip-tiny", ("--data.definitions", "none.csv"), "none.csv: no such file"),
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
IDLE = {
    "a bias of CLIP": ("clip-tiny", ("--objective.bias", "-3"), "--objective.bias"),
    "equal of captions": ("clip-tiny", ("--data.sampling", "equal"), "--data.sampling"),
    "debiased of one": ("clip-tiny", ("--data.sampling", "debiased"), "--data.sampling"),
    "weights of one": ("clip-tiny", ("--data.weights", "2"), "--data.weights"),
    "merged without labels": ("clip-tiny", ("--data.merge-classes",), "--data.merge-classes"),
    "a column of none": ("clip-tiny", ("--caption-column", "text"), "--data.caption-column"),
    "recomputed words": ("glyphs-siglip", ("--checkpoint-activations",), "--checkpoint-activations"),
    "tf32 of a CPU": ("clip-tiny", ("--precision", "tf32"), "--precision"),
    "tokens of words": ("glyphs-siglip", ("--model.tokenizer", "t"), "--model.tokenizer"),
    "dropout of none": ("clip-tiny", ("--model.dropout", "0.5"), "--model.dropout"),
    "views of a tower that learns": ("clip-tiny", ("--model.views", "2"), "--model.views"),
    "alpha without LoRA": ("clip-tiny", ("--model.lora-alpha", "2"), "--model.lora-alpha"),
    "broken of made": ("clip-tiny", ("--data.broken-share", "0.5"), "--data.broken-share"),
    "a flip of made": ("clip-tiny", ("--data.flip",), "--data.flip"),
    "nothing": ("siglip-tiny", ("--objective", "softmax"), ""),  # whose recipe has a bias that nobody asked for
}
"""Recipe, words of a command, and the option that has no effect."""


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_a_warning_and_the_run_goes_on(name, tmp_path, capfd):
    recipe, words, option = IDLE[name]
    data = ("--data", "glyphs:captions?size=40")
    assert cli.main(["train", recipe, *data, *words, *SHORT, "--out", str(tmp_path / "run")]) == 0
    warned = [line for line in capfd.readouterr().err.splitlines() if "no effect" in line]
    assert [line.split()[0] for line in warned] == ([option] if option else [])


def test_adapters_that_could_not_be_saved_and_weights_that_could_not_be_split_are_refused_at_once(monkeypatch):
    monkeypatch.setattr("recollect.models.lora.find_spec", lambda name: None)
    recipe = Recipe(model=Model("m/m", lora=2), data=Data(captions=("none.csv",)))
    with pytest.raises(UserError, match="PEFT"):
        check_at_once(recipe, None, resumed=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(UserError, match="--shard-weights: needs torch"):
        check_at_once(replace(recipe, model=Model("m/m"), shard_weights=True), None, resumed=False)


FILES = {
    "caption_column": ("labels", ""),
    "label_column": ("captions", ""),
    "synonyms_column": ("captions", ""),
    "split": ("captions", "?split=all"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    Image.new("RGB", (8, 8), "red").save(folder / "0.png")
    (folder / "table.csv").write_text("path,caption,label\n0.png,a red square,red\n")
    return folder / "table.csv"


@pytest.mark.parametrize("option", FILES)
def test_what_is_said_of_no_file_is_a_warning(option, table, tmp_path, capfd):
    kind, address = FILES[option]
    value = "train" if option == "split" else "caption" if kind == "labels" else "label"
    data = Data(**{kind: (f"{table}{address}",), option: value})
    train(Recipe(data=data, steps=1, batch_size=1), tmp_path / "run", device="cpu")
    assert f"--data.{option.replace('_', '-')} has no effect" in capfd.readouterr().err


def test_a_column_of_one_kind_of_file_need_not_be_in_files_of_the_other(table, tmp_path):
    captions, labels = tmp_path / "captions.csv", tmp_path / "labels.csv"
    for file, column in ((captions, "told"), (labels, "bird")):
        file.write_text(f"path,{column}\n0.png,word\n")
        (tmp_path / "0.png").write_bytes((table.parent / "0.png").read_bytes())
    data = Data(captions=(str(captions),), labels=(str(labels),), caption_column="told", label_column="bird")
    first, second = open_sources(data)
    assert (first.texts(0), second.class_names) == (("word",), ("word",))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": False, "augmented": "all"},
        {"shuffled": True, "stale_rows": 4},
        {"stop_gradient": "keys", "layer_norm": "both"},
        {"stop_gradient": "both", "value_head": 1},
    ],
)
def test_ablations_of_which_one_would_say_nothing_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options)) if "stop_gradient" in options else "augmented|shuffled"):
        ContextOptions(**options)
    for name, value in options.items():
        assert getattr(ContextOptions(**{name: value}), name) == value


def test_prefixes_that_could_not_learn_or_of_another_number_than_a_checkpoint_has_are_refused(tmp_path):
    bare, known = (str(build_model("tiny-conv", texts=["a photo"], prefixes=kinds).save(tmp_path / str(len(kinds))))
                   for kinds in ((), ("caption",)))  # fmt: skip
    for still in ({"freeze": "text"}, {"locked": "both"}):
        with pytest.raises(UserError, match=r"--model\.prefixes: with --model\.\w+ \w+ no prefix could learn"):
            start_model(Model(bare, prefixes=("caption",), **still), (), 0)
        assert start_model(Model(known, prefixes=("caption",), **still), (), 0).prefixes["caption"] == ("<|caption|>",)
    with pytest.raises(UserError, match="has 1 for caption texts already, and 2 are asked for"):
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
        warn_of_model(asked, model)
        assert ("--checkpoint-activations has no effect" in capfd.readouterr().err) != learns
    assert PRESETS["tiny"].recomputable == model.recomputable


def test_a_crop_and_a_flip_are_heard_by_towers_that_add_none_by_themselves():
    model, picture = (
        build_model("tiny-conv", texts=["a photo"]),
        np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3),
    )
    centre = training_transform(model, Data()).pixels(picture)
    generator = np.random.default_rng(0)
    mirrored = training_transform(model, Data(flip=True))
    seen = {mirrored.pixels(picture, generator).tobytes() for _ in range(8)}
    assert seen == {centre.tobytes(), np.ascontiguousarray(centre[:, ::-1]).tobytes()}
    cropped = training_transform(model, Data(crop=0.3))
    assert isinstance(cropped, ImageTransform)
    assert len({cropped.pixels(picture, generator).tobytes() for _ in range(8)}) == 8


def test_how_many_captions_have_a_word_that_is_defined_is_said(capfd):
    source = open_source("glyphs:captions")
    word = max(re.findall(r"\w+", source.example_texts(np.arange(1))[0].lower()), key=len)
    say_defined((source,), Knowledge(lambda name: ("a sign",) if name == word else ()))
    said = " ".join(capfd.readouterr().err.split())
    found = re.search(r"glyphs:captions: (\d+) of the first 1,000 captions have a word with a definition", said)
    assert 0 < int(found[1]) < 1000


def test_classes_are_merged_for_an_objective_of_ones_own(tmp_path, capfd):
    recipe = replace(RECIPES["clip-tiny"](), data=Data(labels=("glyphs:labels",), merge_classes=True), steps=1)
    recipe = replace(recipe, objective=ObjectiveOptions("sigmoid"), batch_size=8)
    train(recipe, tmp_path / "run", objective=ContrastiveObjective("label"), device="cpu")
    assert "no two classes have one name" in capfd.readouterr().err
