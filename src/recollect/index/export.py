"""Write an index for other tools: Parquet with vectors, a map and neighbors; CSV; or COCO (JSON)."""

import csv
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32
from threadpoolctl import threadpool_limits

from recollect.core.files import atomic_path, write_json
from recollect.core.progress import progress
from recollect.core.seeding import numpy_generator
from recollect.core.validation import check_number, refuse
from recollect.index.annotations import LABELLED, labels_named
from recollect.index.index import Index
from recollect.index.picture import Picture

MapMethod = Literal["pca", "tsne"]
CocoKind = Literal["captions", "labels"]

_TSNE_ROWS = 50_000  # above, t-SNE takes hours
_BLOCK = 1_024
_EXACT, _STEPS = 512, 40  # width up to which all eigenvectors are computed; else steps of subspace iteration
_FACTS = ("width", "height", "taken", "camera", "folder", "phash")


def export_index(index: Index, out: Path, method: MapMethod = "pca", k: int = 10, coco: CocoKind = "captions") -> int:
    """Write the pictures of an index to one file; its ending says the format. Labels include those given by hand.

    ``.parquet``: id, captions, labels, source, path, width, height, taken, camera, folder, phash, metadata (JSON),
    image_vector, text_vector (null without a caption), x and y (a map of the image vectors), and neighbors: the k
    nearest other pictures as ``{"ids": row numbers, "distances": 1 - cosine}``, which embedding-atlas reads.
    ``.csv``: the same without vectors, map and neighbors; several captions, labels and paths as JSON lists.
    ``.json``: COCO captions (``images`` and ``annotations``), or COCO labels: ``categories``, and an annotation for
    each label of a picture, whose box is the whole picture. Tools that read boxes reject captions among them.

    Args:
        index: pictures that are changed meanwhile are written as they were, except on Milvus.
        out: the file.
        method: of the map: principal components, or t-SNE.
        k: neighbors of each picture.
        coco: what the annotations of ``.json`` are.

    Returns:
        How many pictures were written.

    Raises:
        UserError: an empty index, an unknown ending, or t-SNE of too many pictures.
    """
    endings = (".parquet", ".csv", ".json")
    check_number("--k", k, least=0)
    index = index.snapshot()
    refuse(
        (out.suffix not in endings, f"--out {out}: cannot be written; the name must end in {', '.join(endings)}"),
        (not out.parent.is_dir(), f"--out {out}: no such folder as {out.parent}"),
        (not len(index), f"{index.address}: is empty, so there is nothing to write"),
    )
    if out.suffix == ".parquet":
        return _write_parquet(index, out, method, k)
    return _write_csv(index, out) if out.suffix == ".csv" else _write_coco(index, out, coco)


