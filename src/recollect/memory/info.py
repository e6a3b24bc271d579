"""What a memory holds, counted."""

import json
from collections import Counter
from dataclasses import dataclass, field

from recollect.memory.backends.base import Backend
from recollect.memory.backends.cells import IndexRecord


@dataclass(frozen=True)
class MemoryInfo:
    """What a memory holds.

    Attributes:
        texts: rows that have a text.
        sources: rows of each source.
        places: where each source lies.
        precision: that vectors are rounded to.
        stored: precision of the numbers on disk.
        prefix: how texts are read by a model with prefix tokens.
        removed: pictures that were removed and stay away, of each source.
    """

    address: str
    rows: int
    texts: int
    width: int
    model: str
    model_name: str
    version: int
    prefix: str | None
    precision: str
    stored: str
    sources: dict[str, int]
    places: dict[str, tuple[str, ...]]
    indexes: tuple[IndexRecord, ...] = ()
    removed: dict[str, int] = field(default_factory=dict)


def memory_info(backend: Backend) -> MemoryInfo:
    """Count what is there."""
    sources: dict[str, int] = {}
    places: dict[str, dict[str, None]] = {}
    for batch in backend.columns(["source", "place"], {}):
        for source, place in zip(batch["source"], batch["place"], strict=True):
            sources[source] = sources.get(source, 0) + 1
            places.setdefault(source, {})[place] = None
    record = backend.record
    return MemoryInfo(
        address=backend.address,
        rows=len(backend),
        texts=backend.count_texts(),
        width=record.width,
        model=record.model,
        model_name=record.model_name,
        version=backend.version,
        prefix=record.prefix,
        precision=record.precision,
        stored=backend.stored_precision,
        sources=sources,
        places={source: tuple(filter(None, known)) for source, known in places.items()},
        indexes=tuple(backend.indexes()),
        removed=dict(Counter(each.source for each in backend.removals())),
    )


def metadata_keys(backend: Backend) -> tuple[str, ...]:
    """Every key of the rows' metadata, sorted."""
    columns = backend.columns(["metadata"], {})
    return tuple(sorted({key for batch in columns for text in batch["metadata"] for key in json.loads(text)}))
