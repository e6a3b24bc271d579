"""A memory of image–text pairs that can grow after training, and embeddings that read it (RECO)."""

from recollect.memory.backends.base import Neighbours
from recollect.memory.rows import Item, Modality, Pairs
from recollect.memory.store import NEAR, Memory

__all__ = ["NEAR", "Item", "Memory", "Modality", "Neighbours", "Pairs"]
