"""Two-dimensional layout of embeddings for the map."""

from dataclasses import dataclass

import numpy as np

from recollect.core.nearest import exact_neighbors

_MAX_POINTS = 100_000
"""Maximum number of pictures on a map; a larger index is sampled at random."""

ANCHORS = 2_000
"""Number of pictures laid out by t-SNE, which takes seconds; the others are placed near their most similar anchors."""

_NEAREST = 3
_JITTER = 0.004  # noise as a fraction of the map, so equal pictures do not hide one another


@dataclass(frozen=True)
class Layout:
    """Positions of rows in the unit square, and the method that computed them."""

    rows: np.ndarray
    points: np.ndarray
    method: str


def lay_out(vectors: np.ndarray) -> Layout:
    """Lay out embeddings in two dimensions by t-SNE of up to `ANCHORS` rows; place the others near similar anchors.

    Args:
        vectors: unit-norm (rows, width).
    """
    rows, rng = np.arange(len(vectors)), np.random.default_rng(0)
    if len(rows) < 2:
        return Layout(rows, np.full((len(rows), 2), 0.5, dtype=np.float32), "a single point")
    if len(rows) > _MAX_POINTS:
        rows = np.sort(rng.choice(len(vectors), _MAX_POINTS, replace=False))
    anchors = np.sort(rng.choice(len(rows), ANCHORS, replace=False)) if len(rows) > ANCHORS else np.arange(len(rows))
    points, method = _lay_out_anchors(vectors[rows[anchors]])
    if len(rows) > ANCHORS:
        points = _place_near_anchors(vectors[rows], vectors[rows[anchors]], points)
        points += rng.normal(0, _JITTER, points.shape) * (points.max(axis=0) - points.min(axis=0))
        method += f" of {ANCHORS:,}, the others near the most similar ones"
    low, high = points.min(axis=0), points.max(axis=0)
    return Layout(rows, ((points - low) / np.maximum(high - low, 1e-9)).astype(np.float32), method)


def _lay_out_anchors(vectors: np.ndarray) -> tuple[np.ndarray, str]:
    """Return two-dimensional positions of up to `ANCHORS` vectors, and the method."""
    centered = vectors - vectors.mean(axis=0)
    if len(centered) >= 10:
        from sklearn.manifold import TSNE

        tsne = TSNE(init="pca", perplexity=min(30.0, (len(centered) - 1) / 3), random_state=0, max_iter=500)
        return tsne.fit_transform(centered), "t-SNE"
    axes = np.linalg.svd(centered, full_matrices=False)[2][:2]
    return np.pad(centered @ axes.T, ((0, 0), (0, 2 - len(axes)))), "principal components"


def _place_near_anchors(vectors: np.ndarray, anchors: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the weighted mean position of the nearest anchors of each vector."""
    near = exact_neighbors(np.ascontiguousarray(vectors), np.ascontiguousarray(anchors), _NEAREST)
    weight = np.exp(20.0 * (np.asarray(near.scores) - np.asarray(near.scores).max(axis=1, keepdims=True)))
    weight /= weight.sum(axis=1, keepdims=True)
    return (points[np.asarray(near.rows)] * weight[..., None]).sum(axis=1)
