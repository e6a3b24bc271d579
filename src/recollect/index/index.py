"""`Index`: pictures embedded by one model, which can be searched, looked up, filtered and changed."""

import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import beside
from recollect.core.plugins import Table
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, ImageLike, Kind, Source, caption_prefix
from recollect.core.validation import check_number, refuse
from recollect.index import annotations
from recollect.index.cutoff import CAPTION_SHARE, LEAST_CAPTIONS, MOST_CAPTIONS, CutOff, estimate_cut_off, learn_cut_off
from recollect.index.duplicates import Duplicates, find_duplicates
from recollect.index.facets import FACETS, count_facets
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
from recollect.index.hits import CAPTIONS, MODEL, Hit, Hits, Reranker
from recollect.index.ingest import IngestReport, ingest
from recollect.index.lookup import Excluded, Found, look_up
from recollect.index.picture import File, Picture, picture_of
from recollect.index.query import Asked, Query, QueryEncoder, Term, as_query, check_terms, embed_queries
from recollect.index.rows import (
    COLUMNS,
    FACTS,
    ROUNDING,
    By,
    Record,
    Rows,
    VectorPrecision,
    merged_facts,
    plain,
    unit_vectors,
)
from recollect.index.samples import IngestOptions
from recollect.index.stores.base import Store
from recollect.index.stores.ivf import Accelerator, accelerate
from recollect.index.stores.lance import TABLE, LanceStore, verify_folder
from recollect.index.stores.ram import RamStore
from recollect.models.pretrained import STARTER

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from recollect.models.starter.words import StarterWords

NEAR = 0.94
"""Cosine from which two pictures count as near-duplicates (RECO, section 4.1)."""

Vectors = Any
"""A tensor or an array (queries, width)."""

_AT_ONCE = 1_024  # pictures that are read together
_ROWS_OF_A_COMMIT = 2_048
_ALLOWED_COLUMN = re.compile(r"[^\s\"'(),][^\"]*")
_UNSURE = 2.0**-12  # far more than single precision and rounding can be off by

STORES: Table[str] = Table("stores", {"milvus": "recollect.index.stores.milvus:MilvusStore"})
"""The class of the store behind an address such as ``milvus://...``; any other address is the folder of a `LanceStore`.

Besides the methods of `Store` such a class has ``create(address, record)`` and ``exists(address)``, and is made from
an address and a version (None for the newest).
"""


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


@dataclass
class OpenedModel:
    """The model of an index once it is open; shared by the objects of one index (`Index.again`)."""

    encoder: Encoder | None = None
    opening: threading.RLock = field(default_factory=threading.RLock, repr=False)


