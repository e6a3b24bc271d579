"""A model with what it reads and what it was taught, as ONNX: tower, memory and fusion, classifier in one graph."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.apps.classify.classifier import Classifier
from recollect.core.errors import UserError
from recollect.core.files import fresh_folder
from recollect.core.types import Encoder
from recollect.fewshot.form import KernelForm, kernel_form
from recollect.memory.fusion.encoder import RetrievalEnhancedEncoder, modalities_of
from recollect.memory.rows import Modality
from recollect.models.export import (
    IMAGE_FILE,
    TEXT_FILE,
    ImageTower,
    TextTower,
    at_rest,
    check_exportable,
    write_image_graph,
    write_record,
    write_text_graph,
)

_CLASSIFIER_GRAPH = "classifier.onnx"

MOST_BYTES = 2**30
"""Of a memory's vectors in one file: the format ends at 2 GiB."""


class MemoryReading(nn.Module):
    """Unit embeddings, refined by what they find in a memory as it was when this was made (RECO, section 3).

    Args:
        encoder: reads embeddings of ``modality``.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, encoder: RetrievalEnhancedEncoder, modality: Modality) -> None:
        super().__init__()
        settings = encoder.fusion.settings
        self.fusion, self.modality, self.k = encoder.fusion, modality, encoder.k
        self.reads = settings.kind != "mlp"
        if self.reads:
            taken = settings.taken(modality)
            ids = _readable(encoder, "text" in (settings.searched(modality), *taken), vectors=1 + len(taken))
            keys, *values = (encoder.memory.vectors(ids, side) for side in (settings.searched(modality), *taken))
            self.register_buffer("keys", torch.from_numpy(keys))
            self.register_buffer("values", torch.from_numpy(np.stack(values)))

    def forward(self, embeddings: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        tokens = embeddings[:, None]
        if self.reads:
            nearest = (embeddings @ self.keys.T).topk(self.k, dim=1).indices
            tokens = torch.cat([tokens, *(values[nearest] for values in self.values.unbind())], dim=1)
        return self.fusion(self.modality, tokens)


def _readable(encoder: RetrievalEnhancedEncoder, with_text: bool, vectors: int) -> list[str]:
    """The ids of the rows that an embedding may read; a file holds so many vectors of each.

    Raises:
        UserError: fewer than k are left, or more than a file can hold.
    """
    memory = encoder.memory
    allowed = None if encoder.where is None else set(memory.ids_where(encoder.where))
    ids = [
        id
        for batch in memory.columns(["id"])
        for id in batch["id"]
        if id not in encoder.exclude_ids and (allowed is None or id in allowed)
    ]
    if with_text:  # a row without one has zeros in its place
        ids = [ids[row] for row in np.flatnonzero(memory.vectors(ids, "text").any(axis=1))]
    if len(ids) < encoder.k:
        raise UserError(f"{memory.address}: {len(ids)} rows can be read, fewer than k = {encoder.k}")
    if (size := 4 * vectors * len(ids) * memory.width) > MOST_BYTES:
        raise UserError(
            f"{memory.address}: the vectors of {len(ids):,} rows take {size / 2**30:.1f} GiB, more than one ONNX file "
            "holds. Read fewer of them with --read-where."
        )
    return ids


class Classifying(nn.Module):
    """Unit embeddings to calibrated probabilities, and the cosine with the nearest class mean."""

    weights: Tensor
    bias: Tensor
    keys: Tensor
    values: Tensor
    means: Tensor

    def __init__(self, form: KernelForm, means: Float[Tensor, "classes width"]) -> None:
        super().__init__()
        self.sharpness, self.temperature = form.sharpness, form.temperature
        for name in ("weights", "bias", "keys", "values"):
            self.register_buffer(name, torch.from_numpy(getattr(form, name)))
        self.register_buffer("means", means)

    def forward(self, embeddings: Float[Tensor, "n width"]) -> tuple[Float[Tensor, "n classes"], Float[Tensor, " n"]]:
        scores = embeddings @ self.weights.T + self.bias
        if len(self.keys):
            scores = scores + torch.exp(self.sharpness * (embeddings @ self.keys.T - 1)) @ self.values
        probabilities = (scores / self.temperature).softmax(dim=1)
        if not len(self.means):
            return probabilities, torch.ones_like(embeddings[:, 0])
        return probabilities, (embeddings @ self.means.T).amax(dim=1)


class _Chain(nn.Module):
    """One module behind the other, whatever the inputs of the first."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, pixels: Tensor) -> Any:
        return self.second(self.first(pixels))


class _TextChain(_Chain):
    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Any:
        return self.second(self.first(ids, mask))


def export_all(encoder: Encoder, folder: str | Path, classifier: Classifier | None = None) -> Path:
    """Write a model as ONNX, with the memory it reads and the classifier it was taught, if there are any.

    ``image.onnx`` and ``text.onnx`` are the towers (`export_onnx`), and where ``encoder`` reads a memory in that
    modality, search and fusion behind them: the memory's vectors are in the file, as they are now. ``classifier.onnx``
    takes ``pixels`` and gives calibrated ``probabilities`` (n, classes) and ``nearest`` (n,), the cosine with the
    nearest class mean, below ``unknown_below`` of ``export.json`` a picture is none of the classes.

    Raises:
        UserError: the extra ``onnx`` is not installed, a method that has no such form, a memory that is too large, the
            classifier is of another model, or something is at ``folder`` already.
    """
    if isinstance(encoder, RetrievalEnhancedEncoder) and encoder.searcher is not None:
        raise UserError(
            "two models look at each picture (RA-CLIP), and one ONNX file holds one. Export the towers alone."
        )
    model = check_exportable(encoder.base or encoder)
    reads = modalities_of(encoder.mode) if isinstance(encoder, RetrievalEnhancedEncoder) else ()
    form = _form(encoder, classifier) if classifier is not None else None
    with fresh_folder(folder, "exported model") as unfinished, at_rest(model):
        images: nn.Module = ImageTower(model)
        more: dict[str, Any] = {}
        if isinstance(encoder, RetrievalEnhancedEncoder):
            encoder.fusion.to("cpu")
            more["reads"] = encoder.description
        if "image" in reads:
            images = _Chain(images, MemoryReading(encoder, "image"))  # type: ignore[arg-type]
        write_image_graph(images, model, unfinished / IMAGE_FILE, ["embeddings"])
        read = MemoryReading(encoder, "text") if "text" in reads else nn.Identity()  # type: ignore[arg-type]
        write_text_graph(
            lambda names: _TextChain(TextTower(model, names), read), model, unfinished / TEXT_FILE, ["embeddings"]
        )
        if classifier is not None and form is not None:
            classifying = Classifying(form, torch.from_numpy(classifier.unknown_rule.means))
            outputs = ["probabilities", "nearest"]
            write_image_graph(_Chain(images, classifying), model, unfinished / _CLASSIFIER_GRAPH, outputs)
            more |= {"classes": list(classifier.classes), "method": classifier.method}
            more["unknown_below"] = classifier.unknown_rule.threshold if len(classifier.unknown_rule.means) else None
        write_record(model, unfinished, more)
    return Path(folder)


def _form(encoder: Encoder, classifier: Classifier) -> KernelForm:
    classifier.check_model(encoder)
    form = kernel_form(classifier.estimator)
    if form is None:
        raise UserError(
            f"the classifier's method is {classifier.method}, which has no form as one graph. Teach it with --method "
            "proker, prototype, linear-probe, tip-adapter, tip-adapter-cv, tip-adapter-f, ape-t, gda, timo, clap, lp++ "
            "or zero-shot."
        )
    return form
