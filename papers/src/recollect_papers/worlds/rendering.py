"""Rendering of masks to batches of pictures: placement, color, background and noise."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.core.seeding import integers, torch_generator, uniforms
from recollect_papers.worlds.glyph_table import SIZE, glyph_table

COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.75, 0.15),
    "blue": (0.12, 0.2, 0.95),
    "yellow": (0.95, 0.9, 0.1),
    "cyan": (0.1, 0.85, 0.9),
    "magenta": (0.9, 0.15, 0.85),
    "white": (0.97, 0.97, 0.97),
    "black": (0.03, 0.03, 0.03),
    "orange": (0.98, 0.55, 0.05),
    "brown": (0.5, 0.28, 0.1),
}
COLOR_NAMES = tuple(COLORS)
_COLORS = torch.tensor(list(COLORS.values()))

_MARGIN = 8
_TEXTURES = 1024
_NOISE = 1 << 20
_MIN_CONTRAST = 0.45


@dataclass(frozen=True)
class Nuisance:
    """Variation in pictures that captions do not mention.

    Attributes:
        texture: 0 for a plain background, 1 for a strong random texture.
        noise: standard deviation of pixel noise (1 is full brightness).
        contrast: minimum opacity of the subject.
        scale: minimum and maximum size of the subject; 1 nearly fills the picture.
        rotation: maximum angle in degrees, either way.
        shift: maximum displacement as a fraction of half the picture.
    """

    texture: float = 0.3
    noise: float = 0.04
    contrast: float = 0.7
    scale: tuple[float, float] = (0.85, 1.1)
    rotation: float = 4.0
    shift: float = 0.12


PLAIN_NUISANCE = Nuisance(texture=0.0, noise=0.01, contrast=1.0, scale=(0.95, 1.05), rotation=0.0, shift=0.03)
"""Style of label sets: a clean character on a plain background."""


@dataclass(frozen=True)
class Subject:
    """A character in each of ``n`` pictures; every field has n entries.

    Attributes:
        masks: rows of the table of masks.
        x, y: center, from -1 (left, top) to 1.
        size: size; 1 nearly fills the picture.
        angle: angle in radians.
        opacity: 0 (invisible) to 1.
    """

    masks: np.ndarray
    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray
    opacity: np.ndarray


@cache
def _textures(edge: int) -> Tensor:
    """Generate smooth random pictures, `_MARGIN` larger than ``edge``, to crop backgrounds from: uint8."""
    draw = torch_generator("textures", edge)
    size = edge + _MARGIN

    def layer(cells: int, mode: str) -> Tensor:
        cell = torch.rand(_TEXTURES, 3, cells, cells, generator=draw)
        return F.interpolate(cell, size=size, mode=mode, align_corners=True)

    fine = (layer(12, "bicubic") - 0.5) * torch.rand(_TEXTURES, 1, 1, 1, generator=draw) * 0.5
    return (0.6 * layer(2, "bilinear") + 0.4 * layer(4, "bilinear") + fine).clamp(0, 1).mul(255).byte()


@cache
def _noise() -> Tensor:
    return torch.randn(_NOISE, generator=torch_generator("noise"))


def background(key: int, indices: np.ndarray, edge: int, texture: float) -> Tensor:
    """Generate backgrounds (n, 3, edge, edge) from 0 to 1; ``texture`` is the amplitude around their mean color."""
    draws = uniforms(key, indices, 3)
    pool = _textures(edge)
    which = torch.from_numpy(integers(draws[:, 0], _TEXTURES))
    left, top = (integers(draws[:, column], _MARGIN + 1) for column in (1, 2))
    windows = pool.unfold(2, edge, 1).unfold(3, edge, 1).permute(0, 2, 3, 1, 4, 5)  # a view
    ground = windows[which, torch.from_numpy(top), torch.from_numpy(left)].float().div_(255)
    mean = ground.mean((2, 3), keepdim=True)
    return mean + texture * (ground - mean)


def shapes(subject: Subject, edge: int) -> Tensor:
    """Return the area covered by each subject: (n, 1, edge, edge) from 0 to 1, before opacity."""
    table = _masks()
    zoom = edge / SIZE / np.maximum(subject.size, 1e-3) * (28 / 32)
    cosine, sine = np.cos(subject.angle) * zoom, np.sin(subject.angle) * zoom
    across = -(cosine * subject.x - sine * subject.y)
    down = -(sine * subject.x + cosine * subject.y)
    theta = np.stack([cosine, -sine, across, sine, cosine, down], axis=1).reshape(-1, 2, 3)
    theta *= 32 / edge  # masks are for pictures of 32 pixels and scale with the picture
    grid = F.affine_grid(torch.from_numpy(theta.astype(np.float32)), [len(theta), 1, edge, edge], align_corners=False)
    masks = table[torch.from_numpy(subject.masks)][:, None].float()
    return F.grid_sample(masks, grid, align_corners=False).div_(255)


@cache
def _masks() -> Tensor:
    return torch.from_numpy(glyph_table().masks)


def paint(canvas: Tensor, subject: Subject, shade: Tensor) -> Tensor:
    """Paint the subjects on canvases (n, 3, edge, edge) in colors ``shade`` (n, 3)."""
    opacity = torch.from_numpy(subject.opacity.astype(np.float32))[:, None, None, None]
    return canvas + shapes(subject, canvas.shape[-1]) * opacity * (shade[:, :, None, None] - canvas)


def shades(colors: np.ndarray, key: int, indices: np.ndarray) -> Tensor:
    """Return slightly varied values of the colors: (n, 3)."""
    jitter = torch.from_numpy(uniforms(key, indices, 3)) - 0.5
    return (_COLORS[torch.from_numpy(colors)] + 0.24 * jitter).clamp(0, 1)


def separate_backgrounds(ground: Tensor, shade: Tensor) -> Tensor:
    """Shift backgrounds whose color is too close to the subject's."""
    difference = shade - ground.mean((2, 3))
    distance = difference.norm(dim=1, keepdim=True)
    missing = (_MIN_CONTRAST - distance).clamp_min(0)
    return ground - (difference / distance.clamp_min(1e-3) * missing)[:, :, None, None]


def with_noise(canvas: Tensor, key: int, indices: np.ndarray, noise: float) -> Tensor:
    """Add gray pixel noise and round to bytes: uint8 (n, 3, edge, edge)."""
    if noise:
        edge = canvas.shape[-1]
        start = torch.from_numpy(integers(uniforms(key, indices, 1)[:, 0], _NOISE - edge * edge))
        grain = _noise().as_strided((_NOISE - edge * edge, edge * edge), (1, 1))[start].view(-1, 1, edge, edge)
        canvas = canvas + noise * grain
    return canvas.mul(255).round_().clamp_(0, 255).byte()


def rotated(uniform: np.ndarray, nuisance: Nuisance) -> np.ndarray:
    """Convert uniform numbers in (0, 1) to angles in radians."""
    return (2 * uniform - 1) * nuisance.rotation * math.pi / 180
