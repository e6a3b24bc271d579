"""Small models for the generated worlds."""

from collections.abc import Mapping

from recollect.models.presets import SmallPreset
from recollect.models.small import BagOfWords, GlyphTowers, VectorTowers

PRESETS: Mapping[str, SmallPreset] = {
    "vector-mlp": SmallPreset(
        "vector world: linear image tower, word vectors and an MLP", VectorTowers(BagOfWords(64, hidden=256))
    ),
    "vector-linear": SmallPreset(
        "vector world, the stronger variant: linear text tower of rank 48", VectorTowers(BagOfWords(48))
    ),
    "glyph-held-back": SmallPreset(
        "glyph world, setting A: convnet, head three times too large, linear text tower of rank 24",
        GlyphTowers(BagOfWords(24), gain=3.0),
    ),
    "glyph-random": SmallPreset(
        "glyph world, setting B: frozen random filters and a linear head, linear text tower of rank 24",
        GlyphTowers(BagOfWords(24), image="random"),
    ),
    "glyph-strong": SmallPreset(
        "glyph world, to compare with A: the same convnet, plain head, linear text tower of full rank",
        GlyphTowers(BagOfWords(256)),
    ),
}
