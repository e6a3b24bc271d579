"""Ranks of true matches in both directions, without storing the text × image matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from recollect.core.progress import progress

NO_RANK = 0
"""Rank of a text or image without a true match in the pool."""

TIE_TOLERANCE = 1e-6
"""Cosines closer than this are ties: float32 products of the same vectors differ by less between blocks."""

_TEXT_BLOCK, _IMAGE_BLOCK, _PAIR_BLOCK = 512, 2_048, 65_536  # 4 MiB of scores fit the cache


@dataclass(frozen=True)
class Ranks:
    """Rank of the best true match, from 1, or `NO_RANK`."""

    texts: Int64[np.ndarray, " texts"]
    images: Int64[np.ndarray, " images"]


def streaming_ranks(
    images: Float32[np.ndarray, "images width"],
    texts: Float32[np.ndarray, "texts width"],
    matches: Sequence[Sequence[int]],
) -> Ranks:
    """Rank every text's best true image and every image's best true text, block by block.

    The rank is 1 + the number of wrong matches with an equal or higher score, so a model with constant embeddings
    scores 0.

    Args:
        images, texts: unit-norm embeddings; may be memory-mapped.
        matches: rows of the true images of each text.

    Raises:
        ValueError: the number of lists of matches differs from the number of texts.
    """
    if len(matches) != len(texts):
        raise ValueError(f"{len(texts)} texts, but matches for {len(matches)}")
    pair_texts = np.repeat(np.arange(len(texts)), [len(rows) for rows in matches])
    pair_images = np.array([row for rows in matches for row in rows], dtype=np.int64)
    best_texts, best_images = _best(images, texts, pair_texts, pair_images)
    counts = torch.zeros(len(texts), dtype=torch.int64), torch.zeros(len(images), dtype=torch.int64)
    wanted = [torch.from_numpy(best - np.float32(TIE_TOLERANCE)) for best in (best_texts, best_images)]
    starts = np.searchsorted(pair_texts, np.arange(0, len(texts) + _TEXT_BLOCK, _TEXT_BLOCK))
    with progress("rank", len(texts) * len(images), "scores") as counter:
        for first in range(0, len(images), _IMAGE_BLOCK):
            block = _tensor(images[first : first + _IMAGE_BLOCK]).T
            for number, start in enumerate(range(0, len(texts), _TEXT_BLOCK)):
                text_rows = slice(start, start + _TEXT_BLOCK)
                scores = _tensor(texts[text_rows]) @ block
                pairs = slice(starts[number], starts[number + 1])
                inside = (pair_images[pairs] >= first) & (pair_images[pairs] < first + _IMAGE_BLOCK)
                rows, columns = pair_texts[pairs][inside] - start, pair_images[pairs][inside] - first
                scores[torch.from_numpy(rows), torch.from_numpy(columns)] = -torch.inf
                image_rows = slice(first, first + block.shape[1])
                # Counting in float is exact for a small block and ten times faster than summing bools.
                flags = torch.empty_like(scores)
                counts[0][text_rows] += torch.ge(scores, wanted[0][text_rows, None], out=flags).sum(dim=1).long()
                counts[1][image_rows] += torch.ge(scores, wanted[1][None, image_rows], out=flags).sum(dim=0).long()
                counter.advance(scores.numel())
    ranks = [(1 + count.numpy()) for count in counts]
    for rank, best in zip(ranks, (best_texts, best_images), strict=True):
        rank[np.isinf(best)] = NO_RANK
    return Ranks(ranks[0], ranks[1])


def _best(
    images: np.ndarray, texts: np.ndarray, pair_texts: np.ndarray, pair_images: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of the best true match of each text and each image; -∞ without any."""
    best_texts = np.full(len(texts), -np.inf, dtype=np.float32)
    best_images = np.full(len(images), -np.inf, dtype=np.float32)
    for start in range(0, len(pair_texts), _PAIR_BLOCK):
        rows, columns = pair_texts[start : start + _PAIR_BLOCK], pair_images[start : start + _PAIR_BLOCK]
        scores = np.einsum("nd,nd->n", texts[rows], images[columns])
        np.maximum.at(best_texts, rows, scores)
        np.maximum.at(best_images, columns, scores)
    return best_texts, best_images


def _tensor(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))
