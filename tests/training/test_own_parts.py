"""Custom losses, objectives, sources, classifiers and studies work in runs and commands."""

import json
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import functional

from recollect.classifiers import EmbeddingClassifier
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect.core.errors import UserError
from recollect.evaluation.few_shot_protocol import FewShotTask, Protocol, run_protocol
from recollect.models import load_model
from recollect.objectives import OBJECTIVES, BaseLoss, ContextObjective, ContrastiveObjective, Objective
from recollect.objectives.shards import WHOLE
from recollect.objectives.terms import weighted_sum
from recollect.testing import SampleList, check_estimator
from recollect.training.loop import train
from recollect.training.options import Model, Recipe
from recollect_papers import cli as papers
from recollect_papers.engine import Column, Row, TableForm, TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.studies import STUDIES, Study
from run_files import metrics

RECIPE = Recipe(model=Model("glyph-random"), steps=3, batch_size=6, log_every=1, checkpoint_every=2)


def squared_distances(sets, targets):
    """Mean squared distance: a complete base loss in a few lines."""
    texts = targets.texts
    return weighted_sum(sets, [each.scale * (each.images - texts).square().sum(1).mean() for each in sets])


@pytest.fixture
def custom_loss(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "distance", BaseLoss(squared_distances, "DistLIP", "DistLIxP"))


def test_one_line_in_the_table_adds_a_base_loss(custom_loss):
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
    with pytest.raises(ValueError, match="smoothing"):
        ContrastiveObjective("distance", smoothing=0.1)


class Distances(Objective):
    """Objective with only a `forward` method."""

    def forward(self, images, texts, *, shard=WHOLE, **_):
        whole = shard.gather(texts)
        first = shard.first(len(images))
        loss = (images - whole[first : first + len(images)]).square().mean() / shard.size
        return loss, {"loss": shard.total(loss.detach())}


def test_a_run_on_python_objects_resumes_only_with_the_same_objects(tmp_path):
    own = SampleList.of_pictures("own", 12)
    model = train(RECIPE, tmp_path / "run", sources=[own], objective=Distances(), device="cpu")
    assert load_model(model, "cpu").embed_texts(["a", "b"]).shape[0] == 2
    written = metrics(tmp_path / "run")
    assert [line["seen"] for line in written][-1] == {"own": 18}
    assert written[-1]["loss"] < written[0]["loss"]

    longer = replace(RECIPE, steps=5)
    with pytest.raises(UserError, match="data"):
        train(longer, tmp_path / "run", resume=True, sources=[SampleList.of_pictures("own", 12, seed=1)], device="cpu")
    train(longer, tmp_path / "run", resume=True, sources=own, objective=Distances(), device="cpu")
    assert metrics(tmp_path / "run")[-1]["seen"] == {"own": 30}


def test_a_saved_recipe_with_python_sources_fails_clearly_without_them(tmp_path):
    own = SampleList.of_pictures("own", 12)
    train(RECIPE, tmp_path / "run", sources=[own], device="cpu")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    data = replace(RECIPE.data, sources=tuple(recipe["data"]["sources"]))
    with pytest.raises(UserError, match="own: "):
        train(replace(RECIPE, data=data), tmp_path / "again", device="cpu")
    assert not (tmp_path / "again").exists()


class Medoid(EmbeddingClassifier):
    """Nearest medoid, i.e. the most central example of a class."""

    def _fit(self, support, labels):
        classes = [support[labels == label] for label in range(len(self.classes_))]
        self.medoids_ = np.stack([rows[(rows @ rows.T).sum(axis=1).argmax()] for rows in classes])

    def _scores(self, queries):
        return queries @ self.medoids_.T


def test_one_line_in_the_table_adds_a_classifier_to_the_protocol(monkeypatch):
    monkeypatch.setitem(FEW_SHOT_METHODS, "medoid", lambda texts, scale: Medoid())
    check_estimator(Medoid())
    draw, labels = np.random.default_rng(0), np.arange(40) % 4
    rows = np.eye(4, 6)[labels] + 0.2 * draw.normal(size=(40, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    task = FewShotTask(rows[:24], labels[:24], rows[24:], labels[24:], None)
    found = run_protocol(task, Protocol(("medoid", "prototype"), (1, 5), (0,)))
    assert [(row["method"], row["shots"]) for row in found] == [
        (name, k) for name in ("medoid", "prototype") for k in (1, 5)
    ]
    assert all(row["value"] > 90 for row in found)


def test_one_file_and_one_line_add_a_study(monkeypatch, tmp_path, capsys):
    def measure(options):
        found = Measurements()
        for seed, (arm, value) in enumerate([("one", 1.0), ("one", 2.0), ("two", 5.0)]):
            found.add({"arm": arm}, seed, value)
        return found

    def form(found):
        rows = [Row((arm,), {"arm": arm}) for arm in ("one", "two")]
        return [TableForm("Arms", ("arm",), rows, [Column("figure")]).fill(found)], ["a remark"]

    module = ModuleType("recollect_papers.own")
    module.table_1 = TableStudy("own/table-1", measure, form, dict.fromkeys(("smoke", "small", "full"), "no world"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(STUDIES, "own/table-1", Study("own", "table_1", "two arms"))
    assert papers.main(["own/table-1", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert "1.5 ± 0.7" in capsys.readouterr().out
    assert json.loads((tmp_path / "own-table-1.json").read_text())["world"] == "no world"
