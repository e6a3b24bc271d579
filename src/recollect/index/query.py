"""Queries: weighted sums of words, pictures and vectors."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import ImageLike, Kind
from recollect.core.validation import refuse
from recollect.data.sources.images import PICTURE_ENDINGS, decode

_ZERO = 1e-6
"""Sums of terms with a smaller norm count as zero: float32 embeddings do not cancel more exactly."""


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a query: words, a picture or a vector.

    Attributes:
        words: literal text, not parsed.
        picture: a file or an open picture.
        vector: a unit-norm embedding, e.g. of a picture in the index.
        weight: factor of the unit embedding; negative to avoid the term, never 0.
        name: name of a vector in messages.
    """

    words: str | None = None
    picture: Path | ImageLike | None = None
    weight: float = 1.0
    vector: Float32[np.ndarray, " width"] | None = None
    name: str = "vector"

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.words, self.picture, self.vector)) != 1:
            raise ValueError("a term is words, a picture or a vector")
        invalid = not math.isfinite(self.weight) or self.weight == 0
        refuse((invalid, f"weight {self.weight:g} of {self}: must be a finite number other than 0"))

    def __str__(self) -> str:
        """Return the term as shown in a query, without its weight."""
        if self.words is not None:
            return f'"{self.words}"'
        if self.vector is not None:
            return self.name
        return str(self.picture) if isinstance(self.picture, Path) else "image"

    @property
    def blank(self) -> bool:
        """Whether the term is words that are all spaces."""
        return self.words is not None and not self.words.strip()

    def picture_key(self) -> tuple[str, str]:
        """Return a key that is equal for terms with the same file, picture object or vector object."""
        if isinstance(self.picture, Path):
            return ("file", str(self.picture))
        return ("object", str(id(self.picture if self.vector is None else self.vector)))

    def open(self) -> ImageLike:
        """Return the decoded picture.

        Raises:
            UserError: its file does not exist or is not a picture.
        """
        if isinstance(self.picture, Path):
            if not self.picture.exists():
                raise UserError(f"{self.picture}: no such picture")
            return decode(self.picture, str(self.picture))
        assert self.picture is not None
        return self.picture


@dataclass(frozen=True)
class Query:
    """A weighted sum of words, pictures and vectors.

    >>> Query.words("red boat") + Query.picture("harbor.jpg") - 0.5 * Query.words("sunset")
    Query('"red boat" + harbor.jpg - 0.5 * "sunset"')

    Its embedding is the normalized weighted sum of the unit embeddings of its terms. A picture's score is the cosine
    with it: the weighted sum of the cosines with the terms, up to a factor common to all pictures.

    Attributes:
        terms: at least one; in a sum, none is blank.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("a query has at least one term")
        blank = len(self.terms) > 1 and any(term.blank for term in self.terms)
        refuse((blank, f"{self}: one of its terms is empty. Write what to look for, or remove it."))

    @classmethod
    def words(cls, text: str) -> "Query":
        """Query for literal text, including quotes and signs."""
        return cls((Term(words=text),))

    @classmethod
    def picture(cls, image: str | Path | ImageLike) -> "Query":
        """Query by a picture: a file, a PIL image, or a (height, width, 3) uint8 array."""
        return cls((Term(picture=Path(image) if isinstance(image, str) else image),))

    @classmethod
    def vector(cls, vector: Any, name: str = "vector") -> "Query":
        """Query by an embedding of the index's model, an array or tensor (width,); it is normalized."""
        array = np.asarray(vector, dtype=np.float32)
        invalid = array.ndim != 1 or not np.linalg.norm(array) > 0
        refuse((invalid, f"{name}: a query vector must be one-dimensional and not all zero"))
        return cls((Term(vector=array / np.linalg.norm(array), name=name),))

    @property
    def text(self) -> str | None:
        """Words of a query with a single text term of weight 1; None for any other query."""
        (first, *rest) = self.terms
        return first.words if not rest and first.weight == 1 else None

    @property
    def only_words(self) -> bool:
        """Whether all terms are words."""
        return all(term.words is not None for term in self.terms)

    @property
    def empty(self) -> bool:
        """Whether all terms are blank words."""
        return all(term.blank for term in self.terms)

    @property
    def hint(self) -> str | None:
        """Hint for a text query that is the path of a picture; else None."""
        words = self.text
        if words is None or Path(words).suffix.lower() not in PICTURE_ENDINGS or not Path(words).is_file():
            return None
        return f'searched for the words "{words}"; to search with that picture, pass Path("{words}") or --image {words}'

    def __str__(self) -> str:
        """Return plain text for a text query, else the sum of terms with words in quotes."""
        if self.text is not None:
            return self.text
        parts = []
        for position, term in enumerate(self.terms):
            sign = ("- " if term.weight < 0 else "+ ") if position else ("-" if term.weight < 0 else "")
            parts.append(f"{sign}{'' if abs(term.weight) == 1 else f'{abs(term.weight):g} * '}{term}")
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"Query({str(self)!r})"

    def __add__(self, other: "Query") -> "Query":
        return Query(self.terms + other.terms)

    def __sub__(self, other: "Query") -> "Query":
        return self + -1.0 * other

    def __mul__(self, weight: float | int) -> "Query":
        return Query(tuple(replace(term, weight=float(weight * term.weight)) for term in self.terms))

    __rmul__ = __mul__


