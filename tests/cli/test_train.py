"""``recollect train`` from the command line."""

import json
from dataclasses import replace

import pytest

from recollect.cli.train import Train
from recollect.training.recipes import RECIPES


def parsed(*words):
    return Train.parse(list(words), "recollect train")


@pytest.mark.parametrize("name", RECIPES)
def test_without_options_a_recipe_is_unchanged(name):
    assert parsed(name).recipe == RECIPES[name]()


def test_given_sources_replace_those_of_the_recipe():
    assert parsed("siglixp-tiny", "--data", "a.parquet", "b/").recipe.data.specs == [("a.parquet", None), ("b/", None)]
    specs = parsed("prefix-tiny", "--data.captions", "a", "--data.labels", "b").recipe.data.specs
    assert specs == [("a", "caption"), ("b", "label")]
    assert parsed("prefix-tiny", "--data.labels", "b").recipe.data.specs == [("b", "label")]


def test_fields_of_a_recipe_can_be_set_by_option_or_config(recollect, tmp_path):
    shown = recollect("train", "siglixp-tiny", "--print-config", "--model.lora", 4, "--learning-rate", 0.5).stdout
    (tmp_path / "mine.toml").write_text(shown)
    recipe = parsed("clip-tiny", "--config", str(tmp_path / "mine.toml"), "--model.views", "3").recipe
    base = RECIPES["siglixp-tiny"]()
    optimizer = replace(base.optimizer, learning_rate=0.5)
    assert recipe == replace(base, model=replace(base.model, lora=4, views=3), optimizer=optimizer)


def test_short_and_full_option_names_are_equivalent():
    short = parsed("siglip-tiny", "--model", "m", "--objective", "softmax", "--captions", "a")
    full = parsed("siglip-tiny", "--model.start", "m", "--objective.base", "softmax", "--data.captions", "a")
    assert short == full


def test_a_recipe_after_its_options_is_an_error(recollect):
    assert "siglip-tiny" in recollect("train", "--steps", 3, "siglip-tiny", check=False).stderr


def test_every_recipe_is_listed(recollect):
    text = recollect("train").stdout
    for name in RECIPES:
        assert f" {name} " in text


def test_a_run_writes_model_metrics_and_recipe(trained):
    run = trained[1].parent
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 6]
    logged = {"step", "examples", "loss", "base_loss", "context_loss", "scale", "scale_context", "tau_context", "bias",
              "bias_context", "effective_neighbors", "gradient_norm", "examples_per_second"}  # fmt: skip
    assert logged <= lines[-1].keys()
    assert json.loads((run / "recipe.json").read_text())["steps"] == 6
    assert (run / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["siglp-tiny"], "siglip-tiny"),
        (["siglip-tiny", "--data", "glyphs:letters"], "glyphs:letters: no such built-in source"),
        (["siglip-tiny", "--data", "PAIRS", "--caption-column", "words"], "words"),
        (["siglip-tiny", "--data", "PAIRS", "--model.start", "huge"], "huge"),
        (["siglip-tiny", "--data", "PAIRS", "--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["siglip-tiny", "--data", "PAIRS", "--out", "TRAINED"], "already contains a run"),
    ],
)
def test_bad_input_of_train_gives_a_one_line_error(check_error, words, message, pairs, trained, tmp_path):
    words = [{"PAIRS": str(pairs), "TRAINED": str(trained[0].parent)}.get(word, word) for word in words]
    if "--out" not in words:
        words += ["--out", str(tmp_path / "run")]
    check_error(message, "train", *words)
    assert not (tmp_path / "run").exists()
