"""Training pairs with what each of them finds in a memory: found once, stored, and read at every epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.progress import progress
from recollect.memory.fusion.block import FusionSettings
from recollect.memory.rows import Modality, Pairs
from recollect.memory.store import NEAR, Memory

_QUERIES = 4_096


@dataclass(frozen=True)
class Neighbours:
    """Embedded pairs, and for each modality what their embeddings read.

    Attributes:
        images: embeddings of the training images.
        texts: embeddings of the training texts.
        values: for each modality the vectors that some embedding of it reads; row 0 is zeros, an empty place.
        rows: for each modality and pair the k rows of ``values`` that it reads, nearest first.
    """

    images: Float32[Tensor, "pairs width"]
    texts: Float32[Tensor, "pairs width"]
    values: dict[str, Float32[Tensor, "rows width"]]
    rows: dict[str, Int64[Tensor, "pairs k"]]

    def __len__(self) -> int:
        return len(self.images)

    def tokens(self, modality: Modality, pairs: Int64[Tensor, " some"]) -> Float32[Tensor, "some places width"]:
        """What the fusion reads for some pairs: the embedding, then what it found."""
        own = (self.images if modality == "image" else self.texts)[pairs]
        return torch.cat([own[:, None], self.values[modality][self.rows[modality][pairs]]], dim=1)

    def save(self, path: Path) -> None:
        """Write everything to a safetensors file."""
        tensors = {"images": self.images, "texts": self.texts}
        tensors |= {f"values.{modality}": values for modality, values in self.values.items()}
        tensors |= {f"rows.{modality}": rows for modality, rows in self.rows.items()}
        with atomic_path(path) as temporary:
            save_file(tensors, temporary)

    @classmethod
    def open(cls, path: Path) -> "Neighbours":
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or damaged.
        """
        try:
            tensors = load_file(path)
            values, rows = (
                {modality: tensors[f"{name}.{modality}"] for modality in ("image", "text")}
                for name in ("values", "rows")
            )
            return cls(tensors["images"], tensors["texts"], values, rows)
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(f"{path}: cannot be read ({error}). Remove it; it is made again.") from error


def find_neighbours(
    pairs: Pairs, memory: Memory, settings: FusionSettings, k: int = 10, max_score: float = NEAR
) -> Neighbours:
    """Look up every training pair from both sides (RECO, section 3.1).

    A pair never finds itself (a row of the same id), nor rows with a cosine of at least ``max_score`` to it in the
    vectors that are searched.

    Args:
        pairs: embedded training pairs.
        memory: of the same model.
        settings: which vectors are searched and which are read.
        k: rows for each embedding; places stay empty where fewer count.
        max_score: cosine from which a row counts as a near-duplicate.

    Raises:
        UserError: another model, an empty memory, or one smaller than k.
    """
    memory.check_model(pairs.model, "the training pairs'")
    memory.check_k(k)
    own = {"image": pairs.image_vectors, "text": pairs.text_vectors}
    values: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for modality in ("image", "text"):
        values[modality] = torch.zeros(1, memory.width)
        rows[modality] = torch.zeros(len(pairs), 0, dtype=torch.int64)
        if settings.refines(modality) and settings.kind != "mlp":
            memory.check_k(k, with_text=settings.taken(modality) == "text")
            ids = _search(own[modality], pairs.ids, memory, settings, modality, k, max_score)
            values[modality], rows[modality] = _gather(ids, memory, settings.taken(modality))
    return Neighbours(torch.from_numpy(pairs.image_vectors), torch.from_numpy(pairs.text_vectors), values, rows)


def _search(
    vectors: np.ndarray,
    ids: Sequence[str],
    memory: Memory,
    settings: FusionSettings,
    modality: Modality,
    k: int,
    max_score: float,
) -> np.ndarray:
    found = []
    with progress(f"neighbours by {modality}", len(vectors), "pairs") as counter:
        for start in range(0, len(vectors), _QUERIES):
            some = slice(start, start + _QUERIES)
            hits = memory.search(
                vectors[some],
                k,
                settings.searched(modality),
                max_score=max_score,
                exclude=ids[some],
                with_text=settings.taken(modality) == "text",
            )
            found.append(hits.ids)
            counter.advance(len(hits.ids))
    return np.concatenate(found) if found else np.empty((0, k), dtype=object)


def _gather(ids: np.ndarray, memory: Memory, modality: Modality) -> tuple[Tensor, Tensor]:
    """Each vector once, and where each place finds it."""
    distinct, places = np.unique(ids.ravel(), return_inverse=True)
    missing = int(len(distinct) > 0 and distinct[0] == "")  # an empty id sorts first
    vectors = memory.vectors(distinct[missing:].tolist(), modality)
    values = np.concatenate([np.zeros((1, memory.width), dtype=np.float32), vectors])
    return torch.from_numpy(values), torch.from_numpy((places + 1 - missing).astype(np.int64).reshape(ids.shape))
