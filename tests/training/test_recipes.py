"""Recipes: names that commands and files rely on, and the papers' values."""

import json
from dataclasses import asdict, replace

import pytest

from recollect import cli
from recollect.core.errors import UserError
from recollect.models import PRESETS
from recollect.objectives import ContextOptions
from recollect.training.options import Context, Data, ObjectiveOptions, Recipe
from recollect.training.recipes import RECIPES
from recollect.training.run_folder import as_json, check_run_folder, prepare_run_folder


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_complete_but_for_data_that_nobody_can_ship(name):
    recipe = RECIPES[name]()
    assert recipe.model.start in PRESETS or recipe.model.start.split("/")[0] in ("google", "openai")
    if not recipe.data.specs:
        assert name.startswith(("siglip-vit", "lixp-vit", "post-train", "lit", "prefix-swin"))
        with pytest.raises(UserError, match=r"no source of data was named\. Name one with --data SOURCE"):
            recipe.check()
        recipe = replace(recipe, data=replace(recipe.data, sources=("some.parquet",)))
    recipe.check()
    assert json.loads(json.dumps(asdict(recipe)))


@pytest.mark.parametrize(
    ("plain", "with_context"),
    [
        *((f"siglip-{name}", f"siglixp-{name}") for name in ("tiny", "small")),
        ("clip-tiny", "clixp-tiny"),
        ("post-train-heads-siglip", "post-train-heads-siglixp"),
        ("post-train-projection-clip", "post-train-projection-clixp"),
        *((f"{world}-siglip", f"{world}-siglixp") for world in ("latents", "latents-strong", "glyphs")),
        *((f"siglip-vit-{size}-16", f"lixp-vit-{size}-16") for size in "sbl"),
        ("post-train-clip", "post-train-clixp"),
        ("post-train-siglip", "post-train-siglixp"),
    ],
)
def test_pairs_to_compare_differ_in_the_context_alone(plain, with_context):
    first, second = RECIPES[plain](), RECIPES[with_context]()
    assert first.objective.context is None
    assert second.objective.context is not None
    assert replace(second, objective=replace(second.objective, context=None)) == first


@pytest.mark.parametrize(("size", "examples"), [("s", 1.5e9), ("b", 6e9), ("l", 8e9)])
def test_the_papers_recipe_has_the_papers_values(size, examples):
    """LIxP, section 4.1 and Appendix A."""
    recipe = RECIPES[f"lixp-vit-{size}-16"]()
    assert recipe.model.start == f"vit-{size}-16"
    assert recipe.batch_size == 32_768
    assert recipe.steps * recipe.batch_size == pytest.approx(examples, rel=1e-4)
    optimiser = recipe.optimiser
    assert (optimiser.learning_rate, optimiser.weight_decay) == (1e-3, 1e-4)
    assert (optimiser.beta1, optimiser.beta2, optimiser.clip_norm) == (0.9, 0.95, 1.0)
    objective = recipe.objective
    assert (objective.base, objective.scale, objective.bias) == ("sigmoid", 10.0, -10.0)
    assert (objective.context.alpha, objective.context.tau) == (0.9, 1.0)
    assert objective.context.options == ContextOptions()
    assert recipe.chunk * 8 < recipe.batch_size
    assert recipe.precision == "bfloat16"


