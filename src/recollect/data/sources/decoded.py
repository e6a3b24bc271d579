"""Pictures decoded once and stored as bytes in a memory-mapped Arrow file, so that reading one needs no decoder."""

import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from recollect.core.errors import user_errors
from recollect.core.files import atomic_folder
from recollect.core.paths import cache_folder
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed
from recollect.core.types import ImageLike, Sample, Source
from recollect.data.sources.derived import Subset
from recollect.data.sources.images import BrokenImageError, as_rgb
from recollect.data.sources.reading import Outcome, read_ahead

_BLOCK = 256
_FILE = "pictures.arrow"
_SCHEMA = pa.schema(
    {
        "pixels": pa.large_binary(),
        "height": pa.int32(),
        "width": pa.int32(),
        "crc32": pa.uint32(),
        "broken": pa.string(),
    }
)
"""Of each picture: RGB bytes, size, and their checksum; or why it could not be read."""


class DecodedSource(Subset):
    """A source whose pictures are stored decoded and scaled down; all else comes from the source itself.

    Attributes:
        source: the original.
        folder: where the pictures are stored.
        needed: pictures were scaled down to this shorter side, in pixels.
    """

    def __init__(self, source: Source, folder: Path, needed: int) -> None:
        super().__init__(source, np.arange(len(source)))
        self.folder, self.needed = folder, needed
        table = pa.ipc.open_file(pa.memory_map(str(folder / _FILE))).read_all()
        table.validate(full=True)
        if len(table) != len(source) or table.schema != _SCHEMA:
            raise ValueError(f"{folder}: not the pictures of {source.name}")
        self._columns = dict(zip(table.column_names, table.columns, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedSource, (self.source, self.folder, self.needed)

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def reads_blocks(self) -> bool:
        return False

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample; its image is an array (height, width, 3).

        Raises:
            IndexError: outside the source.
            BrokenImageError: the picture could not be decoded, or its stored bytes are damaged.
        """
        index = self.position(index)
        if extra or needed == 0 or needed > self.needed:  # more than is stored
            return self.source.read(index, needed=needed, extra=extra)
        row = {name: column[index] for name, column in self._columns.items()}
        if row["broken"].is_valid:
            raise BrokenImageError(row["broken"].as_py())
        pixels, shape = row["pixels"].as_buffer(), (row["height"].as_py(), row["width"].as_py(), 3)
        if _crc32(pixels, shape) != row["crc32"].as_py():
            raise BrokenImageError(
                f"{self.name}, sample {index}: damaged in {self.folder}. Remove that folder; it will be made again."
            )
        label = int(self.source.labels[index])
        image = np.frombuffer(pixels, np.uint8).reshape(shape)
        return Sample(image, self.source.texts(index), label, self.name, self.kind, str(index))


def decoded(source: Source, needed: int, folder: Path | None = None) -> Source:
    """``source`` with its pictures decoded beforehand, unless that was done before; generated sources stay as they are.

    Args:
        needed: shorter side in pixels above which detail is not needed.
        folder: where to store pictures; by default in the user's cache folder.

    Raises:
        UserError: they cannot be stored.
    """
    if source.makes_batches or source.endless:
        return source
    key = f"{derive_seed('decoded', source.fingerprint, needed, len(source)):016x}"
    place = (folder or cache_folder() / "decoded") / key
    advice = ". Free some space, set RECOLLECT_CACHE to another folder, or omit --data.decoded."
    with user_errors(f"{place}: {source.name} cannot be stored decoded", OSError, then=advice):
        if place.exists():
            try:
                return DecodedSource(source, place, needed)
            except (OSError, ValueError):  # damaged: decode again
                shutil.rmtree(place, ignore_errors=True)
        try:
            with atomic_folder(place) as unfinished:
                _decode(source, needed, unfinished / _FILE)
        except FileExistsError:  # another process was faster
            pass
        return DecodedSource(source, place, needed)


def _decode(source: Source, needed: int, path: Path) -> None:
    indices: Sequence[int] = range(len(source))
    with (
        progress(f"decode {source.name} once", len(source), "images") as counter,
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, _SCHEMA) as writer,
    ):
        for outcomes in read_ahead(source, indices, _BLOCK, needed=needed, extra=False):
            rows = [_row(outcome, needed) for outcome in outcomes]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))
            counter.advance(len(outcomes))


def _row(outcome: Outcome, needed: int) -> dict[str, Any]:
    if isinstance(outcome, BrokenImageError):
        return {"broken": str(outcome)}
    pixels = _scaled_down(outcome.image, needed)
    height, width, _ = pixels.shape
    data = pixels.tobytes()
    return {"pixels": data, "height": height, "width": width, "crc32": _crc32(data, pixels.shape)}


def _crc32(pixels: Any, shape: tuple[int, ...]) -> int:
    return zlib.crc32(pixels, zlib.crc32(repr(shape).encode()))


def _scaled_down(image: ImageLike, needed: int) -> np.ndarray:
    """The picture with a shorter side of at most ``needed``, antialiased."""
    picture = as_rgb(image if isinstance(image, Image.Image) else Image.fromarray(image))
    width, height = picture.size
    if min(width, height) > needed:
        factor = needed / min(width, height)
        size = (max(needed, round(width * factor)), max(needed, round(height * factor)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return np.asarray(picture)
