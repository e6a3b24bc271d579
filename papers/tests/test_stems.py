"""Models on one locked tower: its features of the tests are computed once, and no figure changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.models import build_model
from recollect.training.recipes import RECIPES
from recollect_papers.runs import Job, StudyEvaluation, _shares_stem
from recollect_papers.stems import SharedStem
from recollect_papers.towers import patches


@pytest.fixture(scope="module")
def pictures():
    return list(np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def models(pictures):
    """Two heads on one tower."""
    with pytest.MonkeyPatch.context() as patch:
        for name, few in (("_PATCHES", 500), ("_LEARNED_FROM", 500), ("_ROUNDS", 1)):
            patch.setattr(patches, name, few)
        first, second = (build_model("patches", texts=["a picture"], seed=seed) for seed in range(2))
        first.fit(pictures)
    second.dictionary.load_state_dict(first.dictionary.state_dict())
    return first, second


def test_the_tower_reads_a_block_once_and_embeddings_are_the_models_own(models, pictures, tmp_path, monkeypatch):
    own = [model.embed_images(pictures) for model in models]
    assert not torch.equal(*own)
    read = []
    for model in models:
        whole = model.pooled_images
        monkeypatch.setattr(
            model, "pooled_images", lambda images, whole=whole: read.append(len(images)) or whole(images)
        )
    shared = [SharedStem(model, tmp_path) for model in models]
    for _ in range(2):
        for one, expected in zip(shared, own, strict=True):
            torch.testing.assert_close(one.embed_images(pictures), expected, rtol=0, atol=0)
    assert read == [9]
    assert shared[0].fingerprint == models[0].fingerprint
    torch.testing.assert_close(shared[0].embed_texts(["a picture"]), models[0].embed_texts(["a picture"]))
    assert shared[0].embed_images([]).shape == (0, models[0].width)


def test_other_pictures_another_order_and_another_tower_are_read_anew(models, pictures, tmp_path, monkeypatch):
    first, second = models
    changed = [*pictures[:-1], pictures[-1] ^ 1]
    again = build_model("patches", texts=["a picture"], seed=0)
    again.load_state_dict(first.state_dict())
    again.dictionary.centroids.mul_(1.5)
    for model, asked in ((first, pictures), (first, changed), (first, pictures[::-1]), (again, pictures)):
        found = SharedStem(model, tmp_path).embed_images(asked)
        torch.testing.assert_close(found, model.embed_images(asked), rtol=0, atol=0)
    assert len(list(tmp_path.iterdir())) == 4
    opened = [Image.fromarray(picture) for picture in pictures]
    torch.testing.assert_close(SharedStem(second, tmp_path).embed_images(opened), second.embed_images(pictures))


def test_a_damaged_file_is_made_anew(models, pictures, tmp_path):
    own = SharedStem(models[0], tmp_path).embed_images(pictures)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    torch.testing.assert_close(SharedStem(models[1], tmp_path).embed_images(pictures), models[1].embed_images(pictures))
    torch.testing.assert_close(SharedStem(models[0], tmp_path).embed_images(pictures), own)


def test_it_is_for_locked_towers_and_built_in_pictures():
    locked, asked = RECIPES["siglip-locked"](), StudyEvaluation(("glyphs:captions",), ("glyphs:captions",))
    assert _shares_stem(Job("SigLIP", locked, asked))
    assert not _shares_stem(Job("SigLIP", RECIPES["siglip-tiny"](), asked))
    assert not _shares_stem(Job("SigLIP", locked, replace(asked, few_shot=("photos.parquet",))))
    assert not _shares_stem(Job("SigLIP", locked, replace(asked, suite="mini")))
