"""A drop-in encoder that looks things up: embeddings refined by what they find in a memory."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.places import public_place
from recollect.core.types import Encoder, EncoderBase, ImageLike, Kind, best_device
from recollect.data.sources.images import note
from recollect.memory.fusion.block import FusionModule
from recollect.memory.rows import Modality
from recollect.memory.store import Memory

Mode = Literal["image", "text", "both"]
"""Which embeddings read the memory (RECO, Table 4)."""

_ROWS = 512


class RetrievalEnhancedEncoder(EncoderBase):
    """A model, a memory that it embedded, and a fusion; it embeds as any other encoder does (RECO, section 3).

    An image finds the k nearest images and reads their texts, a text finds the k nearest texts and reads their images;
    the fusion's settings say otherwise where it was trained so. The memory may have grown or changed since the fusion
    was trained.

    >>> encoder = RetrievalEnhancedEncoder(model, Memory.open("mem"), FusionModule.open("fusion"))  # doctest: +SKIP

    Args:
        model: the frozen model.
        memory: embedded by that model.
        fusion: trained on that model's embeddings.
        mode: which embeddings read the memory; the others are the model's own.
        k: how many pairs to read.
        where: read only pairs that satisfy this filter.
        exclude_ids: ids of rows that are never read, such as near-duplicates of tested images.
        searcher: the model that embedded the memory, where it is another one and the fusion was trained to read its
            vectors (RA-CLIP): it looks at each picture too, and finds; None: the model itself.

    Where the memory has an index that is faster for so many queries, what is read is found through it, and the index is
    part of the fingerprint; one that was measured on fewer than half of the rows is said.

    Raises:
        UserError: the memory or the fusion is of another model, width or way to read texts, the memory is empty or
            smaller than k.
    """

    def __init__(
        self,
        model: Encoder,
        memory: Memory,
        fusion: FusionModule,
        mode: Mode = "both",
        k: int = 10,
        where: str | None = None,
        exclude_ids: Collection[str] = (),
        searcher: Encoder | None = None,
    ) -> None:
        if mode not in {"image", "text", "both"}:
            raise UserError(f"mode {mode!r}: choose image, text or both")
        fingerprint = model.fingerprint
        _check_searcher(model, memory, fusion, searcher)
        if fusion.model and fusion.model != fingerprint:
            raise UserError(
                f"the fusion was trained on embeddings of another model ({fusion.model[:12]}) than this one "
                f"({fingerprint[:12]}). Train it again, or use that model."
            )
        if fusion.settings.width != model.width:
            raise UserError(f"the fusion is {fusion.settings.width} wide, the model {model.width}")
        if missing := [modality for modality in modalities_of(mode) if not fusion.settings.refines(modality)]:
            raise UserError(
                f"mode {mode}: the fusion refines no {missing[0]}s. Choose mode {fusion.settings.modalities}."
            )
        for modality in modalities_of(mode):
            if fusion.settings.kind != "mlp":
                memory.check_k(k, "text" in fusion.settings.taken(modality))
        if fusion.settings.kind != "mlp":
            for record in memory.outgrown_indexes():
                note(
                    f"{memory.address}: the index of {record.modality}s was measured at {record.rows:,} rows, and "
                    f"there are {len(memory):,} now. Measure it again with `recollect memory index {memory.address}`."
                )
        self.model, self.memory, self.mode, self.k, self.where = model, memory, mode, k, where
        self.searcher = searcher
        self.exclude_ids = frozenset(exclude_ids)
        self.device = best_device()
        self.fusion = fusion.to(self.device).eval()
        self._model_fingerprint, self._fusion_fingerprint = fingerprint, fusion.fingerprint

    @property
    def width(self) -> int:
        """Entries of an embedding."""
        return self.model.width

    @property
    def fingerprint(self) -> str:
        """Changes with the model, the fusion, the mode, k, the rows of the memory that are read, and its indexes."""
        parts = (
            self._model_fingerprint,
            self._fusion_fingerprint,
            self.memory.fingerprint,
            self.mode,
            self.k,
            self.where,
            sorted(self.exclude_ids),
            self.memory.backend.indexes(),
            *([self.searcher.fingerprint] if self.searcher else []),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def scale(self) -> float | None:
        """The inverse temperature that the fusion has learnt, else the model's own."""
        return self.fusion.trained.get("scale") or self.model.scale

    @property
    def prefixes(self) -> Mapping[Kind, tuple[str, ...]]:
        """The model's prefix tokens."""
        return self.model.prefixes

    @property
    def base(self) -> Encoder | None:
        """The model, whose embeddings are refined; None where what is found depends on the picture beside them."""
        return None if self.searcher else self.model

    def refine_images(self, embeddings: Tensor) -> Tensor:
        """What the memory makes of the model's own image embeddings; nothing where a searcher looks at the pictures."""
        return embeddings if self.searcher else self.refine("image", embeddings)

    @property
    def description(self) -> dict[str, Any]:
        """What is read, and how: enough to tell two results apart."""
        return {
            "memory": public_place(self.memory.address),
            "version": self.memory.version,
            "rows": len(self.memory),
            "fusion": self._fusion_fingerprint,
            "kind": self.fusion.settings.kind,
            "mode": self.mode,
            "k": self.k,
            "where": self.where,
            "without": len(self.exclude_ids),
            "fingerprint": self.fingerprint,
        }

    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Embed images; in modes ``image`` and ``both`` with what they find.

        Raises:
            UserError: pixels that were made ready for the model, where a searcher must look at the pictures too.
        """
        embeddings = self.model.embed_images(images)
        if self.searcher is None:
            return self.refine("image", embeddings)
        if isinstance(images, Tensor):
            raise UserError(
                "pixels that were made ready for one model: two models look at each picture. Give pictures."
            )
        return self.refine("image", embeddings, self.searcher.embed_images(images))

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Embed texts; in modes ``text`` and ``both`` with what they find."""
        return self.refine("text", self.model.embed_texts(texts, prefix))

    def refine(
        self, modality: Modality, embeddings: Float[Tensor, "n width"], asked: Float[Tensor, "n reads"] | None = None
    ) -> Float[Tensor, "n width"]:
        """Refine the model's own embeddings of one modality, if the mode says so.

        Args:
            modality: theirs.
            embeddings: of the model.
            asked: the searcher's of the same things, where another model finds.

        Returns:
            Unit-norm float32, on the CPU, without graph.
        """
        if modality not in modalities_of(self.mode) or not len(embeddings):
            return embeddings
        if self.fusion.settings.kind == "mlp":  # reads no memory
            found = np.empty((len(embeddings), 0, self.memory.width), dtype=np.float32)
        else:
            found = self.read(modality, embeddings if asked is None else asked)
        blocks = []
        with torch.no_grad():
            for start in range(0, len(embeddings), _ROWS):
                some = slice(start, start + _ROWS)
                read = self.fusion.adapt(modality, torch.from_numpy(found[some]).to(self.device))
                tokens = torch.cat([embeddings[some, None].to(self.device), read], dim=1)
                blocks.append(self.fusion(modality, tokens).cpu())
        return torch.cat(blocks)

    def read(self, modality: Modality, embeddings: Float[Tensor, "n reads"]) -> Float[np.ndarray, "n places reads"]:
        """The vectors that embeddings of one modality, by the memory's model, find and read, nearest first; where a
        fusion reads both modalities of a row, k of the one and then k of the other."""
        settings = self.fusion.settings
        found = self.memory.search(
            embeddings,
            self.k,
            settings.searched(modality),
            self.where,
            exclude_ids=self.exclude_ids,
            with_text="text" in settings.taken(modality),
        )
        ids = found.ids.ravel()
        there = ids != ""  # an empty place stays zeros, which no fusion reads
        parts = []
        for taken in settings.taken(modality):
            values = np.zeros((len(ids), self.memory.width), dtype=np.float32)
            values[there] = self.memory.vectors(ids[there].tolist(), taken)
            parts.append(values.reshape(*found.ids.shape, self.memory.width))
        return np.concatenate(parts, axis=1)


