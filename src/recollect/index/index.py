"""`Index`: pictures embedded by one model, which can be searched, looked up, filtered and changed."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError
from recollect.core.plugins import Table
from recollect.core.types import Encoder, Kind, Source, caption_prefix
from recollect.core.validation import check_number
from recollect.index import annotations
from recollect.index.changes import ChangeableIndex
from recollect.index.contents import encoder_and_name
from recollect.index.convert import convert_memory, is_memory
from recollect.index.duplicates import Duplicates, find_duplicates
from recollect.index.facets import FACETS, count_facets
from recollect.index.filters import Filter
from recollect.index.hits import MODEL
from recollect.index.ingest import IngestReport, ingest
from recollect.index.rows import COLUMNS, FACTS, Record, Rows, VectorPrecision, unit_vectors
from recollect.index.samples import IngestOptions
from recollect.index.search import NEAR
from recollect.index.stores.ivf import Accelerator, accelerate
from recollect.index.stores.lance import TABLE, Compaction, LanceStore, verify_folder
from recollect.index.stores.ram import RamStore

STORES: Table[str] = Table("stores", {"milvus": "recollect.index.stores.milvus:MilvusStore"})
"""The class of the store behind an address such as ``milvus://...``; any other address is the folder of a `LanceStore`.

Besides the methods of `Store` such a class has ``create(address, record)`` and ``exists(address)``, and is made from
an address and a version (None for the newest).
"""


class Index(ChangeableIndex):
    """Pictures with their captions and vectors, in RAM, on disk or on a server.

    >>> index = Index.open("indexes/holidays")                                        # doctest: +SKIP
    >>> hits = index.search(["a red boat", Minus("people")], k=20, where="taken > '2022'")   # doctest: +SKIP
    >>> found = index.lookup(vectors, k=10, by="image", read="text")                   # doctest: +SKIP

    Args:
        store: keeps the rows.
        encoder: the model that made the vectors; opened when first needed if None.
        read: returns the picture of an id, where pictures are not files or bytes in the index.

    Attributes:
        scored_by: what hits say about their scores.
        report: what became of the samples of the last `add`.
    """

    report: IngestReport | None = None

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
        """Open an index. The folder of an older version of recollect is converted first.

        Args:
            address: its folder, or ``milvus://host:port/collection``.
            model: the model that made it, where that is not what the index remembers.
            version: an earlier version of an index on disk.

        Raises:
            UserError: no index is there, it is damaged, or the model is another one.
        """
        if "://" not in str(address) and is_memory(Path(address)):
            convert_memory(Path(address))
        store = _store_kind(str(address))(str(address), version)
        return cls(store, None if model is None else encoder_and_name(model)[0])

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

    def compact(self, keep_days: float = 1.0) -> Compaction | None:
        """Join small files, and free what deleted rows and versions older than ``keep_days`` take up.

        Returns:
            What was freed; None for stores that do this themselves.

        Raises:
            UserError: a negative number of days.
        """
        check_number("--keep-days", keep_days, least=0)
        return self.store.compact(keep_days) if isinstance(self.store, LanceStore) else None


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
