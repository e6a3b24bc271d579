"""Names of pictures that stay with them: by file or by content, never by the number of a row."""

import hashlib
import os
from pathlib import Path

from recollect.core.types import Sample, Source
from recollect.data.sources.derived import Joined, Subset
from recollect.data.sources.table import TableSource


def picture_key(source: Source, index: int, original: bytes | Path | None) -> str | None:
    """A name that a picture keeps when rows are added, removed or sorted, and when the source is moved.

    Its own id where the source has a column of ids; the file below the source's folder, which may be a link to
    elsewhere; or a digest of its bytes. Two rows of one file have one key.

    Args:
        original: what `Source.original` returned.

    Returns:
        None where the source makes its pictures: there the sample's id is as stable.
    """
    if isinstance(source, Subset):
        return picture_key(source.source, int(source.indices[index]), original)
    if isinstance(source, Joined):
        inner, place = source._place(index)
        key = picture_key(inner, place, original)
        return None if key is None else f"{inner.name}:{key}"
    if not isinstance(source, TableSource):
        return None
    if source.columns.id:
        return str(source.table.data.column(source.columns.id)[int(source.rows[index])].as_py())
    if isinstance(original, Path):
        base, named = source.origin.base or Path(), source.named(index)
        assert isinstance(named, Path)
        for path, folder in ((os.path.abspath(named), os.path.abspath(base)), map(os.path.realpath, (named, base))):
            below = Path(os.path.relpath(path, folder))
            if below.parts[0] != "..":
                return below.as_posix()
        return str(original)
    return None if original is None else hashlib.blake2b(original, digest_size=12).hexdigest()


def sample_facts(source: Source, index: int, sample: Sample | None = None) -> str:
    """All that a source says of a picture (texts, class, other columns), as a text that changes when any of it does.

    Args:
        sample: as it was read; needed of sources that are no tables, which cannot be asked without making the picture.
    """
    if isinstance(source, Subset) and sample is None:
        return sample_facts(source.source, int(source.indices[index]))
    if isinstance(source, Joined) and sample is None:
        return sample_facts(*source._place(index))
    if isinstance(source, TableSource):
        row = int(source.rows[index])
        label, extra = int(source.labels[index]), {name: column[row].as_py() for name, column in source._extra.items()}
        return repr((source.texts(index), source.class_names[label : label + 1] if label >= 0 else (), extra))
    if sample is None:
        sample = source[index]
    return repr((sample.texts, sample.label, dict(sample.extra)))


def source_place(source: Source) -> str:
    """Where a source lies: a file, a folder, a hub id; its name where it lies nowhere."""
    if isinstance(source, Subset):
        return source_place(source.source)
    if not isinstance(source, TableSource):
        return source.name
    where, base = source.origin.where, source.origin.base
    if base is None:
        shards = [os.path.abspath(file) for file in source.origin.files if file.suffix == ".tar"]
        if not shards:
            return where
        return shards[0] if len(shards) == 1 else os.path.commonpath(shards)
    folder = Path(os.path.abspath(base))
    if folder.name == where:
        return str(folder)
    return str(folder / where) if (folder / where).exists() else str(folder)
