"""A picture of an index as a reader sees it, and the files it comes from."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.core.types import ImageLike
from recollect.data.sources.images import BrokenImageError, decode, pixel_digest

PICTURE_FACTS: Mapping[str, Any] = {"width": 0, "height": 0, "taken": "", "camera": "", "folder": "", "phash": ""}
"""What an index knows of every picture, with the values that mean unknown."""


@dataclass(frozen=True)
class File:
    """One place that a picture comes from.

    Attributes:
        source: name of the source.
        key: stable name of the sample within the source: a relative path, an id, or a digest.
        path: the file; empty where the source is not a folder of files.
        place: the folder, file or hub id of the source.
        size: of the file in bytes, 0 where unknown.
        mtime: modification time in nanoseconds, 0 where unknown.
        ctime: when the file itself last changed (its name, place or bytes), in nanoseconds.
        stamp: changes when the file or what the source says about it changes.
        said: JSON of the captions, labels, metadata, date and camera that this sample contributed.
    """

    source: str
    key: str
    path: str = ""
    place: str = ""
    size: int = 0
    mtime: int = 0
    ctime: int = 0
    stamp: str = ""
    said: str = "{}"

    @property
    def name(self) -> tuple[str, str]:
        """Its source and key."""
        return self.source, self.key

    @property
    def folder(self) -> str:
        """Its folder within the source; the source's own name for a file at its top, "" for what is not a file."""
        folder = Path(self.key).parent.as_posix() if self.path else ""
        return Path(self.place).name if folder == "." else folder


@dataclass(frozen=True)
class Picture:
    """One row as a reader sees it; the pixels are read by `open`.

    Attributes:
        id: digest of the decoded pixels (of the vector or text where there are no pixels).
        captions: every caption, the user's own first.
        labels: class names that its sources give.
        files: where it comes from.
        width, height: in pixels; 0 where unknown.
        taken: when the picture was taken (EXIF), as ``2022-07-01T12:00:00``; empty where unknown.
        camera: maker and model (EXIF).
        folder: the folder of its first file within the source, such as ``Norway/Bergen``; a filter may name any part,
            or a folder above it.
        phash: perceptual hash, 16 hexadecimal digits.
        metadata: the user's own columns.
        captioned_by: model that wrote the user's captions, if one did.
        removed: whether the user removed it.
        where: what to call it in messages.
    """

    id: str
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    width: int = 0
    height: int = 0
    taken: str = ""
    camera: str = ""
    folder: str = ""
    phash: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    captioned_by: str = ""
    removed: bool = False
    where: str = ""
    _bytes: Callable[[], bytes | None] = field(default=lambda: None, repr=False, compare=False)
    _read: Callable[[], ImageLike] | None = field(default=None, repr=False, compare=False)

    @property
    def caption(self) -> str:
        """The first caption, or an empty string."""
        return self.captions[0] if self.captions else ""

    @property
    def source(self) -> str:
        """The source of its first file, or an empty string."""
        return self.files[0].source if self.files else ""

    @property
    def path(self) -> Path | None:
        """Its first file that exists; the first one if none does; None if it has none."""
        paths = [Path(file.path) for file in self.files if file.path]
        return next((path for path in paths if path.exists()), paths[0] if paths else None)

    def encoded(self) -> bytes | None:
        """The encoded picture as stored in the index or in its file, not decoded; None if it has none."""
        stored = self._bytes()
        return self._file_bytes() if stored is None else stored

    def _file_bytes(self) -> bytes | None:
        try:
            return None if self.path is None else self.path.read_bytes()
        except OSError as error:
            raise BrokenImageError(f"{self.where}: cannot be read ({error.strerror})") from None

    def read(self) -> ImageLike:
        """What an image tower reads: the decoded picture, or the array that the source of the index gives.

        Raises:
            BrokenImageError: as `open`.
        """
        return self.open() if self._read is None else self._read()

    def open(self, needed: int = 0) -> Image.Image:
        """Decode the picture.

        Args:
            needed: shorter side in pixels above which detail is of no use; large JPEGs are then decoded faster, smaller
                than they are. 0 decodes all of it.

        Raises:
            BrokenImageError: the index stores no picture, its file is gone or damaged, or holds other pixels now; or it
                is a vector of a world without pictures.
        """
        if self._read is not None:
            image = self._read()
            if isinstance(image, np.ndarray) and image.ndim != 3:
                raise BrokenImageError(f"{self.where}: a vector, not a picture")
            return image if isinstance(image, Image.Image) else Image.fromarray(image)
        stored = self._bytes()
        data = self._file_bytes() if stored is None else stored
        if data is None:
            raise BrokenImageError(f"{self.where}: the index stores no picture for it")
        read = next((file for file in self.files if file.path and Path(file.path) == self.path), None)
        written = stored is None and read is not None and _written_since(read)
        picture = decode(data, self.where, needed=0 if written else needed)
        if written and len(self.id) == 32 and pixel_digest(picture) != self.id:
            raise BrokenImageError(
                f"{self.where}: {self.path} holds another picture now. Update the index with `recollect index add`."
            )
        return picture

    @property
    def distinct_files(self) -> list[File]:
        """Its files, a file and links to it only once."""
        return list({(each.path or (each.source, each.key)): each for each in self.files}.values())

    def intact_files(self) -> list[File]:
        """Its files on disk that have these pixels, also where they were written since they were indexed."""
        return [file for file in self.distinct_files if self._still_in(file)]

    def _still_in(self, file: File) -> bool:
        if not (file.path and Path(file.path).is_file()):
            return False
        try:
            changed = _written_since(file) and len(self.id) == 32
            return not changed or pixel_digest(decode(Path(file.path).read_bytes(), file.path)) == self.id
        except (BrokenImageError, OSError):
            return False


