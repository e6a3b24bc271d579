"""The queries that adapt at once, with the images and captions that they found."""

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
        vector: weighted sum of the terms that are vectors; the adapted model cannot embed them again.
    """

    words: tuple[tuple[str, float], ...]
    pictures: tuple[tuple[int, float], ...] = ()
    vector: Float[Tensor, " width"] | None = None


@dataclass(frozen=True)
class EpisodeBatch:
    """Several queries and their candidates; an image or caption that several found is here once.

    Attributes:
        pixels: every picture that a query found or shows, transformed.
        images: for each query its candidates, best first, as rows of ``pixels``; -1 where there is none, or it
            cannot be read.
        captions: every caption of those pictures, each wording once.
        texts: for each candidate its caption; -1 where it has none.
    """

    queries: tuple[EpisodeQuery, ...]
    pixels: Float[Tensor, "pictures ..."]
    images: Int[Tensor, "queries k"]
    captions: tuple[str, ...]
    texts: Int[Tensor, "queries k"]

    @property
    def pairs(self) -> Bool[Tensor, "queries k"]:
        """Which candidates an episode can learn from: those with a picture and a caption."""
        return (self.images >= 0) & (self.texts >= 0)

    def one(self, query: int) -> "EpisodeBatch":
        """The same for one query alone."""
        mine = slice(query, query + 1)
        return EpisodeBatch(self.queries[mine], self.pixels, self.images[mine], self.captions, self.texts[mine])


@dataclass(frozen=True)
class Reranked:
    """What episodes found.

    Attributes:
        scores: cosine of each candidate with its query by the adapted model, float64 on the CPU; NaN where a
            candidate cannot be ranked again, and in the whole row where the episode failed or had too few pairs.
        failed: which queries' episodes broke down (a loss or a score that is not finite).
        pairs: how many pairs each query learnt from.
    """

    scores: Float[Tensor, "queries k"]
    failed: Bool[Tensor, " queries"]
    pairs: Int[Tensor, " queries"]


@dataclass(frozen=True)
class Shared:
    """Rows of a union that are counted equally often.

    Attributes:
        places: (times, rows): where each is counted, as ``query · k + rank``; rows are in the order of the first.
    """

    rows: Int[Tensor, " rows"]
    places: Int[Tensor, "times rows"]


def shared_rows(union: Int[Tensor, "queries k"], counted: Bool[Tensor, "queries k"]) -> list[Shared]:
    """Group the rows of a union by how many queries count them, so that a row passes forward once and back often.

    Args:
        union: row of the union at each place.
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
    """Each wording once, white space aside, and the number of every text's wording; -1 for None and for blanks."""
    numbers: dict[str, int] = {}
    found = []
    for text in texts:
        wording = " ".join((text or "").split())
        found.append(numbers.setdefault(wording, len(numbers)) if wording else -1)
    return tuple(numbers), found
