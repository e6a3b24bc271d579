"""What every part of a `Memory` knows of it: its backend, what it says of itself, and what may be asked of it."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.core.words import counted
from recollect.memory.backends.base import Backend
from recollect.memory.matching import check_k, check_memory_encoder, check_model
from recollect.memory.rows import check_vectors

Vectors = Tensor | np.ndarray


class MemoryHandle:
    """An open memory.

    Args:
        backend: where its rows are.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @property
    def address(self) -> str:
        """What the user calls it."""
        return self.backend.address

    @property
    def width(self) -> int:
        """Entries of a vector."""
        return self.backend.record.width

    @property
    def model(self) -> str:
        """Fingerprint of the model that embedded it."""
        return self.backend.record.model

    @property
    def model_name(self) -> str:
        """What the model was called when the memory was made."""
        return self.backend.record.model_name

    @property
    def prefix(self) -> Kind | None:
        """How its texts were read, and queries are to be, by a model with prefix tokens."""
        return self.backend.record.prefix

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.backend.version

    @property
    def fingerprint(self) -> str:
        """Changes whenever the rows do."""
        return f"{self.backend.record.key}-{self.version}"

    def __len__(self) -> int:
        return len(self.backend)

    def __repr__(self) -> str:
        return f"Memory({self.address!r}, {counted(len(self), 'row')} of width {self.width})"

    @property
    def texts(self) -> int:
        """How many rows have a text."""
        return self.backend.count_texts()

    def check_encoder(self, encoder: Encoder, what: str) -> None:
        """Refuse a model that would not read texts as the memory's were read, and any but the one that embedded it.

        One rule decides how texts are read (`core.types.caption_prefix`), and the memory's record keeps what it said.

        Raises:
            UserError: it is another model, or reads otherwise.
        """
        check_memory_encoder(self.backend, encoder, what)

    def check_model(self, fingerprint: str, what: str) -> None:
        """Refuse another model than the one that embedded the memory.

        Raises:
            UserError: it is another.
        """
        check_model(self.backend, fingerprint, what)

    def check_k(self, k: int, with_text: bool = False) -> int:
        """Refuse to look up k rows where there are fewer.

        Args:
            with_text: only rows that have a text count.

        Returns:
            How many rows count.

        Raises:
            UserError: k is below 1, or the memory is empty or smaller.
        """
        return check_k(self.backend, k, with_text)

    def _queries(self, vectors: Vectors) -> Float32[np.ndarray, "queries width"]:
        queries = vectors.detach().cpu().numpy() if isinstance(vectors, torch.Tensor) else vectors
        check_vectors(queries, self.width, f"{self.address}: queries")
        return np.ascontiguousarray(queries, dtype=np.float32)

    def _check_known(self, ids: Sequence[str]) -> None:
        if missing := set(ids) - self.backend.known(ids):
            first = next(id for id in ids if id in missing)
            raise UserError(
                f"{self.address}: no row with id {first!r} ({len(missing):,} of {len(ids):,} are not there)"
            )
