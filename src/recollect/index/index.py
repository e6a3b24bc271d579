"""`Index`: pictures embedded by one model, which can be searched, looked up, filtered and changed."""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError
from recollect.core.paths import expanduser
from recollect.core.types import Encoder, ImageLike, Kind, Source, caption_prefix
from recollect.core.validation import check_number, refuse
from recollect.index import annotations, changes
from recollect.index.cutoff import CAPTION_SHARE, CutOff, index_cut_off
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
from recollect.index.hits import MODEL, Hits, Reranker
from recollect.index.info import IndexInfo, index_info
from recollect.index.ingest import IngestReport, ingest, open_pictures
from recollect.index.lookup import Excluded, Found, ids_near, look_up
from recollect.index.model import IndexModel, encoder_and_name
from recollect.index.picture import Picture, picture_of
from recollect.index.query import Asked, as_query
from recollect.index.rows import COLUMNS, FACTS, By, Record, Rows, VectorPrecision, unit_vectors
from recollect.index.samples import IngestOptions
from recollect.index.search import search_pictures
from recollect.index.stores.base import Store, store_class
from recollect.index.stores.ivf import Accelerator, accelerate
from recollect.index.stores.lance import TABLE, verify_folder
from recollect.index.stores.ram import RamStore

if TYPE_CHECKING:
    import pyarrow as pa

NEAR = 0.94
"""Cosine from which two pictures count as near-duplicates (RECO, section 4.1)."""

Vectors = Any
"""A tensor or an array (queries, width)."""

_AT_ONCE = 1_024  # pictures that are read together


