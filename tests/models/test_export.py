"""Towers as ONNX files give what the model gives, in any number of rows."""

import json

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.models import load_model
from recollect.models.export import check_exportable, export_onnx
from recollect.testing import HashEncoder

onnxruntime = pytest.importorskip("onnxruntime")

TEXTS = ["a red bridge", "two dogs left of a small red house", "red"]


def outputs(file, inputs, names=("embeddings",)):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(list(names), {name: np.asarray(values) for name, values in inputs.items()})


def shallow(model):
    """The same with one layer a tower: a graph is written layer by layer, and all are alike."""
    for tower in (model.model.vision_model, model.model.text_model):
        tower.encoder.layers = tower.encoder.layers[:1]
    return model


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """A model by name, and the folder that it was exported to, once."""
    made = {}

    def export(name):
        if name not in made:
            model = load_model(str(checkpoint(name)))
            made[name] = model, export_onnx(shallow(model), tmp_path_factory.mktemp("onnx") / name)
        return made[name]

    return export


def transformed(model, pictures):
    return model.transform.normalize(torch.from_numpy(np.stack([model.transform.pixels(each) for each in pictures])))


@pytest.mark.parametrize("name", ["siglip", "clip"])
def test_exported_towers_embed_as_the_model_does(exported, name, pictures):
    model, folder = exported(name)
    for some in (pictures, pictures[:1]):
        (found,) = outputs(folder / "image.onnx", {"pixels": transformed(model, some)})
        np.testing.assert_allclose(found, model.embed_images(some).numpy(), atol=1e-5)
    record = json.loads((folder / "export.json").read_text())
    for some in (TEXTS, TEXTS[:1]):
        tokens = model.tokenize(some)
        assert list(tokens) == record["text"]["inputs"]
        (found,) = outputs(folder / "text.onnx", tokens)
        np.testing.assert_allclose(found, model.embed_texts(some).numpy(), atol=1e-5)
    assert record["fingerprint"] == model.fingerprint
    assert record["transform"]["size"] == model.transform.size


def test_what_cannot_be_exported_says_so(checkpoint):
    for model, name in ((HashEncoder(), "HashEncoder"), (load_model(checkpoint("naflex"), "cpu"), "NaFlex")):
        with pytest.raises(UserError, match=name):
            check_exportable(model)
