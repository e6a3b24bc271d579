"""Training pairs: image and text embeddings of a frozen model, one row per image-text pair."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import NO_LABEL, Encoder, Sample, Source, caption_prefix
from recollect.data.prompts import SIMPLE_TEMPLATES, fill
from recollect.data.sources.images import pixel_digest, prepare_image
from recollect.data.sources.reader import BrokenCounter, read_ahead
from recollect.index import Index, Rows
from recollect.training.feature_store import FeatureStore

_BLOCK = 256


@dataclass(frozen=True)
class Pairs:
    """Embedded image-text pairs.

    Attributes:
        images, texts: unit-norm embeddings.
        captions: text of each pair.
        pictures: id of each pair's picture in an index (`recollect.data.sources.images.pixel_digest`).
        model: fingerprint of the model.
        sources: name of each pair's source.
    """

    images: Float32[np.ndarray, "pairs width"]
    texts: Float32[np.ndarray, "pairs width"]
    captions: Sequence[str]
    pictures: Sequence[str]
    model: str
    sources: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.images)

    def take(self, pairs: Sequence[int]) -> "Pairs":
        """Return the given pairs, in the given order."""
        chosen = np.asarray(pairs, dtype=np.int64)

        def pick(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[chosen]
            return tuple(value[pair] for pair in chosen) if isinstance(value, list | tuple) and value else value

        return replace(self, **{each.name: pick(getattr(self, each.name)) for each in fields(self)})

    def index(self) -> Index:
        """Build an index in memory: one row per picture, with all its captions."""
        by_picture: dict[str, list[int]] = {}
        for pair, picture in enumerate(self.pictures):
            by_picture.setdefault(picture, []).append(pair)
        index = Index.create(width=self.images.shape[1], model=self.model)
        index.insert(
            Rows(
                image_vectors=self.images[[pairs[0] for pairs in by_picture.values()]],
                ids=list(by_picture),
                captions=[tuple(self.captions[pair] for pair in pairs) for pairs in by_picture.values()],
                caption_vectors=[self.texts[pairs] for pairs in by_picture.values()],
            )
        )
        return index


def embed_pairs(encoder: Encoder, sources: Sequence[Source], limit: int | None, broken_share: float) -> Pairs:
    """Embed the picture and first text of each sample, or read them from the user's cache folder.

    Samples that lack either are skipped. For labeled samples and samples without captions, a prompt template turns the
    class name into a text.

    Args:
        encoder: the frozen model.
        sources: sources of the samples.
        limit: maximum number of samples from each source; None for all.
        broken_share: maximum share of unreadable pictures.

    Raises:
        UserError: too many pictures are unreadable, or no pairs remain.
    """
    counters = BrokenCounter(broken_share, "--data.broken-share")
    parts = [
        _embed(encoder, source, len(source) if limit is None else min(limit, len(source)), counters)
        for source in sources
    ]
    captions, pictures = ([text for part in parts for text in part[column]] for column in (2, 3))
    if not captions:
        raise UserError(f"{', '.join(source.name for source in sources)}: no sample has both an image and a text")
    images, texts = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    names = [source.name for source, part in zip(sources, parts, strict=True) for _ in part[2]]
    return Pairs(images, texts, captions, pictures, encoder.fingerprint, names)


def _embed(
    encoder: Encoder, source: Source, stop: int, counters: BrokenCounter
) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """Return image and text embeddings, captions and picture ids of the first ``stop`` samples."""
    store, key = FeatureStore(), ("pairs", encoder.fingerprint, source.fingerprint, stop)
    if cached := store.load(*key):
        return cached["images"].numpy(), cached["texts"].numpy(), *json.loads(cached["names"].numpy().tobytes())

    def prepare(sample: Sample) -> Sample:
        digest = pixel_digest(sample.image)
        return replace(sample, id=digest, image=prepare_image(encoder, sample.image))

    prefix = caption_prefix(encoder)
    images, texts = [torch.empty(0, encoder.width)], [torch.empty(0, encoder.width)]
    captions: list[str] = []
    pictures: list[str] = []
    with progress(f"embed {source.name}", stop, "pairs") as counter:
        for block in read_ahead(source, range(stop), _BLOCK, prepare=prepare):
            counters.add(source, len(block), [str(each) for each in block if not isinstance(each, Sample)])
            read = [each for each in block if isinstance(each, Sample)]
            pairs = [(each, text) for each in read if (text := _text(each, source))]
            if pairs:
                images.append(encoder.embed_images([each.image for each, _ in pairs]))
                texts.append(encoder.embed_texts([text for _, text in pairs], prefix))
            captions += [text for _, text in pairs]
            pictures += [each.id for each, _ in pairs]
            counter.advance(len(block))
    names = torch.frombuffer(bytearray(json.dumps([captions, pictures]).encode()), dtype=torch.uint8)
    found = {"images": torch.cat(images), "texts": torch.cat(texts), "names": names}
    with suppress(OSError, UserError):  # no space: the next run embeds them again
        store.save(found, *key)
    return found["images"].numpy(), found["texts"].numpy(), captions, pictures


def _text(sample: Sample, source: Source) -> str:
    """Return the sample's first text, a prompt with its class name, or an empty string."""
    texts = [text for text in sample.texts if text.strip()]
    if sample.kind != "label" and texts:
        return texts[0]
    if sample.label == NO_LABEL or not source.class_names:
        return ""
    return fill(SIMPLE_TEMPLATES[0], source.class_names[sample.label])
