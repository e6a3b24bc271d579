"""Every family of dual encoders has the same methods and matches transformers."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoModel, AutoProcessor, CLIPImageProcessorPil

from recollect.core.errors import UserError
from recollect.data.transforms import patch_grid
from recollect.models import load_model
from recollect.models.transformers.families import image_inputs
from recollect.models.transformers.processors import transform_of


def test_embeddings_match_transformers(checkpoint, family, captions, pictures):
    """Texts are padded as documented for the family."""
    folder, encoder = checkpoint(family), load_model(checkpoint(family), "cpu")
    model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    length = {"siglip": 20, "naflex": 64}.get(family)
    padding = {"padding": "max_length" if length else "longest", "truncation": True, "max_length": length}
    with torch.no_grad():
        texts = model.get_text_features(**processor.tokenizer(captions, **padding, return_tensors="pt")).pooler_output
        images = model.get_image_features(**processor.image_processor(pictures, return_tensors="pt")).pooler_output
        raw = encoder.encode_texts(encoder.tokenize(captions))
    torch.testing.assert_close(raw, texts, atol=1e-5, rtol=0)
    assert (raw.norm(dim=1) - 1).abs().min() > 1e-3
    images = torch.nn.functional.normalize(images, dim=1)
    torch.testing.assert_close(encoder.embed_images(pictures), images, atol=2e-5, rtol=0)


@pytest.mark.parametrize("shape", [(40, 40), (200, 40), (33, 90), (5, 300), (1, 1), (31, 1000), (127, 128)])
def test_naflex_preprocessing_matches_transformers_for_any_aspect_ratio(checkpoint, shape):
    pixels = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
    model = load_model(checkpoint("naflex"), "cpu")
    expected = AutoProcessor.from_pretrained(checkpoint("naflex")).image_processor(
        [Image.fromarray(pixels)], return_tensors="pt"
    )
    found = image_inputs(model.transform(pixels)[None], model.model.config)
    assert found["spatial_shapes"].tolist() == expected["spatial_shapes"].tolist()
    assert torch.equal(found["pixel_attention_mask"], expected["pixel_attention_mask"].long())
    torch.testing.assert_close(found["pixel_values"], expected["pixel_values"].float(), atol=1e-6, rtol=0)


def test_naflex_trains_on_mixed_aspect_ratios_in_one_batch(checkpoint, pictures):
    model = load_model(checkpoint("naflex"), "cpu")
    crops = replace(model.training_transform(), scale=(0.99, 1.0), ratio=(0.2, 5.0))
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 80, 3), dtype=np.uint8))
    batch = torch.from_numpy(
        np.stack([crops.pixels(picture, np.random.default_rng(seed)) for seed, picture in enumerate([*pictures, wide])])
    )
    rows, columns = patch_grid(batch)
    assert len({*zip(rows.tolist(), columns.tolist(), strict=True)}) > 2
    assert (rows * columns <= 16).all()
    embedded = model.encode_images(crops.normalize(batch))
    embedded.square().sum().backward()
    alone = model.encode_images(crops.normalize(batch[-1:]))
    torch.testing.assert_close(embedded[-1:], alone, atol=1e-5, rtol=0)  # padding has no effect
    assert model.model.vision_model.embeddings.patch_embedding.weight.grad.abs().max() > 0


def test_packed_and_unpacked_square_pictures_have_equal_embeddings(checkpoint):
    """So the square pictures of built-in worlds fit into a batch with others."""
    transform = load_model(checkpoint("naflex"), "cpu").transform
    square = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    assert np.array_equal(transform.pixels(square), transform.pack(square))
    model = load_model(checkpoint("naflex"), "cpu")
    flat = replace(transform, fit="squash").normalize(torch.from_numpy(square[None]))
    packed = transform.normalize(torch.from_numpy(transform.pack(square)[None]))
    with torch.no_grad():
        torch.testing.assert_close(model.encode_images(packed), model.encode_images(flat), atol=1e-6, rtol=0)


def test_an_embedding_does_not_depend_on_the_rest_of_the_batch(checkpoint, family, pixels, captions, monkeypatch):
    encoder = load_model(checkpoint(family), "cpu")
    images, texts = encoder.embed_images(pixels), encoder.embed_texts(captions)
    for row, text in enumerate(captions):  # a single text is padded less
        torch.testing.assert_close(encoder.embed_texts([text])[0], texts[row], atol=2e-6, rtol=0)
    monkeypatch.setattr("recollect.models.dual._MAX_ROWS", 2)
    torch.testing.assert_close(encoder.embed_images(pixels), images, atol=2e-6, rtol=0)
    torch.testing.assert_close(encoder.embed_texts(captions), texts, atol=2e-6, rtol=0)


def test_texts_longer_than_the_maximum_are_truncated(checkpoint, family):
    encoder = load_model(checkpoint(family), "cpu")
    longest = encoder.text.length
    assert encoder.tokenize(["cat " * 200])["input_ids"].shape == (1, longest)
    torch.testing.assert_close(encoder.embed_texts(["cat " * 200]), encoder.embed_texts(["cat " * 300]))


def test_embedding_disables_dropout_and_restores_training_mode(checkpoint, captions):
    encoder = load_model(checkpoint("vit_bert"), "cpu").train()
    assert torch.equal(encoder.embed_texts(captions), encoder.embed_texts(captions))
    assert encoder.training
    assert encoder.model.text_model.training
    first, second = (encoder.encode_texts(encoder.tokenize(captions)) for _ in range(2))
    assert not torch.equal(first, second), "dropout is on again"


def test_the_towers_contain_all_parameters_except_the_temperatures(checkpoint, family):
    encoder = load_model(checkpoint(family), "cpu")
    towers = {id(value) for tower in ("image", "text") for value in encoder.tower_parameters(tower)}
    rest = {name for name, value in encoder.model.named_parameters() if id(value) not in towers}
    assert rest <= {"logit_scale", "logit_bias"}
    assert not any(value.requires_grad for name, value in encoder.model.named_parameters() if name in rest)


def test_gradients_reach_every_parameter_also_with_recomputed_activations(checkpoint, family, pixels, captions):
    def gradients(encoder):
        encoder.train()
        torch.manual_seed(0)
        raw = encoder.encode_images(pixels).sum() + encoder.encode_texts(encoder.tokenize(captions)).sum()
        raw.backward()
        return [value.grad for value in encoder.parameters() if value.requires_grad]

    plain, recomputing = (load_model(checkpoint(family), "cpu") for _ in range(2))
    recomputing.checkpoint_activations()
    expected = gradients(plain)
    assert all(gradient is not None for gradient in expected)
    torch.testing.assert_close(gradients(recomputing), expected)


def test_setting_the_temperature_does_not_change_embeddings(checkpoint, captions):
    encoder = load_model(checkpoint("siglip"), "cpu")
    before = encoder.embed_texts(captions)
    encoder.set_scale(30.0, -4.0)
    assert encoder.scale == pytest.approx(30.0)
    assert encoder.bias == pytest.approx(-4.0)
    assert torch.equal(encoder.embed_texts(captions), before)
    assert load_model(checkpoint("clip"), "cpu").bias is None


@pytest.mark.parametrize("kind", ["altclip", "chinese_clip", "align", "metaclip_2"])
def test_other_dual_encoders_work(kind, tmp_path, captions, pictures, pixels, bert_words):
    from transformers import (
        AutoConfig,
        CLIPImageProcessorPil,
        EfficientNetImageProcessorPil,
        VisionTextDualEncoderProcessor,
    )

    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = tower | {"vocab_size": len(bert_words), "max_position_embeddings": 40, "eos_token_id": 3, "pad_token_id": 0}
    image = tower | {"image_size": 32, "patch_size": 8}
    if kind == "align":
        image = {"image_size": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 32}
    if kind == "altclip":
        text |= {"project_dim": 24}
    config = AutoConfig.for_model(kind, text_config=text, vision_config=image, projection_dim=32)
    size = {"height": 32, "width": 32}
    AutoModel.from_config(config).save_pretrained(tmp_path / kind)
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size)
    if kind == "align":  # as published except the sizes, 346 and 289
        images = EfficientNetImageProcessorPil(
            size={"height": 39, "width": 39}, crop_size=size, do_center_crop=True, rescale_factor=1 / 127.5,
            rescale_offset=True, do_normalize=False, include_top=False, resample=2,
        )  # fmt: skip
    VisionTextDualEncoderProcessor(images, deepcopy(bert_words)).save_pretrained(tmp_path / kind)  # changes it
    encoder = load_model(tmp_path / kind, "cpu")
    plain = AutoProcessor.from_pretrained(tmp_path / kind).image_processor(pictures, return_tensors="pt")[
        "pixel_values"
    ]
    own = torch.stack([encoder.transform(picture) for picture in pictures])
    torch.testing.assert_close(own, plain.float(), atol=1e-6, rtol=0)
    texts = encoder.embed_texts(captions)
    assert texts.shape[1] == encoder.embed_images(pixels).shape[1] == encoder.width
    torch.testing.assert_close(encoder.embed_texts(captions[:1])[0], texts[0], atol=2e-6, rtol=0)
    encoder.set_scale(20.0)
    plain = AutoModel.from_pretrained(encoder.save(tmp_path / "saved")).eval()
    learned = 1 / plain.temperature if kind == "align" else plain.logit_scale.exp()
    assert [learned.item(), encoder.scale] == pytest.approx([20, 20], rel=1e-5)
    if kind == "align":  # its batch norms have running means, which are not parameters
        before, frozen = encoder.fingerprint, encoder.embed_images(pixels)
        encoder.freeze("image")
        embedded = encoder.train().encode_images(pixels).detach()
        torch.testing.assert_close(torch.nn.functional.normalize(embedded, dim=1), frozen)
        assert encoder.fingerprint == before
        encoder.requires_grad_(True).train().encode_images(pixels)
        assert encoder.fingerprint != before


@pytest.mark.parametrize(
    "settings",
    [
        {"include_top": True},  # divides by the standard deviation twice
        {"include_top": True, "do_normalize": False, "do_center_crop": True, "crop_size": {"height": 20, "width": 20}},
        {"rescale_offset": True, "rescale_factor": 1 / 127.5, "include_top": False},
        {"rescale_factor": 1 / 128, "size": {"shortest_edge": 40}, "do_center_crop": True, "include_top": False,
         "crop_size": {"height": 33, "width": 33}},
    ],
)  # fmt: skip
def test_preprocessing_matches_the_checkpoints_processor(settings, pictures):
    from transformers import EfficientNetImageProcessorPil

    given = {"size": {"height": 31, "width": 31}} | settings
    kind = CLIPImageProcessorPil if "shortest_edge" in given["size"] else EfficientNetImageProcessorPil
    processor = kind(**given)
    transform = transform_of(processor, "here")
    expected = processor(pictures, return_tensors="pt")["pixel_values"].float()
    found = torch.stack([transform(picture) for picture in pictures])
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-6)
    assert transform_of(processor, "here").key == transform.key
    assert replace(transform, resized=transform.resized + 50).key != transform.key


def test_a_center_crop_larger_than_the_resized_picture_is_rejected():
    processor = CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 30, "width": 30})
    with pytest.raises(UserError, match="shortest_edge 20"):
        transform_of(processor, "here")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("CLIPImageProcessorPil", {"do_resize": False}),  # crops the middle of a large picture
        ("CLIPImageProcessorPil", {"do_center_crop": False}),
        ("SiglipImageProcessorPil", {"do_resize": False}),
        ("LevitImageProcessorPil", {}),  # resizes to 8/7 of the size in its settings
        ("MobileViTImageProcessorPil", {"size": {"shortest_edge": 288}}),  # swaps red and blue, does not normalize
    ],
)
def test_a_processor_that_prepares_pictures_otherwise_is_rejected(kind, settings):
    with pytest.raises(UserError, match="here: its image processor"):
        transform_of(getattr(transformers, kind)(**settings), "here")


def test_a_processor_that_does_not_normalize_is_followed(pictures):
    processor = CLIPImageProcessorPil(do_normalize=False)
    found = torch.stack([transform_of(processor, "here")(picture) for picture in pictures])
    torch.testing.assert_close(
        found, processor(pictures, return_tensors="pt")["pixel_values"].float(), atol=2e-6, rtol=0
    )
