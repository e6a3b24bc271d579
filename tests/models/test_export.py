"""Towers as ONNX files give what the model gives, in any number of rows."""

import json

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.export import ImageTower, check_exportable, export_onnx, read_export, write_image_graph
from recollect.models.transformers.encoder import TransformersEncoder
from recollect.testing import HashEncoder

onnxruntime = pytest.importorskip("onnxruntime")

TEXTS = ["a red bridge", "two dogs left of a small red house", "red"]


def outputs(file, inputs, names=("embeddings",)):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(list(names), {name: np.asarray(values) for name, values in inputs.items()})


def shallow(model):
    """The same with one layer a tower: a graph is written layer by layer, and all are alike."""
    if isinstance(model, TransformersEncoder):
        for tower in (model.model.vision_model, model.model.text_model):
            tower.encoder.layers = tower.encoder.layers[:1]
    else:
        model.text_head.blocks = model.text_head.blocks[:1]
    return model


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """A model by name, and the folder that it was exported to, once."""
    made = {}

    def export(name):
        if name not in made:
            words = name == "tiny-conv"
            model = (
                build_model(name, texts=TEXTS, seed=0, prefixes=("caption",))
                if words
                else load_model(str(checkpoint(name)))
            )
            made[name] = model, export_onnx(shallow(model), tmp_path_factory.mktemp("onnx") / name)
        return made[name]

    return export


def transformed(model, pictures):
    return model.transform.normalise(torch.from_numpy(np.stack([model.transform.pixels(each) for each in pictures])))


@pytest.mark.parametrize("name", ["siglip", "clip", "tiny-conv"])
def test_exported_towers_embed_as_the_model_does(exported, name, pictures):
    model, folder = exported(name)
    for some in (pictures, pictures[:1]):
        (found,) = outputs(folder / "image.onnx", {"pixels": transformed(model, some)})
        np.testing.assert_allclose(found, model.embed_images(some).numpy(), atol=1e-5)
    record = read_export(folder)
    for some in (TEXTS, TEXTS[:1]):
        tokens = model.tokenize(some)
        assert list(tokens) == record["text"]["inputs"]
        (found,) = outputs(folder / "text.onnx", tokens)
        np.testing.assert_allclose(found, model.embed_texts(some).numpy(), atol=1e-5)
    assert record["fingerprint"] == model.fingerprint
    assert record["transform"]["size"] == model.transform.size


def test_the_vocabulary_of_a_model_that_reads_words_lies_beside_it(exported):
    model, folder = exported("tiny-conv")
    numbers = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    ids = [numbers[word] for word in ("a", "red", "bridge")]
    assert ids == model.tokenize(["a red bridge"])["input_ids"][0].tolist()
    (found,) = outputs(folder / "text.onnx", {"input_ids": np.array([[numbers["<|caption|>"], *ids]])})
    np.testing.assert_allclose(found, model.embed_texts(["a red bridge"], "caption").numpy(), atol=1e-5)


def test_patches_are_compared_with_their_dictionary(pictures, tmp_path):
    model = build_model("patches", texts=TEXTS, seed=0).eval()
    for parameter in model.dictionary.parameters():  # as if it had been fitted
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    write_image_graph(ImageTower(model), model, tmp_path / "image.onnx", ["embeddings"])
    (found,) = outputs(tmp_path / "image.onnx", {"pixels": transformed(model, pictures)})
    np.testing.assert_allclose(found, model.embed_images(pictures).numpy(), atol=1e-5)


def test_a_model_of_vectors_takes_vectors(tmp_path):
    model = build_model("vector-linear", texts=TEXTS, seed=0)
    folder = export_onnx(model, tmp_path / "out")
    rows = np.random.default_rng(0).normal(size=(3, model.settings.inputs)).astype(np.float32)
    (found,) = outputs(folder / "image.onnx", {"pixels": rows})
    np.testing.assert_allclose(found, model.embed_images(torch.from_numpy(rows)).numpy(), atol=1e-5)
    (found,) = outputs(folder / "text.onnx", model.tokenize(TEXTS))
    np.testing.assert_allclose(found, model.embed_texts(TEXTS).numpy(), atol=1e-5)


def test_what_cannot_be_exported_says_so(tmp_path):
    with pytest.raises(UserError, match="only models that recollect saves"):
        check_exportable(HashEncoder())
    with pytest.raises(UserError, match=r"no export\.json"):
        read_export(tmp_path)
    (tmp_path / "export.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="newer"):
        read_export(tmp_path)