def test_prefix_conditionings_recipe_has_its_papers_values():
    """Section 4: Swin-T, batch 1,024, 1e-3, 10,000 steps of warm-up, 15 epochs of the labels, debiased sampling."""
    recipe = RECIPES["prefix-swin-t"]()
    assert (recipe.model.start, recipe.model.prefixes) == ("swin-t", ("caption", "label"))
    assert (recipe.batch_size, recipe.data.sampling) == (1024, "debiased")
    assert recipe.steps * recipe.batch_size / 2 == pytest.approx(15 * 12e6, rel=1e-4)
    assert recipe.optimiser.warmup * recipe.steps == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(([f"--{name}", "0"], f"--{name} 0: must be at least 1")
          for name in ("steps", "batch-size", "chunk", "log-every", "checkpoint-every", "checkpoints-kept")),
        (["--model.views", "0"], "--model.views 0: must be at least 1"),
        (["--model.dropout", "1"], "--model.dropout 1.0: must be at least 0 and less than 1"),
        (["--workers", "-1"], "--workers -1: must be 0 or positive"),
        (["--objective.scale", "0"], "--objective.scale 0.0: must be positive"),
        (["--objective.bias", "nan"], "--objective.bias nan: must be a finite number"),
        (["--objective.context.alpha", "1.5"], "--objective.context.alpha 1.5: must be between 0 and 1"),
        (["--objective.context.tau", "0"], "--objective.context.tau 0.0: must be at least 1e-12"),
        (["--optimiser.learning-rate", "nan"], "--optimiser.learning-rate nan: must be 0 or positive"),
        (["--optimiser.weight-decay", "-1"], "--optimiser.weight-decay -1.0: must be 0 or positive"),
        (["--optimiser.beta2", "1"], "--optimiser.beta2 1.0: must be at least 0 and less than 1"),
        (["--optimiser.clip-norm", "0"], "--optimiser.clip-norm 0.0: must be positive"),
        (["--optimiser.warmup", "2"], "--optimiser.warmup 2.0: must be between 0 and 1"),
        (["--data.crop", "0"], "--data.crop 0.0: must be more than 0 and at most 1"),
        (["--data.broken-share", "2"], "--data.broken-share 2.0: must be between 0 and 1"),
        (["--device", "abacus"], "--device abacus: cannot be used here. This machine has"),
        (["--objective.context.options.stale-rows", "-4"], "stale_rows must not be"),
    ],
)  # fmt: skip
def test_what_no_run_can_be_made_of_is_named_and_leaves_nothing(words, message, tmp_path, capsys):
    try:
        status = cli.main(["train", "latents-siglixp", *words, "--out", str(tmp_path / "run")])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_batch_of_one_has_no_context():
    recipe = Recipe(data=Data(sources=("a",)), batch_size=1, objective=ObjectiveOptions(context=Context()))
    with pytest.raises(UserError, match="--batch-size 1: a batch of one has no context"):
        recipe.check()


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_run_is_kept_whole(name, tmp_path):
    """A recipe can be resumed with itself, with its tuples and its missing parts as JSON has them."""
    recipe = RECIPES[name]()
    (tmp_path / name).mkdir()
    prepare_run_folder(tmp_path / name, recipe, None)
    assert json.loads((tmp_path / name / "recipe.json").read_text()) == as_json(recipe)
    check_run_folder(tmp_path / name, recipe, resume=True)
    other = replace(recipe, objective=replace(recipe.objective, context=Context(alpha=0.123)))
    with pytest.raises(UserError, match=r"objective\.context.* was .*, is .*0\.123|objective.context.alpha was"):
        check_run_folder(tmp_path / name, other, resume=True)
    if recipe.objective.context is None:
        with pytest.raises(UserError, match=r"objective\.context\.\w+ was None, is"):
            check_run_folder(
                tmp_path / name, replace(recipe, objective=replace(recipe.objective, context=Context())), True
            )


def test_a_run_goes_on_after_an_update_that_brought_an_option(tmp_path):
    recipe = RECIPES["siglixp-tiny"]()
    prepare_run_folder(tmp_path, recipe, None)
    old = json.loads((tmp_path / "recipe.json").read_text())
    del old["data"]["copies"], old["compile"], old["objective"]["context"]["options"]["shuffled"], old["model"]["lora"]
    (tmp_path / "recipe.json").write_text(json.dumps(old))
    check_run_folder(tmp_path, recipe, resume=True)
    with pytest.raises(UserError, match=r"but data\.copies was ids, is captions"):
        check_run_folder(tmp_path, replace(recipe, data=replace(recipe.data, copies="captions")), resume=True)
