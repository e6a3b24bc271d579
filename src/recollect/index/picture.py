"""Pictures of an index and the files they come from."""

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
"""Facts stored for every picture, with the values for "unknown"."""

TRASH = ".recollect-trash"
"""Folder for deleted files at the top level of their source; sources skip hidden folders."""


@dataclass(frozen=True)
class File:
    """One sample of a source that contains a picture.

    Attributes:
        source: name of the source.
        key: stable name of the sample within the source: a relative path, an id, or a digest.
        path: path of the file; empty if the source is not a folder of files.
        place: folder, file or hub id of the source.
        size: file size in bytes, 0 if unknown.
        mtime: modification time in nanoseconds, 0 if unknown.
        ctime: time of the last change to the file's name, location or content, in nanoseconds.
        stamp: changes when the file or its annotations in the source change.
        said: JSON with the captions, labels, metadata, date and camera from this sample.
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
        """Source and key."""
        return self.source, self.key

    @property
    def folder(self) -> str:
        """Folder within the source; for a top-level file the name of the source folder; "" without a file."""
        folder = Path(self.key).parent.as_posix() if self.path else ""
        return Path(self.place).name if folder == "." else folder

    @property
    def key_stays_inside(self) -> bool:
        """Whether the key, as a path, cannot leave the source's folder. A downloaded table chooses its keys."""
        return not Path(self.key).is_absolute() and ".." not in Path(self.key).parts

    @property
    def in_trash(self) -> bool:
        """Whether the file exists in a trash folder."""
        path = Path(self.path)
        return path.parent.name == TRASH and path.is_file()


@dataclass(frozen=True)
class Picture:
    """One row of an index; `open` reads the pixels.

    Attributes:
        id: digest of the decoded pixels (of the vector or text if there are no pixels).
        captions: all captions; those set with `Index.set_captions` first.
        labels: class names from its sources.
        files: samples with this picture.
        width, height: in pixels; 0 if unknown.
        taken: date taken (EXIF), as ``2022-07-01T12:00:00``; empty if unknown.
        camera: maker and model (EXIF).
        folder: folder of its first file within the source, such as ``Norway/Bergen``; filters also match each path
            component and parent folder.
        phash: perceptual hash, 16 hexadecimal digits.
        metadata: user-defined columns.
        captioned_by: model that wrote the captions set with `Index.set_captions`, if any.
        removed: whether the user removed it.
        where: how messages refer to it.
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
        """First caption, or an empty string."""
        return self.captions[0] if self.captions else ""

    @property
    def source(self) -> str:
        """Source of its first file, or an empty string."""
        return self.files[0].source if self.files else ""

    @property
    def path(self) -> Path | None:
        """First file that exists, else the first file; None without files."""
        paths = [Path(file.path) for file in self.files if file.path]
        return next((path for path in paths if path.exists()), paths[0] if paths else None)

    def encoded(self) -> bytes | None:
        """Return the encoded bytes from the index or from the file; None if there are none."""
        stored = self._bytes()
        return self._file_bytes() if stored is None else stored

    def _file_bytes(self) -> bytes | None:
        try:
            return None if self.path is None else self.path.read_bytes()
        except OSError as error:
            raise BrokenImageError(f"{self.where}: cannot be read ({error.strerror})") from None

    def read(self) -> ImageLike:
        """Return the input of an image tower: the decoded picture, or an array from the source of the index.

        Raises:
            BrokenImageError: see `open`.
        """
        return self.open() if self._read is None else self._read()

    def open(self, needed: int = 0) -> Image.Image:
        """Decode the picture.

        Args:
            needed: shorter side in pixels that the caller needs; larger JPEGs are decoded faster at reduced size. 0
                decodes at full size.

        Raises:
            BrokenImageError: there is no stored picture and its file is missing, damaged or has different pixels now;
                or it is a vector, not a picture.
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
            raise BrokenImageError(f"{self.where}: {self.path} holds another picture now. Run `recollect index add`.")
        return picture

    @property
    def distinct_files(self) -> list[File]:
        """Files without duplicate paths."""
        return list({(each.path or (each.source, each.key)): each for each in self.files}.values())

    def intact_files(self) -> list[File]:
        """Return the files on disk that still contain these pixels, including files rewritten since indexing."""
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
    """Return whether a file was modified after it was indexed, so its pixels may differ."""
    now = Path(file.path).stat()
    return bool(file.mtime) and (now.st_size, now.st_mtime_ns) != (file.size, file.mtime)


def picture_of(
    row: Mapping[str, Any],
    address: str,
    stored: Callable[[str], bytes | None],
    read: Callable[[str], ImageLike] | None = None,
) -> Picture:
    """Return the `Picture` for a row.

    Args:
        row: values of `FACTS` by column name.
        address: address of the index, for messages.
        stored: returns the encoded picture stored in the index for an id, or None.
        read: returns the picture for an id, if the index reads pictures from a source.
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
    """Encode a picture as PNG."""
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def phash_of(image: ImageLike) -> str:
    """Compute the perceptual hash of a picture (pHash; Zauner, 2010).

    Its bits tell which of the 64 lowest cosine frequencies of the gray picture are above their median. Resizing and
    re-encoding change few bits.

    Returns:
        16 hexadecimal digits; empty if all pixels are equal, or for a vector.
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
