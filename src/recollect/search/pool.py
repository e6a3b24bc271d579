"""What is searched: images with their embeddings, and captions where there are some."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, ImageLike, Source
from recollect.memory import Hits, Item
from recollect.memory.filters import parse_filter

_QUERIES, _ROWS = 256, 4_096


@runtime_checkable
class Pool(Protocol):
    """Images that can be searched by vector and opened by id."""

    def __len__(self) -> int: ...

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each unit vector its k nearest images, or all if there are fewer, best first."""
        ...

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order; a blank caption is none."""
        ...

    def filtered(self, where: str) -> "Pool":
        """Those images that satisfy a filter, e.g. ``source = 'emoji'``.

        Raises:
            UserError: the filter is malformed or nothing satisfies it.
        """
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
        self._domains = source.values("domain")
        self._ids = np.array([str(row) for row in range(len(source))], dtype=object)

    def __len__(self) -> int:
        return len(self.source)

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each unit vector its k nearest images, or all if there are fewer, best first."""
        rows, scores = self._index.nearest(vectors, k)
        return Hits(self._ids[rows], scores)

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, which are rows of the source written as text."""

        def opener(row: int) -> Callable[[], ImageLike]:
            return lambda: self.source.read(row, extra=False).image

        return [
            Item(
                str(row),
                self.captions[row] or "",
                self.source.name,
                self._metadata(row),
                opener(row),
                f"{self.source.name}, row {row}",
            )
            for row in map(int, ids)
        ]

    def filtered(self, where: str) -> "VectorPool":
        """Those images that satisfy a filter on ``id``, ``caption``, ``source`` and ``domain``."""
        return _filtered(self, where)

    def _metadata(self, row: int) -> Mapping[str, Any]:
        domain = self._domains[row]
        return {} if domain is None else {"domain": domain}

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self._index.rows[[int(id) for id in ids]]

    def ids(self) -> Sequence[str]:
        """Every row, as text."""
        return self._ids.tolist()


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
        self.inner, self._ids, self._index = inner, np.array(ids, dtype=object), VectorIndex(vectors)
        self._row = {id: row for row, id in enumerate(ids)}

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each vector its k nearest images, or all if there are fewer, best first."""
        rows, scores = self._index.nearest(vectors, k)
        return Hits(self._ids[rows], scores)

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order."""
        return self.inner.items(ids)

    def filtered(self, where: str) -> "VectorPool":
        """Those images that satisfy a filter."""
        return _filtered(self, where)

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self._index.rows[[self._row[id] for id in ids]]

    def ids(self) -> Sequence[str]:
        """Every id, in a fixed order."""
        return self._ids.tolist()


def _filtered(pool: "SourcePool | VectorPool", where: str) -> VectorPool:
    condition = parse_filter(where)
    ids = [item.id for item in pool.items(pool.ids()) if condition.matches(columns(item))]
    if not ids:
        raise UserError(f"no image satisfies {where}")
    return VectorPool(pool, ids, pool.vectors(ids))


def columns(item: Item) -> dict[str, Any]:
    """What a filter may ask of an item."""
    return {**item.metadata, "id": item.id, "caption": item.caption, "source": item.source}


def embedded(encoder: Encoder, source: Source, block: int = 256) -> Float32[np.ndarray, "n width"]:
    """The embedding of every image of a source."""
    if not len(source):
        raise UserError(f"{source.name}: no images to search. Check the split and the filters.")
    blocks = []
    for start in range(0, len(source), block):
        rows = range(start, min(start + block, len(source)))
        blocks.append(encoder.embed_images([source.read(row, extra=False).image for row in rows]).numpy())
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
