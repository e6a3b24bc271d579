"""Cross-fitting: each training pair as a model embeds it that was trained without it."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from recollect.core.errors import UserError
from recollect.core.seeding import text_fold
from recollect.core.types import EncoderBase
from recollect.data.sources import open_source
from recollect.index import Index
from recollect.index.rows import COLUMNS
from recollect.models import build_model
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.crossfit import Fold, cross_neighbours, fold_of
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recollect.reco.learning import paper_recipe, train_fusion
from recollect.reco.neighbours import find_neighbours
from recollect.reco.pairs import Pairs, embed_pairs
from recollect.training.options import Data

WIDTH = 16


def unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def rotation(generator, width=WIDTH):
    return np.linalg.qr(generator.normal(size=(width, width)))[0]


def rows(generator, count, model="base"):
    images, texts = (unit(generator.normal(size=(count, WIDTH))) for _ in range(2))
    captions = [f"caption {row // 2}" for row in range(count)]
    return Pairs(images, texts, captions, [f"pair:{row}" for row in range(count)], model)


def turned(pairs, turn, model):
    return replace(
        pairs, model=model, images=(pairs.images @ turn).astype("f4"), texts=(pairs.texts @ turn).astype("f4")
    )


def test_models_that_differ_by_a_rotation_find_what_the_model_itself_finds():
    generator = np.random.default_rng(0)
    base = rows(generator, 30)
    part = np.array([text_fold(caption, 2) for caption in base.captions])
    folds = [Fold(turned(base, rotation(generator), f"model {one}"), part == one) for one in range(2)]
    settings = FusionSettings(WIDTH)
    crossed = cross_neighbours(base, folds, settings, 4)
    plain = find_neighbours(base, base.index(), settings, 4, 1.01)
    order = torch.from_numpy(np.concatenate([np.flatnonzero(part == one) for one in range(2)]))
    everything = torch.arange(30)
    for modality in ("image", "text"):
        # vectors of length 1 in float32, turned twice: errors of some 1e-7
        torch.testing.assert_close(
            crossed.tokens(modality, everything), plain.tokens(modality, order), rtol=0, atol=1e-5
        )
        read = crossed.token_captions(modality, everything)
        assert torch.equal(read, plain.token_captions(modality, order))
    assert torch.equal(crossed.pictures, plain.pictures[order])


def test_a_pair_and_what_it_reads_are_as_the_model_embeds_them_that_has_not_seen_it():
    generator = np.random.default_rng(1)
    base = rows(generator, 24)
    new = np.arange(24) < 10
    others = [rows(generator, 24, f"model {one}") for one in range(2)]
    folds = [Fold(others[0], new), Fold(others[1], ~new)]
    found = cross_neighbours(base, folds, FusionSettings(WIDTH), 3)
    for row in range(24):
        fold = folds[0] if new[row] else folds[1]
        halves = [
            np.concatenate([getattr(each, side)[~fold.new] for side in ("images", "texts")])
            for each in (fold.pairs, base)
        ]
        turn = orthogonal_procrustes(*(each.astype(np.float64) for each in halves))[0]
        images, texts = fold.pairs.images @ turn, fold.pairs.texts @ turn
        for modality, own, read in (("image", images, texts), ("text", texts, images)):
            near = [other for other in np.argsort(-(own @ own[row])) if other != row][:3]
            tokens = found.tokens(modality, torch.tensor([row]))[0].numpy()
            np.testing.assert_allclose(tokens, np.concatenate([own[[row]], read[near]]), atol=1e-5)


class Frozen(EncoderBase):
    """Stands for the model that embedded the pairs."""

    fingerprint, scale, width = "base", None, 32

    def embed_images(self, images):
        raise AssertionError("training reads stored embeddings")

    embed_texts = embed_images


def test_pairs_that_are_new_to_their_model_teach_a_fusion_to_read(tmp_path):
    """A model is right about what it has seen; image and text of anything else lie apart, elsewhere for each model."""
    generator = np.random.default_rng(0)
    concepts, trained = 240, 120
    keys = unit(generator.normal(size=(concepts, 32)))

    def embedded(which, known, model, name, seed):
        wrong = unit(np.random.default_rng(seed).normal(size=(concepts, 32)))
        texts = np.where(known[:, None], keys, wrong)
        noise = 0.1 / 32**0.5 * np.random.default_rng(7).normal(size=(2, len(which), 32))
        ids, captions = [f"{name}:{row}" for row in range(len(which))], [f"concept {one}" for one in which]
        images, words = unit(keys[which] + noise[0]), unit(texts[which] + noise[1])
        return Pairs(images, words, captions, ids, model, [name] * len(ids))

    which, everything = np.repeat(np.arange(trained), 4), np.arange(concepts) < trained
    train = embedded(which, everything, "base", "train", 50)
    folds = []
    for number in range(3):
        known = everything & (np.arange(concepts) % 3 != number)
        folds.append(Fold(embedded(which, known, f"model {number}", "train", 1 + number), which % 3 == number))
    memory = train.index().save(tmp_path / "memory")
    recipe = replace(
        paper_recipe(),
        index=memory.address,
        data=Data(sources=("train",)),
        k=3,
        epochs=12,
        batch_size=96,
        max_score=1.01,
    )
    plain, crossed = (
        FusionModule.open(train_fusion(recipe, Frozen(), train, tmp_path / name, folds=each, device="cpu"))
        for name, each in (("plain", ()), ("crossed", folds))
    )
    assert (plain.trained["folds"], crossed.trained["folds"]) == (0, 3)
    shutil.rmtree(tmp_path / "crossed" / "model")
    with pytest.raises(UserError, match=r"train had folds \w{32}, has folds none"):
        train_fusion(recipe, Frozen(), train, tmp_path / "crossed", resume=True, device="cpu")
    grown = embedded(np.repeat(np.arange(trained, concepts), 3), everything, "base", "grown", 50)
    for table in grown.index().store.scan(COLUMNS):
        memory.store.upsert(table)
    asked = embedded(np.arange(trained, concepts), everything, "base", "asked", 50)

    def right(fusion):
        encoder = RetrievalEnhancedEncoder(Frozen(), Index.open(memory.address), fusion, "both", 3)
        images = encoder.refine("image", torch.from_numpy(asked.images))
        texts = encoder.refine("text", torch.from_numpy(asked.texts))
        return float(((images @ texts.T).argmax(1) == torch.arange(len(asked))).float().mean())

    assert right(crossed) > right(plain) + 0.2, (right(crossed), right(plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fold: replace(fold, pairs=replace(fold.pairs, model="base")), "it is the model itself"),
        (lambda fold: replace(fold, pairs=fold.pairs.take(range(8))), "it embedded other pairs"),
        (lambda fold: replace(fold, new=np.zeros(10, dtype=bool)), "all of the pairs were in its training"),
        (lambda fold: replace(fold, new=np.ones(10, dtype=bool)), "none of the pairs were in its training"),
        (
            lambda fold: replace(fold, pairs=turned(fold.pairs, np.eye(WIDTH)[:, :4], "another")),
            "4 entries, the model's 16",
        ),
    ],
)
def test_a_fold_that_cannot_be_one_is_one_line(change, message):
    base = rows(np.random.default_rng(0), 10)
    fold = Fold(replace(base, model="another"), np.arange(10) < 4)
    with pytest.raises(UserError, match=f"model 0 of --crossfit: .*{message}"):
        cross_neighbours(base, [change(fold)], FusionSettings(WIDTH), 3)


@pytest.mark.parametrize("columns", ["path,caption", "path,class_name"])
def test_the_part_of_a_pair_is_the_one_that_its_address_leaves_out(tmp_path, columns):
    from PIL import Image

    lines = [columns]
    for number in range(12):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,noise {number // 2}")
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    model = build_model("tiny", texts=[f"noise {number}" for number in range(6)])
    source = open_source(str(tmp_path / "pairs.csv"))
    pairs = embed_pairs(model, (source,), None, 0.0)
    part = fold_of(pairs, (source,), 3)
    for number in range(3):
        kept = open_source(f"{tmp_path / 'pairs.csv'}?only={number}/3")
        assert len(kept) == int((part == number).sum())
        texts = {
            text
            for index in range(len(kept))
            for text in (*kept.texts(index), kept.class_names[kept.labels[index]] if kept.class_names else "")
        }
        asked = {pairs.captions[row] for row in np.flatnonzero(part == number)}
        assert all(any(text and text in caption for text in texts) for caption in asked)
