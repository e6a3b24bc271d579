"""ONNX export of both towers, for runtimes without PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.errors import UserError, user_errors
from recollect.core.files import fresh_folder, write_json
from recollect.core.progress import note
from recollect.core.validation import refuse
from recollect.models.dual import DualEncoder
from recollect.models.fast import silent_export
from recollect.models.transformers.encoder import TransformersEncoder

IMAGE_FILE, TEXT_FILE, EXPORT_FILE = "image.onnx", "text.onnx", "export.json"
EXPORT_FORMAT = 2

_TRIAL_TEXTS = ("a photo of a cat", "two dogs")


class ImageTower(nn.Module):
    """Module from pixels to unit embeddings, equal to `DualEncoder.embed_images`."""

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        return F.normalize(self.model.encode_images(pixels), dim=-1)


class TextTower(nn.Module):
    """Module from one to three token tensors, in the tokenizer's order, to unit embeddings.

    Args:
        then: module applied to the embeddings.
    """

    def __init__(self, model: DualEncoder, then: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.then = model, then or nn.Identity()
        self.names = tuple(model.tokenize(_TRIAL_TEXTS))

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Float[Tensor, "n width"]:  # torch 2.9 cannot trace a variadic signature
        tokens = zip(self.names, (each for each in (ids, mask, types) if each is not None), strict=True)
        return self.then(F.normalize(self.model.encode_texts(dict(tokens)), dim=-1))


def check_exportable(model: object) -> TransformersEncoder:
    """Return the model if it can be exported to ONNX.

    Raises:
        UserError: the extra ``onnx`` is not installed, or the model is a NaFlex model or not a transformers model.
    """
    kind = type(model).__name__
    if not isinstance(model, TransformersEncoder):
        raise UserError(f"{kind}: only transformers models can be exported.")
    naflex = "NaFlex models cannot be exported. Name a fixed-size checkpoint: google/siglip2-base-patch16-256"
    absent = find_spec("onnx") is None or find_spec("onnxscript") is None
    refuse(
        (model.transform.packs, f"{kind}: {naflex}"),
        (absent, "onnx is not installed. Install it with: pip install 'recollect[onnx]'."),
    )
    return model


def export_onnx(model: DualEncoder, folder: str | Path) -> Path:
    """Export both towers to ONNX, with the tokenizer and image processor.

    ``image.onnx`` maps float32 ``pixels`` (n, 3, size, size), transformed as specified in ``export.json``, to
    ``embeddings`` (n, width) of norm 1. ``text.onnx`` maps the tokenizer's outputs (int64, by name, padded as specified
    in ``export.json``) to ``embeddings``. The number of rows is dynamic, and so is the number of tokens unless the
    tower requires a fixed text length.

    Args:
        model: a transformers model in float32, on any device; it is not changed.
        folder: a new folder, written atomically.

    Returns:
        The folder.

    Raises:
        UserError: the extra ``onnx`` is not installed, ``folder`` already exists, or a tower cannot be exported.
    """
    check_exportable(model)
    with fresh_folder(folder, "exported model") as unfinished, cpu_eval_mode(model):
        write_image_graph(ImageTower(model), model, unfinished / IMAGE_FILE, ["embeddings"])
        write_text_graph(TextTower(model), unfinished / TEXT_FILE)
        write_record(model, unfinished, {})
    return Path(folder)


@contextmanager
def cpu_eval_mode(model: DualEncoder) -> Iterator[None]:
    """Keep a model on the CPU in evaluation mode inside the block, then restore device and mode."""
    device, training = model.device, model.training
    model.to("cpu").eval()
    try:
        yield
    finally:
        model.to(device).train(training)


def write_record(model: DualEncoder, folder: Path, more: dict[str, Any]) -> None:
    """Write ``export.json`` and the tokenizer."""
    assert isinstance(model, TransformersEncoder), "checked"
    model.processor.save_pretrained(folder)
    record = {"format": EXPORT_FORMAT, "fingerprint": model.fingerprint, "width": model.width}
    temperature = {"scale": model.scale, "bias": model.bias}
    read = {"text": text_inputs(model), "prefixes": model.prefixes, "transform": asdict(model.transform)}
    write_json(folder / EXPORT_FILE, record | temperature | read | more)


def _tokens(model: DualEncoder) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tokens of two texts, and the names of those tensors whose length depends on the text."""
    tokens, short = model.tokenize(_TRIAL_TEXTS), model.tokenize(_TRIAL_TEXTS[-1:])
    return tokens, [name for name in tokens if tokens[name].shape[1:] != short[name].shape[1:]]


def text_inputs(model: DualEncoder) -> dict[str, Any]:
    """Return the entry of ``export.json`` that describes the text inputs."""
    tokens, free = _tokens(model)
    length = model.longest_text if free else next(iter(tokens.values())).shape[1]
    return {"inputs": list(tokens), "padding": "longest" if free else "max_length", "length": length}


def write_image_graph(tower: nn.Module, model: DualEncoder, file: Path, outputs: list[str]) -> None:
    """Write a module that takes ``pixels``, the input of the model's image tower."""
    size = model.transform.size
    _export(tower, {"pixels": torch.zeros(2, 3, size, size)}, file, outputs, ({0: _dynamic("n")},))


def write_text_graph(tower: TextTower, file: Path) -> None:
    """Write a text tower, with one input per token tensor."""
    tokens, free = _tokens(tower.model)
    rows, positions = _dynamic("n"), _dynamic("tokens")
    shapes = tuple({0: rows, 1: positions} if name in free else {0: rows} for name in tokens)
    _export(tower, tokens, file, ["embeddings"], shapes)


def _dynamic(name: str) -> Any:
    # a single row works too, but torch 2.9 rejects min=1
    return torch.export.Dim(name, min=2)


def _export(
    module: nn.Module, inputs: dict[str, Tensor], file: Path, outputs: list[str], shapes: tuple[Any, ...]
) -> None:
    module.eval()
    note(f"writing {file.name} (this can take a minute)")
    with silent_export(), user_errors(f"{file.stem}: this tower cannot be exported", RuntimeError):
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    # If a module makes the number of rows static, the exporter does so silently.
    fixed = any(isinstance(each.shape[0], int) for each in program.model.graph.inputs if each.shape)
    refuse((fixed, f"{file.stem}: this tower cannot be exported with a dynamic number of rows."))
    program.save(str(file), external_data=False)
