"""A memory as one Parquet file that other tools open: vectors, a map, and each row's neighbours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.memory.store import Memory

MapMethod = Literal["pca", "tsne"]

_TSNE_ROWS = 50_000  # above, t-SNE takes hours
_QUERIES = 1_024
_COLUMNS = ["id", "caption", "source", "path", "metadata", "image_vector", "text_vector", "has_text"]


def export_memory(memory: Memory, out: Path, method: MapMethod = "pca", k: int = 10) -> int:
    """Write a memory to a Parquet file.

    Columns: id, caption, source, path, metadata (JSON), image_vector, text_vector (null without a text), x and y (the
    image vectors in the plane), and neighbors: the k nearest other images as ``{"ids": row numbers, "distances": 1 −
    cosine}``, which embedding-atlas reads.

    Args:
        memory: what is written; rows that are changed meanwhile are written as they were.
        out: the file.
        method: of the map: principal components, or t-SNE.
        k: neighbours of each row; fewer where there are fewer.

    Returns:
        How many rows were written.

    Raises:
        UserError: an empty memory, another ending than .parquet, or t-SNE of too many rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if out.suffix != ".parquet":
        raise UserError(f"--out {out}: a memory is written as .parquet. Name a file that ends so.")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: no such folder as {out.parent}")
    if k < 0:
        raise UserError(f"--k {k}: at least 0")
    memory = memory.snapshot() if memory.backend.whole_commits else memory
    ids = [id for batch in memory.columns(["id"]) for id in batch["id"]]
    memory.check_k(1)
    if method == "tsne" and len(ids) > _TSNE_ROWS:
        raise UserError(
            f"t-SNE of {len(ids):,} rows takes hours; up to {_TSNE_ROWS:,} it takes minutes. Use --map pca."
        )
    row_of = {id: row for row, id in enumerate(ids)}
    places = _plane(memory, len(ids), method)
    written = 0
    with atomic_path(out) as temporary, progress("write", len(ids), "rows") as counter:
        writer = None
        try:
            for batch in _blocks(memory):
                count = len(batch["id"])
                rows = np.array([row_of[id] for id in batch["id"]])
                columns = {name: pa.array(batch[name], pa.string()) for name in ("id", "caption", "source", "path")}
                columns["metadata"] = pa.array(batch["metadata"], pa.string())
                columns["image_vector"] = _lists(batch["image_vector"])
                columns["text_vector"] = _lists_or_none(batch["text_vector"], np.array(batch["has_text"]))
                columns |= {"x": pa.array(places[rows, 0]), "y": pa.array(places[rows, 1])}
                columns["neighbors"] = _neighbours(memory, batch, k, row_of)
                table = pa.table(columns)
                writer = writer or pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table)
                written += count
                counter.advance(count)
        finally:
            if writer is not None:
                writer.close()
    return written


def _blocks(memory: Memory) -> Iterator[dict[str, Any]]:
    for batch in memory.columns(_COLUMNS):
        for start in range(0, len(batch["id"]), _QUERIES):
            yield {name: values[start : start + _QUERIES] for name, values in batch.items()}


def _lists(vectors: np.ndarray) -> Any:
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def _lists_or_none(vectors: np.ndarray, there: np.ndarray) -> Any:
    """Lists of any size: those of a fixed size with gaps between them cannot be read by pyarrow before 26."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors[there], dtype=np.float32).reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(there * vectors.shape[1])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=pa.array(~there))


def _neighbours(memory: Memory, batch: dict[str, Any], k: int, row_of: dict[str, int]) -> Any:
    import pyarrow as pa

    kind = pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float32()))])
    k = min(k, len(row_of) - 1)
    if k < 1:
        return pa.array([{"ids": [], "distances": []}] * len(batch["id"]), kind)
    found = memory.search(np.array(batch["image_vector"], dtype=np.float32), k + 1, exact=True)
    rows = []
    for own, ids, scores in zip(batch["id"], found.ids.tolist(), found.scores.tolist(), strict=True):
        others = [(row_of[id], max(0.0, 1 - score)) for id, score in zip(ids, scores, strict=True) if id != own][:k]
        rows.append({"ids": [row for row, _ in others], "distances": [distance for _, distance in others]})
    return pa.array(rows, kind)


def _plane(memory: Memory, count: int, method: MapMethod) -> Float32[np.ndarray, "rows 2"]:
    """Image vectors in two dimensions, in the order of `Memory.columns`."""
    width = memory.width
    total, products = np.zeros(width), np.zeros((width, width))
    for batch in memory.columns(["image_vector"]):
        block = np.asarray(batch["image_vector"], dtype=np.float64)
        total += block.sum(0)
        products += block.T @ block
    mean = total / count
    vectors = np.linalg.eigh(products / count - np.outer(mean, mean)).eigenvectors
    kept = 2 if method == "pca" else min(50, width)
    axes = vectors[:, ::-1][:, :kept]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])] < 0, -1, 1)  # one sign, every time
    blocks = [(np.asarray(batch["image_vector"]) - mean) @ axes for batch in memory.columns(["image_vector"])]
    reduced = np.concatenate(blocks).astype(np.float32)
    if method == "tsne" and count > 3:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (count - 1) / 3)
        reduced = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(reduced).astype(np.float32)
    plane = np.zeros((count, 2), dtype=np.float32)
    plane[:, : min(2, reduced.shape[1])] = reduced[:, :2]
    return plane
