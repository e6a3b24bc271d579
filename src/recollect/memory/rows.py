"""Rows of a memory: both vectors of a pair with its caption, picture and whatever else is known of it."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float32, Int64
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import ImageLike, Kind
from recollect.data.sources.images import BrokenImageError, decode, pixel_digest

if TYPE_CHECKING:
    import pyarrow as pa

Modality = Literal["image", "text"]
"""Which vector of a pair: that of its image, or that of its text."""

VectorPrecision = Literal["float32", "float16"]
"""How vectors are kept; half the bytes cost a cosine about one part in a hundred thousand."""

ROWS_FORMAT = 2
_FURTHER = re.compile(r"#\d+$")
_UNIT = 2.5e-7  # what rounding to single precision does to the norm of a unit vector


@dataclass(frozen=True)
class Record:
    """What a memory says of itself; written when it is created, never changed.

    Attributes:
        width: entries of a vector.
        model: fingerprint of the model that embedded the pairs.
        model_name: what the model was called.
        prefix: how its texts are read by a model with prefix tokens: queries and captions alike.
        precision: of the vectors that are kept.
        key: drawn at creation; tells two memories apart.
        format: of the memory.
    """

    width: int
    model: str
    model_name: str = ""
    prefix: Kind | None = None
    precision: VectorPrecision = "float32"
    key: str = ""
    format: int = ROWS_FORMAT

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str, where: str) -> "Record":
        """From JSON.

        Raises:
            UserError: it is none, or of a newer format.
        """
        try:
            values = json.loads(text)
            if values["format"] > ROWS_FORMAT:
                raise UserError(f"{where}: written by a newer recollect (format {values['format']}). Update recollect.")
            if values["format"] < ROWS_FORMAT:
                raise UserError(
                    f"{where}: written by an older recollect. Build it again with `recollect memory build`."
                )
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{where}: no memory of recollect (its record cannot be read: {error}).") from None


def content_digest(content: bytes) -> str:
    """Equal for the same bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Item:
    """One row as a reader sees it.

    Attributes:
        id: unique within the memory.
        caption: the text of the pair; empty for a picture without one.
        source: name of the source that it came from.
        metadata: whatever else is known of it.
        image: the picture's encoded bytes, or its path, or what opens it, or None.
        where: what to call it in errors.
        path: the file that the picture was read from, if it was one.
        content: hash of that file's bytes when its row was made; "" where that is not known.
        digest: of the picture's pixels.
    """

    id: str
    caption: str
    source: str
    metadata: Mapping[str, Any]
    image: bytes | Path | Callable[[], ImageLike] | None
    where: str
    path: Path | None = None
    content: str = ""
    digest: str = ""

    def read(self) -> ImageLike:
        """What an image tower reads: the picture, or the vector of a world without pictures.

        Raises:
            BrokenImageError: the memory keeps none, the file is gone or holds another picture now, or the bytes are
                damaged.
        """
        if self.image is None:
            raise BrokenImageError(f"{self.where}: the memory keeps no picture of it")
        if isinstance(self.image, Path) and self.content:
            return self._of_file(self.image)
        return self.image() if callable(self.image) else decode(self.image, self.where)

    def _of_file(self, file: Path) -> Image.Image:
        try:
            data = file.read_bytes()
        except OSError:
            return decode(file, self.where)  # which says why
        picture = decode(data, self.where)
        if content_digest(data) != self.content and pixel_digest(picture) != self.digest:
            raise BrokenImageError(
                f"{self.where}: {file} holds another picture now, which `recollect memory add` or `watch` takes up"
            )
        return picture

    def open(self) -> Image.Image:
        """Decode the picture.

        Raises:
            BrokenImageError: as `read`; or it is a vector, which nobody can look at.
        """
        image = self.read()
        if isinstance(image, Image.Image):
            return image
        if image.ndim != 3:
            raise BrokenImageError(f"{self.where}: a vector, not a picture")
        return Image.fromarray(image)


