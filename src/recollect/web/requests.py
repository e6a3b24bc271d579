"""What the page asks for, checked by pydantic."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

MOST_TERMS = 16
MOST_TILES = 400


class Strict(BaseModel):
    """A part of a request; what it does not define is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Id = Annotated[str, Field(max_length=512)]
LocalPath = Annotated[str, Field(max_length=4096)]
WhereText = Annotated[
    str, BeforeValidator(lambda where: where or ""), StringConstraints(max_length=2000, strip_whitespace=True)
]


Words = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2000)]


class SearchTerm(Strict):
    """A part of a query: words, a picture of the index, or an uploaded one; a negative weight pushes away."""

    words: Words | None = None
    id: Id | None = None
    upload: Annotated[str, Field(max_length=64)] | None = None
    weight: float = 1.0

    @model_validator(mode="after")
    def _one_kind(self) -> "SearchTerm":
        if sum(each is not None for each in (self.words, self.id, self.upload)) != 1:
            raise ValueError("a term needs text or an image, not both")
        return self


class Ask(Strict):
    """Which list the page asks for.

    Attributes:
        terms: of a search; a list without terms has all pictures in the order of the index.
        adapt: rank the first results again by a model adapted to this query (EFSA).
        order: ``search``; for a label ``likely``, ``next``, ``cut`` or ``clicked`` (see `Teaching.ranked`); ``sorted``
            for all pictures by the classifier that all labels make.
        label: the label to rank for; in the other orders the one whose marks tiles show.
        show: of ``sorted``: ``doubtful``, ``none``, or ``class:NAME`` (see `Sorting.ranked`).
        arrange: of ``search``: by score, or by date or file name. A search is arranged among its likely matches, or
            among its best `MOST_ARRANGED` where no cut-off was learned.
    """

    terms: Annotated[tuple[SearchTerm, ...], Field(max_length=MOST_TERMS, strict=False)] = ()
    where: WhereText = ""
    adapt: bool = False
    order: Literal["search", "likely", "next", "cut", "clicked", "sorted"] = "search"
    label: int | None = None
    show: Annotated[str, Field(max_length=410)] = "doubtful"
    arrange: Literal["score", "newest", "oldest", "name"] = "score"


class Slice(Ask):
    """Part of a list.

    Attributes:
        version, revision: of the index and the labels when the first tiles of this list were shown. Later tiles come
            from the same list while it is kept, else from the list as it is now.
    """

    start: Annotated[int, Field(ge=0)] = 0
    count: Annotated[int, Field(ge=1, le=MOST_TILES)] = 60
    version: int | None = None
    revision: int | None = None

    @property
    def ask(self) -> Ask:
        """The list."""
        return Ask.model_construct(**{name: getattr(self, name) for name in Ask.model_fields})


class IdsBody(Slice):
    """Which ids of a list."""

    count: Annotated[int, Field(ge=1, le=20_000)] = 60


class LabelBody(Strict):
    """A new label; `LabelStore.create` checks it."""

    name: str
    text: str = ""


class PicturesBody(Strict):
    """Some pictures: by id, or the first of a list."""

    ids: Annotated[tuple[Id, ...], Field(max_length=100_000, strict=False)] = ()
    of: Slice | None = None
    first: Annotated[int, Field(ge=1)] | None = None


class MarkBody(PicturesBody):
    """A mark for some pictures, and the list to answer with."""

    mark: Literal[-1, 0, 1]
    listing: Slice | None = None


class ActBody(PicturesBody):
    """What to do with some pictures; see `Actions.act`."""

    kind: Literal["copy", "move", "remove", "delete"]
    folder: LocalPath = ""
    files: Annotated[list[LocalPath], Field(max_length=100_000)] | None = None


class ExportBody(PicturesBody):
    """Which file to write about some pictures."""

    kind: Literal["csv", "parquet", "coco", "coco-labels"]


class SearchBody(Strict):
    """A search to save, by its address in the page; without an address it is removed."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    address: Annotated[str, Field(min_length=1, max_length=8000)] | None = None
