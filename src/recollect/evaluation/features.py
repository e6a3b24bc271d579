"""Embeddings of whole sources, cached by encoder and data."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from recollect.classifiers.teaching import SAME_PICTURE
from recollect.classifiers.texts import prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbors
from recollect.core.progress import note, progress
from recollect.core.types import Encoder, Kind, Source
from recollect.data.prompts import fill
from recollect.data.sources.reader import MAX_BROKEN_SHARE, readable_blocks
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.training.feature_store import FeatureStore

_CHECKED = 2_000
"""Maximum number of tested pictures compared with the examples."""


@dataclass(frozen=True)
class Features:
    """Embeddings of the readable images of a source.

    Attributes:
        images: float32 (n, width), unit-norm.
        labels: int64 (n,), indices into the source's class names.
        domains: domains of the samples; empty strings if the source has none.
        rows: int64 (n,), indices of the samples in the source.
    """

    images: np.ndarray
    labels: np.ndarray
    ids: tuple[str, ...]
    domains: tuple[str, ...]
    rows: np.ndarray


class FeatureCache:
    """Folder of embeddings in files named by a hash of encoder and data.

    The encoder's fingerprint covers weights, image transform and dtype; the source's fingerprint covers every sample.
    Stale files are therefore never read.
    """

    def __init__(self, folder: str | Path) -> None:
        self._store = FeatureStore(Path(folder))

    def path(self, encoder: Encoder, source: Source) -> Path:
        """Return the path of the features of ``source`` under ``encoder``."""
        return self._store.path(*_key(encoder, source))

    def load(self, encoder: Encoder, source: Source) -> Features | None:
        """Return the cached features, or None if missing or damaged."""
        found = self._store.load(*_key(encoder, source))
        if found is None:
            return None
        images, labels, rows, names = (found[name].numpy() for name in ("images", "labels", "rows", "names"))
        ids, domains = json.loads(names.tobytes())
        return Features(images, labels, tuple(ids), tuple(domains), rows)

    def save(self, encoder: Encoder, source: Source, features: Features) -> None:
        """Write ``features`` atomically."""
        names = json.dumps([features.ids, features.domains]).encode()
        arrays = {"images": features.images, "labels": features.labels, "rows": features.rows}
        arrays["names"] = np.frombuffer(names, dtype=np.uint8).copy()
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        self._store.save(tensors, *_key(encoder, source))


def _key(encoder: Encoder, source: Source) -> tuple[str, str, str, int]:
    return "features", encoder.fingerprint, source.fingerprint, len(source)


def image_features(
    encoder: Encoder, source: Source, cache: FeatureCache | None = None, *, block: int = 256
) -> Features:
    """Embed every image of ``source``, or read the embeddings from the cache.

    Raises:
        UserError: the source is empty or infinite, or an embedding is not finite.
    """
    if cached := cache.load(encoder, source) if cache else None:
        return cached
    if encoder.base is not None:  # reuse the embeddings of the plain model
        plain = image_features(encoder.base, source, cache, block=block)
        features = replace(plain, images=encoder.refine_images(torch.from_numpy(plain.images)).numpy())
    else:
        features = _embedded(encoder, source, block)
    if cache:
        cache.save(encoder, source, features)
    return features


def _embedded(encoder: Encoder, source: Source, block: int) -> Features:
    if len(source) == 0:
        raise UserError(f"{source.name}: no images to embed. Check the split and the filters.")
    if source.endless:
        raise UserError(f"{source.name}: infinite source. Limit it, e.g. {source.name}?size=1000.")
    labels: list[int] = []
    ids: list[str] = []
    domains: list[str] = []
    positions: list[int] = []
    blocks = [np.empty((0, encoder.width), dtype=np.float32)]
    with progress(f"embed {source.name}", len(source), "images") as counter:
        for read in readable_blocks(source, block, encoder=encoder, share=MAX_BROKEN_SHARE):
            if read:
                blocks.append(encoder.embed_images([sample.image for _, sample in read]).numpy())
            for position, sample in read:
                positions.append(position)
                labels.append(sample.label)
                ids.append(sample.id)
                domains.append(str(sample.extra.get("domain", "")))
            counter.advance(len(read))
    images = np.concatenate(blocks).astype(np.float32, copy=False)
    if not np.isfinite(images).all():
        raise UserError(f"{source.name}: the model's embeddings are not finite. Is the checkpoint damaged?")
    rows = np.array(positions, dtype=np.int64)
    return Features(images, np.array(labels, dtype=np.int64), tuple(ids), tuple(domains), rows)


def note_copies(support: Features, query: Features, where: str) -> None:
    """Print the number of tested pictures that are embedded like an example, usually because both splits have them.

    Of more than `_CHECKED` tested pictures, evenly spread ones are compared, so this takes little of an evaluation.
    """
    scores = exact_neighbors(query.images[_spread(query)], support.images, 1).scores[:, 0]
    if copies := int((scores >= SAME_PICTURE).sum()):
        note(
            f"{where}: {copies:,} of {len(scores):,} tested pictures compared are embedded like an example. If both "
            "splits have the same pictures, the accuracy is too high."
        )


def note_repeated(pool: Features, where: str) -> None:
    """Print the number of pictures of a pool that are embedded like another one, as `note_copies`."""
    rows, k = _spread(pool), min(2, len(pool.images))
    found = exact_neighbors(pool.images[rows], pool.images, k)
    scores = np.where(found.rows == rows[:, None], -np.inf, found.scores).max(axis=1)
    if copies := int((scores >= SAME_PICTURE).sum()):
        note(
            f"{where}: {copies:,} of {len(rows):,} pictures compared are embedded like another. If several rows have "
            "the same picture, recall is too low: put these rows next to each other, so they count as one picture."
        )


def _spread(features: Features) -> np.ndarray:
    """Return evenly spread rows, at most `_CHECKED`."""
    return np.arange(0, len(features.images), -(-len(features.images) // _CHECKED))


def class_prompts(task: ClassificationTask) -> tuple[tuple[str, ...], ...]:
    """Return all prompts of every class: the task's own texts, or its templates with the class name."""
    if task.class_texts is not None:
        return task.class_texts
    return tuple(tuple(fill(template, name) for template in task.templates) for name in task.class_names)


def class_text_features(encoder: Encoder, task: ClassificationTask, prefix: Kind | None = None) -> np.ndarray:
    """Embed the class texts of ``task``: unit-norm float32 (classes, width)."""
    return prompt_ensemble(encoder, class_prompts(task), prefix)
