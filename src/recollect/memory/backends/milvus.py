"""The same memory on a Milvus cluster, for what no single machine holds; Milvus Lite runs it in a file."""

import base64
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError
from recollect.memory.backends.arrow import as_item
from recollect.memory.backends.base import Hits, matrix_of_columns
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.backends.milvus_removed import drop_removed, keep_removed, read_removed
from recollect.memory.backends.removals import Removal
from recollect.memory.filters import Filter, milvus_text
from recollect.memory.rows import COLUMNS, Item, Modality, Pairs, Record, VectorPrecision, rounded, unit_norm

_RECORD, _VERSION = "recollect.record", "recollect.version"
_LONGEST = 65_535  # bytes of a text field; there are no fields of bytes, so pictures are kept as base64
_ROWS = 256  # a message has at most 64 MB
_QUERIES = 512
_PAGE = 1_000
_MOST = 16_384  # neighbours of a query
_SIDES = ("image", "text")


@dataclass(frozen=True)
class _Address:
    """``milvus://[user:password@]host:port/collection[?index=HNSW]``, or ``milvus:///path/to/file.db/collection``."""

    uri: str
    token: str
    collection: str
    index: str

    @classmethod
    def parse(cls, address: str) -> "_Address":
        parts = urlsplit(address)
        place, _, collection = parts.path.rpartition("/")
        if not collection.isidentifier() or not (parts.netloc or place.endswith(".db")):
            raise UserError(
                f"{address}: write milvus://host:port/collection, with letters, digits and _ in the collection's name"
            )
        token = os.environ.get("MILVUS_TOKEN", "")
        if parts.username:
            token = f"{parts.username}:{parts.password or ''}"
        host = parts.netloc.rpartition("@")[2]
        index = dict(parse_qsl(parts.query)).get("index", "FLAT").upper()
        return cls(f"http://{host}" if host else place, token, collection, index)


