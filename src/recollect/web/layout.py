"""The map: two dimensions of embeddings."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MOST_POINTS = 5_000
"""Pictures on a map; of a larger index a random part."""

TSNE_POINTS = 2_000
"""Up to so many points are laid out by t-SNE (seconds), more by principal components."""


@dataclass(frozen=True)
class Layout:
    """Places of some rows in the unit square, and the method that made them."""

    rows: np.ndarray
    points: np.ndarray
    method: str


def lay_out(vectors: np.ndarray, seed: int = 0) -> Layout:
    """Two dimensions of embeddings: UMAP where it is installed, else t-SNE of a few thousand and components of more.

    Args:
        vectors: unit-norm (rows, width).
    """
    rows = np.arange(len(vectors))
    if len(rows) < 2:
        return Layout(rows, np.full((len(rows), 2), 0.5, dtype=np.float32), "a single point")
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
