"""Shared drawing functions of the papers' figures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from recollect.core.types import ImageLike
from recollect.evaluation.plots import LINE_COLORS
from recollect.evaluation.results import Summary

RIGHT, WRONG = "#009E73", LINE_COLORS[1]


def empty(axis: Axes) -> None:
    """Remove ticks, grid and frame."""
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def framed(axis: Axes, image: ImageLike, right: bool, width: float = 2.5) -> None:
    """Show a picture in a green or red frame."""
    picture = np.asarray(image.convert("RGB")) if isinstance(image, Image.Image) else np.asarray(image)
    axis.imshow(picture, interpolation="nearest")
    axis.spines[:].set(visible=True, color=RIGHT if right else WRONG, linewidth=width)


def error_line(axis: Axes, x: Sequence[float], values: Sequence[Summary], color: str, label: str) -> None:
    """Draw a line through the means, with standard deviations as error bars."""
    spread = np.nan_to_num([value.std for value in values])
    axis.errorbar(x, [value.mean for value in values], yerr=spread, marker="o", markersize=3, capsize=2,
                  color=color, label=label)  # fmt: skip
