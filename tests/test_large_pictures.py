"""Large pictures are resized in the decoding thread; a block of full-size photos would take gigabytes."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from recollect import Classifier, Index
from recollect.data.sources import open_source
from recollect.data.sources.images import as_images, prepare_image
from recollect.data.transforms import ImageTransform
from recollect.evaluation.features import image_features
from recollect.index.source import source_index
from recollect.models import build_model
from recollect.reco.pairs import embed_pairs
from recollect.testing import HashEncoder
from recollect.training.locked import lock_source


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folder with four captioned 1,200 x 900 pictures in two subfolders."""
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = ["file_name,caption"]
    for number in range(4):
        name = f"{'ab'[number % 2]}/{number}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        small = draw.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(small).resize((1200, 900), Image.Resampling.BICUBIC).save(folder / name)
        lines.append(f"{name},number {number}")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder


def locked(photos, model):
    return lock_source(model, open_source(str(photos / "list.csv"))).features[:, 0].numpy()


def taught(photos, model):
    return Classifier.teach(model, {name: photos / name for name in "ab"}).support.features


WAYS = {
    "evaluation": lambda photos, model: image_features(model, open_source(str(photos / "list.csv"))).images,
    "search": lambda photos, model: source_index(model, open_source(str(photos / "list.csv"))).store,
    "pairs": lambda photos, model: embed_pairs(model, [open_source(str(photos / "list.csv"))], None, 0.1).images,
    "locked": locked,
    "classifier": taught,
    "index": lambda photos, model: Index.build(photos, model, precision="float32"),
}


@pytest.mark.parametrize("change", [{}, {"resized": 40}], ids=["crop", "resized and cropped"])
@pytest.mark.parametrize("way", WAYS)
def test_an_encoder_receives_large_pictures_at_its_input_size(way, change, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    model = build_model("tiny-conv", texts=["number"], seed=0)
    model.transform = replace(model.transform, **change)
    pictures = [Image.open(path) for path in sorted(photos.glob("?/*.png"), key=lambda path: path.name)]
    expected, pooled = model.embed_images(pictures).numpy(), model.pooled_images(pictures).numpy()
    received, preprocess = [], model._preprocess
    monkeypatch.setattr(model, "_preprocess", lambda image: received.append(image) or preprocess(image))
    found = WAYS[way](photos, model)
    assert {np.asarray(image).shape for image in received} == {(model.transform.size,) * 2 + (3,)}
    if way in {"evaluation", "pairs"}:
        np.testing.assert_array_equal(found, expected)
    elif way == "locked":
        np.testing.assert_array_equal(found, pooled)
    elif way == "classifier":
        np.testing.assert_array_equal(found, expected[[0, 2, 1, 3]])
    elif way == "index":
        numbers = [int(picture.path.stem) for picture in found.pictures(found.ids)]
        np.testing.assert_array_equal(found.vectors(found.ids), expected[numbers])


@pytest.mark.parametrize("family", ["patches", "own"])
def test_patches_are_cut_once_and_custom_preprocessing_gets_the_original(family):
    picture, encoder = Image.new("RGB", (300, 200), (9, 90, 200)), HashEncoder()
    if family == "own":
        object.__setattr__(encoder, "transform", lambda image: image)
        assert prepare_image(encoder, picture) is picture
        return
    transform = ImageTransform(32, fit="patches", patch=8, patches=16)
    object.__setattr__(encoder, "transform", transform)
    found = prepare_image(encoder, picture)
    np.testing.assert_array_equal(found, transform.pixels(picture))
    assert as_images([found])[0] is transform.pixels(found) is found
