"""Index on a Milvus server, for collections too large for one machine, or in a Milvus Lite file."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.content import hash_of
from recollect.core.errors import UserError
from recollect.core.files import locked, make_folder
from recollect.core.paths import cache_folder
from recollect.core.validation import refuse
from recollect.index.arrow import caption_matrix
from recollect.index.filters import Filter
from recollect.index.rows import By, Record, unit_vectors
from recollect.index.stores.base import Nearest, Store, library_errors
from recollect.index.stores.milvus_rows import (
    PICTURE,
    among,
    arrow_table,
    conditions_on_lists,
    entities_of,
    entity_key,
    fields_of,
    list_error,
    milvus_filter,
    milvus_text,
    schema_of,
)

_RECORD, _VERSION = "recollect.record", "recollect.version"
_MESSAGE_ROWS = 256  # a message is limited to 64 MB
_MESSAGE_QUERIES = 512
_PAGE_ROWS = 1_000
_MAX_RESULTS = 16_384  # Milvus's limit per query


@dataclass(frozen=True)
class _Address:
    """``milvus://[user:password@]host:port/collection[?index=HNSW]``, or ``milvus:///path/to/file.db/collection``.

    Attributes:
        shown: the address without user and password.
    """

    shown: str
    uri: str
    token: str
    collection: str
    index: str

    @classmethod
    def parse(cls, address: str) -> "_Address":
        parts = urlsplit(address)
        host, (file, _, collection) = parts.netloc.rpartition("@")[2], parts.path.rpartition("/")
        shown = address.replace(f"//{parts.netloc}", f"//{host}", 1)
        wrong = not collection.isidentifier() or not (host or file.endswith(".db"))
        form = "milvus://host:port/collection; the collection's name may contain letters, digits and _"
        refuse((wrong, f"{shown}: not {form}"))
        token = os.environ.get("MILVUS_TOKEN", "")
        if parts.username:
            token = f"{parts.username}:{parts.password or ''}"
        index = dict(parse_qsl(parts.query)).get("index", "FLAT").upper()
        return cls(shown, f"http://{host}" if host else file, token, collection, index)

    def connect(self) -> Any:
        """Return a client.

        Raises:
            UserError: pymilvus is not installed, or the server does not answer.
        """
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise UserError("an index on Milvus needs pymilvus: pip install 'recollect[milvus]'") from None
        for name in ("pymilvus", "grpc._server"):  # they log tracebacks even for handled errors
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with self.reported():
            return MilvusClient(self.uri, token=self.token)

    def reported(self) -> AbstractContextManager[None]:
        """Convert errors of Milvus to `UserError`."""
        return library_errors(self.shown, "Milvus says: {reason}")


class MilvusStore(Store):
    """Milvus implementation of `Store`.

    Every picture and every caption is an entity. The default index, FLAT, is exact; ``?index=AUTOINDEX`` lets the
    server choose a faster one when the index is created. Vectors are rounded to the precision of the index but stored
    as float32, since Milvus rounds the queries as well when it searches 16-bit fields.

    Writes are sent in atomic messages of 256 entities, captions before their picture. If a writer is killed between two
    messages, captions without a picture remain; they are ignored, and replaced when the picture is written again.
    Writers on the same machine are serialized; there is no lock between machines.

    Args:
        address: ``milvus://host:port/collection``; the password comes from ``MILVUS_TOKEN`` or the address.
        version: must be None, since a collection has no versions.
    """

    def __init__(self, address: str, version: int | None = None) -> None:
        self.place = _Address.parse(address)
        self.address, pinned = self.place.shown, version is not None
        refuse((pinned, f"{self.address}: versions are only supported by an index on disk"))
        self.client = self.place.connect()
        with self.place.reported():
            exists = self.client.has_collection(self.place.collection)
            refuse((not exists, f"{self.address}: no such collection. Build one with `recollect index build`."))
            properties = self._properties()
            refuse((_RECORD not in properties, f"{self.address}: a collection, but not an index of recollect"))
            self.record = Record.from_json(properties[_RECORD], self.address)
            self.client.load_collection(self.place.collection)

    @classmethod
    def create(cls, address: str, record: Record) -> "MilvusStore":
        """Create an empty collection; the name must be unused."""
        target = _Address.parse(address)
        refuse((cls.exists(address), f"{target.shown}: already exists. Name another collection, or drop it."))
        client = target.connect()
        with target.reported():
            index = client.prepare_index_params()
            index.add_index("vector", index_type=target.index, metric_type="IP")
            client.create_collection(
                target.collection,
                schema=schema_of(client, record.width),
                consistency_level="Strong",  # new rows are visible immediately
                properties={_RECORD: record.to_json(), _VERSION: "1"},
            )
            client.create_index(target.collection, index, sync=False)
        return cls(address)

    @staticmethod
    def exists(address: str) -> bool:
        """Return whether the collection exists."""
        target = _Address.parse(address)
        with target.reported():
            return bool(target.connect().has_collection(target.collection))

    def version(self, newest: bool = False) -> int:
        """Return a counter that recollect increments with every write. Reads always use the newest data."""
        with self.place.reported():
            return int(self._properties()[_VERSION])

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock out other writers on this machine."""
        name = hash_of(f"{self.place.uri}/{self.place.collection}", 8)
        make_folder(cache_folder() / "milvus")
        with locked(cache_folder() / "milvus" / f"{name}.lock"):
            yield

    def upsert(self, rows: Any) -> None:
        """Write captions and pictures, then delete outdated captions of these pictures."""
        with self.writing(), self.place.reported():
            self._count_version()
            for start in range(0, rows.num_rows, _MESSAGE_ROWS):
                block = rows.slice(start, _MESSAGE_ROWS)
                entities = entities_of(block, self.record, self.address)
                for first in range(0, len(entities), _MESSAGE_ROWS):
                    self.client.upsert(self.place.collection, entities[first : first + _MESSAGE_ROWS])
                written = among("key", [each["key"] for each in entities])
                stale = f"{among('id', block['id'].to_pylist())} and not ({written})"
                self.client.delete(self.place.collection, filter=stale)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete pictures and their captions."""
        with self.writing(), self.place.reported():
            self._count_version()
            for chunk in _chunks(ids):
                self.client.delete(self.place.collection, filter=among("id", chunk))

    def rows(self, ids: Sequence[str], columns: Sequence[str]) -> Any:
        """Return rows in the order of ``ids``."""
        names = list(dict.fromkeys(["id", *columns]))
        keys = [entity_key(id) for id in dict.fromkeys(ids)]
        found = {row["id"]: row for row in self._by_key(keys, fields_of(names))}
        return self._arrow([found[id] for id in ids if id in found], names)

    def scan(self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False) -> Iterator[Any]:
        """Yield columns in batches, in the order of ids."""
        clauses = [PICTURE] if removed is None else [PICTURE, f"removed == {'true' if removed else 'false'}"]
        clauses += [self._filter(where)] if where is not None else []
        for rows in self._all(fields_of(columns), " and ".join(clauses)):
            yield self._arrow(rows, list(columns))

    def _arrow(self, rows: list[dict[str, Any]], names: list[str]) -> Any:
        captions = self._caption_vectors(rows) if "caption_vectors" in names else []
        return arrow_table(rows, names, self.record, captions)

    def _caption_vectors(self, rows: list[dict[str, Any]]) -> list[np.ndarray]:
        """Return the caption vectors of each row."""
        keys = [
            [entity_key(row["id"], *each) for each in enumerate(json.loads(row["row"])["captions"])] for row in rows
        ]
        answer = self._by_key([key for each in keys for key in each], ["key", "vector"])
        found = {row["key"]: np.array(row["vector"], dtype=np.float32) for row in answer}
        if missing := next((key for each in keys for key in each if key not in found), None):
            raise UserError(f"{self.address}: the vector of caption {missing!r} is missing. Build the index again.")
        empty = np.zeros((0, self.record.width), dtype=np.float32)
        return [np.stack([found[key] for key in each]) if each else empty for each in keys]

    def _by_key(self, keys: Sequence[str], fields: list[str]) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        with self.place.reported():
            for chunk in _chunks(keys):
                answer = self.client.query(self.place.collection, filter=among("key", chunk), output_fields=fields)
                found += [dict(row) for row in answer]
        return found

    def nearest(
        self,
        queries: Float32[np.ndarray, "queries width"],
        k: int,
        by: By,
        where: Filter | None = None,
        captioned: bool = False,
        exact: bool = False,
    ) -> Nearest:
        """Search with the index of the collection."""
        import pyarrow as pa

        clauses = ["removed == false", "entry >= 0" if by == "text" else "entry == -1"]
        clauses += ["count > 0"] if captioned else []
        clauses += [self._filter(where)] if where is not None else []
        if k > _MAX_RESULTS and self._count(clauses[1]) > _MAX_RESULTS:
            raise UserError(f"{self.address}: k = {k:,}, but Milvus returns at most {_MAX_RESULTS:,} results per query")
        hits: list[Any] = []
        with self.place.reported():
            for start in range(0, len(queries), _MESSAGE_QUERIES):
                hits += self.client.search(
                    self.place.collection, list(queries[start : start + _MESSAGE_QUERIES]), anns_field="vector",
                    limit=min(k, _MAX_RESULTS), filter=" and ".join(clauses), output_fields=["id", "entry", "key"],
                )  # fmt: skip
        ids = list(dict.fromkeys(hit["entity"]["id"] for row in hits for hit in row))
        valid = self._valid_keys(ids) if by == "text" else set[str]()
        row_of = {id: row for row, id in enumerate(ids)}
        width = max(map(len, hits), default=0)
        rows, entries = (np.full((len(queries), width), empty, dtype=np.int64) for empty in (-1, 0))
        scores = np.full((len(queries), width), -np.inf, dtype=np.float32)
        for query, found in enumerate(hits):
            for column, hit in enumerate(found):
                entity = hit["entity"]
                if by == "text" and entity["key"] not in valid:
                    continue  # left by a killed writer
                rows[query, column] = row_of[entity["id"]]
                entries[query, column] = max(0, entity["entry"])
                scores[query, column] = hit["distance"]

        def read(
            rows: Int64[np.ndarray, " some"], kind: By, entries: Int64[np.ndarray, " some"] | None
        ) -> Float32[np.ndarray, "some width"]:
            distinct, inverse = np.unique(rows, return_inverse=True)
            some = [ids[row] for row in distinct.tolist()]
            if kind == "image" or entries is None:
                return self.vectors(kind, some)[inverse]
            flat, counts = caption_matrix(self.rows(some, ["captions", "caption_vectors"])["caption_vectors"])
            first = np.cumsum(counts) - counts
            return unit_vectors(flat.astype(np.float32), self.record.width, self.address)[first[inverse] + entries]

        return Nearest(rows, entries, scores, pa.array(ids, pa.string()), read)

    def _filter(self, where: Filter) -> str:
        """Convert a filter to a Milvus expression.

        Raises:
            UserError: a condition that Milvus cannot test on lists, and a picture has a list.
        """
        for condition, is_list in conditions_on_lists(where):
            if self._count(f"{PICTURE} and {is_list}"):
                raise list_error(condition)
        return milvus_filter(where)

    def _valid_keys(self, ids: list[str]) -> set[str]:
        """Return the keys of the current captions of pictures."""
        table = self.rows(ids, ["captions"])
        pairs = zip(table["id"].to_pylist(), table["captions"].to_pylist(), strict=True)
        return {entity_key(id, *each) for id, captions in pairs for each in enumerate(captions)}

    def count(self, captioned: bool = False, where: Filter | None = None) -> int:
        """Return the number of visible rows; with ``captioned`` only rows with a caption."""
        clauses = [PICTURE, "removed == false", *(["count > 0"] if captioned else [])]
        clauses += [self._filter(where)] if where is not None else []
        return self._count(" and ".join(clauses))

    def _count(self, where: str) -> int:
        with self.place.reported():
            found = self.client.query(self.place.collection, filter=where, output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def _properties(self) -> dict[str, str]:
        return dict(self.client.describe_collection(self.place.collection)["properties"])

    def _count_version(self) -> None:
        """Increment the version; called before writing, so no reader attributes new rows to the old version."""
        self.client.alter_collection_properties(self.place.collection, {_VERSION: str(self.version() + 1)})

    def _all(self, names: list[str], clause: str) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows of a query in pages, each starting after the last key of the previous page.

        pymilvus inserts that key into a filter without escaping. After a key that needs escaping, the query is
        restarted with our own filter.
        """
        options = {"batch_size": _PAGE_ROWS, "output_fields": ["key", *names]}
        with self.place.reported():
            pages = self.client.query_iterator(self.place.collection, filter=clause, **options)
            while rows := pages.next():
                yield [dict(row) for row in rows]
                last = rows[-1]["key"]
                if milvus_text(last) != f'"{last}"':
                    pages.close()
                    after = f"key > {milvus_text(last)} and ({clause})"
                    pages = self.client.query_iterator(self.place.collection, filter=after, **options)
            pages.close()


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _MESSAGE_ROWS):
        yield list(ids[start : start + _MESSAGE_ROWS])
