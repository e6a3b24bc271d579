"""``recollect train`` from the command line."""

import json
from dataclasses import replace

import pytest

from recollect.cli.train import Train
from recollect.training.recipes import RECIPES


def parsed(*words):
    return Train.parse(list(words), "recollect train")


@pytest.mark.parametrize("name", RECIPES)
def test_without_options_the_recipe_is_run_as_it_stands(name):
    assert parsed(name).recipe == RECIPES[name]()


def test_named_sources_take_the_place_of_the_recipes_own():
    assert parsed("siglixp-tiny", "--data", "a.parquet", "b/").recipe.data.specs == [("a.parquet", None), ("b/", None)]
    specs = parsed("prefix-tiny", "--data.captions", "a", "--data.labels", "b").recipe.data.specs
    assert specs == [("a", "caption"), ("b", "label")]
    assert parsed("prefix-tiny", "--data.labels", "b").recipe.data.specs == [("b", "label")]


def test_every_field_of_a_recipe_is_an_option_and_a_setting(recollect, tmp_path):
    shown = recollect("train", "siglixp-tiny", "--print-config", "--model.lora", 4, "--learning-rate", 0.5).stdout
    (tmp_path / "mine.toml").write_text(shown)
    recipe = parsed("clip-tiny", "--config", str(tmp_path / "mine.toml"), "--model.views", "3").recipe
    own = RECIPES["siglixp-tiny"]()
    assert recipe == replace(
        own, model=replace(own.model, lora=4, views=3), optimizer=replace(own.optimizer, learning_rate=0.5)
    )


def test_short_names_and_full_names_are_one_option():
    short = parsed("siglip-tiny", "--model", "m", "--objective", "softmax", "--captions", "a")
    full = parsed("siglip-tiny", "--model.start", "m", "--objective.base", "softmax", "--data.captions", "a")
    assert short == full


def test_a_recipe_comes_before_its_options(recollect):
    assert "siglip-tiny" in recollect("train", "--steps", 3, "siglip-tiny", check=False).stderr


def test_every_recipe_is_listed_with_a_line(recollect):
    text = recollect("train").stdout
    for name in RECIPES:
        assert f" {name} " in text


def test_a_run_leaves_model_metrics_and_recipe(trained):
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
        (["siglip-tiny", "--data", "nowhere.parquet"], "nowhere.parquet"),
        (["siglip-tiny", "--data", "glyphs:letters"], "glyphs:letters: no such built-in source"),
        (["siglip-tiny", "--data", "PAIRS", "--caption-column", "words"], "words"),
        (["siglip-tiny", "--data", "PAIRS", "--model.start", "huge"], "huge"),
        (["siglip-tiny", "--data", "PAIRS", "--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["siglip-tiny", "--data", "PAIRS", "--out", "TRAINED"], "already contains a run"),
    ],
)
def test_bad_input_is_one_line_and_status_2(recollect, words, message, pairs, trained, tmp_path):
    words = [{"PAIRS": str(pairs), "TRAINED": str(trained[0].parent)}.get(word, word) for word in words]
    if "--out" not in words:
        words += ["--out", str(tmp_path / "run")]
    done = recollect("train", *words, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
