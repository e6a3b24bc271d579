"""Temporary indexes in RAM, over a source or over pictures of another index, without copying the pictures."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.errors import UserError
from recollect.core.types import Encoder, ImageLike, Source, caption_prefix
from recollect.data.sources.reader import MAX_BROKEN_SHARE, readable_blocks
from recollect.index.hits import MODEL
from recollect.index.index import Index
from recollect.index.picture import File
from recollect.index.rows import FACTS, Record, Rows
from recollect.index.stores.ram import RamStore


def source_index(
    encoder: Encoder,
    source: Source,
    captions: Sequence[str | None] | None = None,
    vectors: Float32[np.ndarray, "n width"] | None = None,
) -> Index:
    """Index a source in RAM for evaluations, with one row per sample, including duplicate pictures.

    Ids are sample numbers as strings. Unreadable pictures are skipped. Filters can use ``domain``.

    Args:
        encoder: embeds captions, and pictures unless ``vectors`` are given.
        captions: caption of each sample, or None for a sample without one; default: no captions.
        vectors: unit-norm vectors of the samples, if known.

    Raises:
        ValueError: the number of captions or vectors differs from the number of samples.
        UserError: no picture is readable, or too many are unreadable.
    """
    for name, given in (("captions", captions), ("vectors", vectors)):
        if given is not None and len(given) != len(source):
            raise ValueError(f"{len(source)} images, but {len(given)} {name}")
    numbers, images = _embedded(encoder, source) if vectors is None else (np.arange(len(source)), vectors)
    positions = numbers.tolist()
    texts = [(captions[position] or "") if captions is not None else "" for position in positions]
    texts = [text if text.strip() else "" for text in texts]
    wordings = {text: row for row, text in enumerate(dict.fromkeys(filter(None, texts)))}
    embedded = encoder.embed_texts(list(wordings), caption_prefix(encoder)).numpy() if wordings else images[:0]
    domains = source.values("domain")
    record = Record(images.shape[1], encoder.fingerprint, prefix=caption_prefix(encoder))
    rows = Rows(
        image_vectors=images,
        ids=[str(position) for position in positions],
        captions=[(text,) if text else () for text in texts],
        caption_vectors=[embedded[[wordings[text]]] if text else embedded[:0] for text in texts],
        files=[(File(source.name, str(position)),) for position in positions],
        metadata=[{} if domains[position] is None else {"domain": domains[position]} for position in positions],
    )

    def read(id: str) -> ImageLike:
        return source.read(int(id), extra=False).image

    index = Index(RamStore(record), encoder, read)
    index.insert(rows)
    return index


def with_vectors(
    index: Index,
    ids: Sequence[str],
    vectors: Float32[np.ndarray, "n width"],
    encoder: Encoder | None = None,
    scored_by: str = MODEL,
) -> Index:
    """Return an index in RAM of some pictures with other vectors, e.g. from a fine-tuned model.

    All other facts are the same, but captions cannot be searched.

    Args:
        ids: ids of the pictures.
        vectors: unit norm, in the order of ``ids``.
        encoder: the model that computed them; default: the model of the index.
        scored_by: `Hit.scored_by` of search results.
    """
    model: dict[str, Any] = {}
    if encoder is not None:
        model = {"model": encoder.fingerprint, "prefix": caption_prefix(encoder)}
    record = replace(index.record, width=vectors.shape[1], precision="float32", key=uuid.uuid4().hex, **model)
    facts = index.store.rows(list(ids), FACTS)
    table = Rows(image_vectors=vectors, ids=facts["id"].to_pylist()).table(record, index.address)
    for name in FACTS:
        table = table.set_column(table.column_names.index(name), table.schema.field(name), facts[name])
    store = RamStore(record)
    store.upsert(table)
    result = Index(store, encoder or index.model, index._read or (lambda id: index.pictures([id])[0].open()))
    result._labels, result.scored_by = index.annotations, scored_by
    return result


def _embedded(
    encoder: Encoder, source: Source, block: int = 256
) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, "n width"]]:
    """Return the number and vector of every sample with a readable picture."""
    numbers: list[int] = []
    blocks = [np.empty((0, encoder.width), dtype=np.float32)]
    for read in readable_blocks(source, block, encoder=encoder, share=MAX_BROKEN_SHARE):
        if read:
            blocks.append(encoder.embed_images([sample.image for _, sample in read]).numpy())
        numbers += [number for number, _ in read]
    if not numbers:
        raise UserError(f"{source.name}: no images to search. Check the split and the filters.")
    return np.array(numbers, dtype=np.int64), np.concatenate(blocks)
