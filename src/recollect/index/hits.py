"""Search results: lists of hits with notebook and pandas support."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload, runtime_checkable

from PIL import Image

from recollect.data.sources.images import BrokenImageError, jpeg_url
from recollect.index.picture import Picture
from recollect.index.query import Query

if TYPE_CHECKING:
    import pandas as pd

MODEL = "model"
"""Default ``scored_by``: cosine with the picture by the model of the index."""

CAPTIONS = "captions"
"""``scored_by`` of hits of a search among captions."""

_MAX_TILES, _SIDE = 24, 128


@dataclass(frozen=True)
class Hit:
    """One picture in the results of a query.

    Attributes:
        picture: the picture.
        score: score it is ranked by; only scores with the same ``scored_by`` are comparable.
        scored_by: origin of the score: `MODEL`, ``episode``, ``captions``, ...
        model_score: score before re-ranking, to which cut-offs apply; None if unknown.
        zero_shot_rank: rank before re-ranking, from 1; None if it was not among the candidates.
    """

    picture: Picture
    score: float
    scored_by: str = MODEL
    model_score: float | None = None
    zero_shot_rank: int | None = None

    @property
    def id(self) -> str:
        """Id of the picture."""
        return self.picture.id

    @property
    def caption(self) -> str:
        """First caption, or an empty string."""
        return self.picture.caption

    @property
    def path(self) -> Path | None:
        """File of the picture, if it has one."""
        return self.picture.path

    @property
    def image(self) -> Image.Image:
        """Decoded picture (see `Picture.open`)."""
        return self.open()

    def open(self) -> Image.Image:
        """Decode the picture (see `Picture.open`)."""
        return self.picture.open()

    def __repr__(self) -> str:
        name = self.path or self.id
        return f"Hit({str(name)!r}, {self.score:.3f} by {self.scored_by}, {shorten(self.caption, 60)!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Hits(Sequence[Hit]):
    """The hits of one query, best first.

    >>> hits = index.search("a red boat", k=5)                                   # doctest: +SKIP
    >>> len(hits), hits[0].path, [hit.score for hit in hits]                      # doctest: +SKIP

    Attributes:
        hits: one page of results.
        query: the query as text.
        notes: notes for the user, e.g. on results cut off or a query that is too long.
        first_rank: rank of the first hit; above 1 from the second page on.
        searched: number of pictures compared.
        cut: number of pictures below the cut-off; None if there are none.
    """

    hits: Sequence[Hit]
    query: str = ""
    notes: tuple[str, ...] = ()
    first_rank: int = 1
    searched: int = 0
    cut: int | None = None

    def with_hits(self, hits: Sequence[Hit], notes: Sequence[str] = ()) -> "Hits":
        """Return a copy with other hits and additional notes."""
        return replace(self, hits=hits, notes=(*self.notes, *notes))

    def page(self, number: int, k: int, min_score: float | None = None) -> "Hits":
        """Return one page of ``k`` hits, without hits below ``min_score``."""
        kept, notes, cut = self.hits, self.notes, None
        if min_score is not None:
            scores = [hit.score if hit.model_score is None else hit.model_score for hit in self.hits]
            kept = [hit for hit, score in zip(self.hits, scores, strict=True) if score >= min_score]
            if below := [score for score in scores if score < min_score]:  # pictures not among the hits score lower
                cut = self.searched - len(kept)
                what = f"{cut:,} of {self.searched:,} pictures score below {min_score:.4g} and are left out"
                notes = (*notes, f"{what} (best {max(below):.3f})")
        first = (number - 1) * k
        return replace(self, hits=kept[first : first + k], notes=notes, first_rank=first + 1, cut=cut)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> "Hits": ...

    def __getitem__(self, index: SupportsIndex | slice) -> "Hit | Hits":
        if not isinstance(index, slice):
            return self.hits[index.__index__()]
        return replace(self, hits=self.hits[index], first_rank=self.first_rank + range(len(self))[index].start)

    def __len__(self) -> int:
        return len(self.hits)

    def __repr__(self) -> str:
        best = f", best {self.hits[0]!r}" if self.hits else ""
        return f"Hits({shorten(self.query, 60)!r}: {len(self)} of {self.searched:,} pictures{best})"

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with one row per hit: rank, score, path, caption, other facts, and the user's columns."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for rank, hit in enumerate(self.hits, start=self.first_rank):
            row = {"rank": rank, "score": hit.score, "path": str(hit.path or ""), "caption": hit.caption}
            row |= {name: getattr(hit.picture, name) for name in ("id", "source", "width", "height", "taken", "folder")}
            row["labels"] = list(hit.picture.labels)
            rows.append(row | {**hit.picture.metadata, **row})  # built-in columns come first and win over metadata
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        tiles = "".join(_tile(rank, hit) for rank, hit in enumerate(self.hits[:_MAX_TILES], start=self.first_rank))
        more = f"<p>and {len(self) - _MAX_TILES:,} more</p>" if len(self) > _MAX_TILES else ""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        title = f"<p><b>{html.escape(self.query)}</b>: {len(self)} of {self.searched:,} pictures</p>"
        return f"{title}{notes}<div style='display:flex;flex-wrap:wrap;gap:8px'>{tiles}</div>{more}"


@runtime_checkable
class Reranker(Protocol):
    """Re-ranks the first hits of a search, e.g. with a model that adapts to the query.

    Attributes:
        depth: number of hits needed per query.
    """

    depth: int

    def rerank(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        """Return the same hits with new order and scores, one list per query.

        Args:
            queries: nonempty queries.
            found: hits of each query, best first: at least ``depth``, or all pictures.
        """
        ...


def _tile(rank: int, hit: Hit) -> str:
    text = html.escape(shorten(hit.caption or (hit.path.name if hit.path else hit.id), 60))
    try:
        shown = f"<img src='{jpeg_url(hit.picture.open(_SIDE), _SIDE)}'>"
    except BrokenImageError as error:
        shown = f"<small>{html.escape(str(error))}</small>"
    caption = f"<figcaption>{rank}. {hit.score:.3f} {text}</figcaption>"
    return f"<figure style='margin:0;width:{_SIDE}px'>{shown}{caption}</figure>"
