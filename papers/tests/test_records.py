"""A run's file says what it was made from: one made from other data or another recipe is reported and not read."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from recollect.core.files import write_json
from recollect.training.options import Data, Recipe
from recollect_papers.lixp import real
from recollect_papers.lixp import sets as real_sets
from recollect_papers.prefix import real as prefix_real
from recollect_papers.prefix import real_arms as prefix_arms
from recollect_papers.records import MADE_FROM, RunFiles, RunOrigin, digests, read_records, recipe_as_json
from recollect_papers.runs import run_key
from recollect_papers.study import StudyOptions


class Study:
    """One arm on one data file, whose runs are counted."""

    def __init__(self, folder: Path) -> None:
        self.data, self.recipe, self.constant, self.runs = folder / "pairs.parquet", Recipe(steps=3), "16 shots", 0
        self.data.write_bytes(b"first")
        self.folder = folder / "real"

    def origin(self, name, seed):
        recipe = recipe_as_json(replace(self.recipe, seed=seed))
        told = {"steps": self.recipe.steps, "objective": asdict(self.recipe.objective)}
        return RunOrigin(digests([self.data]), recipe, self.constant, told) if name == "SigLIP" else None

    def run(self, seed=0):
        self.runs += 1
        told = self.origin("SigLIP", seed).told
        return {"arm": "SigLIP", "seed": seed, "recipe": told, "figure": self.runs}

    def figures(self, seeds=1):
        files = RunFiles(self.folder, self.origin)
        for seed in range(seeds):
            files.make("SigLIP", seed, partial(self.run, seed))
        return [record["figure"] for record in files.read()]


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def change_data(study):
    study.data.write_bytes(b"other")


def change_recipe(study):
    study.recipe = replace(study.recipe, steps=4)


def change_objective(study):
    study.recipe = replace(study.recipe, objective=replace(study.recipe.objective, smoothing=0.1))


def change_constant(study):
    study.constant = "8 shots"


CHANGES = [
    (change_data, "pairs.parquet has changed"),
    (change_recipe, "steps was 3 and is 4"),
    (change_objective, "smoothing was 0.0 and is 0.1"),
    (change_constant, "how it is measured has changed"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_a_run_is_made_again_when_what_decided_it_changed(study, change, why, capsys):
    assert study.figures() == [1]
    assert study.figures() == [1]
    assert capsys.readouterr().err == ""
    change(study)
    assert study.figures() == [2]
    told = capsys.readouterr().err
    assert f"siglip-seed0.json: {why} since it was written; this run is made again" in told
    assert told.count("\n") == 1
    assert study.figures() == [2]


def test_a_seed_that_is_not_asked_for_is_left_out_when_its_data_changed(study, capsys):
    assert study.figures(seeds=2) == [1, 2]
    change_data(study)
    assert study.figures(seeds=1) == [3]
    assert "siglip-seed1.json: pairs.parquet has changed; left out of the tables" in capsys.readouterr().err


def test_a_file_of_no_arm_is_left_out_and_named(study, capsys):
    write_json(study.folder / "old.json", {"arm": "older", "seed": 0, "recipe": {}})
    assert study.figures() == [1]
    assert "old.json: the study has no such arm; left out of the tables" in capsys.readouterr().err
    assert len(read_records(study.folder)) == 2  # without data nothing is known against it


def test_a_file_that_does_not_say_what_it_was_made_from_is_read_and_told_by_its_recipe(study, capsys):
    study.figures()
    file = study.folder / "siglip-seed0.json"
    record = json.loads(file.read_text())
    del record[MADE_FROM], record["recipe"]["objective"]["smoothing"]  # as older files are
    write_json(file, record)
    change_data(study)
    assert study.figures() == [1]
    assert "1 files do not say what data they were made from; they are taken as they are" in capsys.readouterr().err
    change_recipe(study)
    assert study.figures() == [2]


def test_a_setting_that_is_newer_than_a_file_was_as_usual(study):
    study.figures()
    file = study.folder / "siglip-seed0.json"
    record = json.loads(file.read_text())
    del record[MADE_FROM]["recipe"]["average"]
    write_json(file, record)
    assert study.figures() == [1]
    study.recipe = replace(study.recipe, average=0.999)
    assert study.figures() == [2]


def test_where_the_data_lies_and_how_a_run_is_logged_decide_nothing(tmp_path):
    def recipe(folder, **more):
        return Recipe(data=Data(captions=(f"{folder}/a.parquet?split=train",)), **more)

    assert recipe_as_json(recipe("/one")) == recipe_as_json(recipe("/two", log_every=3, workers=2))
    assert "/one" not in json.dumps(recipe_as_json(recipe("/one")))
    (tmp_path / "a.parquet").write_bytes(b"1")
    assert list(digests([tmp_path / "a.parquet"])) == ["a.parquet"]


PUBLISHED = Path(__file__).parents[2] / "results" / "lixp" / "real"


def test_the_published_files_are_of_the_arms_as_they_are():
    origin = real._origins(None, StudyOptions("small", Path("out")))
    for record in read_records(PUBLISHED):
        made_again = origin(record["arm"], record["seed"])
        assert made_again is not None
        if MADE_FROM not in record:
            assert made_again.changed(record) is None, record["arm"]


def test_each_study_tells_its_arms_and_its_sets_apart(monkeypatch, tmp_path):
    options = StudyOptions("small", tmp_path)
    for study, name, sets in ((real, "SigLIP", real_sets.TESTING), (prefix_real, prefix_arms.PLAIN, prefix_arms.SETS)):
        before = study._origins(None, options)(name, 0)
        record = {MADE_FROM: json.loads(json.dumps(before.as_json()))}
        assert study._origins(None, options)(name, 0).changed(record) is None
        assert study._origins(None, options)(name, 1).changed(record) == "seed was 0 and is 1"
        assert study._origins(None, StudyOptions("smoke", tmp_path))(name, 0).changed(record) is not None
        with monkeypatch.context() as patch:
            patch.delitem(sets, next(iter(sets)))
            assert study._origins(None, options)(name, 0).changed(record) == "how it is measured has changed"


def test_a_training_of_changed_data_is_another_run(tmp_path):
    (tmp_path / "a.csv").write_text("path,caption\nb.png,a boat\n")
    recipe = Recipe(data=Data(captions=(f"{tmp_path}/a.csv",)))
    before = run_key(recipe)
    assert run_key(recipe) == before
    (tmp_path / "a.csv").write_text("path,caption\nb.png,a green boat\n")
    assert run_key(recipe) != before