class Index:
    """Pictures with their captions and vectors, in RAM, on disk or on a server.

    >>> index = Index.open("indexes/holidays")                                        # doctest: +SKIP
    >>> hits = index.search(["a red boat", Minus("people")], k=20, where="taken > '2022'")   # doctest: +SKIP
    >>> found = index.lookup(vectors, k=10, by="image", read="text")                   # doctest: +SKIP

    Args:
        store: keeps the rows.
        model: the model that made the vectors, opened when first needed if None; or `Index.model` of another index,
            which is shared if that model made these vectors too.
        read: returns the picture of an id, where pictures are not files or bytes in the index.

    Attributes:
        address: what the user calls it.
        folder: of an index on disk, else None.
        record: width, model and precision.
        width: entries of a vector.
        model: what opens and checks the model.
        scored_by: what hits say about their scores.
        report: what became of the samples of the last `add`.
    """

    scored_by = MODEL
    report: IngestReport | None = None

    def __init__(
        self,
        store: Store,
        model: Encoder | IndexModel | None = None,
        read: Callable[[str], ImageLike] | None = None,
    ) -> None:
        if isinstance(store, str | Path):
            raise TypeError(
                f"Index({str(store)!r}): Index.open(INDEX) opens an index, Index.build(PICTURES) makes one."
            )
        self.store, self.address, self.folder = store, store.address, store.folder
        self.record, self.width, self._read = store.record, store.record.width, read
        if isinstance(model, IndexModel) and model.made(self.record):
            self.model = model
        else:
            self.model = IndexModel(self.record, self.address, None if isinstance(model, IndexModel) else model)
        self._labels: Path | None = None
        self._cut: tuple[int, float, int, CutOff] | None = None

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
        source = source if isinstance(source, Source) else open_pictures(str(source))  # a wrong one leaves no index
        encoder, name_of_model = encoder_and_name(model)
        if out is not None and cls.exists(out):
            index = cls.open(out, encoder)
        else:
            index = cls.create(
                out,
                width=encoder.width,
                model=encoder.fingerprint,
                model_name=model_name or name_of_model,
                prefix=caption_prefix(encoder),
                precision=precision,
            )
            index.model.use(encoder, "the model")
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
        place = expanduser(address)
        return cls(store_class(place).create(place, record))

    @classmethod
    def open(
        cls,
        address: str | Path,
        model: Encoder | IndexModel | str | Path | None = None,
        version: int | None = None,
    ) -> "Index":
        """Open an index; each thread needs an object of its own.

        Args:
            address: its folder, or ``milvus://host:port/collection``.
            model: the model that made it, where that is not what the index remembers; or `Index.model` of another
                index, which is shared if it made this index too.
            version: an earlier version of an index on disk.

        Raises:
            UserError: no index is there, it is damaged, or the model is another one.
        """
        place = expanduser(address)
        store = store_class(place)(place, version)
        return cls(store, encoder_and_name(model)[0] if isinstance(model, str | Path) else model)

    @staticmethod
    def exists(address: str | Path) -> bool:
        """Whether something is at this address, an index or not."""
        place = expanduser(address)
        return bool(store_class(place).exists(place))

    def save(self, address: str | Path) -> "Index":
        """Copy this index, such as one in RAM, with labels given by hand to a new place.

        Raises:
            UserError: something exists at the address.
        """
        record = replace(self.record, key=uuid.uuid4().hex)
        place = expanduser(address)
        made = Index(store_class(place).create(place, record), self.model)
        for table in self.store.scan(COLUMNS, removed=None):
            made.store.upsert(table)
        annotations.copy_annotations(self.annotations, made.annotations)
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

    @overload
    def __getitem__(self, place: int) -> Picture: ...

    @overload
    def __getitem__(self, place: slice) -> list[Picture]: ...

    def __getitem__(self, place: int | slice) -> Picture | list[Picture]:
        """The picture at a place of `ids`, or those of a slice; negative places count from the end."""
        if isinstance(place, slice):
            return self.pictures(self.ids[place])
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
        return index_info(self)

    def columns(self) -> dict[str, str]:
        """Every name that filters know, with the type of its values."""
        built_in = {name: "number" if name in NUMBERS else "text" for name in NAMES}
        labels = dict.fromkeys(annotations.label_names(self.annotations), "text")
        return built_in | self.store.filter_keys() | labels | built_in

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
        known: Mapping[str, Any] | None = None
        if name not in NAMES:
            known = annotations.labels_named(self.annotations, name)
        if known is None:
            column = PHYSICAL.get(name, name) if name in NAMES else "metadata"
            some = self.store.dicts(["id", column]) if ids is None else self.store.rows(list(ids), [column]).to_pylist()
            values = ((row["id"], asked_value(name if name in NAMES else column, row[column])) for row in some)
            known = {id: value.get(name) if column == "metadata" else value for id, value in values}
        return [known.get(id) for id in (self.ids if ids is None else ids)]

    def ids_where(self, where: str | Filter) -> list[str]:
        """The ids of all pictures that satisfy a filter, in the order of the rows.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        return [id for table in self.scan(["id"], where) for id in table["id"].to_pylist()]

    def count_where(self, where: str | Filter) -> int:
        """How many pictures satisfy a filter.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        return self.store.count(where=self._filter(where)) or len(self.ids_where(where))  # which says why it is none

    def scan(self, columns: Sequence[str], where: str | Filter | None = None) -> "Iterator[pa.Table]":
        """Columns of all pictures, or of those that satisfy a filter, in batches; always in the same order.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        empty = True
        for table in self.store.scan(columns, self._filter(where)):
            empty = False
            yield table
        if where is not None and empty:
            why = unknown_names(parse_filter(where), self.columns())
            raise UserError(f"{self.address}: no picture satisfies {where}{why}")

    def removed(self) -> list[Picture]:
        """Pictures that the user removed."""
        return self.pictures(self.store.ids(removed=True))

    def find(self, names: Sequence[str], removed: bool = False) -> list[str]:
        """The ids of pictures named by id, by the first letters of one (8 or more), or by a file of theirs.

        A file is named by its path, or by its path within the source.

        Args:
            removed: look for the files of pictures that the user removed, instead of those that are left.

        Raises:
            UserError: a name fits no picture, or several.
        """
        known = set(self.store.rows(list(names), ["id"])["id"].to_pylist()) if names else set()
        named: dict[str, set[str]] = {}
        for row in self.store.dicts(["id", "files"], removed=removed) if known < set(names) else ():
            here = {each for file in row["files"] for each in (file["path"], file["key"]) if each}
            for name in here | {name for name in names if len(name) >= 8 and row["id"].startswith(name)}:
                named.setdefault(name, set()).add(row["id"])
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
        return self.model.encoder

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
        return search_pictures(self, [query], k, where=where, exclude=exclude, min_score=min_score, page=page,
                               encoder=encoder, exact=exact, by=by, rerank=rerank)[0]  # fmt: skip

    def search_many(self, queries: Sequence[Asked | Sequence[Asked]], k: int = 10, **options: Any) -> list[Hits]:
        """`search` for several queries, which are embedded and looked up together; its options hold for all."""
        return search_pictures(self, queries, k, **options)

    def query_vector(self, query: Asked | Sequence[Asked]) -> Float32[np.ndarray, " width"]:
        """The unit-norm vector that `search` looks up for a query."""
        return self.model.embed([as_query(query)])[0]

    def near(self, vectors: Vectors, threshold: float = NEAR, by: By = "image") -> list[str]:
        """The ids of all pictures with a cosine of at least ``threshold`` to any of the vectors.

        The comparison is exact. A cosine that rounding to half precision can have lowered below the threshold counts.
        """
        return ids_near(self.store, self._queries(vectors), threshold, by)

    def cut_off(self, share: float = CAPTION_SHARE, seed: int = 0) -> CutOff:
        """Where the results of a search by words end.

        With 20 captions or more it is the score that ``share`` of them give to their own picture, learned from at most
        2,048; with fewer it is estimated from the scores of each query (`estimate_cut_off`).

        Raises:
            UserError: fewer than 20 captions, and fewer than 50 pictures.
        """
        if self._cut is None or self._cut[:3] != (self.version, share, seed):
            self._cut = self.version, share, seed, index_cut_off(self, share, seed)
        return self._cut[3]

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
        table = rows.table(self.record, self.address)
        with self.store.writing():
            known = self.store.rows(table["id"].to_pylist(), ["id"]).num_rows
            self.store.upsert(table)
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
        return changes.set_removed(self, wanted, True)

    def restore(self, ids: Collection[str] | None = None) -> int:
        """Bring back pictures that were removed: some, or all of them.

        Raises:
            UserError: a picture was not removed; then none is brought back.
        """
        removed = self.store.ids(removed=True)
        known = {*removed}
        wanted = removed if ids is None else list(dict.fromkeys(ids))
        missing = [id for id in wanted if id not in known] if ids is not None else []
        refuse((missing, f"{self.address}: picture {next(iter(missing), '')!r} was not removed"))
        return changes.set_removed(self, wanted, False)

    def forget(self, source: str) -> int:
        """Drop a source: its files, and the pictures that have no other file. They come back if it is added again.

        Returns:
            How many pictures are gone.

        Raises:
            UserError: the source does not exist.
        """
        return changes.drop_source(self, source)

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

        self._check_known(list(texts))
        return changes.set_captions(self, texts, by)

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
        return self if store is self.store else Index(store, self.model)

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
        return self.store.compact(keep_days)
