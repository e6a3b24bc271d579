"""Towers that learn together with what reads an index for them (RA-CLIP)."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from recollect import cli
from recollect.cli.train_hooks import measuring_hooks
from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.index import Index
from recollect.models import build_model, load_model
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder, open_encoder
from recollect.training.assembly import sample_mark
from recollect.training.loop import Hook, train
from recollect.training.options import Data, Model
from recollect.training.ranks import ProcessRanks
from recollect.training.recipes import RECIPES
from recollect_papers.reco import ra_clip as joint

K = 3
MOST = 0.999999  # of random filters all pictures look alike: only a picture itself is so near to itself


def noise(number):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A table of 24 pictures, of which one cannot be read, 12 of them in an index; and the model that searches it."""
    folder = tmp_path_factory.mktemp("joint")
    for name, numbers in (("pairs", range(24)), ("reference", range(12))):
        lines = ["path,caption"]
        for number in numbers:
            noise(number).save(folder / f"{number}.png")
            lines.append(f"{number}.png,noise of kind {number // 2}")
        (folder / f"{name}.csv").write_text("\n".join(lines))
    build_model("tiny-conv", texts=[f"noise of kind {number}" for number in range(12)]).save(folder / "searcher")
    Index.build(open_source(str(folder / "reference.csv")), folder / "searcher", out=folder / "index")
    (folder / "5.png").write_bytes(b"broken")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


def recipe_of(world, **changed):
    data = Data(captions=(str(world / "pairs.csv"),), broken_share=0.1)
    plain = replace(joint.joint_recipe(RECIPES["clip-tiny"]()), steps=4, batch_size=8, log_every=1, checkpoint_every=2)
    return replace(plain, **{"data": data, "index": str(world / "index"), "k": K, "max_score": MOST} | changed)


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    measure = measuring_hooks((f"retrieval={world}/reference.csv?split=all",))
    joint.train_joint(recipe_of(world), out, device="cpu", hooks=[Hook(4, measure)])
    return out


def readable_rows(source, locked):
    """By the name that a batch gives a sample, its row; a locked tower numbers those that can be read."""
    readable = [row for row in range(24) if row != 5]
    return {(str(place) if locked else source.read(row).id): row for place, row in enumerate(readable)}


@pytest.mark.parametrize(("start", "locked"), [("tiny", "none"), ("glyph-random", "image")])
def test_a_picture_reads_the_pairs_that_look_like_it_and_not_itself(world, monkeypatch, start, locked):
    made = []
    monkeypatch.setattr(joint, "train", lambda recipe, out, assemble, **rest: made.append((recipe, assemble)) or out)
    joint.train_joint(recipe_of(world, model=Model(start, locked=locked)), world / "unused", device="cpu")
    recipe, assemble = made[0]
    parts = assemble(recipe, ProcessRanks(0, 1, torch.device("cpu")), None)
    inputs, _ = next(iter(parts.feed(0, 1)))

    searcher, source = load_model(world / "searcher", "cpu"), open_source(str(world / "pairs.csv"))
    images = searcher.embed_images([noise(row) for row in range(12)])
    texts = searcher.embed_texts([f"noise of kind {row // 2}" for row in range(12)])
    rows = {sample_mark(source.name, name): row for name, row in readable_rows(source, locked == "image").items()}
    for mark, picture in zip(inputs.duplicate_ids[:, 0].tolist(), inputs.beside["pictures"].tolist(), strict=True):
        cosines = (searcher.embed_images([noise(rows[mark])]).double() @ images.double().T)[0]
        near = cosines.masked_fill(torch.arange(12) == rows[mark], -1).argsort(descending=True)[:K]
        read = parts.model.values[parts.model.rows[picture]]
        torch.testing.assert_close(read, torch.cat([texts[near], images[near]]), atol=2**-11, rtol=0)  # kept at half
    # the vectors of texts and of pictures pass through maps of their own, beside the tower's own embedding
    reading, towers = parts.model, parts.model.towers
    pixels, beside = inputs.images, inputs.beside["pictures"]
    with torch.no_grad():
        own = functional.normalize(towers.eval().encode_images(pixels), dim=1)
        found = reading.values[reading.rows[beside]]
        maps = reading.fusion.adapters
        tokens = [own[:, None], found[:, :K] @ maps["text"].weight.T, found[:, K:] @ maps["image"].weight.T]
        wanted = functional.normalize(reading.fusion.blocks["image"](torch.cat(tokens, dim=1)), dim=1)
        torch.testing.assert_close(reading.encode_images(pixels, beside), wanted)