@dataclass(frozen=True)
class Pairs:
    """Rows of pictures, most of them with a text; every field has one entry for each row, in one order.

    Attributes:
        ids: unique within a memory. ``ID#1``, ``ID#2``, … are further texts of the picture ``ID`` (see `picture_of`).
        image_vectors: unit-norm.
        text_vectors: unit-norm, or all zeros for a picture without a text.
        captions: the texts, empty where there is none.
        model: fingerprint of the model that made the vectors.
        sources: name of each row's source.
        metadata: mappings that JSON can hold.
        images: encoded bytes, or None.
        paths: files that the pictures were read from, or None.
        places: where each row's source lies: a file, a folder, an address.
        origins: fingerprint of the source as it was opened; with ``ordinals`` it says how far a build has come.
        ordinals: place of each row in that source.
        digests: hash of the decoded picture; with the caption it tells exact duplicates.
        stamps: hash of the encoded picture, then of its texts as the source had them; tells whether a sample changed.
        looks: perceptual hash of the picture, nearly equal after it was resized or encoded again.
    """

    ids: Sequence[str]
    image_vectors: Float32[np.ndarray, "rows width"]
    text_vectors: Float32[np.ndarray, "rows width"]
    captions: Sequence[str]
    model: str
    sources: Sequence[str] = ()
    metadata: Sequence[Mapping[str, Any]] = ()
    images: Sequence[bytes | None] = ()
    paths: Sequence[str | None] = ()
    origins: Sequence[str] = ()
    ordinals: Int64[np.ndarray, " rows"] | None = None
    digests: Sequence[str] = ()
    places: Sequence[str] = ()
    stamps: Sequence[str] = ()
    looks: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_text(self) -> Bool[np.ndarray, " rows"]:
        """Which rows have a text."""
        return np.asarray(self.text_vectors.any(axis=1))

    def take(self, rows: Sequence[int]) -> "Pairs":
        """Some rows, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)

        def pick(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[chosen]
            return tuple(value[row] for row in chosen) if isinstance(value, list | tuple) and value else value

        return replace(self, **{field.name: pick(getattr(self, field.name)) for field in fields(self)})

    def check(self, record: Record, where: str) -> None:
        """Refuse rows that do not belong in a memory.

        Raises:
            UserError: vectors of another model or width, or not of unit norm; an id twice or empty.
            ValueError: fields of different lengths.
        """
        if self.model != record.model:
            raise UserError(
                f"{where}: holds vectors of {record.model_name or 'model'} ({record.model[:12]}), these are of another "
                f"model ({self.model[:12]}). Embed them with the memory's model, or build another memory."
            )
        check_vectors(self.image_vectors, record.width, f"{where}: image vectors")
        check_vectors(self.text_vectors, record.width, f"{where}: text vectors", self.has_text)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "model" and value is not None and len(value) not in ({len(self)} | {0} - {len(self)}):
                raise ValueError(f"{len(self)} ids, but {len(value)} {field.name}")
        if len(set(self.ids)) < len(self.ids):
            twice = next(id for place, id in enumerate(self.ids) if id in self.ids[:place])
            raise UserError(f"{where}: id {twice!r} is given twice; ids are unique")
        if wrong := next((id for id in self.ids if not 0 < len(id.encode()) <= 512), None):
            raise UserError(f"{where}: id {wrong[:40]!r} has {len(wrong.encode())} bytes; an id has 1 to 512")

    def table(self, precision: VectorPrecision = "float32") -> "pa.Table":
        """As Arrow, in `schema`."""
        import pyarrow as pa

        count, width = self.image_vectors.shape
        kept = schema(width, precision)

        def vectors(values: np.ndarray) -> "pa.Array":
            flat = pa.array(np.ascontiguousarray(unit_norm(values), dtype=precision).reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, width)

        metadata = [json.dumps(dict(each), ensure_ascii=False) for each in self.metadata] or ["{}"] * count
        columns: dict[str, Any] = {
            "id": self.ids,
            "image_vector": vectors(self.image_vectors),
            "text_vector": vectors(self.text_vectors),
            "has_text": self.has_text,
            "caption": self.captions,
            "metadata": metadata,
            "image": self.images or [None] * count,
            "path": self.paths or [None] * count,
            "ordinal": np.full(count, -1) if self.ordinals is None else self.ordinals,
        }
        for name in ("source", "origin", "digest", "place", "stamp"):
            columns[name] = getattr(self, f"{name}s") or [""] * count
        columns["look"] = self.looks or [""] * count
        arrays = [
            columns[field.name] if "vector" in field.name else pa.array(columns[field.name], field.type)
            for field in kept
        ]
        return pa.table(arrays, schema=kept)

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any], model: str) -> "Pairs":
        """Rows from the columns of `schema`: vectors as arrays, metadata as JSON or as mappings, the rest as lists."""
        metadata = [json.loads(each) if isinstance(each, str) else each for each in columns["metadata"]]
        named = {f"{name}s": columns[name] for name in ("id", "caption", "source", "image", "path", "origin", "digest")}
        return cls(
            image_vectors=columns["image_vector"],
            text_vectors=columns["text_vector"],
            model=model,
            metadata=metadata,
            ordinals=np.asarray(columns["ordinal"], dtype=np.int64),
            places=columns["place"],
            stamps=columns["stamp"],
            looks=columns["look"],
            **named,
        )


def join(parts: list[Pairs]) -> Pairs | None:
    """Rows one after the other; None where there are none."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return None

    def chain(name: str) -> list:
        return [value for part in parts for value in getattr(part, name)]

    return Pairs(
        ids=chain("ids"),
        image_vectors=np.concatenate([part.image_vectors for part in parts]),
        text_vectors=np.concatenate([part.text_vectors for part in parts]),
        captions=chain("captions"),
        model=parts[0].model,
        sources=chain("sources"),
        metadata=chain("metadata"),
        images=chain("images"),
        paths=chain("paths"),
        origins=chain("origins"),
        ordinals=np.concatenate([part.ordinals for part in parts if part.ordinals is not None]),
        digests=chain("digests"),
        places=chain("places"),
        stamps=chain("stamps"),
        looks=chain("looks"),
    )


