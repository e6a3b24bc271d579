"""The kinds of small towers there are: how each is built from its settings, and opened again."""

from typing import Any

import torch
from torch import Tensor

from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.models.patches import PatchEncoder, PatchTowers
from recollect.models.small import (
    BagOfWords,
    GlyphEncoder,
    GlyphTowers,
    SmallEncoder,
    VectorEncoder,
    VectorTowers,
    WordTransformer,
)
from recollect.models.tokenizers import WordTokenizer

AnyTowers = VectorTowers | GlyphTowers | PatchTowers

ENCODERS: dict[type, type[SmallEncoder]] = {
    VectorTowers: VectorEncoder,
    GlyphTowers: GlyphEncoder,
    PatchTowers: PatchEncoder,
}


def build_small(settings: AnyTowers, words: WordTokenizer, preset: str, seed: int) -> SmallEncoder:
    """Towers as ``settings`` say, initialised from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        seed_default_generators(derive_seed(seed, "model"))
        return ENCODERS[type(settings)](settings, words, preset)  # type: ignore[call-arg]


def restore_small(record: dict[str, Any], weights: dict[str, Tensor]) -> SmallEncoder:
    """The encoder that a record and its weights describe.

    Raises:
        KeyError, TypeError, ValueError, RuntimeError: they do not fit together.
    """
    kind = next(kind for kind, encoder in ENCODERS.items() if encoder.architecture == record["architecture"])
    text = record["settings"]["text"]
    reader = WordTransformer(**text) if "layers" in text else BagOfWords(**text)
    settings = kind(**record["settings"] | {"text": reader})
    encoder = build_small(settings, WordTokenizer(record["vocabulary"]), record["preset"], seed=0)
    encoder.prefixes = {name: tuple(words) for name, words in record["prefixes"].items()}
    table, known = weights["word_vectors.weight"], len(encoder.words) + sum(map(len, encoder.prefixes.values()))
    if len(table) != known:
        raise ValueError(f"{len(table)} word vectors, but {known} words")
    encoder._set_table(table)
    encoder.load_state_dict(weights)
    return encoder
