"""Facets of an index (counts per folder, month, camera, label and source), and sort orders for browsing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float32

from recollect.index import annotations
from recollect.index.filters import Filter

if TYPE_CHECKING:
    from recollect.index.index import Index

FACETS = ("folder", "month", "camera", "label", "source")
"""Built-in facets. A folder's count includes its subfolders; a month is ``2022-07``."""

Arrangement = Literal["newest", "oldest", "name"]

_COLUMN = {"folder": "folder", "month": "taken", "camera": "camera", "label": "labels", "source": "files"}


def count_facets(index: "Index", names: Sequence[str], where: str | Filter | None) -> dict[str, list[tuple[str, int]]]:
    """Implement `Index.facets`."""
    columns = list(dict.fromkeys(_COLUMN[name] for name in names if name in _COLUMN))
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for table in index.scan(columns, where) if columns else ():
        for name in names:
            if name in _COLUMN:
                counts[name].update(dict(_counted(name, table[_COLUMN[name]])))
    by_hand = {
        name: annotations.labels_in_column(index.annotations, name) or {} for name in names if name not in _COLUMN
    }
    if any(by_hand.values()) or (where is not None and not columns):  # without columns, no scan checked the filter
        known = {*(index.ids if where is None else index.ids_where(where))}
        for name, labels in by_hand.items():
            counts[name].update(value for id, values in labels.items() if id in known for value in set(values))
    return {
        name: sorted(each.items(), key=lambda pair: (-pair[1], pair[0])) if name != "month"
        else sorted(each.items(), reverse=True)
        for name, each in counts.items()
    }  # fmt: skip


def sorted_ids(index: "Index", by: Arrangement, where: str | Filter | None = None) -> list[str]:
    """Return the ids of all pictures, or those matching a filter, sorted by date or file name.

    Pictures without a date come last. Ties keep the row order.

    Raises:
        UserError: the filter is malformed, or nothing satisfies it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = list(index.scan(["id", "files" if by == "name" else "taken"], where))
    if not tables:
        return []
    table = pa.concat_tables(tables)
    if by == "name":
        first = pc.list_flatten(pc.list_slice(table["files"], 0, 1, return_fixed_size_list=True))
        keys = pc.replace_substring_regex(pc.struct_field(first, "key"), ".*/", "")
    else:
        keys = table["taken"]
    known = pc.if_else(pc.equal(keys, ""), None, keys)
    order = pc.sort_indices(known, sort_keys=[("", "descending" if by == "newest" else "ascending")])
    return list(table["id"].take(order).to_pylist())


def aspect_ratios(index: "Index") -> Float32[np.ndarray, " rows"]:
    """Return width / height of each picture in the order of `Index.ids`; 1 if unknown."""
    sizes = ((row["width"], row["height"]) for row in index.store.dicts(["width", "height"]))
    return np.array([width / height if width > 0 < height else 1.0 for width, height in sizes], dtype=np.float32)


def _counted(name: str, column: Any) -> Iterable[tuple[str, int]]:
    """Count the values of a facet in one batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == "source":  # count a picture once per source, not once per file
        column = column.combine_chunks()
        sources = pc.struct_field(pc.list_flatten(column), "source")
        pairs = pa.table({"row": pc.list_parent_indices(column), "source": sources})
        column = pairs.group_by(["row", "source"]).aggregate([])["source"]
    elif name == "label":
        column = pc.list_flatten(column)
    elif name == "month":
        column = pc.utf8_slice_codeunits(column, 0, 7)
    counts = Counter({each["values"]: each["counts"] for each in pc.value_counts(column).to_pylist() if each["values"]})
    if name != "folder":
        return counts.items()
    trees = Counter[str]()
    for folder, count in counts.items():
        parts = folder.split("/")
        trees.update({"/".join(parts[:depth]): count for depth in range(1, len(parts) + 1)})
    return trees.items()
