"""Search and look-up in an index."""

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import user_errors
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, ImageLike, caption_prefix
from recollect.core.validation import check_number
from recollect.index.contents import IndexContents
from recollect.index.cutoff import CAPTION_SHARE, LEAST_CAPTIONS, MOST_CAPTIONS, CutOff, estimate_cut_off, learn_cut_off
from recollect.index.filters import Filter
from recollect.index.hits import CAPTIONS, MODEL, Hit, Hits, Reranker
from recollect.index.lookup import Excluded, Found, look_up
from recollect.index.query import Asked, Query, QueryEncoder, Term, as_query, check_terms, embed_queries
from recollect.index.rows import ROUNDING, By, unit_vectors
from recollect.index.stores.base import Store

NEAR = 0.94
"""Cosine from which two pictures count as near-duplicates (RECO, section 4.1)."""

_UNSURE = 2.0**-12  # far more than single precision and rounding can be off by

Vectors = Any
"""A tensor or an array (queries, width)."""


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _names_arguments(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """List the arguments of a method that is called with an unknown one, such as ``top_k``."""
    known = list(signature(method).parameters)

    @wraps(method)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if unknown := [name for name in kwargs if name not in known]:
            raise TypeError(f"{method.__name__}() has no argument {unknown[0]!r}. It has: {', '.join(known[1:])}.")
        return method(*args, **kwargs)

    return checked


class SearchableIndex(IndexContents):
    """An index that can be searched.

    Attributes:
        scored_by: what hits say about their scores.
    """

    scored_by = MODEL

    def __init__(
        self, store: Store, encoder: Encoder | None = None, read: Callable[[str], ImageLike] | None = None
    ) -> None:
        super().__init__(store, encoder, read)
        self._cut: tuple[int, float, int, CutOff] | None = None

    @_names_arguments
    def lookup(
        self,
        vectors: Vectors,
        k: int,
        by: By = "image",
        read: By | None = None,
        where: str | Filter | None = None,
        exclude: Excluded | None = None,
        max_score: float | None = None,
        exact: bool = False,
    ) -> Found:
        """The k pictures nearest to each query, many queries at a time.

        Args:
            vectors: (queries, width), unit norm.
            k: pictures for each query; a picture counts once, however many captions it has.
            by: compare with the pictures themselves, or with their captions: then a picture's score is that of its best
                caption, and only pictures with a caption are searched.
            read: also return vectors of the pictures: their own, or those of their captions (only pictures with a
                caption are searched then). By ``text`` that is the caption that matched; by ``image`` the caption, or
                the normalised mean of several.
            where: search only pictures that satisfy a filter (see `recollect.index.filters`).
            exclude: a set of ids that no query may find, or a sequence with one entry per query: an id, several, None.
            max_score: pass over pictures with at least this score, such as near-duplicates of the query.
            exact: do not use an approximate index; exclusions and filters never do.

        Returns:
            Ids, scores and vectors of shape (queries, k), best first; equal scores in the order of the rows. Empty
            places at the end where fewer pictures are left.

        Raises:
            UserError: k below 1, vectors of another width or norm, a malformed filter, or one that nothing satisfies.
        """
        check_number("k", k, least=1)
        queries = self._queries(vectors)
        condition = self._filter(where)
        found = look_up(self.store, queries, k, by, read, condition, exclude, max_score, exact)
        if where is not None and len(queries) and not (found.scores > -np.inf).any():
            self.ids_where(where)  # raises the error that says why
        return found

    @_names_arguments
    def search(
        self,
        query: Asked | Sequence[Asked],
        k: int = 10,
        *,
        where: str | Filter | None = None,
        exclude: Collection[str] = (),
        min_score: float | CutOff | None = None,
        page: int = 1,
        encoder: Encoder | None = None,
        exact: bool = False,
        by: By = "image",
        rerank: Reranker | None = None,
    ) -> Hits:
        """The k best pictures for a query.

        Args:
            query: words, a `Path`, a PIL image, an image array (height, width, 3), a vector (width,), a `Query`, or a
                list of these, which are added: ``["a red boat", Path("like-this.jpg"), Minus("people")]``.
            k: pictures of a page.
            where: search only pictures that satisfy a filter, e.g. ``folder = 'Norway' and taken > '2022'``.
            exclude: ids that may not be found.
            min_score: leave out pictures with a lower score; a `CutOff` has its own score for each query.
            page: 1 for the k best, 2 for the next k, ...
            encoder: embeds the query; the model of the index by default.
            exact: do not use an approximate index.
            by: compare the query with the pictures, or with their captions.
            rerank: ranks the first pictures again, such as `recollect.efsa.EpisodeReranker`.

        Raises:
            UserError: the filter is malformed or nothing satisfies it, a picture cannot be opened, or the terms of the
                query cancel out.
        """
        many = self.search_many([as_query(query)], k, where=where, exclude=exclude, min_score=min_score, page=page,
                                encoder=encoder, exact=exact, by=by, rerank=rerank)  # fmt: skip
        return many[0]

    @_names_arguments
    def search_many(
        self,
        queries: Sequence[Asked | Sequence[Asked]],
        k: int = 10,
        *,
        where: str | Filter | None = None,
        exclude: Collection[str] = (),
        min_score: float | CutOff | None = None,
        page: int = 1,
        encoder: Encoder | None = None,
        exact: bool = False,
        by: By = "image",
        rerank: Reranker | None = None,
    ) -> list[Hits]:
        """`search` for several queries, which are embedded and looked up together."""
        check_number("k", k, least=1)
        check_number("page", page, least=1)
        asked = [as_query(query) for query in queries]
        for query in asked:
            check_terms(query)
        real = [query for query in asked if not query.empty]
        pictures_by = len(self) if by == "image" else self.texts
        searched = pictures_by if where is None else len(self.ids_where(where))
        if not real or not searched:
            return [Hits((), str(query), query_notes(query, self._encoder), searched=searched) for query in asked]
        embeds = encoder or self._embeds(real)
        vectors = embed_queries(embeds, real, self.record.prefix)
        asked_for = min(max(page * k, rerank.depth if rerank else 0), searched)
        found = self.lookup(vectors, asked_for, by, where=where, exclude=frozenset(exclude) or None, exact=exact)
        pictures = {each.id: each for each in self.pictures([id for id in dict.fromkeys(found.ids.ravel()) if id])}
        scored_by = self.scored_by if by == "image" else CAPTIONS
        ranked = []
        for query, vector, ids, scores in zip(real, vectors, found.ids, found.scores.tolist(), strict=True):
            hits = [
                Hit(pictures[id], score, scored_by, score, rank)
                for rank, (id, score) in enumerate(zip(ids, scores, strict=True), 1)
                if id
            ]
            limit, notes = _limit(query, min_score, vector, scores[0])
            ranked.append((Hits(hits, str(query), (*query_notes(query, embeds), *notes), 1, searched), limit))
        if rerank is not None:
            again = rerank.rerank(real, [hits for hits, _ in ranked])
            ranked = [(hits, limit) for hits, (_, limit) in zip(again, ranked, strict=True)]
        pages = iter([hits.page(page, k, limit) for hits, limit in ranked])
        return [Hits((), str(query), ("empty query",), 1, searched) if query.empty else next(pages) for query in asked]

    def query_vector(self, query: Asked | Sequence[Asked], encoder: Encoder | None = None) -> Float32[np.ndarray, " w"]:
        """The unit-norm vector that `search` looks up for a query."""
        asked = as_query(query)
        return embed_queries(encoder or self._embeds([asked]), [asked], self.record.prefix)[0]

    def picture_term(self, id: str, weight: float = 1.0) -> Term:
        """A picture of the index as a term of a query; its stored vector is used.

        Raises:
            UserError: the picture does not exist.
        """
        self._check_known([id])
        return Term(vector=self.vectors([id])[0], weight=weight, name=f"picture {id[:8]}")

    def near(self, vectors: Vectors, threshold: float = NEAR, by: By = "image") -> list[str]:
        """The ids of all pictures with a cosine of at least ``threshold`` to any of the vectors.

        The comparison is exact. A cosine that rounding to half precision can have lowered below the threshold counts.
        """
        queries, near = self._queries(vectors), dict[str, None]()
        k, count = 32, len(self)
        while len(queries) and count:
            found = look_up(self.store, queries, min(k, count), by, by, exact=True)
            assert found.vectors is not None
            wide = np.einsum("qw,qkw->qk", queries.astype(np.float64), found.vectors.astype(np.float64))
            reach = (found.scores >= threshold - _UNSURE) & (wide >= threshold - ROUNDING)
            near |= dict.fromkeys(found.ids[reach].tolist())
            queries = queries[found.scores[:, -1] >= threshold - _UNSURE] if k < count else queries[:0]
            k *= 8
        return list(near)

    def cut_off(self, share: float = CAPTION_SHARE, seed: int = 0) -> CutOff:
        """Where the results of a search by words end.

        With 20 captions or more it is the score that ``share`` of them give to their own picture, learnt from at most
        2,048; with fewer it is estimated from the scores of each query (`estimate_cut_off`).

        Raises:
            UserError: fewer than 20 captions, and fewer than 50 pictures.
        """
        if self._cut is None or self._cut[:3] != (self.version, share, seed):
            images = self.vectors()
            cut = self._learn_cut_off(images, share, seed) if self.texts >= LEAST_CAPTIONS else None
            if cut is None:
                images = images[images.any(axis=1)]
                few = f"{self.address}: {len(images)} pictures and {self.texts} captions"
                with user_errors(few, ValueError, then=". Name a score instead."):
                    cut = estimate_cut_off(images, seed)
            self._cut = self.version, share, seed, cut
        return self._cut[3]

    def _learn_cut_off(self, images: np.ndarray, share: float, seed: int) -> CutOff | None:
        """From captions; None where too few pictures have one."""
        drawn = numpy_generator("captions", seed).permutation(len(images))[: 4 * MOST_CAPTIONS]
        ids = self.ids
        texts = self.vectors([ids[row] for row in drawn.tolist()], "text")
        spoken = np.flatnonzero(texts.any(axis=1) & images[drawn].any(axis=1))[:MOST_CAPTIONS]
        if len(spoken) < LEAST_CAPTIONS:
            return None
        return learn_cut_off(images, texts[spoken], drawn[spoken].astype(np.int64), share, seed)

    def _queries(self, vectors: Vectors) -> Float32[np.ndarray, "queries width"]:
        queries = vectors.detach().cpu().numpy() if hasattr(vectors, "detach") else np.asarray(vectors)
        return unit_vectors(queries, self.width, f"{self.address}: queries")


def _limit(
    query: Query, min_score: float | CutOff | None, vector: np.ndarray, best: float
) -> tuple[float | None, tuple[str, ...]]:
    if not isinstance(min_score, CutOff):
        return min_score, ()
    if not query.words_alone:
        return None, ("nothing is cut: the cut-off is for words, and this query has a picture",)
    limit = min_score.limit_among(vector, best)
    return limit, ("nothing is cut: no picture scores far above the others",) if limit is None else ()


def query_notes(query: Query, encoder: QueryEncoder | None) -> tuple[str, ...]:
    """What to say about words that the model reads only in part, or that name a file."""
    notes = [query.hint] if query.hint else []
    words = [term.words for term in query.terms if term.words is not None]
    most = getattr(encoder, "longest_text", None)
    if words and most is not None:
        longest = max(encoder.text_lengths(words, caption_prefix(encoder)))  # type: ignore[union-attr]
        if longest > most:
            notes.append(f"the query has {longest} tokens; the model reads the first {most} and ignores the rest")
    return tuple(notes)
