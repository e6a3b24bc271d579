"""Summary of an index."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recollect.index.rows import Record
from recollect.index.stores.ivf import Accelerator

if TYPE_CHECKING:
    from recollect.index.index import Index


@dataclass(frozen=True)
class IndexInfo:
    """Counts and settings of an index.

    Attributes:
        pictures, texts: number of pictures, and of pictures with a caption.
        captions: number of captions.
        sources: number of pictures per source.
        places: folders, files or hub ids per source.
        columns: filter names with their type.
        removed: number of pictures that the user removed.
    """

    address: str
    pictures: int
    texts: int
    captions: int
    sources: dict[str, int]
    places: dict[str, tuple[str, ...]]
    columns: dict[str, str]
    removed: int
    record: Record
    version: int
    accelerators: tuple[Accelerator, ...] = ()


def index_info(index: "Index") -> IndexInfo:
    """Implement `Index.info`."""
    sources, places, captions = Counter[str](), dict[str, dict[str, None]](), 0
    for table in index.store.scan(["files", "captions"]):
        captions += sum(map(len, table["captions"].to_pylist()))
        for files in table["files"].to_pylist():
            sources.update({file["source"] for file in files})
            for file in files:
                places.setdefault(file["source"], {})[file["place"]] = None
    removed = len(index.store.ids(removed=True))
    return IndexInfo(
        index.address, len(index), index.texts, captions, dict(sources),
        {source: tuple(filter(None, each)) for source, each in places.items()},
        index.columns(), removed, index.record, index.version, index.accelerators(),
    )  # fmt: skip
