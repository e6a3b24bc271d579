"""``--index INDEX --fusion F --mode both`` for every command that embeds."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import captioned
from recollect.data.sources import open_source
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import load_results
from recollect.index import Index, IngestOptions
from recollect.models import load_model
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder, open_encoder
from recollect.reco.neighbors import balanced_mean


@pytest.fixture(scope="session")
def model(trained):
    return trained[0]


@pytest.fixture(scope="session")
def index(recollect, model, pairs, tmp_path_factory):
    """An index of the 60 captioned pairs."""
    folder = tmp_path_factory.mktemp("index") / "pairs"
    Index.build(open_source(str(pairs)), model, out=folder)
    return folder


@pytest.fixture(scope="session")
def fusion(recollect, model, index, pairs, tmp_path_factory):
    """A fusion module after a few training steps."""
    out = tmp_path_factory.mktemp("fusion") / "run"
    words = ("--index", index, "--data", pairs, "--epochs", 20, "--batch-size", 20, "--k", 5, "--max-score", 1.01)
    recollect("train", "reco", model, *words, "--out", out)
    return out / "model"


@pytest.fixture(scope="session")
def queries(tmp_path_factory, shapes):
    """The test shapes with captions."""
    files = sorted((shapes / "test").glob("*/*.png"))
    texts = [f"a {file.parent.name} of number {number}" for number, file in enumerate(files)]
    return captioned(tmp_path_factory.mktemp("queries"), texts, lambda number: Image.open(files[number]))


def figures(path):
    (result,) = json.loads(path.read_text())
    return result


def test_zero_shot_with_an_index_matches_its_encoder(recollect, model, index, fusion, shapes, tmp_path):
    """The expected accuracy comes from embedding pictures and texts with the encoder."""
    (tmp_path / "templates.txt").write_text("a white {} on a dark ground\n")
    words = ("evaluate", "zero-shot", model, "--data", shapes, "--templates", tmp_path / "templates.txt")
    reading = ("--index", index, "--fusion", fusion, "--k", 5)
    values = {}
    for mode in ("image", "text", "both"):
        recollect(*words, *reading, "--mode", mode, "--out", tmp_path / f"{mode}.json")
        result = figures(tmp_path / f"{mode}.json")
        encoder = open_encoder(load_model(model), index, fusion, mode, 5)
        source = open_source(str(shapes), split="test", kind="label")
        images = torch.cat([encoder.embed_images([source[row].image]) for row in range(len(source))])
        texts = encoder.embed_texts([f"a white {name} on a dark ground" for name in source.class_names])
        right = (images @ texts.T).argmax(1).numpy() == np.array([source[row].label for row in range(len(source))])
        values[mode] = next(row["value"] for row in result["rows"] if row["metric"] == "top-1")
        assert values[mode] == pytest.approx(100 * right.mean())
        read = result["settings"]["reads"]
        assert (read["version"], read["rows"], read["mode"], read["k"]) == (Index.open(index).version, 60, mode, 5)
        assert read["fusion"] == FusionModule.open(fusion).fingerprint
        assert f"version {read['version']}" in result["model"]
        assert read["fusion"][:8] in result["model"]


def test_the_mean_measures_its_weight_by_default(recollect, model, index, fusion, shapes, tmp_path):
    words = ("evaluate", "zero-shot", model, "--data", shapes, "--index", index, "--k", 5)
    read = []
    weight = balanced_mean(Index.open(index), 5).settings.weight
    for number, options in enumerate((("mean",), ("mean", "--weight", weight), (fusion,))):
        answer = recollect(*words, "--fusion", *options, "--out", tmp_path / f"{number}.json")
        assert ("measured on its pictures and captions" in " ".join(f"{answer.stdout}{answer.stderr}".split())) == (
            number == 0
        )
        reads = figures(tmp_path / f"{number}.json")["settings"]["reads"]
        read.append((reads["kind"], reads["mode"], reads["fingerprint"]))
    assert read[0] == read[1] == ("mean", "both", open_encoder(load_model(model), index, k=5).fingerprint)
    assert read[2][:2] == ("transformer", "both")


def test_the_weight_of_a_mean_lies_between_the_embedding_and_what_is_read(recollect, model, index, shapes, tmp_path):
    words = ("evaluate", "zero-shot", model, "--data", shapes)
    reading = ("--index", index, "--k", 5, "--fusion", "mean", "--mode", "both")
    recollect(*words, *reading, "--weight", 0.2, "--out", tmp_path / "out.json")
    assert figures(tmp_path / "out.json")["model"].endswith("weight 0.2")
    base, texts = load_model(model), ["a white cross", "a dark ring"]
    own = base.embed_texts(texts)
    fusions = [FusionModule(FusionSettings(base.width, "mean", weight=weight)) for weight in (0.01, 0.99)]
    encoders = [RetrievalEnhancedEncoder(base, Index.open(index), fusion, "both", 5) for fusion in fusions]
    near_own, near_read = (encoder.embed_texts(texts) for encoder in encoders)
    read = torch.nn.functional.normalize(torch.from_numpy(encoders[0].read("text", own)).sum(dim=1), dim=1)
    torch.testing.assert_close(near_own, own, atol=0.05, rtol=0)
    torch.testing.assert_close(near_read, read, atol=0.05, rtol=0)


@pytest.mark.parametrize("protocol", ["few-shot", "probe", "retrieval"])
def test_every_evaluation_records_its_index(recollect, model, index, fusion, shapes, queries, protocol, tmp_path):
    data = queries if protocol == "retrieval" else shapes
    more = {"few-shot": ("--shots", 2, "--seeds", 1), "retrieval": ("--split", "train")}.get(protocol, ())
    words = ("evaluate", protocol, model, "--data", data, *more, "--out", tmp_path / "out")
    recollect(*words)
    recollect(*words, "--index", index, "--fusion", fusion, "--mode", "both", "--k", 5)
    recollect(*words, "--index", index, "--fusion", "mean", "--mode", "both", "--k", 5)
    results = load_results(tmp_path / "out")
    assert len(results) == 3
    assert len({result.model for result in results}) == 3
    kinds = [result.settings.get("reads", {}).get("kind") for result in results]
    assert set(kinds) == {None, "mean", "transformer"}
    assert len({str(result.settings.get("reads")) for result in results}) == 3
    # A probe may have the same accuracy with and without the index, but not the same confidence.
    assert len({str(result.rows) for result in results}) > 1


def test_entities_are_recognized_with_an_index(recollect, check_error, model, index, fusion, shapes, tmp_path):
    """Crosses are held out of the training split, so they are the unseen entity."""
    shutil.copytree(shapes, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "train" / "cross")
    words = ("evaluate", "entities", model, "--data", tmp_path / "data", "--out", tmp_path / "out.json")
    done = recollect(*words, "--index", index, "--fusion", fusion, "--k", 5)
    result = figures(tmp_path / "out.json")
    assert [row["metric"] for row in result["rows"]] == ["seen", "unseen", "harmonic mean"]
    assert (result["settings"]["classes"], result["settings"]["unseen classes"]) == (3, 1)
    assert result["settings"]["reads"]["rows"] == 60
    assert "harmonic" in done.stdout
    check_error("missing: --data", "evaluate", "entities", model)
    check_error("split 'x'", "evaluate", "entities", model, "--data", shapes, "--unseen", "x")


def test_refining_cached_features_equals_embedding_the_pictures(model, index, fusion, shapes, tmp_path):
    encoder = open_encoder(load_model(model), index, fusion, "image", 5)
    source, cache = open_source(str(shapes), split="test", kind="label"), FeatureCache(tmp_path / "cache")
    image_features(encoder.model, source, cache)
    refined = image_features(encoder, source, cache)
    pictures = encoder.embed_images([source[row].image for row in range(len(source))]).numpy()
    np.testing.assert_allclose(refined.images, pictures, atol=1e-5)
    np.testing.assert_array_equal(image_features(encoder, source, cache).images, refined.images)


def test_near_duplicates_of_test_images_are_left_out(recollect, check_error, model, index, fusion, shapes, tmp_path):
    test = shapes / "test"
    (tmp_path / "twice").mkdir()
    for shape in ("circle", "square"):
        (tmp_path / "twice" / "test" / shape).mkdir(parents=True)
        shutil.copy(test / shape / "0.png", tmp_path / "twice" / "test" / shape / "0.png")
    leaky = tmp_path / "leaky"
    shutil.copytree(index, leaky)
    source = open_source(str(tmp_path / "twice"), split="test", kind="label")
    Index.open(leaky).add(source, options=IngestOptions(template="a photo of a {}."))
    words = ("evaluate", "zero-shot", model, "--data", tmp_path / "twice", "--index", leaky, "--fusion", fusion)
    done = recollect(*words, "--k", 5, "--near", 0.999999, "--out", tmp_path / "near.json")
    assert "2 of 62" in done.stdout
    result = figures(tmp_path / "near.json")
    assert result["settings"]["reads"]["without"] == 2
    assert "near 0.999999" in result["model"]
    # The result is the same as with an index that never contained them.
    base, leaky_index = load_model(model), Index.open(leaky)
    near = leaky_index.near(image_features(base, source).images, 0.999999)
    opened = FusionModule.open(fusion)
    exclude_ids = RetrievalEnhancedEncoder(base, leaky_index, opened, k=5, exclude_ids=near)
    clean = RetrievalEnhancedEncoder(base, Index.open(index), opened, k=5)
    pictures = [source[row].image for row in range(2)]
    torch.testing.assert_close(exclude_ids.embed_images(pictures), clean.embed_images(pictures))
    including = RetrievalEnhancedEncoder(base, leaky_index, opened, k=2)
    query = base.embed_texts(["a photo of a circle."])
    vectors = {row.tobytes() for row in leaky_index.vectors(near, "image")}
    assert vectors & {row.tobytes() for row in including.read("text", query)[0]}
    assert not vectors & {row.tobytes() for row in exclude_ids.read("text", query)[0]}
    assert len({each.fingerprint for each in (exclude_ids, clean, including)}) == 3
    check_error("but k = 5", *words, "--k", 5, "--near", 0.0001)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--index", "INDEX"], "--fusion"),
        (["--fusion", "FUSION"], "--index"),
        (["--index", "NOWHERE", "--fusion", "FUSION"], "nowhere"),
        (["--index", "MODEL", "--fusion", "FUSION"], "model"),
        (["--index", "INDEX", "--fusion", "MODEL"], "no fusion"),
        (["--index", "INDEX", "--fusion", "RUN"], "Use the trained model"),
        (["--index", "INDEX", "--fusion", "FUSION", "--k", "61"], "k = 61"),
        (["--index", "INDEX", "--fusion", "FUSION", "--k", "0"], "k = 0"),
        (["--index", "INDEX", "--fusion", "FUSION", "--near", "3"], "--near 3"),
        (["--index", "NOWHERE", "--fusion", "mean", "--weight", "1"], "--weight 1"),
        (["--index", "INDEX", "--fusion", "FUSION", "--read-where", "shape = 'x'"], "satisfies shape = 'x'"),
        (["--index", "INDEX", "--fusion", "FUSION", "--read-where", "shape ="], "filter"),
        (["--index", "OTHER", "--fusion", "FUSION"], "is another model"),
        (["--index", "EMPTY", "--fusion", "FUSION"], "empty"),
        (["--index", "INDEX", "--fusion", "mean", "--k", "61"], "k = 61"),
        (["--index", "INDEX", "--fusion", "mean", "--read-where", "shape = 'x'"], "satisfies shape = 'x'"),
        (["--index", "OTHER", "--fusion", "mean"], "is another model"),
        (["--index", "EMPTY", "--fusion", "mean"], "empty"),
    ],
)
def test_bad_input_gives_a_one_line_error(check_error, trained, index, fusion, shapes, tmp_path, words, message):
    model = load_model(trained[0])
    Index.create(tmp_path / "empty", width=model.width, model=model.fingerprint)
    Index.create(tmp_path / "other", width=model.width, model="another", model_name="another")
    places = {
        "INDEX": index, "FUSION": fusion, "MODEL": trained[0], "RUN": fusion.parent, "EMPTY": tmp_path / "empty",
        "OTHER": tmp_path / "other", "NOWHERE": tmp_path / "nowhere",
    }  # fmt: skip
    words = [places.get(word, word) for word in words]
    check_error(message, "evaluate", "zero-shot", trained[0], "--data", shapes, *words)


def test_options_incompatible_with_an_index_are_rejected(check_error, model, trained, index, fusion, pairs, shapes):
    reading = ("--index", index, "--fusion", fusion, "--k", 5)
    pool = ("--data", pairs, "--split", "train")
    refusals = {
        ("evaluate", "retrieval", model, *pool, "--methods", "zero-shot", "episode", *reading):
            "--index",
        ("evaluate", "zero-shot", *trained, "--data", shapes, *reading): "is another model",
        ("classify", "--support", shapes / "train", "--images", shapes / "test", "--model", model, *reading,
         "--near", 0.9): "only for evaluation",
    }  # fmt: skip
    for words, message in refusals.items():
        check_error(message, *words)
