"""Queries that adapt together, with the images and captions they found."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class EpisodeQuery:
    """One query as an adapted model embeds it: a weighted sum of unit embeddings.

    Attributes:
        pictures: rows of the batch's pixels and their weights.
        vector: weighted sum of the terms that are vectors, which the adapted model cannot embed again.
    """

    words: tuple[tuple[str, float], ...]
    pictures: tuple[tuple[int, float], ...] = ()
    vector: Float[Tensor, " width"] | None = None


@dataclass(frozen=True)
class EpisodeBatch:
    """Several queries and their candidates; shared images and captions occur once.

    Attributes:
        pixels: all pictures that a query found or contains, transformed.
        images: candidates of each query, best first, as rows of ``pixels``; -1 if missing or unreadable.
        captions: distinct captions of those pictures.
        texts: caption of each candidate, as an index; -1 for none.
    """

    queries: tuple[EpisodeQuery, ...]
    pixels: Float[Tensor, "pictures ..."]
    images: Int[Tensor, "queries k"]
    captions: tuple[str, ...]
    texts: Int[Tensor, "queries k"]

    @property
    def pairs(self) -> Bool[Tensor, "queries k"]:
        """Whether each candidate has a picture and a caption, so that an episode can learn from it."""
        return (self.images >= 0) & (self.texts >= 0)

    def one(self, query: int) -> "EpisodeBatch":
        """The batch of a single query."""
        mine = slice(query, query + 1)
        return EpisodeBatch(self.queries[mine], self.pixels, self.images[mine], self.captions, self.texts[mine])


@dataclass(frozen=True)
class Reranked:
    """Results of episodes.

    Attributes:
        scores: cosine of each candidate with its query by the adapted model, float64 on the CPU; NaN for candidates
            that cannot be ranked again, and for all of a query whose episode failed or had too few pairs.
        failed: whether the loss or a score of each query was not finite.
        pairs: number of pairs each query learned from.
    """

    scores: Float[Tensor, "queries k"]
    failed: Bool[Tensor, " queries"]
    pairs: Int[Tensor, " queries"]


@dataclass(frozen=True)
class Shared:
    """Distinct rows that are used equally often.

    Attributes:
        places: uses of each row as ``query · k + rank`` (times, rows), sorted by the first use.
    """

    rows: Int[Tensor, " rows"]
    places: Int[Tensor, "times rows"]


def shared_rows(union: Int[Tensor, "queries k"], counted: Bool[Tensor, "queries k"]) -> list[Shared]:
    """Group distinct rows by their number of uses, so that each row passes forward once and backward for each use.

    Args:
        union: row at each place.
        counted: which places count.
    """
    places = counted.reshape(-1).nonzero()[:, 0]
    rows = union.reshape(-1)[places]
    found, owner, times = rows.unique(return_inverse=True, return_counts=True)
    by_row = places[owner.argsort(stable=True)].split(times.tolist())
    groups = []
    for often in times.unique().tolist():
        mine = [number for number, count in enumerate(times.tolist()) if count == often]
        mine.sort(key=lambda number: int(by_row[number][0]))
        groups.append(Shared(found[mine], torch.stack([by_row[number] for number in mine], dim=1)))
    return groups


def number_texts(texts: Sequence[str | None]) -> tuple[tuple[str, ...], list[int]]:
    """Distinct texts up to white space, and the index of each text among them; -1 for None and blank texts."""
    numbers: dict[str, int] = {}
    found = []
    for text in texts:
        wording = " ".join((text or "").split())
        found.append(numbers.setdefault(wording, len(numbers)) if wording else -1)
    return tuple(numbers), found
