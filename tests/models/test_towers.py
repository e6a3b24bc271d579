"""Any vision backbone of transformers can be paired with any text encoder, trained, saved and loaded."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BitImageProcessorPil,
    CLIPTextConfig,
    CLIPTextModel,
    ConvNextConfig,
    ConvNextImageProcessorPil,
    ConvNextModel,
    Dinov2Config,
    Dinov2Model,
    EfficientNetConfig,
    EfficientNetImageProcessorPil,
    EfficientNetModel,
    ResNetConfig,
    ResNetModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTModel,
)

from recollect.core.errors import UserError
from recollect.models import load_model
from recollect.models.export import TextTower, write_text_graph
from recollect.models.lora import adapter_sites
from recollect.models.pairing import pair_towers
from recollect.models.towers import NamedFeatures, NamedTexts
from recollect.training.adapted import add_adapters
from recollect.training.options import Model

TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCHES = {"image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
SQUARE = {"height": 32, "width": 32}
SHORT = {"size": {"shortest_edge": 32}, "crop_size": SQUARE}
TEXTS = ["a photo of 2 cats", "no"]
PICTURES = np.random.default_rng(0).integers(0, 256, (2, 40, 48, 3), dtype=np.uint8)

BACKBONES = {
    "resnet": (ResNetModel, ResNetConfig(embedding_size=8, layer_type="basic", **STAGES), "convnext"),
    "convnext": (ConvNextModel, ConvNextConfig(num_stages=2, **STAGES), "convnext"),
    "efficientnet": (
        EfficientNetModel,
        EfficientNetConfig(width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, image_size=32),
        "efficientnet",
    ),
    "dinov2": (Dinov2Model, Dinov2Config(**TOWER, **PATCHES), "bit"),
    "swin": (
        SwinModel,
        SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[1, 2], window_size=4),
        "vit",
    ),
    "vit": (ViTModel, ViTConfig(**TOWER, **PATCHES), "vit"),
}
PROCESSORS = {
    "convnext": ConvNextImageProcessorPil(size={"shortest_edge": 32}, crop_pct=0.875),
    "efficientnet": EfficientNetImageProcessorPil(size=SQUARE, do_center_crop=False),
    "bit": BitImageProcessorPil(**SHORT),
    "vit": ViTImageProcessorPil(size=SQUARE),
}


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    def write(name):
        folder = tmp_path_factory.mktemp(name)
        kind, config, processor = BACKBONES[name]
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
        PROCESSORS[processor].save_pretrained(folder)
        return folder

    return write


@pytest.fixture(scope="module")
def bert(tmp_path_factory, bert_words):
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(1)
    BertModel(BertConfig(**TOWER, vocab_size=len(bert_words), max_position_embeddings=40)).save_pretrained(folder)
    bert_words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sentences(bert, tmp_path_factory):
    """Folder of the same encoder as a sentence-transformers model with normalization."""
    folder = tmp_path_factory.mktemp("sentences")
    layers = Transformer(str(bert), max_seq_length=40)
    SentenceTransformer(modules=[layers, Pooling(16, "mean"), Normalize()], device="cpu").save(str(folder))
    return folder


@pytest.mark.parametrize("name", BACKBONES)
def test_a_pair_matches_its_towers_in_plain_transformers_and_loads_again(name, vision, bert, tmp_path):
    folder = vision(name)
    model = pair_towers(folder, bert, width=12)
    kind, _, processor = BACKBONES[name]
    plain, text = kind.from_pretrained(folder).eval(), BertModel.from_pretrained(bert).eval()
    with torch.no_grad():
        pixels = PROCESSORS[processor](list(PICTURES), return_tensors="pt").pixel_values
        images = F.normalize(model.project_images(plain(pixel_values=pixels).pooler_output.flatten(1)), dim=1)
        tokens = AutoTokenizer.from_pretrained(bert)(TEXTS, padding=True, return_tensors="pt")
        states, mask = text(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        texts = F.normalize(model.project_texts((states * mask).sum(1) / mask.sum(1)), dim=1)
    torch.testing.assert_close(model.embed_images(PICTURES), images, atol=2e-5, rtol=0)
    torch.testing.assert_close(model.embed_texts(TEXTS), texts, atol=1e-5, rtol=0)
    again = load_model(model.save(tmp_path / "model"), "cpu")
    assert again.fingerprint == model.fingerprint
    torch.testing.assert_close(again.embed_images(PICTURES), model.embed_images(PICTURES), atol=0, rtol=0)
    torch.testing.assert_close(again.embed_texts(TEXTS), model.embed_texts(TEXTS), atol=0, rtol=0)


def test_adapters_need_layers_only_in_the_tower_that_learns(vision, bert):
    """A convolutional network has no attention or MLP layers."""
    with pytest.raises(UserError, match="image tower"):
        adapter_sites(pair_towers(vision("resnet"), bert))
    model = pair_towers(vision("resnet"), bert)
    before = model.embed_images(PICTURES)
    add_adapters(model, Model("pair", lora=2, freeze="image"), 0)
    learning = [name for name, value in model.named_parameters() if value.requires_grad]
    assert learning
    assert all("text_model." in name and "lora_" in name for name in learning)
    torch.testing.assert_close(model.embed_images(PICTURES), before, atol=0, rtol=0)


def test_a_vit_without_pooler_weights_is_pooled_at_its_first_token(bert, tmp_path):
    """This applies to most classifiers: google/vit-base-patch16-224, DINO, DeiT."""
    ViTForImageClassification(BACKBONES["vit"][1]).save_pretrained(tmp_path)
    PROCESSORS["vit"].save_pretrained(tmp_path)
    model, plain = pair_towers(tmp_path, bert), ViTForImageClassification.from_pretrained(tmp_path).eval()
    pixels = PROCESSORS["vit"](list(PICTURES), return_tensors="pt").pixel_values
    with torch.no_grad():
        expected = plain.vit(pixels).last_hidden_state[:, 0]
    torch.testing.assert_close(model.pooled_images(list(PICTURES)), expected, atol=2e-5, rtol=0)


def test_an_array_and_a_picture_of_the_input_size_have_equal_embeddings(vision, bert):
    """Even if evaluation resizes to more than the input size and crops the center."""
    model, array = pair_towers(vision("convnext"), bert), PICTURES[0, :32, :32]
    torch.testing.assert_close(model.embed_images(array), model.embed_images(Image.fromarray(array)))


@pytest.mark.parametrize("length", [None, 7])
def test_pooling_normalization_and_length_match_sentence_transformers(vision, sentences, tmp_path, length):
    folder, texts = shutil.copytree(sentences, tmp_path / "sentences"), [*TEXTS, "a photo " * 15]
    if length:  # as in models published before sentence-transformers 6
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    model = pair_towers(vision("resnet"), folder)
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    model.model.text_projection = torch.nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(model.encode_texts(model.tokenize(texts)), expected, atol=1e-5, rtol=0)


def test_learning_batch_norms_are_detected(vision, bert):
    model = pair_towers(vision("resnet"), bert)
    assert model.normalizes_by_batch
    model.freeze("image")
    assert not model.normalizes_by_batch


def test_a_pair_supported_by_transformers_opens_in_plain_transformers(vision, tmp_path, bert_words):
    text, out = tmp_path / "clip", tmp_path / "model"
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    CLIPTextModel(CLIPTextConfig(**TOWER, **special, vocab_size=len(bert_words))).save_pretrained(text)
    bert_words.save_pretrained(text)
    model = pair_towers(vision("vit"), text, width=12)
    model.save(out)
    plain = AutoModel.from_pretrained(out)
    assert type(plain).__module__.startswith("transformers.models.vision_text_dual_encoder")
    with torch.no_grad():
        tokens = model.tokenize(TEXTS)
        found = plain.get_text_features(**tokens)
        found = getattr(found, "pooler_output", found)
        torch.testing.assert_close(F.normalize(found, dim=1), model.embed_texts(TEXTS), atol=1e-6, rtol=0)


def test_heads_depend_only_on_the_seed(vision, bert):
    folder = vision("convnext")
    torch.manual_seed(5)
    one = pair_towers(folder, bert, seed=3).fingerprint
    torch.manual_seed(6)
    assert pair_towers(folder, bert, seed=3).fingerprint == one
    assert pair_towers(folder, bert, seed=4).fingerprint != one


def test_unusable_towers_are_rejected(vision, bert, sentences, tmp_path):
    with pytest.raises(UserError, match=r"does not read pictures|image processor"):
        pair_towers(bert, bert)
    with pytest.raises(UserError, match=r"does not read text|tokenizer"):
        pair_towers(vision("vit"), vision("vit"))
    shutil.copytree(bert, tmp_path / "causal")
    words = AutoTokenizer.from_pretrained(bert)
    words.pad_token = None
    words.save_pretrained(tmp_path / "causal")
    with pytest.raises(UserError, match="padding token"):
        pair_towers(vision("vit"), tmp_path / "causal")
    modules = sentences / "modules.json"
    found = json.loads(modules.read_text())
    try:
        modules.write_text(json.dumps([*found, {"idx": 3, "name": "3", "path": "3_Dense", "type": "x.Dense"}]))
        with pytest.raises(UserError, match="Dense"):
            pair_towers(vision("vit"), sentences)
    finally:
        modules.write_text(json.dumps(found))


def randomize(module, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.1
    return module.requires_grad_(False)


def test_image_embeddings_join_standardized_features_and_expected_class_names():
    head = randomize(NamedFeatures(5, 3, 4, 0.3), 0)
    features = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for row, embedded in zip(features.numpy(), head(features).numpy(), strict=True):
        own = [(row[i] - head.mean[i].item()) / head.std[i].item() for i in range(5)]
        odds = [
            np.exp(sum(head.classifier.weight[c, i].item() * row[i] for i in range(5)) + head.classifier.bias[c].item())
            for c in range(3)
        ]
        named = [sum(odds[c] / sum(odds) * head.names[c, j].item() for c in range(3)) for j in range(4)]
        parts = [
            np.sqrt(0.7) * np.array(own) / np.linalg.norm(own),
            np.sqrt(0.3) * np.array(named) / np.linalg.norm(named),
        ]
        np.testing.assert_allclose(embedded, np.concatenate(parts), rtol=1e-12)
        assert np.isclose(np.linalg.norm(embedded), 1)


def test_text_embeddings_include_the_original_only_in_the_names_part():
    head = randomize(NamedTexts(4, 6, 9, 0.5, 3.0), 0)
    texts = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    learned, embedded = F.normalize(head.mlp(texts), dim=1), head(texts)
    assert torch.equal(embedded[:, :5], learned[:, :5])
    expected = 3 * (learned[:, 5:] + 0.5 * F.normalize(texts - head.center, dim=1))
    torch.testing.assert_close(embedded[:, 5:], expected, rtol=1e-10, atol=1e-12)


def test_the_last_entry_of_an_image_embedding_is_its_popularity():
    """Popularity is the standardized, clipped mean similarity to the five nearest bank texts."""
    head = randomize(NamedFeatures(5, 3, 4, 0.3, bank=13), 0)
    features = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    embedded, plain = head(features), head.plain(features)
    assert torch.equal(embedded[:, :-1], plain)
    mean, deviation = head.level.tolist()
    for row, last in zip(plain.numpy(), embedded[:, -1].tolist(), strict=True):
        nearest = sorted(float(row @ text) for text in head.bank.numpy())[-5:]
        assert last == pytest.approx(0.1 * np.clip((np.mean(nearest) - mean) / deviation, -3, 3))


def test_texts_discount_popularity_independently_of_their_norm():
    plain = randomize(NamedTexts(4, 6, 9, 0.5, 3.0), 0)
    head = randomize(NamedTexts(4, 6, 9, 0.5, 3.0, discounts=True), 0)
    head.load_state_dict(plain.state_dict(), strict=False)
    head.discount.fill_(0.25)
    texts = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(head(texts)[:, :-1], F.normalize(plain(texts), dim=1))
    assert head(texts)[:, -1].tolist() == [-0.25] * 3


def test_a_pair_with_a_classifier_is_exported_for_any_number_of_texts(vision, sentences, tmp_path):
    """The starter has this architecture."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = pair_towers(vision("efficientnet"), sentences, heads={"classes": 7, "text_hidden": 8, "bank": 5})
    write_text_graph(TextTower(model), tmp_path / "text.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "text.onnx"), providers=["CPUExecutionProvider"])
    for texts in (TEXTS, TEXTS[:1], TEXTS * 2):
        given = {name: each.numpy() for name, each in model.tokenize(texts).items()}
        np.testing.assert_allclose(session.run(None, given)[0], model.embed_texts(texts).numpy(), atol=1e-5)


def test_a_pair_with_a_classifier_can_be_loaded_again(vision, sentences, tmp_path):
    def learning(model):
        return [name for name, each in model.named_parameters() if each.requires_grad]

    model = pair_towers(vision("efficientnet"), sentences, heads={"classes": 7, "text_hidden": 8, "bank": 5})
    assert model.width == model.embed_texts(TEXTS).shape[1] == model.model.config.vision_features + 16 + 1
    learns = learning(model)
    assert {name for name in learns if "_projection." in name} == {
        f"model.text_projection.mlp.{layer}.{part}" for layer in ("up", "down", "direct") for part in ("weight", "bias")
    }
    model.lock("image")
    assert not any(each.requires_grad for each in model.tower_parameters("image")), "no part of its head learns"
    randomize(model.model.visual_projection, 2).float()
    again = load_model(model.save(tmp_path / "model"), "cpu")
    assert learning(again) == learns, "fixed parameters stay fixed, or a resumed run would train them"
    again.save(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "model" / "config.json").read_bytes()
    torch.testing.assert_close(again.embed_images(PICTURES), model.embed_images(PICTURES), atol=0, rtol=0)
    torch.testing.assert_close(again.embed_texts(TEXTS), model.embed_texts(TEXTS), atol=0, rtol=0)
