"""A memory of image–text pairs that can grow after training, and embeddings that read it (RECO)."""

from recollect.memory.backend import Found
from recollect.memory.rows import Item, Pairs, Side
from recollect.memory.store import NEAR, Memory

__all__ = ["NEAR", "Found", "Item", "Memory", "Pairs", "Side"]
