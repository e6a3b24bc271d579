"""Training a fusion: neighbors of training pairs, the loss, and resuming."""

import json
import operator
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from index_rows import random_unit, unit
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.index import Index, Rows
from recollect.index.rows import COLUMNS
from recollect.reco import learning
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recollect.reco.learning import FusionRecipe, train_fusion
from recollect.reco.neighbors import Neighbors, balanced_mean, balanced_weight, find_neighbors
from recollect.reco.newness import Disturbance, Newness
from recollect.reco.objective import TERMS, FusionObjective
from recollect.reco.pairs import Pairs
from recollect.training.optimizer import Optimizer
from recollect.training.options import Data
from slow_losses import contrastive_loss

SIDES = {"image": "images", "text": "texts"}


def loop_neighbors(pairs, stored, searched, taken, own, k, max_score, score_of):
    """For each pair, sort all pictures, skip its own and near-duplicates, and take the vectors to read."""
    read = []
    for row, id in enumerate(pairs.pictures):
        cosines = getattr(stored, SIDES[searched]).astype(np.float64) @ own[row].astype(np.float64)
        images = stored.images.astype(np.float64) @ pairs.images[row].astype(np.float64)
        near = cosines if score_of == "searched" else images
        order = [other for other in np.argsort(-cosines) if near[other] < max_score and stored.pictures[other] != id]
        slots = []
        for modality in taken:
            found = [getattr(stored, SIDES[modality])[other] for other in order[:k]]
            slots += found + [np.zeros_like(own[row])] * (k - len(found))
        read.append(slots)
    return np.array(read)


@pytest.mark.parametrize(
    ("search", "read"), [("uni", "cross"), ("cross", "cross"), ("uni", "uni"), ("cross", "uni"), ("uni", "both")]
)
@pytest.mark.parametrize("max_score", [0.94, 0.2, -0.3])
@pytest.mark.parametrize("score_of", ["image", "searched"])
def test_neighbors_match_a_loop_over_the_index(on_disk, pairs, search, read, max_score, score_of):
    some, everything = pairs(12, first=30), pairs(40)  # ten of the twelve are in the index
    settings = FusionSettings(16, search=search, read=read)
    found = find_neighbors(some, on_disk, settings, 5, max_score, score_of)
    for modality, own in (("image", some.images), ("text", some.texts)):
        expected = loop_neighbors(
            some, everything, settings.searched(modality), settings.taken(modality), own, 5, max_score, score_of
        )
        tokens = found.tokens(modality, torch.arange(12))
        np.testing.assert_array_equal(tokens[:, 0], own)
        np.testing.assert_array_equal(tokens[:, 1:], expected)


def test_a_text_reads_other_pictures_with_its_caption_in_training_as_in_testing():
    """Different pictures can share a caption and so a text vector, with cosine 1."""
    generator = np.random.default_rng(0)
    texts = np.repeat(random_unit(generator, 5, 16), 8, axis=0)
    captions = [f"caption {row // 8}" for row in range(40)]
    ids = [f"pair:{row}" for row in range(40)]
    stored = Pairs(random_unit(generator, 40, 16), texts, captions, ids, "model-a")
    memory = stored.index()

    tested = stored.take(range(0, 40, 8))
    encoder = RetrievalEnhancedEncoder(Frozen(16), memory, FusionModule(FusionSettings(16)), "text", 4)
    for pair, values in zip(range(5), encoder.read("text", torch.from_numpy(tested.texts)), strict=True):
        own_caption = stored.images[8 * pair : 8 * pair + 8]
        assert all((own_caption == value).all(1).any() for value in values)

    def own_captions_read(score_of):
        found = find_neighbors(stored, memory, FusionSettings(16), 4, 0.94, score_of)
        read = found.token_captions("text", torch.arange(40))
        return float((read[:, 1:] == read[:, :1]).float().mean())

    assert own_captions_read("image") == 1
    assert own_captions_read("searched") == 0  # as in the paper: read in testing, but never in training


