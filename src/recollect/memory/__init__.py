"""A memory of image–text pairs that can grow after training, and embeddings that read it (RECO)."""

from recollect.memory.backends.base import Hits
from recollect.memory.rows import Item, Modality, Pairs
from recollect.memory.store import NEAR, Memory

__all__ = ["NEAR", "Hits", "Item", "Memory", "Modality", "Pairs"]
