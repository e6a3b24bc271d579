"""The glyph world: pictures of characters with captions about script, shape and name."""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from recollect.core.seeding import derive_seed, integers, numpy_generator, uniforms
from recollect.core.types import BatchRead, Kind
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect_papers.worlds.arrays import GeneratedSource, no_labels
from recollect_papers.worlds.glyph_table import ATTRIBUTES, SCRIPTS, GlyphTable, glyph_table
from recollect_papers.worlds.rendering import (
    COLOR_NAMES,
    PLAIN_NUISANCE,
    Nuisance,
    Subject,
    background,
    paint,
    rotated,
    separate_backgrounds,
    shades,
    with_noise,
)

FILLERS = ("image", "glyph", "picture", "sign", "sample", "photo", "symbol", "drawn")

CHARACTER_SPLITS = ("train", "validation", "test")
_UNSEEN = {"tifinagh letter": "validation", "nko letter": "test", "lao letter": "test", "lisu letter": "test"}
_LEFT_OUT = "symbol"  # too diverse for its name to mean anything


@dataclass(frozen=True)
class GlyphWorld:
    """Settings of pictures and captions.

    The characters of each script are split: half for training, a quarter each for validation and test; four scripts are
    held out entirely. The last four font faces are held out from training.

    Attributes:
        seed: seed of the stream of pictures; the split of the characters is fixed.
        edge: height and width of a picture in pixels.
        nuisance: variation in pictures that captions do not mention.
        says_script: probability that a caption contains the script ("greek letter").
        says_attribute: probability for each of the eight attributes; a fraction ``wrong_attribute`` is wrong.
        says_name: probability for the character's name, whose words are dropped with probability ``drops_word``.
        says_synonym: probability that a name is replaced by its synonyms.
        fillers: number of meaningless words at the end.
    """

    seed: int = 0
    edge: int = 32
    nuisance: Nuisance = field(default_factory=Nuisance)
    says_script: float = 0.8
    says_attribute: float = 0.7
    wrong_attribute: float = 0.05
    says_name: float = 0.05
    drops_word: float = 0.2
    says_synonym: float = 0.0
    fillers: int = 2

    @property
    def table(self) -> GlyphTable:
        """Table of characters."""
        return glyph_table()

    @cached_property
    def split(self) -> dict[str, np.ndarray]:
        """Sorted characters of each split."""
        parts: dict[str, list[int]] = {name: [] for name in CHARACTER_SPLITS}
        for number, (script, _) in enumerate(SCRIPTS):
            members = np.flatnonzero(self.table.scripts == number)
            if script == _LEFT_OUT:
                continue
            if script in _UNSEEN:
                parts[_UNSEEN[script]] += members.tolist()
                continue
            members = numpy_generator("glyph split", script).permutation(members)
            half, quarter = len(members) // 2, len(members) // 4
            for name, chosen in zip(CHARACTER_SPLITS, np.split(members, [half, half + quarter]), strict=True):
                parts[name] += chosen.tolist()
        return {name: np.array(sorted(members)) for name, members in parts.items()}

    @cached_property
    def name_words(self) -> tuple[tuple[str, ...], ...]:
        """Words of each character's name that occur in names of training characters."""
        words = [tuple(re.sub(r"[^a-z0-9 ]", " ", name).split()) for name in self.table.names]
        known = {word for character in self.split["train"] for word in words[character]}
        return tuple(tuple(word for word in name if word in known) for name in words)

    @cached_property
    def _training_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """All masks in training faces, and the offset of each character's first."""
        rows = [self.table.masks_of(character, held_out=False) for character in range(len(self.table.code_points))]
        return np.concatenate(rows), np.concatenate([[0], np.cumsum([len(row) for row in rows])])

    @cached_property
    def _frequency(self) -> np.ndarray:
        """Cumulative probability of training characters; scripts weigh by the square root of their size."""
        scripts = self.table.scripts[self.split["train"]]
        weights = np.bincount(self.table.scripts)[scripts] ** -0.5
        return np.cumsum(weights) / weights.sum()

    def draw_characters(self, uniform: np.ndarray) -> np.ndarray:
        """Draw training characters from uniform numbers in (0, 1)."""
        index = np.searchsorted(self._frequency, uniform)
        return self.split["train"][index.clip(0, len(self.split["train"]) - 1)]

    def draw_masks(self, characters: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Draw a mask of each character in a training face."""
        rows, first = self._training_masks
        count = first[characters + 1] - first[characters]
        return rows[first[characters] + (uniform * count).astype(np.int64).clip(0, count - 1)]

    def render(
        self, masks: np.ndarray, colors: np.ndarray, key: int, indices: np.ndarray, nuisance: Nuisance | None = None
    ) -> Tensor:
        """Render a picture per mask: uint8 (n, 3, edge, edge), determined by ``key`` and the row's index."""
        nuisance = nuisance or self.nuisance
        draws = uniforms(derive_seed(key, "place"), indices, 7)
        low, high = nuisance.scale
        subject = Subject(
            masks,
            (2 * draws[:, 0] - 1) * nuisance.shift,
            (2 * draws[:, 1] - 1) * nuisance.shift,
            low + (high - low) * draws[:, 2],
            rotated(draws[:, 3], nuisance),
            nuisance.contrast + (1 - nuisance.contrast) * draws[:, 4],
        )
        shade = shades(colors, derive_seed(key, "shade"), indices)
        ground = background(derive_seed(key, "ground"), indices, self.edge, nuisance.texture)
        canvas = paint(separate_backgrounds(ground, shade), subject, shade)
        return with_noise(canvas, derive_seed(key, "noise"), indices, nuisance.noise)

    def captions(self, characters: np.ndarray, masks: np.ndarray, key: int, indices: np.ndarray) -> list[str]:
        """Generate captions, which never mention color or position."""
        eight = len(ATTRIBUTES)
        draws = uniforms(derive_seed(key, "caption"), indices, 2 + 3 * eight + self.fillers + 8)
        says, wrong, other = (draws[:, 2 + eight * part : 2 + eight * (part + 1)] for part in range(3))
        values = np.where(wrong < self.wrong_attribute, integers(other, 3), self.table.attributes[masks])
        filler = integers(draws[:, 2 + 3 * eight : 2 + 3 * eight + self.fillers], len(FILLERS))
        dropped = draws[:, -8:] < self.drops_word
        scripts = self.table.scripts[characters]
        renamed = uniforms(derive_seed(key, "synonym"), indices, 1)[:, 0] < self.says_synonym
        texts = []
        for row, character in enumerate(characters):
            words = []
            if draws[row, 0] < self.says_name:
                name = self.name_words[character][:8]
                name_words = [word for position, word in enumerate(name) if not dropped[row, position]]
                words += [SYNONYMS.get(word, word) for word in name_words] if renamed[row] else name_words
            if draws[row, 1] < self.says_script:
                words.append(SCRIPTS[scripts[row]][0])
            words += [ATTRIBUTES[a][values[row, a]] for a in range(eight) if says[row, a] < self.says_attribute]
            texts.append(" ".join([*words, *(FILLERS[number] for number in filler[row])]))
        return texts

    def vocabulary(self) -> tuple[str, ...]:
        """Return all words that captions may contain."""
        words = {word for character in self.split["train"] for word in self.name_words[character]}
        words |= {word for script, _ in SCRIPTS for word in script.split()}
        words |= {word for values in ATTRIBUTES for word in values} | set(FILLERS)
        if self.says_synonym:
            words |= {SYNONYMS[word] for word in words & SYNONYMS.keys()}
        return tuple(sorted(words))


_SCRIPTS = ("latin letter", "greek letter", "geometric shape", "arrow")
_CLASSES, _PICTURES = 50, 50
"""Classes per script and pictures per class in the label set."""

_Part = Literal["all", "half", "rest"]
_PARTS: dict[_Part, slice] = {"all": slice(None), "half": slice(0, None, 2), "rest": slice(1, None, 2)}


@dataclass(eq=False)
class GlyphCaptions(GeneratedSource):
    """Endless stream of captioned characters.

    The ``seed`` of `batch` determines placement, color, background and noise: different seeds give different views of
    the same character, face and caption.
    """

    world: GlyphWorld
    name: str = "glyphs:captions"

    def subjects(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the character and mask of each sample."""
        draws = uniforms(derive_seed(self.world.seed, "captions"), indices, 2)
        characters = self.world.draw_characters(draws[:, 0])
        return characters, self.world.draw_masks(characters, draws[:, 1])

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return self.world.captions(*self.subjects(indices), derive_seed(self.world.seed, "captions"), indices)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Return pictures uint8 (n, 3, edge, edge), captions, and empty labels."""
        world, content = self.world, derive_seed(self.world.seed, "captions")
        characters, masks = self.subjects(indices)
        view = derive_seed(content, "view", seed)
        colors = integers(uniforms(derive_seed(view, "colour"), indices, 1)[:, 0], len(COLOR_NAMES))
        texts = self.world.captions(characters, masks, content, indices)
        return world.render(masks, colors, view, indices), texts, no_labels(len(indices))


@dataclass(eq=False)
class GlyphLabels(GeneratedSource):
    """Label set with little variety: one face, plain background, four scripts, balanced classes.

    Its classes are training characters; its only words are their names.

    Attributes:
        offset: offset of the pictures' indices, which separates training and test pictures.
        part: all classes, every other class, or the rest.
        renamed: use synonyms as class names where they exist.
    """

    world: GlyphWorld
    name: str = "glyphs:labels"
    kind: Kind = "label"
    offset: int = 0
    part: _Part = "all"
    renamed: bool = False

    def __post_init__(self) -> None:
        table, training = self.world.table, self.world.split["train"]
        numbers = {script: number for number, (script, _) in enumerate(SCRIPTS)}
        chosen = [training[table.scripts[training] == numbers[script]][:_CLASSES] for script in _SCRIPTS]
        self.characters = np.concatenate(chosen)[_PARTS[self.part]]
        names = [table.names[character] for character in self.characters]
        self.synonyms = tuple(replace_by_synonyms(name) for name in names)
        others = self.synonyms if self.renamed else [None] * len(names)
        self.class_names = tuple(other or name for name, other in zip(names, others, strict=True))
        self.size = _PICTURES * len(self.characters)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words of the class names."""
        return tuple(sorted({word for name in self.class_names for word in name.split()}))

    @cached_property
    def labels(self) -> np.ndarray:
        return np.arange(len(self)) % len(self.characters)

    def draw(self, indices: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Draw pictures and labels."""
        labels = indices % len(self.characters)
        masks = self.world.table.first[self.characters[labels]]
        key = derive_seed(self.world.seed, "labels")
        moved = indices + self.offset
        colors = integers(uniforms(derive_seed(key, "colour"), moved, 1)[:, 0], len(COLOR_NAMES))
        return self.world.render(masks, colors, key, moved, PLAIN_NUISANCE), labels

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Return pictures, class names in templates drawn by ``seed``, and labels."""
        images, labels = self.draw(indices)
        return images, self._prompts(indices, labels, seed), torch.from_numpy(labels)

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return self._prompts(indices, indices % len(self.characters), 0)

    def _prompts(self, indices: np.ndarray, labels: np.ndarray, seed: int) -> list[str]:
        template = integers(uniforms(derive_seed("template", seed), indices, 1)[:, 0], len(GENERAL_TEMPLATES))
        return [
            fill(GENERAL_TEMPLATES[which], self.class_names[label])
            for which, label in zip(template, labels, strict=True)
        ]


def unseen_part(source: GlyphLabels) -> GlyphLabels:
    """Return the test part of a label set: the same classes in other pictures."""
    return replace(source, offset=source.offset + len(source), name=f"{source.name}-test")


_PAIRS = """
    arrow=pointer arrows=pointers leftwards=westward rightwards=eastward upwards=northward downwards=southward
    left=port right=starboard up=ascending down=descending north=upper south=lower west=lefthand east=righthand
    double=twin two=dual headed=tipped open=unfilled paired=coupled zigzag=lightning squiggle=wavy dashed=broken
    electric=charged with=bearing stroke=slash bar=wall base=footing loop=curl corner=angle vertical=upright
    horizontal=flat pedestal=stand to=toward over=above on=upon from=off white=hollow black=solid circled=ringed
    squared=boxed plus=cross minus=rule times=saltire dot=point ring=annulus dash=line notch=nick operator=function
    diamond=rhombus square=quadrate circle=disc triangle=wedge star=asterism cup=vessel bracket=clasp top=head
    bottom=foot latin=roman letter=character capital=uppercase small=lowercase digit=numeral number=count
"""
SYNONYMS: dict[str, str] = dict(pair.split("=") for pair in _PAIRS.split())
"""Synonyms by word; no synonym is also a word of a name."""


def replace_by_synonyms(name: str) -> str | None:
    """Replace every word of a name by its synonym; None if a word has none."""
    words = re.sub(r"[^a-z0-9 ]", " ", name).split()
    return " ".join(SYNONYMS[word] for word in words) if all(word in SYNONYMS for word in words) else None
