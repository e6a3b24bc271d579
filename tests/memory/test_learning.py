"""Training a fusion: what pairs find, what is minimised, and a run that resumes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from recollect.core.errors import UserError
from recollect.core.types import EncoderBase
from recollect.memory import Memory
from recollect.memory.fusion import learning
from recollect.memory.fusion.block import FusionModule, FusionSettings
from recollect.memory.fusion.learning import TERMS, FusionObjective, FusionRecipe, train_fusion
from recollect.memory.fusion.neighbours import Neighbours, find_neighbours
from recollect.training.optimiser import Optimiser
from recollect.training.options import Data


def loop_neighbours(pairs, memory_rows, searched, taken, own, k, max_score):
    """For each pair: sort all rows, leave out itself and near-duplicates, take the other side's vectors."""
    read = []
    for row, id in enumerate(pairs.ids):
        cosines = getattr(memory_rows, f"{searched}_vectors").astype(np.float64) @ own[row].astype(np.float64)
        order = [other for other in np.argsort(-cosines) if cosines[other] < max_score and memory_rows.ids[other] != id]
        found = [getattr(memory_rows, f"{taken}_vectors")[other] for other in order[:k]]
        read.append(found + [np.zeros_like(own[row])] * (k - len(found)))
    return np.array(read)


@pytest.mark.parametrize(("search", "read"), [("uni", "cross"), ("cross", "cross"), ("uni", "uni"), ("cross", "uni")])
@pytest.mark.parametrize("max_score", [0.94, 0.2, -0.3])
def test_a_pair_reads_what_a_loop_over_the_memory_finds(on_disk, pairs, search, read, max_score):
    some, everything = pairs(12, first=30), pairs(40)  # ten of them are in the memory
    settings = FusionSettings(16, search=search, read=read)
    found = find_neighbours(some, on_disk, settings, 5, max_score)
    for modality, own in (("image", some.image_vectors), ("text", some.text_vectors)):
        expected = loop_neighbours(
            some, everything, settings.searched(modality), settings.taken(modality), own, 5, max_score
        )
        tokens = found.tokens(modality, torch.arange(12))
        np.testing.assert_array_equal(tokens[:, 0], own)
        np.testing.assert_array_equal(tokens[:, 1:], expected)


def test_a_side_that_is_not_refined_looks_nothing_up(on_disk, pairs):
    found = find_neighbours(pairs(5, first=40), on_disk, FusionSettings(16, modalities="image"), 3)
    assert found.tokens("image", torch.arange(5)).shape == (5, 4, 16)
    assert found.tokens("text", torch.arange(5)).shape == (5, 1, 16)
    nothing = find_neighbours(pairs(5, first=40), on_disk, FusionSettings(16, "mlp"), 3)
    assert nothing.tokens("image", torch.arange(5)).shape == (5, 1, 16)


