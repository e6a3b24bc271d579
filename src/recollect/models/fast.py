"""Image towers on the CPU through ONNX Runtime, which fuses layers that PyTorch runs one by one.

A graph is made of a tower once it has embedded enough pictures to pay for it, and used only where its features agree
with PyTorch's. It is made again when a weight has changed.
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
"""A graph takes about as long to make as these pictures take to embed."""

MIN_COSINE = 0.9999
"""Between features of the graph and of PyTorch."""

_AT_A_TIME = 8
"""Pictures in one run of a graph. EfficientNet-Lite0 embeds 1.5 times as many per CPU second as with 128, since its
layers fit a cache, and the runtime keeps the memory of its largest run: 0.2 GB instead of 2."""

_TRIAL_IMAGES = 4
_LOOKED_AT = 1024  # entries of each tensor that tell whether it has changed


@dataclass
class ImageGraph:
    """An image tower up to its projection, as an ONNX Runtime session.

    Attributes:
        state: of the weights it was made of (`_state`).
        session: takes ``pixels`` (n, 3, size, size) and returns one matrix (n, features).
        threads: of the session.
    """

    state: bytes
    session: Any
    threads: int

    def __call__(self, pixels: Float[Tensor, "n channels rows columns"]) -> Float[Tensor, "n features"]:
        """The features of ``pixels``."""
        parts = [self.session.run(None, {"pixels": part.contiguous().numpy()})[0] for part in pixels.split(_AT_A_TIME)]
        return torch.from_numpy(np.concatenate(parts))


class _Stem(nn.Module):
    """An image tower without its projection. It shares all weights and leaves the model as it is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.copy(model)
        if hasattr(model, "visual_projection"):
            self.model._modules = {**model._modules, "visual_projection": nn.Identity()}

    def forward(self, pixels: Tensor) -> Tensor:
        return features(self.model.get_image_features(pixel_values=pixels))  # type: ignore[operator]


_seen: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_graphs: WeakKeyDictionary[nn.Module, ImageGraph | bytes] = WeakKeyDictionary()


def image_graph(encoder: DualEncoder, count: int) -> ImageGraph | None:
    """The graph of an encoder's image tower; None where PyTorch should compute.

    Args:
        encoder: a `TransformersEncoder` in evaluation mode.
        count: of pictures that are about to be embedded.
    """
    if not _possible(encoder):
        return None
    _seen[encoder] = _seen.get(encoder, 0) + count
    if _seen[encoder] < MIN_IMAGES:
        return None
    state, threads = _state(encoder), torch.get_num_threads()
    known = _graphs.get(encoder)
    if isinstance(known, ImageGraph) and (known.state, known.threads) == (state, threads):
        return known
    if known == state:  # it was tried, and did not agree
        return None
    made = _made(encoder, state, threads)
    _graphs[encoder] = made or state
    return made


def _possible(encoder: Any) -> bool:
    return (
        encoder.device.type == "cpu"
        and type(next(encoder.parameters())) is nn.Parameter  # no simulated device, no sharded weight
        and encoder.dtype == torch.float32
        and not encoder.transform.packs
        and not any(map(_hooked, encoder.model.vision_model.modules()))
        and find_spec("onnxruntime") is not None
        and find_spec("onnx") is not None
    )


def _hooked(module: nn.Module) -> bool:
    """Whether something from outside changes what a layer computes, which a graph would freeze as it is now."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _state(encoder: Any) -> bytes:
    """Changes whenever the image tower does. PyTorch counts writes to a tensor, but not those of fused optimizers and
    through ``.data``, so entries spread over each tensor are compared as well."""
    tensors = [tensor.detach() for tensor in (*encoder.tower_parameters("image"), *encoder.model.buffers())]
    entries = [tensor.flatten()[:: max(1, tensor.numel() // _LOOKED_AT)].float() for tensor in tensors]
    writes = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    return hashlib.blake2b(torch.cat(entries).numpy().tobytes() + repr(writes).encode(), digest_size=16).digest()


def _made(encoder: Any, state: bytes, threads: int) -> ImageGraph | None:
    import onnxruntime

    size = encoder.transform.size
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(_TRIAL_IMAGES, 3, size, size, generator=generator)
    file = io.BytesIO()
    try:
        stem = _Stem(encoder.model).eval()
        with silent_export():  # the older exporter: the newer one takes twenty times as long
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
    except Exception:  # an operator that the exporter or the runtime does not know, or a model of over 2 GB
        return None
    return graph if bool((agree >= MIN_COSINE).all()) else None


@contextmanager
def silent_export() -> Iterator[None]:
    """Silence the exporter, which warns of torchvision and of its own deprecated parts, and logs every step."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
