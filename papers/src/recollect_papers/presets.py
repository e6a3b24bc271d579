"""Small models for studies on a CPU."""

from collections.abc import Mapping

from recollect_papers.towers.build import SmallPreset
from recollect_papers.towers.small import BagOfWords, GlyphTowers, VectorTowers, WordTransformer

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
    "tiny-conv": SmallPreset(
        "32 px, small convnet and a transformer over words; learns much faster than tiny in short runs",
        GlyphTowers(WordTransformer(64)),
    ),
}
