"""Rows of columns, as readers see them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from recollect.memory.rows import Item


def as_item(row: Mapping[str, Any], address: str) -> Item:
    """A row of columns as a reader sees it."""
    path = Path(row["path"]) if row.get("path") else None
    image = row.get("image") or path
    metadata = row["metadata"]
    if not isinstance(metadata, Mapping):
        metadata = json.loads(metadata)
    where, content = f"{address}, row '{row['id']}'", row.get("stamp", "").partition("-")[0]
    return Item(row["id"], row["caption"], row["source"], metadata, image, where, path, content, row.get("digest", ""))


def vectors_of(column: Any) -> Float32[np.ndarray, "rows width"]:
    """A fixed-size list column as an array, as it is kept; one of float32 without copying."""
    values = column.flatten().to_numpy(zero_copy_only=False)
    return values.astype(np.float32, copy=False).reshape(len(column), -1)
