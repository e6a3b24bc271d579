"""A loss, an objective and sources of one's own: what adding one takes, and that a run treats them as its own."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from recollect.core.errors import UserError
from recollect.models import load_model
from recollect.objectives import OBJECTIVES, BaseLoss, ContextObjective, ContrastiveObjective, Objective
from recollect.objectives.shards import WHOLE
from recollect.objectives.terms import weighted_sum
from recollect.testing import SampleList
from recollect.training.card import model_card
from recollect.training.loop import train
from recollect.training.options import Model, Recipe

RECIPE = Recipe(model=Model("glyph-random"), steps=3, batch_size=6, log_every=1, checkpoint_every=2)


def squared_distances(sets, partners):
    """A base loss in a few lines: the mean squared distance of partners."""
    texts = partners.texts
    return weighted_sum(sets, [one.scale * (one.images - texts).square().sum(1).mean() for one in sets])


@pytest.fixture
def own_loss(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "distance", BaseLoss(squared_distances, "DistLIP", "DistLIxP"))


def test_one_line_in_the_table_adds_a_base_loss(own_loss):
    draw = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, 5, 4, generator=draw, dtype=torch.float64).unbind()
    plain = ContrastiveObjective("distance", scale=1.0).double()
    expected = (functional.normalize(images) - functional.normalize(texts)).square().sum(1).mean()
    loss, report = plain(images, texts)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert "bias" not in report
    assert plain.needs == frozenset()
    assert plain.scale_and_bias() == (1.0, None)
    context = ContextObjective("distance", alpha=1.0, scale=1.0).double()
    torch.testing.assert_close(context(images, texts)[0], expected, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="smoothing is for sigmoid and softmax, not for 'distance'"):
        ContrastiveObjective("distance", smoothing=0.1)


def test_the_model_card_has_the_name_of_the_loss(own_loss):
    recipe = {"model": {"start": "tiny"}, "objective": {"base": "distance", "context": {}}, "steps": 1, "batch_size": 2}
    assert "# DistLIxP, from tiny" in model_card(recipe, {}, {})


def test_an_unknown_base_is_refused_with_the_names_that_there_are():
    with pytest.raises(ValueError, match="'sigmoid', 'softmax', 'label', got 'hinge'"):
        ContrastiveObjective("hinge")


class Distances(Objective):
    """An objective that has nothing but its `forward`."""

    def forward(self, images, texts, *, labels=None, views=None, context=None, marks=None, context_marks=None,
                seed=0, shard=WHOLE):  # fmt: skip
        whole = shard.gather(texts)
        first = shard.first(len(images))
        loss = (images - whole[first : first + len(images)]).square().mean() / shard.size
        return loss, {"loss": shard.total(loss.detach())}


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_of_python_objects_is_resumed_with_the_same_ones_only(tmp_path):
    own = SampleList.of_pictures("own", 12)
    model = train(RECIPE, tmp_path / "run", sources=[own], objective=Distances(), device="cpu")
    assert load_model(model, "cpu").embed_texts(["a", "b"]).shape[0] == 2
    written = lines(tmp_path / "run")
    assert [line["seen"] for line in written][-1] == {"own": 18}
    assert written[-1]["loss"] < written[0]["loss"]

    longer = replace(RECIPE, steps=5)
    with pytest.raises(UserError, match="data"):
        train(longer, tmp_path / "run", resume=True, sources=[SampleList.of_pictures("own", 12, seed=1)], device="cpu")
    train(longer, tmp_path / "run", resume=True, sources=[own], objective=Distances(), device="cpu")
    assert lines(tmp_path / "run")[-1]["seen"] == {"own": 30}


def test_a_recipe_that_speaks_of_python_objects_says_so_when_they_are_missing(tmp_path):
    own = SampleList.of_pictures("own", 12)
    train(RECIPE, tmp_path / "run", sources=[own], device="cpu")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    data = replace(RECIPE.data, sources=tuple(recipe["data"]["sources"]))
    with pytest.raises(UserError, match="own is a Python object"):
        train(replace(RECIPE, data=data), tmp_path / "again", device="cpu")
    assert not (tmp_path / "again").exists()


def test_sources_beside_an_assembly_of_ones_own_are_refused(small, tmp_path):
    with pytest.raises(ValueError, match="either sources"):
        train(RECIPE, tmp_path / "run", sources=[SampleList.of_pictures("own", 3)], assemble=small.parts)
