"""Embeddings of whole sources, computed once and cached by what they depend on."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed
from recollect.core.types import Encoder, Kind, Sample, Source
from recollect.data.prompts import fill
from recollect.evaluation.analysis import SpanEncoder
from recollect.memory.fusion.encoder import RetrievalEnhancedEncoder
from recollect.tasks.classification import ClassificationTask


@dataclass(frozen=True)
class Features:
    """Embeddings of one source, row for row.

    Attributes:
        images: float32 (n, width), unit-norm.
        labels: int64 (n,), indices into the source's class names.
        ids: the samples' ids, so that a row can be traced to its image.
        domains: the samples' domains, empty strings where a source has none.
    """

    images: np.ndarray
    labels: np.ndarray
    ids: tuple[str, ...]
    domains: tuple[str, ...]


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
                rows = json.loads(file.metadata()["rows"])
                images, labels = file.get_tensor("images"), file.get_tensor("labels")
            return Features(images, labels, tuple(rows["ids"]), tuple(rows["domains"]))
        except Exception:  # a foreign or damaged file: the embedding is what matters, and it can be made again
            return None

    def save(self, encoder: Encoder, source: Source, features: Features) -> None:
        """Keep ``features``; atomic, so that a killed evaluation leaves no half file."""
        rows = json.dumps({"ids": features.ids, "domains": features.domains})
        with atomic_path(self.path(encoder, source)) as temporary:
            save_file({"images": features.images, "labels": features.labels}, temporary, metadata={"rows": rows})


@dataclass(frozen=True)
class _Rows:
    images: np.ndarray
    labels: list[int]
    ids: list[str]
    domains: list[str]


def _embed_blocks(encoder: Encoder, source: Source, block: int) -> Iterator[_Rows]:
    for samples in _read_blocks(source, block):
        images = encoder.embed_images([sample.image for sample in samples]).numpy()
        domains = [str(sample.extra.get("domain", "")) for sample in samples]
        yield _Rows(images, [sample.label for sample in samples], [sample.id for sample in samples], domains)


def _read_blocks(source: Source, block: int) -> Iterator[list[Sample]]:
    """All samples in order; those that must be decoded are read in threads while the encoder has the block before."""
    if read := getattr(source, "read_block", None):
        for start in range(0, len(source), block):
            yield read(np.arange(start, min(start + block, len(source))))
        return
    with ThreadPoolExecutor(4) as pool:  # decoding lets go of the lock
        waiting = [pool.submit(source.__getitem__, index) for index in range(min(block, len(source)))]
        for start in range(0, len(source), block):
            stop = min(start + 2 * block, len(source))
            coming = [pool.submit(source.__getitem__, index) for index in range(start + block, stop)]
            yield [item.result() for item in waiting]
            waiting = coming


def image_features(
    encoder: Encoder, source: Source, cache: FeatureCache | None = None, *, block: int = 256
) -> Features:
    """Embed every image of ``source``, from the cache where it is there.

    Args:
        block: images in memory at a time.

    Raises:
        UserError: the source is empty, or an embedding is not finite.
    """
    if isinstance(encoder, SpanEncoder):
        features = image_features(encoder.encoder, source, cache, block=block)
        return replace(features, images=encoder.project(torch.from_numpy(features.images)).numpy())
    if cached := cache.load(encoder, source) if cache else None:
        return cached
    if isinstance(encoder, RetrievalEnhancedEncoder):
        features = _refined(encoder, image_features(encoder.model, source, cache, block=block))
        if cache:
            cache.save(encoder, source, features)
        return features
    if len(source) == 0:
        raise UserError(f"{source.name}: no images to embed. Check the split and the filters.")
    blocks = []
    with progress(f"embed {source.name}", len(source), "images") as counter:
        for rows in _embed_blocks(encoder, source, block):
            blocks.append(rows)
            counter.advance(len(rows.ids))
    images = np.concatenate([rows.images for rows in blocks]).astype(np.float32, copy=False)
    if not np.isfinite(images).all():
        raise UserError(f"{source.name}: the model's embeddings are not finite. Is the checkpoint damaged?")
    labels = np.array([label for rows in blocks for label in rows.labels], dtype=np.int64)
    ids = tuple(id for rows in blocks for id in rows.ids)
    features = Features(images, labels, ids, tuple(domain for rows in blocks for domain in rows.domains))
    if cache:
        cache.save(encoder, source, features)
    return features


def _refined(encoder: RetrievalEnhancedEncoder, own: Features) -> Features:
    """What an encoder makes of the model's own embeddings, so that no image is embedded twice."""
    return replace(own, images=encoder.refine("image", torch.from_numpy(own.images)).numpy())


def class_prompts(task: ClassificationTask) -> tuple[tuple[str, ...], ...]:
    """Every prompt of every class: the task's own texts where it has them, else all templates filled in."""
    if task.class_texts is not None:
        return task.class_texts
    return tuple(tuple(fill(template, name) for template in task.templates) for name in task.class_names)


def prompt_ensemble(encoder: Encoder, prompts: Sequence[Sequence[str]], prefix: Kind | None = None) -> np.ndarray:
    """One text embedding for each class: prompts normalised, averaged, normalised again (CLIP's ensemble).

    Args:
        prompts: at least one prompt for each class; classes may have different numbers of them.

    Returns:
        float32 (classes, width), unit-norm.
    """
    flat = [prompt for texts in prompts for prompt in texts]
    embeddings = encoder.embed_texts(flat, prefix)
    counts = torch.tensor([len(texts) for texts in prompts])
    owner = torch.repeat_interleave(torch.arange(len(prompts)), counts)
    means = torch.zeros(len(prompts), embeddings.shape[1]).index_add_(0, owner, embeddings) / counts[:, None]
    return torch.nn.functional.normalize(means, dim=1).numpy()


def class_text_features(encoder: Encoder, task: ClassificationTask, prefix: Kind | None = None) -> np.ndarray:
    """The text embedding of each class of ``task``, in label order: float32 (classes, width), unit-norm."""
    return prompt_ensemble(encoder, class_prompts(task), prefix)
