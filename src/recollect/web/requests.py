"""Request models of the API, validated by pydantic."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

_MAX_TERMS = 16
_MAX_TILES = 400


class Strict(BaseModel):
    """Base of all request models; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Id = Annotated[str, Field(max_length=512)]
LocalPath = Annotated[str, Field(max_length=4096)]
WhereText = Annotated[
    str, BeforeValidator(lambda where: where or ""), StringConstraints(max_length=2000, strip_whitespace=True)
]


Words = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2000)]


class SearchTerm(Strict):
    """Part of a query: words, a picture in the index, or an uploaded picture; a negative weight excludes."""

    words: Words | None = None
    id: Id | None = None
    upload: Annotated[str, Field(max_length=64)] | None = None
    weight: float = 1.0

    @model_validator(mode="after")
    def _one_kind(self) -> "SearchTerm":
        if sum(each is not None for each in (self.words, self.id, self.upload)) != 1:
            raise ValueError("a term needs text or an image, not both")
        return self


class ListRequest(Strict):
    """Definition of a list of pictures.

    Attributes:
        terms: terms of the search; without terms, all pictures in index order.
        where: filter.
        adapt: rerank the top results with a model adapted to this query (EFSA).
        order: ``search``; ``likely``, ``next``, ``cut`` or ``clicked`` for a label (see `Teaching.ranked`); or
            ``sorted`` for all pictures by the classifier over all labels.
        label: label to rank for; in the other orders, the label whose marks are shown on tiles.
        show: for ``sorted``: ``doubtful``, ``none``, or ``class:NAME`` (see `Sorting.ranked`).
        arrange: for ``search``: sort by score, date or file name. Sorting by date or name covers the likely matches, or
            the best `MAX_ARRANGED` results if no cut-off was learned.
    """

    terms: Annotated[tuple[SearchTerm, ...], Field(max_length=_MAX_TERMS, strict=False)] = ()
    where: WhereText = ""
    adapt: bool = False
    order: Literal["search", "likely", "next", "cut", "clicked", "sorted"] = "search"
    label: int | None = None
    show: Annotated[str, Field(max_length=410)] = "doubtful"
    arrange: Literal["score", "newest", "oldest", "name"] = "score"


class Slice(ListRequest):
    """Range of a list.

    Attributes:
        version, revision: version of the index and revision of the labels when the list was first shown. Later tiles
            come from the same list while it is cached, else from the current one.
    """

    start: Annotated[int, Field(ge=0)] = 0
    count: Annotated[int, Field(ge=1, le=_MAX_TILES)] = 60
    version: int | None = None
    revision: int | None = None

    @property
    def request(self) -> ListRequest:
        """Definition of the list, without the range."""
        return ListRequest.model_construct(**{name: getattr(self, name) for name in ListRequest.model_fields})


class IdsBody(Slice):
    """Range of ids of a list."""

    count: Annotated[int, Field(ge=1, le=20_000)] = 60


class LabelBody(Strict):
    """A new label; `LabelStore.create` checks it."""

    name: str
    text: str = ""


class PicturesBody(Strict):
    """Selected pictures: by id, or the first ones of a list."""

    ids: Annotated[tuple[Id, ...], Field(max_length=100_000, strict=False)] = ()
    of: Slice | None = None
    first: Annotated[int, Field(ge=1)] | None = None


class MarkBody(PicturesBody):
    """Mark for selected pictures, and the list to return."""

    mark: Literal[-1, 0, 1]
    listing: Slice | None = None


class ActBody(PicturesBody):
    """Action on selected pictures; see `Actions.act`."""

    kind: Literal["copy", "move", "remove", "delete"]
    folder: LocalPath = ""
    files: Annotated[list[LocalPath], Field(max_length=100_000)] | None = None


class ExportBody(PicturesBody):
    """Export of selected pictures to a file."""

    kind: Literal["csv", "parquet", "coco", "coco-labels"]


class SearchBody(Strict):
    """Search to save, as an address of the page; without an address, the search is removed."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    address: Annotated[str, Field(min_length=1, max_length=8000)] | None = None
