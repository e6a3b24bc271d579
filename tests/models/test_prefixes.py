"""Prefix tokens have separate embeddings, precede the text, and change nothing else."""

import pytest
import torch

from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.transformers.encoder import TransformersEncoder
from recollect.models.transformers.processors import transform_of
from recollect_papers.prefix.attention import pooled_places

KINDS = ("caption", "label")


@pytest.fixture
def encoder(checkpoint, family):
    return load_model(checkpoint(family), "cpu")


@pytest.fixture
def prefixed(checkpoint, family):
    model = load_model(checkpoint(family), "cpu")
    model.add_prefixes(KINDS)
    return model


def test_prefixes_change_text_embeddings(prefixed, captions):
    caption, label, none = (prefixed.embed_texts(captions, kind) for kind in ("caption", "label", None))
    for first, second in ((caption, label), (caption, none), (label, none)):
        assert (first - second).abs().amax(1).min() > 1e-6


def test_new_tokens_change_neither_texts_without_a_prefix_nor_images(encoder, prefixed, captions, pixels):
    torch.testing.assert_close(prefixed.embed_texts(captions), encoder.embed_texts(captions), atol=1e-6, rtol=0)
    torch.testing.assert_close(prefixed.embed_images(pixels), encoder.embed_images(pixels), atol=0, rtol=0)
    assert prefixed.fingerprint != encoder.fingerprint


def test_the_prefix_comes_between_the_start_token_and_the_text(encoder, prefixed):
    captions = ["a cat", "a red house"]
    bare = encoder.tokenize(captions)["input_ids"].tolist()
    for kind in KINDS:
        new = prefixed.tokenizer.convert_tokens_to_ids(prefixed.prefixes[kind][0])
        assert new >= len(encoder.tokenizer)
        for with_prefix, without in zip(prefixed.tokenize(captions, kind)["input_ids"].tolist(), bare, strict=True):
            start = with_prefix.index(new)
            assert start <= 1
            rest = with_prefix[:start] + with_prefix[start + 1 :]
            shortest = min(len(rest), len(without))
            assert rest[:shortest] == without[:shortest]


def test_a_prefix_does_not_exceed_the_maximum_length(encoder, prefixed):
    tokens = prefixed.tokenize(["cat " * 200], "label")
    assert tokens["input_ids"].shape == (1, encoder.text.length)
    assert torch.isfinite(prefixed.embed_texts(["cat " * 200], "label")).all()


def test_each_text_gets_the_prefix_of_its_kind(prefixed, captions):
    kinds = ["caption", "label"] * 3
    mixed = prefixed.tokenize(captions, kinds)
    for row, (text, kind) in enumerate(zip(captions, kinds, strict=True)):
        alone = prefixed.tokenize([text], kind)["input_ids"][0].tolist()
        assert mixed["input_ids"][row].tolist()[: len(alone)] == alone


def test_new_embedding_rows_are_random_and_old_ones_unchanged(encoder, prefixed):
    old = encoder.model.text_model.get_input_embeddings().weight
    table = prefixed.model.text_model.get_input_embeddings().weight
    assert torch.equal(table[: len(old)], old)
    ids = prefixed.tokenizer.convert_tokens_to_ids(["<|caption|>", "<|label|>"])
    assert 0.01 < table[ids].std() < 0.03  # N(0, 0.02)
    assert table.requires_grad


@pytest.mark.parametrize("end", [2, None])
def test_a_clip_tower_pools_at_its_end_token_although_prefixes_have_larger_ids(clip_with_end, end, captions):
    """Published checkpoints store either the end token's id, or 2 to mean the largest id in the text."""
    torch.manual_seed(0)
    model, processor = clip_with_end(end)
    encoder = TransformersEncoder(model.eval(), processor, transform_of(processor.image_processor, "clip"))
    encoder.add_prefixes(KINDS)
    tokens = encoder.tokenize(captions, "label")
    end_token = encoder.tokenizer.eos_token_id
    assert tokens["input_ids"].max() > end_token
    with torch.no_grad():
        states = model.text_model(**tokens).last_hidden_state
        rows = [row.tolist().index(end_token) for row in tokens["input_ids"]]
        expected = model.text_projection(torch.stack([state[place] for state, place in zip(states, rows, strict=True)]))
        assert pooled_places(tokens["input_ids"], model.config).tolist() == rows
        torch.testing.assert_close(encoder.encode_texts(tokens), expected)


def test_prefixes_are_saved_and_loaded(prefixed, captions, tmp_path):
    prefixed.save(tmp_path / "model")
    again = load_model(tmp_path / "model", "cpu")
    assert again.prefixes == prefixed.prefixes
    for kind in (*KINDS, None):
        assert torch.equal(again.embed_texts(captions, kind), prefixed.embed_texts(captions, kind))


def test_only_the_prefix_in_use_gets_a_gradient(prefixed, captions):
    prefixed.encode_texts(prefixed.tokenize(captions, "label")).square().sum().backward()
    gradient = prefixed.model.text_model.get_input_embeddings().weight.grad
    caption, label = prefixed.tokenizer.convert_tokens_to_ids(["<|caption|>", "<|label|>"])
    assert gradient[label].abs().max() > 0
    assert gradient[caption].abs().max() == 0


def test_several_prefix_tokens_of_a_kind_are_in_order(checkpoint, captions):
    encoder = load_model(checkpoint("vit_bert"), "cpu")
    encoder.add_prefixes(("label",), length=3)
    words = encoder.tokenizer.convert_ids_to_tokens(encoder.tokenize(captions[:1], "label")["input_ids"][0].tolist())
    assert words[:4] == ["[CLS]", "<|label|>", "<|label:2|>", "<|label:3|>"]


def test_adding_an_existing_prefix_keeps_its_embedding(checkpoint, captions):
    encoder = load_model(checkpoint("siglip"), "cpu")
    encoder.add_prefixes(("label",), seed=1)
    before = encoder.embed_texts(captions, "label")
    encoder.add_prefixes(KINDS, seed=2)
    torch.testing.assert_close(encoder.embed_texts(captions, "label"), before, atol=1e-6, rtol=0)


def test_the_error_names_an_unknown_prefix(checkpoint, captions):
    encoder = load_model(checkpoint("clip"), "cpu")
    encoder.add_prefixes(("caption",))
    with pytest.raises(UserError, match="label"):
        encoder.embed_texts(captions, "label")
    with pytest.raises(ValueError):
        encoder.tokenize(captions, ["caption", "caption"])


def test_a_bag_of_words_has_prefixes_too(captions, tmp_path):
    encoder = build_model("vector-mlp", texts=captions)
    before = encoder.embed_texts(captions)
    encoder.add_prefixes(KINDS)
    assert torch.equal(encoder.embed_texts(captions), before)
    assert not torch.equal(encoder.embed_texts(captions, "caption"), encoder.embed_texts(captions, "label"))
    encoder.save(tmp_path / "model")
    again = load_model(tmp_path / "model", "cpu")
    assert torch.equal(again.embed_texts(captions, "label"), encoder.embed_texts(captions, "label"))
    with pytest.raises(ValueError):
        encoder.tokenize(captions, ["label"])
