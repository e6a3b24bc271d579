"""What is asked of a pool: words, pictures, or both, each with a weight, added and taken away.

A query is written like a sum::

    "red boat" + harbour.jpg - 0.5 * "sunset"

Words stand in double quotes (inside, ``\\"`` is a quote and ``\\\\`` a backslash), a picture is the name of its file;
one with spaces, or that begins with a sign, is ``image:"my harbour.jpg"``. A weight stands in front with
``*``. A text without a double quote and without ``image:`` is no sum but words, taken exactly as they are.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, ImageLike, Kind
from recollect.data.sources.images import decode

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_IS_SUM = re.compile(r'"|(?:^|[\s*+-])image:')
_SIGN = re.compile(r"\s*([+-])")
_WEIGHT = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*\*")
_TERM = re.compile(rf'\s*(?:(?P<words>{_QUOTED})|image:(?P<quoted>{_QUOTED})|(?:image:)?(?P<bare>[^\s"]+))', re.DOTALL)
_ZERO = 1e-6
"""Norm below which the sum of a query's terms has no direction: float32 embeddings cancel no further."""


@dataclass(frozen=True)
class Term:
    """One summand of a query: words or a picture.

    Attributes:
        words: exactly as they are embedded; None for a picture.
        picture: a file, or an opened picture; None for words.
        weight: factor of its unit embedding; negative for what is not wanted, never 0.
    """

    words: str | None = None
    picture: Path | ImageLike | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if (self.words is None) == (self.picture is None):
            raise ValueError("a term has words or a picture, one of both")
        if not math.isfinite(self.weight) or self.weight == 0:
            raise UserError(f"weight {self.weight:g} of {self}: must be a finite number other than 0")

    def __str__(self) -> str:
        """As a query writes it, without its weight."""
        if self.words is not None:
            return _quoted(self.words)
        return f"image:{_quoted(str(self.picture))}" if isinstance(self.picture, Path) else "image"

    def open(self) -> ImageLike:
        """The picture.

        Raises:
            UserError: its file is not there or is none.
        """
        if isinstance(self.picture, Path):
            if not self.picture.exists():
                raise UserError(
                    f"{self.picture}: no such picture. In a query with quotes, words stand in double quotes."
                )
            return decode(self.picture, str(self.picture))
        assert self.picture is not None
        return self.picture


