"""Retrieval of training pictures for class names from an index (REACT, Liu et al., 2023)."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.core.types import Encoder
from recollect.core.validation import check_number, refuse
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError
from recollect.index.index import Index
from recollect.index.picture import as_png
from recollect.index.rows import By

_QUERIES = 256
_BLOCK = 256


@dataclass(frozen=True)
class ClassHit:
    """A picture retrieved for a class.

    Attributes:
        id: id of the picture.
        name: name of the nearest class.
        distance: 1 - cosine to the nearest prompt of the class.
        caption: index of the caption to train on: the matching one, or the first.
    """

    id: str
    name: str
    distance: float
    caption: int = 0


def retrieve_by_class(
    index: Index,
    encoder: Encoder,
    names: Sequence[str],
    templates: Sequence[str],
    per_class: int = 50,
    by: By = "image",
    exclude_ids: Collection[str] = (),
) -> list[ClassHit]:
    """Retrieve the pictures nearest to each class name, with captions, by exact search (REACT).

    Each template of a class retrieves ``per_class`` pictures; the nearest ``per_class`` of them are returned. A picture
    retrieved for several classes is assigned to the nearest, so classes may have fewer.

    Args:
        index: index of ``encoder``; only pictures with captions are searched.
        names: distinct class names.
        templates: prompt templates with ``{}`` for the name.
        by: compare prompts with pictures or with captions.
        exclude_ids: pictures to exclude, such as near-duplicates of test pictures.

    Returns:
        Hits by class in the order of ``names``, nearest first.

    Raises:
        UserError: no names, a repeated name, ``per_class`` below 1, or an index without captions.
    """
    refuse((not names or len(set(names)) < len(names), "class names must be distinct, and at least one"))
    check_number("pictures per class", per_class, least=1)
    k = min(per_class, index.texts)
    refuse((k == 0, f"{index.address}: no picture has a caption. Add captions first (`recollect caption`)."))
    prompts = [fill(template, name) for name in names for template in templates]
    best: dict[str, tuple[float, int, int]] = {}  # by picture: distance, class, caption
    with progress("retrieve", len(prompts), "prompts") as counter:
        for start in range(0, len(prompts), _QUERIES):
            queries = encoder.embed_texts(prompts[start : start + _QUERIES]).numpy()
            found = index.lookup(queries, k, by, "text", exclude=frozenset(exclude_ids) or None, exact=True)
            assert found.captions is not None
            hits_of = zip(found.ids.tolist(), found.scores.tolist(), found.captions.tolist(), strict=True)
            for query, (ids, scores, captions) in enumerate(hits_of, start):
                for id, score, caption in zip(ids, scores, captions, strict=True):
                    if id:  # exclusions leave empty entries
                        hit = (1.0 - score, query // len(templates), caption)
                        best[id] = min(hit, best.get(id, hit))
            counter.advance(len(queries))
    hits: list[ClassHit] = []
    for number, name in enumerate(names):
        own = sorted((hit[0], id, hit[2]) for id, hit in best.items() if hit[1] == number)[:per_class]
        hits += [ClassHit(id, name, max(0.0, distance), caption) for distance, id, caption in own]
    return hits


def write_retrieved(index: Index, hits: Sequence[ClassHit], out: Path) -> int:
    """Write retrieved pictures to a Parquet file for training.

    Columns: image (encoded), caption, class_name, distance, id, source.

    Returns:
        Number of unreadable pictures, which are left out.

    Raises:
        UserError: no readable pictures, or a suffix other than .parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    refuse((out.suffix != ".parquet", f"{out}: the file name must end in .parquet"))
    texts = ("caption", "class_name", "id", "source")
    kinds = {"image": pa.binary(), **dict.fromkeys(texts, pa.string()), "distance": pa.float32()}
    schema, written = pa.schema(list(kinds.items())), 0
    with atomic_path(out) as temporary, progress("write", len(hits), "pairs") as counter:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for start in range(0, len(hits), _BLOCK):
                rows = list(_rows(index, hits[start : start + _BLOCK]))
                writer.write_table(pa.Table.from_pylist(rows, schema))
                written += len(rows)
                counter.advance(len(hits[start : start + _BLOCK]))
        refuse((not written, f"{index.address}: no readable picture with a caption was retrieved"))
    return len(hits) - written


def _rows(index: Index, hits: Sequence[ClassHit]) -> Iterator[dict[str, object]]:
    for hit, picture in zip(hits, index.pictures([hit.id for hit in hits]), strict=True):
        try:
            decoded = picture.open()
        except BrokenImageError:
            continue
        image = picture.encoded() or as_png(decoded)  # original bytes, once decoding has succeeded
        caption = picture.captions[hit.caption] if picture.captions else ""
        known = {"caption": caption, "class_name": hit.name, "id": hit.id, "source": picture.source}
        yield {"image": image, **known, "distance": np.float32(hit.distance)}
