"""Prompt tokens in the towers, compared with words and with explicit forward passes."""
# ruff: noqa: F401, F811

import pytest
import torch

from classifiers.conftest import encoder, make_encoder, shots
from recollect.classifiers.tuning import frozen_copy
from recollect.core.errors import UserError
from recollect_papers.peers.prompts import (
    Prompts,
    check_family,
    prompt_tokens,
    prompted,
    token_width,
    word_vectors,
)

NAMES = ["cat.", "small red house."]


def draw(encoder, tower, layers, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(tokens, token_width(encoder, tower), generator=generator) for _ in range(layers))


@torch.no_grad()
def test_tokens_equal_to_word_embeddings_act_like_the_words(encoder):
    words = word_vectors(encoder, "a photo of a")
    tokens = prompt_tokens(encoder, NAMES, len(words))
    plain = encoder.tokenize([f"a photo of a {name}" for name in NAMES])
    assert {name: ids.shape for name, ids in tokens.items()} == {name: ids.shape for name, ids in plain.items()}
    with prompted(encoder, [Prompts((words,))]):
        found = encoder.encode_texts(tokens)
    assert torch.equal(found, encoder.encode_texts(plain))


def _layers(layers, states, mask, deeper, put):
    for number, layer in enumerate(layers):
        if 0 < number < len(deeper):
            states = put(states, deeper[number])
        states = layer(states, mask)
    return states


@torch.no_grad()
def test_tokens_in_a_text_tower_match_an_explicit_forward_pass(encoder):
    tower, siglip = encoder.model.text_model, hasattr(encoder.model.text_model, "head")
    start, vectors = 0 if siglip else 1, draw(encoder, "text", 2, 3)
    ids = prompt_tokens(encoder, NAMES, 3)["input_ids"]
    length = ids.shape[1]

    def put(states, tokens):
        states = states.clone()
        states[:, start : start + 3] = tokens
        return states

    words = put(tower.embeddings.token_embedding(ids), vectors[0])
    states = words + tower.embeddings.position_embedding.weight[:length]
    causal = None if siglip else torch.full((length, length), -torch.inf).triu(1)[None, None]
    states = tower.final_layer_norm(_layers(tower.encoder.layers, states, causal, vectors, put))
    end = [length - 1] * 2 if siglip else ids.argmax(dim=1)
    pooled = states[torch.arange(2), end]
    expected = tower.head(pooled) if siglip else encoder.model.text_projection(pooled)
    with prompted(encoder, [Prompts(vectors)]):
        found = encoder.encode_texts(prompt_tokens(encoder, NAMES, 3))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - encoder.encode_texts(prompt_tokens(encoder, NAMES, 3))).abs().max() > 1e-3


@torch.no_grad()
def test_tokens_in_an_image_tower_match_an_explicit_forward_pass(encoder):
    tower, siglip = encoder.model.vision_model, not hasattr(encoder.model, "visual_projection")
    pixels, vectors = torch.randn(2, 3, 32, 32), draw(encoder, "image", 2, 3)

    def put(states, tokens):
        return torch.cat([states[:, :-3], tokens.expand(2, -1, -1)], dim=1)

    states = torch.cat([tower.embeddings(pixels), vectors[0].expand(2, -1, -1)], dim=1)
    states = states if siglip else tower.pre_layrnorm(states)
    states = _layers(tower.encoder.layers, states, None, vectors, put)
    if siglip:
        expected = tower.head(tower.post_layernorm(states[:, :-3]))
    else:
        expected = encoder.model.visual_projection(tower.post_layernorm(states[:, 0]))
    plain = encoder.encode_images(pixels)
    with prompted(encoder, [Prompts((), vectors)]):
        found = encoder.encode_images(pixels)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - plain).abs().max() > 1e-3
    assert torch.equal(encoder.encode_images(pixels), plain)  # hooks are removed


@torch.no_grad()
def test_two_learners_equal_one_with_the_tokens_of_both(encoder):
    first, second = (Prompts(draw(encoder, "text", 2, n, n), draw(encoder, "image", 2, n, 10 + n)) for n in (1, 2))
    both = Prompts(*(tuple(map(torch.cat, zip(a, b, strict=True))) for a, b in
                     ((first.text, second.text), (first.image, second.image))))  # fmt: skip
    pixels, tokens = torch.randn(2, 3, 32, 32), prompt_tokens(encoder, NAMES, 3)
    found = []
    for prompts in ([first, second], [both]):
        with prompted(encoder, prompts):
            found += [encoder.encode_images(pixels), encoder.encode_texts(tokens)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_only_tokens_get_gradients(encoder):
    frozen = frozen_copy(encoder)
    own = torch.randn(3, token_width(encoder, "text"), requires_grad=True)
    with prompted(frozen, [Prompts((own,))]):
        frozen.encode_texts(prompt_tokens(frozen, NAMES, 3)).sum().backward()
    assert own.grad.abs().amax(dim=1).min() > 0
    assert all(parameter.grad is None for parameter in frozen.parameters())


def test_long_names_are_truncated_before_the_end_token(encoder):
    tokens = prompt_tokens(encoder, ["a large blue umbrella above a tree " * 30], 4)
    assert tokens["input_ids"].shape[1] == encoder.longest_text
    if "attention_mask" in tokens:
        assert tokens["input_ids"][0, -1] == encoder.tokenizer.eos_token_id
        assert tokens["attention_mask"].all()


def test_unsupported_towers_are_rejected(make_encoder):
    with pytest.raises(UserError):
        check_family(make_encoder("vit_bert"))
    check_family(make_encoder("naflex"))
    with pytest.raises(UserError):
        check_family(make_encoder("naflex"), image=True)
