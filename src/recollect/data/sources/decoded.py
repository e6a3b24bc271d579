"""Pictures decoded once: bytes in a file that is mapped into memory, so that reading one needs no decoder."""

import json
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.core.content import content_hash
from recollect.core.errors import UserError
from recollect.core.files import atomic_folder, cache_folder, reason, write_json, write_text
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed
from recollect.core.types import BatchRead, ImageLike, Kind, Sample, Source
from recollect.data.sources.images import BrokenImageError, as_rgb
from recollect.data.sources.reading import read_ahead

_BLOCK = 256
_PIXELS, _ROWS, _BROKEN, _CHECK = "pixels.bin", "rows.npy", "broken.json", "check.txt"
_ROW = np.dtype([("start", "<i8"), ("height", "<i4"), ("width", "<i4"), ("check", "<u4")])
"""Of each picture: where its bytes begin, its size (0 where it could not be read), and their CRC-32."""


@dataclass(eq=False)
class DecodedSource(Source):
    """A source whose pictures are kept decoded, no larger than they are needed; texts and labels are its own.

    Attributes:
        source: where everything else comes from.
        folder: of the kept pictures.
        needed: their shorter side, in pixels, where they were larger.
    """

    source: Source
    folder: Path
    needed: int

    def __post_init__(self) -> None:
        self.name, self.class_names = self.source.name, self.source.class_names
        self.kind: Kind = self.source.kind
        self._open()

    def _open(self) -> None:
        if (self.folder / _CHECK).read_text(encoding="ascii") != _check(self.folder):
            raise ValueError("not as it was written")
        self._rows = np.load(self.folder / _ROWS, mmap_mode="r", allow_pickle=False)
        size = (self.folder / _PIXELS).stat().st_size
        whole = len(self._rows) == len(self.source) and size == int(_bytes(self._rows).sum())
        if not whole:
            raise ValueError("cut short")
        self._pixels = np.memmap(self.folder / _PIXELS, np.uint8, "r") if size else np.zeros(0, np.uint8)
        self._broken = json.loads((self.folder / _BROKEN).read_text(encoding="utf-8"))

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "folder": self.folder, "needed": self.needed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def labels(self) -> np.ndarray:
        return self.source.labels

    @property
    def block_sizes(self) -> None:
        """None: a picture costs the same wherever it lies."""
        return

    def texts(self, index: int) -> tuple[str, ...]:
        return self.source.texts(index)

    def values(self, key: str) -> list[Any]:
        return self.source.values(key)

    def original(self, index: int) -> bytes | Path | None:
        return self.source.original(index)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        return self.source.batch(indices, seed)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample; its image is an array (height, width, 3).

        Raises:
            IndexError: outside the source.
            BrokenImageError: the picture could not be decoded, or its bytes are not those that were kept.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: sample {index} of {len(self)}")
        index %= len(self)
        if extra or needed == 0 or needed > self.needed:  # more than was kept is asked for
            return self.source.read(index, needed=needed, extra=extra)
        row = self._rows[index]
        if not row["height"]:
            raise BrokenImageError(self._broken.get(str(index), f"{self.name}, sample {index}: cannot be read"))
        start, shape = int(row["start"]), (int(row["height"]), int(row["width"]), 3)
        data = self._pixels[start : start + shape[0] * shape[1] * 3]
        if zlib.crc32(data.data) != int(row["check"]):
            raise BrokenImageError(
                f"{self.name}, sample {index}: damaged in {self.folder}. Remove that folder; it is made again."
            )
        label = int(self.source.labels[index])
        return Sample(data.reshape(shape), self.source.texts(index), label, self.name, self.kind, str(index))


def decoded(source: Source, needed: int, folder: Path | None = None) -> Source:
    """``source`` with its pictures decoded beforehand, unless they are kept already, or it makes them itself.

    Args:
        source: any; one that makes its samples stays as it is.
        needed: shorter side, in pixels, above which detail is of no use.
        folder: where they are kept; in the user's cache folder by default.

    Raises:
        UserError: there is no room for them.
    """
    if source.makes_batches or source.endless:
        return source
    key = f"{derive_seed('decoded', source.fingerprint, needed, len(source)):016x}"
    place = (folder or cache_folder() / "decoded") / key
    if os.path.exists(place):  # which may not be looked at in another user's home
        try:
            return DecodedSource(source, place, needed)
        except (OSError, ValueError):  # damaged: it is made again
            _remove(place)
    try:
        with atomic_folder(place) as unfinished:
            _decode(source, needed, unfinished)
    except FileExistsError:  # another process was quicker
        pass
    except OSError as error:
        raise UserError(
            f"{place}: {source.name} could not be kept decoded ({reason(error)}). Make room, name another folder with "
            "RECOLLECT_CACHE, or leave --data.decoded out."
        ) from error
    return DecodedSource(source, place, needed)


def _decode(source: Source, needed: int, folder: Path) -> None:
    rows, broken, place = np.zeros(len(source), _ROW), {}, 0
    indices: Sequence[int] = range(len(source))
    with (
        progress(f"decode {source.name} once", len(source), "images") as counter,
        (folder / _PIXELS).open("wb") as file,
    ):
        done = 0
        for outcomes in read_ahead(source, indices, _BLOCK, needed=needed, extra=False):
            for outcome in outcomes:
                if isinstance(outcome, BrokenImageError):
                    broken[str(done)] = str(outcome)
                else:
                    pixels = _no_larger(outcome.image, needed)
                    rows[done] = (place, *pixels.shape[:2], zlib.crc32(pixels.data))
                    place += file.write(pixels.data)
                done += 1
            counter.advance(len(outcomes))
    np.save(folder / _ROWS, rows, allow_pickle=False)
    write_json(folder / _BROKEN, broken)
    write_text(folder / _CHECK, _check(folder))


def _check(folder: Path) -> str:
    """Of all but the pixels, which have one for each picture."""
    return content_hash([folder / _ROWS, folder / _BROKEN])


def _no_larger(image: ImageLike, needed: int) -> np.ndarray:
    """The picture with a shorter side of at most ``needed``, antialiased."""
    picture = as_rgb(image if isinstance(image, Image.Image) else Image.fromarray(image))
    width, height = picture.size
    if min(width, height) > needed:
        factor = needed / min(width, height)
        size = (max(needed, round(width * factor)), max(needed, round(height * factor)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(picture))


def _bytes(rows: np.ndarray) -> np.ndarray:
    return rows["height"].astype(np.int64) * rows["width"] * 3


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
