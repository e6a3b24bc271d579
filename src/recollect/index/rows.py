"""Rows of an index. One row is one picture with its files, captions, vectors and facts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Float32

from recollect.core.content import hash_of
from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.core.validation import refuse
from recollect.data.sources.images import pixel_digest
from recollect.index.arrow import caption_matrix, vector_array, vector_matrix
from recollect.index.picture import PICTURE_FACTS, File

if TYPE_CHECKING:
    import pyarrow as pa

By = Literal["image", "text"]
"""Vectors to use: of the picture itself, or of its captions."""

VectorPrecision = Literal["float32", "float16"]
"""Precision of stored vectors. Half precision halves the space and changes a cosine by about 1e-5."""

ROUNDING = 2.0**-21
"""Maximum loss in the cosine of two equal vectors by rounding to half precision.

The relative error of an entry is at most 2^-11, so a normalized vector turns by an angle of at most 2^-11, and by
twice that if both vectors are rounded: 1 - cos <= 2^-21.
"""

FORMAT = 3
"""Format version of an index on disk."""


@dataclass(frozen=True)
class Record:
    """Settings of an index, written once when it is created.

    Attributes:
        width: vector dimension.
        model: fingerprint of the model.
        model_name: path or hub id of the model.
        prefix: text kind of captions and queries, for models with prefix tokens.
        precision: precision of the stored vectors.
        key: random identifier of the index.
        format: format version of the files.
    """

    width: int
    model: str
    model_name: str = ""
    prefix: Kind | None = None
    precision: VectorPrecision = "float32"
    key: str = ""
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> "Record":
        """Parse a record.

        Raises:
            UserError: not a record, or written by a newer version.
        """
        try:
            values = json.loads(text)
            if values["format"] > FORMAT:
                raise UserError(f"{where}: written by a newer recollect (format {values['format']}). Update recollect.")
            return cls(**{each.name: values[each.name] for each in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{where}: not an index of recollect (its record is unreadable: {error})") from None


@dataclass
class Rows:
    """Pictures by column; every field is empty or has one entry per picture.

    Attributes:
        ids: unique; default: digests of the vectors, or of the captions without a vector.
        image_vectors: unit norm; zeros for a picture without a vector.
        captions: captions of each picture.
        caption_vectors: array (captions, width) of each picture, unit norm.
        files, labels, width, height, taken, camera, folder, phash: as in `Picture`.
        images: encoded bytes, or None.
        metadata: user-defined columns, as JSON-serializable mappings.
        own: values not from files: the user's ``captions``, ``by`` (model that wrote them), and ``said`` (captions,
            labels and metadata of rows inserted as arrays).
        removed: whether the user removed the picture.
    """

    image_vectors: Float[np.ndarray, "rows width"] | None = None
    captions: Sequence[Sequence[str]] = ()
    caption_vectors: Sequence[Float[np.ndarray, "_ width"]] = ()
    ids: Sequence[str] = ()
    files: Sequence[Sequence[File]] = ()
    labels: Sequence[Sequence[str]] = ()
    width: Sequence[int] = ()
    height: Sequence[int] = ()
    taken: Sequence[str] = ()
    camera: Sequence[str] = ()
    folder: Sequence[str] = ()
    phash: Sequence[str] = ()
    images: Sequence[bytes | None] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    own: Sequence[Mapping[str, Any]] = ()
    removed: Sequence[bool] = ()

    def __len__(self) -> int:
        return max((len(value) for each in fields(self) if (value := getattr(self, each.name)) is not None), default=0)

    def complete(self, record: Record, where: str) -> "Rows":
        """Return the rows with all fields filled and vectors normalized exactly.

        Raises:
            UserError: vectors of wrong width or norm, or an id that is empty, too long or duplicated.
            ValueError: fields of different lengths.
        """
        count = len(self)
        vectors = self.image_vectors
        if vectors is None:
            vectors = np.zeros((count, record.width), dtype=np.float32)
        captions = [tuple(each) for each in self.captions] or [()] * count
        texts = list(self.caption_vectors) or [np.zeros((0, record.width), dtype=np.float32)] * count
        texts = [np.asarray(each, dtype=np.float32).reshape(-1, record.width) for each in texts]
        if [len(each) for each in captions] != [len(each) for each in texts]:
            raise ValueError("every caption needs one vector")
        filled: dict[str, Any] = {"captions": captions, "image_vectors": unit_vectors(vectors, record.width, where)}
        flat = unit_vectors(np.concatenate([np.zeros((0, record.width)), *texts]), record.width, where)
        filled["caption_vectors"] = np.split(flat, np.cumsum([len(each) for each in texts])[:-1]) if count else []
        for name, empty in _EMPTY.items():
            filled[name] = list(getattr(self, name)) or [empty] * count
        filled["labels"] = [tuple(each) for each in filled["labels"]]
        filled["metadata"] = [plain({key: value for key, value in each.items() if value is not None})
                              for each in filled["metadata"]]  # fmt: skip
        filled["ids"] = list(self.ids) or [
            _digest(vector, texts) for vector, texts in zip(filled["image_vectors"], captions, strict=True)
        ]
        for row, own in enumerate(filled["own"]):
            given = {"captions": captions[row], "labels": filled["labels"][row], "metadata": filled["metadata"][row]}
            if given != merged_facts(filled["files"][row], own):  # rows inserted as arrays: the values are in no file
                filled["own"][row] = {**own, "said": plain(given)}
        for name, values in filled.items():
            if len(values) != count:
                raise ValueError(f"{count} rows, but {len(values)} {name}")
        _check_ids(filled["ids"], where)
        return Rows(**filled)

    def table(self, record: Record, where: str) -> "pa.Table":
        """Return an Arrow table with the columns of `schema`.

        Raises:
            UserError, ValueError: see `complete`.
        """
        import pyarrow as pa

        target, rows = schema(record), self.complete(record, where)
        vector = target.field("image_vector").type
        assert rows.image_vectors is not None
        flat = np.concatenate([np.zeros((0, record.width), dtype=np.float32), *rows.caption_vectors])
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in rows.caption_vectors])]).astype(np.int32)
        converted: dict[str, Any] = {
            "image_vector": vector_array(rows.image_vectors, vector),
            "caption_vectors": pa.ListArray.from_arrays(pa.array(offsets), vector_array(flat, vector)),
            "id": rows.ids,
            "image": rows.images,
            "files": [[asdict(file) for file in each] for each in rows.files],
            "metadata": [_dumped(each) for each in rows.metadata],
            "own": [_dumped(each) for each in rows.own],
        }
        arrays = []
        for each in target:
            values = converted.get(each.name, getattr(rows, each.name, None))
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, each.type))
        return pa.table(arrays, schema=target)

    @classmethod
    def of_table(cls, table: "pa.Table") -> "Rows":
        """Return the rows of a `table`."""
        columns = {name: table[name].to_pylist() for name in table.column_names if "vector" not in name}
        flat, counts = caption_matrix(table["caption_vectors"])
        return cls(
            image_vectors=vector_matrix(table["image_vector"]).astype(np.float32),
            captions=columns["captions"],
            caption_vectors=np.split(flat.astype(np.float32), np.cumsum(counts)[:-1]) if len(counts) else [],
            ids=columns["id"],
            files=[[File(**file) for file in each] for each in columns["files"]],
            images=columns["image"],
            metadata=[json.loads(each) for each in columns["metadata"]],
            own=[json.loads(each) for each in columns["own"]],
            **{name: columns[name] for name in ("labels", *PICTURE_FACTS, "removed")},
        )

    @classmethod
    def joined(cls, parts: "Sequence[Rows]") -> "Rows":
        """Concatenate rows; all parts must have the same fields filled."""
        lists = (each.name for each in fields(cls) if each.name != "image_vectors")
        vectors = np.concatenate([each.image_vectors for each in parts if each.image_vectors is not None])
        return cls(vectors, **{name: [one for each in parts for one in getattr(each, name)] for name in lists})

    def take(self, positions: Sequence[int]) -> "Rows":
        """Return the rows at the given positions, in that order."""

        def pick(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[np.asarray(positions, dtype=np.int64)]
            return [value[position] for position in positions] if value is not None and len(value) else value

        return Rows(**{each.name: pick(getattr(self, each.name)) for each in fields(self)})


_EMPTY: Mapping[str, Any] = {
    "files": (), "labels": (), **PICTURE_FACTS, "images": None, "metadata": {}, "own": {}, "removed": False,
}  # fmt: skip
_FILE_NUMBERS = frozenset({"size", "mtime", "ctime"})

COLUMNS = (
    "id", "files", "captions", "caption_vectors", "image_vector", "labels", *PICTURE_FACTS, "image", "metadata", "own",
    "removed",
)  # fmt: skip
"""Columns of an index, in order."""

FACTS = tuple(name for name in COLUMNS if name not in {"caption_vectors", "image_vector", "image"})
"""Columns of a `Picture`: all but vectors and pixels."""


def schema(record: Record) -> "pa.Schema":
    """Return the Arrow schema of an index, with its record as metadata."""
    import pyarrow as pa

    vector = pa.list_(pa.float32() if record.precision == "float32" else pa.float16(), record.width)
    file = [(name, pa.int64() if name in _FILE_NUMBERS else pa.string()) for name in (f.name for f in fields(File))]
    types: dict[str, Any] = {
        "files": pa.list_(pa.struct(file)), "captions": pa.list_(pa.string()), "caption_vectors": pa.list_(vector),
        "image_vector": vector, "labels": pa.list_(pa.string()), "width": pa.int32(), "height": pa.int32(),
        "image": pa.large_binary(), "removed": pa.bool_(),
    }  # fmt: skip
    return pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS], {"recollect": record.to_json()})


def merged_facts(files: Sequence[File], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return captions, labels and metadata of a row: the union over its files, with the user's captions first."""
    captions, labels = dict.fromkeys(own.get("captions", ())), dict[str, None]()
    metadata: dict[str, Any] = {}
    for said in (own.get("said", {}), *(json.loads(file.said) for file in files)):
        captions |= dict.fromkeys(said.get("captions", ()))
        labels |= dict.fromkeys(said.get("labels", ()))
        metadata = {**said.get("metadata", {}), **metadata}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return {"captions": tuple(captions), "labels": tuple(labels), "metadata": metadata}