@dataclass(frozen=True)
class Query:
    """A weighted sum of words and pictures.

    >>> Query.words("red boat") + Query.picture("harbour.jpg") - 0.5 * Query.words("sunset")
    Query('"red boat" + image:"harbour.jpg" - 0.5 * "sunset"')

    Its embedding is the unit vector along the weighted sum of its terms' unit embeddings, and an image's score the
    cosine with that: the weighted sum of its cosines with the terms, up to a factor that all images share.

    Attributes:
        terms: at least one.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("a query has at least one term")

    @classmethod
    def words(cls, text: str) -> "Query":
        """Words exactly as they are, quotes and signs included."""
        return cls((Term(words=text),))

    @classmethod
    def picture(cls, image: str | Path | ImageLike) -> "Query":
        """A picture: a file, a PIL image, or a (height, width, 3) uint8 array."""
        return cls((Term(picture=Path(image) if isinstance(image, str) else image),))

    @classmethod
    def parse(cls, text: str) -> "Query":
        """Read a query as people write it (see the module).

        Raises:
            UserError: it is malformed; the message says where.
        """
        if not _IS_SUM.search(text):
            return cls.words(text)
        terms: list[Term] = []
        place = 0
        while text[place:].strip():
            sign, place = _sign(text, place, first=not terms)
            factor = _WEIGHT.match(text, place)
            place = factor.end() if factor else place
            found = _TERM.match(text, place)
            if found is None:
                raise UserError(_malformed(text, place))
            terms.append(_term(found, sign * float(factor[1] if factor else 1)))
            place = found.end()
        return cls(tuple(terms))

    @property
    def text(self) -> str | None:
        """The words of a query that is nothing else; None for every other."""
        (first, *rest) = self.terms
        return first.words if not rest and first.weight == 1 else None

    @property
    def words_alone(self) -> bool:
        """Whether it has no picture."""
        return all(term.words is not None for term in self.terms)

    @property
    def empty(self) -> bool:
        """Whether it says nothing: all its terms are words, and none has a letter."""
        return all(term.words is not None and not term.words.strip() for term in self.terms)

    @cached_property
    def _written(self) -> str:
        if self.text is not None and not _IS_SUM.search(self.text):
            return self.text
        parts = []
        for place, term in enumerate(self.terms):
            sign = ("- " if term.weight < 0 else "+ ") if place else ("-" if term.weight < 0 else "")
            factor = "" if abs(term.weight) == 1 else f"{abs(term.weight)!r} * ".replace(".0 ", " ")
            parts.append(f"{sign}{factor}{term}")
        return " ".join(parts)

    def __str__(self) -> str:
        """As `parse` reads it."""
        return self._written

    def __repr__(self) -> str:
        return f"Query({self._written!r})"

    def __add__(self, other: "Query") -> "Query":
        return Query(self.terms + other.terms)

    def __sub__(self, other: "Query") -> "Query":
        return self + -1.0 * other

    def __mul__(self, weight: float | int) -> "Query":
        return Query(tuple(replace(term, weight=float(weight * term.weight)) for term in self.terms))

    __rmul__ = __mul__


def as_query(asked: str | Query) -> Query:
    """A text means its words exactly as they are."""
    return Query.words(asked) if isinstance(asked, str) else asked


def embed_queries(
    encoder: Encoder, queries: Sequence[Query], kind: Kind | None = None
) -> Float[Tensor, "queries width"]:
    """Unit-norm float32 embeddings of queries; words and files that several have are embedded once.

    Args:
        kind: how words are read, by a model that has prefix tokens.

    Raises:
        UserError: a picture cannot be opened, a term has no words, or the terms of a query cancel out.
    """
    words = list(dict.fromkeys(term.words for query in queries for term in query.terms if term.words is not None))
    pictures = _pictures(queries)
    texts = dict(zip(words, encoder.embed_texts(words, kind), strict=True)) if words else {}
    opened = [term.open() for term in pictures.values()]
    images = dict(zip(pictures, encoder.embed_images(opened), strict=True)) if opened else {}

    def vector(term: Term) -> Tensor:
        return images[_picture_key(term)] if term.words is None else texts[term.words]

    rows = []
    for query in queries:
        if query.text is not None:
            rows.append(texts[query.text])
            continue
        check_terms(query)
        total = torch.stack([term.weight * vector(term) for term in query.terms]).sum(dim=0)
        if not float(total.norm()) > _ZERO * max(abs(term.weight) for term in query.terms):
            raise UserError(f"{query}: its terms cancel out, so that it asks for nothing. Change a weight.")
        rows.append(F.normalize(total, dim=0))
    return torch.stack(rows) if rows else torch.empty(0, encoder.width, dtype=torch.float32)


def check_terms(query: Query) -> None:
    """Refuse a sum with a term that says nothing.

    Raises:
        UserError: naming the query.
    """
    if len(query.terms) > 1 and any(term.words is not None and not term.words.strip() for term in query.terms):
        raise UserError(f"{query}: one of its terms is empty. Say what to look for, or leave it out.")


def _picture_key(term: Term) -> tuple[str, str]:
    """Equal for terms with the same file, or with the same opened picture."""
    named = isinstance(term.picture, Path)
    return ("file", str(term.picture)) if named else ("opened", str(id(term.picture)))


def _pictures(queries: Sequence[Query]) -> dict[tuple[str, str], Term]:
    return {_picture_key(term): term for query in queries for term in query.terms if term.words is None}


def _sign(text: str, place: int, first: bool) -> tuple[int, int]:
    found = _SIGN.match(text, place)
    if found is None:
        if not first:
            raise UserError(_malformed(text, place, "write + or - between two terms"))
        return 1, place
    return (-1 if found[1] == "-" else 1), found.end()


def _term(found: re.Match[str], weight: float) -> Term:
    if found["words"] is not None:
        return Term(words=_plain(found["words"]), weight=weight)
    name = found["bare"] if found["quoted"] is None else _plain(found["quoted"])
    return Term(picture=Path(name), weight=weight)


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[1:-1], flags=re.DOTALL)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _malformed(text: str, place: int, why: str = "") -> str:
    rest = text[place:].strip()
    reason = why or ("a quote is not closed" if rest.startswith(('"', 'image:"')) else "a term is missing")
    return (
        f"query {text!r}: {reason} at {rest[:40]!r}. A query is words, or a sum such as "
        '\'"red boat" + harbour.jpg - "sunset"\'; --literal takes every text as words.'
    )
