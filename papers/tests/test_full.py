"""Scale ``full`` from data to table: the papers' settings with tiny recipes and the user's own sets."""

import json
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.evaluation.tasks import opening
from recollect.evaluation.tasks.classification import Division, classification_task
from recollect.evaluation.tasks.retrieval import retrieval_task
from recollect.models import build_model
from recollect.training import recipes
from recollect_papers import cli, runs
from recollect_papers.lixp import world as lixp_world
from recollect_papers.prefix import world as prefix_world
from recollect_papers.prefix.world import PrefixArm
from recollect_papers.reco import tables as reco_tables
from recollect_papers.reco import world as reco_world
from recollect_papers.reco.bench import FusionArm, Learning
from recollect_papers.runs import Job, StudyEvaluation
from recollect_papers.studies import find_study
from recollect_papers.study import SearchSettings, StudyOptions

CLASSES = {"red lamp": "crimson beacon", "green boat": "emerald vessel", "blue door": "azure gate"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with 36 training and 2 test pictures per class, a second set, synonyms, entities and two models."""
    folder, draw = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    for name, each in (("one", 36), ("two", 4)):
        lines = ["path,caption,label,synonyms,split"]
        for number in range((each + 2) * len(CLASSES)):
            label = list(CLASSES)[number % len(CLASSES)]
            noise = draw.integers(0, 60, (8, 8, 3)) + 150 * np.eye(3, dtype=int)[number % 3]
            Image.fromarray(noise.astype(np.uint8)).save(folder / f"{name}-{number}.png")
            split = "train" if number < each * len(CLASSES) else "test"
            lines.append(f"{name}-{number}.png,a {label} number {number},{label},{CLASSES[label]},{split}")
        for copy in (name, f"{name}-captions", f"{name}-names"):
            (folder / f"{copy}.csv").write_text("\n".join(lines))
    known = [
        line for line in (folder / "two.csv").read_text().splitlines() if "blue door" not in line or "test" in line
    ]
    (folder / "entities.csv").write_text("\n".join(known))
    for seed, name in enumerate(("model", "model-2")):
        build_model("tiny", texts=lines, seed=seed).save(folder / name)
    return folder


@dataclass(frozen=True)
class TinySet:
    """A local set of a suite."""

    name: str
    place: str
    metric: str = "top-1"
    most_templates: int = 2

    def open(self, place, templates):
        templates = templates[: self.most_templates]
        return classification_task(self.place, name=self.name, division=Division("train", "test"), templates=templates)


@pytest.fixture(scope="module")
def papers(own):
    """Replace the papers' recipes by two steps of tiny towers, and suites by two sets."""
    with pytest.MonkeyPatch.context() as patch:
        _shorten(patch, own)
        yield


def _shorten(monkeypatch, own):
    monkeypatch.setattr(
        opening, "suite_entries", lambda name: (TinySet("a", f"{own}/one.csv"), TinySet("b", f"{own}/one.csv"))
    )
    tiny = replace(recipes.RECIPES["siglip-tiny"](), steps=2, batch_size=8, log_every=1, checkpoint_every=2)
    for size in "sbl":
        monkeypatch.setitem(recipes.RECIPES, f"siglip-vit-{size}-16", lambda: tiny)
    short = replace(recipes.RECIPES["prefix-tiny"](), steps=2, batch_size=8, log_every=1, checkpoint_every=2)
    monkeypatch.setitem(recipes.RECIPES, "prefix-swin-t", lambda: short)
    monkeypatch.setattr(prefix_world, "_SMALL_STEPS", 4)


def test_lixps_columns_are_the_papers(tmp_path):
    options = StudyOptions("full", tmp_path, data=("pairs.csv",))
    for base, sizes in (("sigmoid", "SSBBL"), ("softmax", "SSSBB")):
        found = lixp_world.settings(options, base)
        assert [setting.label[4] for setting in found] == list(sizes)
        seen = [setting.base.steps * setting.base.batch_size / 1e9 for setting in found]
        assert seen == pytest.approx([float(setting.label.split()[1][:-1]) for setting in found], rel=1e-4)
        assert {setting.base.objective.base for setting in found} == {base}
        alphas = [setting.context().objective.context.alpha for setting in found]
        assert alphas == [0.95 if "15B" in setting.label else 0.9 for setting in found]


def test_lixp_trains_and_tests_on_the_users_data(own, papers, tmp_path, monkeypatch):
    monkeypatch.setattr(lixp_world, "_PAPERS_SCALES", {"softmax": (("S", "1.5B", 16.0),)})
    monkeypatch.setattr(lixp_world, "SHOTS", (1, 2, 40))  # more than the 36 examples per class, like CUB at 32 shots
    options = StudyOptions("full", tmp_path, data=(f"{own}/one.csv",), workers=1)
    report = find_study("lixp/table-3").load()(options)
    (table,) = report.tables
    assert "mean over 2 sets; classes with fewer examples than shots use all of them" in table.notes
    assert table.columns[1:4] == ("CLIP, ViT-S/16 1.5B", "CLIxP gain", "paper: ViT-S/16 1.5B")
    assert all(cell for row in table.rows[:-1] for cell in row[1:3])
    assert table.notes[0] == "one training seed; gains are of the same seed"


def test_test_sets_are_opened_before_training(own, papers, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "_figures", lambda job, file, out: pytest.fail("trained"))
    options = StudyOptions("full", tmp_path, data=(f"{own}/one.csv",), workers=1)
    monkeypatch.setattr(opening, "suite_entries", lambda name: (TinySet("gone", f"{own}/gone.csv"),))
    with pytest.raises(UserError, match="no data set can be opened"):
        find_study("lixp/table-3").load()(options)
    monkeypatch.setattr(
        opening, "suite_entries", lambda name: (TinySet("a", f"{own}/one.csv"), TinySet("gone", "gone.csv"))
    )
    with pytest.raises(pytest.fail.Exception, match="trained"):
        find_study("lixp/table-3").load()(options)
    assert "left out: gone: " in capsys.readouterr().out
    search = Job("m", recipes.RECIPES["latents-siglip"](), StudyEvaluation(retrieval=(f"{own}/entities.csv?split=no",)))
    with pytest.raises(UserError, match="split 'no'"):
        runs.run([search], tmp_path, 1)


SOURCES = (
    "captions=one-captions.csv",
    "captions=two-captions.csv",
    "labels-large=one.csv",
    "labels-large=two.csv",
    "labels-small=one.csv",
    "synonyms=one-names.csv",
    "search=one-captions.csv",
)


@pytest.fixture(scope="module")
def prefix_options(own, papers, tmp_path_factory):
    """Options with a folder shared by the studies, so they reuse trained models."""
    data = tuple(source.replace("=", f"={own}/") for source in SOURCES)
    return StudyOptions("full", tmp_path_factory.mktemp("prefix"), data=data, workers=1)


def test_arms_with_only_labels_or_captions_train_for_half_the_steps(prefix_options):
    """Labels fill every other batch together with captions and every batch alone, so half the steps suffice."""
    world = prefix_world.prefix_world(prefix_options)
    steps = {arm: world.make(arm).steps for arm in (PrefixArm(), PrefixArm(captions="none"), PrefixArm("none"))}
    assert list(steps.values()) == [2, 1, 1]
    small = [world.make(PrefixArm("small", captions=captions)).steps for captions in ("all", "none")]
    assert small == [4, 2]


def test_prefixes_with_shifted_names_end_in_a_table(prefix_options):
    (table,) = find_study("prefix/table-7").load()(prefix_options).tables
    ours = {row[:4]: row[4:8] for row in table.rows}
    assert table.notes == ("one training seed; 80 templates per class",)
    assert "not run" not in ours["IN-21K + CC-12M", "", "✓", "caption"][::2]  # three classes have no top-5
    assert set(ours["IN-21K + CC-12M", "✓", "✓", "caption"]) == {"not run"}  # labels-renamed was not given


@pytest.mark.parametrize("name", ["table-8", "figure-3", "figure-8"])
def test_retrieval_attention_and_maps_of_the_users_data_end_in_a_report(prefix_options, name):
    """These studies reuse the models of Table 7."""
    report = find_study(f"prefix/{name}").load()(prefix_options)
    (table,) = report.tables
    assert table.rows
    assert {cell for row in table.rows for cell in row} & {"not run"} == set()
    assert all((prefix_options.out / figure).is_file() for figure in report.figures)
    assert table.notes in ((), ("one training seed",))  # no prompts in templates here


@pytest.mark.parametrize(("number", "lacking"), [(5, "shift"), (7, "synonyms"), (8, "search")])
def test_missing_sources_of_a_table_are_reported_before_training(prefix_options, monkeypatch, number, lacking):
    monkeypatch.setattr(prefix_world, "run", lambda *words: pytest.fail("trained"))
    data = tuple(source for source in prefix_options.data if not source.startswith(lacking))
    with pytest.raises(UserError, match=f"prefix/table-{number} --scale full needs .*--data {lacking}=SOURCE"):
        find_study(f"prefix/table-{number}").load()(replace(prefix_options, data=data))


@pytest.fixture(scope="module")
def reco_options(own, papers, tmp_path_factory):
    """Three of the paper's sets; the first is not in Figure 3 or Table 4."""
    names = ("stanford-cars", "cub-200-2011", "stanford-dogs")
    sets = tuple(TinySet(name, f"{own}/one.csv") for name in names)
    search = replace(SearchSettings(), models=(f"{own}/model",))
    data, out = (f"{own}/one.csv", f"{own}/two.csv"), tmp_path_factory.mktemp("reco")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "suite_entries", lambda name: sets)
        patch.setattr(reco_world, "NEAR", 0.99998)  # pictures of one class are alike here
        arms = ("none", "transformer / uni / cross", "mean / uni / cross")
        patch.setattr(reco_tables, "SEARCHES", {arm: reco_tables.SEARCHES[arm] for arm in arms})
        patch.setattr(reco_tables, "TRAININGS", {reco_tables._MODEL: None, "RECO": FusionArm()})
        patch.setattr(reco_world, "Learning", partial(Learning, epochs=1))
        yield StudyOptions("full", out, data=data, search=search)


