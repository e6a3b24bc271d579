"""What is searched: images with their embeddings, and captions where there are some."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, ImageLike, Source
from recollect.data.sources.derived import read_sample, source_values

_QUERIES, _ROWS = 256, 4_096


@dataclass(frozen=True)
class PoolItem:
    """One image of a pool.

    Attributes:
        id: unique within the pool.
        caption: what it shows, or None.
        image: opens it; raises `UserError` or `OSError` where that is no longer possible.
        extra: whatever else the pool knows (``source``, ``domain``, ...).
    """

    id: str
    caption: str | None
    image: Callable[[], ImageLike]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryHits:
    """The nearest images to one query: ids, best first, and their cosines."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]


@runtime_checkable
class Pool(Protocol):
    """Images that can be searched by vector and opened by id."""

    def __len__(self) -> int: ...

    def nearest(self, vectors: Tensor, k: int) -> list[QueryHits]:
        """For each unit vector (n, width) its k nearest images, or all if there are fewer."""
        ...

    def items(self, ids: Sequence[str]) -> list[PoolItem]:
        """The items of these ids, in their order."""
        ...

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        ...

    def ids(self) -> Sequence[str]:
        """Every id, in a fixed order."""
        ...


class SourcePool:
    """The images of a source, embedded in memory.

    Args:
        encoder: embeds them, unless ``vectors`` are given.
        source: where they come from.
        captions: one for each, or None where there is none; left out, there are none at all.
        vectors: unit-norm float32 (n, width), if they are known already.
    """

    def __init__(
        self,
        encoder: Encoder,
        source: Source,
        captions: Sequence[str | None] | None = None,
        vectors: Float32[np.ndarray, "n width"] | None = None,
    ) -> None:
        if captions is not None and len(captions) != len(source):
            raise ValueError(f"{len(source)} images, but {len(captions)} captions")
        self.source = source
        self.captions: Sequence[str | None] = [None] * len(source) if captions is None else captions
        self._index = VectorIndex(embedded(encoder, source) if vectors is None else vectors)
        self._domains = source_values(source, "domain")

    def __len__(self) -> int:
        return len(self.source)

    def nearest(self, vectors: Tensor, k: int) -> list[QueryHits]:
        """For each unit vector (n, width) its k nearest images, or all if there are fewer."""
        rows, scores = self._index.nearest(vectors, k)
        return [
            QueryHits(tuple(map(str, mine.tolist())), tuple(each.tolist()))
            for mine, each in zip(rows, scores, strict=True)
        ]

    def items(self, ids: Sequence[str]) -> list[PoolItem]:
        """The items of these ids, which are rows of the source written as text."""

        def opener(row: int) -> Callable[[], ImageLike]:
            return lambda: read_sample(self.source, row, extra=False).image

        rows = [int(id) for id in ids]
        return [PoolItem(str(row), self.captions[row], opener(row), {"domain": self._domains[row]}) for row in rows]

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self._index.rows[[int(id) for id in ids]]

    def ids(self) -> Sequence[str]:
        """Every row, as text."""
        return [str(row) for row in range(len(self.source))]


class VectorPool:
    """The images of another pool under other vectors: embedded by another model, or by their captions.

    Args:
        inner: knows the images.
        ids: of those that can be found, in the order of ``vectors``.
        vectors: unit-norm float32.
    """

    def __init__(self, inner: Pool, ids: Sequence[str], vectors: Float32[np.ndarray, "n width"]) -> None:
        if len(ids) != len(vectors):
            raise ValueError(f"{len(ids)} ids, but {len(vectors)} vectors")
        self.inner, self._ids, self._index = inner, list(ids), VectorIndex(vectors)
        self._row = {id: row for row, id in enumerate(self._ids)}

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vectors: Tensor, k: int) -> list[QueryHits]:
        """For each unit vector (n, width) its k nearest images, or all if there are fewer."""
        rows, scores = self._index.nearest(vectors, k)
        return [
            QueryHits(tuple(self._ids[row] for row in mine.tolist()), tuple(each.tolist()))
            for mine, each in zip(rows, scores, strict=True)
        ]

    def items(self, ids: Sequence[str]) -> list[PoolItem]:
        """The items of these ids, in their order."""
        return self.inner.items(ids)

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self._index.rows[[self._row[id] for id in ids]]

    def ids(self) -> Sequence[str]:
        """Every id, in a fixed order."""
        return self._ids


def embedded(encoder: Encoder, source: Source, block: int = 256) -> Float32[np.ndarray, "n width"]:
    """The embedding of every image of a source."""
    if not len(source):
        raise UserError(f"{source.name}: no images to search. Check the split and the filters.")
    blocks = []
    for start in range(0, len(source), block):
        rows = range(start, min(start + block, len(source)))
        blocks.append(encoder.embed_images([read_sample(source, row, extra=False).image for row in rows]).numpy())
    return np.concatenate(blocks)


class VectorIndex:
    """Exact search by blocked products: no queries × rows matrix is held.

    Attributes:
        rows: unit-norm float32 (n, width).
    """

    def __init__(self, rows: Float32[np.ndarray, "n width"]) -> None:
        self.rows = rows

    def nearest(
        self, vectors: Tensor, k: int
    ) -> tuple[Int64[np.ndarray, "queries k"], Float32[np.ndarray, "queries k"]]:
        """The k nearest rows to each vector, or all if there are fewer, best first; of equal ones the first row."""
        if vectors.shape[1] != self.rows.shape[1]:
            raise ValueError(f"vectors of width {vectors.shape[1]} in an index of width {self.rows.shape[1]}")
        k = min(k, len(self.rows))
        found = [self._block(vectors[start : start + _QUERIES], k) for start in range(0, len(vectors), _QUERIES)]
        rows, scores = (torch.cat(each).numpy() for each in zip(*found, strict=True)) if found else (None, None)
        if rows is None or scores is None:
            return np.empty((0, k), dtype=np.int64), np.empty((0, k), dtype=np.float32)
        return rows, scores

    def _block(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        scores, rows = torch.empty(len(vectors), 0), torch.empty(len(vectors), 0, dtype=torch.int64)
        for start in range(0, len(self.rows), _ROWS):
            block = torch.from_numpy(np.ascontiguousarray(self.rows[start : start + _ROWS]))
            near = (vectors.float() @ block.T).topk(min(k, len(block)), dim=1)
            scores, rows = torch.cat([scores, near.values], dim=1), torch.cat([rows, near.indices + start], dim=1)
            by_row = rows.argsort(dim=1)
            scores, rows = scores.gather(1, by_row), rows.gather(1, by_row)
            order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
            scores, rows = scores.gather(1, order), rows.gather(1, order)
        return rows, scores
