"""Models with locked towers, which take cached features instead of pictures or texts."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Kind
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.models import DualEncoder
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import LockedSource
from recollect.training.step import EncoderTowers

_BLOCK = 256


class TextFeatures:
    """Features of every possible text of the sources, before the head of a frozen text tower."""

    def __init__(self, encoder: DualEncoder, sources: Sequence[LockedSource]) -> None:
        self._kinds = bool(encoder.prefixes)
        store, blocks = FeatureStore(), []
        self._rows: dict[tuple[Kind | None, str], int] = {}
        for kind in dict.fromkeys(source.kind if self._kinds else None for source in sources):
            read = [source for source in sources if kind in (None, source.kind)]
            texts = list(dict.fromkeys(text for source in read for text in possible_texts(source)))
            start = len(self._rows)
            self._rows |= {(kind, text): start + offset for offset, text in enumerate(texts)}
            blocks.append(embed_texts_once(encoder, texts, kind, store))
        self._features = torch.cat(blocks)

    def __call__(self, texts: Sequence[str], kinds: Sequence[Kind]) -> Float[Tensor, "n features"]:
        """Return the features of ``texts``."""
        pairs = zip(texts, kinds, strict=True)
        return self._features[[self._rows[kind if self._kinds else None, text] for text, kind in pairs]]


def embed_texts_once(
    encoder: DualEncoder, texts: Sequence[str], kind: Kind | None, store: FeatureStore
) -> Float[Tensor, "texts features"]:
    """Return the features of ``texts`` before the head of the text tower, cached in ``store``."""
    digest = hashlib.blake2b("\x1f".join(texts).encode(), digest_size=16).hexdigest()
    key = ("locked texts", encoder.stem_fingerprint("text"), digest, kind or "")
    cached = store.load(*key)
    if cached is None:
        blocks = []
        with progress("embed texts once", len(texts), "texts") as counter:
            for start in range(0, len(texts), _BLOCK):
                blocks.append(encoder.pooled_texts(texts[start : start + _BLOCK], kind))
                counter.advance(len(blocks[-1]))
        cached = {"features": torch.cat(blocks)}
        with suppress(OSError, UserError):  # no space: the next run embeds them again
            store.save(cached, *key)
    return cached["features"]


def possible_texts(source: LockedSource) -> Iterator[str]:
    """Yield every text that a batch may assign to a sample of the source."""
    if source.source.makes_batches and source.kind == "caption":
        yield from source.source.example_texts(source.indices)
        return
    texts = (text for index in range(len(source)) for text in source.texts(index))
    if source.kind == "caption":
        yield from texts
        return
    for name in sorted({*source.class_names, *texts}):
        yield from (fill(template, name) for template in GENERAL_TEMPLATES)


class LockedTowers(EncoderTowers):
    """A dual encoder that takes the features of its locked parts as input; saving writes the complete model.

    Args:
        encoder: encoder with locked parts.
        texts: features of the text tower, if locked too.
    """

    def __init__(self, encoder: DualEncoder, texts: TextFeatures | None = None) -> None:
        super().__init__(encoder)
        self.texts = texts

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind]) -> dict[str, Tensor]:
        """Return tokens, or the features of a locked text tower."""
        return self.encoder.tokenize(texts, kinds) if self.texts is None else {"features": self.texts(texts, kinds)}

    def encode_images(self, pixels: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Return raw image embeddings of features."""
        return self.encoder.project_images(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Return raw text embeddings."""
        encoder = self.encoder
        return encoder.encode_texts(tokens) if self.texts is None else encoder.project_texts(tokens["features"])
