"""`Memory`: image–text pairs embedded by one frozen model, which can grow, shrink and be searched from both sides."""

import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.memory.backends.base import Backend, Hits
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.backends.lance import LanceBackend
from recollect.memory.filters import Filter, parse_filter
from recollect.memory.rows import Item, Modality, Pairs, Precision, Record, check_vectors, picture_of

NEAR = 0.94
"""Cosine from which two images count as one (RECO, section 4.1)."""

Vectors = Tensor | np.ndarray

_MORE = 32  # rows asked for beyond k where some of them may not count
_FEW = 40  # texts that need no index
_AT_ONCE = 2_048  # rows of a commit where rows are changed


@dataclass(frozen=True)
class MemoryInfo:
    """What a memory holds.

    Attributes:
        texts: rows that have a text.
        sources: rows of each source.
        places: where each source lies.
        prefix: how texts are read by a model with prefix tokens.
    """

    address: str
    rows: int
    texts: int
    width: int
    model: str
    model_name: str
    version: int
    prefix: str | None
    precision: str
    sources: dict[str, int]
    places: dict[str, tuple[str, ...]]
    indexes: tuple[IndexRecord, ...] = ()


@dataclass(frozen=True)
class _Exclusions:
    """What a query may not find: near-duplicates, the rows of one picture for each query, and some rows for all."""

    max_score: float | None
    own: np.ndarray | None
    exclude_ids: frozenset[str]

    def counts(self, found: Hits, queries: np.ndarray) -> np.ndarray:
        """Which places of what some queries found may stay."""
        counts = np.ones(found.scores.shape, dtype=bool)
        if self.max_score is not None:
            counts &= found.scores < self.max_score
        if self.own is not None:
            pictures = np.array([picture_of(id) for id in found.ids.ravel().tolist()], dtype=object)
            counts &= pictures.reshape(counts.shape) != self.own[queries, None]
        if self.exclude_ids:
            here = [id not in self.exclude_ids for id in found.ids.ravel().tolist()]
            counts &= np.array(here, dtype=bool).reshape(counts.shape)
        return counts


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
        self.check_model(encoder.fingerprint, "the encoder")
        texts = dict(zip(self.ids_of(list(captions)), (each.strip() for each in captions.values()), strict=True))
        before: dict[str, str] = {}
        for start in range(0, len(texts), _AT_ONCE):
            some = list(texts)[start : start + _AT_ONCE]
            before |= {item.id: item.caption for item in self.backend.fetch(some, False)}
        wanted = [id for id, text in texts.items() if before[id] != text]
        return sum(
            self._set_some({id: texts[id] for id in wanted[start : start + _AT_ONCE]}, encoder, by)
            for start in range(0, len(wanted), _AT_ONCE)
        )

    def _set_some(self, texts: Mapping[str, str], encoder: Encoder, by: str) -> int:
        vectors = {id: np.zeros(self.width, dtype=np.float32) for id in texts}
        if spoken := [id for id, text in texts.items() if text]:
            embedded = encoder.embed_texts([texts[id] for id in spoken], self.prefix).numpy()
            vectors |= dict(zip(spoken, embedded, strict=True))
        with self.backend.writing():
            ids = sorted(self.backend.known(list(texts)))  # another process may have removed some
            if not ids:
                return 0
            rows = self.backend.rows(ids)
            marks = {"captioned_by": by} if by else {}
            changed = replace(
                rows,
                text_vectors=np.stack([vectors[id] for id in ids]),
                captions=[texts[id] for id in ids],
                metadata=[
                    {key: value for key, value in old.items() if key != "captioned_by"} | marks for old in rows.metadata
                ],
            )
            self.backend.upsert(changed)
            return len(ids)

    def ids_of(self, names: Sequence[str]) -> list[str]:
        """The ids of rows that are named by their id, by the file of their picture, or by id or file within a source.

        Raises:
            UserError: a name is of no row, or of several.
        """
        known = self.backend.known(names)
        if len(known) == len(set(names)):
            return list(names)
        named: dict[str, set[str]] = {}
        for batch in self.columns(["id", "source", "path"]):
            for id, source, path in zip(batch["id"], batch["source"], batch["path"], strict=True):
                if picture_of(id) == id:
                    for name in (id.removeprefix(f"{source}:"), path):
                        if name:
                            named.setdefault(name, set()).add(id)
        found = []
        for name in names:
            here = {name} if name in known else named.get(name) or named.get(str(Path(name).resolve())) or set()
            if len(here) != 1:
                what = "no row" if not here else f"{len(here)} rows"
                raise UserError(f"{self.address}: {what} of {name!r}. Name rows by their id or their picture's file.")
            found.append(next(iter(here)))
        return found

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
        exact = exact or max_score is not None or exclude is not None or bool(exclude_ids)
        asked = _Asked(modality, None if where is None else parse_filter(where), where, with_text, exact)
        if max_score is None and exclude is None and not exclude_ids:
            return self._found(queries, k, asked)
        own = None if exclude is None else np.array([picture_of(str(id)) for id in exclude], dtype=object)
        return self._sifted(queries, k, asked, _Exclusions(max_score, own, frozenset(exclude_ids)), searched)

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

        To remove what is too near to test images: ``memory.delete(memory.near_duplicates(features))``.
        """
        queries = self._queries(vectors)
        near: dict[str, None] = {}
        rows = self.texts if modality == "text" else len(self)
        k = min(_MORE, rows)
        while len(queries) and rows:
            found = self.backend.search(queries, k, modality, None, exact=True)
            near |= dict.fromkeys(found.ids[found.scores >= threshold].tolist())
            queries = queries[found.scores[:, -1] >= threshold] if k < rows else queries[:0]
            k = min(8 * k, rows)
        return list(near)

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
            raise self._nothing(where)
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
                self.backend.index(record.modality, record.target)

    def damage(self) -> list[str]:
        """Read everything, and say what cannot be trusted, a line each: rows, checksums, vectors that are none."""
        return self.backend.damage()

    def info(self) -> MemoryInfo:
        """What it holds."""
        sources: dict[str, int] = {}
        places: dict[str, dict[str, None]] = {}
        for batch in self.backend.columns(["source", "place"], {}):
            for source, place in zip(batch["source"], batch["place"], strict=True):
                sources[source] = sources.get(source, 0) + 1
                places.setdefault(source, {})[place] = None
        record = self.backend.record
        return MemoryInfo(
            address=self.address,
            rows=len(self),
            texts=self.texts,
            width=record.width,
            model=record.model,
            model_name=record.model_name,
            version=self.version,
            prefix=record.prefix,
            precision=record.precision,
            sources=sources,
            places={source: tuple(filter(None, known)) for source, known in places.items()},
            indexes=tuple(self.backend.indexes()),
        )

    def metadata_keys(self) -> tuple[str, ...]:
        """Names that a filter may use, beside ``id``, ``caption`` and ``source``."""
        keys = {key for batch in self.columns(["metadata"]) for text in batch["metadata"] for key in json.loads(text)}
        return tuple(sorted(keys))

    def columns(self, names: Sequence[str], **where: str) -> Iterator[dict[str, Any]]:
        """Columns of all rows, or of those whose ``source``, ``origin``, … is the one given, in batches."""
        return self.backend.columns(names, where)

    def check_model(self, fingerprint: str, what: str) -> None:
        """Refuse another model than the one that embedded the memory.

        Raises:
            UserError: it is another.
        """
        if fingerprint != self.model:
            named = self.backend.record.model_name or "a model"
            raise UserError(
                f"{self.address}: embedded by {named} ({self.model[:12]}), but {what} is another model "
                f"({fingerprint[:12]}). Use that model, or build a memory with this one."
            )

    def _found(self, queries: np.ndarray, k: int, asked: "_Asked") -> Hits:
        if not len(queries):
            return Hits(np.empty((0, k), dtype=object), np.empty((0, k), dtype=np.float32))
        found = self.backend.search(queries, k, asked.modality, asked.where, asked.with_text, asked.exact)
        if found.scores.shape[1] == 0:
            raise self._nothing(str(asked.words))
        return found

    def _sifted(self, queries: np.ndarray, k: int, asked: "_Asked", exclusions: _Exclusions, rows: int) -> Hits:
        """Ask for more than k, pass over what does not count, and ask again for queries that are left with too few."""
        ids = np.full((len(queries), k), "", dtype=object)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        waiting, most = np.arange(len(queries)), min(k + _MORE, rows)
        while len(waiting):
            found = self._found(queries[waiting], most, asked)
            counts = exclusions.counts(found, waiting)
            order = np.argsort(~counts, axis=1, kind="stable")[:, :k]
            kept = np.take_along_axis(counts, order, 1)
            width = order.shape[1]
            ids[waiting, :width] = np.where(kept, np.take_along_axis(found.ids, order, 1), "")
            scores[waiting, :width] = np.where(kept, np.take_along_axis(found.scores, order, 1), -np.inf)
            if found.scores.shape[1] < most or most == rows:
                break
            waiting, most = waiting[counts.sum(1) < k], min(4 * most, rows)
        return Hits(ids, scores)

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
        if k < 1:
            raise UserError(f"k = {k}: ask for at least 1 row")
        rows = len(self)
        if rows == 0:
            raise UserError(
                f"{self.address}: the memory is empty. Fill it with `recollect memory add {self.address} MODEL SOURCE`."
            )
        texts = self.texts if with_text else rows
        if k > rows:
            raise UserError(f"{self.address}: k = {k}, but the memory holds {rows:,} rows. Ask for at most {rows:,}.")
        if k > texts:
            raise UserError(
                f"{self.address}: k = {k}, but {texts or 'none'} of its {rows:,} rows {'have' if texts > 1 else 'has'} "
                f"a text. Give its pictures captions with `recollect caption {self.address}`, or search among images."
            )
        return texts

    def _check_known(self, ids: Sequence[str]) -> None:
        if missing := set(ids) - self.backend.known(ids):
            first = next(id for id in ids if id in missing)
            raise UserError(
                f"{self.address}: no row with id {first!r} ({len(missing):,} of {len(ids):,} are not there)"
            )

    def _nothing(self, where: str) -> UserError:
        return UserError(
            f"{self.address}: no row satisfies {where}. `recollect memory info` shows sources and metadata."
        )


@dataclass(frozen=True)
class _Asked:
    """Where a search looks; ``words`` is the filter as the user wrote it."""

    modality: Modality
    where: Filter | None
    words: str | None
    with_text: bool
    exact: bool


def _backend(address: str) -> Any:
    if address.startswith("milvus://"):
        from recollect.memory.backends.milvus import MilvusBackend

        return MilvusBackend
    if "://" in address:
        raise UserError(f"{address}: not an address of a memory. Give a folder, or milvus://host:port/collection.")
    return LanceBackend
