"""Training pairs with what each of them finds in a memory: found once, stored, and read at every epoch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed, text_key
from recollect.memory.backends.base import Hits
from recollect.memory.fusion.block import FusionSettings
from recollect.memory.rows import Modality, Pairs, picture_of
from recollect.memory.store import NEAR, Memory

ScoreOf = Literal["image", "searched"]
"""Whose cosine says that a row is a near-duplicate of a pair: that of the two images, whichever way the row was found;
or that of the query with the vector it was compared with (RECO, section 4.1). The second also takes from a text all
rows of its own caption, which at test a text does find."""

_QUERIES = 2_048
_MORE = 32  # rows asked for beyond k, since some of them may not count


def caption_key(caption: str, id: str = "") -> int:
    """A number that two captions share if they are the same but for case and spaces; without a caption, of the id."""
    return text_key(caption) if caption.strip() else derive_seed("no caption", id)


@dataclass(frozen=True)
class Neighbours:
    """Embedded pairs, and for each modality what their embeddings read.

    Attributes:
        images: embeddings of the training images.
        texts: embeddings of the training texts.
        values: for each modality the vectors that some embedding of it reads; row 0 is zeros, an empty place.
        rows: for each modality and pair the k rows of ``values`` that it reads, nearest first; where both modalities of
            a row are read, first k of the one and then k of the other.
        captions: `caption_key` of each pair.
        pictures: a number that pairs of one picture share.
        read_captions: for each modality the `caption_key` of each row of ``values``; of row 0 nothing is said.
    """

    images: Float32[Tensor, "pairs width"]
    texts: Float32[Tensor, "pairs width"]
    values: dict[str, Float32[Tensor, "_rows width"]]
    rows: dict[str, Int64[Tensor, "pairs k"]]
    captions: Int64[Tensor, " pairs"]
    pictures: Int64[Tensor, " pairs"]
    read_captions: dict[str, Int64[Tensor, " _rows"]]

    def __len__(self) -> int:
        return len(self.images)

    def tokens(self, modality: Modality, pairs: Int64[Tensor, " some"]) -> Float32[Tensor, "some places width"]:
        """What the fusion reads for some pairs: the embedding, then what it found."""
        own = (self.images if modality == "image" else self.texts)[pairs]
        return torch.cat([own[:, None], self.values[modality][self.rows[modality][pairs]]], dim=1)

    def token_captions(self, modality: Modality, pairs: Int64[Tensor, " some"]) -> Int64[Tensor, "some places"]:
        """For each of `tokens` the key of the caption that it belongs to."""
        read = self.read_captions[modality][self.rows[modality][pairs]]
        return torch.cat([self.captions[pairs, None], read], dim=1)

    def save(self, path: Path) -> None:
        """Write everything to a safetensors file."""
        tensors = {name: getattr(self, name) for name in _SINGLE}
        for name in _PAIRED:
            tensors |= {f"{name}.{modality}": value for modality, value in getattr(self, name).items()}
        with atomic_path(path) as temporary:
            save_file(tensors, temporary)

    @classmethod
    def open(cls, path: Path) -> "Neighbours":
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or damaged.
        """
        try:
            tensors = load_file(path)
            parts: dict[str, Any] = {name: tensors[name] for name in _SINGLE}
            parts |= {name: {side: tensors[f"{name}.{side}"] for side in ("image", "text")} for name in _PAIRED}
            return cls(**parts)
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(f"{path}: cannot be read ({error}). Remove it; it is made again.") from error


_SINGLE = ("images", "texts", "captions", "pictures")
_PAIRED = ("values", "rows", "read_captions")


def find_neighbours(
    pairs: Pairs,
    memory: Memory,
    settings: FusionSettings,
    k: int = 10,
    max_score: float = NEAR,
    score_of: ScoreOf = "image",
) -> Neighbours:
    """Look up every training pair from both sides (RECO, section 3.1).

    A pair never finds itself (a row of the same id, or of another caption of the same picture), nor near-duplicates.

    Args:
        pairs: embedded training pairs.
        memory: of the same model.
        settings: which vectors are searched and which are read.
        k: rows for each embedding; places stay empty where fewer count.
        max_score: cosine from which a row counts as a near-duplicate.
        score_of: whose cosine that is.

    Raises:
        UserError: another model, an empty memory, or one smaller than k.
    """
    memory.check_model(pairs.model, "the training pairs'")
    memory.check_k(k)
    values: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    read_captions: dict[str, Tensor] = {}
    for modality in ("image", "text"):
        values[modality] = torch.zeros(1, memory.width, dtype=torch.float32)
        rows[modality] = torch.zeros(len(pairs), 0, dtype=torch.int64)
        read_captions[modality] = torch.zeros(1, dtype=torch.int64)
        if settings.refines(modality) and settings.kind != "mlp":
            with_text = "text" in settings.taken(modality)
            searched = settings.searched(modality)
            ids = _Search(pairs, memory, searched, with_text, k, max_score, score_of).find(modality)
            values[modality], rows[modality], read_captions[modality] = gather(ids, memory, settings.taken(modality))
    return Neighbours(
        torch.from_numpy(pairs.image_vectors),
        torch.from_numpy(pairs.text_vectors),
        values,
        rows,
        _keys(caption_key(caption, id) for caption, id in zip(pairs.captions, pairs.ids, strict=True)),
        _keys(derive_seed("picture", picture_of(id)) for id in pairs.ids),
        read_captions,
    )


