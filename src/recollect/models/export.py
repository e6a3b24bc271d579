"""Both towers as ONNX files, for runtimes without PyTorch."""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.files import fresh_folder, write_json
from recollect.models.dual import DualEncoder
from recollect.models.transformers.encoder import TransformersEncoder

IMAGE_FILE, TEXT_FILE, EXPORT_FILE = "image.onnx", "text.onnx", "export.json"
EXPORT_FORMAT = 1

_TRIAL_TEXTS = ("a photo of a cat", "two dogs")


class _ImageTower(nn.Module):
    """Pixels to unit embeddings, as `DualEncoder.embed_images` does it."""

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.model.encode_images(pixels), dim=-1)


class _TextTower(nn.Module):
    """Tokens, in the order of ``names``, to unit embeddings."""

    def __init__(self, model: DualEncoder, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *tokens: Tensor) -> Tensor:
        return F.normalize(self.model.encode_texts(dict(zip(self.names, tokens, strict=True))), dim=-1)


def export_onnx(model: DualEncoder, folder: str | Path) -> Path:
    """Write both towers as ONNX, with what a program needs to feed them.

    ``image.onnx`` takes ``pixels`` (n, 3, size, size), float32, transformed as ``export.json`` says, and gives
    ``embeddings`` (n, width) of norm 1. ``text.onnx`` takes the tokenizer's outputs by their names, int64, padded as
    ``export.json`` says, and gives the same. The number of rows is free in both, that of tokens where the tower does
    not want all texts of one length. The tokenizer and image processor lie beside them.

    Args:
        model: one of transformers (CLIP, SigLIP, …), on any device, in float32; it is left as it was.
        folder: a new one; written whole or not at all.

    Returns:
        The folder.

    Raises:
        UserError: the extra ``onnx`` is not installed, the model is none of transformers, or something is at
            ``folder`` already.
    """
    if not isinstance(model, TransformersEncoder):
        raise UserError(f"{type(model).__name__}: only models of transformers (CLIP, SigLIP, …) can be exported.")
    if model.transform.packs:
        raise UserError(
            f"{type(model.model).__name__}: reads pictures of any shape (NaFlex), which the export does not. Name a "
            "checkpoint of one size, such as google/siglip2-base-patch16-256."
        )
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise UserError("onnx is not installed. Install it with: pip install 'recollect[onnx]'.")
    device, training = model.device, model.training
    model.to("cpu").eval()
    try:
        with fresh_folder(folder, "exported model") as unfinished:
            _export_images(model, unfinished / IMAGE_FILE)
            text = _export_texts(model, unfinished / TEXT_FILE)
            model.processor.save_pretrained(unfinished)
            record = {"format": EXPORT_FORMAT, "fingerprint": model.fingerprint, "width": model.width, "text": text}
            temperature = {"scale": model.scale, "bias": model.bias}
            write_json(unfinished / EXPORT_FILE, record | temperature | {"transform": asdict(model.transform)})
    finally:
        model.to(device).train(training)
    return Path(folder)


def _export_images(model: DualEncoder, file: Path) -> None:
    size = model.transform.size
    _export(_ImageTower(model), (torch.zeros(2, 3, size, size),), file, ["pixels"], [{0: "n"}])


def _export_texts(model: DualEncoder, file: Path) -> dict[str, Any]:
    """Write the text tower; what a caller must know of its tokens."""
    tokens = model.tokenize(_TRIAL_TEXTS)
    short = model.tokenize(_TRIAL_TEXTS[-1:])
    free = [name for name in tokens if tokens[name].shape[1:] != short[name].shape[1:]]
    shapes = [{0: "n", 1: "tokens"} if name in free else {0: "n"} for name in tokens]
    _export(_TextTower(model, list(tokens)), tuple(tokens.values()), file, list(tokens), shapes)
    length = None if free else next(iter(tokens.values())).shape[1]
    return {"inputs": list(tokens), "padding": "longest" if free else "max_length", "length": length}


def _export(tower: nn.Module, inputs: tuple[Tensor, ...], file: Path, names: list[str], shapes: list[Any]) -> None:
    from torch.export import Dim

    dims = {name: Dim(name, min=1) for name in ("n", "tokens")}
    free = [{place: dims[name] for place, name in shape.items()} for shape in shapes]
    tower.eval()
    with torch.no_grad(), _silent():
        program = torch.onnx.export(
            tower,
            inputs,
            input_names=names,
            output_names=["embeddings"],
            dynamic_shapes=free if isinstance(tower, _ImageTower) else (tuple(free),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(str(file), external_data=False)


@contextmanager
def _silent() -> Iterator[None]:
    """The exporter speaks of torchvision and of its own deprecated parts, which tell a user nothing."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def read_export(folder: str | Path) -> dict[str, Any]:
    """What `export_onnx` wrote about its files.

    Raises:
        UserError: no such folder, or not one that it wrote.
    """
    file = Path(folder) / EXPORT_FILE
    if not file.is_file():
        raise UserError(f"{folder}: no {EXPORT_FILE} there. Name a folder that `recollect export` wrote.")
    record = json.loads(file.read_text(encoding="utf-8"))
    if record.get("format") != EXPORT_FORMAT:
        raise UserError(f"{file}: written by a newer recollect (format {record.get('format')}). Update recollect.")
    return record
