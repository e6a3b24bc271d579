"""ONNX Runtime and PyTorch give pictures the same embeddings."""

import numpy as np
import pytest
import torch

from recollect.models import load_model
from recollect.models.fast import MIN_IMAGES, image_graph

pytest.importorskip("onnxruntime")
PICTURES = list(np.random.default_rng(0).integers(0, 256, (MIN_IMAGES, 40, 48, 3), dtype=np.uint8))
FAMILIES = ("clip", "siglip", "vit_bert")


def by_torch(model, pictures, few=8):
    """Embed in batches too small for ONNX Runtime."""
    return torch.cat([model.embed_images(pictures[start : start + few]) for start in range(0, len(pictures), few)])


@pytest.mark.parametrize("family", FAMILIES)
def test_both_runtimes_agree(checkpoint, family):
    name = str(checkpoint(family))
    slow, fast = load_model(name, "cpu"), load_model(name, "cpu")
    expected = by_torch(slow, PICTURES[: MIN_IMAGES - 8])
    names, fingerprint = list(fast.state_dict()), fast.fingerprint
    found = fast.embed_images(PICTURES)
    assert (list(fast.state_dict()), fast.fingerprint) == (names, fingerprint), "the model must not change"
    assert image_graph(fast, 0) is not None
    assert image_graph(slow, 0) is None
    torch.testing.assert_close(found[: len(expected)], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        fast.pooled_images(PICTURES[:3]), load_model(name, "cpu").pooled_images(PICTURES[:3]), atol=1e-4, rtol=1e-4
    )


@torch.no_grad()
def by_hand(model):
    for parameter in model.tower_parameters("image"):
        parameter.mul_(1.5)


def by_data(model):
    for parameter in model.tower_parameters("image"):
        parameter.data.mul_(1.5)


def by_fused_step(model):
    parameters = list(model.tower_parameters("image"))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(parameters, lr=0.1, fused=True).step()


@pytest.mark.parametrize("change", [by_hand, by_data, by_fused_step])
def test_a_changed_weight_changes_the_embeddings(checkpoint, change):
    model = load_model(str(checkpoint("clip")), "cpu")
    before = model.embed_images(PICTURES)
    change(model)
    after = model.embed_images(PICTURES)
    assert not torch.allclose(before, after, atol=1e-3)
    changed = load_model(str(checkpoint("clip")), "cpu")
    changed.load_state_dict(model.state_dict())
    torch.testing.assert_close(after[:8], changed.embed_images(PICTURES[:8]), atol=1e-5, rtol=0)
