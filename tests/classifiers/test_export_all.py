"""The exported graph gives the same results as tower, index, fusion and classifier."""

import json

import numpy as np
import pytest
import torch

import guide_world
from pictures import picture
from recollect.classifiers.classifier import Classifier
from recollect.classifiers.export import IndexReading, export_all
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect.cli import main
from recollect.cli.fusion import FusionOptions
from recollect.core.errors import UserError
from recollect.index import Index, Rows
from recollect.models import load_model
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder

onnxruntime = pytest.importorskip("onnxruntime")

WIDTH = 12


def unit(rows, seed, width=WIDTH):
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "name",
    ["zero-shot", "prototype", "tip-adapter", "tip-adapter-cv", "proker", "gda", "tip-adapter-f", "linear-probe",
     "timo", "ape-t"],
)  # fmt: skip
@pytest.mark.parametrize(("shots", "classes"), [(1, 4), (3, 2)])
def test_the_kernel_form_gives_the_scores_of_its_classifier(name, shots, classes):
    support, labels, queries = unit(classes * shots, 0), np.repeat(np.arange(classes), shots), unit(20, 1)
    taught = FEW_SHOT_METHODS[name](unit(classes, 2), 20.0)
    taught.fit_checked(support, labels)
    form = taught.kernel_form()
    exported, expected = form.scores(queries), taught.scores(queries)
    if name == "linear-probe":  # log probabilities, equal up to a constant per row
        exported, expected = (scores - scores.mean(axis=1, keepdims=True) for scores in (exported, expected))
    np.testing.assert_allclose(exported, expected, rtol=1e-4, atol=1e-4)
    logits = form.scores(queries) / form.temperature
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(shares / shares.sum(1, keepdims=True), taught.predict_proba(queries), atol=1e-4)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Folder with a one-layer SigLIP, an index, a fusion module that reads it and examples of two classes.

    The pictures in the index have between zero and four captions.
    """
    folder = tmp_path_factory.mktemp("all")
    guide_world.checkpoint(folder / "model")
    model = load_model(folder / "model")
    rows = Rows(
        ids=[f"row {i}" for i in range(20)],
        image_vectors=unit(20, 3, model.width),
        captions=[tuple(f"caption {i}, {j}" for j in range(i % 5)) for i in range(20)],
        caption_vectors=[unit(i % 5, 4 + i, model.width) for i in range(20)],
        metadata=[{"number": i} for i in range(20)],
    )
    Index.create(folder / "index", width=model.width, model=model.fingerprint).insert(rows)
    torch.manual_seed(0)
    fusion = FusionModule(FusionSettings(model.width), model.fingerprint)
    for block in fusion.blocks.values():  # nonzero, as after training
        for linear in (block.output, block.down):
            torch.nn.init.normal_(linear.weight, std=0.05)
    fusion.save(folder / "fusion")
    for name, first in (("dark", 0), ("bright", 3)):
        (folder / "examples" / name).mkdir(parents=True)
        for i in range(3):
            picture(30 * (first + i)).save(folder / "examples" / name / f"{i}.png")
    return folder


@pytest.fixture
def encoder(parts):
    fusion, index = FusionModule.open(parts / "fusion"), Index.open(parts / "index")
    return RetrievalEnhancedEncoder(load_model(parts / "model"), index, fusion, "both", 3, "number < 16", ["row 3"])


def test_tower_index_fusion_and_classifier_export_as_one_graph(parts, encoder, tmp_path):
    files = {name: sorted((parts / "examples" / name).iterdir()) for name in ("dark", "bright")}
    taught = Classifier.teach(encoder, files, model_name="model")
    folder = export_all(encoder, tmp_path / "out", taught)
    images = [picture(shade) for shade in (10, 77, 200)]
    transform = encoder.model.transform
    pixels = transform.normalize(torch.from_numpy(np.stack([transform.pixels(each) for each in images]))).numpy()

    def run(file, **inputs):
        return onnxruntime.InferenceSession(str(folder / file)).run(None, inputs)

    vectors = encoder.embed_images(images).numpy()
    assert np.abs(vectors - encoder.model.embed_images(images).numpy()).max() > 0.01  # the index is read
    for rows in (1, 3):
        np.testing.assert_allclose(run("image.onnx", pixels=pixels[:rows])[0], vectors[:rows], atol=1e-5)
        texts = ["a red bridge", "dark", "a blue river"][:rows]
        tokens = {name: ids.numpy() for name, ids in encoder.model.tokenize(texts).items()}
        np.testing.assert_allclose(run("text.onnx", **tokens)[0], encoder.embed_texts(texts).numpy(), atol=1e-5)
    probabilities, nearest = run("classifier.onnx", pixels=pixels)
    np.testing.assert_allclose(probabilities, taught.predict_proba(vectors), atol=1e-4)
    np.testing.assert_allclose(nearest, taught.unknown_rule.similarity(vectors), atol=1e-4)
    record = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    assert record["classes"] == list(taught.classes)
    assert (nearest < record["unknown_below"]).tolist() == taught.is_unknown(vectors).tolist()
    assert record["reads"]["k"] == 3


def test_the_command_passes_index_and_classifier_to_the_export(parts, tmp_path, capsys, monkeypatch):
    """The output is tested above."""
    calls = []
    monkeypatch.setattr("recollect.classifiers.export.export_all", lambda *args: calls.append(args) or args[1])
    reading = ["--index", str(parts / "index"), "--fusion", str(parts / "fusion"), "--k", "3"]
    model, saved = str(parts / "model"), str(tmp_path / "saved")
    assert main(["classify", "--support", str(parts / "examples"), "--model", model, "--save", saved, *reading]) == 0
    assert main(["export", "--classifier", saved, "--out", str(tmp_path / "out"), *reading]) == 0
    ((encoder, folder, taught),) = calls
    assert isinstance(encoder, RetrievalEnhancedEncoder)
    assert folder == tmp_path / "out"
    assert taught.classes == ("bright", "dark")
    assert main(["export", model, "--near", "0.9", *reading]) == 2
    assert "--near" in capsys.readouterr().err
    assert main(["export", "--out", str(tmp_path / "out"), *reading]) == 2, "this index stores no model name"
    assert "MODEL" in capsys.readouterr().err
    monkeypatch.setattr(FusionOptions, "model", model)
    assert main(["export", "--out", str(tmp_path / "out"), *reading]) == 0
    assert calls[1][0].fingerprint == encoder.fingerprint


def test_an_unsupported_export_fails_before_writing_anything(parts, encoder, tmp_path, monkeypatch):
    files = {name: sorted((parts / "examples" / name).iterdir()) for name in ("dark", "bright")}
    votes = Classifier.teach(encoder, files, method="plurality")
    with pytest.raises(UserError, match="plurality"):
        export_all(encoder, tmp_path / "out", votes)
    with pytest.raises(UserError):
        export_all(encoder.model, tmp_path / "out", Classifier.teach(encoder, files))
    monkeypatch.setattr("recollect.classifiers.export.MAX_VECTOR_BYTES", 100)
    with pytest.raises(UserError, match="--read-where"):
        export_all(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("read", ["both", "cross", "uni"])
def test_the_exported_reading_matches_the_fusion(parts, read):
    model, index = load_model(parts / "model"), Index.open(parts / "index")
    torch.manual_seed(0)
    fusion = FusionModule(FusionSettings(model.width, read=read, start="gate"), model.fingerprint)
    reading = RetrievalEnhancedEncoder(model, index, fusion, "both", 3, "number < 16")
    for modality in ("image", "text"):
        queries = torch.from_numpy(unit(5, 7, model.width))
        with torch.no_grad():
            torch.testing.assert_close(IndexReading(reading, modality)(queries), reading.refine(modality, queries))
