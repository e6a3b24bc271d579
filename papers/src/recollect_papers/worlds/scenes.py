"""Scenes of one to three characters with colors, sizes and positions, and captions that describe all of them."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from recollect.core.seeding import derive_seed, integers, uniforms
from recollect.core.types import BatchRead
from recollect_papers.worlds.arrays import GeneratedSource, no_labels
from recollect_papers.worlds.glyph_table import SCRIPTS
from recollect_papers.worlds.glyphs import GlyphWorld
from recollect_papers.worlds.rendering import COLOR_NAMES, Nuisance, Subject, paint, rotated, shades, with_noise

CHARACTER_SIZES = ("small", "large")
RELATIONS = ("left of", "right of", "above", "below")
DETAILS = ("color", "size", "relation", "character", "ground")
"""Details in which hard negatives differ from their scene."""

_SIZES = (0.38, 0.58)  # small and large characters, as fractions of the picture
_SCENIC = ("symbol", "geometric shape", "playing card", "face emoji", "arrow", "domino tile")
_MAX_NAME_WORDS = 4


@dataclass(frozen=True)
class Scenes:
    """Scenes; a relation holds between the first two characters, and the third is next to both.

    Attributes:
        count: characters in each scene, 1 to 3 (n,).
        characters: (n, 3), rows of the table of characters.
        colors: (n, 3), indices of the colors.
        sizes: (n, 3), 0 small, 1 large.
        relation: (n,), index of `RELATIONS`.
        ground: (n,), color of the background.
    """

    count: np.ndarray
    characters: np.ndarray
    colors: np.ndarray
    sizes: np.ndarray
    relation: np.ndarray
    ground: np.ndarray

    def __len__(self) -> int:
        return len(self.count)


def scenic_characters(world: GlyphWorld) -> np.ndarray:
    """Return characters with short names: pictographs, shapes, arrows, cards."""
    table = world.table
    numbers = [number for number, (script, _) in enumerate(SCRIPTS) if script in _SCENIC]
    short = np.array([len(name.split()) <= _MAX_NAME_WORDS for name in table.names])
    drawn = np.array([len(world.table.masks_of(c, held_out=False)) > 0 for c in range(len(short))])
    return np.flatnonzero(np.isin(table.scripts, numbers) & short & drawn)


def draw_scenes(pool: np.ndarray, key: int, indices: np.ndarray) -> Scenes:
    """Draw a scene per index, with distinct characters and colors that differ from the ground's."""
    draws = uniforms(derive_seed(key, "scene"), indices, 12)
    first = integers(draws[:, 0], len(pool))
    characters = pool[(first[:, None] + np.cumsum(_steps(draws[:, 1:3], len(pool)), axis=1)) % len(pool)]
    ground = integers(draws[:, 3], len(COLOR_NAMES))
    colors = (ground[:, None] + 1 + integers(draws[:, 4:7], len(COLOR_NAMES) - 1)) % len(COLOR_NAMES)
    return Scenes(
        1 + integers(draws[:, 7], 3),
        characters,
        colors,
        integers(draws[:, 8:11], len(CHARACTER_SIZES)),
        integers(draws[:, 11], len(RELATIONS)),
        ground,
    )


