"""One row of an index is one picture: its files, captions, vectors and everything else known about it."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Float32

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.core.validation import refuse
from recollect.data.sources.images import pixel_digest
from recollect.index.arrow import caption_matrix, vector_array, vector_matrix
from recollect.index.picture import PICTURE_FACTS, File

if TYPE_CHECKING:
    import pyarrow as pa

By = Literal["image", "text"]
"""Which vectors of a picture: that of the picture itself, or those of its captions."""

VectorPrecision = Literal["float32", "float16"]
"""How vectors are stored. Half precision halves the space and changes a cosine by about 1e-5."""

ROUNDING = 2.0**-21
"""What rounding to half precision can take from the cosine of two equal vectors, at most.

An entry is off by at most 2^-11 of itself, so a vector turns by an angle of at most 2^-11 (the norm is divided out),
and by twice that if the other vector was rounded too: 1 - cos <= 2^-21.
"""

FORMAT = 3
"""Of an index on disk. Formats 1 and 2 were memories of pairs."""


@dataclass(frozen=True)
class Record:
    """What an index says about itself; written once, when it is created.

    Attributes:
        width: entries of a vector.
        model: fingerprint of the model that made the vectors.
        model_name: path or hub id that opens this model.
        prefix: how the model reads captions and queries, for models with prefix tokens.
        precision: of the stored vectors.
        key: random; tells two indexes apart.
        format: of the files.
    """

    width: int
    model: str
    model_name: str = ""
    prefix: Kind | None = None
    precision: VectorPrecision = "float32"
    key: str = ""
    format: int = FORMAT

    def to_json(self) -> str:
        """The inverse of `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> "Record":
        """Read a record.

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
        ids: unique; by default digests of the pictures, vectors or texts.
        image_vectors: unit norm, zeros for a picture without a vector.
        captions: the captions of each picture.
        caption_vectors: for each picture an array (captions, width), unit norm.
        files, labels, width, height, taken, camera, folder, phash: as in `Picture`.
        images: encoded bytes, or None.
        metadata: the user's own columns, mappings that JSON can hold.
        own: the user's ``captions``, and ``by``, the model that wrote them; and ``said``, what no file says.
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
        """The same rows with every field filled and vectors of exact unit norm.

        Raises:
            UserError: vectors of another width or not of unit norm; an id that is empty, too long or used twice.
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
            if given != merged_facts(filled["files"][row], own):  # rows given as arrays, which no file speaks for
                filled["own"][row] = {**own, "said": plain(given)}
        for name, values in filled.items():
            if len(values) != count:
                raise ValueError(f"{count} rows, but {len(values)} {name}")
        _check_ids(filled["ids"], where)
        return Rows(**filled)

    def table(self, record: Record, where: str) -> "pa.Table":
        """As an Arrow table in `schema`.

        Raises:
            UserError, ValueError: as `complete`.
        """
        import pyarrow as pa

        kept, rows = schema(record), self.complete(record, where)
        vector = kept.field("image_vector").type
        assert rows.image_vectors is not None
        flat = np.concatenate([np.zeros((0, record.width), dtype=np.float32), *rows.caption_vectors])
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in rows.caption_vectors])]).astype(np.int32)
        made: dict[str, Any] = {
            "image_vector": vector_array(rows.image_vectors, vector),
            "caption_vectors": pa.ListArray.from_arrays(pa.array(offsets), vector_array(flat, vector)),
            "id": rows.ids,
            "image": rows.images,
            "files": [[asdict(file) for file in each] for each in rows.files],
            "metadata": [_dumped(each) for each in rows.metadata],
            "own": [_dumped(each) for each in rows.own],
        }
        arrays = []
        for each in kept:
            values = made.get(each.name, getattr(rows, each.name, None))
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, each.type))
        return pa.table(arrays, schema=kept)

    @classmethod
    def of_table(cls, table: "pa.Table") -> "Rows":
        """The inverse of `table`."""
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
        """One after the other; all must have the same fields."""
        lists = (each.name for each in fields(cls) if each.name != "image_vectors")
        vectors = np.concatenate([each.image_vectors for each in parts if each.image_vectors is not None])
        return cls(vectors, **{name: [one for each in parts for one in getattr(each, name)] for name in lists})

    def take(self, places: Sequence[int]) -> "Rows":
        """Some rows, in the order given."""

        def pick(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[np.asarray(places, dtype=np.int64)]
            return [value[place] for place in places] if value is not None and len(value) else value

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
"""Columns that make a `Picture`: everything but vectors and pixels."""


def schema(record: Record) -> "pa.Schema":
    """The Arrow schema of an index, with its record as metadata."""
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
    """Captions, labels and metadata of a row: the union over its files; the user's captions come first."""
    captions, labels = dict.fromkeys(own.get("captions", ())), dict[str, None]()
    metadata: dict[str, Any] = {}
    for said in (own.get("said", {}), *(json.loads(file.said) for file in files)):
        captions |= dict.fromkeys(said.get("captions", ()))
        labels |= dict.fromkeys(said.get("labels", ()))
        metadata = {**said.get("metadata", {}), **metadata}
    metadata |= own.get("values", {})  # of indexes made before sources alone brought columns
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return {"captions": tuple(captions), "labels": tuple(labels), "metadata": metadata}


def _digest(vector: np.ndarray, captions: Sequence[str]) -> str:
    """Id of a picture without pixels: digest of its vector, or of its captions where the vector is zero."""
    if vector.any():
        return pixel_digest(np.ascontiguousarray(vector, dtype=np.float32))
    return hashlib.blake2b("\0".join(captions).encode(), digest_size=16).hexdigest()


def unit_vectors(vectors: np.ndarray, width: int, what: str) -> Float32[np.ndarray, "rows width"]:
    """Vectors with their norm divided out; rows of zeros stay.

    Raises:
        UserError: another width, not finite, or not close to unit norm.
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
    """What JSON can hold of a value: NumPy numbers become numbers, other objects their text, NaN None."""
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