def test_towers_and_fusion_learn_and_open_as_an_encoder_that_reads(world, trained):
    model, fusion = load_model(trained / "model", "cpu"), FusionModule.open(trained / "model" / joint.FUSION)
    searcher, index = load_model(world / "searcher", "cpu"), Index.open(world / "index")
    assert fusion.settings == FusionSettings(
        model.width, read="both", modalities="image", start="gate", reads=searcher.width
    )
    assert (fusion.model, fusion.trained["searcher"]) == (model.fingerprint, searcher.fingerprint)
    told = "".join(file.read_text() for file in (trained / "model").rglob("*.json"))
    assert str(world) not in told + (trained / "model" / "README.md").read_text()  # what may be pushed
    fresh = FusionModule(fusion.settings)
    assert fusion.blocks["image"].output.weight.abs().max() > 0 == fresh.blocks["image"].output.weight.abs().max()
    enhanced = open_encoder(model, world / "index", trained / "model" / joint.FUSION, "image", K, searcher=searcher)
    pictures = [noise(30), noise(31)]
    asked = searcher.embed_images(pictures)
    hits = index.lookup(asked, K, read="text")
    read = [
        torch.stack([torch.from_numpy(index.vectors(ids.tolist(), side)) for ids in hits.ids])
        for side in ("text", "image")
    ]
    tokens = torch.cat([model.embed_images(pictures)[:, None], fusion.adapt("image", torch.cat(read, dim=1))], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(enhanced.embed_images(pictures), fusion("image", tokens), atol=1e-5, rtol=0)
    assert torch.equal(enhanced.embed_texts(["noise"]), model.embed_texts(["noise"]))
    assert (
        enhanced.fingerprint
        != open_encoder(
            model, world / "index", trained / "model" / joint.FUSION, "image", K + 1, searcher=searcher
        ).fingerprint
    )
    with pytest.raises(UserError, match="two models embed each picture"):
        enhanced.embed_images(torch.zeros(1, 3, 32, 32))


def test_a_run_that_was_stopped_ends_with_the_same_weights(world, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "model"), shutil.rmtree(run / "checkpoints" / "step-00000004")
    joint.train_joint(recipe_of(world), run, resume=True, device="cpu")
    for file in ("model.safetensors", f"{joint.FUSION}/fusion.safetensors"):
        assert (run / "model" / file).read_bytes() == (trained / "model" / file).read_bytes()
    assert (run / "metrics.jsonl").read_text().count("\n") == 4


def test_commands_read_with_it_and_find_what_was_measured_while_it_trained(world, trained, tmp_path):
    reads = ("--index", world / "index", "--fusion", trained / "model" / joint.FUSION)  # and K as it was trained with
    asked = (
        "evaluate",
        "retrieval",
        trained / "model",
        "--data",
        f"{world}/reference.csv?split=all",
        "--out",
        tmp_path,
    )
    assert cli.main([str(word) for word in (*asked, *reads)]) == 0
    result = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert [result["settings"]["reads"][name] for name in ("mode", "k")] == ["image", K]
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    (figures,) = [line["evaluation"] for line in lines if "evaluation" in line]
    values = {f"{row['direction']} R@{row['k']}": row["value"] for row in result["rows"] if row["domain"] == "all"}
    assert {name.rpartition("/")[2]: value for name, value in figures.items()} == pytest.approx(values)


def test_a_run_without_the_index_is_refused(world):
    with pytest.raises(ValueError, match="JointRecipe"):
        train(recipe_of(world), world / "unused")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"index": ""}, "index"),
        ({"k": 50}, "k = 50"),
        ({"compile": True}, "compile"),
        ({"model": Model("tiny", lora=2)}, "lora"),
        ({"data": Data(captions=("glyphs:captions",))}, "an endless stream"),
        ({"searcher": "{run}/model"}, "another model"),
        ({"k": 0}, "k 0"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(world, trained, tmp_path, changed, message):
    given = {name: value.replace("{run}", str(trained)) if isinstance(value, str) else value
             for name, value in changed.items()}  # fmt: skip
    with pytest.raises(UserError, match=message):
        joint.train_joint(recipe_of(world, **given), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_one_line_and_leaves_no_run(world, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(joint.FeatureStore, "save", full)
    with pytest.raises(UserError, match="No space left"):
        joint.train_joint(recipe_of(world), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_the_index_that_it_began_with_only(world, trained, tmp_path):
    run, index = tmp_path / "run", tmp_path / "index"
    shutil.copytree(trained, run), shutil.copytree(world / "index", index)
    shutil.rmtree(run / "model"), shutil.rmtree(run / "checkpoints" / "step-00000004")
    kept = world / "index"
    changed = Index.open(kept)
    changed.remove(changed.ids[:1])
    try:
        with pytest.raises(UserError, match="index"):
            joint.train_joint(recipe_of(world), run, resume=True, device="cpu")
        assert not (run / "model").exists()
    finally:
        shutil.rmtree(kept), shutil.copytree(index, kept)


def test_a_fusion_and_an_index_that_do_not_belong_together_are_refused(world, trained):
    model, searcher = load_model(trained / "model", "cpu"), load_model(world / "searcher", "cpu")
    index, fusion = Index.open(world / "index"), FusionModule.open(trained / "model" / joint.FUSION)
    with pytest.raises(UserError, match="has to search"):
        RetrievalEnhancedEncoder(model, index, fusion, "image", K)
    with pytest.raises(UserError, match="Leave out the searcher"):
        RetrievalEnhancedEncoder(model, index, FusionModule(FusionSettings(model.width)), "image", K, searcher=searcher)
    with pytest.raises(UserError, match="another model"):
        RetrievalEnhancedEncoder(model, index, fusion, "image", K, searcher=model)
