"""Locked towers: compute the features of a frozen tower once, and train on the cached features.

A step then costs only the head, the text tower and the loss, so a laptop can train with batches of 4,096 to 32,768.
The features are those before the head (`DualEncoder.pool_images`), which is trained: LiT (Zhai et al., 2022) with a
projection. The cache key covers the frozen weights, the transform, the samples and the crops, but not the head, so all
runs and seeds on the same tower share the features.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.core.errors import user_errors
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed
from recollect.core.types import NO_LABEL, BatchRead, ImageLike, Sample, Source
from recollect.core.validation import refuse
from recollect.data.batches.order import hash_to_index, mix
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.reader import BROKEN_SHARE, BrokenCounter, read_ahead, sample_preprocessor
from recollect.data.sources.subset import Subset
from recollect.data.transforms import ImageTransform
from recollect.models import DualEncoder
from recollect.training.feature_store import FeatureStore

GENERATED_ROWS = 20_000
"""Number of samples of an endless generated source to embed."""

_BLOCK = 256


class LockedSource(Subset):
    """A source whose images are features of a frozen tower.

    Args:
        source: source of the texts and labels.
        rows: indices of the readable samples, ascending.
        features: features of each sample and view, float32.
        tower: fingerprint of the tower.
    """

    def __init__(
        self, source: Source, rows: Int[np.ndarray, " n"], features: Float[Tensor, "n views features"], tower: str
    ) -> None:
        super().__init__(source, rows)
        self.features, self.tower = features, tower

    @property
    def fingerprint(self) -> str:
        return f"{derive_seed(self.source.fingerprint, self.tower, len(self)):016x}"

    @cached_property
    def labels(self) -> np.ndarray:
        if self.kind == "caption" and not self.class_names:  # an endless stream cannot list its labels
            return np.full(len(self), NO_LABEL, dtype=np.int64)
        return self.source.labels[self.indices]

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Return one sample; its image is the feature vector of its first view."""
        index = self.position(index)
        row = int(self.indices[index])
        vector = self.features[index, 0].numpy()
        return Sample(vector, self.texts(index), int(self.labels[index]), self.name, self.kind, str(row))

    @property
    def reads_blocks(self) -> bool:
        return False

    @cached_property
    def makes_batches(self) -> bool:
        """False if a class has synonyms, which are drawn sample by sample, for the first view."""
        return self.kind == "caption" or not any(self.texts(index) for index in range(len(self)))

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Draw a view and a caption of each sample by the seed."""
        draws = mix(seed, indices)
        views = hash_to_index(mix(draws, 1), self.features.shape[1])
        features = self.features[torch.from_numpy(indices), torch.from_numpy(views)]
        if self.kind == "label":
            texts = [""] * len(indices)  # the stream fills templates with the class names
        elif self.source.makes_batches:  # the source draws its captions
            texts = self.example_texts(indices)
        else:
            known = [self.texts(int(index)) for index in indices]
            texts = [each[int(hash_to_index(draw, len(each)))] for draw, each in zip(draws, known, strict=True)]
        return features, texts, torch.from_numpy(self.labels[indices])


def lock_source(
    encoder: DualEncoder,
    source: Source,
    *,
    views: int = 1,
    crops: ImageTransform | None = None,
    broken_share: float = BROKEN_SHARE,
    store: FeatureStore | None = None,
) -> LockedSource:
    """Compute a source's features before the head of the encoder's image tower, or read them from the cache.

    Args:
        encoder: encoder, on the device to compute on.
        source: source to embed; unreadable pictures are skipped and reported.
        views: views per image; the first uses the evaluation transform, the others are random crops.
        crops: transform of the other views (default: the encoder's training transform).
        broken_share: maximum share of unreadable pictures.
        store: feature cache (default: the user's cache folder).

    Raises:
        UserError: too many pictures are unreadable, the features are not finite, or the disk is full.
    """
    store, crops = store or FeatureStore(), crops or encoder.training_transform()
    tower, count = encoder.stem_fingerprint("image"), len(source)
    count = min(count, GENERATED_ROWS) if source.makes_batches else count
    key = ("locked", tower, source.fingerprint, count, views, crops.key if views > 1 else "")
    cached = store.load(*key)
    if cached is None:
        cached = _embed(encoder, source, count, views, crops, BrokenCounter(broken_share, "--data.broken-share"))
        size = cached["features"].nbytes / 2**20
        advice = ". Free some space, or set RECOLLECT_CACHE to another folder."
        with user_errors(f"{store.folder}: {size:,.0f} MiB of features cannot be written", OSError, then=advice):
            store.save(cached, *key)
    rows, features = cached["rows"].numpy(), cached["features"]
    if source.kind == "caption" and not source.makes_batches:
        captioned = np.array([bool(source.texts(row)) for row in rows.tolist()])
        if not captioned.all():
            rows, features = rows[captioned], features[torch.from_numpy(captioned)]
            refuse((not len(rows), f"{source.name}: no captions. Use a source with captions."))
    return LockedSource(source, rows, features, f"{tower} {views} {key[-1]}")


def _embed(
    encoder: DualEncoder, source: Source, count: int, views: int, crops: ImageTransform, counters: BrokenCounter
) -> dict[str, Tensor]:
    features: Tensor | None = None
    rows: list[int] = []
    with progress(f"embed {source.name} once", count * views, "images") as counter:
        for start in range(0, count, _BLOCK):
            indices = np.arange(start, min(start + _BLOCK, count))
            for view in range(views):
                needed, reader = (crops.needed, None) if view else (encoder.transform.needed, encoder)
                read = read_pictures(source, indices, view, needed, reader)
                good = [(index, image) for index, image in read if not isinstance(image, BrokenImageError)]
                if view == 0:
                    broken = [str(image) for _, image in read if isinstance(image, BrokenImageError)]
                    counters.add(source, len(indices), broken)
                    start = len(rows)
                    rows += [index for index, _ in good]
                if not good:
                    continue
                pooled = encoder.pooled_images(_crops(good, view, crops, encoder))
                if features is None:
                    features = torch.empty(count, views, pooled.shape[1])
                features[start : len(rows), view] = pooled
                counter.advance(len(indices))
    refuse((features is None, f"{source.name}: no images to embed. Check the split and the filters."))
    assert features is not None
    features = features[: len(rows)].contiguous()
    infinite = not features.isfinite().all()
    refuse((infinite, f"{source.name}: the model's features are not finite. Is the checkpoint damaged?"))
    return {"features": features, "rows": torch.tensor(rows, dtype=torch.int64)}


def _crops(
    images: Sequence[tuple[int, ImageLike]], view: int, crops: ImageTransform, encoder: DualEncoder
) -> Tensor | Sequence[ImageLike]:
    if view == 0 or not crops.training or (isinstance(images[0][1], np.ndarray) and images[0][1].ndim == 1):
        return [image for _, image in images]
    seeds = mix(derive_seed("locked view", view), np.array([index for index, _ in images]))
    pixels = [
        crops.pixels(image, np.random.Generator(np.random.PCG64(int(seed))))
        for (_, image), seed in zip(images, seeds, strict=True)
    ]
    return encoder.transform.normalize(torch.from_numpy(np.stack(pixels)))


def read_pictures(
    source: Source, indices: np.ndarray, view: int, needed: int, encoder: DualEncoder | None = None
) -> list[tuple[int, ImageLike | BrokenImageError]]:
    """Read the images at ``indices``, prepared for ``encoder`` if given; unreadable images are returned as errors.

    A generated source draws a new picture for each view.
    """
    if source.makes_batches:
        images = source.batch(indices, view)[0]
        drawn = images.numpy() if images.ndim == 2 else images.permute(0, 2, 3, 1).contiguous().numpy()
        return list(zip(indices.tolist(), drawn, strict=True))
    (read,) = read_ahead(
        source, indices.tolist(), len(indices), needed=needed, extra=False, prepare=sample_preprocessor(encoder)
    )
    pictures = [outcome if isinstance(outcome, BrokenImageError) else outcome.image for outcome in read]
    return list(zip(indices.tolist(), pictures, strict=True))
