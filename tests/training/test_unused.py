"""Options that would say nothing beside others: each is refused in a line before the first step, or heard."""

import re
from contextlib import nullcontext
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
from recollect.models import build_model
from recollect.objectives import ContextOptions, ContrastiveObjective
from recollect.training import assembly
from recollect.training.assembly import open_sources, start_model, training_transform
from recollect.training.loop import train
from recollect.training.options import Data, Model, ObjectiveOptions, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.recipes import RECIPES
from recollect.training.unused import ModelParts, refuse_at_once, refuse_idle, say_defined

CAPTIONS, LABELS = ("--data.captions", "glyphs:captions"), ("--data.labels", "glyphs:labels")
TIED = ("--objective.context.options.tied", "all")
BASE = "--objective.base"
AT_ONCE = {
    "a bias of CLIP": ("clip-tiny", ("--objective.bias", "-10"), "--objective.bias: CLIP's loss has no bias. Leave it"),
    "a bias of UniCL": ("prefix-tiny", (BASE, "label", "--objective.bias=3"), "UniCL's loss has no bias"),
    "a tied tau": ("siglixp-tiny", (*TIED, "--objective.context.tau", "0.5"), "--objective.context.tau: tied to the"),
    "equal of labels": ("clip-tiny", (*LABELS, "--data.sampling", "equal"), "and here are labels alone"),
    "prefix without labels": ("prefix-tiny", CAPTIONS, "--model.prefixes label: no source has labels, so it could not"),
    "prefix without captions": ("clip-tiny", (*LABELS, "--model.prefixes", "caption"), "--model.prefixes caption: no "),
    "debiased of one": ("clip-tiny", ("--data.sampling", "debiased"), "--data.sampling debiased: takes whole batches"),
    "weights of one": ("clip-tiny", ("--data.weights", "2"), "--data.weights: there is one source"),
    "weights of three": ("prefix-tiny", ("--data.weights", "2", "1", "1"), "--data.weights: must be 2 positive numbe"),
    "weights of nothing": ("prefix-tiny", ("--data.weights", "2", "0"), "--data.weights: must be 2 positive numbers"),
    "merged without labels": ("prefix-tiny", ("--data.merge-classes",), "--data.merge-classes: is for a loss on"),
    "a column of none": ("clip-tiny", ("--caption-column", "text"), "--data.caption-column: is for files with columns"),
    "a split column of none": ("clip-tiny", ("--split-column", "part"), "--data.split-column: is for files with"),
    "a split said already": ("clip-tiny", ("--data", "a.csv?split=b", "--data.split", "c"), "--data.split: every sour"),
    "recomputed words": ("siglip-locked", ("--checkpoint-activations",), "patches has no layers of transformers."),
    "recomputed words, beside what is measured": (
        "siglip-locked", ("--evaluate", "zero-shot=none.csv", "--checkpoint-activations"), "patches has no layers of"
    ),
    "recomputed locked": (
        "siglip-tiny", ("--model.locked", "both", "--checkpoint-activations"), "tiny has no layers of transformers that"
    ),
    "tf32 of a CPU": ("clip-tiny", ("--precision", "tf32"), "--precision tf32: is for an NVIDIA GPU, and this run com"),
    "one share": ("clip-tiny", ("--shard-weights",), "--shard-weights: shares weights out among processes, and this"),
    "gates of a preset": ("siglip-locked", ("--model.locked", "none", "--model.gated"), "--model.gated: patches is"),
    "lora of a preset": ("siglip-locked", ("--model.locked", "none", "--model.lora", "2"), "--model.lora: patches is"),
    "tokens of words": ("siglip-locked", ("--model.tokenizer", "t"), "--model.tokenizer: patches's text tower"),
    "a tokenizer of its own": (
        "clip-tiny", ("--model.start", "m/m", "--model.tokenizer", "t"), "--model.tokenizer: is for a preset; m/m has"
    ),
    "dropout of none": ("clip-tiny", ("--model.dropout", "0.5"), "--model.dropout: tiny has no head with dropout"),
    "prefixes that are still": ("prefix-tiny", ("--model.freeze", "text"), "--model.prefixes: with --model.freeze"),
    "a start that is not there": ("siglip-locked", ("--model.start", "./nowhere"), "./nowhere: no such folder"),
    "definitions that are not there": ("clip-tiny", ("--data.definitions", "none.csv"), "none.csv: no such file"),
}  # fmt: skip
"""Recipe and words of a command, and what it says before anything is opened; then, with data."""
PAIRS = {
    "equal of captions": ("clip-tiny", ("--data.sampling", "equal"), "--data.sampling equal: gives half of a batch"),
    "weights of one a kind": ("prefix-tiny", ("--data.weights", "2", "1"), "each kind has one. Leave them out."),
    "labels of none": ("clip-tiny", (BASE, "label"), "--objective.base label: no source has labels. Name one with"),
    "merged of one": ("clip-tiny", (*LABELS, BASE, "label", "--data.merge-classes"), "no two classes have one name"),
    "broken of made": ("clip-tiny", ("--data.broken-share", "0.5"), "--data.broken-share: is for pictures that"),
    "broken as by default": ("clip-tiny", ("--data.broken-share", "0.01"), "--data.broken-share: is for pictures"),
    "two names": ("clip-tiny", ("--data", "glyphs:captions", "--data.sources=glyphs:pairs"), "given twice, under two"),
    "two spellings": ("clip-tiny", ("--batch_size", "8", "--batch-size=16"), "--batch-size: given twice"),
    "no recipe": (None, ("--steps", "3"), "--steps: of which recipe? Name one first; `recollect train` lists them."),
}  # fmt: skip


