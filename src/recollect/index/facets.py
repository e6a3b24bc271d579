"""What an index can be browsed by: counts of folders, months, cameras, labels and sources, and orders."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

from recollect.index import annotations
from recollect.index.contents import IndexContents
from recollect.index.filters import Filter

FACETS = ("folder", "month", "camera", "label", "source")
"""Built-in facets. A folder's count includes the folders below it; a month is ``2022-07``."""

Arrangement = Literal["newest", "oldest", "name"]

_COLUMN = {"folder": "folder", "month": "taken", "camera": "camera", "label": "labels", "source": "files"}


def count_facets(
    index: IndexContents, names: Sequence[str], where: str | Filter | None
) -> dict[str, list[tuple[str, int]]]:
    """The values of each facet with how many pictures have them, the most frequent first; months the latest first.

    Args:
        names: some of `FACETS`, or columns of labels given by hand, such as ``clicked``.
        where: count only pictures that satisfy a filter.

    Raises:
        UserError: the filter is malformed, or nothing satisfies it.
    """
    columns = list(dict.fromkeys(_COLUMN[name] for name in names if name in _COLUMN))
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    if where is not None:
        index.ids_where(where)  # raises the error that says why nothing is left
    for table in index.scan(columns, where) if columns else ():
        for name in names:
            if name in _COLUMN:
                counts[name].update(dict(_counted(name, table[_COLUMN[name]])))
    for name in names:
        if name not in _COLUMN:
            counts[name].update(_given(index, name, where))
    return {name: _sorted(name, each) for name, each in counts.items()}


def arranged(index: IndexContents, by: Arrangement, where: str | Filter | None = None) -> list[str]:
    """Ids of all pictures, or of those that satisfy a filter, by date or file name; without a date they come last.

    Pictures of the same date or name stay in the order of the rows.

    Raises:
        UserError: the filter is malformed, or nothing satisfies it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids, keys = list[Any](), list[Any]()
    for table in index.scan(["id", "files" if by == "name" else "taken"], where):
        ids += table["id"].chunks
        keys += [_file_names(chunk) for chunk in table["files"].chunks] if by == "name" else table["taken"].chunks
    all_ids = pa.chunked_array(ids, pa.string()).combine_chunks()
    column = pa.chunked_array(keys, pa.string()).combine_chunks()
    if where is not None and not len(all_ids):
        index.ids_where(where)
    known = pc.if_else(pc.equal(column, ""), None, column)
    if known.null_count == len(known):
        return list(all_ids.to_pylist())
    order = pc.rank(known, "descending" if by == "newest" else "ascending", tiebreaker="first")
    out = np.empty(len(all_ids), dtype=np.int64)
    out[order.to_numpy() - 1] = np.arange(len(all_ids))
    return list(all_ids.take(pa.array(out)).to_pylist())


def aspect_ratios(index: IndexContents) -> Float32[np.ndarray, " rows"]:
    """Width over height of each picture in the order of `Index.ids`; 1 where unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = list(index.scan(["id", "width", "height"]))
    if not tables:
        return np.empty(0, dtype=np.float32)
    table = pa.concat_tables(tables)
    width, height = (table[name].to_numpy().astype(np.float32) for name in ("width", "height"))
    ratios = np.where((width > 0) & (height > 0), width / np.maximum(height, 1), 1).astype(np.float32)
    scanned, ids = table["id"].combine_chunks(), pa.array(index.ids, pa.string())
    if ids.equals(scanned):
        return ratios
    found = pc.index_in(ids, value_set=scanned).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(found >= 0, ratios[found], np.float32(1))


def _counted(name: str, column: Any) -> Iterable[tuple[str, int]]:
    """The values of a facet in one batch."""
    import pyarrow.compute as pc

    if name == "source":
        return _sources(column)
    if name == "label":
        column = pc.list_flatten(column)
    elif name == "month":
        column = pc.utf8_slice_codeunits(column, 0, 7)
    found = pc.value_counts(column.combine_chunks())
    pairs = zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
    there = [(value, count) for value, count in pairs if value]
    return _trees(there) if name == "folder" else there


def _trees(pairs: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    found = Counter[str]()
    for folder, count in pairs:
        parts = folder.split("/")
        for depth in range(1, len(parts) + 1):
            found["/".join(parts[:depth])] += count
    return found.items()


def _sources(column: Any) -> Iterable[tuple[str, int]]:
    """A picture counts once for each of its sources, however many files it has there."""
    import pyarrow.compute as pc

    found = Counter[str]()
    for chunk in column.chunks:
        names = pc.dictionary_encode(pc.struct_field(pc.list_flatten(chunk), "source"))
        rows = pc.list_parent_indices(chunk).to_numpy().astype(np.int64)
        known = names.dictionary.to_pylist()
        pairs = np.unique(rows * max(1, len(known)) + names.indices.to_numpy().astype(np.int64))
        values, counts = np.unique(pairs % max(1, len(known)), return_counts=True)
        found.update({known[value]: int(count) for value, count in zip(values, counts, strict=True)})
    return found.items()


def _given(index: IndexContents, name: str, where: str | Filter | None) -> Counter[str]:
    labels = annotations.labels_named(index.annotations, name) or {}
    known = labels and {str(id) for table in index.scan(["id"], where) for id in table["id"].to_pylist()}
    return Counter(value for id, values in labels.items() if id in known for value in set(values))


def _file_names(chunk: Any) -> Any:
    """The name of each picture's first file; empty for a picture without files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
    first = np.cumsum(counts) - counts
    keys = pc.struct_field(pc.list_flatten(chunk), "key")
    names = pc.replace_substring_regex(keys, ".*/", "")
    places = pa.array(np.where(counts > 0, first, 0), mask=counts == 0)
    return pc.fill_null(names.take(places), "") if len(names) else pa.array([""] * len(chunk), pa.string())


def _sorted(name: str, counts: Counter[str]) -> list[tuple[str, int]]:
    if name == "month":
        return sorted(counts.items(), reverse=True)
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))
