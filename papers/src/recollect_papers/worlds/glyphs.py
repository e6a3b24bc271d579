"""The glyph world: pictures of characters, captions made from their scripts, shapes and names."""

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from recollect.core.seeding import derive_seed, integers, numpy_generator, uniforms
from recollect_papers.worlds.glyph_synonyms import SYNONYMS
from recollect_papers.worlds.glyph_table import ATTRIBUTES, SCRIPTS, GlyphTable, glyph_table
from recollect_papers.worlds.rendering import (
    Nuisance,
    Subject,
    background,
    paint,
    rotated,
    set_apart,
    shades,
    with_noise,
)

FILLERS = ("image", "glyph", "picture", "sign", "sample", "photo", "symbol", "drawn")

CHARACTER_SPLITS = ("train", "validation", "test")
_UNSEEN = {"tifinagh letter": "validation", "nko letter": "test", "lao letter": "test", "lisu letter": "test"}
_LEFT_OUT = "symbol"  # a mixed bag: its word would say nothing


@dataclass(frozen=True)
class GlyphWorld:
    """Settings of the pictures and their captions.

    Characters are split by script: half for training, a quarter each for choosing and for testing; four scripts are
    held out whole. The last four font faces are held out of training.

    Attributes:
        seed: of the stream of pictures; the split of the characters is always the same.
        edge: height and width of a picture.
        nuisance: what varies in a picture and is never said.
        says_script: probability that a caption says the script ("greek letter").
        says_attribute: probability for each of the eight measured attributes; ``wrong_attribute`` of them are wrong.
        says_name: probability that it says the words of the character's name, each dropped with ``drops_word``.
        says_synonym: probability that a name is replaced by a synonym, where it has one.
        fillers: words without meaning at the end.
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
        """The characters."""
        return glyph_table()

    @cached_property
    def split(self) -> dict[str, np.ndarray]:
        """Characters of each split, sorted."""
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
        """For each character the words of its name that some training character's name has too."""
        words = [tuple(re.sub(r"[^a-z0-9 ]", " ", name).split()) for name in self.table.names]
        known = {word for character in self.split["train"] for word in words[character]}
        return tuple(tuple(word for word in name if word in known) for name in words)

    @cached_property
    def _training_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Each character's masks in the training faces, in one array, and where they begin."""
        rows = [self.table.masks_of(character, held_out=False) for character in range(len(self.table.code_points))]
        return np.concatenate(rows), np.concatenate([[0], np.cumsum([len(row) for row in rows])])

    @cached_property
    def _frequency(self) -> np.ndarray:
        """Cumulative probability of the training characters: scripts weigh as the root of their size."""
        scripts = self.table.scripts[self.split["train"]]
        weights = np.bincount(self.table.scripts)[scripts] ** -0.5
        return np.cumsum(weights) / weights.sum()

    def draw_characters(self, uniform: np.ndarray) -> np.ndarray:
        """Training characters from numbers in (0, 1)."""
        place = np.searchsorted(self._frequency, uniform)
        return self.split["train"][place.clip(0, len(self.split["train"]) - 1)]

    def draw_masks(self, characters: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """A mask of each character, in any of the training faces that has it."""
        rows, first = self._training_masks
        count = first[characters + 1] - first[characters]
        return rows[first[characters] + (uniform * count).astype(np.int64).clip(0, count - 1)]

    def render(
        self, masks: np.ndarray, colours: np.ndarray, key: int, indices: np.ndarray, nuisance: Nuisance | None = None
    ) -> Tensor:
        """One picture for each mask: uint8 (n, 3, edge, edge), a function of ``key`` and each row's index."""
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
        shade = shades(colours, derive_seed(key, "shade"), indices)
        ground = background(derive_seed(key, "ground"), indices, self.edge, nuisance.texture)
        canvas = paint(set_apart(ground, shade), subject, shade)
        return with_noise(canvas, derive_seed(key, "noise"), indices, nuisance.noise)

    def captions(self, characters: np.ndarray, masks: np.ndarray, key: int, indices: np.ndarray) -> list[str]:
        """What the caption of each picture mentions; colour and place never."""
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
                said = [word for place, word in enumerate(name) if not dropped[row, place]]
                words += [SYNONYMS.get(word, word) for word in said] if renamed[row] else said
            if draws[row, 1] < self.says_script:
                words.append(SCRIPTS[scripts[row]][0])
            words += [ATTRIBUTES[a][values[row, a]] for a in range(eight) if says[row, a] < self.says_attribute]
            texts.append(" ".join([*words, *(FILLERS[number] for number in filler[row])]))
        return texts

    def vocabulary(self) -> tuple[str, ...]:
        """Every word that a caption may hold."""
        words = {word for character in self.split["train"] for word in self.name_words[character]}
        words |= {word for script, _ in SCRIPTS for word in script.split()}
        words |= {word for values in ATTRIBUTES for word in values} | set(FILLERS)
        if self.says_synonym:
            words |= {SYNONYMS[word] for word in words & SYNONYMS.keys()}
        return tuple(sorted(words))