def _written_since(file: File) -> bool:
    """Whether a file was written after it was indexed, so that it may hold other pixels."""
    now = Path(file.path).stat()
    return bool(file.mtime) and (now.st_size, now.st_mtime_ns) != (file.size, file.mtime)


def picture_of(
    row: Mapping[str, Any],
    address: str,
    stored: Callable[[str], bytes | None],
    read: Callable[[str], ImageLike] | None = None,
) -> Picture:
    """A row of `FACTS` as a reader sees it.

    Args:
        row: by column name.
        address: of the index, for messages.
        stored: returns the encoded picture that the index stores for an id, or None.
        read: returns the picture of an id, where the index reads pictures from a source.
    """
    id, own = row["id"], json.loads(row["own"])
    files = tuple(File(**file) for file in row["files"])
    name = next((file.path or file.key for file in files), id)
    return Picture(
        id=id,
        captions=tuple(row["captions"]),
        labels=tuple(row["labels"]),
        files=files,
        metadata=json.loads(row["metadata"]),
        captioned_by=own.get("by", ""),
        removed=row["removed"],
        where=f"{address}, picture '{name}'",
        _bytes=lambda: stored(id),
        _read=None if read is None else partial(read, id),
        **{name: row[name] for name in PICTURE_FACTS},
    )


def as_png(image: ImageLike) -> bytes:
    """A picture of a source that has no encoded bytes, encoded without loss."""
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def phash_of(image: ImageLike) -> str:
    """Which of the 64 lowest cosine frequencies of the gray picture are above their median (pHash; Zauner, 2010).

    Resizing a picture and encoding it again change few of these bits.

    Returns:
        16 hexadecimal digits; empty for what is not a picture, or where all pixels are equal.
    """
    from scipy.fft import dctn  # slow to import

    if isinstance(image, np.ndarray):
        if image.ndim != 3:
            return ""
        image = Image.fromarray(image)
    gray = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    if np.ptp(gray) == 0:
        return ""
    low = dctn(gray, norm="ortho")[:8, :8].reshape(-1)
    bits = low > np.median(low[1:])  # the first is the mean brightness
    bits[0] = False
    return np.packbits(bits).tobytes().hex()
