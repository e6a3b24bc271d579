"""What an index holds: its pictures, vectors and columns, read, filtered and counted; and the model that made them."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import beside
from recollect.core.types import Encoder, ImageLike, caption_prefix
from recollect.core.validation import refuse
from recollect.index import annotations
from recollect.index.filters import (
    NAMES,
    NUMBERS,
    PHYSICAL,
    Filter,
    asked_value,
    parse_filter,
    unknown_names,
    with_labels,
)
from recollect.index.picture import Picture, picture_of
from recollect.index.query import Query, QueryEncoder
from recollect.index.rows import FACTS, By, Record
from recollect.index.stores.base import Store
from recollect.index.stores.ivf import Accelerator

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from recollect.models.starter.words import StarterWords

_AT_ONCE = 1_024  # pictures that are read together


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds.

    Attributes:
        pictures, texts: how many pictures, and how many of them have a caption.
        captions: how many captions there are.
        sources: pictures of each source.
        places: folders, files or hub ids of each source.
        columns: names that filters know, with their type.
        removed: pictures that the user removed.
    """

    address: str
    pictures: int
    texts: int
    captions: int
    sources: dict[str, int]
    places: dict[str, tuple[str, ...]]
    columns: dict[str, str]
    removed: int
    record: Record
    version: int
    accelerators: tuple[Accelerator, ...] = ()


