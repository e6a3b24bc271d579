"""Recipes: they are complete, have the papers' values, and can be saved and resumed."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from recollect.cli.train import Train
from recollect.core.errors import UserError
from recollect.models import PRESETS
from recollect.training.options import Context, Data, Model, ObjectiveOptions, Recipe
from recollect.training.recipes import RECIPES
from recollect.training.run_folder import as_json, check_run_folder, prepare_run_folder


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_complete_except_for_data_that_users_must_provide(name):
    recipe = RECIPES[name]()
    assert recipe.model.start in PRESETS or recipe.model.start.split("/")[0] in ("google", "openai")
    if not recipe.data.specs:
        assert name.startswith(("siglip-vit", "lixp-vit", "post-train", "lit", "prefix-swin"))
        with pytest.raises(UserError, match=r"no data source\. Add one with --data SOURCE"):
            recipe.check()
        recipe = replace(recipe, data=replace(recipe.data, sources=("some.parquet",)))
    recipe.check()
    assert json.loads(json.dumps(asdict(recipe)))


@pytest.mark.parametrize("name", [name for name in RECIPES if RECIPES[name]().objective.context is not None])
def test_a_context_recipe_differs_from_its_baseline_only_in_the_context(name):
    plain = name.replace("siglixp", "siglip").replace("clixp", "clip").replace("lixp-", "siglip-")
    second = RECIPES[name]()
    assert replace(second, objective=replace(second.objective, context=None)) == RECIPES[plain]()


@pytest.mark.parametrize(("size", "examples"), [("s", 1.5e9), ("b", 6e9), ("l", 8e9)])
def test_the_lixp_recipes_have_the_papers_values(size, examples):
    """LIxP, section 4.1 and Appendix A."""
    recipe = RECIPES[f"lixp-vit-{size}-16"]()
    assert recipe.model.start == f"vit-{size}-16"
    assert recipe.batch_size == 32_768
    assert recipe.steps * recipe.batch_size == pytest.approx(examples, rel=1e-4)
    optimizer = recipe.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay) == (1e-3, 1e-4)
    assert (optimizer.beta1, optimizer.beta2, optimizer.clip_norm) == (0.9, 0.95, 1.0)
    objective = recipe.objective
    assert (objective.base, objective.scale, objective.bias) == ("sigmoid", 10.0, -10.0)
    assert (objective.context.alpha, objective.context.tau) == (0.9, 1.0)
    assert recipe.chunk * 8 < recipe.batch_size
    assert recipe.precision == "bfloat16"


def test_the_prefix_recipe_has_the_papers_values():
    """Section 4: Swin-T, batch 1,024, 1e-3, 10,000 warm-up steps, 15 epochs of the labels, debiased sampling."""
    recipe = RECIPES["prefix-swin-t"]()
    assert (recipe.model.start, recipe.model.prefixes) == ("swin-t", ("caption", "label"))
    assert (recipe.batch_size, recipe.data.sampling) == (1024, "debiased")
    assert recipe.steps * recipe.batch_size / 2 == pytest.approx(15 * 12e6, rel=1e-4)
    assert recipe.optimizer.warmup * recipe.steps == pytest.approx(10_000)


def test_paths_lists_and_single_values_in_python_make_the_same_recipe(unchecked):
    data = Data(sources="a.parquet", captions=["b/", Path("c.csv")], labels=Path("d"))
    assert data == Data(sources=("a.parquet",), captions=("b/", "c.csv"), labels=("d",))
    model = Model(Path("run/model"), text=Path("bert"), prefixes="caption")
    assert model == Model("run/model", text="bert", prefixes=("caption",))
    with pytest.raises(UserError, match="'captions'"):
        Recipe(model=Model(prefixes=("captions",)), data=data).check()


def _with(path: str, value):
    """Return a recipe with one option changed; ``a.b`` is a nested option."""
    recipe = Recipe(data=Data(sources=("a",)), objective=ObjectiveOptions(context=Context()))

    def changed(options, names):
        name, *inner = names
        return replace(options, **{name: changed(getattr(options, name), inner) if inner else value})

    return changed(recipe, path.split("."))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((name, 0) for name in ("steps", "batch_size", "chunk", "log_every", "checkpoint_every", "checkpoints_kept")),
        ("model.views", 0), ("workers", -1), ("objective.scale", 0.0),
        ("objective.bias", math.nan), ("objective.context.alpha", 1.5), ("objective.context.tau", 0.0),
        ("optimizer.learning_rate", math.nan), ("optimizer.weight_decay", -1.0), ("optimizer.beta2", 1.0),
        ("optimizer.clip_norm", 0.0), ("optimizer.warmup", 2.0), ("data.crop", 0.0), ("data.broken_share", 2.0),
        ("batch_size", 1), ("data.weights", (1.0, 2.0)),
    ],
)  # fmt: skip
def test_the_error_names_an_option_out_of_range(option, value):
    with pytest.raises(UserError, match=option.replace("_", "-")):
        _with(option, value).check()


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_recipe_equals_the_original(name, tmp_path):
    """Tuples and missing parts survive JSON, so the recipe can be resumed."""
    recipe = RECIPES[name]()
    (tmp_path / name).mkdir()
    prepare_run_folder(tmp_path / name, recipe, None)
    assert json.loads((tmp_path / name / "recipe.json").read_text()) == as_json(recipe)
    check_run_folder(tmp_path / name, recipe, resume=True)
    other = replace(recipe, objective=replace(recipe.objective, context=Context(alpha=0.123)))
    with pytest.raises(UserError, match=r"objective\.context"):
        check_run_folder(tmp_path / name, other, resume=True)
    assert Train.parse(["--config", str(tmp_path / name / "recipe.json")], "recollect train").recipe == recipe


def test_a_run_resumes_after_an_update_that_added_options(tmp_path):
    recipe = RECIPES["siglixp-tiny"]()
    prepare_run_folder(tmp_path, recipe, None)
    old = json.loads((tmp_path / "recipe.json").read_text())
    del old["data"]["copies"], old["compile"], old["objective"]["context"]["alpha"], old["model"]["lora"]
    (tmp_path / "recipe.json").write_text(json.dumps(old))
    check_run_folder(tmp_path, recipe, resume=True)
    with pytest.raises(UserError, match=r"but data\.copies was ids, is captions"):
        check_run_folder(tmp_path, replace(recipe, data=replace(recipe.data, copies="captions")), resume=True)