QueryLike = Any
"""Words, a `Path`, a PIL image, an array, a tensor, a `Query`, a `Term`, or a list of such things (`as_query`)."""


def Minus(part: QueryLike, weight: float = 1.0) -> Query:  # capitalized since it reads like a type in a list of terms
    """Subtract a term in a list of terms: ``["a red boat", Minus("people")]``."""
    return -weight * as_query(part)


def as_query(query: QueryLike | Sequence[QueryLike]) -> Query:
    """Convert words, a picture, a vector, a term, a query, or a list of these (summed) to a query.

    A string means words. A 1-d array, a float array with a single row, or a list of numbers is a vector; an array
    (height, width, 3), a hit or picture of an index, or the bytes of an image file is a picture.

    Raises:
        UserError: any other type, or a blank term in a sum.
    """
    if isinstance(query, Query):
        return query
    if isinstance(query, Term):
        return Query((query,))
    if isinstance(query, str):
        return Query.words(query)
    if isinstance(query, Path | Image.Image):
        return Query.picture(query)
    if "torch" in sys.modules and isinstance(query, sys.modules["torch"].Tensor):
        return Query.vector(query.detach().cpu())
    if isinstance(query, np.ndarray):
        row = query.ndim == 2 and len(query) == 1 and np.issubdtype(query.dtype, np.floating)
        return Query.vector(query.reshape(-1)) if row or query.ndim == 1 else Query.picture(query)
    if isinstance(query, bytes):
        return Query.picture(decode(query, "the picture"))
    if hasattr(query, "open"):
        return Query.picture(query.open())
    if isinstance(query, list | tuple) and query and all(isinstance(part, int | float) for part in query):
        return Query.vector(np.array(query, dtype=np.float32))
    if isinstance(query, Iterable) and (parts := list(query)):
        return Query(tuple(term for part in parts for term in as_query(part).terms))
    raise UserError(f"{query!r}: not a query. Pass words, a Path, a PIL image, an array, a vector, or a list of these.")


QueryEncoder = Any
"""`Encoder` members for queries (`width`, `prefixes`, `embed_texts`, `embed_images`); results may be NumPy arrays."""


def embed_queries(
    encoder: QueryEncoder | None, queries: Sequence[Query], kind: Kind | None = None
) -> Float32[np.ndarray, "queries width"]:
    """Return unit-norm float32 embeddings of queries; repeated words and files are embedded once.

    Args:
        encoder: may be None if all terms are vectors.
        kind: text kind of words, for models with prefix tokens.

    Raises:
        UserError: a picture cannot be opened, or the terms of a query cancel out.
    """
    words = list(dict.fromkeys(term.words for query in queries for term in query.terms if term.words is not None))
    pictures = {term.picture_key(): term for query in queries for term in query.terms if term.picture is not None}
    texts, images = dict[str, np.ndarray](), dict[tuple[str, str], np.ndarray]()
    if words or pictures:
        if encoder is None:
            raise ValueError("words and pictures need an encoder")
        texts = dict(zip(words, np.asarray(encoder.embed_texts(words, kind)), strict=True)) if words else {}
        opened = [term.open() for term in pictures.values()]
        images = dict(zip(pictures, np.asarray(encoder.embed_images(opened)), strict=True)) if opened else {}

    def vector(term: Term) -> np.ndarray:
        if term.vector is not None:
            return term.vector
        return images[term.picture_key()] if term.words is None else texts[term.words]

    rows = [_embedding(query, [vector(term) for term in query.terms]) for query in queries]
    return np.stack(rows) if rows else np.empty((0, encoder.width if encoder else 0), dtype=np.float32)


def _embedding(query: Query, vectors: list[np.ndarray]) -> np.ndarray:
    if query.text is not None:
        return vectors[0]
    total = np.sum([term.weight * each for term, each in zip(query.terms, vectors, strict=True)], axis=0)
    norm = np.linalg.norm(total)
    if not norm > _ZERO * max(abs(term.weight) for term in query.terms):
        raise UserError(f"{query}: its terms cancel out. Change a weight.")
    return np.asarray(total / norm, dtype=np.float32)
