"""Towers as ONNX files give what the model gives, in any number of rows."""

import json

import numpy as np
import pytest
import torch

from recollect.cli import main
from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.export import export_onnx, read_export

onnxruntime = pytest.importorskip("onnxruntime")


def outputs(file, inputs):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["embeddings"], {name: values.numpy() for name, values in inputs.items()})[0]


@pytest.mark.parametrize("name", ["siglip", "clip"])
def test_exported_towers_embed_as_the_model_does(checkpoint, tmp_path, name, pictures, captions, capsys):
    assert main(["export", str(checkpoint(name)), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.split()[-1] == str(tmp_path / "out")
    model, folder = load_model(str(checkpoint(name))), tmp_path / "out"
    for some in (pictures, pictures[:1]):
        pixels = model.transform.normalise(torch.from_numpy(np.stack([model.transform.pixels(each) for each in some])))
        found = outputs(folder / "image.onnx", {"pixels": pixels})
        np.testing.assert_allclose(found, model.embed_images(some).numpy(), atol=1e-5)
    record = read_export(folder)
    for some in (captions, captions[:1]):
        tokens = model.tokenize(some)
        assert list(tokens) == record["text"]["inputs"]
        found = outputs(folder / "text.onnx", tokens)
        np.testing.assert_allclose(found, model.embed_texts(some).numpy(), atol=1e-5)
    assert record["fingerprint"] == model.fingerprint
    assert record["transform"]["size"] == model.transform.size


def test_what_cannot_be_exported_says_so(tmp_path):
    with pytest.raises(UserError, match="only models of transformers"):
        export_onnx(build_model("tiny-conv", texts=["red", "blue"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"no export\.json"):
        read_export(tmp_path)
    (tmp_path / "export.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="newer"):
        read_export(tmp_path)
