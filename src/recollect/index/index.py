"""`Index`: pictures embedded by one model, with search, nearest-neighbor lookup, filters and updates."""

import uuid
from bisect import bisect_left
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
    filter_value,
    parse_filter,
    unknown_names,
    with_labels,
)
from recollect.index.hits import MODEL, Hits, Reranker
from recollect.index.info import IndexInfo, index_info
from recollect.index.ingest import IngestReport, ingest, open_pictures
from recollect.index.lookup import Excluded, Found, ids_near, look_up
from recollect.index.model import IndexModel, encoder_and_name
from recollect.index.options import IngestOptions
from recollect.index.picture import Picture, picture_of
from recollect.index.query import QueryLike, as_query
from recollect.index.rows import COLUMNS, FACTS, By, Record, Rows, VectorPrecision, unit_vectors
from recollect.index.search import search_pictures
from recollect.index.stores.base import Store, store_class
from recollect.index.stores.ivf import Accelerator
from recollect.index.stores.lance import TABLE, verify_folder
from recollect.index.stores.ram import RamStore

if TYPE_CHECKING:
    import pyarrow as pa

NEAR = 0.94
"""Minimum cosine of near-duplicates (RECO, section 4.1)."""

Vectors = Any
"""Tensor or array (queries, width)."""

_BLOCK = 1_024  # pictures read at a time


