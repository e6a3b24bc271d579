"""Rows of a memory: both vectors of a pair with its caption, picture and whatever else is known of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float32, Int64
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import ImageLike
from recollect.data.sources.images import BrokenImageError, decode

if TYPE_CHECKING:
    import pyarrow as pa

Modality = Literal["image", "text"]
"""Which vector of a pair: that of its image, or that of its text."""

ROWS_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What a memory says of itself; written when it is created, never changed.

    Attributes:
        width: entries of a vector.
        model: fingerprint of the model that embedded the pairs.
        model_name: what the model was called.
        key: drawn at creation; tells two memories apart.
        format: of the memory.
    """

    width: int
    model: str
    model_name: str = ""
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
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{where}: no memory of recollect (its record cannot be read: {error}).") from None


@dataclass(frozen=True)
class Item:
    """One row as a reader sees it.

    Attributes:
        id: unique within the memory.
        caption: the text of the pair.
        source: name of the source that it came from.
        metadata: whatever else is known of it.
        image: the picture's encoded bytes, or its path, or what opens it, or None.
        where: what to call it in errors.
        path: the picture's file, where there is one.
    """

    id: str
    caption: str
    source: str
    metadata: Mapping[str, Any]
    image: bytes | Path | Callable[[], ImageLike] | None
    where: str
    path: Path | None = None

    def read(self) -> ImageLike:
        """What an image tower reads: the picture, or the vector of a world without pictures.

        Raises:
            BrokenImageError: the memory keeps none, the file is gone, or the bytes are damaged.
        """
        if self.image is None:
            raise BrokenImageError(f"{self.where}: the memory keeps no picture of it")
        return self.image() if callable(self.image) else decode(self.image, self.where)

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
    """Rows of image–text pairs; every field has one entry for each row, in one order.

    Attributes:
        ids: unique within a memory.
        image_vectors: unit-norm.
        text_vectors: unit-norm.
        captions: the texts.
        model: fingerprint of the model that made the vectors.
        sources: name of each row's source.
        metadata: mappings that JSON can hold.
        images: encoded bytes, or None.
        paths: files of pictures, or None.
        origins: fingerprint of the source as it was opened; with ``ordinals`` it says how far a build has come.
        ordinals: place of each row in that source.
        digests: hash of picture and caption; equal for exact duplicates.
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

    def __len__(self) -> int:
        return len(self.ids)

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
        for modality, vectors in (("image", self.image_vectors), ("text", self.text_vectors)):
            check_vectors(vectors, record.width, f"{where}: {modality} vectors")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "model" and value is not None and len(value) not in ({len(self)} | {0} - {len(self)}):
                raise ValueError(f"{len(self)} ids, but {len(value)} {field.name}")
        if len(set(self.ids)) < len(self.ids):
            twice = next(id for place, id in enumerate(self.ids) if id in self.ids[:place])
            raise UserError(f"{where}: id {twice!r} is given twice; ids are unique")
        if wrong := next((id for id in self.ids if not 0 < len(id.encode()) <= 512), None):
            raise UserError(f"{where}: id {wrong[:40]!r} has {len(wrong.encode())} bytes; an id has 1 to 512")

    def table(self) -> "pa.Table":
        """As Arrow, in `schema`."""
        import pyarrow as pa

        count, width = self.image_vectors.shape
        nothing = [None] * count

        def vectors(values: np.ndarray) -> "pa.Array":
            flat = pa.array(np.ascontiguousarray(values).reshape(-1), pa.float32())
            return pa.FixedSizeListArray.from_arrays(flat, width)

        columns = {
            "id": pa.array(self.ids, pa.string()),
            "image_vector": vectors(self.image_vectors),
            "text_vector": vectors(self.text_vectors),
            "caption": pa.array(self.captions, pa.string()),
            "source": pa.array(self.sources or [""] * count, pa.string()),
            "metadata": pa.array(
                [json.dumps(dict(each), ensure_ascii=False) for each in self.metadata] or ["{}"] * count, pa.json_()
            ),
            "image": pa.array(self.images or nothing, pa.large_binary()),
            "path": pa.array(self.paths or nothing, pa.string()),
            "origin": pa.array(self.origins or [""] * count, pa.string()),
            "ordinal": pa.array(np.full(count, -1) if self.ordinals is None else self.ordinals, pa.int64()),
            "digest": pa.array(self.digests or [""] * count, pa.string()),
        }
        return pa.table(columns, schema=schema(width))


def schema(width: int, metadata: Mapping[str, str] | None = None) -> "pa.Schema":
    """The columns of a memory.

    Args:
        width: entries of a vector.
        metadata: of the schema.
    """
    import pyarrow as pa

    texts = {name: pa.string() for name in ("id", "caption", "source", "path", "origin", "digest")}
    vector = pa.list_(pa.float32(), width)
    types = texts | {
        "image_vector": vector,
        "text_vector": vector,
        "metadata": pa.json_(),
        "image": pa.large_binary(),
        "ordinal": pa.int64(),
    }
    order = (
        "id", "image_vector", "text_vector", "caption", "source", "metadata", "image", "path", "origin", "ordinal",
        "digest",
    )  # fmt: skip
    return pa.schema([(name, types[name]) for name in order], metadata=metadata)


def check_vectors(vectors: np.ndarray, width: int, what: str) -> None:
    """Refuse vectors of another width or not of unit norm.

    Raises:
        UserError: saying which.
    """
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise UserError(f"{what} have shape {tuple(vectors.shape)}, but the memory's have {width} entries")
    if len(vectors) == 0:
        return
    worst = float(np.abs(np.linalg.norm(vectors, axis=1) - 1).max())
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
