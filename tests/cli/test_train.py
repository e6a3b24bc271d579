"""``recollect train`` from the command line."""

import json

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


def test_context_options_are_plain_options():
    recipe = parsed("siglixp-tiny", "--objective.context.alpha", "0.8", "--objective.context.options.no-mask").recipe
    assert recipe.objective.context.alpha == 0.8
    assert not recipe.objective.context.options.mask


def test_option_names_do_not_change_by_accident(recollect):
    text = recollect("train", "siglixp-tiny", "--help").stdout
    for option in (
        "--out", "--resume", "--device", "--steps", "--batch-size", "--chunk", "--precision", "--seed", "--workers",
        "--log-every", "--checkpoint-every", "--checkpoints-kept", "--model.start", "--model.tokenizer",
        "--model.prefixes", "--model.freeze", "--data.sources", "--data.captions", "--data.labels", "--data.split",
        "--data.weights", "--data.sampling", "--data.crop", "--data.flip", "--data.broken-share",
        "--data.image-column", "--data.caption-column", "--data.label-column", "--objective.base",
        "--objective.scale", "--objective.bias", "--objective.context.alpha", "--objective.context.tau",
        "--objective.context.options.mask", "--objective.context.options.residual",
        "--objective.context.options.values", "--objective.context.options.stages",
        "--objective.context.options.tied", "--objective.context.options.freeze-temperature",
        "--objective.context.options.stop-gradient", "--objective.context.options.separate",
        "--objective.context.options.value-head", "--objective.context.options.layer-norm",
        "--objective.context.options.stale-rows", "--objective.context.options.active-rows",
        "--objective.context.options.augmented", "--optimiser.learning-rate", "--optimiser.weight-decay",
        "--optimiser.beta1", "--optimiser.beta2", "--optimiser.clip-norm", "--optimiser.warmup",
        "--optimiser.temperature-factor",
    ):  # fmt: skip
        assert f"{option} " in text or f"{option}," in text, option


def test_every_recipe_is_listed_with_a_line(recollect):
    text = recollect("train").stdout
    for name in RECIPES:
        assert f" {name} " in text


def test_a_run_leaves_model_metrics_and_recipe(trained):
    run = trained[1].parent
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 6]
    logged = {"step", "examples", "loss", "base_loss", "context_loss", "scale", "scale_context", "tau_context", "bias",
              "bias_context", "effective_neighbours", "gradient_norm", "examples_per_second"}  # fmt: skip
    assert logged <= lines[-1].keys()
    assert json.loads((run / "recipe.json").read_text())["steps"] == 6
    assert (run / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["siglp-tiny"], "siglp-tiny: no such recipe. Did you mean siglip-tiny"),
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
