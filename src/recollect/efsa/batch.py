"""Batches of queries that adapt together, with their candidate images and captions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class EpisodeQuery:
    """A query as a weighted sum of unit embeddings, to be embedded by the adapted model.

    Attributes:
        words: (text, weight) pairs.
        pictures: (row of the batch's pixels, weight) pairs.
        vector: weighted sum of the vector terms, which do not depend on the model.
    """

    words: tuple[tuple[str, float], ...]
    pictures: tuple[tuple[int, float], ...] = ()
    vector: Float[Tensor, " width"] | None = None


@dataclass(frozen=True)
class EpisodeBatch:
    """Several queries and their candidates, with each shared image and caption only once.

    Attributes:
        pixels: transformed pictures of all candidates and queries.
        images: candidates of each query, best first, as rows of ``pixels``; -1 if missing or unreadable.
        captions: distinct captions of the candidates.
        texts: caption of each candidate as an index into ``captions``; -1 for none.
    """

    queries: tuple[EpisodeQuery, ...]
    pixels: Float[Tensor, "pictures ..."]
    images: Int[Tensor, "queries k"]
    captions: tuple[str, ...]
    texts: Int[Tensor, "queries k"]

    @property
    def pairs(self) -> Bool[Tensor, "queries k"]:
        """Whether each candidate has both a picture and a caption, which an episode needs to learn from it."""
        return (self.images >= 0) & (self.texts >= 0)

    def one(self, query: int) -> "EpisodeBatch":
        """Return the batch of a single query."""
        mine = slice(query, query + 1)
        return EpisodeBatch(self.queries[mine], self.pixels, self.images[mine], self.captions, self.texts[mine])


@dataclass(frozen=True)
class Reranked:
    """Results of episodes.

    Attributes:
        scores: cosine of each candidate with its query by the adapted model, float64 on the CPU; NaN for candidates
            without a picture, and for all candidates of a query whose episode failed or had too few pairs.
        failed: whether the loss or a score of each query was not finite.
        pairs: number of pairs each query learned from.
    """

    scores: Float[Tensor, "queries k"]
    failed: Bool[Tensor, " queries"]
    pairs: Int[Tensor, " queries"]


@dataclass(frozen=True)
class Shared:
    """Distinct rows with the same number of uses.

    Attributes:
        rows: the distinct rows, sorted by their first use.
        places: uses of each row, as ``query · k + rank``.
    """

    rows: Int[Tensor, " rows"]
    places: Int[Tensor, "times rows"]


def shared_rows(union: Int[Tensor, "queries k"], counted: Bool[Tensor, "queries k"]) -> list[Shared]:
    """Group distinct rows by their number of uses: each row then needs one forward pass and one backward pass per use.

    Args:
        union: row of each candidate.
        counted: candidates to include.
    """
    places = counted.reshape(-1).nonzero()[:, 0]
    rows = union.reshape(-1)[places]
    found, owner, times = rows.unique(return_inverse=True, return_counts=True)
    by_row = places[owner.argsort(stable=True)].split(times.tolist())
    groups = []
    for uses in times.unique().tolist():
        group = [number for number, count in enumerate(times.tolist()) if count == uses]
        group.sort(key=lambda number: int(by_row[number][0]))
        groups.append(Shared(found[group], torch.stack([by_row[number] for number in group], dim=1)))
    return groups


def number_texts(texts: Sequence[str | None]) -> tuple[tuple[str, ...], list[int]]:
    """Return the distinct texts, with whitespace normalized, and the index of each input; -1 for None or blank."""
    numbers: dict[str, int] = {}
    found = []
    for text in texts:
        wording = " ".join((text or "").split())
        found.append(numbers.setdefault(wording, len(numbers)) if wording else -1)
    return tuple(numbers), found
