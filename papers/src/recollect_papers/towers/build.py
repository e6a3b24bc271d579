"""Small towers built from settings, and opened again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.validation import refuse
from recollect.models.dual import Tower
from recollect_papers.towers.small import (
    BagOfWords,
    GlyphEncoder,
    GlyphTowers,
    SmallEncoder,
    VectorEncoder,
    VectorTowers,
    WordTransformer,
)
from recollect_papers.towers.words import WordTokenizer

AnyTowers = VectorTowers | GlyphTowers

ENCODERS: dict[type, type[SmallEncoder]] = {
    VectorTowers: VectorEncoder,
    GlyphTowers: GlyphEncoder,
}


@dataclass(frozen=True)
class SmallPreset:
    """Small towers; their text tower reads words, not pieces of words (`recollect.models.presets.Preset`)."""

    summary: str
    towers: AnyTowers
    own_words = True
    recomputable: tuple[Tower, ...] = ()

    def encoder(
        self,
        name: str,
        texts: Sequence[str] | None,
        tokenizer: transformers.PreTrainedTokenizerBase | str | None,
        seed: int,
    ) -> SmallEncoder:
        """New towers that know the words of ``texts``.

        Raises:
            UserError: no texts, or a tokenizer.
        """
        refuse((tokenizer is not None, f"{name}: its text tower reads words, not tokens. Omit the tokenizer."))
        if texts is None:
            raise UserError(f"{name}: needs captions to take its words from.")
        return build_small(self.towers, WordTokenizer.trained_on(texts), name, seed)

    def restore(self, record: dict[str, Any], weights: dict[str, Tensor]) -> SmallEncoder:
        """See `recollect.models.presets.RestorablePreset`."""
        return open_small(record, weights)


def build_small(settings: AnyTowers, words: WordTokenizer, preset: str, seed: int) -> SmallEncoder:
    """Towers as ``settings`` say, initialised from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        seed_default_generators(derive_seed(seed, "model"))
        return ENCODERS[type(settings)](settings, words, preset)  # type: ignore[call-arg]


def open_small(record: dict[str, Any], weights: dict[str, Tensor]) -> SmallEncoder:
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