def test_recos_columns_match_the_papers(reco_options):
    (table,) = find_study("reco/table-3").load()(reco_options).tables
    assert table.columns[3:6] == ("stanford-cars", "cub-200-2011", "avg. rel.")  # the paper's five have no dogs
    alone, *_, paper = table.notes
    assert (alone, paper) == ("each fusion trained once; gains over the model alone", "paper: as printed there")
    (table,) = find_study("reco/table-4").load()(reco_options).tables
    ours = ("cub-200-2011", "stanford-dogs", "text to image R@1")
    assert table.columns[1:10] == tuple(f"{name}: {mode}" for name in ours for mode in reco_tables.MODES)
    assert all(float(cell) >= 0 for cell in table.rows[3][1:10])
    assert table.notes[0] == "each fusion trained once"  # a table without gains
    assert "text to image: one:test; the paper's column is COCO" in table.notes


def test_recos_figures_use_the_papers_set(reco_options, own):
    report = find_study("reco/figure-3").load()(reco_options)
    left, middle, right = report.tables
    assert left.title == "Figure 3, left. Additional training (cub-200-2011)"
    assert (middle.columns[1:], right.columns[1:]) == (("100%",), ("k = 1", "k = 2", "k = 5", "k = 10"))
    assert report.notes[-1] == (
        "left out, since 12 rows can be read: 1% of the index, 10% of the index, k = 20, k = 50"
    )  # fmt: skip
    (table,) = find_study("reco/figure-4").load()(reco_options).tables
    said = f"percent of the 10 nearest rows whose captions say the query's class; {own.name}/model, cub-200-2011"
    assert table.notes == (said, "one model")