@pytest.mark.parametrize("name", [*AT_ONCE, *PAIRS])
def test_an_option_that_would_say_nothing_is_refused(name, tmp_path, capsys, monkeypatch):
    recipe, words, message = (AT_ONCE | PAIRS)[name]
    if name in AT_ONCE:  # neither data nor a model is opened, and nothing is fitted
        for work in ("open_sources", "load_model", "build_model"):
            monkeypatch.delattr(assembly, work)
    out = ("--out", str(tmp_path / "run"), "--device", "cpu")
    assert cli.main(["train", *([recipe] if recipe else []), *words, *out]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_adapters_that_could_not_be_saved_and_weights_that_could_not_be_split_are_refused_at_once(monkeypatch):
    monkeypatch.setattr("recollect.models.lora.files.find_spec", lambda name: None)
    recipe = Recipe(model=Model("m/m", lora=2), data=Data(captions=("none.csv",)))
    with pytest.raises(UserError, match=r"saving adapters needs PEFT: pip install 'recollect\[adapters\]'"):
        refuse_at_once(recipe, None, resumed=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(UserError, match="--shard-weights: needs torch"):
        refuse_at_once(replace(recipe, model=Model("m/m"), shard_weights=True), None, resumed=False)


FILES = {
    "caption_column": (("labels",), "--data.caption-column: no such file is read as captions"),
    "label_column": (("captions",), "--data.label-column: no such file is read as labels. Name one with --data.labels"),
    "class_name_column": (("captions",), "--data.class-name-column: no such file is read as labels"),
    "synonyms_column": (("captions",), "--data.synonyms-column: no such file is read as labels"),
    "split": (("captions", "?split=all"), "--data.split: every source says its own split"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    Image.new("RGB", (8, 8), "red").save(folder / "0.png")
    (folder / "table.csv").write_text("path,caption,label\n0.png,a red square,red\n")
    return folder / "table.csv"


@pytest.mark.parametrize("option", FILES)
def test_what_is_said_of_no_file_is_refused(option, table, tmp_path):
    (kind, *address), message = FILES[option]
    value = "train" if option == "split" else "caption" if kind == "labels" else "label"
    data = Data(**{kind: ("".join([str(table), *address]),), option: value})
    with pytest.raises(UserError, match=message):
        train(Recipe(data=data, steps=1, batch_size=1), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_column_of_one_kind_of_file_need_not_be_in_files_of_the_other(table, tmp_path):
    captions, labels = tmp_path / "captions.csv", tmp_path / "labels.csv"
    for file, column in ((captions, "told"), (labels, "bird")):
        file.write_text(f"path,{column}\n0.png,word\n")
        (tmp_path / "0.png").write_bytes((table.parent / "0.png").read_bytes())
    data = Data(captions=(str(captions),), labels=(str(labels),), caption_column="told", label_column="bird")
    first, second = open_sources(data)
    assert (first.texts(0), second.class_names) == (("word",), ("word",))


@pytest.mark.parametrize(
    "words",
    [
        ("siglip-tiny", BASE, "softmax"),  # whose recipe has a bias, that nobody asked for
        ("siglip-tiny", BASE, "softmax", "--objective.bias", "None"),
        ("siglixp-tiny", *TIED),
        ("clip-tiny", *CAPTIONS, "glyphs:captions?size=600", "--data.sampling", "debiased"),
        ("clip-tiny", *LABELS, BASE, "label"),
    ],
)
def test_what_a_recipe_says_by_itself_is_in_nobodys_way(words, tmp_path, capsys):
    """The next thing that is wrong is named in its stead."""
    status = cli.main(["train", *words, "--precision", "tf32", "--out", str(tmp_path / "run"), "--device", "cpu"])
    assert (status, "--precision tf32" in capsys.readouterr().err) == (2, True)


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
        refuse_at_once(recipe, ProcessRanks(0, 3, torch.device("cpu")), resumed=False)


def test_activations_of_towers_that_do_not_learn_are_not_recomputed():
    recipe, model = RECIPES["siglip-tiny"](), build_model("tiny", texts=["a photo"])
    for still, learns in (({"locked": "image"}, True), ({"freeze": "text"}, True), ({"locked": "both"}, False),
                          ({"locked": "image", "freeze": "text"}, False)):  # fmt: skip
        asked = replace(recipe, checkpoint_activations=True, model=Model("tiny", **still))
        with nullcontext() if learns else pytest.raises(UserError, match="no layers of transformers that learn"):
            refuse_idle(asked, model)
    assert ModelParts.of_preset("tiny").recomputable == model.recomputable


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


def test_classes_are_merged_for_an_objective_of_ones_own(tmp_path):
    recipe = replace(RECIPES["clip-tiny"](), data=Data(labels=("glyphs:labels",), merge_classes=True))
    recipe = replace(recipe, objective=ObjectiveOptions("sigmoid"))
    with pytest.raises(UserError, match="no two classes have one name"):
        train(recipe, tmp_path / "run", objective=ContrastiveObjective("label"), device="cpu")
