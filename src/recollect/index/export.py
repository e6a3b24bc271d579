"""Export an index as Parquet with vectors, CSV, or COCO (JSON)."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.core.cells import write_cells
from recollect.core.files import atomic_path, write_json
from recollect.core.progress import progress
from recollect.core.validation import refuse
from recollect.index.annotations import LABELED, labels_in_column
from recollect.index.index import Index
from recollect.index.picture import PICTURE_FACTS, Picture

CocoKind = Literal["captions", "labels"]

_BLOCK = 1_024
_FACTS = tuple(PICTURE_FACTS)


def export_index(index: Index, out: Path, coco: CocoKind = "captions", ids: Sequence[str] | None = None) -> int:
    """Write the pictures of an index to one file in the format of its suffix. Labels include manual labels.

    ``.parquet``: id, captions, labels, source, path, width, height, taken, camera, folder, phash, metadata (JSON),
    image_vector and text_vector (null without a caption), e.g. for a map in embedding-atlas.
    ``.csv``: the same without vectors; captions and labels are JSON lists. The path is that of the first file.
    ``.json``: COCO captions (``images`` and ``annotations``); or COCO labels: ``categories``, and one annotation per
    label with the whole picture as its box. They are separate formats since tools that read boxes reject captions.

    Args:
        index: exported as a snapshot, except on Milvus, where concurrent changes may be included.
        out: output file.
        coco: type of the annotations in ``.json``.
        ids: export only these pictures, in this order.

    Returns:
        Number of pictures written.

    Raises:
        UserError: an empty index, empty ``ids``, an unknown suffix, or a missing folder.
    """
    endings = (".parquet", ".csv", ".json")
    index = index.snapshot()
    refuse(
        (out.suffix not in endings, f"--out {out}: cannot be written; the name must end in {', '.join(endings)}"),
        (not out.parent.is_dir(), f"--out {out}: no such folder as {out.parent}"),
        (not len(index), f"{index.address}: the index is empty"),
        (ids is not None and not len(ids), "no pictures to export"),
    )
    wanted = index.ids if ids is None else list(ids)
    if out.suffix == ".parquet":
        _write_parquet(index, wanted, out)
    elif out.suffix == ".csv":
        _write_csv(index, wanted, out)
    else:
        _write_coco(index, wanted, out, coco)
    return len(wanted)


def _write_parquet(index: Index, wanted: Sequence[str], out: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    several, number = pa.list_(pa.string()), pa.int32()
    types = {"captions": several, "labels": several, "width": number, "height": number}
    names = ("id", "captions", "labels", "source", "path", *_FACTS, "metadata")
    facts = pa.schema([(name, types.get(name, pa.string())) for name in names])
    with atomic_path(out) as temporary, progress("write", len(wanted), "pictures") as counter, ExitStack() as stack:
        writer = None
        for pictures in _blocks(index, wanted):
            ids = [each.id for each in pictures]
            images, captions = index.vectors(ids), index.vectors(ids, "text")
            table = pa.Table.from_pylist([_facts(each) for each in pictures], facts)
            flat = pa.array(np.ascontiguousarray(images, dtype=np.float32).reshape(-1))
            table = table.append_column("image_vector", pa.FixedSizeListArray.from_arrays(flat, images.shape[1]))
            texts = _lists_or_null(captions, np.asarray(captions.any(axis=1)))
            table = table.append_column("text_vector", texts)
            writer = writer or stack.enter_context(pq.ParquetWriter(temporary, table.schema, compression="zstd"))
            writer.write_table(table)
            counter.advance(len(pictures))


def _write_csv(index: Index, wanted: Sequence[str], out: Path) -> None:
    names = ("id", "path", "captions", "labels", "source", *_FACTS, "metadata")
    with atomic_path(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        pictures = (each for block in _blocks(index, wanted) for each in block)
        rows = ({**_facts(each), **_json(captions=each.captions, labels=each.labels)} for each in pictures)
        write_cells(file, names, ([row[name] for name in names] for row in rows))


def _facts(picture: Picture) -> dict[str, Any]:
    """Return the exported columns of a picture, without vectors."""
    facts = {name: getattr(picture, name) for name in ("id", "captions", "labels", "source", *_FACTS)}
    return {**facts, "path": str(picture.path or "") or None, **_json(metadata=dict(picture.metadata))}


def _json(**values: Any) -> dict[str, str]:
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _write_coco(index: Index, wanted: Sequence[str], out: Path, kind: CocoKind) -> None:
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    numbers: dict[str, int] = {}  # of labels; COCO counts categories from 1
    for pictures in _blocks(index, wanted):
        for each in pictures:
            number, width, height = len(images), each.width, each.height
            images.append({"id": number, "file_name": str(each.path or each.id), "width": width, "height": height})
            if kind == "captions":
                new: list[dict[str, Any]] = [{"caption": caption} for caption in each.captions]
            else:
                box = {"bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0}
                new = [{"category_id": numbers.setdefault(name, len(numbers) + 1), **box} for name in each.labels]
            annotations += [
                {"id": id, "image_id": number, **one} for id, one in enumerate(new, start=len(annotations) + 1)
            ]
    categories = {"categories": [{"id": id, "name": name} for name, id in numbers.items()]} if numbers else {}
    write_json(out, {"images": images, "annotations": annotations, **categories})


def _blocks(index: Index, ids: Sequence[str]) -> Iterator[list[Picture]]:
    """Yield pictures in blocks, with manual labels added to those from sources."""
    manual = labels_in_column(index.annotations, LABELED) or {}
    for first in range(0, len(ids), _BLOCK):
        pictures = index.pictures(ids[first : first + _BLOCK])
        yield [
            replace(each, labels=tuple(dict.fromkeys((*each.labels, *manual.get(each.id, ()))))) for each in pictures
        ]


def _lists_or_null(vectors: np.ndarray, valid: np.ndarray) -> Any:
    """Return lists, null where not ``valid``; variable size, since pyarrow < 26 cannot read fixed size with nulls."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors[valid], dtype=np.float32).reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(valid * vectors.shape[1])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=pa.array(~valid))
