"""From masks to pictures: placed, colored, over a background, many at a time."""

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
_LEAST_CONTRAST = 0.45


@dataclass(frozen=True)
class Nuisance:
    """What in a picture no caption speaks of.

    Attributes:
        texture: 0 for a plain background, 1 for a strong random texture.
        noise: standard deviation of pixel noise (of full brightness).
        contrast: least opacity of the subject.
        scale: least and greatest size of the subject, 1 nearly fills the picture.
        rotation: greatest angle, degrees either way.
        shift: greatest displacement, share of half the picture.
    """

    texture: float = 0.3
    noise: float = 0.04
    contrast: float = 0.7
    scale: tuple[float, float] = (0.85, 1.1)
    rotation: float = 4.0
    shift: float = 0.12


PLAIN_NUISANCE = Nuisance(texture=0.0, noise=0.01, contrast=1.0, scale=(0.95, 1.05), rotation=0.0, shift=0.03)
"""The narrow style of the label source: a clean character on a plain ground."""


@dataclass(frozen=True)
class Subject:
    """One character in each of ``n`` pictures; every field has n entries.

    Attributes:
        masks: rows of the table of masks.
        x, y: center, from -1 (left, top) to 1.
        size: 1 nearly fills the picture.
        angle: radians.
        opacity: 0 to 1; 0 leaves the subject out.
    """

    masks: np.ndarray
    x: np.ndarray
    y: np.ndarray
    size: np.ndarray
    angle: np.ndarray
    opacity: np.ndarray


@cache
def _textures(edge: int) -> Tensor:
    """Smooth random pictures, a little larger than asked, to cut backgrounds from: uint8."""
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
    """Backgrounds (n, 3, edge, edge) from 0 to 1: plain colors, the more structured the larger ``texture``."""
    draws = uniforms(key, indices, 3)
    pool = _textures(edge)
    which = torch.from_numpy(integers(draws[:, 0], _TEXTURES))
    left, top = (integers(draws[:, place], _MARGIN + 1) for place in (1, 2))
    windows = pool.unfold(2, edge, 1).unfold(3, edge, 1).permute(0, 2, 3, 1, 4, 5)  # a view: nothing is copied yet
    ground = windows[which, torch.from_numpy(top), torch.from_numpy(left)].float().div_(255)
    mean = ground.mean((2, 3), keepdim=True)
    return mean + texture * (ground - mean)


def shapes(subject: Subject, edge: int) -> Tensor:
    """Where each subject covers its picture: (n, 1, edge, edge) from 0 to 1, before opacity."""
    table = _masks()
    zoom = edge / SIZE / np.maximum(subject.size, 1e-3) * (28 / 32)
    cosine, sine = np.cos(subject.angle) * zoom, np.sin(subject.angle) * zoom
    across = -(cosine * subject.x - sine * subject.y)
    down = -(sine * subject.x + cosine * subject.y)
    theta = np.stack([cosine, -sine, across, sine, cosine, down], axis=1).reshape(-1, 2, 3)
    theta *= 32 / edge  # masks are drawn for pictures of 32 pixels and grow with the picture
    grid = F.affine_grid(torch.from_numpy(theta.astype(np.float32)), [len(theta), 1, edge, edge], align_corners=False)
    masks = table[torch.from_numpy(subject.masks)][:, None].float()
    return F.grid_sample(masks, grid, align_corners=False).div_(255)


@cache
def _masks() -> Tensor:
    return torch.from_numpy(glyph_table().masks)


def paint(canvas: Tensor, subject: Subject, shade: Tensor) -> Tensor:
    """Lay the subjects over the canvases (n, 3, edge, edge) in colors ``shade`` (n, 3)."""
    cover = (
        shapes(subject, canvas.shape[-1]) * torch.from_numpy(subject.opacity.astype(np.float32))[:, None, None, None]
    )
    return canvas + cover * (shade[:, :, None, None] - canvas)


def shades(colors: np.ndarray, key: int, indices: np.ndarray) -> Tensor:
    """The colors' values, each a little off: (n, 3)."""
    jitter = torch.from_numpy(uniforms(key, indices, 3)) - 0.5
    return (_COLORS[torch.from_numpy(colors)] + 0.24 * jitter).clamp(0, 1)


def set_apart(ground: Tensor, shade: Tensor) -> Tensor:
    """Move backgrounds that are too near in color to their subject away from it."""
    difference = shade - ground.mean((2, 3))
    distance = difference.norm(dim=1, keepdim=True)
    missing = (_LEAST_CONTRAST - distance).clamp_min(0)
    return ground - (difference / distance.clamp_min(1e-3) * missing)[:, :, None, None]


def with_noise(canvas: Tensor, key: int, indices: np.ndarray, noise: float) -> Tensor:
    """Add pixel noise (the same for the three channels) and round to bytes: uint8 (n, 3, edge, edge)."""
    if noise:
        edge = canvas.shape[-1]
        start = torch.from_numpy(integers(uniforms(key, indices, 1)[:, 0], _NOISE - edge * edge))
        grain = _noise().as_strided((_NOISE - edge * edge, edge * edge), (1, 1))[start].view(-1, 1, edge, edge)
        canvas = canvas + noise * grain
    return canvas.mul(255).round_().clamp_(0, 255).byte()


def rotated(uniform: np.ndarray, nuisance: Nuisance) -> np.ndarray:
    """Angles in radians from numbers in (0, 1)."""
    return (2 * uniform - 1) * nuisance.rotation * math.pi / 180
