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
from recollect.data.sources.reading import MOST_BROKEN, readable_blocks
from recollect.evaluation.tasks.classification import ClassificationTask


@dataclass(frozen=True)
class Features:
    """Embeddings of one source, row for row.

    Attributes:
        images: float32 (n, width), unit-norm.
        labels: int64 (n,), indices into the source's class names.
        ids: the samples' ids, so that a row can be traced to its image.
        domains: the samples' domains, empty strings where a source has none.
        rows: int64 (n,), the samples' places in the source; pictures that cannot be read are left out.
    """

    images: np.ndarray
    labels: np.ndarray
    ids: tuple[str, ...]
    domains: tuple[str, ...]
    rows: np.ndarray


class FeatureCache:
    """A folder of embeddings, each file named by a hash of encoder and data.

    The encoder's fingerprint covers weights, image transform and dtype, the source's fingerprint every sample, so
    a stale file cannot be read: anything that would change an embedding changes its name.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, encoder: Encoder, source: Source) -> Path:
        """Where the features of ``source`` under ``encoder`` are, or will be, kept."""
        key = derive_seed("features", encoder.fingerprint, source.fingerprint, len(source))
        return self.folder / f"{key:016x}.safetensors"

    def load(self, encoder: Encoder, source: Source) -> Features | None:
        """The cached features, or None; a file that cannot be read counts as absent and is made anew."""
        path = self.path(encoder, source)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata()
                rows = json.loads(about["rows"])
                images, labels, places = (file.get_tensor(name) for name in ("images", "labels", "rows"))
            if about.get("digest") != _digest(about["rows"], images, labels, places):  # a flipped bit is a wrong figure
                return None
            return Features(images, labels, tuple(rows["ids"]), tuple(rows["domains"]), places)
        except Exception:  # a foreign or damaged file: the embedding is what matters, and it can be made again
            return None

    def save(self, encoder: Encoder, source: Source, features: Features) -> None:
        """Keep ``features``; atomic, so that a killed evaluation leaves no half file."""
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
    """Embed every image of ``source``, from the cache where it is there.

    Args:
        block: images in memory at a time.

    Raises:
        UserError: the source is empty, or an embedding is not finite.
    """
    if cached := cache.load(encoder, source) if cache else None:
        return cached
    if encoder.base is not None:  # no image is embedded twice
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
        raise UserError(f"{source.name}: an endless stream. Say how many to take, e.g. {source.name}?size=1000.")
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
    """Every prompt of every class: the task's own texts where it has them, else all templates filled in."""
    if task.class_texts is not None:
        return task.class_texts
    return tuple(tuple(fill(template, name) for template in task.templates) for name in task.class_names)


def class_text_features(encoder: Encoder, task: ClassificationTask, prefix: Kind | None = None) -> np.ndarray:
    """The text embedding of each class of ``task``, in label order: float32 (classes, width), unit-norm."""
    return prompt_ensemble(encoder, class_prompts(task), prefix)