class Index:
    """Pictures with their captions and vectors, in RAM, on disk or on a server.

    >>> index = Index.open("indexes/holidays")                                        # doctest: +SKIP
    >>> hits = index.search(["a red boat", Minus("people")], k=20, where="taken > '2022'")   # doctest: +SKIP
    >>> found = index.lookup(vectors, k=10, by="image", read="text")                   # doctest: +SKIP

    Args:
        store: keeps the rows.
        encoder: the model that made the vectors; opened when first needed if None.
        read: returns the picture of an id, where pictures are not files or bytes in the index.

    Attributes:
        address: what the user calls it.
        folder: of an index on disk, else None.
        record: width, model and precision.
        width: entries of a vector.
        scored_by: what hits say about their scores.
        report: what became of the samples of the last `add`.
    """

    scored_by = MODEL
    report: IngestReport | None = None

    def __init__(
        self, store: Store, encoder: Encoder | None = None, read: Callable[[str], ImageLike] | None = None
    ) -> None:
        if isinstance(store, str | Path):
            raise TypeError(
                f"Index({str(store)!r}): Index.open(INDEX) opens an index, Index.build(PICTURES) makes one."
            )
        self.store, self.address, self.folder = store, store.address, store.folder
        self.record, self.width = store.record, store.record.width
        self._model, self._read = OpenedModel(encoder), read
        self._labels: Path | None = None
        self._cut: tuple[int, float, int, CutOff] | None = None
        if encoder is not None:
            self.check_encoder(encoder, "the model")

    @classmethod
    def build(
        cls,
        source: str | Path | Source,
        model: Encoder | str | Path | None = None,
        *,
        out: str | Path | None = None,
        name: str = "",
        options: "IngestOptions | None" = None,
        precision: VectorPrecision = "float16",
        model_name: str = "",
    ) -> "Index":
        """Index the pictures of a source; the same call again continues, or brings the index up to date.

        Args:
            source: a folder, a file, a hub id, or an opened source.
            model: an encoder, or what opens one; the starter by default (`recollect.load_model`).
            out: a folder, or ``milvus://host:port/collection``; in RAM by default.
            name: what the index calls the source; its own name by default.
            options: how samples become rows.
            precision: of the stored vectors.
            model_name: path or hub id that opens an encoder again, which the index remembers.

        Raises:
            UserError: the model or source cannot be opened, or ``out`` is an index of another model.
        """
        encoder, name_of_model = encoder_and_name(model)
        if out is not None and cls.exists(out):
            index = cls.open(out, encoder)
        else:
            kept = {
                "model": encoder.fingerprint,
                "model_name": model_name or name_of_model,
                "prefix": caption_prefix(encoder),
            }
            index = cls.create(out, width=encoder.width, precision=precision, **kept)  # type: ignore[arg-type]
            index._encoder = encoder
        index.add(source, name=name, options=options)
        return index

    @classmethod
    def create(
        cls,
        address: str | Path | None = None,
        *,
        width: int,
        model: str,
        model_name: str = "",
        prefix: Kind | None = None,
        precision: VectorPrecision = "float32",
    ) -> "Index":
        """Make an empty index.

        Args:
            address: a folder, or ``milvus://host:port/collection``; in RAM by default.
            width: entries of a vector.
            model: fingerprint of the model whose vectors it will hold.
            model_name: path or hub id that opens this model.
            prefix: how captions and queries are read by a model with prefix tokens.
            precision: of the stored vectors.

        Raises:
            UserError: something exists at the address.
        """
        record = Record(width, model, model_name, prefix, precision, uuid.uuid4().hex)
        if address is None:
            return cls(RamStore(record))
        return cls(_store_kind(str(address)).create(str(address), record))

    @classmethod
    def open(
        cls, address: str | Path, model: Encoder | str | Path | None = None, version: int | None = None
    ) -> "Index":
        """Open an index.

        Args:
            address: its folder, or ``milvus://host:port/collection``.
            model: the model that made it, where that is not what the index remembers.
            version: an earlier version of an index on disk.

        Raises:
            UserError: no index is there, it is damaged, or the model is another one.
        """
        store = _store_kind(str(address))(str(address), version)
        return cls(store, None if model is None else encoder_and_name(model)[0])

    def again(self) -> "Index":
        """Another object for this index, as each thread needs; both share the model, which is opened once.

        Raises:
            UserError: the index is gone.
        """
        made = Index.open(self.address)
        self.share_model(made)
        return made

    def share_model(self, other: "Index") -> None:
        """Let another index use the model of this one where it is the same: one copy is enough."""
        if other.record.model == self.record.model:
            other._model = self._model

    @staticmethod
    def exists(address: str | Path) -> bool:
        """Whether something is at this address, an index or not."""
        return bool(_store_kind(str(address)).exists(str(address)))

    def save(self, address: str | Path) -> "Index":
        """Copy this index, such as one in RAM, to a new place.

        Raises:
            UserError: something exists at the address.
        """
        made = Index(_store_kind(str(address)).create(str(address), replace(self.record, key=uuid.uuid4().hex)))
        made._encoder = self._encoder
        for table in self.store.scan(COLUMNS, removed=None):
            made.store.upsert(table)
        return made

    def with_vectors(
        self,
        ids: Sequence[str],
        vectors: Float32[np.ndarray, "n width"],
        encoder: Encoder | None = None,
        scored_by: str = MODEL,
    ) -> "Index":
        """Some pictures of this index in RAM under other vectors, such as those of a fine-tuned model.

        Everything else about the pictures stays the same, but their captions cannot be searched.

        Args:
            ids: of the pictures.
            vectors: unit norm.
            encoder: the model that made them; the model of this index by default.
            scored_by: what hits say about their scores.
        """
        model: dict[str, Any] = {}
        if encoder is not None:
            model = {"model": encoder.fingerprint, "prefix": caption_prefix(encoder)}
        record = replace(self.record, width=vectors.shape[1], precision="float32", key=uuid.uuid4().hex, **model)
        facts = self.store.rows(list(ids), FACTS)
        rows = Rows(image_vectors=unit_vectors(vectors, vectors.shape[1], self.address), ids=facts["id"].to_pylist())
        table = rows.complete(record, self.address).table(record)
        for name in FACTS:
            table = table.set_column(table.column_names.index(name), table.schema.field(name), facts[name])
        store = RamStore(record)
        store.upsert(table)
        made = Index(store, read=self._read or (lambda id: self.pictures([id])[0].open()))
        made._encoder, made._labels, made.scored_by = encoder or self._encoder, self.annotations, scored_by
        return made

    # ---------------------------------------------------------------- what it holds

    @property
    def annotations(self) -> Path | None:
        """The SQLite file for clicks and labels, in the folder of an index on disk; it need not exist."""
        return self._labels if self.folder is None else self.folder / annotations.ANNOTATIONS

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

        A picture with several captions has their normalized mean; one without a caption or image has zeros.

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
        with self._model.opening:
            if self._encoder is None:
                self.open_model()
        assert self._encoder is not None
        return self._encoder

    @property
    def _encoder(self) -> Encoder | None:
        return self._model.encoder

    @_encoder.setter
    def _encoder(self, encoder: Encoder | None) -> None:
        self._model.encoder = encoder

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

    def open_words(self) -> None:
        """Open what embeds words: all of the model, or only a part of the starter, which takes no PyTorch.

        Raises:
            UserError: it cannot be opened, or is another model now.
        """
        if self._words is None:
            _ = self.encoder

    def embeds(self, queries: Sequence[Query]) -> QueryEncoder | None:
        """What embeds these queries; None where all their terms are vectors."""
        terms = [term for query in queries for term in query.terms if term.vector is None]
        if not terms:
            return None
        words = self._words if all(term.words is not None for term in terms) else None
        return words or self.encoder

    @property
    def _words(self) -> "StarterWords | None":
        """Embeds words without PyTorch, in an index of the starter whose model is not open."""
        known = "_starter" in self.__dict__  # once open it stays in use, whatever is imported meanwhile
        if self._encoder is not None or self.record.model_name != STARTER or ("torch" in sys.modules and not known):
            return None
        return self._starter

    @cached_property
    def _starter(self) -> "StarterWords | None":
        from recollect.models.starter.words import starter_words

        return starter_words(self.record.model)

    # ---------------------------------------------------------------- search

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
                the normalized mean of several.
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
        embeds = encoder or self.embeds(real)
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
        return embed_queries(encoder or self.embeds([asked]), [asked], self.record.prefix)[0]

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

        With 20 captions or more it is the score that ``share`` of them give to their own picture, learned from at most
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

    # ---------------------------------------------------------------- changes

    def add(
        self,
        source: str | Path | Source,
        *,
        name: str = "",
        options: IngestOptions | None = None,
        on_block: Callable[[IngestReport, int], None] | None = None,
    ) -> IngestReport:
        """Add the pictures of a source, or bring the index up to date with it (see `recollect.index.ingest`).

        Pictures that the source no longer has leave the index once the source was read to its end. A file in a folder
        that may not be read now is not a file that is gone. Pictures that the user removed stay removed.

        Args:
            name: what the index calls the source; its own name by default.
            options: how samples become rows.
            on_block: called after each block of samples, with the counts so far and the number of samples.

        Raises:
            UserError: the source cannot be read, its name belongs to another source, or too many pictures are broken.
        """
        self.report = ingest(self, source, name, options or IngestOptions(), on_block)
        return self.report

    def insert(self, rows: Rows) -> int:
        """Insert rows given as arrays, or replace those with the same ids; all or none.

        Returns:
            How many were replaced.

        Raises:
            UserError: vectors of another width or norm, or an id used twice.
        """
        if not len(rows):
            return 0
        complete = rows.complete(self.record, self.address)
        with self.store.writing():
            known = self.store.rows(complete.ids, ["id"]).num_rows
            self.store.upsert(complete.table(self.record))
        return int(known)

    def remove(self, ids: Collection[str] | None = None, *, where: str | Filter | None = None) -> int:
        """Remove pictures from the index, and keep them out when their source is read again; no file is touched.

        `restore` brings them back as they were.

        Returns:
            How many were removed.

        Raises:
            UserError: an id does not exist, or nothing satisfies the filter; then nothing is removed.
        """
        if (ids is None) == (where is None):
            raise ValueError("give ids or a filter, not both")
        wanted = self.ids_where(where) if where is not None else list(dict.fromkeys(ids or ()))
        self._check_known(wanted)
        return self._mark(wanted, removed=True)

    def restore(self, ids: Collection[str] | None = None) -> int:
        """Bring back pictures that were removed: some, or all of them.

        Raises:
            UserError: a picture was not removed; then none is brought back.
        """
        removed = [id for table in self.store.scan(["id"], removed=True) for id in table["id"].to_pylist()]
        wanted = removed if ids is None else list(dict.fromkeys(ids))
        missing = [id for id in wanted if id not in {*removed}] if ids is not None else []
        refuse((missing, f"{self.address}: picture {next(iter(missing), '')!r} was not removed"))
        return self._mark(wanted, removed=False)

    def forget(self, source: str) -> int:
        """Drop a source: its files, and the pictures that have no other file. They come back if it is added again.

        Returns:
            How many pictures are gone.

        Raises:
            UserError: the source does not exist.
        """
        with self.store.writing():
            rows = [row for table in self.store.scan(["id", "files"], removed=None) for row in table.to_pylist()]
            mine = [row["id"] for row in rows if any(file["source"] == source for file in row["files"])]
            known = ", ".join(sorted({file["source"] for row in rows for file in row["files"]})) or "none"
            refuse((not mine, f"{self.address}: no source called {source!r}; there are: {known}"))
            return self.drop_files(mine, lambda file: file.source == source)

    def drop_files(self, ids: Sequence[str], dropped: Callable[[File], bool]) -> int:
        """Take files from pictures, and delete those that are left without one; returns how many were deleted.

        A picture that the user removed stays, so that it is known wherever it turns up again.
        """

        def drop(rows: Rows) -> int:
            files = [tuple(file for file in each if not dropped(file)) for each in rows.files]
            kept = {place for place, each in enumerate(files) if each or rows.removed[place]}
            if kept:
                self.upsert_merged(replace(rows, files=files).take(sorted(kept)))
            lost = [id for place, id in enumerate(rows.ids) if place not in kept]
            if lost:
                self.store.delete(lost)
            return len(lost)

        return self._in_commits(ids, drop)

    def rename_files(self, ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Note where files of some pictures are now, after they were moved on disk.

        Args:
            renamed: the new path of each old one.
        """

        def rename(rows: Rows) -> int:
            files = [tuple(replace(file, path=renamed.get(file.path, file.path)) for file in each)
                     for each in rows.files]  # fmt: skip
            self._upsert(replace(rows, files=files))
            return len(rows)

        self._in_commits(ids, rename)

    def set_captions(self, captions: Mapping[str, str | Sequence[str]], by: str = "") -> int:
        """Give pictures captions of the user's own, or of a model; those of their sources stay behind them.

        Args:
            captions: a text, or several, for each id; an empty text takes the user's captions away.
            by: the model that wrote them.

        Returns:
            How many pictures have changed.

        Raises:
            UserError: an id does not exist; then nothing is changed.
        """
        given = {id: [each] if isinstance(each, str) else list(each) for id, each in captions.items()}
        texts = {id: [text.strip() for text in each if text.strip()] for id, each in given.items()}

        def changed(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
            kept = {key: value for key, value in own.items() if key not in ("captions", "by")}
            return kept | ({"captions": texts[id], "by": by} if texts[id] else {})

        return self._change_own(list(texts), changed)

    def set_values(self, name: str, values: Mapping[str, Any]) -> int:
        """Give pictures a value in a column of the user's own, which filters then know; None takes it away.

        Returns:
            How many pictures have changed.

        Raises:
            UserError: an id does not exist, or the name is one of the built-in ones; then nothing is changed.
        """
        taken = name in NAMES or not _ALLOWED_COLUMN.fullmatch(name)
        refuse((taken, f"column {name!r}: choose another name; these are taken: {', '.join(NAMES)}"))

        def changed(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**own, "values": {**own.get("values", {}), name: plain(values[id])}}

        return self._change_own(list(values), changed)

    def _mark(self, ids: list[str], removed: bool) -> int:
        """Note whether the user removed some pictures; returns how many differ."""

        def rewrite(rows: Rows) -> int:
            places = [place for place, before in enumerate(rows.removed) if before != removed]
            if places:
                self._upsert(replace(rows.take(places), removed=[removed] * len(places)))
            return len(places)

        return self._in_commits(ids, rewrite)

    def _change_own(self, ids: list[str], change: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> int:
        """Change what the user set of some pictures; returns how many differ."""
        self._check_known(ids)

        def rewrite(rows: Rows) -> int:
            own = [change(*each) for each in zip(rows.ids, rows.own, strict=True)]
            places = [place for place, each in enumerate(own) if each != rows.own[place]]
            if places:
                self.upsert_merged(replace(rows, own=own).take(places))
            return len(places)

        return self._in_commits(ids, rewrite)

    def _in_commits(self, ids: Sequence[str], write: Callable[[Rows], int]) -> int:
        """Pass rows to ``write``, 2,048 at a time while other writers wait; returns the sum of its counts."""
        total = 0
        for start in range(0, len(ids), _ROWS_OF_A_COMMIT):
            with self.store.writing():
                total += write(Rows.of_table(self.store.rows(ids[start : start + _ROWS_OF_A_COMMIT], COLUMNS)))
        return total

    def _upsert(self, rows: Rows) -> None:
        self.store.upsert(rows.complete(self.record, self.address).table(self.record))

    def upsert_merged(self, rows: Rows) -> None:
        """Write rows whose captions, labels and metadata follow from their files and what the user set.

        Vectors of captions that a row had are kept, others are embedded.
        """
        facts = [merged_facts(files, own) for files, own in zip(rows.files, rows.own, strict=True)]
        known = [dict(zip(*each, strict=True)) for each in zip(rows.captions, rows.caption_vectors, strict=True)]
        wanted = [(text, old) for each, old in zip(facts, known, strict=True) for text in each["captions"]]
        made: dict[str, np.ndarray] = {}
        if missing := list(dict.fromkeys(text for text, old in wanted if text not in old)):
            embedded = self.encoder.embed_texts(missing, self.record.prefix).numpy()
            made = dict(zip(missing, embedded, strict=True))
        vectors = [
            np.array([old[text] if text in old else made[text] for text in each["captions"]], dtype=np.float32)
            for each, old in zip(facts, known, strict=True)
        ]
        merged: dict[str, Any] = {name: [each[name] for each in facts] for name in ("captions", "labels", "metadata")}
        self._upsert(replace(rows, caption_vectors=[each.reshape(-1, self.width) for each in vectors], **merged))

    # ---------------------------------------------------------------- upkeep

    def facets(
        self, names: Sequence[str] = FACETS, where: str | Filter | None = None
    ) -> dict[str, list[tuple[str, int]]]:
        """How many pictures each folder, month, camera, label and source has, the most first; months the latest first.

        Args:
            names: some of these facets, or columns of labels given by hand, such as ``clicked``.
            where: count only pictures that satisfy a filter.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        return count_facets(self, names, where)

    def duplicates(self, threshold: float = NEAR) -> Duplicates:
        """Find pictures that are in the index more than once.

        Files with equal pixels are *identical* and share one row. Pictures are *near-identical* if
        `recollect.index.same_picture.near_identical` says so of their pixels, and *similar* if their embeddings agree.
        Only pictures with near hashes or embeddings are decoded. Nothing is changed: `remove` takes pictures out, and
        `restore` brings them back.

        Args:
            threshold: cosine from which two pictures are similar.

        Raises:
            UserError: a threshold outside of (0, 1].
        """
        return find_duplicates(self.snapshot(), threshold)

    def snapshot(self) -> "Index":
        """This version, to read from while others write; the index itself where its store keeps no versions."""
        store = self.store.snapshot()
        return self if store is self.store else Index(store, self._encoder)

    @staticmethod
    def examine(address: str | Path) -> list[str]:
        """`verify` of an index that may not open.

        Raises:
            UserError: no index is there.
        """
        folder = Path(address)
        here = "://" not in str(address) and (folder / f"{TABLE}.lance").is_dir()
        if here and (found := verify_folder(folder)):
            return found
        return Index.open(address).verify()

    def verify(self) -> list[str]:
        """Read everything, and report what is damaged: one line for each file or picture."""
        return [*self.store.verify(), *annotations.annotation_damage(self.annotations)]

    def accelerate(self, target: float = 0.999) -> list[Accelerator]:
        """Make look-ups in a large index fast, at a recall that is measured on its own rows.

        As few cells of an inverted file (faiss) are read as find the ``target`` share of the ten nearest. What they
        hold is scored exactly. Filters, exclusions, ``exact=True`` and many queries at a time never use it; rows that
        are added later are in it without training.

        Returns:
            What was measured, for pictures and for captions; nothing for fewer than 20,000 vectors.

        Raises:
            UserError: the index is not on disk, faiss is not installed, or an impossible target.
        """
        return accelerate(self.store, target)

    def compact(self, keep_days: float = 1.0) -> int | None:
        """Join small files, and free what deleted rows and versions older than ``keep_days`` take up.

        Returns:
            How many bytes were freed; None for stores that do this themselves.

        Raises:
            UserError: a negative number of days.
        """
        check_number("--keep-days", keep_days, least=0)
        return self.store.compact(keep_days) if isinstance(self.store, LanceStore) else None


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


def encoder_and_name(
    model: Encoder | str | Path | None, device: "torch.device | str | None" = None
) -> tuple[Encoder, str]:
    """A model, and the name that opens it again; the starter by default."""
    if not isinstance(model, str | Path | None):
        return model, str(getattr(model, "name", ""))
    from recollect.models import load_model

    name = STARTER if model is None else str(model)
    encoder = load_model(name, device)
    if name == STARTER:
        from recollect.models.starter.words import note_starter

        note_starter(encoder)
    return encoder, name


def _store_kind(address: str) -> Any:
    """The store that an address names."""
    scheme, mark, _ = address.partition("://")
    if not mark:
        return LanceStore
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise UserError(
            f"{address}: not the address of an index. Use a folder, or an address that starts with {known}."
        )
    return resolve_name(STORES[scheme])
