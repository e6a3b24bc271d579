"""Cached features in the user's cache folder."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recollect.core.files import atomic_path
from recollect.core.paths import cache_folder
from recollect.core.seeding import derive_seed


class FeatureStore:
    """Tensors in files named by a key. Damaged files count as missing."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "features"

    def path(self, *key: int | str) -> Path:
        """Return the file of a key."""
        return self.folder / f"{derive_seed(*key):016x}.safetensors"

    def load(self, *key: int | str) -> dict[str, Tensor] | None:
        """Return the memory-mapped tensors of a key; None if missing or damaged."""
        try:
            with safe_open(self.path(*key), framework="pt") as file:
                digest = (file.metadata() or {}).get("digest")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception:  # missing or damaged
            return None
        return tensors if digest == _digest(tensors) else None

    def save(self, tensors: Mapping[str, Tensor], *key: int | str) -> None:
        """Write tensors atomically; if two processes write at once, the later file wins."""
        with atomic_path(self.path(*key)) as temporary:
            save_file(dict(tensors), temporary, metadata={"digest": _digest(tensors)})


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
