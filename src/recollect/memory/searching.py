"""Reading a memory: what is near to a query, and rows by their ids, names or a filter."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from recollect.memory.backends.base import Hits
from recollect.memory.filters import parse_filter
from recollect.memory.handle import MemoryHandle, Vectors
from recollect.memory.lookup import Exclusions, Question, find, find_beside, find_near, nothing_satisfies
from recollect.memory.naming import ids_of
from recollect.memory.rows import Item, Modality, picture_of

NEAR = 0.94
"""Cosine from which two images count as one (RECO, section 4.1)."""


class SearchedMemory(MemoryHandle):
    """A memory as it is read."""

    def search(
        self,
        vectors: Vectors,
        k: int = 10,
        modality: Modality = "image",
        where: str | None = None,
        *,
        max_score: float | None = None,
        exclude: Sequence[str] | None = None,
        exclude_ids: Collection[str] = (),
        with_text: bool = False,
        exact: bool = False,
    ) -> Hits:
        """The k rows nearest to each query, many queries at a time.

        Args:
            vectors: unit-norm (queries, width).
            k: how many rows each query gets.
            modality: compare with the vectors of images or of texts; among texts only rows that have one are searched.
            where: search only rows that satisfy this filter, e.g. ``source = 'emoji' and year >= 2020``.
            max_score: pass over rows at least this near to the query (near-duplicates).
            exclude: one id for each query: it finds no row of that picture (itself).
            exclude_ids: ids that no query must find.
            with_text: search only rows that have a text, also among images.
            exact: use no index (see `index`); exclusions and filters never do.

        Returns:
            Ids and cosines, best first, all of shape (queries, k). A filter may leave fewer than k columns;
            ``max_score``, ``exclude`` and ``exclude_ids`` may leave empty places at the end of a row: an empty id and a
            score of −∞.

        Raises:
            UserError: wrong width, an empty memory, k larger than the memory, a filter that is malformed or that
                nothing satisfies.
        """
        queries = self._queries(vectors)
        searched = self.check_k(k, with_text or modality == "text")
        own = None if exclude is None else np.array([picture_of(str(id)) for id in exclude], dtype=object)
        exclusions = Exclusions(max_score, own, frozenset(exclude_ids))
        condition = None if where is None else parse_filter(where)
        question = Question(modality, condition, where, with_text, exact or not exclusions.none)
        if exclusions.none:
            return find(self.backend, queries, k, question)
        return find_beside(self.backend, queries, k, question, exclusions, searched)

    def near_duplicates(self, vectors: Vectors, threshold: float = NEAR, modality: Modality = "image") -> list[str]:
        """The ids of all rows with a cosine of at least ``threshold`` to any of the vectors.

        The comparison is exact, with no index. Rounding parts no equals: a cosine counts that is less than the
        threshold by no more than two roundings to half precision can take from equal vectors (2⁻²¹).

        To remove what is too near to test images: ``memory.delete(memory.near_duplicates(features))``.
        """
        return find_near(self.backend, self._queries(vectors), threshold, modality)

    def vectors(self, ids: Sequence[str], modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """The vectors of rows, in the order of their ids.

        Raises:
            UserError: an id is not there.
        """
        distinct, places = np.unique(np.asarray(ids, dtype=object), return_inverse=True)
        self._check_known(distinct.tolist())
        if not len(distinct):
            return np.empty((0, self.width), dtype=np.float32)
        return self.backend.vectors(distinct.tolist(), modality)[places]

    def matrix(self, modality: Modality) -> tuple[list[str], Float32[np.ndarray, "rows width"]]:
        """The ids of all rows, and their unit-norm vectors of a modality; zeros for a row that has no text.

        From a memory on disk it is read in a moment, once it was searched; at full precision it is only mapped.
        """
        return self.backend.matrix(modality)

    def fetch(self, ids: Sequence[str] | np.ndarray, *, pictures: bool = True) -> list[Item]:
        """Rows in the order of their ids.

        Args:
            pictures: also read the pictures' bytes (`Item.open` decodes them).

        Raises:
            UserError: an id is not there.
        """
        wanted = [str(id) for id in ids]
        distinct = list(dict.fromkeys(wanted))
        self._check_known(distinct)
        items = dict(zip(distinct, self.backend.fetch(distinct, pictures), strict=True)) if distinct else {}
        return [items[id] for id in wanted]

    def ids_where(self, where: str) -> list[str]:
        """The ids of all rows that satisfy a filter.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        ids = self.backend.ids_where(parse_filter(where))
        if not ids:
            raise nothing_satisfies(self.backend, where)
        return ids

    def ids_of(self, names: Sequence[str]) -> list[str]:
        """The ids of rows that are named by their id, by the file of their picture, or by id or file within a source.

        Raises:
            UserError: a name is of no row, or of several.
        """
        return ids_of(self.backend, names)

    def columns(self, names: Sequence[str], **where: str) -> Iterator[dict[str, Any]]:
        """Columns of all rows, or of those whose ``source``, ``origin``, … is the one given, in batches."""
        return self.backend.columns(names, where)
