"""An encoder whose embeddings are refined by their neighbors in an index."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from recollect.core.places import public_place
from recollect.core.types import Encoder, ImageLike, Kind, best_device
from recollect.core.validation import check_choice, refuse
from recollect.index import By, Index
from recollect.reco.block import FusionModule
from recollect.reco.neighbors import DEFAULT_K, balanced_mean, check_k, read_index

Mode = Literal["image", "text", "both"]
"""Which embeddings read the index (RECO, Table 4)."""

_ROWS = 512


class RetrievalEnhancedEncoder(Encoder):
    """A model, an index embedded by it, and a fusion, used like any other encoder (RECO, section 3).

    By default an image finds the k nearest images and reads their captions, and a text finds the k nearest captions and
    reads their images. The index may have changed since the fusion was trained.

    **k counts pictures**; each is found at most once, by its best caption or its image, and contributes one vector. If
    texts are read, a picture found by a caption contributes that caption, and a picture found by its image contributes
    the normalized mean of its captions. For a fusion that reads both modalities, each picture contributes two vectors.
    If captions are searched or read, pictures without captions are skipped.

    >>> encoder = RetrievalEnhancedEncoder(model, Index.open("index"), FusionModule.open("fusion"))  # doctest: +SKIP

    Args:
        model: base model.
        index: index of pictures embedded by the model.
        fusion: fusion trained on the model's embeddings.
        mode: which embeddings are refined; the others are the model's own. Default: all that the fusion refines,
            or images only for a mean without a weight, since a plain mean of both sides names far less.
        k: number of pictures each embedding reads; default: as in the training of the fusion, or 10.
        where: filter of the pictures to read.
        exclude_ids: pictures that are never read, such as near-duplicates of test images.

    Raises:
        UserError: index or fusion belong to another model or width, or the index has fewer than k pictures.
    """

    def __init__(
        self,
        model: Encoder,
        index: Index,
        fusion: FusionModule,
        mode: Mode | None = None,
        k: int | None = None,
        where: str | None = None,
        exclude_ids: Collection[str] = (),
    ) -> None:
        settings = fusion.settings
        mode = mode or ("image" if settings.kind == "mean" and settings.weight is None else settings.modalities)
        k = fusion.trained.get("k", DEFAULT_K) if k is None else k
        check_choice(mode, ("image", "text", "both"), "mode")
        fingerprint = model.fingerprint
        index.model.check(model, "the encoder")
        missing = next((modality for modality in modalities_of(mode) if not settings.refines(modality)), None)
        refuse(
            (
                fusion.model and fusion.model != fingerprint,
                f"the fusion was trained on embeddings of another model ({fusion.model[:12]}) than this one "
                f"({fingerprint[:12]}). Train it again, or use that model.",
            ),
            (settings.width != model.width, f"the fusion is {settings.width} wide, the model {model.width}"),
            (
                index.width != model.width,
                f"{index.address}: the vectors have width {index.width}, but the encoder's embeddings have width "
                f"{model.width}. Build the index again.",
            ),
            (missing, f"mode {mode}: the fusion refines no {missing}s. Choose mode {settings.modalities}."),
        )
        for modality in modalities_of(mode):
            if fusion.settings.kind != "mlp":
                check_k(index, k, "text" in (fusion.settings.searched(modality), *fusion.settings.taken(modality)))
        self.model, self.index, self.mode, self.k, self.where = model, index, mode, k, where
        self.width, self.prefixes = model.width, model.prefixes
        self.exclude_ids = frozenset(exclude_ids)
        self.device = best_device()
        self.fusion = fusion.to(self.device).eval()
        self._model_fingerprint, self._fusion_fingerprint = fingerprint, fusion.fingerprint

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines an embedding."""
        parts = (
            self._model_fingerprint,
            self._fusion_fingerprint,
            self.index.fingerprint,
            self.mode,
            self.k,
            self.where,
            sorted(self.exclude_ids),
            self.index.accelerators(),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def scale(self) -> float | None:
        """The inverse temperature learned with the fusion, or else the model's."""
        return self.fusion.trained.get("scale") or self.model.scale

    @property
    def base(self) -> Encoder:
        """The model whose embeddings are refined."""
        return self.model

    def refine_images(self, embeddings: Tensor) -> Tensor:
        """Refine image embeddings of the model."""
        return self.refine("image", embeddings)

    @property
    def description(self) -> dict[str, Any]:
        """Settings and index version, for result files."""
        return {
            "index": public_place(self.index.address),
            "version": self.index.version,
            "rows": len(self.index),
            "fusion": self._fusion_fingerprint,
            "kind": self.fusion.settings.kind,
            "weight": self.fusion.settings.weight,
            "mode": self.mode,
            "k": self.k,
            "where": self.where,
            "without": len(self.exclude_ids),
            "fingerprint": self.fingerprint,
        }

    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Embed images, refined in modes ``image`` and ``both``."""
        return self.refine("image", self.model.embed_images(images))

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Embed texts, refined in modes ``text`` and ``both``."""
        return self.refine("text", self.model.embed_texts(texts, prefix))

    def refine(self, modality: By, embeddings: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """Refine the model's embeddings of one modality if the mode includes it.

        Returns:
            Unit-norm float32 embeddings, on the CPU and detached.
        """
        if modality not in modalities_of(self.mode) or not len(embeddings):
            return embeddings
        if self.fusion.settings.kind == "mlp":  # reads nothing
            neighbors = np.empty((len(embeddings), 0, self.index.width), dtype=np.float32)
        else:
            neighbors = self.read(modality, embeddings)
        blocks = []
        with torch.no_grad():
            for start in range(0, len(embeddings), _ROWS):
                rows = slice(start, start + _ROWS)
                read = torch.from_numpy(neighbors[rows]).to(self.device)
                tokens = torch.cat([embeddings[rows, None].to(self.device), read], dim=1)
                blocks.append(self.fusion(modality, tokens).cpu())
        return torch.cat(blocks)

    def read(self, modality: By, embeddings: Float[Tensor, "n width"]) -> Float[np.ndarray, "n slots width"]:
        """Return the vectors that embeddings read, nearest first.

        If both modalities are read, k vectors of one are followed by k of the other.
        """
        queries = embeddings.cpu().numpy()
        exclude = self.exclude_ids or None
        found = read_index(self.index, queries, self.fusion.settings, modality, self.k, exclude, where=self.where)
        return np.concatenate(found.vectors, axis=1)  # empty slots are zeros, which a fusion ignores


def modalities_of(mode: Mode) -> tuple[By, ...]:
    """Return the modalities that a mode includes."""
    return ("image", "text") if mode == "both" else (mode,)


def open_encoder(
    model: Encoder,
    index: str | Path,
    fusion: str | Path = "mean",
    mode: Mode | None = None,
    k: int | None = None,
    where: str | None = None,
) -> RetrievalEnhancedEncoder:
    """Open an index and a fusion, and return the `RetrievalEnhancedEncoder`.

    Args:
        fusion: folder of a trained fusion, or ``mean``, which needs no training (`balanced_mean`).

    Raises:
        UserError: index or fusion cannot be opened, or do not fit the model.
    """
    opened = Index.open(index)
    opened.model.check(model, "the encoder")  # before the index is searched
    found = balanced_mean(opened, k or DEFAULT_K, where) if fusion == "mean" else FusionModule.open(fusion)
    return RetrievalEnhancedEncoder(model, opened, found, mode, k, where)
