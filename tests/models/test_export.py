"""Towers exported to ONNX match the model for any batch size."""

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


def outputs(file, inputs):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["embeddings"], {name: np.asarray(values) for name, values in inputs.items()})[0]


@pytest.mark.parametrize("family", ["clip", "vit_bert"])
def test_exported_towers_match_the_model(checkpoint, pictures, family, tmp_path):
    """Texts vary in length and have masks, and token types for BERT; tests/classifiers exports a SigLIP."""
    model = load_model(str(checkpoint(family)))
    for tower in (model.model.vision_model, model.model.text_model) if family == "clip" else ():
        tower.encoder.layers = tower.encoder.layers[:1]  # one is enough: all layers are alike
    folder = export_onnx(model, tmp_path / "model")
    for some in (pictures, pictures[:1]):
        pixels = model.transform.normalize(torch.from_numpy(np.stack([model.transform.pixels(each) for each in some])))
        found = outputs(folder / "image.onnx", {"pixels": pixels})
        np.testing.assert_allclose(found, model.embed_images(some).numpy(), atol=1e-5)
    record = json.loads((folder / "export.json").read_text())
    for some in (TEXTS, TEXTS[:1]):
        tokens = model.tokenize(some)
        assert list(tokens) == record["text"]["inputs"]
        np.testing.assert_allclose(outputs(folder / "text.onnx", tokens), model.embed_texts(some).numpy(), atol=1e-5)
    assert record["fingerprint"] == model.fingerprint
    assert record["transform"]["size"] == model.transform.size


def test_models_that_cannot_be_exported_are_named_in_the_error(checkpoint):
    for model, name in ((HashEncoder(), "HashEncoder"), (load_model(checkpoint("naflex"), "cpu"), "NaFlex")):
        with pytest.raises(UserError, match=name):
            check_exportable(model)
