"""The map: two dimensions of embeddings."""

from dataclasses import dataclass

import numpy as np

from recollect.core.nearest import exact_neighbors

MOST_POINTS = 100_000
"""Pictures on a map; of a larger index a random part."""

ANCHORS = 2_000
"""Pictures that are laid out by t-SNE, in seconds; the others are placed next to those that are most alike."""

_NEAR = 3
_SPREAD = 0.004  # so that equal pictures do not hide one another, as a share of the map


@dataclass(frozen=True)
class Layout:
    """Places of some rows in the unit square, and the method that made them."""

    rows: np.ndarray
    points: np.ndarray
    method: str


def lay_out(vectors: np.ndarray, seed: int = 0) -> Layout:
    """Two dimensions of embeddings by t-SNE; of many only some are laid out, the others next to those most alike.

    Args:
        vectors: unit-norm (rows, width).
    """
    rows = np.arange(len(vectors))
    if len(rows) < 2:
        return Layout(rows, np.full((len(rows), 2), 0.5, dtype=np.float32), "a single point")
    if len(rows) > MOST_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(len(vectors), MOST_POINTS, replace=False))
    rng = np.random.default_rng(seed)
    anchors = np.sort(rng.choice(len(rows), ANCHORS, replace=False)) if len(rows) > ANCHORS else np.arange(len(rows))
    points, method = _laid_out(vectors[rows[anchors]], seed)
    if len(rows) > ANCHORS:
        points = _next_to(vectors[rows], vectors[rows[anchors]], points)
        points += rng.normal(0, _SPREAD, points.shape) * (points.max(axis=0) - points.min(axis=0))
        method += f" of {ANCHORS:,}, the others next to those most alike"
    low, high = points.min(axis=0), points.max(axis=0)
    return Layout(rows, ((points - low) / np.maximum(high - low, 1e-9)).astype(np.float32), method)


def _laid_out(vectors: np.ndarray, seed: int) -> tuple[np.ndarray, str]:
    """Two dimensions of up to `ANCHORS` vectors, and the method."""
    some = vectors - vectors.mean(axis=0)
    if len(some) >= 10:
        from sklearn.manifold import TSNE

        flat = TSNE(init="pca", perplexity=min(30.0, (len(some) - 1) / 3), random_state=seed, max_iter=500)
        return flat.fit_transform(some), "t-SNE"
    axes = np.linalg.svd(some, full_matrices=False)[2][:2]
    return np.pad(some @ axes.T, ((0, 0), (0, 2 - len(axes)))), "principal components"


def _next_to(vectors: np.ndarray, anchors: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The weighted mean of the places of the anchors that each vector is most alike."""
    near = exact_neighbors(np.ascontiguousarray(vectors), np.ascontiguousarray(anchors), _NEAR)
    weight = np.exp(20.0 * (np.asarray(near.scores) - np.asarray(near.scores).max(axis=1, keepdims=True)))
    weight /= weight.sum(axis=1, keepdims=True)
    return (points[np.asarray(near.rows)] * weight[..., None]).sum(axis=1)
