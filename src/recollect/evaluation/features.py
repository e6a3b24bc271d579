"""Embeddings of whole sources, computed once and cached by what they depend on."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from recollect.classifiers.texts import prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed
from recollect.core.types import Encoder, Kind, Source
from recollect.data.prompts import fill
from recollect.data.sources.reader import MOST_BROKEN, readable_blocks
from recollect.evaluation.tasks.classification import ClassificationTask


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
    """A folder of embeddings in files named by a hash of encoder and data.

    The encoder's fingerprint covers weights, image transform and dtype, the source's fingerprint every sample, so a
    stale file is never read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, encoder: Encoder, source: Source) -> Path:
        """File of the features of ``source`` under ``encoder``."""
        key = derive_seed("features", encoder.fingerprint, source.fingerprint, len(source))
        return self.folder / f"{key:016x}.safetensors"

    def load(self, encoder: Encoder, source: Source) -> Features | None:
        """The cached features, or None if missing or unreadable."""
        path = self.path(encoder, source)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata()
                rows = json.loads(about["rows"])
                images, labels, places = (file.get_tensor(name) for name in ("images", "labels", "rows"))
            if about.get("digest") != _digest(about["rows"], images, labels, places):  # corrupted
                return None
            return Features(images, labels, tuple(rows["ids"]), tuple(rows["domains"]), places)
        except Exception:  # any unreadable file is replaced
            return None

    def save(self, encoder: Encoder, source: Source, features: Features) -> None:
        """Write ``features`` atomically."""
        rows = json.dumps({"ids": features.ids, "domains": features.domains})
        with atomic_path(self.path(encoder, source)) as temporary:
            tensors = {"images": features.images, "labels": features.labels, "rows": features.rows}
            digest = _digest(rows, features.images, features.labels, features.rows)
            save_file(tensors, temporary, metadata={"rows": rows, "digest": digest})


def _digest(rows: str, *arrays: np.ndarray) -> str:
    digest = hashlib.blake2b(rows.encode(), digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


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
        own = image_features(encoder.base, source, cache, block=block)
        features = replace(own, images=encoder.refine_images(torch.from_numpy(own.images)).numpy())
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
    places: list[int] = []
    blocks = [np.empty((0, encoder.width), dtype=np.float32)]
    with progress(f"embed {source.name}", len(source), "images") as counter:
        for read in readable_blocks(source, block, share=MOST_BROKEN):
            if read:
                blocks.append(encoder.embed_images([sample.image for _, sample in read]).numpy())
            for place, sample in read:
                places.append(place)
                labels.append(sample.label)
                ids.append(sample.id)
                domains.append(str(sample.extra.get("domain", "")))
            counter.advance(len(read))
    images = np.concatenate(blocks).astype(np.float32, copy=False)
    if not np.isfinite(images).all():
        raise UserError(f"{source.name}: the model's embeddings are not finite. Is the checkpoint damaged?")
    return Features(
        images,
        np.array(labels, dtype=np.int64),
        tuple(ids),
        tuple(domains),
        np.array(places, dtype=np.int64),
    )


def class_prompts(task: ClassificationTask) -> tuple[tuple[str, ...], ...]:
    """All prompts of every class: the task's own texts, or its templates with the class name."""
    if task.class_texts is not None:
        return task.class_texts
    return tuple(tuple(fill(template, name) for template in task.templates) for name in task.class_names)


def class_text_features(encoder: Encoder, task: ClassificationTask, prefix: Kind | None = None) -> np.ndarray:
    """Unit-norm float32 text embeddings of the classes of ``task`` (classes, width)."""
    return prompt_ensemble(encoder, class_prompts(task), prefix)
