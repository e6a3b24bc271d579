"""New blocks before those of an image tower, behind gates that begin closed (REACT)."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from recollect.core.errors import UserError
from recollect.data.transforms import patch_grid
from recollect.models import build_model, load_model
from recollect.models.export import ImageTower
from recollect.models.transformers.gated import GATED_WEIGHTS, GatedBlock


def opened(encoder, seed=0):
    """The encoder with blocks whose gates are open."""
    encoder.add_gated(seed)
    with torch.no_grad():
        for place, block in enumerate(encoder.gated, 1):
            block.gate_attention.fill_(0.3 * place)
            block.gate_mlp.fill_(-0.2 * place)
    return encoder


@pytest.mark.parametrize("family", ["clip", "siglip", "naflex", "vit_bert"])
def test_behind_closed_gates_a_model_is_the_one_before_to_the_bit(checkpoint, family, pictures, captions):
    encoder = load_model(checkpoint(family), "cpu")
    before, texts = encoder.embed_images(pictures), encoder.embed_texts(captions)
    encoder.add_gated(seed=3)
    assert torch.equal(encoder.embed_images(pictures), before)
    opened(encoder)
    assert (encoder.embed_images(pictures) - before).abs().max() > 1e-3
    assert torch.equal(encoder.embed_texts(captions), texts)


def test_a_block_sees_no_more_of_a_picture_than_the_tower_does(checkpoint):
    """NaFlex pads pictures of few patches; what stands in the rows behind their own is not looked at."""
    encoder = opened(load_model(checkpoint("naflex"), "cpu"))
    picture = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    packed = encoder.transform.normalise(torch.from_numpy(encoder.transform.pixels(picture)[None]))
    high, wide = patch_grid(packed)
    other = packed.clone()
    other[:, int(high * wide) : -1] = 7.0
    assert not torch.equal(packed, other), "or nothing is padded"
    with torch.no_grad():
        torch.testing.assert_close(encoder.encode_images(other), encoder.encode_images(packed), atol=1e-6, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_a_block_equals_a_slow_reference(masked):
    """Token by token and head by head, from the weights alone."""
    torch.manual_seed(0)
    block = GatedBlock(6, 2, 10, "gelu", 1e-6).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.5)
    tokens = torch.randn(2, 4, 6, dtype=torch.float64)
    seen = (
        torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool) if masked else torch.ones(2, 4, dtype=torch.bool)
    )

    def norm(row, layer):
        centred = row - row.mean()
        return centred / (centred.square().mean() + 1e-6).sqrt() * layer.weight + layer.bias

    expected = torch.empty_like(tokens)
    block.requires_grad_(False)
    for picture in range(2):
        normed = [norm(row, block.norm_attention) for row in tokens[picture]]
        queries, keys, values = (
            [weight @ row + bias for row in normed]
            for weight, bias in zip(block.mixed.weight.split(6), block.mixed.bias.split(6), strict=True)
        )
        for place in range(4):
            heads = []
            for head in (slice(0, 3), slice(3, 6)):
                those = [other for other in range(4) if seen[picture, other]]
                weights = [torch.exp(queries[place][head] @ keys[other][head] / math.sqrt(3)) for other in those]
                total = sum(weights)
                heads.append(sum(w / total * values[other][head] for w, other in zip(weights, those, strict=True)))
            row = tokens[picture, place] + block.gate_attention.tanh() * (
                block.out.weight @ torch.cat(heads) + block.out.bias
            )
            inner = block.up.weight @ norm(row, block.norm_mlp) + block.up.bias
            inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
            expected[picture, place] = row + block.gate_mlp.tanh() * (block.down.weight @ inner + block.down.bias)
    mask = seen[:, None, None] if masked else None
    torch.testing.assert_close(block(tokens, mask), expected, atol=1e-12, rtol=0)


def test_what_is_saved_opens_as_it_was_and_plain_transformers_says_that_it_cannot(checkpoint, pictures, tmp_path):
    encoder = opened(load_model(checkpoint("clip"), "cpu"))
    before, embedded = encoder.fingerprint, encoder.embed_images(pictures)
    folder = encoder.save(tmp_path / "model")
    again = load_model(folder, "cpu")
    assert again.fingerprint == before != load_model(checkpoint("clip"), "cpu").fingerprint
    assert torch.equal(again.embed_images(pictures), embedded)
    assert load_model(again.save(tmp_path / "again"), "cpu").fingerprint == before
    with pytest.raises(OSError, match="no file named model"):
        AutoModel.from_pretrained(folder)
    weights = load_file(folder / GATED_WEIGHTS)
    save_file({name: each for name, each in weights.items() if name != "gated.0.gate_mlp"}, folder / GATED_WEIGHTS)
    with pytest.raises(UserError, match="model"):
        load_model(folder, "cpu")
    (folder / GATED_WEIGHTS).write_bytes(b"half")
    with pytest.raises(UserError, match=r"gated\.safetensors is missing or damaged"):
        load_model(folder, "cpu")


def test_the_blocks_belong_to_the_image_tower(checkpoint):
    encoder = load_model(checkpoint("clip"), "cpu")
    stem = encoder.stem_fingerprint("image")
    opened(encoder)
    assert encoder.stem_fingerprint("image") != stem
    encoder.freeze("image")
    assert not any(parameter.requires_grad for parameter in encoder.gated.parameters())
    twice = [load_model(checkpoint("clip"), "cpu") for _ in range(2)]
    for other, seed in zip(twice, (0, 1), strict=True):
        other.add_gated(seed)
    assert not torch.equal(twice[0].gated[0].up.weight, twice[1].gated[0].up.weight)
    assert not torch.equal(twice[0].gated[0].up.weight, twice[0].gated[1].up.weight)


def test_a_tower_without_blocks_of_one_width_is_refused(checkpoint):
    with pytest.raises(UserError, match=r"--model\.gated"):
        load_model(checkpoint("swin_clip"), "cpu").add_gated()


def test_what_is_traced_for_an_export_has_the_blocks():
    encoder = opened(build_model("tiny", texts=["a cat"]).eval())
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        traced = torch.export.export(ImageTower(encoder), (pixels,)).module()
        torch.testing.assert_close(traced(pixels), encoder.embed_images(pixels), atol=1e-6, rtol=0)