def test_test_pictures_are_neither_in_training_nor_in_the_index(reco_options, own):
    """A source with a given split is trained on entirely, so it has no pictures left to search."""
    named = replace(reco_options, data=(f"{own}/one.csv?split=train",))
    (bench,) = reco_world.benches(named, f"{own.name}/model", classify=False)
    assert bench.pool is None
    same = replace(bench, memory=(open_source(f"{own}/one.csv", split="test"),), tasks={}, near=0.999999)
    same = replace(same, pool=retrieval_task(f"{own}/one.csv", split="test"))
    assert len(same.near_duplicates(1.0, "retrieval")) == same.rows_of(1.0) == 6
    with pytest.raises(UserError, match="0 pictures in the index remain"):
        same.encoder(FusionArm(), "retrieval")


def test_reco_recognizes_the_users_entities(own, reco_options, tmp_path, capsys):
    words = ["reco/table-2", "--scale", "full", "--data", f"{own}/two.csv"]
    words += ["--entities", f"{own}/entities.csv", "--search.models", f"{own}/model", "--out", str(tmp_path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reco_world, "NEAR", 2.0)
        assert cli.main(words) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "reco-table-2.json").read_text())
    (table,) = report["tables"]
    assert "3 entities, all of them candidates; 1 are unseen" in table["notes"]
    assert table["rows"][1][0] == f"{own.name}/model + RECO"
    assert table["notes"][0] == "each fusion trained once; gains over the model alone"
    assert "0 of 12 rows in the index are near-duplicates of pictures of entities and excluded" in table["notes"]
    assert report["command"].startswith(
        "recollect-papers reco/table-2 --scale full --data two.csv --entities entities.csv"
    )
    assert str(own) not in (tmp_path / "reco-table-2.json").read_text()