def _keys(keys: Iterable[int]) -> Tensor:
    return torch.tensor(list(keys), dtype=torch.int64)


@dataclass(frozen=True)
class _Search:
    """A search by training pairs that passes over the pairs themselves and near-duplicates."""

    pairs: Pairs
    memory: Memory
    searched: Modality
    with_text: bool
    k: int
    max_score: float
    score_of: ScoreOf

    def find(self, modality: Modality) -> np.ndarray:
        """Ids that the pairs' vectors of a modality find, (pairs, k); an empty one is an empty place."""
        queries = self.pairs.image_vectors if modality == "image" else self.pairs.text_vectors
        found = np.full((len(queries), self.k), "", dtype=object)
        with progress(f"neighbours by {self.searched}", len(queries), "pairs") as counter:
            for start in range(0, len(queries), _QUERIES):
                some = np.arange(start, min(start + _QUERIES, len(queries)))
                self._fill(found, some, queries)
                counter.advance(len(some))
        return found

    def _fill(self, found: np.ndarray, waiting: np.ndarray, queries: np.ndarray) -> None:
        """Ask for more than k, pass over what does not count, and ask again for those left with too few."""
        there = self.memory.check_k(self.k, self.with_text or self.searched == "text")
        asked = min(self.k + _MORE, there)
        while len(waiting):
            hits = self.memory.search(queries[waiting], asked, self.searched, with_text=self.with_text, exact=True)
            counts = self._counts(hits, waiting)
            order = np.argsort(~counts, axis=1, kind="stable")[:, : self.k]
            kept = np.where(np.take_along_axis(counts, order, 1), np.take_along_axis(hits.ids, order, 1), "")
            found[waiting, : order.shape[1]] = kept
            if asked == there:
                return
            waiting, asked = waiting[counts.sum(1) < self.k], min(4 * asked, there)

    def _counts(self, hits: Hits, rows: np.ndarray) -> np.ndarray:
        """Which hits of some pairs may be read."""
        own = np.array([picture_of(self.pairs.ids[row]) for row in rows], dtype=object)
        distinct, places = np.unique(hits.ids, return_inverse=True)
        places = places.reshape(hits.ids.shape)
        counts = np.array([picture_of(id) for id in distinct], dtype=object)[places] != own[:, None]
        if self.score_of == "searched":
            return counts & (hits.scores < self.max_score)
        if self.max_score > 1:  # above every cosine
            return counts
        images = self.memory.vectors(distinct.tolist(), "image")
        for row, (pair, found) in enumerate(zip(rows, places, strict=True)):
            counts[row] &= images[found] @ self.pairs.image_vectors[pair] < self.max_score
        return counts


def gather(ids: np.ndarray, memory: Memory, taken: Sequence[Modality]) -> tuple[Tensor, Tensor, Tensor]:
    """The vectors of rows that were found.

    Args:
        ids: (queries, k); an empty one is an empty place.
        taken: which vectors of a row are read: k places for the first modality, then k for the next.

    Returns:
        Each vector once, after a row of zeros (vectors, width); which of them each place holds (queries, places); and
        the `caption_key` of each vector.
    """
    return _beside([_of_one(ids, memory, modality) for modality in taken])


def _of_one(ids: np.ndarray, memory: Memory, modality: Modality) -> tuple[Tensor, Tensor, Tensor]:
    """Each vector once with its caption's key, and where each place finds it."""
    distinct, places = np.unique(ids.ravel(), return_inverse=True)
    missing = int(len(distinct) > 0 and distinct[0] == "")  # an empty id sorts first
    known = distinct[missing:].tolist()
    values = np.concatenate([np.zeros((1, memory.width), dtype=np.float32), memory.vectors(known, modality)])
    captions = _keys([0, *(caption_key(item.caption, item.id) for item in memory.fetch(known, pictures=False))])
    rows = torch.from_numpy((places + 1 - missing).astype(np.int64).reshape(ids.shape))
    return torch.from_numpy(values), rows, captions


def _beside(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """What `_of_one` made of each modality that is read, as places beside each other; the empty row 0 is shared."""
    values, rows, captions = zip(*parts, strict=True)
    starts = np.cumsum([0, *(len(each) - 1 for each in values[:-1])]).tolist()
    moved = [torch.where(each > 0, each + start, 0) for each, start in zip(rows, starts, strict=True)]
    joined = (torch.cat([each[0][:1], *(one[1:] for one in each)]) for each in (values, captions))
    return next(joined), torch.cat(moved, dim=1), next(joined)