class MilvusBackend:
    """See `recollect.memory.backends.base.Backend`.

    The default index, FLAT, is exact; ``?index=AUTOINDEX`` lets the cluster choose a faster one at creation.

    Args:
        address: ``milvus://host:port/collection``; a password comes from ``MILVUS_TOKEN`` or stands in the address.
        version: refused, since a collection has no versions.
    """

    whole_commits = False
    stored_precision: VectorPrecision = "float32"

    def __init__(self, address: str, version: int | None = None) -> None:
        self.place = _Address.parse(address)
        self.address = _without_password(address)
        if version is not None:
            raise self._no_versions()
        self.client = _client(self.place, self.address)
        with self._told():
            if not self.client.has_collection(self.place.collection):
                raise UserError(f"{self.address}: no such collection. Make one with `recollect memory build`.")
            properties = self._properties()
        if _RECORD not in properties:
            raise UserError(f"{self.address}: a collection, but no memory of recollect")
        self.record = Record.read(properties[_RECORD], self.address)
        with self._told():
            self.client.load_collection(self.place.collection)

    @classmethod
    def create(cls, address: str, record: Record) -> "MilvusBackend":
        """Make an empty collection.

        Raises:
            UserError: one of that name is there already.
        """
        place = _Address.parse(address)
        if cls.exists(address):
            raise UserError(f"{_without_password(address)}: already exists. Name another collection, or drop it.")
        client = _client(place, address)
        with _told(_without_password(address)):
            index = client.prepare_index_params()
            for modality in _SIDES:
                index.add_index(f"{modality}_vector", index_type=place.index, metric_type="IP")
            client.create_collection(
                place.collection,
                schema=_schema(client, record.width),
                consistency_level="Strong",  # what was added is found at once
                properties={_RECORD: record.text(), _VERSION: "1"},
            )
            client.create_index(place.collection, index, sync=False)  # nothing is there yet that it could wait for
            drop_removed(client, place.collection)  # of a memory of this name that somebody has dropped
        return cls(address)

    @staticmethod
    def exists(address: str) -> bool:
        """Whether there is such a collection."""
        place = _Address.parse(address)
        with _told(_without_password(address)):
            return bool(_client(place, address).has_collection(place.collection))

    @property
    def version(self) -> int:
        """Counted by recollect: writers that do not go through it do not change it."""
        with self._told():
            return int(self._properties()[_VERSION])

    def __len__(self) -> int:
        return self._count("")

    def _count(self, where: str) -> int:
        with self._told():
            found = self.client.query(self.place.collection, filter=where, output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nothing to hold: rows are merged on their ids by the server."""
        yield

    def append(self, pairs: Pairs) -> None:
        """As `upsert`: Milvus would take a second row of an id."""
        self.upsert(pairs)

    def upsert(self, pairs: Pairs) -> None:
        """In messages of 256 rows, each whole or absent.

        Vectors are rounded as at the memory's precision, so that the same rows are found as on disk; the fields are of
        32 bits at any precision, since Milvus compares fields of 16 bits with rounded queries only.
        """
        image, text = (rounded(each, self.record.precision) for each in (pairs.image_vectors, pairs.text_vectors))
        kept = replace(pairs, image_vectors=image, text_vectors=text)
        rows = [_row(row, self.address) for row in kept.table().to_pylist()]
        self._count_version()  # before the rows: nobody may take the new state for the old one
        with self._told():
            for start in range(0, len(rows), _ROWS):
                self.client.upsert(self.place.collection, rows[start : start + _ROWS])

    def delete(self, ids: Sequence[str]) -> None:
        """In messages of 256 ids."""
        self._count_version()
        with self._told():
            for some in _chunks(ids):
                self.client.delete(self.place.collection, filter=_among(some))

    def removals(self) -> list[Removal]:
        """From a small collection beside this one."""
        with self._told():
            return read_removed(self.client, self.place.collection)

    def keep_removals(self, removals: Collection[Removal]) -> None:
        """In messages, those that are new first."""
        with self._told():
            keep_removed(self.client, self.place.collection, removals)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        return set(self._by_id(ids, ["id"]))

    def ids_where(self, where: Filter) -> list[str]:
        """The ids of all rows that satisfy a filter."""
        return [id for batch in self._all(["id"], where.milvus()) for id in batch["id"]]

    def count_texts(self) -> int:
        """How many rows have a text."""
        return self._count("has_text == true")

    def rows(self, ids: Sequence[str]) -> Pairs:
        """Whole rows in the order of their ids."""
        found = self._by_id(ids, list(COLUMNS))
        columns: dict[str, Any] = {name: [found[id][name] for id in ids] for name in COLUMNS}
        columns["image"] = [base64.b64decode(each) or None for each in columns["image"]]
        columns["path"] = [each or None for each in columns["path"]]
        for modality in _SIDES:
            vectors = np.array(columns[f"{modality}_vector"], dtype=np.float32)
            columns[f"{modality}_vector"] = unit_norm(vectors.reshape(len(ids), self.record.width))
        return Pairs.of_columns(columns, self.record.model)

    def fetch(self, ids: Sequence[str], pictures: bool) -> list[Item]:
        """Rows in the order of their ids."""
        names = ["caption", "source", "metadata", "path", "stamp", "digest", *(("image",) if pictures else ())]
        found = self._by_id(ids, names)
        for row in found.values():
            if pictures:
                row["image"] = base64.b64decode(row["image"])
        return [as_item(found[id], self.address) for id in ids]

    def vectors(self, ids: Sequence[str], modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """Vectors in the order of their ids."""
        found = self._by_id(ids, [f"{modality}_vector"])
        return unit_norm(np.array([found[id][f"{modality}_vector"] for id in ids], dtype=np.float32))

    def matrix(self, modality: Modality) -> tuple[list[str], Float32[np.ndarray, "rows width"]]:
        """The ids of all rows, and their unit-norm vectors."""
        return matrix_of_columns(self, modality)

    def prepare(self) -> None:
        """Milvus does so by itself."""

    def columns(self, names: Sequence[str], where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Columns of all rows whose columns in ``where`` have these values."""
        clause = " and ".join(f"{name} == {milvus_text(value)}" for name, value in where.items())
        for batch in self._all(list(names), clause or 'id >= ""'):
            if "metadata" in batch:
                batch["metadata"] = [json.dumps(each, ensure_ascii=False) for each in batch["metadata"]]
            for name in names:
                if name.endswith("_vector"):
                    batch[name] = unit_norm(np.array(batch[name], dtype=np.float32))
            yield batch

    def search(
        self,
        vectors: Float32[np.ndarray, "queries width"],
        k: int,
        modality: Modality,
        where: Filter | None,
        has_text: bool = False,
        exact: bool = False,
    ) -> Hits:
        """By the collection's index."""
        clause = where.milvus() if where else ""
        if has_text or modality == "text":
            clause = f"has_text == true and ({clause})" if clause else "has_text == true"
        if k > _MOST:
            raise UserError(f"{self.address}: k = {k:,}, but Milvus finds at most {_MOST:,} rows for a query")
        hits: list[Any] = []
        with self._told():
            for start in range(0, len(vectors), _QUERIES):
                hits += self.client.search(
                    self.place.collection,
                    list(vectors[start : start + _QUERIES]),
                    anns_field=f"{modality}_vector",
                    limit=k,
                    filter=clause,
                )
        fewest = min(map(len, hits))
        ids = np.array([[hit["id"] for hit in row[:fewest]] for row in hits], dtype=object)
        scores = np.array([[hit["distance"] for hit in row[:fewest]] for row in hits], dtype=np.float32)
        return Hits(ids.reshape(len(hits), fewest), scores.reshape(len(hits), fewest))

    def index(self, modality: Modality, target: float, train: bool = True) -> IndexRecord | None:
        """Chosen at creation; nothing to do."""
        return None

    def indexes(self) -> list[IndexRecord]:
        """The collection's own says nothing of its recall."""
        return []

    def drop_index(self) -> None:
        """Chosen at creation; nothing to do."""

    def damage(self) -> list[str]:
        """Vectors that are not of unit norm; files are the server's own matter."""
        found = []
        for batch in self._all(["id", "image_vector"], 'id >= ""'):
            norms = np.linalg.norm(np.array(batch["image_vector"], dtype=np.float32), axis=1)
            found += [
                f"row '{batch['id'][row]}': its vectors are damaged" for row in np.flatnonzero(abs(norms - 1) > 1e-2)
            ]
        return found

    def optimize(self, keep_days: float) -> None:
        """The server's own matter."""

    @staticmethod
    def file_damage(address: str) -> list[str]:
        """Files are the server's own matter."""
        return []

    def refresh(self) -> None:
        """Every read sees every write."""

    def snapshot(self) -> "MilvusBackend":
        """Not to be had.

        Raises:
            UserError: always.
        """
        raise self._no_versions()

    def _no_versions(self) -> UserError:
        return UserError(f"{self.address}: Milvus keeps no versions of a collection; a memory on disk does")

    def _properties(self) -> dict[str, str]:
        return dict(self.client.describe_collection(self.place.collection)["properties"])

    def _count_version(self) -> None:
        self.client.alter_collection_properties(self.place.collection, {_VERSION: str(self.version + 1)})

    def _by_id(self, ids: Sequence[str], names: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        with self._told():
            for some in _chunks(ids):
                rows = self.client.query(self.place.collection, filter=_among(some), output_fields=["id", *names])
                found |= {row["id"]: dict(row) for row in rows}
        return found

    def _all(self, names: list[str], clause: str) -> Iterator[dict[str, Any]]:
        """In pages that begin behind the id that was read last.

        pymilvus writes that id into a filter as it is, where a backslash or a quote means something else; behind such
        an id we begin anew.
        """
        wanted = list(dict.fromkeys(["id", *names]))
        with self._told():
            rows = self.client.query_iterator(
                self.place.collection, batch_size=_PAGE, filter=clause, output_fields=wanted
            )
            while batch := rows.next():
                yield {name: [row[name] for row in batch] for name in names}
                last = batch[-1]["id"]
                if milvus_text(last) != f'"{last}"':
                    rows.close()
                    behind = f"id > {milvus_text(last)} and ({clause})"
                    rows = self.client.query_iterator(
                        self.place.collection, batch_size=_PAGE, filter=behind, output_fields=wanted
                    )
            rows.close()

    def _told(self) -> Any:
        return _told(self.address)


def _schema(client: Any, width: int) -> Any:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=512)
    for modality in ("image", "text"):
        schema.add_field(f"{modality}_vector", DataType.FLOAT_VECTOR, dim=width)
    for name in ("caption", "source", "place", "image", "path", "origin", "digest", "stamp", "look"):
        schema.add_field(name, DataType.VARCHAR, max_length=_LONGEST)
    schema.add_field("has_text", DataType.BOOL)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("ordinal", DataType.INT64)
    return schema


def _row(row: dict[str, Any], address: str) -> dict[str, Any]:
    """What `Pairs.table` made of a row, as Milvus holds it."""
    image = base64.b64encode(row["image"] or b"").decode()
    row = row | {"image": image, "path": row["path"] or "", "metadata": json.loads(row["metadata"])}
    for name, value in row.items():
        if isinstance(value, str) and len(value.encode()) > _LONGEST:
            hint = " Keep pictures as files, or none: --pictures path, --pictures none." if name == "image" else ""
            raise UserError(f"{address}, row '{row['id']}': its {name} does not fit in {_LONGEST:,} bytes.{hint}")
    return row


def _among(ids: Sequence[str]) -> str:
    """A filter for rows of these ids; pymilvus's own would read a backslash in an id as an escape."""
    return f"id in [{', '.join(map(milvus_text, ids))}]"


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _ROWS):
        yield list(ids[start : start + _ROWS])


def _client(place: _Address, address: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise UserError("a memory on Milvus needs pymilvus: pip install 'recollect[milvus]'") from None
    for name in ("pymilvus", "grpc._server"):  # they log a traceback of every error, also of those that they handle
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _told(_without_password(address)):
        return MilvusClient(place.uri, token=place.token)


def _without_password(address: str) -> str:
    head, at, rest = address.rpartition("@")
    return f"milvus://{rest}" if at and head.startswith("milvus://") else address


@contextmanager
def _told(address: str) -> Iterator[None]:
    try:
        yield
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # pymilvus, gRPC and the file's own errors have no common ground
        reason = str(getattr(error, "message", error)).strip().splitlines()[0][:200]
        raise UserError(f"{address}: Milvus says: {reason}") from error
