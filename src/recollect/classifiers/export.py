"""ONNX export of a model with its index and classifier: tower, lookup, fusion and classifier in one graph."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.heads.base import KernelForm
from recollect.core.errors import UserError
from recollect.core.files import fresh_folder
from recollect.core.types import Encoder
from recollect.index import By, Index
from recollect.index.arrow import caption_matrix
from recollect.index.rows import unit_vectors
from recollect.models.export import (
    IMAGE_FILE,
    TEXT_FILE,
    ImageTower,
    TextTower,
    check_exportable,
    cpu_eval_mode,
    write_image_graph,
    write_record,
    write_text_graph,
)
from recollect.reco.encoder import RetrievalEnhancedEncoder, modalities_of

_CLASSIFIER_GRAPH = "classifier.onnx"

MAX_VECTOR_BYTES = 2**30
"""Maximum size of an index's vectors in one file; ONNX files are limited to 2 GiB."""


class IndexReading(nn.Module):
    """Refinement of unit embeddings by lookup in a snapshot of an index (RECO, section 3).

    Args:
        encoder: refines embeddings of ``modality``.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, encoder: RetrievalEnhancedEncoder, modality: By) -> None:
        super().__init__()
        settings = encoder.fusion.settings
        self.fusion, self.modality, self.k = encoder.fusion, modality, encoder.k
        self.reads = settings.kind != "mlp"
        if self.reads:
            by, taken = settings.searched(modality), settings.taken(modality)
            ids = _readable(encoder, captioned="text" in (by, *taken))
            keys = _keys(encoder.index, ids, by, vectors=len(taken))
            self.captions = keys.shape[1]
            values = [
                keys if by == side == "text"
                else np.repeat(encoder.index.vectors(ids, side)[:, None], self.captions, axis=1)
                for side in taken
            ]  # fmt: skip
            self.register_buffer("keys", torch.from_numpy(keys).flatten(0, 1))
            self.register_buffer("values", torch.from_numpy(np.stack(values)).flatten(1, 2))

    def forward(self, embeddings: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        tokens = embeddings[:, None]
        if self.reads:
            # A picture counts once, with its best caption.
            scores, best = (embeddings @ self.keys.T).unflatten(1, (-1, self.captions)).max(dim=2)
            nearest = scores.topk(self.k, dim=1).indices
            rows = nearest * self.captions + best.gather(1, nearest)
            tokens = torch.cat([tokens, *(values[rows] for values in self.values.unbind())], dim=1)
        return self.fusion(self.modality, tokens)


def _keys(index: Index, ids: list[str], by: By, vectors: int) -> Float[np.ndarray, "n captions w"]:
    """Return the keys: a vector per picture, or its captions, padded with the first to equal length.

    Args:
        vectors: number of value vectors per picture.

    Raises:
        UserError: keys and values exceed `MAX_VECTOR_BYTES`.
    """
    if by == "image":
        keys = index.vectors(ids)[:, None]
    else:
        flat, counts = caption_matrix(index.store.rows(ids, ["caption_vectors"])["caption_vectors"])
        offsets = np.arange(counts.max())[None]
        first = (np.cumsum(counts) - counts)[:, None]
        keys = unit_vectors(flat, index.width, index.address)[first + np.where(offsets < counts[:, None], offsets, 0)]
    if (size := 4 * (1 + vectors) * keys.size) > MAX_VECTOR_BYTES:
        raise UserError(
            f"{index.address}: the vectors of {len(ids):,} pictures take {size / 2**30:.1f} GiB, more than an ONNX "
            "file can hold. Read fewer pictures with --read-where."
        )
    return keys


def _readable(encoder: RetrievalEnhancedEncoder, captioned: bool) -> list[str]:
    """Return the ids of the pictures that the encoder may read.

    Raises:
        UserError: fewer than k.
    """
    index = encoder.index
    ids = index.ids if encoder.where is None else index.ids_where(encoder.where)
    ids = [id for id in ids if id not in encoder.exclude_ids]
    if captioned:
        ids = [id for id, captions in zip(ids, index.values("caption", ids), strict=True) if captions]
    if len(ids) < encoder.k:
        raise UserError(f"{index.address}: {len(ids)} pictures can be read, fewer than k = {encoder.k}")
    return ids


class _ClassifierHead(nn.Module):
    """Classifier on unit embeddings: calibrated probabilities, and the cosine to the nearest class mean."""

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


def export_all(encoder: Encoder, folder: str | Path, classifier: Classifier | None = None) -> Path:
    """Write a model as ONNX, with its index and classifier, if any.

    ``image.onnx`` and ``text.onnx`` are the towers (`export_onnx`), followed by lookup and fusion if ``encoder`` reads
    an index in that modality; the file contains the index's current vectors. ``classifier.onnx`` takes ``pixels`` and
    returns calibrated ``probabilities`` (n, classes) and ``nearest`` (n,), the cosine to the nearest class mean. A
    picture whose ``nearest`` is below ``unknown_below`` of ``export.json`` belongs to none of the classes.

    Raises:
        UserError: the extra ``onnx`` is not installed, the method cannot be exported, the index is too large, the
            classifier belongs to another model, or ``folder`` exists.
    """
    model = check_exportable(encoder.base or encoder)
    reads = modalities_of(encoder.mode) if isinstance(encoder, RetrievalEnhancedEncoder) else ()
    form = _form(encoder, classifier) if classifier is not None else None
    with fresh_folder(folder, "exported model") as unfinished, cpu_eval_mode(model):
        images: nn.Module = ImageTower(model)
        more: dict[str, Any] = {}
        if isinstance(encoder, RetrievalEnhancedEncoder):
            encoder.fusion.to("cpu")
            more["reads"] = encoder.description
        if "image" in reads:
            images = nn.Sequential(images, IndexReading(encoder, "image"))  # type: ignore[arg-type]
        write_image_graph(images, model, unfinished / IMAGE_FILE, ["embeddings"])
        lookup = IndexReading(encoder, "text") if "text" in reads else None  # type: ignore[arg-type]
        write_text_graph(TextTower(model, lookup), unfinished / TEXT_FILE)
        if classifier is not None and form is not None:
            head = _ClassifierHead(form, torch.from_numpy(classifier.unknown_rule.means))
            outputs = ["probabilities", "nearest"]
            write_image_graph(nn.Sequential(images, head), model, unfinished / _CLASSIFIER_GRAPH, outputs)
            more |= {"classes": list(classifier.classes), "method": classifier.method}
            more["unknown_below"] = classifier.unknown_rule.threshold if len(classifier.unknown_rule.means) else None
        write_record(model, unfinished, more)
    return Path(folder)


def _form(encoder: Encoder, classifier: Classifier) -> KernelForm:
    classifier.check_model(encoder)
    form = classifier.estimator.kernel_form()
    if form is None:
        raise UserError(
            f"the classifier's method is {classifier.method}, which cannot be exported. Teach it with --method "
            "proker, prototype, prototype-cosine, linear-probe, tip-adapter, tip-adapter-cv or zero-shot."
        )
    return form
