"""Pairs of a memory that fit class names: what a model is trained on further (REACT, Liu et al., 2023)."""

import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.core.types import Encoder
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError
from recollect.memory.rows import Item, Modality, picture_of
from recollect.memory.store import Memory

_QUERIES = 256
_BLOCK = 256


@dataclass(frozen=True)
class ClassHit:
    """One pair that was retrieved for a class.

    Attributes:
        id: of the row.
        name: of the class that it is nearest to.
        distance: 1 - cosine to the nearest of the class's prompts.
    """

    id: str
    name: str
    distance: float


def retrieve_by_class(
    memory: Memory,
    encoder: Encoder,
    names: Sequence[str],
    templates: Sequence[str],
    per_class: int = 50,
    modality: Modality = "image",
    exclude_ids: Collection[str] = (),
) -> list[ClassHit]:
    """The pairs nearest to each class name: REACT's retrieval.

    Every template of a class finds ``per_class`` rows; of all of these the nearest ``per_class`` are kept. A picture
    that several classes find, or several of whose captions are found, is kept once, where it is nearest; so a class may
    have fewer.

    Args:
        memory: to search; only pairs with a text.
        encoder: the one that filled it.
        names: of the classes, each once.
        templates: with ``{}`` for the name.
        per_class: most rows of a class.
        modality: compare prompts with the memory's images or with its texts.
        exclude_ids: rows that must not be found, such as near-duplicates of tested pictures.

    Returns:
        By class in the order of names, nearest first.

    Raises:
        UserError: no names, a name twice, fewer than one row a class, a memory without texts.
    """
    if not names or len(set(names)) < len(names):
        raise UserError("class names: at least one, and each once")
    if per_class < 1:
        raise UserError(f"rows a class: at least 1, not {per_class}")
    k = min(per_class, memory.texts)
    if k == 0:
        raise UserError(f"{memory.address}: no row has a text. Give it captions first (`recollect caption`).")
    prompts = [fill(template, name) for name in names for template in templates]
    best: dict[str, tuple[float, int, str]] = {}  # by picture: distance, class, row
    with progress("retrieve", len(prompts), "prompts") as counter:
        for start in range(0, len(prompts), _QUERIES):
            queries = encoder.embed_texts(prompts[start : start + _QUERIES]).numpy()
            found = memory.search(queries, k, modality, with_text=True, exclude_ids=exclude_ids)
            for place, (ids, scores) in enumerate(zip(found.ids.tolist(), found.scores.tolist(), strict=True), start):
                for id, score in zip(ids, scores, strict=True):
                    if id:  # what is excluded leaves empty places
                        hit = (1.0 - score, place // len(templates), id)
                        best[picture_of(id)] = min(hit, best.get(picture_of(id), hit))
            counter.advance(len(queries))
    hits: list[ClassHit] = []
    for number, name in enumerate(names):
        own = sorted(hit for hit in best.values() if hit[1] == number)[:per_class]
        hits += [ClassHit(id, name, max(0.0, distance)) for distance, _, id in own]
    return hits


def write_retrieved(memory: Memory, hits: Sequence[ClassHit], out: Path) -> int:
    """Write retrieved pairs to a Parquet file that training reads: image (encoded), caption, class_name, distance, id,
    source.

    Returns:
        How many pictures could not be read, and were left out.

    Raises:
        UserError: nothing was retrieved, none of it can be read, or another ending than .parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_ending(out)
    texts = ("caption", "class_name", "id", "source")
    kinds = {"image": pa.binary(), **dict.fromkeys(texts, pa.string()), "distance": pa.float32()}
    schema, written = pa.schema(list(kinds.items())), 0
    with atomic_path(out) as temporary, progress("write", len(hits), "pairs") as counter:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for start in range(0, len(hits), _BLOCK):
                rows = list(_rows(memory, hits[start : start + _BLOCK]))
                writer.write_table(pa.Table.from_pylist(rows, schema))
                written += len(rows)
                counter.advance(len(hits[start : start + _BLOCK]))
        if not written:
            raise UserError(f"{memory.address}: no pair with a text and a picture that can be read was found")
    return len(hits) - written


def check_ending(out: Path) -> None:
    """Raise UserError unless the file is called .parquet."""
    if out.suffix != ".parquet":
        raise UserError(f"{out}: retrieved pairs are written as .parquet. Name a file that ends so.")


def _rows(memory: Memory, hits: Sequence[ClassHit]) -> Iterator[dict[str, object]]:
    items = memory.fetch([hit.id for hit in hits])
    for hit, item in zip(hits, items, strict=True):
        try:
            image = _encoded(item)
        except BrokenImageError:
            continue
        known = {"caption": item.caption, "class_name": hit.name, "id": hit.id, "source": item.source}
        yield {"image": image, **known, "distance": np.float32(hit.distance)}


def _encoded(item: Item) -> bytes:
    """The picture's bytes as they are, once it is seen that they can be read; PNG of one that the source drew."""
    picture = item.open()
    if isinstance(item.image, bytes):
        return item.image
    if isinstance(item.image, Path):
        return item.image.read_bytes()
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
