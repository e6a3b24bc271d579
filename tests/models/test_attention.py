"""Attention of the pooled token, compared with transformers' attention matrices."""

import torch
from transformers import AutoModel

from recollect.models import load_model
from recollect_papers.prefix.attention import text_attention


def every_matrix(folder, tokens):
    """Return each layer's attention, (n, heads, tokens, tokens), from transformers alone."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model.get_text_features(**tokens, output_attentions=True).attentions


def pooled_place(family, encoder, row):
    """Return the pooled position: the first end token for CLIP, the last token for SigLIP, the first for BERT."""
    if family in ("siglip", "naflex"):
        return len(row) - 1
    return row.index(encoder.tokenizer.eos_token_id) if family in ("clip", "swin_clip") else 0


def test_attention_maps_match_transformers(checkpoint, family, captions):
    encoder = load_model(checkpoint(family), "cpu")
    found = text_attention(encoder, captions)
    tokens = encoder.tokenize(captions)
    expected = every_matrix(checkpoint(family), tokens)
    assert len(found.layers) == len(expected) == 2
    for text, row in enumerate(tokens["input_ids"].tolist()):
        place = pooled_place(family, encoder, row)
        assert found.places[text] == place
        assert found.tokens[text] == tuple(encoder.tokenizer.convert_ids_to_tokens(row))
        for layer, matrix in zip(found.layers, expected, strict=True):
            torch.testing.assert_close(layer[text], matrix[text, :, place], atol=1e-6, rtol=0)


def test_reading_attention_leaves_the_model_unchanged(checkpoint, captions):
    encoder = load_model(checkpoint("siglip"), "cpu").train()
    implementation, before = encoder.model.text_model.config._attn_implementation, encoder.embed_texts(captions)
    text_attention(encoder, captions)
    assert encoder.training
    assert encoder.model.text_model.config._attn_implementation == implementation != "eager"
    assert torch.equal(encoder.embed_texts(captions), before)