def _digest(vector: np.ndarray, captions: Sequence[str]) -> str:
    """Return the id of a picture without pixels: a digest of its vector, or of its captions if the vector is zero."""
    if vector.any():
        return pixel_digest(np.ascontiguousarray(vector, dtype=np.float32))
    return hash_of("\0".join(captions))


def unit_vectors(vectors: np.ndarray, width: int, what: str) -> Float32[np.ndarray, "rows width"]:
    """Normalize vectors; zero rows stay zero.

    Raises:
        UserError: wrong width, not finite, or norm not within 0.01 of 1.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    shape = f"{what}: vectors of shape {tuple(vectors.shape)}, but the index has vectors of {width} entries"
    refuse((vectors.ndim != 2 or vectors.shape[1] != width, shape))
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    off = np.abs(norms - 1) * (norms != 0)
    wrong = not off.max(initial=0.0) < 1e-2  # NaN included
    refuse((wrong, f"{what}: vectors are not of unit norm (off by up to {off.max(initial=0.0):.2g})"))
    if off.max(initial=0.0) < 1e-6:
        return vectors
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def plain(value: Any) -> Any:
    """Convert a value to JSON types: NumPy to Python numbers, NaN and infinity to None, other objects to strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(plain(value), ensure_ascii=False)


def _check_ids(ids: Sequence[str], where: str) -> None:
    counts = Counter(ids)
    twice, wrong = [id for id in counts if counts[id] > 1], [id for id in ids if not 0 < len(id.encode()) <= 512]
    refuse(
        (twice, f"{where}: id {''.join(twice[:1])!r} is used twice"),
        (wrong, f"{where}: id {''.join(wrong[:1])[:40]!r} is too short or too long; an id has 1 to 512 bytes"),
    )