COLUMNS = (
    "id", "image_vector", "text_vector", "has_text", "caption", "source", "place", "metadata", "image", "path",
    "origin", "ordinal", "digest", "stamp", "look",
)  # fmt: skip
"""Of a memory, in their order."""


def schema(
    width: int, precision: VectorPrecision = "float32", metadata: Mapping[str, str] | None = None
) -> "pa.Schema":
    """The columns of a memory.

    Args:
        width: entries of a vector.
        precision: of the vectors.
        metadata: of the schema.
    """
    import pyarrow as pa

    vector = pa.list_(pa.float32() if precision == "float32" else pa.float16(), width)
    types = {"image_vector": vector, "text_vector": vector, "has_text": pa.bool_(), "ordinal": pa.int64()}
    types |= {"metadata": pa.json_(), "image": pa.large_binary()}
    return pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS], metadata=metadata)


def picture_of(id: str) -> str:
    """The picture that a row is of: ``ID`` for ``ID``, ``ID#1``, ``ID#2``, …

    >>> picture_of("holiday:beach.jpg#1")
    'holiday:beach.jpg'
    """
    return _FURTHER.sub("", id) if "#" in id else id


def further_id(picture: str, number: int) -> str:
    """The id of a picture's row ``number``; `picture_of` its inverse, also for names that end like one.

    >>> further_id("beach.jpg", 0), further_id("beach.jpg", 2), further_id("C#1", 0)
    ('beach.jpg', 'beach.jpg#2', 'C#1#0')
    """
    return f"{picture}#{number}" if number or _FURTHER.search(picture) else picture


def unit_norm(vectors: np.ndarray) -> Float32[np.ndarray, "rows width"]:
    """Divide out what rounding did to the norms of vectors; zeros stay zeros, and unit-norm rows keep every bit."""
    vectors = vectors.astype(np.float32, copy=False)
    norms = np.sqrt(np.einsum("rw,rw->r", vectors, vectors, dtype=np.float64))
    off = np.flatnonzero((np.abs(norms - 1) > _UNIT) & (norms > 0))
    if len(off):
        vectors = vectors.copy()
        vectors[off] /= norms[off, None].astype(np.float32)
    return vectors


def rounded(vectors: np.ndarray, precision: VectorPrecision) -> Float32[np.ndarray, "rows width"]:
    """Unit-norm vectors as a store of this precision hands them out."""
    return unit_norm(unit_norm(vectors).astype(precision))


def check_vectors(vectors: np.ndarray, width: int, what: str, among: np.ndarray | None = None) -> None:
    """Refuse vectors of another width or not of unit norm; ``among`` says which of them have to be.

    Raises:
        UserError: saying which.
    """
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise UserError(f"{what} have shape {tuple(vectors.shape)}, but the memory's have {width} entries")
    if len(vectors) == 0:
        return
    off = np.abs(np.linalg.norm(vectors, axis=1) - 1)
    worst = float((off if among is None else off[among]).max(initial=0.0))
    if not worst < 1e-2:  # NaN included
        raise UserError(f"{what} are not of unit norm (off by up to {worst:.2g}). Is the model damaged?")


def plain(value: Any) -> Any:
    """What JSON can hold of ``value``: NumPy numbers as numbers, what is no number or text as its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