def _steps(uniform: np.ndarray, size: int) -> np.ndarray:
    """Draw offsets of three distinct characters: 0 and two strides whose sum is less than ``size``."""
    stride = 1 + integers(uniform, (size - 1) // 2)
    return np.concatenate([np.zeros((len(stride), 1), dtype=np.int64), stride], axis=1)


def places(scenes: Scenes) -> tuple[np.ndarray, np.ndarray]:
    """Return centers x, y (n, 3) from -1 to 1 according to the relations."""
    far = 0.48
    x, y = np.zeros((len(scenes), 3)), np.zeros((len(scenes), 3))
    next_to = scenes.relation < 2
    before = np.where(scenes.relation % 2 == 0, -far, far)  # left of, above
    third = scenes.count == 3
    for axis, other, mine in ((x, y, next_to), (y, x, ~next_to)):
        axis[mine, 0], axis[mine, 1] = before[mine], -before[mine]
        both = mine & third
        other[both, 0], other[both, 1], other[both, 2] = -far, -far, far
    alone = scenes.count == 1
    x[alone], y[alone] = 0.0, 0.0
    return x, y


def render_scenes(world: GlyphWorld, scenes: Scenes, key: int, indices: np.ndarray) -> Tensor:
    """Render pictures uint8 (n, 3, edge, edge)."""
    nuisance = Nuisance(rotation=6.0, noise=0.02)
    ground = shades(scenes.ground, derive_seed(key, "ground"), indices)
    canvas = ground[:, :, None, None].expand(-1, -1, world.edge, world.edge)
    x, y = places(scenes)
    for thing in range(3):
        draws = uniforms(derive_seed(key, "jitter", thing), indices, 4)
        shade = shades(scenes.colors[:, thing], derive_seed(key, "shade", thing), indices)
        edge = np.array(_SIZES)[scenes.sizes[:, thing]]
        subject = Subject(
            world.draw_masks(scenes.characters[:, thing], draws[:, 0]),
            x[:, thing] + 0.06 * (2 * draws[:, 1] - 1),
            y[:, thing] + 0.06 * (2 * draws[:, 2] - 1),
            edge,
            rotated(draws[:, 3], nuisance),
            (scenes.count > thing).astype(np.float64),
        )
        canvas = paint(canvas, subject, shade)
    return with_noise(canvas, derive_seed(key, "noise"), indices, nuisance.noise)


def scene_captions(world: GlyphWorld, scenes: Scenes, turned: np.ndarray | None = None) -> list[str]:
    """Generate a true caption for each scene.

    Args:
        turned: which captions are reversed: the ground first, ``B right of A`` for ``A left of B``.
    """
    names = world.table.names
    texts = []
    for row in range(len(scenes)):
        things = [
            f"a {CHARACTER_SIZES[scenes.sizes[row, thing]]} {COLOR_NAMES[scenes.colors[row, thing]]} "
            f"{names[scenes.characters[row, thing]]}"
            for thing in range(scenes.count[row])
        ]
        other_way = turned is not None and bool(turned[row])
        clauses = [things[0]]
        if len(things) > 1:
            relation = int(scenes.relation[row]) ^ int(other_way)
            clauses = [f" {RELATIONS[relation]} ".join(things[1::-1] if other_way else things[:2])]
        if len(things) > 2:
            # The third character is below a horizontal pair and right of a vertical one.
            clauses.append(f"{'above' if scenes.relation[row] < 2 else 'left of'} {things[2]}")
        clauses.append(f"on a {COLOR_NAMES[scenes.ground[row]]} ground")
        texts.append(", ".join(clauses[::-1] if other_way else clauses))
    return texts


@dataclass(eq=False)
class GlyphScenes(GeneratedSource):
    """Endless stream of captioned scenes.

    Attributes:
        turned: percentage of reversed captions (see `scene_captions`).
    """

    world: GlyphWorld
    name: str = "glyphs:scenes"
    turned: int = 0

    def __post_init__(self) -> None:
        self.pool = scenic_characters(self.world)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words that captions may contain."""
        words = {word for character in self.pool for word in self.world.table.names[character].split()}
        words |= {word for relation in RELATIONS for word in relation.split()}
        return tuple(sorted(words | set(COLOR_NAMES) | set(CHARACTER_SIZES) | {"a", "on", "ground"}))

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return self._describe(self.scenes(indices), indices)

    def _describe(self, scenes: Scenes, indices: np.ndarray) -> list[str]:
        if not self.turned:
            return scene_captions(self.world, scenes)
        draws = uniforms(derive_seed(self.world.seed, self.name, "turned"), indices, 1)[:, 0]
        return scene_captions(self.world, scenes, draws < self.turned / 100)

    def scenes(self, indices: np.ndarray) -> Scenes:
        """Return the scene of each sample."""
        return draw_scenes(self.pool, derive_seed(self.world.seed, self.name), indices)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Return pictures uint8 (n, 3, edge, edge), captions, and empty labels; ``seed`` determines the nuisance."""
        scenes = self.scenes(indices)
        view = derive_seed(self.world.seed, self.name, "view", seed)
        images = render_scenes(self.world, scenes, view, indices)
        return images, self._describe(scenes, indices), no_labels(len(indices))


@dataclass(eq=False)
class HardScenes(GeneratedSource):
    """Groups of similar scenes for retrieval, which differ in one detail each.

    A group is a scene of two or three characters and one variant for each of `DETAILS`; ``extra`` gives the group and
    the detail.
    """

    world: GlyphWorld
    name: str = "glyphs:hard"
    groups: int = 200

    def __post_init__(self) -> None:
        self.pool = scenic_characters(self.world)
        self.size = self.groups * (1 + len(DETAILS))

    def scenes(self, indices: np.ndarray) -> Scenes:
        """Return the scene of each sample: the group's scene with at most one detail changed."""
        group, variant = np.divmod(indices, 1 + len(DETAILS))
        base = draw_scenes(self.pool, derive_seed(self.world.seed, self.name), group)
        scenes = replace(copy.deepcopy(base), count=base.count.clip(2, 3))
        changed = [variant == 1 + number for number in range(len(DETAILS))]
        palette = len(COLOR_NAMES)
        scenes.colors[changed[0], 0] = _other(base.colors[changed[0], 0], base.ground[changed[0]], palette)
        scenes.sizes[changed[1], 0] = 1 - base.sizes[changed[1], 0]
        scenes.relation[changed[2]] = base.relation[changed[2]] ^ 1
        index = np.searchsorted(self.pool, base.characters[changed[3], 1])
        scenes.characters[changed[3], 1] = self.pool[(index + len(self.pool) // 2) % len(self.pool)]
        used = base.colors[changed[4]]
        ground = base.ground[changed[4]].copy()
        for row in range(len(ground)):
            free = [color for color in range(palette) if color not in {*used[row].tolist(), ground[row]}]
            ground[row] = free[int(ground[row]) % len(free)]
        scenes.ground[changed[4]] = ground
        return scenes

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return scene_captions(self.world, self.scenes(indices))

    def extra(self, index: int) -> dict[str, Any]:
        """Return the group and the changed detail."""
        group, variant = divmod(index, 1 + len(DETAILS))
        return {"domain": "hard scenes", "group": group, "detail": ("none", *DETAILS)[variant]}

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Return pictures uint8 (n, 3, edge, edge), captions, and empty labels; independent of ``seed``."""
        scenes = self.scenes(indices)
        images = render_scenes(self.world, scenes, derive_seed(self.world.seed, self.name), indices)
        return images, scene_captions(self.world, scenes), no_labels(len(indices))


def _other(colors: np.ndarray, ground: np.ndarray, palette: int) -> np.ndarray:
    """Return other colors that also differ from the ground's."""
    following = (colors + 1) % palette
    return np.where(following == ground, (following + 1) % palette, following)
