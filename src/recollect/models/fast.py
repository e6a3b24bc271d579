"""Faster image towers on the CPU through ONNX Runtime, which fuses layers that PyTorch runs one by one.

A tower is exported once it has embedded enough pictures to be worth the time. The graph is used only if its features
agree with PyTorch's, and exported again when the weights change.
"""

from __future__ import annotations

import copy
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.models.dual import DualEncoder
from recollect.models.transformers.families import features

MIN_IMAGES = 64
"""Export takes about as long as embedding this many pictures."""

MIN_COSINE = 0.9999
"""Minimum cosine between the features of the graph and of PyTorch."""

_BATCH = 8
"""Pictures per run of a graph. EfficientNet-Lite0 embeds 1.5 times as many per CPU second as with 128, because its
layers fit in the cache. The runtime also retains the memory of its largest run: 0.2 GB instead of 2 GB."""

_TRIAL_IMAGES = 4
_SAMPLED = 1024  # entries of each tensor compared to detect a change


@dataclass
class ImageGraph:
    """ONNX Runtime session of an image tower up to its projection.

    Attributes:
        state: `_weight_digest` of the exported weights.
        session: maps ``pixels`` (n, 3, size, size) to a matrix (n, features).
        threads: number of threads of the session.
    """

    state: bytes
    session: Any
    threads: int

    def __call__(self, pixels: Float[Tensor, "n channels rows columns"]) -> Float[Tensor, "n features"]:
        """Return the features of ``pixels``."""
        parts = [self.session.run(None, {"pixels": part.contiguous().numpy()})[0] for part in pixels.split(_BATCH)]
        return torch.from_numpy(np.concatenate(parts))


class _Stem(nn.Module):
    """Image tower without its projection; it shares all weights with the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.copy(model)
        if hasattr(model, "visual_projection"):
            self.model._modules = {**model._modules, "visual_projection": nn.Identity()}

    def forward(self, pixels: Tensor) -> Tensor:
        return features(self.model.get_image_features(pixel_values=pixels))  # type: ignore[operator]


_counts: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_graphs: WeakKeyDictionary[nn.Module, ImageGraph | bytes] = WeakKeyDictionary()


def image_graph(encoder: DualEncoder, count: int) -> ImageGraph | None:
    """Return the graph of an encoder's image tower, or None if PyTorch should be used.

    Args:
        encoder: a `TransformersEncoder` in evaluation mode.
        count: number of pictures about to be embedded.
    """
    if not _supported(encoder):
        return None
    _counts[encoder] = _counts.get(encoder, 0) + count
    if _counts[encoder] < MIN_IMAGES:
        return None
    state, threads = _weight_digest(encoder), torch.get_num_threads()
    cached = _graphs.get(encoder)
    if isinstance(cached, ImageGraph) and (cached.state, cached.threads) == (state, threads):
        return cached
    if cached == state:  # an earlier attempt with these weights failed
        return None
    graph = _build(encoder, state, threads)
    _graphs[encoder] = graph or state
    return graph


def _supported(encoder: Any) -> bool:
    return (
        encoder.device.type == "cpu"
        and type(next(encoder.parameters())) is nn.Parameter  # no fake tensors, no sharded weights
        and encoder.dtype == torch.float32
        and not encoder.transform.packs
        # An exported graph would freeze the current effect of hooks.
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in encoder.model.vision_model.modules())
        and find_spec("onnxruntime") is not None
        and find_spec("onnx") is not None
    )


def _weight_digest(encoder: Any) -> bytes:
    """Return a digest that changes with the image tower's weights.

    PyTorch counts writes to a tensor, but not those of fused optimizers or through ``.data``, so the digest also covers
    a sample of each tensor's entries.
    """
    tensors = [tensor.detach() for tensor in (*encoder.tower_parameters("image"), *encoder.model.buffers())]
    entries = [tensor.flatten()[:: max(1, tensor.numel() // _SAMPLED)].float() for tensor in tensors]
    writes = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    return hashlib.blake2b(torch.cat(entries).numpy().tobytes() + repr(writes).encode(), digest_size=16).digest()


def _build(encoder: Any, state: bytes, threads: int) -> ImageGraph | None:
    import onnxruntime

    size = encoder.transform.size
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(_TRIAL_IMAGES, 3, size, size, generator=generator)
    file = io.BytesIO()
    try:
        stem = _Stem(encoder.model).eval()
        with silent_export():  # dynamo=False: the newer exporter takes twenty times as long
            torch.onnx.export(
                stem,
                (pixels,),
                file,
                input_names=["pixels"],
                output_names=["features"],
                dynamic_axes={"pixels": {0: "n"}, "features": {0: "n"}},
                opset_version=18,
                dynamo=False,
            )
        expected = stem(pixels)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
        graph = ImageGraph(state, session, threads)
        agree = F.cosine_similarity(graph(pixels), expected, dim=1)
    except Exception:  # unsupported by the exporter or the runtime, or a model of over 2 GB
        return None
    return graph if bool((agree >= MIN_COSINE).all()) else None


@contextmanager
def silent_export() -> Iterator[None]:
    """Silence the ONNX exporter, which logs every step and warns about torchvision and its own deprecations."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
