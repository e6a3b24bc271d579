"""The map, and what is there twice."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

MOST_POINTS = 5_000
"""Pictures on a map; a random part of a larger memory."""

TSNE_POINTS = 2_000
"""Up to so many points are laid out by t-SNE (seconds), beyond by principal components."""

MOST_COMPARED = 60_000
"""Rows compared with one another, as 0.1 s for a thousand of them allows; a larger memory is searched in part."""

SIMILAR, SAME_PICTURE = 0.94, 0.985
KINDS = ("same file", "same picture", "similar")

_HASH_BITS = 6
"""Perceptual hashes of 64 bits that differ in so few are one picture, encoded twice."""

_MOST_PAIRS = 20_000
_BLOCK = 1024


@dataclass(frozen=True)
class Layout:
    """Places of some rows in the unit square, and what made them."""

    rows: np.ndarray
    points: np.ndarray
    method: str


def lay_out(vectors: np.ndarray, seed: int = 0) -> Layout:
    """Two dimensions of embeddings: t-SNE of a few thousand, principal components of more.

    Args:
        vectors: unit-norm (rows, width).
    """
    rows = np.arange(len(vectors))
    if len(rows) > MOST_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(len(vectors), MOST_POINTS, replace=False))
    some = vectors[rows] - vectors[rows].mean(axis=0)
    if 10 <= len(rows) <= TSNE_POINTS:
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


@dataclass(frozen=True)
class Alike:
    """Pictures that are there more than once, in one of three ways."""

    kind: str
    rows: tuple[int, ...]


def duplicates(vectors: np.ndarray, picture: Callable[[int], tuple[str, int] | None]) -> list[Alike]:
    """Groups of pictures that are alike, in three levels, each apart.

    *Same file*: equal bytes. *Same picture*: encoded twice, by a perceptual hash and a cosine of `SAME_PICTURE`.
    *Similar*: a cosine of `SIMILAR` or more, such as shots of a series. A picture stands in its strongest level.

    Args:
        vectors: unit-norm (rows, width).
        picture: digest of a row's bytes, and its perceptual hash; None where it cannot be read. Asked only of rows that
            are alike.
    """
    first, second, cosines = _near_pairs(vectors)
    known = {row: picture(row) for row in np.unique(np.concatenate([first, second])).tolist()}
    levels: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    for a, b, cosine in zip(first.tolist(), second.tolist(), cosines.tolist(), strict=True):
        one, two = known[a], known[b]
        if one and two and one[0] == two[0]:
            levels["same file"].append((a, b))
        elif one and two and cosine >= SAME_PICTURE and (one[1] ^ two[1]).bit_count() <= _HASH_BITS:
            levels["same picture"].append((a, b))
        else:
            levels["similar"].append((a, b))
    return [Alike(kind, rows) for kind, pairs in levels.items() for rows in _groups(pairs)]


def _near_pairs(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = torch.from_numpy(vectors[:MOST_COMPARED])
    parts: list[tuple[np.ndarray, ...]] = []
    count = 0
    for start in range(0, len(rows), _BLOCK):
        products = rows[start : start + _BLOCK] @ rows[start:].T
        a, b = torch.nonzero(products >= SIMILAR, as_tuple=True)
        later = b > a
        a, b = a[later], b[later]
        parts.append(((a + start).numpy(), (b + start).numpy(), products[a, b].numpy()))
        count += len(a)
        if count > _MOST_PAIRS:
            break
    found = [np.concatenate(each) for each in zip(*parts, strict=True)]
    best = np.argsort(-found[2], kind="stable")[:_MOST_PAIRS]
    return found[0][best], found[1][best], found[2][best]


def _groups(pairs: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Rows joined by pairs, directly or through others; largest group first."""
    leader: dict[int, int] = {}

    def top(row: int) -> int:
        while leader.setdefault(row, row) != row:
            leader[row] = leader[leader[row]]
            row = leader[row]
        return row

    for a, b in pairs:
        leader[top(a)] = top(b)
    groups: dict[int, list[int]] = {}
    for row in leader:
        groups.setdefault(top(row), []).append(row)
    return sorted((tuple(sorted(rows)) for rows in groups.values()), key=lambda rows: (-len(rows), rows))


def perceptual_hash(picture: Image.Image) -> int:
    """64 bits that survive re-encoding and resizing: which of neighbouring cells of a 9 × 8 picture is brighter."""
    cells = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = (cells[:, 1:] > cells[:, :-1]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")
