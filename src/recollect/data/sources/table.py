"""Source of samples in a memory-mapped table, decoded on demand."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recollect.core.content import content_hash, hash_of, portable_hash, reads_every_byte
from recollect.core.errors import UserError
from recollect.core.types import ImageLike, Kind, Sample, Source
from recollect.core.validation import refuse
from recollect.data.sources.columns import Columns, is_bytes, is_text, text_reader
from recollect.data.sources.images import BrokenImageError, decode
from recollect.data.sources.tars import DAMAGE_KEY

if TYPE_CHECKING:
    import datasets

_HASHED_IMAGES = 1000
"""Number of image files hashed for the content of a table of paths."""

_CHECKED_IMAGES = 100_000
"""Number of image files checked for changes."""

_EMPTY = {"bytes": None, "path": None}

_HASHED_ROWS = 256
"""Number of rows hashed for the content of a hub data set."""


@dataclass(frozen=True)
class Origin:
    """Origin of a table.

    Attributes:
        where: name for error messages.
        files: files with the table's content; empty for a hub data set that is not cached.
        base: folder that image paths are relative to; None if the table contains image bytes.
        class_names: names from the ``classnames.txt`` of WebDataset shards, in label order.
        anywhere: whether the table may refer to pictures outside its folder.
    """

    where: str
    files: tuple[Path, ...]
    base: Path | None = None
    class_names: tuple[str, ...] = ()
    anywhere: bool = False


@dataclass(eq=False)
class TableSource(Source):
    """Selected rows of a table as a `Source`.

    Attributes:
        name: unique within a run.
        kind: whether texts are captions, or synonyms of a class.
        class_names: readable class names in label order.
        table: all rows, memory-mapped.
        rows: table row of each sample, int64.
        labels: label of each sample, int64.
        columns: the columns to use.
        origin: origin of the table.
        repeats: all rows with the same picture, by the first of them; each has captions.
    """

    name: str
    kind: Kind = field()
    class_names: tuple[str, ...] = field()
    table: "datasets.Dataset"
    rows: np.ndarray
    labels: np.ndarray = field()
    columns: Columns
    origin: Origin
    repeats: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where, columns = self.origin.where, self.columns
        for name in self._image_columns:
            image = self.table.data.column(name).type
            unsupported = not (is_bytes(image) or is_text(image) or pa.types.is_struct(image))
            refuse((unsupported, f"{where}: column '{name}' contains {image}, not pictures"))
        if columns.id is not None:
            duplicates = f"{where}: column '{columns.id}' has duplicates; ids must be unique"
            refuse((not unique(self.table, columns.id), duplicates))
        if not self.origin.anywhere and self.origin.base is not None:
            for name in self._image_columns:
                self._refuse_outside_paths(name, self.origin.base)

    def __repr__(self) -> str:
        classes = f", {len(self.class_names):,} classes" if self.class_names else ""
        return f"TableSource({self.name!r}: {len(self):,} samples, {self.kind}s{classes})"

    @property
    def _image_columns(self) -> list[str]:
        """Image columns; each row's picture is in the first nonempty one."""
        assert self.columns.image is not None  # by Columns.resolve
        return self.columns.image.split(",")

    def _refuse_outside_paths(self, name: str, base: Path) -> None:
        """Reject paths outside the table's folder: a downloaded table must not be able to show private files."""
        column = self.table.data.column(name)
        if pa.types.is_struct(column.type):
            if column.type.get_field_index("path") < 0 or column.type.get_field_index("bytes") < 0:
                return
            inside = pc.is_valid(pc.struct_field(column, "bytes"))
            column = pc.if_else(inside, None, pc.struct_field(column, "path"))
        if not is_text(column.type):
            return
        column = column.take(pa.array(self.rows))  # only paths; taking image bytes would copy them and fail from 2 GiB
        suspicious = pc.fill_null(pc.match_substring_regex(column, r"^[/\\]|^[A-Za-z]:|\.\."), False)
        folder = os.path.abspath(base)
        for position in np.flatnonzero(suspicious.to_numpy()).tolist():
            text = column[position].as_py()
            path = os.path.abspath(os.path.join(folder, text))
            if "://" not in text and os.path.commonpath([folder, path]) != folder:
                raise UserError(
                    f"{self.origin.where}, row {self.rows[position]}: {text} is outside the table's folder. If you "
                    f"trust the table, allow it with {self.origin.where}?paths=anywhere"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def __getstate__(self) -> dict[str, Any]:
        # Drop cached Arrow columns, which would be copied to workers; the table is sent as a path.
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """See `Source.read`.

        Raises:
            IndexError: the index is out of range.
            BrokenImageError: the picture cannot be read; the message names its row and file.
        """
        index = self.position(index)
        row = int(self.rows[index])
        id = str(self._readers["id"](row)) if self.columns.id else str(row)
        more = {key: column[row].as_py() for key, column in self._extra.items()} if extra else {}
        image = self._image(row, needed)
        return Sample(image, self.texts(index), int(self.labels[index]), self.name, self.kind, id, more)

    def original(self, index: int) -> bytes | Path | None:
        picture = self._unresolved(index)
        return picture.resolve() if isinstance(picture, Path) else picture

    def _unresolved(self, index: int) -> bytes | Path | None:
        """Same as `original`, but without resolving links."""
        value = self._readers["image"](int(self.rows[index]))
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        return (self.origin.base or Path()) / value if isinstance(value, str) else value

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        """Return a key of the picture that is stable across runs.

        It is the id if there is an id column, else the file's path relative to the source's folder, else a digest of
        the image bytes; empty without a picture.
        """
        if self.columns.id:
            return str(self._readers["id"](int(self.rows[index])))
        if isinstance(original, Path):
            base, file = self.origin.base or Path(), self._unresolved(index)
            assert isinstance(file, Path)
            for path, folder in ((os.path.abspath(file), os.path.abspath(base)), map(os.path.realpath, (file, base))):
                below = Path(os.path.relpath(path, folder))
                if below.parts[0] != "..":
                    return below.as_posix()
            return str(original)
        return "" if original is None else hash_of(original, 12)

    def facts(self, index: int, sample: Sample | None = None) -> str:
        row, label = int(self.rows[index]), int(self.labels[index])
        extra = {name: column[row].as_py() for name, column in self._extra.items()}
        return repr((self.texts(index), self.class_names[label : label + 1] if label >= 0 else (), extra))

    @property
    def place(self) -> str:
        where, base = self.origin.where, self.origin.base
        if base is None:
            shards = [os.path.abspath(file) for file in self.origin.files if file.suffix == ".tar"]
            if not shards:
                return where
            return shards[0] if len(shards) == 1 else os.path.commonpath(shards)
        folder = Path(os.path.abspath(base))
        if folder.name == where:
            return str(folder)
        return str(folder / where) if (folder / where).exists() else str(folder)

    def texts(self, index: int) -> tuple[str, ...]:
        """Return the captions, or synonyms of the class, of one sample without opening its image."""
        reader, row = self._readers.get("texts"), int(self.rows[index])
        return tuple(text for each in self.repeats.get(row, (row,)) for text in reader(each)) if reader else ()

    def values(self, key: str) -> list[Any]:
        """Return ``extra[key]`` of all samples without opening images; None if there is no such column."""
        column = self._extra.get(key)
        return [None] * len(self) if column is None else column.take(pa.array(self.rows)).to_pylist()

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(content_hash([*self.origin.files, *self._image_files()]).encode(), digest_size=16)
        digest.update(repr((self.kind, self.class_names, self.columns)).encode())
        digest.update(self.rows.tobytes())
        digest.update(self.labels.tobytes())
        digest.update(repr(self.repeats).encode() if self.repeats else b"")
        return digest.hexdigest()

    @property
    def content(self) -> str:
        if self._from_hub:
            return self._sample_digest()  # file contents of local copies may differ between machines
        return portable_hash([*self.origin.files, *self._image_files(_HASHED_IMAGES)])

    @property
    def sampled_files(self) -> list[Path]:
        files = self.origin.files
        if self._from_hub:  # a revision's files do not change
            return []
        hashed, pictures = self._image_files(_HASHED_IMAGES), self._image_files(_CHECKED_IMAGES)
        whole = len(hashed) == len(pictures) and reads_every_byte([*files, *pictures])
        return [] if whole else [*files, *pictures]

    @property
    def _from_hub(self) -> bool:
        return self.origin.base is None and all(file.suffix == ".arrow" for file in self.origin.files)

    def _sample_digest(self) -> str:
        """Return a digest of some evenly spread rows."""
        positions = np.unique(np.linspace(0, len(self) - 1, min(len(self), _HASHED_ROWS)).astype(np.int64))
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.table.column_names):
            column = self.table.data.column(name)
            values = [column[row].as_py() for row in self.rows[positions].tolist()]
            digest.update(repr((name, values)).encode(errors="surrogatepass"))
        return digest.hexdigest()

    def _image_files(self, limit: int | None = None) -> list[Path]:
        """Return the image files of all rows, or of about ``limit`` evenly spread rows."""
        base, columns = self.origin.base, [self.table.data.column(name) for name in self._image_columns]
        if base is None:
            return []
        rows = pa.array(self.rows[:: max(1, len(self.rows) // limit) if limit else 1])
        texts = [text for column in columns if is_text(column.type) for text in column.take(rows).to_pylist() if text]
        return [path for path in (base / text for text in texts) if path.is_file()]

    @property
    def _texts_column(self) -> str | None:
        return self.columns.caption if self.kind == "caption" else self.columns.synonyms

    @cached_property
    def _readers(self) -> dict[str, Callable[[int], Any]]:
        """Readers of Arrow cells, which take 1 µs per cell; reading a row through ``datasets`` takes 40 µs."""
        table, columns = self.table.data, self.columns
        images = [table.column(name) for name in self._image_columns]

        def picture(row: int) -> Any:
            values = (column[row].as_py() for column in images)
            return next((value for value in values if value not in (None, _EMPTY)), None)

        readers: dict[str, Callable[[int], Any]] = {"image": picture}
        if columns.id:
            ids = table.column(columns.id)
            readers["id"] = lambda row: ids[row].as_py()
        if DAMAGE_KEY in self.table.column_names:
            damage = table.column(DAMAGE_KEY)
            readers["damage"] = lambda row: damage[row].as_py()
        if self._texts_column:
            readers["texts"] = text_reader(table, self._texts_column)
        return readers

    @cached_property
    def _extra(self) -> dict[str, pa.ChunkedArray]:
        columns, table = self.columns, self.table.data
        used = {DAMAGE_KEY, columns.id, columns.class_name, columns.split, columns.domain, columns.label}
        used |= {*self._image_columns, *(self._texts_column or "").split(",")}
        names = [name for name in self.table.column_names if name not in used]
        extra = {name: table.column(name) for name in names if not _holds_bytes(table.column(name).type)}
        if columns.domain:
            extra["domain"] = table.column(columns.domain)
        if columns.label and pa.types.is_nested(table.column(columns.label).type):
            extra["labels"] = table.column(columns.label)
        return extra

    def _image(self, row: int, needed: int) -> ImageLike:
        value = self._readers["image"](row)
        where = f"{self.origin.where}, row {row}"
        if "damage" in self._readers and (damage := self._readers["damage"](row)):
            raise BrokenImageError(f"{where}: {damage}")
        if isinstance(value, dict):
            path, value = value.get("path"), value.get("bytes")
            where = f"{where} ({path})" if path else where
            value = path if value is None else value
        elif isinstance(value, str):
            where = f"{where} ({value})"
        if value is None:
            raise BrokenImageError(f"{where}: no picture")
        return decode(self._path(value, where) if isinstance(value, str) else value, where, needed=needed)

    def _path(self, text: str, where: str) -> Path:
        url, relative = "://" in text, self.origin.base is None and not Path(text).is_absolute()
        if url or relative:
            raise BrokenImageError(f"{where}: a {'URL' if url else 'relative path'}. Download the picture first.")
        return (self.origin.base or Path()) / text


def _holds_bytes(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return any(_holds_bytes(field.type) for field in type)
    return is_bytes(type) or (pa.types.is_list(type) and _holds_bytes(type.value_type))


def unique(table: "datasets.Dataset", name: str) -> bool:
    """Whether all values of a column are distinct."""
    return bool(pc.count_distinct(table.data.column(name)).as_py() == len(table))
