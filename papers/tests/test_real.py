"""Studies on features of strong towers: smoke runs on synthetic vectors, and shared parts."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect_papers import cli
from recollect_papers.measurements import Measurements
from recollect_papers.prefix import real as prefix
from recollect_papers.real.arms import ArmRunner, choose
from recollect_papers.real.data import SyntheticData, labeled, open_data
from recollect_papers.real.heads import FeaturePairs, HeadRecipe, batches, fit, training_pairs
from recollect_papers.real.measure import by_name, few_shot, measure, recall
from recollect_papers.studies import find_study
from recollect_papers.study import StudyOptions

SMALL = HeadRecipe(width=16, hidden=32, batch=64, steps=10)


@pytest.fixture(scope="module")
def data():
    return SyntheticData()


@pytest.fixture(scope="module")
def pairs(data):
    return training_pairs(data, data.roles.training)


@pytest.mark.parametrize(
    "name",
    [
        "lixp/real",
        "lixp/unlocked",
        "lixp/towers",
        "lixp/variations",
        "lixp/both",
        "lixp/post-train",
        "lixp/methods",
        "prefix/real",
        "prefix/trained",
        "reco/real",
        "reco/reading",
        "reco/starter",
        "efsa/real",
    ],
)
def test_a_second_run_of_a_study_reads_cached_results(name, tmp_path):
    options = StudyOptions("smoke", tmp_path, seeds=1)
    report = find_study(name).load()(options)
    assert report.tables
    assert all(any(row[1:]) for table in report.tables for row in table.rows)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*-seed*.json")}
    assert files
    again = find_study(name).load()(options)
    assert again.tables == report.tables
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*-seed*.json")} == files


@pytest.mark.parametrize("name", ["lixp/real", "prefix/real"])
def test_a_missing_data_option_is_reported(name, tmp_path, capsys):
    assert cli.main([name, "--scale", "small", "--out", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"pairs\.parquet"):
        open_data([str(tmp_path)], smoke=False).get("pairs")


def test_the_seed_determines_the_model(data, pairs):
    features = data.get("b").images
    one, same, other = (fit(pairs, SMALL, seed, data).embed_images(features) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_lit_does_not_change_image_features(data, pairs):
    """LiT embeds images like the tower, and a residual head does before training."""
    features = data.get("b").images
    tower = fit(pairs, HeadRecipe("none", steps=0), 0, data).embed_images(features)
    lit = fit(pairs, replace(SMALL, image="none"), 0, data).embed_images(features)
    assert torch.equal(tower, lit)
    still = fit(pairs, replace(SMALL, image="residual", learning_rate=0.0), 0, data).embed_images(features)
    assert torch.allclose(tower, still, atol=1e-6)


def test_training_and_context_change_the_model(data, pairs):
    def recalled(recipe):
        return recall(fit(pairs, recipe, 0, data), data.get("pairs"), "test")[10]

    longer = replace(SMALL, steps=150, learning_rate=1e-2)
    assert recalled(longer) > 1.5 * recalled(replace(SMALL, steps=1))
    plain, context = (fit(pairs, replace(SMALL, alpha=alpha), 0, data) for alpha in (None, 0.5))
    features = data.get("b").images
    assert not torch.allclose(plain.embed_images(features), context.embed_images(features))
    assert "tau_context" in context.report


def test_post_training_continues_from_a_copy_of_the_model(data, pairs):
    first = fit(pairs, SMALL, 0, data)
    before = first.embed_images(data.get("b").images)
    further = training_pairs(data, ["a"])
    still = fit(further, replace(SMALL, learning_rate=0.0), 0, data, first)
    assert torch.equal(still.embed_images(data.get("b").images), before)
    moved = fit(further, SMALL, 0, data, first)
    assert not torch.equal(moved.embed_images(data.get("b").images), before)
    assert torch.equal(first.embed_images(data.get("b").images), before)


def test_batches_contain_each_picture_once_per_epoch_with_one_of_its_texts():
    owner = torch.arange(10).repeat_interleave(3)
    pairs = FeaturePairs(torch.zeros(10, 2), torch.zeros(30, 2), owner)
    made = list(batches(pairs, HeadRecipe(batch=5, steps=4), 0))
    for first, second in zip(made[::2], made[1::2], strict=True):
        assert sorted([*first[0].tolist(), *second[0].tolist()]) == list(range(10))
    assert all(torch.equal(owner[texts], rows) for rows, texts in made)
    assert len({tuple(texts.tolist()) for _, texts in made}) == 4


def test_batches_of_groups():
    pairs = FeaturePairs(
        torch.zeros(40, 2), torch.zeros(40, 2), torch.arange(40), groups=(torch.arange(40) >= 30).long()
    )
    mixed = list(batches(pairs, HeadRecipe(batch=8, steps=5, sampling="mixed"), 0))
    assert all((rows >= 30).sum() == 4 and len(rows) == 8 for rows, _ in mixed)
    turns = [
        set((rows >= 30).tolist()) for rows, _ in batches(pairs, HeadRecipe(batch=8, steps=4, sampling="debiased"), 0)
    ]
    assert turns == [{False}, {True}, {False}, {True}]


def test_measures_match_explicit_counts(data, pairs):
    model, each = fit(pairs, SMALL, 0, data), data.get("b")
    rows = labeled(each, "test")
    images = model.embed_images(each.images[rows])
    names = model.embed_texts([f"a photo of a {name}." for name in each.class_names])
    hits = [int((image @ names.T).argmax()) == label for image, label in zip(images, each.labels[rows], strict=True)]
    assert by_name(model, each, ("test",)) == pytest.approx(100 * np.mean(hits))
    pool = data.get("pairs")
    rows = pool.rows("test")
    scores = (
        model.embed_texts([pool.captions[row][0] for row in rows]) @ model.embed_images(pool.images[rows]).T
    ).numpy()
    ranks = [(-own).argsort(kind="stable").tolist().index(number) for number, own in enumerate(scores)]
    assert recall(model, pool, "test")[10] == pytest.approx(100 * np.mean(np.array(ranks) < 10))
    found = few_shot(model, each, ("test",))
    assert found[1] < found[16] <= 100


def test_settings_are_chosen_on_the_choosing_sets(tmp_path, data):
    runner, found = ArmRunner(data, tmp_path), Measurements()
    candidates = {"few": SMALL, "many": replace(SMALL, steps=100, learning_rate=1e-2)}
    best, recipe = choose(runner, "arm", candidates, found, 1)
    assert recipe == candidates[best]
    assert {address["part"] for address, _, _ in found.rows()} == {"choosing"}
    pools = [{"arm": f"arm: {name}", "measure": "R@10", "part": "choosing", "set": "pairs"} for name in candidates]
    scores = {name: found.summary(at).mean for name, at in zip(candidates, pools, strict=True)}
    assert scores["many"] > scores["few"]
    assert best == "many"


def test_a_model_without_text_side_has_only_few_shot_figures(data, pairs):
    tower = fit(pairs, HeadRecipe("none", steps=0), 0, data)
    found = measure(tower, data, "testing", named=False)
    assert {address["measure"] for address, _, _ in found.rows()} == {"few-shot"}


def test_figures_are_cached_by_settings(tmp_path, data):
    runner, made = ArmRunner(data, tmp_path), []

    def make():
        made.append(1)
        found = Measurements()
        found.add({"set": "a"}, 0, float(len(made)))
        return found

    for settings in ("one", "one", "two"):
        runner.figures("arm", 0, settings, make)
    assert len(made) == 2


def test_captioned_pictures_are_negatives_of_each_other_also_with_labels(data):
    pairs = prefix._pairs(data, prefix.ARMS[1])
    captions, labels = (pairs.classes[pairs.groups == group].tolist() for group in (0, 1))
    assert len(set(captions)) == len(captions)
    assert not set(captions) & set(labels)
    assert len(set(labels)) < len(labels)


def test_both_parts_of_a_split_tower_give_the_same_features():
    from recollect.models.starter import empty_starter
    from recollect_papers.real.data import TowerEnd, TowerStart

    tower = empty_starter(1).model.vision_model.double().eval()
    pixels = torch.randn(2, 3, 224, 224, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = tower(pixel_values=pixels).last_hidden_state.mean(dim=(2, 3))
        end = TowerEnd(tower).train()
        parts = end(TowerStart(tower)(pixels).pooler_output)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    assert not any(module.training for module in end.layers.modules())


def test_a_stage_trains_on_the_features_that_it_computes():
    """In training it rounds to bfloat16 (8 bits); 40 pictures are more than one chunk."""
    from recollect.models.starter import empty_starter
    from recollect_papers.real.data import TowerEnd

    torch.manual_seed(0)
    end = TowerEnd(empty_starter(1).model.vision_model)
    maps = torch.rand(40, 192 * 49)
    trained = end(maps)
    trained.sum().backward()
    assert all(weight.grad is not None for weight in end.parameters())
    with torch.no_grad():
        exact = torch.cat([end(each) for each in maps.split(1)])
    errors = (trained.detach() - exact).norm(dim=1) / exact.norm(dim=1)
    assert errors.max() < 16 * 2**-8  # a rounding in each of the stage's layers, none of which enlarges it


def test_whole_towers_give_the_starters_features_and_train(monkeypatch):
    from recollect.models.starter import empty_starter
    from recollect_papers.real import data as module

    monkeypatch.setattr(module, "_CHUNK", 2)
    encoder = empty_starter(1)
    towers = {kind: module.WholeTower(empty_starter(1), kind).train() for kind in ("image", "text")}
    draw = np.random.default_rng(0)
    pictures = [Image.fromarray(draw.integers(0, 256, (224, 224, 3), dtype=np.uint8)) for _ in range(3)]
    texts = ["a dog", "two dogs run across a very green field", "rain"]
    ids = encoder.tokenize(texts)["input_ids"].int()
    inputs = {
        "image": torch.from_numpy(np.stack([np.asarray(each) for each in pictures])),
        "text": torch.nn.functional.pad(ids, (0, 5), value=module.PADDING),
    }
    expected = {"image": encoder.pooled_images(pictures), "text": encoder.pooled_texts(texts)}
    for kind, tower in towers.items():
        with torch.no_grad():
            found = tower(inputs[kind])
        torch.testing.assert_close(found, expected[kind], rtol=1e-3, atol=1e-4)
        trained = tower(inputs[kind])  # bfloat16, which has 8 bits
        errors = (trained.detach() - found).norm(dim=1) / found.norm(dim=1)
        assert errors.max() < 0.1
        trained.sum().backward()
        assert sum(float(each.grad.norm()) for each in tower.parameters() if each.grad is not None) > 0
        assert not any(each.training for each in tower.modules())


def test_stages_join_for_the_last_steps():
    data = SyntheticData("pixels")
    pairs = training_pairs(data, data.roles.training)
    recipe = HeadRecipe(width=16, hidden=32, batch=32, steps=6)
    locked = fit(pairs, recipe, 0, data)
    idle, late = (fit(pairs, replace(recipe, stage_rate=rate, stage_steps=2), 0, data) for rate in (0.0, 1e-2))
    for side in ("image", "text"):
        weights = [getattr(model, side).state_dict() for model in (locked, idle, late)]
        for name, value in weights[0].items():
            torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)
        still, moved = (each["stage.weight"] for each in weights[1:])
        assert torch.equal(still, torch.eye(len(still)))
        # AdamW moves a weight by at most about its rate in each step; the second of two has half of it.
        assert 0 < (moved - still).abs().max() < 1e-2 * 2


def test_a_prefix_token_follows_the_start_token():
    tokens = torch.tensor([[101, 7, 8, 102, 0], [101, 9, 102, 0, 0]], dtype=torch.int32)
    found = prefix.with_kind(tokens, [1, 0])
    caption, label = prefix.PREFIX_TOKENS
    assert found.tolist() == [[101, label, 7, 8, 102, 0], [101, caption, 9, 102, 0, 0]]
    assert found.dtype == tokens.dtype


def test_pixels_and_tokens_of_a_set_give_the_features_of_the_towers(tmp_path):
    from recollect_papers.real.data import Roles, StarterData

    draw = np.random.default_rng(0)
    pictures = [Image.fromarray(draw.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(3)]
    files = []
    for each in pictures:
        each.save(buffer := io.BytesIO(), "PNG")
        files.append(buffer.getvalue())
    captions = [["a red dog", "a dog"], ["rain"], ["two green boats on a very blue lake"]]
    table = {"image": files, "captions": captions, "split": ["train", "train", "test"]}
    pq.write_table(pa.table(table), tmp_path / "some.parquet")
    roles = Roles(("some",), {}, {}, ("some", "test"), {})
    features, pixels = (StarterData(tmp_path, roles, inputs) for inputs in ("features", "pixels"))
    one, other = features.get("some"), pixels.get("some")
    assert one.captions == other.captions == [tuple(each) for each in captions]
    assert one.splits.tolist() == other.splits.tolist() == ["train", "train", "test"]
    with torch.no_grad():
        torch.testing.assert_close(pixels.stage(other.images), one.images, rtol=1e-3, atol=1e-4)
        texts = ["a dog", "two green boats"]
        torch.testing.assert_close(pixels.text_stage(pixels.texts(texts)), features.texts(texts), rtol=1e-3, atol=1e-4)