class Index:
    """Pictures with their captions and vectors, in RAM, on disk or on a server.

    >>> index = Index.open("indexes/holidays")                                        # doctest: +SKIP
    >>> hits = index.search(["a red boat", Minus("people")], k=20, where="taken > '2022'")   # doctest: +SKIP
    >>> found = index.lookup(vectors, k=10, by="image", read="text")                   # doctest: +SKIP

    Args:
        store: holds the rows.
        model: model that computed the vectors; None opens it on first use. Or `Index.model` of another index, which is
            shared if it is the same model.
        read: returns the picture for an id, if pictures are neither files nor stored in the index.

    Attributes:
        address: folder or URL as given by the user.
        folder: folder of an index on disk, else None.
        record: width, model and precision.
        width: vector dimension.
        model: opens and checks the model.
        scored_by: `Hit.scored_by` of search results.
        report: outcome of the last `add`.
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
            raise TypeError(f"Index({str(store)!r}): use Index.open(INDEX), or Index.build(PICTURES) for a new index")
        self.store, self.address, self.folder = store, store.address, store.folder
        self.record, self.width, self._read = store.record, store.record.width, read
        if isinstance(model, IndexModel) and model.made(self.record):
            self.model = model
        else:
            self.model = IndexModel(self.record, self.address, None if isinstance(model, IndexModel) else model)
        self._labels: Path | None = None
        self._cut_off: tuple[int, float, int, CutOff] | None = None

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
        """Index the pictures of a source. Repeating the call resumes an interrupted build or updates the index.

        Args:
            source: a folder, a file, a hub id, or an open source.
            model: an encoder, or its name (see `recollect.load_model`); default: the starter.
            out: a folder, or ``milvus://host:port/collection``; default: in RAM.
            name: name of the source in the index; default: the source's own name.
            options: how samples become rows.
            precision: precision of the stored vectors.
            model_name: path or hub id stored in the index to reopen the encoder.

        Raises:
            UserError: the model or source cannot be opened, or ``out`` is an index of another model.
        """
        source = source if isinstance(source, Source) else open_pictures(str(source))  # fail before creating an index
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
        """Create an empty index.

        Args:
            address: a folder, or ``milvus://host:port/collection``; default: in RAM.
            width: vector dimension.
            model: fingerprint of the model.
            model_name: path or hub id of the model.
            prefix: text kind of captions and queries, for models with prefix tokens.
            precision: precision of the stored vectors.

        Raises:
            UserError: something already exists at the address.
        """
        record = Record(width, model, model_name, prefix, precision, uuid.uuid4().hex)
        if address is None:
            return cls(RamStore(record))
        location = expanduser(address)
        return cls(store_class(location).create(location, record))

    @classmethod
    def open(
        cls,
        address: str | Path,
        model: Encoder | IndexModel | str | Path | None = None,
        version: int | None = None,
    ) -> "Index":
        """Open an index. An `Index` object is not thread-safe: open one per thread.

        Args:
            address: its folder, or ``milvus://host:port/collection``.
            model: the model or its name; default: the model name stored in the index. Or `Index.model` of another
                index, which is shared if it is the same model.
            version: earlier version of an index on disk; default: the newest.

        Raises:
            UserError: the index is missing or damaged, or was built with another model.
        """
        location = expanduser(address)
        store = store_class(location)(location, version)
        return cls(store, encoder_and_name(model)[0] if isinstance(model, str | Path) else model)

    @staticmethod
    def exists(address: str | Path) -> bool:
        """Return whether anything exists at this address, index or not."""
        location = expanduser(address)
        return bool(store_class(location).exists(location))

    def save(self, address: str | Path) -> "Index":
        """Copy this index, including manual labels, to a new address, e.g. from RAM to disk; return the copy.

        Raises:
            UserError: something already exists at the address.
        """
        record = replace(self.record, key=uuid.uuid4().hex)
        location = expanduser(address)
        copy = Index(store_class(location).create(location, record), self.model)
        for table in self.store.scan(COLUMNS, removed=None):
            copy.store.upsert(table)
        annotations.copy_annotations(self.annotations, copy.annotations)
        return copy

    # ---------------------------------------------------------------- contents

    @property
    def annotations(self) -> Path | None:
        """SQLite file for clicks and labels in the folder of an index on disk; it may not exist."""
        return self._labels if self.folder is None else self.folder / annotations.ANNOTATIONS

    @property
    def version(self) -> int:
        """Version number; increases with every change."""
        return self.store.version()

    @property
    def fingerprint(self) -> str:
        """Identifies this index and version."""
        return f"{self.record.key}-{self.version}"

    @property
    def ids(self) -> list[str]:
        """Ids of all pictures in row order, without those the user removed."""
        return self.store.ids()

    def __len__(self) -> int:
        return self.store.count()

    @overload
    def __getitem__(self, position: int) -> Picture: ...

    @overload
    def __getitem__(self, position: slice) -> list[Picture]: ...

    def __getitem__(self, position: int | slice) -> Picture | list[Picture]:
        """Return the picture at a position of `ids`, or the pictures of a slice."""
        if isinstance(position, slice):
            return self.pictures(self.ids[position])
        return self.pictures([self.ids[position]])[0]

    def __iter__(self) -> Iterator[Picture]:
        """Yield all pictures in the order of `ids`."""
        ids = self.ids
        for start in range(0, len(ids), _BLOCK):
            yield from self.pictures(ids[start : start + _BLOCK])

    @property
    def texts(self) -> int:
        """Number of pictures with a caption."""
        return self.store.count(captioned=True)

    def __repr__(self) -> str:
        return f"Index({self.address!r}, {len(self):,} pictures, width {self.width})"

    def info(self) -> IndexInfo:
        """Return counts of pictures, captions and sources."""
        return index_info(self)

    def columns(self) -> dict[str, str]:
        """Return all names that filters accept, with the type of their values."""
        built_in = {name: "number" if name in NUMBERS else "text" for name in NAMES}
        labels = dict.fromkeys(annotations.label_names(self.annotations), "text")
        return built_in | self.store.filter_keys() | labels | built_in

    def refresh(self) -> bool:
        """Switch to the newest version, including changes by other processes; return whether anything changed."""
        before = self.version
        return self.store.version(newest=True) != before

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Return the measurements of existing approximate indexes (see `Index.accelerate`)."""
        return self.store.accelerators()

    def pictures(self, ids: Sequence[str]) -> list[Picture]:
        """Return the pictures in the order of ``ids``, including removed ones.

        Raises:
            UserError: an id does not exist.
        """
        wanted = [str(id) for id in ids]
        rows = {row["id"]: row for row in self.store.rows(list(dict.fromkeys(wanted)), FACTS).to_pylist()}
        self._check_known(wanted, rows)
        pictures = {id: picture_of(row, self.address, self._stored_bytes, self._read) for id, row in rows.items()}
        return [pictures[id] for id in wanted]

    def _stored_bytes(self, id: str) -> bytes | None:
        rows = self.store.rows([id], ["image"])
        return rows["image"][0].as_py() if rows.num_rows else None

    def vectors(self, ids: Sequence[str] | None = None, by: By = "image") -> Float32[np.ndarray, "n width"]:
        """Return unit-norm vectors in the order of ``ids``; default: `Index.ids`.

        Several captions of a picture are averaged and normalized; a missing image or caption gives zeros.

        Raises:
            UserError: an id does not exist.
        """
        if ids is None:
            return self.store.vectors(by)
        distinct, inverse = np.unique(np.asarray(ids, dtype=object).astype(str), return_inverse=True)
        if not len(distinct):
            return np.empty((0, self.width), dtype=np.float32)
        self._check_known(distinct.tolist())
        return self.store.vectors(by, distinct.tolist())[inverse]

    def values(self, name: str, ids: Sequence[str] | None = None) -> list[Any]:
        """Return a filter column: one value per picture, a list for names with several values, None if missing."""
        known: Mapping[str, Any] | None = None
        if name not in NAMES:
            known = annotations.labels_in_column(self.annotations, name)
        if known is None:
            column = PHYSICAL.get(name, name) if name in NAMES else "metadata"
            rows = self.store.dicts(["id", column]) if ids is None else self.store.rows(list(ids), [column]).to_pylist()
            values = ((row["id"], filter_value(name if name in NAMES else column, row[column])) for row in rows)
            known = {id: value.get(name) if column == "metadata" else value for id, value in values}
        return [known.get(id) for id in (self.ids if ids is None else ids)]

    def ids_where(self, where: str | Filter) -> list[str]:
        """Return the ids of all pictures that satisfy a filter, in row order.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        return [id for table in self.scan(["id"], where) for id in table["id"].to_pylist()]

    def count_where(self, where: str | Filter) -> int:
        """Return the number of pictures that satisfy a filter.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        return self.store.count(where=self._filter(where)) or len(self.ids_where(where))  # raises the error for 0

    def scan(self, columns: Sequence[str], where: str | Filter | None = None) -> "Iterator[pa.Table]":
        """Yield columns of all pictures, or those matching a filter, in batches and row order.

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
        """Return the pictures that the user removed."""
        return self.pictures(self.store.ids(removed=True))

    def find(self, names: Sequence[str], removed: bool = False, folder: Path = Path()) -> list[str]:
        """Return the id of the picture for each name: an id, an id prefix (8 or more characters), or a file.

        A file is given by its path, or by its path within the source.

        Args:
            removed: resolve prefixes and files among removed pictures instead.
            folder: paths may also be relative to this folder.

        Raises:
            UserError: a name matches no picture, or several.
        """
        known = set(self.store.rows(list(names), ["id"])["id"].to_pylist()) if names else set()
        places = {name: (name, *(str(each.resolve()) for each in (Path(name), folder / name))) for name in names}
        ids, by_file = list[str](), {place: set[str]() for each in places.values() for place in each}
        for row in self.store.dicts(["id", "files"], removed=removed) if known < set(names) else ():
            ids.append(row["id"])
            for place in (place for file in row["files"] for place in (file["path"], file["key"]) if place in by_file):
                by_file[place].add(row["id"])
        ids.sort()
        found = list[str]()
        for name in names:
            same = {name} & known or next(filter(None, (by_file[place] for place in places[name])), set[str]())
            if not same and len(name) >= 8:
                same = {*ids[bisect_left(ids, name) : bisect_left(ids, f"{name}\U0010ffff")]}
            what = f"{len(same)} pictures" if same else "no picture"
            refuse((len(same) != 1, f"{self.address}: {what} called {name!r}. Use an id or the path of a file."))
            found += same
        return found

    def _filter(self, where: str | Filter | None) -> Filter | None:
        if where is None:
            return None
        path = self.annotations
        return with_labels(parse_filter(where), lambda name: annotations.labels_in_column(path, name))

    def _check_known(self, ids: Sequence[str], known: Collection[str] | None = None) -> None:
        """Raise `UserError` for ids that do not exist."""
        if ids and known is None:
            known = set(self.store.rows(list(ids), ["id"])["id"].to_pylist())
        if missing := [id for id in ids if id not in (known or ())]:
            count = f"{len(missing):,} of {len(ids):,} are missing"
            raise UserError(f"{self.address}: no picture with id {missing[0]!r} ({count})")

    @property
    def encoder(self) -> Encoder:
        """Model that computed the vectors.

        Raises:
            UserError: it cannot be opened, or its fingerprint differs from the index.
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
        """Find the k nearest pictures for each of many query vectors.

        Args:
            vectors: (queries, width), unit norm.
            k: number of pictures per query; a picture counts once even if several of its captions match.
            by: compare with image vectors, or with captions: a picture's score is then that of its best caption, and
                only pictures with a caption are searched.
            read: also return image vectors, or caption vectors (then only pictures with a caption are searched). With
                ``by="text"`` that is the matching caption; with ``by="image"`` the normalized mean of all captions.
            where: search only pictures that satisfy a filter (see `recollect.index.filters`).
            exclude: a set of ids to exclude for all queries, or a sequence with one entry per query: an id, a
                collection of ids, or None.
            max_score: skip pictures with this score or more, e.g. near-duplicates of the query.
            exact: do not use an approximate index; with exclusions or filters it is never used.

        Returns:
            Ids, scores and vectors of shape (queries, k), best first; ties in row order. Padded at the end if fewer
            pictures are left.

        Raises:
            UserError: k below 1, wrong width or norm of vectors, or a filter that is malformed or matches nothing.
        """
        check_number("k", k, least=1)
        queries = self._queries(vectors)
        condition = self._filter(where)
        found = look_up(self.store, queries, k, by, read, condition, exclude, max_score, exact)
        if where is not None and len(queries) and not (found.scores > -np.inf).any():
            self.ids_where(where)  # raises if nothing satisfies the filter
        return found

    def search(
        self,
        query: QueryLike | Sequence[QueryLike],
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
        """Return the k best pictures for a query.

        Args:
            query: words, a `Path`, a PIL image, an image array (height, width, 3), a vector (width,), a `Query`, or a
                list of these to be summed: ``["a red boat", Path("like-this.jpg"), Minus("people")]``.
            k: pictures per page.
            where: search only pictures that satisfy a filter, e.g. ``folder = 'Norway' and taken > '2022'``.
            exclude: ids to exclude.
            min_score: drop pictures with a lower score; a `CutOff` computes the score for each query.
            page: 1 for the k best, 2 for the next k, ...
            encoder: embeds the query; default: the model of the index.
            exact: do not use an approximate index.
            by: compare the query with image vectors or with captions.
            rerank: re-ranks the first pictures, e.g. `recollect.efsa.EpisodeReranker`.

        Raises:
            UserError: the filter is malformed or nothing satisfies it, a picture cannot be opened, the terms of the
                query cancel out, or a `CutOff` is given for a search of captions.
        """
        return search_pictures(self, [query], k, where=where, exclude=exclude, min_score=min_score, page=page,
                               encoder=encoder, exact=exact, by=by, rerank=rerank)[0]  # fmt: skip

    def search_many(
        self, queries: Sequence[QueryLike | Sequence[QueryLike]], k: int = 10, **options: Any
    ) -> list[Hits]:
        """Run `search` for several queries in one batch, with the same options."""
        return search_pictures(self, queries, k, **options)

    def query_vector(self, query: QueryLike | Sequence[QueryLike]) -> Float32[np.ndarray, " width"]:
        """Return the unit-norm vector that `search` looks up for a query."""
        return self.model.embed([as_query(query)])[0]

    def near(self, vectors: Vectors, threshold: float = NEAR, by: By = "image") -> list[str]:
        """Return the ids of all pictures with a cosine of at least ``threshold`` to any of the vectors.

        The search is exact. The threshold is lowered by the maximum error of half-precision vectors.
        """
        return ids_near(self.store, self._queries(vectors), threshold, by)

    def cut_off(self, share: float = CAPTION_SHARE, seed: int = 0) -> CutOff:
        """Return a score cut-off for text search.

        With 20 captions or more it is the score that a ``share`` of them give to their own picture, learned from at
        most 2,048; with fewer it is estimated from the scores of each query (`estimate_cut_off`).

        Raises:
            UserError: fewer than 20 captions and fewer than 50 pictures.
        """
        if self._cut_off is None or self._cut_off[:3] != (self.version, share, seed):
            self._cut_off = self.version, share, seed, index_cut_off(self, share, seed)
        return self._cut_off[3]

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
        """Add the pictures of a source, or update the index from it (see `recollect.index.ingest`).

        Once the whole source has been read, pictures that it no longer has are deleted from the index, except for
        files in folders that are currently unreadable. Pictures that the user removed stay removed.

        Args:
            name: name of the source in the index; default: the source's own name.
            options: how samples become rows.
            on_block: called after each block of samples, with the report so far and the total number of samples.

        Raises:
            UserError: the source cannot be read, its name is used by another source, or too many pictures are broken.
        """
        self.report = ingest(self, source, name, options or IngestOptions(), on_block)
        return self.report

    def insert(self, rows: Rows) -> int:
        """Insert rows, replacing rows with the same ids, in one commit.

        Returns:
            Number of rows replaced.

        Raises:
            UserError: wrong width or norm of vectors, or a duplicate id.
        """
        if not len(rows):
            return 0
        table = rows.table(self.record, self.address)
        with self.store.writing():
            known = self.store.rows(table["id"].to_pylist(), ["id"]).num_rows
            self.store.upsert(table)
        return int(known)

    def remove(self, ids: Collection[str] | None = None, *, where: str | Filter | None = None) -> int:
        """Remove pictures from the index until `restore`, even if their source is added again. Files are not touched.

        Returns:
            Number of pictures removed.

        Raises:
            UserError: an id does not exist, or nothing satisfies the filter; no picture is removed.
        """
        if (ids is None) == (where is None):
            raise ValueError("give either ids or a filter")
        wanted = self.ids_where(where) if where is not None else list(dict.fromkeys(ids or ()))
        self._check_known(wanted)
        return changes.set_removed(self, wanted, True)

    def restore(self, ids: Collection[str] | None = None) -> int:
        """Restore removed pictures; default: all of them. Return the number restored.

        Raises:
            UserError: a picture was not removed; no picture is restored.
        """
        removed = self.store.ids(removed=True)
        known = {*removed}
        wanted = removed if ids is None else list(dict.fromkeys(ids))
        missing = [id for id in wanted if id not in known] if ids is not None else []
        refuse((missing, f"{self.address}: picture {next(iter(missing), '')!r} was not removed"))
        return changes.set_removed(self, wanted, False)

    def forget(self, source: str) -> int:
        """Drop a source: its files, and all pictures without other files. Adding the source again restores them.

        Returns:
            Number of pictures deleted.

        Raises:
            UserError: the source does not exist.
        """
        return changes.drop_source(self, source)

    def set_captions(self, captions: Mapping[str, str | Sequence[str]], by: str = "") -> int:
        """Set captions written by the user or a model; they come before the captions from sources.

        Args:
            captions: one or several texts per id; an empty text deletes the captions set before.
            by: model that wrote them.

        Returns:
            Number of pictures changed.

        Raises:
            UserError: an id does not exist; nothing is changed.
        """
        lists = {id: [each] if isinstance(each, str) else each for id, each in captions.items()}
        texts = {id: [text.strip() for text in each if text.strip()] for id, each in lists.items()}
        self._check_known(list(texts))
        return changes.set_captions(self, texts, by)

    # ---------------------------------------------------------------- maintenance

    def facets(
        self, names: Sequence[str] = FACETS, where: str | Filter | None = None
    ) -> dict[str, list[tuple[str, int]]]:
        """Return picture counts per folder, month, camera, label and source, largest first; months latest first.

        Args:
            names: built-in facets, or manual label columns such as ``clicked``.
            where: count only pictures that satisfy a filter.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        return count_facets(self, names, where)

    def duplicates(self, threshold: float = NEAR) -> Duplicates:
        """Find duplicate pictures, without changing the index.

        Files with equal pixels are *identical* and share one row. Pictures are *near-identical* by
        `recollect.index.same_picture.near_identical` on their pixels, and *similar* if their embeddings are close. Only
        pictures with near hashes or embeddings are decoded. Use `remove` to remove duplicates.

        Args:
            threshold: minimum cosine of similar pictures.

        Raises:
            UserError: a threshold outside (0, 1].
        """
        return find_duplicates(self.snapshot(), threshold)

    def snapshot(self) -> "Index":
        """Return a read-only view of this version; the index itself if its store has no versions."""
        store = self.store.snapshot()
        return self if store is self.store else Index(store, self.model)

    @staticmethod
    def examine(address: str | Path) -> list[str]:
        """Run `verify` on an index that may be too damaged to open.

        Raises:
            UserError: there is no index.
        """
        folder = Path(address)
        on_disk = "://" not in str(address) and (folder / f"{TABLE}.lance").is_dir()
        if on_disk and (damage := verify_folder(folder)):
            return damage
        return Index.open(address).verify()

    def verify(self) -> list[str]:
        """Read all data and return one line per damaged file or picture."""
        return [*self.store.verify(), *annotations.annotation_damage(self.annotations)]

    def accelerate(self, target: float = 0.999) -> list[Accelerator]:
        """Build approximate indexes for fast lookup in a large index, with recall measured on its own rows.

        A lookup reads the fewest cells of an inverted file (faiss) that give the ``target`` recall of the ten nearest,
        and scores the candidates exactly. It is not used with filters, exclusions, ``exact=True`` or large query
        batches. Rows added later are included without retraining.

        Returns:
            Measurements for pictures and captions; those with fewer than 20,000 vectors are skipped.

        Raises:
            UserError: the index is not on disk, faiss is not installed, or ``target`` is outside (0, 1].
        """
        return self.store.accelerate(target)

    def compact(self, keep_days: float = 1.0) -> int | None:
        """Merge small files, and free the space of deleted rows and of versions older than ``keep_days``.

        Returns:
            Number of bytes freed; None for stores that compact themselves.

        Raises:
            UserError: a negative number of days.
        """
        check_number("--keep-days", keep_days, least=0)
        return self.store.compact(keep_days)
