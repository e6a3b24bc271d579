"""t-SNE maps of texts and images (prefix conditioning, Fig. 4, 7, 8, 9), with measures of the embedding space."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind, Source
from recollect.evaluation.features import image_features
from recollect.evaluation.plots import LINE_COLORS, new_figure
from recollect_papers.prefix.attention import PREFIX_NAMES, UNCONDITIONAL, own_prefixes, reading_name

Plane = Callable[[np.ndarray], np.ndarray]
"""Projection of embeddings (n, width) to the plane (n, 2)."""

SAME_SET_PERCENT = "same set as nearest (%)"

_FEWEST_POINTS = 4


def project_tsne(
    embeddings: Float[np.ndarray, "n width"], *, perplexity: float = 30.0, seed: int = 0
) -> Float[np.ndarray, "n 2"]:
    """Project unit embeddings by t-SNE (van der Maaten and Hinton, 2008), initialized by PCA.

    Args:
        perplexity: effective number of neighbors; at most a third of the number of points.

    Raises:
        UserError: fewer than four points.
    """
    if len(embeddings) < _FEWEST_POINTS:
        raise UserError(f"{len(embeddings)} points are too few for t-SNE. Take more classes, templates or samples.")
    fitting = min(perplexity, (len(embeddings) - 1) / 3)
    # Identical points would cause a division by zero.
    spread = embeddings + 1e-7 * np.random.default_rng(seed).normal(size=embeddings.shape)
    return TSNE(perplexity=fitting, init="pca", random_state=seed).fit_transform(spread.astype(np.float32))


def scatter(embeddings: Float[np.ndarray, "n width"], labels: np.ndarray) -> dict[str, float]:
    """Compute the scatter within and between classes, with equal weight per class (§4.3).

    Args:
        labels: (n,), class of each row.

    Returns:
        ``within``: mean squared distance of prompts to their class mean; ``between``: mean squared distance of class
        means to the mean of all; and their ratio, which is larger in a more discriminative space.
    """
    classes = [embeddings[labels == label] for label in np.unique(labels)]
    means = np.stack([rows.mean(0) for rows in classes])
    within = float(np.mean([np.mean(np.sum((rows - rows.mean(0)) ** 2, axis=1)) for rows in classes]))
    between = float(np.mean(np.sum((means - means.mean(0)) ** 2, axis=1)))
    return {"within": within, "between": between, "between / within": between / max(within, 1e-12)}


def same_set_share(first: Float[np.ndarray, "n width"], second: Float[np.ndarray, "m width"]) -> float:
    """Return the percentage of rows whose nearest other row is in the same set: 100 if disjoint (Fig. 8, 9)."""
    both = np.concatenate([first, second])
    side = np.repeat([0, 1], [len(first), len(second)])
    nearest = NearestNeighbors(n_neighbors=2).fit(both).kneighbors(both, return_distance=False)
    other = np.where(nearest[:, 0] == np.arange(len(both)), nearest[:, 1], nearest[:, 0])
    return 100.0 * float(np.mean(side[other] == side))


@dataclass(frozen=True)
class Cloud:
    """Points of one panel.

    Attributes:
        title: title of the panel.
        points: (n, 2).
        groups: (n,), color index of each point.
        names: group names for the legend; empty for no legend.
        measured: measures of the embedding space, for the table.
    """

    title: str
    points: np.ndarray
    groups: np.ndarray
    names: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)


def clouds(panels: Sequence[Cloud]) -> Figure:
    """Draw maps side by side, without axes, since t-SNE coordinates have no meaning."""
    figure, axes = new_figure(len(panels), width=3.4, height=3.4)
    for axis, panel in zip(axes[0], panels, strict=True):
        colors = _colors(int(panel.groups.max()) + 1)
        order = np.random.default_rng(0).permutation(len(panel.points))  # no group hides the others
        axis.scatter(*panel.points[order].T, c=colors[panel.groups[order]], s=6, linewidths=0, alpha=0.8)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(True)
        axis.set_title(panel.title, fontsize=9)
        for number, name in enumerate(panel.names):
            axis.scatter([], [], color=colors[number], s=16, label=name)
        if panel.names:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False, fontsize=8)
    return figure


def _colors(count: int) -> np.ndarray:
    if count <= len(LINE_COLORS):
        return np.array([matplotlib.colors.to_rgb(color) for color in LINE_COLORS])
    if count <= 20:
        return matplotlib.colormaps["tab20"](np.arange(count))[:, :3]
    return matplotlib.colormaps["gist_rainbow"](np.linspace(0, 1, count))[:, :3]


def classes_panel(model: Encoder, prompts: Sequence[Sequence[str]], prefix: Kind | None, plane: Plane) -> Cloud:
    """Map prompts with one prefix, colored by class (Fig. 4b to 4d, 7)."""
    owner = np.repeat(np.arange(len(prompts)), [len(texts) for texts in prompts])
    embedded = model.embed_texts([text for texts in prompts for text in texts], prefix).numpy()
    title = reading_name(model, prefix)
    measured = {"prefix": title, **scatter(embedded, owner)}
    return Cloud(title, plane(embedded), owner, measured=measured)


def prefixes_panel(model: Encoder, texts: Sequence[str], prefixes: tuple[Kind, Kind], plane: Plane) -> Cloud:
    """Map texts with two prefixes, colored by prefix (Fig. 4a)."""
    first, second = (model.embed_texts(texts, prefix).numpy() for prefix in prefixes)
    return _pair("class prompts", first, second, (PREFIX_NAMES[prefixes[0]], PREFIX_NAMES[prefixes[1]]), plane)


def captions_panel(model: Encoder, prompts: Sequence[str], captions: Sequence[str], plane: Plane) -> Cloud:
    """Map class prompts and captions, each with its prefix if the model has prefixes (Fig. 9)."""
    own = own_prefixes(model)
    first = model.embed_texts(prompts, "label" if "label" in own else None).numpy()
    second = model.embed_texts(captions, "caption" if "caption" in own else None).numpy()
    title = "each with its prefix" if own else UNCONDITIONAL
    return _pair(title, first, second, ("class prompts", "captions"), plane)


def images_panel(model: Encoder, labeled: Source, captioned: Source, plane: Plane) -> Cloud:
    """Map images of a label set and images with captions (Fig. 8)."""
    first, second = (image_features(model, source).images for source in (labeled, captioned))
    title = "trained with prefixes" if own_prefixes(model) else "trained without prefixes"
    return _pair(title, first, second, ("images of classes", "images with captions"), plane)


def _pair(title: str, first: np.ndarray, second: np.ndarray, names: tuple[str, str], plane: Plane) -> Cloud:
    groups = np.repeat([0, 1], [len(first), len(second)])
    measured = {"sets": ", ".join(names), SAME_SET_PERCENT: same_set_share(first, second)}
    return Cloud(title, plane(np.concatenate([first, second])), groups, names, measured)