def test_stored_neighbours_are_read_as_they_were(on_disk, pairs, tmp_path):
    found = find_neighbours(pairs(8, first=36), on_disk, FusionSettings(16), 3)
    found.save(tmp_path / "n.safetensors")
    again = Neighbours.open(tmp_path / "n.safetensors")
    for modality in ("image", "text"):
        assert torch.equal(again.tokens(modality, torch.arange(8)), found.tokens(modality, torch.arange(8)))
    (tmp_path / "n.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="cannot be read"):
        Neighbours.open(tmp_path / "n.safetensors")


def test_pairs_of_another_model_find_nothing(on_disk, pairs):
    with pytest.raises(UserError, match="is another model"):
        find_neighbours(pairs(5, model="model-b"), on_disk, FusionSettings(16), 3)
    with pytest.raises(UserError, match="k = 41, but the memory holds 40 rows"):
        find_neighbours(pairs(5), on_disk, FusionSettings(16), 41)


def info_nce(images, texts, scale):
    """Both cross-entropies, one row at a time."""
    total = 0.0
    for one, other in ((images, texts), (texts, images)):
        for row in range(len(one)):
            logits = [scale * float(one[row] @ other[column]) for column in range(len(other))]
            total += np.log(np.sum(np.exp(logits))) - logits[row]
    return total / (2 * len(images))


@pytest.mark.parametrize("terms", [TERMS, ("refined",), ("image", "text"), ("text",)])
def test_the_loss_is_the_sum_of_its_terms(terms):
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(6, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    loss, report = FusionObjective(terms, scale=3.0).double()(images, texts)
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


@pytest.fixture
def world(tmp_path):
    """Images that do not say which text is theirs, and a memory whose pairs do.

    An image is a key vector; its text is another, unrelated one, and a memory of noisy copies of the same pairs tells
    which belongs to which. Without the memory nothing can be learnt that helps new concepts.
    """
    from recollect.memory import Pairs

    generator = np.random.default_rng(0)

    def unit(rows):
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    concepts, width = 300, 32
    keys, values = (generator.normal(size=(concepts, width)) for _ in range(2))

    def pairs(which, noise, name):
        return Pairs(
            [f"{name}:{number}" for number in range(len(which))],
            unit(keys[which] + noise * generator.normal(size=(len(which), width))),
            unit(values[which] + noise * generator.normal(size=(len(which), width))),
            [""] * len(which),
            "model-a",
            sources=[name] * len(which),
        )

    memory = Memory.create(tmp_path / "memory", width=width, model="model-a")
    memory.add(pairs(np.repeat(np.arange(concepts), 3), 0.35, "memory"))
    return pairs(np.repeat(np.arange(200), 4), 0.35, "train"), pairs(np.arange(200, 300), 0.35, "test"), memory


class Frozen(EncoderBase):
    """Stands for the model that embedded the world."""

    width, fingerprint, scale = 32, "model-a", None

    def embed_images(self, images):
        raise AssertionError("training reads stored embeddings")

    embed_texts = embed_images


def recipe_of(made, **changes):
    recipe = FusionRecipe(
        data=Data(sources=("train",)), memory=made.address, fusion=FusionSettings(1), k=3, epochs=12, batch_size=100,
        optimiser=Optimiser(3e-3, weight_decay=1e-5, warmup=0.0), log_every=5, checkpoint_every=10,
    )  # fmt: skip
    return replace(recipe, **changes)


def recall(fusion, memory, test, mode):
    """Share of new concepts' images that find their own text first."""
    found = find_neighbours(test, memory, fusion.settings, 3)
    everything = torch.arange(len(test))
    embeddings = {
        modality: fusion(modality, found.tokens(modality, everything)) if mode in (modality, "both") else own
        for modality, own in (("image", found.images), ("text", found.texts))
    }
    return float((embeddings["image"] @ embeddings["text"].T).argmax(1).eq(everything).float().mean())


def test_a_trained_fusion_reads_concepts_it_was_never_trained_on(world, tmp_path):
    train, test, memory = world
    folder = train_fusion(recipe_of(memory), Frozen(), train, tmp_path / "run", device="cpu")
    fusion = FusionModule.open(folder)
    with torch.no_grad():
        before = recall(FusionModule(FusionSettings(32)), memory, test, "both")
        after = {mode: recall(fusion, memory, test, mode) for mode in ("image", "text", "both")}
    assert before < 0.05
    assert min(after.values()) > 0.3, after
    assert fusion.model == "model-a"
    assert fusion.trained["k"] == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {"refined_loss", "image_loss", "text_loss", "scale"} <= set(lines[0])


def test_an_mlp_of_the_same_size_without_memory_learns_nothing_about_new_concepts(world, tmp_path):
    train, test, memory = world
    recipe = recipe_of(memory, fusion=FusionSettings(1, "mlp"), terms=("refined",))
    fusion = FusionModule.open(train_fusion(recipe, Frozen(), train, tmp_path / "run", device="cpu"))
    with torch.no_grad():
        assert recall(fusion, memory, test, "both") < 0.15


def test_a_run_that_was_stopped_resumes_to_the_same_weights(world, tmp_path, monkeypatch):
    train, _, memory = world
    recipe = recipe_of(memory, epochs=4)
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
    monkeypatch.setattr(learning, "find_neighbours", lambda *parts: searches.append(parts))
    cut = train_fusion(recipe, Frozen(), train, tmp_path / "cut", resume=True, device="cpu")
    assert searches == []  # the neighbours of the first call were stored
    one, other = (load_file(folder / "fusion.safetensors") for folder in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
    metrics = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    losses = [[(json.loads(line)["step"], json.loads(line)["loss"]) for line in lines] for lines in metrics]
    assert losses[0] == losses[1]


def test_neighbours_are_found_again_when_the_memory_has_changed(world, tmp_path):
    train, _, memory = world
    train_fusion(recipe_of(memory, epochs=1), Frozen(), train, tmp_path / "run", device="cpu")
    stored = tmp_path / "run.neighbours" / "neighbours.safetensors"
    before = stored.read_bytes()
    memory.delete(["memory:0"])
    learning._found(recipe_of(memory, fusion=FusionSettings(32)), train, stored.parent)
    assert stored.read_bytes() != before


def test_every_pair_is_seen_once_an_epoch(world):
    train, _, memory = world
    found = find_neighbours(train, memory, FusionSettings(32), 2)
    place = learning.Ranks(0, 1, torch.device("cpu"))
    steps = list(learning._feed(found, recipe_of(memory), place, "train")(0, 16))
    for epoch in (steps[:8], steps[8:]):
        seen = torch.cat([inputs.images[:, 0] for inputs, _ in epoch])
        assert len(torch.unique(seen, dim=0)) == 800
    halves = [
        list(learning._feed(found, recipe_of(memory), learning.Ranks(rank, 2, torch.device("cpu")), "train")(3, 4))
        for rank in (0, 1)
    ]
    joined = torch.cat([half[0][0].images for half in halves])
    assert torch.equal(joined, steps[3][0].images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "--k 0"),
        ({"k": 901}, "k = 901, but the memory holds 900 rows"),
        ({"terms": ("text",), "fusion": FusionSettings(1, modalities="image")}, "none of them refines"),
        ({"fusion": FusionSettings(1, "mean")}, "a mean has nothing to learn"),
        ({"memory": "nowhere"}, "nowhere: no such memory"),
    ],
)
def test_what_cannot_be_trained_is_one_line(world, tmp_path, changes, message):
    train, _, memory = world
    with pytest.raises(UserError, match=message):
        train_fusion(recipe_of(memory, **changes), Frozen(), train, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
