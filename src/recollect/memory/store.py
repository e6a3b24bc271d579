"""`Memory`: image–text pairs embedded by one frozen model, which can grow, shrink and be searched from both sides."""

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.memory.backends.base import Backend, Compaction, DamagedMemoryError, Hits
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.backends.lance import LanceBackend
from recollect.memory.filters import parse_filter
from recollect.memory.info import MemoryInfo, describe, metadata_keys
from recollect.memory.lookup import Exclusions, Question, find, find_beside, find_near, nothing_satisfies
from recollect.memory.matching import check_encoder, check_k, check_model
from recollect.memory.naming import ids_of, set_captions, set_metadata
from recollect.memory.rows import Item, Modality, Pairs, Precision, Record, check_vectors, picture_of

NEAR = 0.94
"""Cosine from which two images count as one (RECO, section 4.1)."""

Vectors = Tensor | np.ndarray

_FEW = 40  # texts that need no index


class Memory:
    """Pictures with their embeddings, and the texts of those that have one with theirs, on disk or on a cluster.

    >>> memory = Memory.open("memories/emoji")                                       # doctest: +SKIP
    >>> found = memory.search(model.embed_images([picture]), k=10, modality="image")     # doctest: +SKIP
    >>> [item.caption for item in memory.fetch(found.ids[0])]                        # doctest: +SKIP

    An address is a folder (Lance), or ``milvus://host:port/collection``.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @classmethod
    def create(
        cls,
        address: str | Path,
        *,
        width: int,
        model: str,
        model_name: str = "",
        prefix: Kind | None = None,
        precision: Precision = "float32",
    ) -> "Memory":
        """Make an empty memory.

        Args:
            address: a folder that does not exist yet, or ``milvus://host:port/collection``.
            width: entries of a vector.
            model: fingerprint of the model whose vectors it will hold.
            model_name: what to call that model in messages.
            prefix: how its texts are read by a model with prefix tokens (`core.types.caption_prefix`).
            precision: of the vectors that are kept.

        Raises:
            UserError: something is there already.
        """
        record = Record(width, model, model_name, prefix, precision, uuid.uuid4().hex)
        return cls(_backend(str(address)).create(str(address), record))

    @classmethod
    def open(cls, address: str | Path, version: int | None = None) -> "Memory":
        """Open a memory.

        Args:
            address: its folder, or ``milvus://host:port/collection``.
            version: to read an earlier version of a memory on disk.

        Raises:
            UserError: there is none, or a part of it is missing.
        """
        return cls(_backend(str(address))(str(address), version))

    @staticmethod
    def exists(address: str | Path) -> bool:
        """Whether something is at this address, be it a memory or not."""
        kind = _backend(str(address))
        return kind.exists(str(address))

    @staticmethod
    def examine(address: str | Path) -> list[str]:
        """Read everything at an address, and say what cannot be trusted, a line each; also where it cannot be opened.

        Raises:
            UserError: there is no memory.
        """
        if found := _backend(str(address)).file_damage(str(address)):
            return list(found)
        try:
            return Memory.open(address).damage()
        except DamagedMemoryError as error:
            return [str(error)]

    @property
    def address(self) -> str:
        """What the user calls it."""
        return self.backend.address

    @property
    def width(self) -> int:
        """Entries of a vector."""
        return self.backend.record.width

    @property
    def model(self) -> str:
        """Fingerprint of the model that embedded it."""
        return self.backend.record.model

    @property
    def prefix(self) -> Kind | None:
        """How its texts were read, and queries are to be, by a model with prefix tokens."""
        return self.backend.record.prefix

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.backend.version

    @property
    def fingerprint(self) -> str:
        """Changes whenever the rows do."""
        return f"{self.backend.record.key}-{self.version}"

    def __len__(self) -> int:
        return len(self.backend)

    def __repr__(self) -> str:
        return f"Memory({self.address!r}, {len(self):,} rows of width {self.width})"

    def add(self, pairs: Pairs) -> None:
        """Add rows, on disk all of them or none.

        Raises:
            UserError: vectors of another model or width, or an id that is there already.
        """
        pairs.check(self.backend.record, self.address)
        if not len(pairs):
            return
        with self.backend.writing():
            if known := self.backend.known(pairs.ids):
                first = next(id for id in pairs.ids if id in known)
                raise UserError(
                    f"{self.address}: {len(known):,} of {len(pairs):,} ids are there already, first {first!r}"
                )
            self.backend.append(pairs)

    def upsert(self, pairs: Pairs) -> int:
        """Add rows, or replace those whose ids are there already; on disk all of them or none.

        Returns:
            How many were replaced.

        Raises:
            UserError: vectors of another model or width.
        """
        pairs.check(self.backend.record, self.address)
        if not len(pairs):
            return 0
        with self.backend.writing():
            known = self.backend.known(pairs.ids)
            if known:
                self.backend.upsert(pairs)
            else:
                self.backend.append(pairs)
        return len(known)

    def set_captions(self, captions: Mapping[str, str], encoder: Encoder, by: str = "") -> int:
        """Give rows a text, or another one, which is embedded and can be searched from then on.

        Args:
            captions: texts by id, or by the file of the picture; an empty text takes a row's text away.
            encoder: the model that embedded the memory.
            by: who wrote them, kept as ``captioned_by`` in the rows' metadata.

        Returns:
            How many rows have changed.

        Raises:
            UserError: another model, or an id or file that is not there; then nothing is changed.
        """
        self.check_encoder(encoder, "the encoder")
        return set_captions(self.backend, captions, encoder, by)

    def set_metadata(self, key: str, values: Mapping[str, Any]) -> int:
        """Give rows a value under one key of their metadata, and take it from all others.

        Args:
            values: by id; ids that are not there (any more) are passed over.

        Returns:
            How many rows have changed.
        """
        return set_metadata(self.backend, key, values)

    def ids_of(self, names: Sequence[str]) -> list[str]:
        """The ids of rows that are named by their id, by the file of their picture, or by id or file within a source.

        Raises:
            UserError: a name is of no row, or of several.
        """
        return ids_of(self.backend, names)

    def delete(self, ids: Sequence[str] | None = None, *, where: str | None = None) -> int:
        """Remove rows by id, or all that satisfy a filter.

        Returns:
            How many were removed.

        Raises:
            UserError: an id is not there, the filter is malformed or nothing satisfies it; then nothing is removed.
        """
        if (ids is None) == (where is None):
            raise ValueError("give ids or a filter, one of both")
        if where is not None:
            ids = self.ids_where(where)
        wanted = list(dict.fromkeys(ids or ()))
        if not wanted:
            return 0
        with self.backend.writing():
            self._check_known(wanted)
            self.backend.delete(wanted)
        return len(wanted)

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

    def near_duplicates(self, vectors: Vectors, threshold: float = NEAR, modality: Modality = "image") -> list[str]:
        """The ids of all rows with a cosine of at least ``threshold`` to any of the vectors.

        The comparison is exact, with no index. Rounding parts no equals: a cosine counts that is less than the
        threshold by no more than two roundings to half precision can take from equal vectors (2⁻²¹).

        To remove what is too near to test images: ``memory.delete(memory.near_duplicates(features))``.
        """
        return find_near(self.backend, self._queries(vectors), threshold, modality)

    @property
    def texts(self) -> int:
        """How many rows have a text."""
        return self.backend.count_texts()

    def ids_where(self, where: str) -> list[str]:
        """The ids of all rows that satisfy a filter.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        ids = self.backend.ids_where(parse_filter(where))
        if not ids:
            raise nothing_satisfies(self.backend, where)
        return ids

    def snapshot(self) -> "Memory":
        """The memory as it is now, to read from while others write.

        Raises:
            UserError: the store keeps no versions.
        """
        return Memory(self.backend.snapshot())

    def refresh(self) -> None:
        """See what other processes have changed since this memory was opened."""
        self.backend.refresh()

    def index(self, recall: float = 0.99) -> list[IndexRecord]:
        """Make searches fast, at a recall that is measured on this memory's own rows.

        Without an index every search is exact. With one, searches without filters and exclusions read as few rows as
        reach ``recall`` (of the ten nearest, on sampled rows as queries of either modality), and score these exactly;
        where exact search was faster, it stays. ``exact=True`` passes it by. Adding rows does not train it anew.

        Returns:
            What was measured, for images and for texts; empty where the store has an index of its own (Milvus).

        Raises:
            UserError: too few rows, or a recall outside of (0, 1].
        """
        made = [self.backend.index("image", recall)]
        if self.texts > _FEW:
            made.append(self.backend.index("text", recall))
        return [record for record in made if record is not None]

    def renew_indexes(self) -> None:
        """Measure the recall of indexes again where rows have doubled since, and read more cells if that needs it."""
        for record in self.backend.indexes():
            if len(self) >= 2 * record.rows:
                self.backend.index(record.modality, record.target, train=False)

    def optimize(self, keep_days: float = 1.0) -> Compaction | None:
        """Join the small files of many additions, and free what deleted rows and older versions take up.

        Rows, ids and indexes stay as they are. A reader that still has an older version open has to open the memory
        again once that version is gone.

        Args:
            keep_days: versions younger than so many days stay; 0 keeps the newest alone.

        Returns:
            What was freed; None where the store does so by itself (Milvus).

        Raises:
            UserError: a negative number of days.
        """
        if not 0 <= keep_days < float("inf"):
            raise UserError(f"--keep-days {keep_days:g}: from 0 on, and finite")
        return self.backend.optimize(keep_days)

    def damage(self) -> list[str]:
        """Read everything, and say what cannot be trusted, a line each: rows, checksums, vectors that are none."""
        return self.backend.damage()

    def info(self) -> MemoryInfo:
        """What it holds."""
        return describe(self.backend)

    def metadata_keys(self) -> tuple[str, ...]:
        """Names that a filter may use, beside ``id``, ``caption`` and ``source``."""
        return metadata_keys(self.backend)

    def columns(self, names: Sequence[str], **where: str) -> Iterator[dict[str, Any]]:
        """Columns of all rows, or of those whose ``source``, ``origin``, … is the one given, in batches."""
        return self.backend.columns(names, where)

    def check_encoder(self, encoder: Encoder, what: str) -> None:
        """Refuse a model that would not read texts as the memory's were read, and any but the one that embedded it.

        One rule decides how texts are read (`core.types.caption_prefix`), and the memory's record keeps what it said.

        Raises:
            UserError: it is another model, or reads otherwise.
        """
        check_encoder(self.backend, encoder, what)

    def check_model(self, fingerprint: str, what: str) -> None:
        """Refuse another model than the one that embedded the memory.

        Raises:
            UserError: it is another.
        """
        check_model(self.backend, fingerprint, what)

    def _queries(self, vectors: Vectors) -> Float32[np.ndarray, "queries width"]:
        queries = vectors.detach().cpu().numpy() if isinstance(vectors, torch.Tensor) else vectors
        check_vectors(queries, self.width, f"{self.address}: queries")
        return np.ascontiguousarray(queries, dtype=np.float32)

    def check_k(self, k: int, with_text: bool = False) -> int:
        """Refuse to look up k rows where there are fewer.

        Args:
            with_text: only rows that have a text count.

        Returns:
            How many rows count.

        Raises:
            UserError: k is below 1, or the memory is empty or smaller.
        """
        return check_k(self.backend, k, with_text)

    def _check_known(self, ids: Sequence[str]) -> None:
        if missing := set(ids) - self.backend.known(ids):
            first = next(id for id in ids if id in missing)
            raise UserError(
                f"{self.address}: no row with id {first!r} ({len(missing):,} of {len(ids):,} are not there)"
            )


def _backend(address: str) -> Any:
    if address.startswith("milvus://"):
        from recollect.memory.backends.milvus import MilvusBackend

        return MilvusBackend
    if "://" in address:
        raise UserError(f"{address}: not an address of a memory. Give a folder, or milvus://host:port/collection.")
    return LanceBackend
