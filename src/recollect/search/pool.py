"""What is searched: images with their embeddings, and captions where there are some."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.nearest import ExactNeighbours, exact_neighbours
from recollect.core.types import Encoder, ImageLike, Source
from recollect.data.sources.reading import MOST_BROKEN, readable_blocks
from recollect.memory import Hits, Item
from recollect.memory.filters import parse_filter, unknown_names


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
    """The images of a source, embedded in memory; those that cannot be read are left out.

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
        if vectors is not None and len(vectors) != len(source):
            raise ValueError(f"{len(source)} images, but {len(vectors)} vectors")
        self.source = source
        self.captions: Sequence[str | None] = [None] * len(source) if captions is None else captions
        rows, self._vectors = embedded(encoder, source) if vectors is None else (np.arange(len(source)), vectors)
        self._domains = source.values("domain")
        self._ids = np.array([str(row) for row in rows.tolist()], dtype=object)
        self._place = {id: place for place, id in enumerate(self._ids.tolist())}

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each unit vector its k nearest images, or all if there are fewer, best first."""
        found = nearest_of(vectors, self._vectors, k)
        return Hits(self._ids[found.rows], found.scores)

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
        return self._vectors[[self._place[id] for id in ids]]

    def ids(self) -> Sequence[str]:
        """Every row whose image could be read, as text."""
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
        self.inner, self._ids, self._vectors = inner, np.array(ids, dtype=object), vectors
        self._row = {id: row for row, id in enumerate(ids)}

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each vector its k nearest images, or all if there are fewer, best first."""
        found = nearest_of(vectors, self._vectors, k)
        return Hits(self._ids[found.rows], found.scores)

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order."""
        return self.inner.items(ids)

    def filtered(self, where: str) -> "VectorPool":
        """Those images that satisfy a filter."""
        return _filtered(self, where)

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self._vectors[[self._row[id] for id in ids]]

    def ids(self) -> Sequence[str]:
        """Every id, in a fixed order."""
        return self._ids.tolist()


def _filtered(pool: "SourcePool | VectorPool", where: str) -> VectorPool:
    ids = satisfying(pool.items(pool.ids()), where)
    return VectorPool(pool, ids, pool.vectors(ids))


def satisfying(items: Sequence[Item], where: str) -> list[str]:
    """The ids of those that satisfy a filter.

    Raises:
        UserError: the filter is malformed or nothing satisfies it.
    """
    condition, rows = parse_filter(where), [_columns(item) for item in items]
    ids = [row["id"] for row in rows if condition.matches(row)]
    if not ids:
        raise UserError(f"no image satisfies {where}{unknown_names(where, {key for row in rows for key in row})}")
    return ids


def _columns(item: Item) -> dict[str, Any]:
    """What a filter may ask of an item."""
    return {**item.metadata, "id": item.id, "caption": item.caption, "source": item.source}


def embedded(
    encoder: Encoder, source: Source, block: int = 256
) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, "n width"]]:
    """Every image of a source that can be read: its row, and its embedding; the others are named and counted.

    Raises:
        UserError: no image can be embedded, or too many cannot be read.
    """
    rows: list[int] = []
    blocks = [np.empty((0, encoder.width), dtype=np.float32)]
    for read in readable_blocks(source, block, share=MOST_BROKEN):
        if read:
            blocks.append(encoder.embed_images([sample.image for _, sample in read]).numpy())
        rows += [row for row, _ in read]
    if not rows:
        raise UserError(f"{source.name}: no images to search. Check the split and the filters.")
    return np.array(rows, dtype=np.int64), np.concatenate(blocks)


def nearest_of(vectors: Tensor, rows: Float32[np.ndarray, "n width"], k: int) -> ExactNeighbours:
    """The k nearest of some rows to each vector, or all if there are fewer, best first; of equal ones the first row."""
    return exact_neighbours(vectors.detach().cpu().float().numpy(), rows, min(k, len(rows)))
