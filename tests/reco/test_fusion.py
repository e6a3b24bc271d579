"""The fusion compared with a transformer block written as loops and with torch's own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from recollect.core.errors import UserError
from recollect.reco.block import FusionBlock, FusionModule, FusionSettings


def randomized(block, seed=0):
    """Make every weight random, so no branch is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.3)
    return block


def full_block(block, tokens):
    """Apply torch's pre-norm layer with the block's weights to the tokens except empty slots."""
    width = tokens.shape[2]
    layer = nn.TransformerEncoderLayer(
        width, block.heads, width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=tokens.dtype
    )
    parts = {"self_attn.out_proj": block.output, "linear1": block.up, "linear2": block.down,
             "norm1": block.norm_attention, "norm2": block.norm_mlp}  # fmt: skip
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.named_parameters()}
    for key in ("weight", "bias"):
        own = [getattr(part, key) for part in (block.query, block.key, block.value)]
        state[f"self_attn.in_proj_{key}"] = torch.cat(own)
    empty = (tokens == 0).all(2)
    return torch.func.functional_call(layer, state, (tokens,), {"src_key_padding_mask": empty})[:, 0]


def unit(*shape, seed=0, dtype=torch.float64):
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def test_the_parameter_count_matches_the_paper():
    paper = FusionModule(FusionSettings(512, start="embedding"))
    assert sum(parameter.numel() for parameter in paper.parameters()) == 3_155_968


def test_gradients_match_the_full_block():
    block = randomized(FusionBlock(128).double())
    tokens = unit(4, 5, 128).requires_grad_()
    leaves = dict(block.named_parameters()) | {"tokens": tokens}
    found, expected = (
        dict(zip(leaves, torch.autograd.grad(out.square().sum(), leaves.values()), strict=True))
        for out in (block(tokens), full_block(block, tokens))
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_empty_slots_have_no_effect():
    block = randomized(FusionBlock(64).double())
    tokens = unit(3, 4, 64)
    padded = torch.cat([tokens, torch.zeros(3, 5, 64, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(block(padded), block(tokens))
    padded.requires_grad_()
    block(padded).sum().backward()
    assert torch.isfinite(padded.grad).all()


def start_value(start, gate, tokens):
    """Compute the start one sample at a time: the embedding or the gated mixture."""
    results = []
    for sample in tokens:
        own, read = sample[0], [row for row in sample[1:] if row.abs().max() > 0]
        total = sum(read, torch.zeros_like(own))
        direction = total / total.norm() if len(read) else total
        if start == "embedding":
            results.append(own)
        else:
            weight = 1 / (1 + math.exp(-gate))
            results.append(2 * (1 - weight) * own + 2 * weight * direction)
    return torch.stack(results)


@given(
    width=st.sampled_from([8, 64, 128, 192]), start=st.sampled_from(["embedding", "gate"]),
    slots=st.integers(1, 6), empty=st.integers(0, 4), gate=st.floats(-3, 3), seed=st.integers(0, 1000),
)  # fmt: skip
def test_a_block_adds_the_correction_of_the_full_block_to_every_start(width, start, slots, empty, gate, seed):
    """From the embedding, it equals token 0 of the full block."""
    paper = randomized(FusionBlock(width).double(), seed)
    block = FusionBlock(width, start).double()
    block.load_state_dict(paper.state_dict(), strict=False)
    if start == "gate":
        block.gate.data.fill_(gate)
    tokens = unit(3, slots, width, seed=seed)
    tokens[1, max(1, slots - empty) :] = 0
    expected = start_value(start, gate, tokens) + full_block(paper, tokens) - tokens[:, 0]
    torch.testing.assert_close(block(tokens), expected, rtol=1e-9, atol=1e-9)


@given(weight=st.floats(0.01, 0.99), slots=st.integers(1, 6), seed=st.integers(0, 1000))
def test_a_weighted_mean_is_the_start_of_a_gate(weight, slots, seed):
    tokens = unit(3, slots, 64, seed=seed)
    expected = functional.normalize(start_value("gate", math.log(weight / (1 - weight)), tokens), dim=1)
    for kind in ("mean", "transformer"):
        fusion = FusionModule(FusionSettings(64, kind, weight=weight)).double()
        torch.testing.assert_close(fusion("image", tokens), expected, rtol=1e-6, atol=1e-6)  # the gate was a float32


@pytest.mark.parametrize(
    ("search", "read"), [("uni", "cross"), ("cross", "cross"), ("uni", "uni"), ("cross", "uni"), ("uni", "both")]
)
def test_search_and_read_select_the_modalities(search, read):
    settings = FusionSettings(8, search=search, read=read)
    assert settings.searched("image") == ("image" if search == "uni" else "text")
    assert settings.taken("image") == {"cross": ("text",), "uni": ("image",), "both": ("text", "image")}[read]
    assert settings.searched("text") == ("text" if search == "uni" else "image")
    assert settings.taken("text") == {"cross": ("image",), "uni": ("text",), "both": ("image", "text")}[read]


@pytest.mark.parametrize("settings", [{"kind": "mlp"}, {"start": "embedding"}], ids=str)
def test_a_weight_without_effect_is_refused(settings):
    with pytest.raises(ValueError, match="weight: only used by kind 'mean'"):
        FusionSettings(8, weight=0.3, **settings)


@pytest.mark.parametrize("kind", ["transformer", "mean", "mlp"])
@pytest.mark.parametrize(("modalities", "start"), [("both", "gate"), ("image", "gate"), ("text", "embedding")])
def test_a_saved_fusion_opens_unchanged(tmp_path, kind, modalities, start):
    weight = 0.3 if kind == "mean" or (kind, start) == ("transformer", "gate") else None
    settings = FusionSettings(64, kind, "cross", "uni", modalities, start, weight)
    fusion = randomized(FusionModule(settings, "model-a", {"k": 7}))
    again = FusionModule.open(fusion.save(tmp_path / "fusion"))
    assert again.settings == fusion.settings
    assert (again.model, again.trained, again.fingerprint) == ("model-a", {"k": 7}, fusion.fingerprint)
    tokens = unit(3, 5, 64, dtype=torch.float32)
    for modality in ("image", "text"):
        assert torch.equal(again(modality, tokens), fusion(modality, tokens))
    assert sorted(file.name for file in (tmp_path / "fusion").iterdir()) == [
        "checksums.json", "fusion.json", "fusion.safetensors",
    ]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
def test_invalid_fusions_are_rejected(tmp_path):
    with pytest.raises(UserError, match=r"no fusion \(fusion.json is missing\)"):
        FusionModule.open(tmp_path)
    saved = FusionModule(FusionSettings(8)).save(tmp_path / "run" / "model")
    with pytest.raises(UserError, match=r"Use the trained model: .*model\."):
        FusionModule.open(tmp_path / "run")
    with pytest.raises(UserError, match="already exists"):
        FusionModule(FusionSettings(8)).save(saved)
    weights = saved / "fusion.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="the fusion cannot be opened"):
        FusionModule.open(saved)
    with pytest.raises(ValueError, match=r"tokens \(2, 3, 4\), but the fusion is 8 wide"):
        FusionModule(FusionSettings(8))("image", torch.zeros(2, 3, 4))
