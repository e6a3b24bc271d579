"""The map, and what is there twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recollect.memory.duplicates import LEVELS, find_duplicates
from recollect.memory.store import Memory

MOST_POINTS = 5_000
"""Pictures on a map; a random part of a larger memory."""

TSNE_POINTS = 2_000
"""Up to so many points are laid out by t-SNE (seconds), beyond by principal components."""

MOST_COMPARED = 100_000
"""Rows of a memory whose pictures are all compared with one another, in some ten seconds; of more, neighbours are."""

KINDS = ("identical", "near-identical", "similar")


@dataclass(frozen=True)
class Layout:
    """Places of some rows in the unit square, and what made them."""

    rows: np.ndarray
    points: np.ndarray
    method: str


def lay_out(vectors: np.ndarray, seed: int = 0) -> Layout:
    """Two dimensions of embeddings: UMAP where it is installed, else t-SNE of a few thousand and components of more.

    Args:
        vectors: unit-norm (rows, width).
    """
    rows = np.arange(len(vectors))
    if len(rows) > MOST_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(len(vectors), MOST_POINTS, replace=False))
    some = vectors[rows] - vectors[rows].mean(axis=0)
    umap = _umap() if len(rows) >= 10 else None
    if umap is not None:
        near = min(15, len(rows) - 1)
        points, method = umap(n_neighbors=near, metric="cosine", random_state=seed).fit_transform(vectors[rows]), "UMAP"
    elif 10 <= len(rows) <= TSNE_POINTS:
        from sklearn.manifold import TSNE

        flat = TSNE(init="pca", perplexity=min(30.0, (len(rows) - 1) / 3), random_state=seed, max_iter=500)
        points, method = flat.fit_transform(some), "t-SNE"
    else:
        width = min(2, *some.shape)
        _, _, axes = torch.pca_lowrank(torch.from_numpy(some), q=min(8, *some.shape), center=False)
        points, method = some @ axes[:, :width].numpy(), "principal components"
        points = np.pad(points, ((0, 0), (0, 2 - width)))
    low, high = points.min(axis=0), points.max(axis=0)
    return Layout(rows, ((points - low) / np.maximum(high - low, 1e-9)).astype(np.float32), method)


def _umap() -> Any:
    """UMAP's estimator, or None where it is not installed."""
    try:
        from umap import UMAP
    except ImportError:
        return None
    return UMAP


@dataclass(frozen=True)
class Alike:
    """Pictures that are there more than once, in one of three ways."""

    kind: str
    rows: tuple[int, ...]


def duplicates(memory: Memory, row_of: Mapping[str, int]) -> tuple[list[Alike], tuple[str, ...]]:
    """Groups of pictures that are alike, in the three levels of `recollect memory duplicates`, each apart.

    Args:
        memory: what is shown.
        row_of: the page's number of each id; a picture that was added since is passed over.

    Returns:
        The groups, the largest first, and what was not compared, a sentence each.
    """
    found = find_duplicates(memory, everything=len(memory) <= MOST_COMPARED)
    groups = []
    for level, kind in zip(LEVELS, KINDS, strict=True):
        rows = (tuple(row_of[id] for id in group if id in row_of) for group in found.groups[level])
        alike = sorted((each for each in rows if len(each) > 1), key=lambda each: (-len(each), each))
        groups += [Alike(kind, each) for each in alike]
    return groups, found.left_out