def _write_parquet(index: Index, out: Path, method: MapMethod, k: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids, images = index.ids, index.vectors()
    long = f"t-SNE of {len(ids):,} pictures takes hours; up to {_TSNE_ROWS:,} it takes minutes. Use --map pca."
    refuse((method == "tsne" and len(ids) > _TSNE_ROWS, long))
    several, number = pa.list_(pa.string()), pa.int32()
    types = {"captions": several, "labels": several, "width": number, "height": number}
    names = ("id", "captions", "labels", "source", "path", *_FACTS, "metadata")
    facts = pa.schema([(name, types.get(name, pa.string())) for name in names])
    row_of = {id: row for row, id in enumerate(ids)}
    places = _plane(images, method)
    with atomic_path(out) as temporary, progress("write", len(ids), "pictures") as counter, ExitStack() as stack:
        writer = None
        for first, pictures in _blocks(index, ids):
            some = slice(first, first + len(pictures))
            table = pa.Table.from_pylist([_facts(each) for each in pictures], facts)
            captions = index.vectors([each.id for each in pictures], "text")
            flat = pa.array(np.ascontiguousarray(images[some], dtype=np.float32).reshape(-1))
            more: dict[str, Any] = {
                "image_vector": pa.FixedSizeListArray.from_arrays(flat, images.shape[1]),
                "text_vector": _lists_or_null(captions, np.asarray(captions.any(axis=1))),
                "x": pa.array(places[some, 0]),
                "y": pa.array(places[some, 1]),
                "neighbors": _neighbors(index, pictures, images[some], k, row_of),
            }
            for name, column in more.items():
                table = table.append_column(name, column)
            writer = writer or stack.enter_context(pq.ParquetWriter(temporary, table.schema, compression="zstd"))
            writer.write_table(table)
            counter.advance(len(pictures))
    return len(ids)


def _write_csv(index: Index, out: Path) -> int:
    names = ("id", "path", "captions", "labels", "source", *_FACTS, "metadata")
    with atomic_path(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for _, pictures in _blocks(index, index.ids):
            rows = ({**_facts(each), **_json(captions=each.captions, labels=each.labels)} for each in pictures)
            writer.writerows([row[name] for name in names] for row in rows)
    return len(index)


def _facts(picture: Picture) -> dict[str, Any]:
    """What the files say of a picture."""
    facts = {name: getattr(picture, name) for name in ("id", "captions", "labels", "source", *_FACTS)}
    return {**facts, "path": str(picture.path or "") or None, **_json(metadata=dict(picture.metadata))}


def _json(**values: Any) -> dict[str, str]:
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _write_coco(index: Index, out: Path, kind: CocoKind) -> int:
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    numbers: dict[str, int] = {}  # of labels; COCO counts categories from 1
    for _, pictures in _blocks(index, index.ids):
        for each in pictures:
            number = len(images)
            about = {"id": number, "file_name": str(each.path or each.id), "width": each.width, "height": each.height}
            images.append(about)
            if kind == "captions":
                found: list[dict[str, Any]] = [{"caption": caption} for caption in each.captions]
            else:
                width, height = each.width or 0, each.height or 0
                box = {"bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0}
                labels = dict.fromkeys(each.labels)
                found = [{"category_id": numbers.setdefault(name, len(numbers) + 1), **box} for name in labels]
            annotations += [
                {"id": len(annotations) + place, "image_id": number, **one} for place, one in enumerate(found, start=1)
            ]
    categories = {"categories": [{"id": id, "name": name} for name, id in numbers.items()]} if numbers else {}
    write_json(out, {"images": images, "annotations": annotations, **categories})
    return len(images)


def _blocks(index: Index, ids: list[str]) -> Iterator[tuple[int, list[Picture]]]:
    given = labels_named(index.annotations, LABELLED) or {}
    for first in range(0, len(ids), _BLOCK):
        pictures = index.pictures(ids[first : first + _BLOCK])
        yield first, [replace(each, labels=(*each.labels, *given.get(each.id, ()))) for each in pictures]


def _lists_or_null(vectors: np.ndarray, there: np.ndarray) -> Any:
    """Lists of any size: pyarrow before 26 cannot read fixed-size lists with gaps."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors[there], dtype=np.float32).reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(there * vectors.shape[1])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=pa.array(~there))


def _neighbors(index: Index, pictures: list[Picture], images: np.ndarray, k: int, row_of: dict[str, int]) -> Any:
    import pyarrow as pa

    kind = pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float32()))])
    has = np.flatnonzero(images.any(axis=1)).tolist()
    rows: list[dict[str, list[Any]]] = [{"ids": [], "distances": []} for _ in pictures]
    k = min(k, len(row_of) - 1)
    if k >= 1 and has:
        found = index.lookup(images[has], k, exclude=[pictures[row].id for row in has])
        for row, ids, scores in zip(has, found.ids.tolist(), found.scores.tolist(), strict=True):
            kept = [(row_of[id], max(0.0, 1 - score)) for id, score in zip(ids, scores, strict=True) if id]
            rows[row] = {"ids": [each for each, _ in kept], "distances": [distance for _, distance in kept]}
    return pa.array(rows, kind)


def _plane(images: Float32[np.ndarray, "rows width"], method: MapMethod) -> Float32[np.ndarray, "rows 2"]:
    """Image vectors in two dimensions."""
    count, width = images.shape
    total, products = np.zeros(width), np.zeros((width, width))
    for start in range(0, count, _BLOCK):
        block = np.asarray(images[start : start + _BLOCK], dtype=np.float64)
        total += block.sum(0)
        products += block.T @ block
    mean = total / count
    axes = _principal_axes(products / count - np.outer(mean, mean), 2 if method == "pca" else min(50, width))
    axes = axes * np.where(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])] < 0, -1, 1)  # a fixed sign
    blocks = [(images[start : start + _BLOCK] - mean) @ axes for start in range(0, count, _BLOCK)]
    reduced = np.concatenate(blocks).astype(np.float32)
    if method == "tsne" and count > 3:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (count - 1) / 3)
        reduced = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(reduced).astype(np.float32)
    plane = np.zeros((count, 2), dtype=np.float32)
    plane[:, : min(2, reduced.shape[1])] = reduced[:, :2]
    return plane


def _principal_axes(covariance: Float[np.ndarray, "width width"], kept: int) -> Float[np.ndarray, "width kept"]:
    """Eigenvectors of the largest eigenvalues, largest first; of a large matrix by subspace iteration.

    A map needs two of the starter's 1,665; while other work keeps the cores busy, all of them take half a minute.
    """
    if len(covariance) <= _EXACT:
        return np.linalg.eigh(covariance).eigenvectors[:, ::-1][:, :kept]
    basis = numpy_generator("map").normal(size=(len(covariance), kept + 8))
    with threadpool_limits(1, "blas"):  # of so few columns threads wait longer than they compute
        for _ in range(_STEPS):
            basis = np.linalg.qr(covariance @ basis)[0]
    return basis @ np.linalg.eigh(basis.T @ covariance @ basis).eigenvectors[:, ::-1][:, :kept]