def _check_searcher(model: Encoder, memory: Memory, fusion: FusionModule, searcher: Encoder | None) -> None:
    """Refuse a memory that the fusion was not trained to read."""
    if fusion.settings.reads is not None and searcher is None:
        raise UserError("the fusion reads the memory of another model than its own: that one must search. Name it.")
    if fusion.settings.reads is None and searcher is not None:
        raise UserError("the fusion reads the memory of its own model, so no other one searches. Leave that out.")
    memory.check_encoder(searcher or model, "the searcher" if searcher else "the encoder")
    width = fusion.settings.reads or model.width
    if memory.width != width:
        raise UserError(
            f"{memory.address}: {memory.width} wide, but "
            + (f"the fusion reads vectors {width} wide." if searcher else f"the encoder's embeddings are {width} wide.")
            + " Build the memory again with this model."
        )


def modalities_of(mode: Mode) -> tuple[Modality, ...]:
    """The modalities that read the memory in a mode."""
    return ("image", "text") if mode == "both" else (mode,)


def open_encoder(
    model: Encoder,
    memory: str | Path,
    fusion: str | Path,
    mode: Mode = "both",
    k: int = 10,
    where: str | None = None,
    searcher: Encoder | None = None,
) -> RetrievalEnhancedEncoder:
    """A retrieval-enhanced encoder from addresses, for ``--memory MEM --fusion F --mode both``.

    Raises:
        UserError: a part cannot be opened, or the parts do not belong together.
    """
    return RetrievalEnhancedEncoder(
        model, Memory.open(memory), FusionModule.open(fusion), mode, k, where, searcher=searcher
    )