class IndexContents:
    """A store read as pictures, and their model.

    Args:
        store: keeps the rows.
        encoder: the model that made the vectors; opened when first needed if None.
        read: returns the picture of an id, where pictures are not files or bytes in the index.
    """

    def __init__(
        self, store: Store, encoder: Encoder | None = None, read: Callable[[str], ImageLike] | None = None
    ) -> None:
        if isinstance(store, str | Path):
            raise TypeError(
                f"Index({str(store)!r}): Index.open(INDEX) opens an index, Index.build(PICTURES) makes one."
            )
        self.store = store
        self._encoder, self._read = encoder, read
        self._labels: Path | None = None
        if encoder is not None:
            self.check_encoder(encoder, "the model")

    @property
    def address(self) -> str:
        """What the user calls it."""
        return self.store.address

    @property
    def folder(self) -> Path | None:
        """The folder of an index on disk."""
        return self.store.folder

    @property
    def annotations(self) -> Path | None:
        """The SQLite file for clicks and labels, in the folder of an index on disk; it need not exist."""
        return self._labels if self.folder is None else self.folder / annotations.ANNOTATIONS

    @property
    def record(self) -> Record:
        """Width, model and precision."""
        return self.store.record

    @property
    def width(self) -> int:
        """Entries of a vector."""
        return self.record.width

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.store.version()

    @property
    def fingerprint(self) -> str:
        """Changes whenever the rows do."""
        return f"{self.record.key}-{self.version}"

    @property
    def ids(self) -> list[str]:
        """All pictures that the user did not remove, in the order of the rows."""
        return self.store.ids()

    def __len__(self) -> int:
        return self.store.count()

    def __getitem__(self, place: int) -> Picture:
        """The picture at a place of `ids`; negative places count from the end."""
        return self.pictures([self.ids[place]])[0]

    def __iter__(self) -> Iterator[Picture]:
        """All pictures, in the order of `ids`."""
        ids = self.ids
        for start in range(0, len(ids), _AT_ONCE):
            yield from self.pictures(ids[start : start + _AT_ONCE])

    @property
    def texts(self) -> int:
        """How many pictures have a caption."""
        return self.store.count(spoken=True)

    def __repr__(self) -> str:
        return f"Index({self.address!r}, {len(self):,} pictures, width {self.width})"

    def info(self) -> IndexInfo:
        """Count what it holds."""
        sources, places, captions = Counter[str](), dict[str, dict[str, None]](), 0
        for table in self.store.scan(["files", "captions"]):
            captions += sum(map(len, table["captions"].to_pylist()))
            for files in table["files"].to_pylist():
                sources.update({file["source"] for file in files})
                for file in files:
                    places.setdefault(file["source"], {})[file["place"]] = None
        removed = sum(table.num_rows for table in self.store.scan(["id"], removed=True))
        return IndexInfo(
            self.address, len(self), self.texts, captions, dict(sources),
            {source: tuple(filter(None, each)) for source, each in places.items()},
            self.columns(), removed, self.record, self.version, self.accelerators(),
        )  # fmt: skip

    def columns(self) -> dict[str, str]:
        """Every name that filters know, with the type of its values."""
        built_in = {name: "number" if name in NUMBERS else "text" for name in NAMES}
        labels = dict.fromkeys(annotations.label_names(self.annotations), "text")
        return built_in | self.store.filter_keys() | labels

    def refresh(self) -> bool:
        """Read what other processes have written since; returns whether anything changed."""
        before = self.version
        return self.store.version(newest=True) != before

    def warm(self) -> None:
        """Make now what the first look-up would make: the matrix of the vectors."""
        self.store.count()

    def accelerators(self) -> tuple[Accelerator, ...]:
        """What was measured of approximate indexes (see `Index.accelerate`)."""
        return self.store.accelerators()

    def pictures(self, ids: Sequence[str]) -> list[Picture]:
        """Pictures in the order of their ids; removed ones too.

        Raises:
            UserError: an id does not exist.
        """
        wanted = [str(id) for id in ids]
        rows = {row["id"]: row for row in self.store.rows(list(dict.fromkeys(wanted)), FACTS).to_pylist()}
        self._check_known(wanted, rows)
        made = {id: picture_of(row, self.address, self._stored_bytes, self._read) for id, row in rows.items()}
        return [made[id] for id in wanted]

    def _stored_bytes(self, id: str) -> bytes | None:
        rows = self.store.rows([id], ["image"])
        return rows["image"][0].as_py() if rows.num_rows else None

    def vectors(self, ids: Sequence[str] | None = None, by: By = "image") -> Float32[np.ndarray, "n width"]:
        """Unit-norm vectors in the order of ``ids``, or of `ids` of the whole index.

        A picture with several captions has their normalised mean; one without a caption or image has zeros.

        Raises:
            UserError: an id does not exist.
        """
        if ids is None:
            return self.store.vectors(by)
        distinct, places = np.unique(np.asarray(ids, dtype=object).astype(str), return_inverse=True)
        if not len(distinct):
            return np.empty((0, self.width), dtype=np.float32)
        self._check_known(distinct.tolist())
        return self.store.vectors(by, distinct.tolist())[places]

    def matrix(self, by: By = "image") -> tuple[list[str], Float32[np.ndarray, "n width"]]:
        """All ids and their vectors."""
        return self.ids, self.store.vectors(by)

    def values(self, name: str, ids: Sequence[str] | None = None) -> list[Any]:
        """A column that filters know: a value per picture, a list where there may be several, None where missing."""
        known: Mapping[str, Any] | None = annotations.labels_named(self.annotations, name)
        if known is None:
            column = PHYSICAL.get(name, name) if name in NAMES else "metadata"
            tables = self.store.scan(["id", column]) if ids is None else [self.store.rows(list(ids), [column])]
            pairs = [
                pair for each in tables for pair in zip(each["id"].to_pylist(), each[column].to_pylist(), strict=True)
            ]
            values = ((id, asked_value(name if name in NAMES else column, value)) for id, value in pairs)
            known = {id: value.get(name) if column == "metadata" else value for id, value in values}
        return [known.get(id) for id in (self.ids if ids is None else ids)]

    def ids_where(self, where: str | Filter) -> list[str]:
        """The ids of all pictures that satisfy a filter, in the order of the rows.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        condition = self._filter(where)
        ids = [id for table in self.store.scan(["id"], condition) for id in table["id"].to_pylist()]
        if not ids:
            raise self._nothing_satisfies(where)
        return ids

    def scan(self, columns: Sequence[str], where: str | Filter | None = None) -> "Iterator[pa.Table]":
        """Columns of all pictures, or of those that satisfy a filter, in batches; always in the same order.

        Raises:
            UserError: the filter is malformed.
        """
        return self.store.scan(columns, self._filter(where))

    def removed(self) -> list[Picture]:
        """Pictures that the user removed."""
        return self.pictures([id for table in self.store.scan(["id"], removed=True) for id in table["id"].to_pylist()])

    def find(self, names: Sequence[str]) -> list[str]:
        """The ids of pictures named by id, by the first letters of one (8 or more), or by a file of theirs.

        A file is named by its path, or by its path within the source.

        Raises:
            UserError: a name fits no picture, or several.
        """
        known = set(self.store.rows(list(names), ["id"])["id"].to_pylist()) if names else set()
        named: dict[str, set[str]] = {}
        for table in self.store.scan(["id", "files"]) if known < set(names) else ():
            for id, files in zip(table["id"].to_pylist(), table["files"].to_pylist(), strict=True):
                here = {each for file in files for each in (file["path"], file["key"]) if each}
                for name in here | {name for name in names if len(name) >= 8 and id.startswith(name)}:
                    named.setdefault(name, set()).add(id)
        found = list[str]()
        for name in names:
            here = {name} if name in known else named.get(name) or named.get(str(Path(name).resolve()), set())
            what = f"{len(here)} pictures" if here else "no picture"
            refuse((len(here) != 1, f"{self.address}: {what} called {name!r}. Use an id or the path of a file."))
            found += here
        return found

    def _filter(self, where: str | Filter | None) -> Filter | None:
        if where is None:
            return None
        path = self.annotations
        return with_labels(parse_filter(where), lambda name: annotations.labels_named(path, name))

    def _nothing_satisfies(self, where: str | Filter) -> UserError:
        why = unknown_names(parse_filter(where), self.columns())
        return UserError(f"{self.address}: no picture satisfies {where}{why}")

    def _check_known(self, ids: Sequence[str], known: Collection[str] | None = None) -> None:
        """Reject ids that no picture has."""
        if ids and known is None:
            known = set(self.store.rows(list(ids), ["id"])["id"].to_pylist())
        if missing := [id for id in ids if id not in (known or ())]:
            count = f"{len(missing):,} of {len(ids):,} are missing"
            raise UserError(f"{self.address}: no picture with id {missing[0]!r} ({count})")

    @property
    def encoder(self) -> Encoder:
        """The model that made the vectors.

        Raises:
            UserError: it cannot be opened, or is another model now.
        """
        if self._encoder is None:
            self.open_model()
        assert self._encoder is not None
        return self._encoder

    def open_model(
        self, named: str | None = None, device: "torch.device | str | None" = None, option: str = "--model"
    ) -> tuple[Encoder, str]:
        """Open the model of the index.

        Args:
            named: where it is now; where it was when the index was made by default.
            device: where to compute; the best there is by default.
            option: what names the model on the command line, for messages.

        Returns:
            The model, and what opened it.

        Raises:
            UserError: it cannot be opened, or is another model.
        """
        name = named or beside(self.record.model_name, self.address)
        refuse((not name, f"{self.address}: does not say which model embedded it. Name it with {option}."))
        gone = f"{self.address}: its model {name} cannot be opened; say where it is with {option}"
        with nullcontext() if named else user_errors(gone, UserError):
            encoder = encoder_and_name(name, device)[0]
        self.check_encoder(encoder, name)
        self._encoder = encoder
        return encoder, name

    def check_encoder(self, encoder: Encoder, what: str) -> None:
        """Reject a model other than the one that made the vectors, or one that reads texts differently.

        Raises:
            UserError: naming both.
        """
        self.check_model(encoder.fingerprint, what)
        before, now = (
            f"prefix {each}" if each else "no prefix" for each in (self.record.prefix, caption_prefix(encoder))
        )
        differ = f"{self.address}: its texts were read with {before}, but {what} reads them with {now}"
        refuse((before != now, f"{differ}, so they cannot be compared. Build the index again."))

    def check_model(self, fingerprint: str, what: str) -> None:
        """Reject a model other than the one that made the vectors.

        Raises:
            UserError: naming both.
        """
        before, now = f"{self.record.model_name or 'a model'} ({self.record.model[:12]})", fingerprint[:12]
        other = f"{self.address}: embedded by {before}, but {what} is another model ({now})"
        refuse((fingerprint != self.record.model, f"{other}. Use that model, or build another index with this one."))

    def _embeds(self, queries: Sequence[Query]) -> QueryEncoder | None:
        """What embeds these queries; None where all their terms are vectors."""
        terms = [term for query in queries for term in query.terms if term.vector is None]
        if terms and all(term.words is not None for term in terms) and self._words is not None:
            return self._words
        return self.encoder if terms else None

    @property
    def _words(self) -> "StarterWords | None":
        """Embeds words without PyTorch, in an index of the starter whose model is not open."""
        from recollect.models.pretrained import STARTER

        if self._encoder is not None or self.record.model_name != STARTER or "torch" in sys.modules:
            return None
        return self._starter

    @cached_property
    def _starter(self) -> "StarterWords | None":
        from recollect.models.starter.words import starter_words

        return starter_words(self.record.model)


def encoder_and_name(
    model: Encoder | str | Path | None, device: "torch.device | str | None" = None
) -> tuple[Encoder, str]:
    """A model, and the name that opens it again; the starter by default."""
    if not isinstance(model, str | Path | None):
        return model, str(getattr(model, "name", ""))
    from recollect.models import load_model
    from recollect.models.pretrained import STARTER

    name = STARTER if model is None else str(model)
    encoder = load_model(name, device)
    if name == STARTER:
        from recollect.models.starter.words import note_starter

        note_starter(encoder)
    return encoder, name