def test_a_picture_never_reads_its_own_captions():
    generator = np.random.default_rng(1)
    images = np.repeat(random_unit(generator, 6, 16), 3, axis=0)
    ids = [f"photo-{row // 3}.png" for row in range(18)]
    texts = random_unit(generator, 18, 16)
    stored = Pairs(images, texts, [f"caption {row}" for row in range(18)], ids, "model-a")
    index = stored.index()
    assert len(index) == 6
    found = find_neighbors(stored, index, FusionSettings(16), 5, 1.01)
    means = texts.reshape(6, 3, 16).mean(axis=1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    for row in range(18):
        own = texts[row // 3 * 3 : row // 3 * 3 + 3]
        read = found.tokens("image", torch.tensor([row]))[0, 1:].numpy()
        assert np.allclose(np.sort(read @ means.T, axis=1)[:, -1], 1, atol=1e-6)  # means of each picture's captions
        assert not np.isclose(read @ means[row // 3], 1, atol=1e-6).any()
        read = found.tokens("text", torch.tensor([row]))[0, 1:].numpy()
        assert not np.isclose(read @ images[row], 1, atol=1e-6).any()
        assert len(np.unique(read.round(6), axis=0)) == 5  # distinct, even if several captions of one are near
        assert own.shape == (3, 16)
    assert len(torch.unique(found.pictures)) == 6
    assert len(torch.unique(found.captions)) == 18


def test_saved_neighbors_open_unchanged(on_disk, pairs, tmp_path):
    found = find_neighbors(pairs(8, first=36), on_disk, FusionSettings(16), 3)
    found.save(tmp_path / "n.safetensors")
    again = Neighbors.open(tmp_path / "n.safetensors")
    everything = torch.arange(8)
    for modality in ("image", "text"):
        assert torch.equal(again.tokens(modality, everything), found.tokens(modality, everything))
        assert torch.equal(again.token_captions(modality, everything), found.token_captions(modality, everything))
    assert torch.equal(again.pictures, found.pictures)
    (tmp_path / "n.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="cannot be read"):
        Neighbors.open(tmp_path / "n.safetensors")


def info_nce(images, texts, scale, groups=None):
    """Compute the symmetric softmax loss by loops; pairs that share a group are not negatives."""
    copies = groups and [[any(map(operator.eq, own, other)) for other in groups] for own in groups]
    return float(contrastive_loss("softmax", images, texts, scale, copies=copies))


@pytest.mark.parametrize("terms", [TERMS, ("refined",), ("image", "text"), ("text",)])
def test_the_loss_is_the_sum_of_its_terms(terms):
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(6, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    objective = FusionObjective(terms, scale=3.0).double()
    loss, report = objective(images, texts)
    halves = [part / part.norm(dim=1, keepdim=True) for both in (images, texts) for part in both.chunk(2, dim=1)]
    refined_images, own_images, refined_texts, own_texts = halves
    expected = {
        "refined": info_nce(refined_images, refined_texts, 3.0),
        "image": info_nce(refined_images, own_texts, 3.0),
        "text": info_nce(own_images, refined_texts, 3.0),
    }
    assert loss.item() == pytest.approx(sum(expected[term] for term in terms), rel=1e-6)
    for term in terms:
        assert float(report[f"{term}_loss"]) == pytest.approx(expected[term], rel=1e-6)
    assert set(report) == {"loss", "scale", *(f"{term}_loss" for term in terms)}
    groups = torch.tensor([[0], [1]]).repeat(len(images), 1)[: len(images)]
    _, report = objective(images, texts, labels=groups)
    if "refined" in terms:
        wanted = info_nce(refined_images, refined_texts, 3.0, groups.tolist())
        assert float(report["refined_loss"]) == pytest.approx(wanted, rel=1e-6)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Training and test pairs, and an index that is needed to match images and texts.

    The image and text vectors of a concept are unrelated; only the index, which holds noisy copies of the same pairs,
    links them. Without the index, nothing that helps new concepts can be learned.
    """
    generator = np.random.default_rng(0)

    concepts, width = 300, 32
    keys, values = (generator.normal(size=(concepts, width)) for _ in range(2))

    def pairs(which, noise, name):
        return Pairs(
            unit(keys[which] + noise * generator.normal(size=(len(which), width))),
            unit(values[which] + noise * generator.normal(size=(len(which), width))),
            [f"{name} {number}" for number in range(len(which))],
            [f"{name}:{number}" for number in range(len(which))],
            "model-a",
            sources=[name] * len(which),
        )

    memory = pairs(np.repeat(np.arange(concepts), 3), 0.35, "memory").index()
    memory = memory.save(tmp_path_factory.mktemp("world") / "memory")
    return pairs(np.repeat(np.arange(200), 4), 0.35, "train"), pairs(np.arange(200, 300), 0.35, "test"), memory


class Frozen(Encoder):
    """Placeholder for the model that embedded the world."""

    fingerprint, scale = "model-a", None

    def __init__(self, width=32):
        self.width = width

    def embed_images(self, images):
        raise AssertionError("training reads stored embeddings")

    embed_texts = embed_images


def recipe_of(index, /, **changes):
    recipe = FusionRecipe(
        data=Data(sources=("train",)), index=index.address, fusion=FusionSettings(1, start="embedding"), k=3, epochs=12,
        batch_size=100, mask="none", newness=Newness("none"),
        optimizer=Optimizer(3e-3, weight_decay=1e-5, warmup=0.0), log_every=5, checkpoint_every=1000,
    )  # fmt: skip
    return replace(recipe, **changes)


def recall(fusion, memory, test, mode):
    """Return the share of images whose own text ranks first."""
    found = find_neighbors(test, memory, fusion.settings, 3)
    everything = torch.arange(len(test))
    embeddings = {
        modality: fusion(modality, found.tokens(modality, everything)) if mode in (modality, "both") else own
        for modality, own in (("image", found.images), ("text", found.texts))
    }
    return float((embeddings["image"] @ embeddings["text"].T).argmax(1).eq(everything).float().mean())


def test_a_trained_fusion_uses_index_rows_of_new_concepts(world, tmp_path):
    train, test, memory = world
    folder = train_fusion(recipe_of(memory), Frozen(), train, tmp_path / "run", device="cpu")
    fusion, card = FusionModule.open(folder), (folder / "README.md").read_text()
    assert "FusionModule.open" in card
    assert "SigLIP" not in card.partition("## Recipe")[0]
    with torch.no_grad():
        before = recall(FusionModule(FusionSettings(32, start="embedding")), memory, test, "both")
        after = {mode: recall(fusion, memory, test, mode) for mode in ("image", "text", "both")}
    assert before < 0.05
    assert min(after.values()) > 0.3, after
    assert fusion.model == "model-a"
    assert fusion.trained["k"] == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {"refined_loss", "image_loss", "text_loss", "scale"} <= set(lines[0])


@pytest.mark.parametrize("modality", ["image", "text"])
def test_the_balanced_weight_gives_both_parts_equal_spread(on_disk, pairs, modality):
    some, everything = pairs(12, first=30), pairs(40)
    found = find_neighbors(some, on_disk, FusionSettings(16), 5)
    weight = balanced_weight(found, modality)
    own, others = (some.images, some.texts) if modality == "image" else (some.texts, some.images)
    taken = ["text" if modality == "image" else "image"]
    read = loop_neighbors(some, everything, modality, taken, own, 5, 0.94, "image").sum(axis=1, dtype=np.float64)
    read /= np.linalg.norm(read, axis=1, keepdims=True)
    spreads = [np.std(part.astype(np.float64) @ others.T.astype(np.float64), axis=0).mean() for part in (own, read)]
    assert (1 - weight) * spreads[0] == pytest.approx(weight * spreads[1], rel=1e-5)


def test_a_balanced_mean_measures_its_weight_on_the_index(monkeypatch, pairs):
    index, settings = pairs(40).index(), FusionSettings(16, "mean")
    monkeypatch.setattr("recollect.reco.neighbors._SAMPLE", 40)  # all, so the order does not matter
    found = find_neighbors(pairs(40), index, settings, 5)
    weights = [balanced_weight(found, modality) for modality in ("image", "text")]
    mean = balanced_mean(index, 5)
    assert (mean.settings.kind, mean.settings.width) == ("mean", 16)
    assert mean.settings.weight == round(sum(weights) / 2, 2)
    assert mean.trained["k"] == 5


def test_a_balanced_mean_reads_what_it_will_read(monkeypatch):
    """Few pictures have captions, and a filter leaves out some; texts so alike that the weight would be 1."""
    monkeypatch.setattr("recollect.reco.neighbors._SAMPLE", 2)  # blocks of 16
    draw = np.random.default_rng(0)
    images, texts = (unit((draw.normal(size=(200, 16)) + at).astype(np.float32)) for at in (0.0, 0.5))
    captions = [(f"text {row}",) if row % 20 == 0 else () for row in range(200)]
    rows = Rows(image_vectors=images, ids=[f"{row:03}" for row in range(200)], captions=captions,
                caption_vectors=[texts[row][None] if each else texts[:0] for row, each in enumerate(captions)],
                metadata=[{"half": row // 100} for row in range(200)])  # fmt: skip
    index = Index.create(width=16, model="m")
    index.insert(rows)
    assert 0 < balanced_mean(index, 3).settings.weight < 1
    found = []
    monkeypatch.setattr(
        "recollect.reco.neighbors.balanced_weight", lambda neighbors, side: found.append(neighbors) or 1.0
    )
    assert balanced_mean(index, 3, "half = 1").settings.weight == 0.99
    allowed = {row.tobytes() for row in np.concatenate([images[100:], texts[100:]]).astype(np.float32)}
    read = found[0].values["image"][1:].numpy()
    assert {row.tobytes() for row in read} <= allowed
    with pytest.raises(UserError):
        balanced_mean(index, 3, "half = 2")


@pytest.mark.parametrize("weight", [None, 0.2])
def test_a_gate_starts_at_its_weight(world, tmp_path, weight):
    train, _, memory = world
    still = Optimizer(1e-6, weight_decay=0.0, warmup=0.0)
    recipe = recipe_of(memory, epochs=1, fusion=FusionSettings(1, weight=weight), optimizer=still)
    fusion = FusionModule.open(train_fusion(recipe, Frozen(), train, tmp_path / "run", device="cpu"))
    neighbors = Neighbors.open(tmp_path / "run.neighbors" / "neighbors.safetensors")
    for modality, block in fusion.blocks.items():
        expected = weight or balanced_weight(neighbors, modality)
        assert block.gate.sigmoid().item() == pytest.approx(expected, abs=1e-3)
    assert abs(balanced_weight(neighbors, "image") - 0.5) > 1e-2, "must differ from an untouched gate"


@pytest.mark.parametrize(
    "changes",
    [{}, {"newness": Newness("offsets"), "mask": "both", "fusion": FusionSettings(1)}],
    ids=["paper", "offsets"],
)
def test_an_interrupted_run_resumes_to_the_same_weights(world, tmp_path, monkeypatch, changes):
    train, _, memory = world
    recipe = recipe_of(memory, epochs=4, checkpoint_every=10, **changes)
    whole = train_fusion(recipe, Frozen(), train, tmp_path / "whole", device="cpu")

    feed = learning._feed

    def stopping(*parts):
        inner = feed(*parts)

        def stop(start, last):
            for step, inputs in enumerate(inner(start, last), start):
                if step == 23:
                    raise KeyboardInterrupt
                yield inputs

        return stop

    with monkeypatch.context() as patch:
        patch.setattr(learning, "_feed", stopping)
        with pytest.raises(KeyboardInterrupt):
            train_fusion(recipe, Frozen(), train, tmp_path / "cut", device="cpu")
    searches = []
    monkeypatch.setattr(learning, "find_neighbors", lambda *parts: searches.append(parts))
    cut = train_fusion(recipe, Frozen(), train, tmp_path / "cut", resume=True, device="cpu")
    assert searches == []  # uses the stored neighbors
    one, other = (load_file(folder / "fusion.safetensors") for folder in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
    metrics = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    losses = [[(json.loads(line)["step"], json.loads(line)["loss"]) for line in lines] for lines in metrics]
    assert losses[0] == losses[1]


def test_a_changed_index_is_searched_again_and_cannot_resume_a_run(world, tmp_path, capfd):
    train, _, shared = world
    memory = Index.open(shutil.copytree(shared.address, tmp_path / "memory"))
    train_fusion(recipe_of(memory, epochs=1), Frozen(), train, tmp_path / "run", device="cpu")
    stored = tmp_path / "run.neighbors" / "neighbors.safetensors"
    before = stored.read_bytes()
    with pytest.raises(UserError, match="already contains a run"):  # and its neighbors are kept
        train_fusion(recipe_of(memory, epochs=1, k=2), Frozen(), train, tmp_path / "run", device="cpu")
    assert stored.read_bytes() == before
    shutil.rmtree(tmp_path / "run" / "model")  # like a run killed before it saved its model
    damaged = bytearray(before)
    damaged[-1] ^= 1
    stored.write_bytes(damaged)
    train_fusion(recipe_of(memory, epochs=1), Frozen(), train, tmp_path / "run", resume=True, device="cpu")
    assert stored.read_bytes() == before  # recomputed
    assert "neighbors.safetensors" in capfd.readouterr().err
    memory.remove(["memory:0"])
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(UserError, match=f"needs the same data, but {memory.address} had content .*, has content"):
        train_fusion(recipe_of(memory, epochs=1), Frozen(), train, tmp_path / "run", resume=True, device="cpu")
    assert stored.read_bytes() != before


def test_every_pair_is_seen_once_per_epoch(world):
    train, _, memory = world
    found = find_neighbors(train, memory, FusionSettings(32), 2)
    place = learning.ProcessRanks(0, 1, torch.device("cpu"))
    steps = list(learning._feed(found, recipe_of(memory), place)(0, 16))
    for epoch in (steps[:8], steps[8:]):
        seen = torch.cat([inputs.images[:, 0] for inputs in epoch])
        assert len(torch.unique(seen, dim=0)) == 800
    assert not torch.equal(steps[0].images, steps[8].images)  # in a different order
    halves = [
        list(learning._feed(found, recipe_of(memory), learning.ProcessRanks(rank, 2, torch.device("cpu")))(3, 4))
        for rank in (0, 1)
    ]
    joined = torch.cat([half[0].images for half in halves])
    assert torch.equal(joined, steps[3].images)


def loop_offsets(tokens, captions, modalities, newness, seed, step):
    """Add noise one token at a time in float64, by caption and modality, to the captions chosen for noise."""
    from recollect.core.seeding import derive_seed, normals, uniforms

    result = tokens.double().clone()
    for row in range(tokens.shape[0]):
        for place in range(tokens.shape[1]):
            caption = np.array([int(captions[row, place])])
            chosen = uniforms(derive_seed("newness", seed, step, "captions"), caption, 1)[0, 0] < newness.share
            if not chosen or not tokens[row, place].any():
                continue
            each = (tokens.shape[1] - 1) // (len(modalities) - 1)
            modality = modalities[0] if place == 0 else modalities[1 + (place - 1) // each]
            drawn = normals(derive_seed("newness", seed, step, modality), caption, tokens.shape[2])[0]
            moved = result[row, place] + newness.strength / tokens.shape[2] ** 0.5 * torch.from_numpy(drawn).double()
            result[row, place] = moved / moved.norm()
    return result


@given(
    seed=st.integers(0, 100), step=st.integers(0, 10**6), share=st.sampled_from([0.3, 0.5, 1.0]),
    strength=st.sampled_from([0.1, 2.0]),
    modalities=st.sampled_from([("image", "text"), ("text", "image"), ("image", "text", "image")]),
)  # fmt: skip
def test_offsets_match_a_loop_over_tokens(seed, step, share, strength, modalities):
    generator = np.random.default_rng(seed)
    tokens = torch.from_numpy(random_unit(generator, 6, 5, 16))
    tokens[2, 2:] = 0
    captions = torch.from_numpy(generator.integers(0, 2**62, 5)[generator.integers(0, 5, (6, 5))])
    newness = Newness("offsets", strength, share)
    disturbed = Disturbance(newness, seed, step)(tokens, modalities, captions)
    expected = loop_offsets(tokens, captions, modalities, newness, seed, step)
    torch.testing.assert_close(disturbed.double(), expected, rtol=0, atol=1e-5)
    assert not disturbed[2, 2:].any()


def test_newness_teaches_a_fusion_to_read_although_the_model_fits_the_training_pairs(tmp_path):
    """The model matches its training pairs but not new ones, which are in the index."""
    generator = np.random.default_rng(0)
    width, concepts = 32, 400

    def near(which, vectors):
        return unit(vectors[which] + 0.35 / width**0.5 * generator.normal(size=(len(which), width)))

    keys, values = random_unit(generator, concepts, width), random_unit(generator, concepts, width)
    values[:300] = keys[:300]  # training concepts: image and text agree

    def pairs(which, name):
        ids = [f"{name}:{number}" for number in range(len(which))]
        captions = [f"concept {number}" for number in which]
        return Pairs(near(which, keys), near(which, values), captions, ids, "model-a", sources=[name] * len(ids))

    train = pairs(np.repeat(np.arange(300), 4), "train")
    memory = train.index().save(tmp_path / "memory")
    new, recalls = pairs(np.arange(300, 400), "test"), {}
    for name, changes in {
        "paper": {},
        "reading": {"fusion": FusionSettings(1), "mask": "caption", "newness": Newness("offsets")},
    }.items():
        recipe = recipe_of(memory, max_score=1.01, **changes)
        recalls[name] = train_fusion(recipe, Frozen(), train, tmp_path / name, device="cpu")
    for table in pairs(np.repeat(np.arange(300, 400), 3), "grown").index().store.scan(COLUMNS):
        memory.store.upsert(table)
    with torch.no_grad():
        paper, reading = (recall(FusionModule.open(folder), memory, new, "both") for folder in recalls.values())
    assert reading > 0.5
    assert reading > paper + 0.2, (reading, paper)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "--k 0"),
        ({"k": 901}, "k = 901"),
        ({"terms": ("text",), "fusion": FusionSettings(1, modalities="image")}, "none of them refines"),
        ({"fusion": FusionSettings(1, "mean")}, "a mean has nothing to learn"),
        ({"newness": Newness("offsets", 0.0)}, "newness strength 0"),
        ({"newness": Newness("offsets", float("nan"))}, "newness strength nan"),
        ({"newness": Newness("offsets", 1.0, 1.5)}, "newness share 1.5"),
        ({"index": "nowhere"}, "nowhere"),
    ],
)
def test_invalid_recipes_are_rejected(world, tmp_path, changes, message):
    train, _, memory = world
    with pytest.raises(UserError, match=message):
        train_fusion(recipe_of(memory, **changes), Frozen(), train, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
