"""Presets: small models for studies on a CPU, and the Swin-T of the prefix conditioning paper."""

from collections.abc import Mapping

from recollect.models.presets import Preset
from recollect_papers.prefix.swin import SWIN_T
from recollect_papers.towers.small import SmallTowers

PRESETS: Mapping[str, Preset] = {
    "vector-mlp": SmallTowers(
        "vector world: linear image tower, word vectors and an MLP", 64, "vectors", hidden=256, width=192
    ),
    "vector-linear": SmallTowers(
        "vector world, the stronger variant: linear text tower of rank 48", 48, "vectors", width=192
    ),
    "glyph-random": SmallTowers(
        "glyph world: frozen random filters and a linear head, linear text tower of rank 24", 24, "random"
    ),
    "glyph-strong": SmallTowers("glyph world: convnet and a linear head, linear text tower of full rank", 256),
    "tiny-conv": SmallTowers(
        "32 px, small convnet and a transformer over words; learns much faster than tiny in short runs", 64, layers=2
    ),
    "swin-t": SWIN_T,
}
