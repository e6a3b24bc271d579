"""Sources of the glyph world: a stream of captioned characters and a label set."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from recollect.core.seeding import derive_seed, integers, uniforms
from recollect.core.types import BatchRead, Kind
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect_papers.worlds.arrays import MadeSource, no_labels
from recollect_papers.worlds.glyph_synonyms import in_other_words
from recollect_papers.worlds.glyph_table import SCRIPTS
from recollect_papers.worlds.glyphs import GlyphWorld
from recollect_papers.worlds.rendering import COLOUR_NAMES, PLAIN_NUISANCE

_SCRIPTS = ("latin letter", "greek letter", "geometric shape", "arrow")
_CLASSES, _PICTURES = 50, 50
"""Classes of each script, and pictures of each class, of the label set."""

_Part = Literal["all", "half", "rest"]
_PARTS: dict[_Part, slice] = {"all": slice(None), "half": slice(0, None, 2), "rest": slice(1, None, 2)}


@dataclass(eq=False)
class GlyphCaptions(MadeSource):
    """An endless stream of characters in any style, with captions that `GlyphWorld` decides.

    The ``seed`` of `batch` decides placement, colour, background and noise, so that two seeds are two views of the
    same character in the same face under the same caption.
    """

    world: GlyphWorld
    name: str = "glyphs:captions"

    def subjects(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Character and mask of each sample."""
        draws = uniforms(derive_seed(self.world.seed, "captions"), indices, 2)
        characters = self.world.draw_characters(draws[:, 0])
        return characters, self.world.draw_masks(characters, draws[:, 1])

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return self.world.captions(*self.subjects(indices), derive_seed(self.world.seed, "captions"), indices)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Pictures uint8 (n, 3, edge, edge), one caption each, and no labels."""
        world, content = self.world, derive_seed(self.world.seed, "captions")
        characters, masks = self.subjects(indices)
        view = derive_seed(content, "view", seed)
        colours = integers(uniforms(derive_seed(view, "colour"), indices, 1)[:, 0], len(COLOUR_NAMES))
        texts = self.world.captions(characters, masks, content, indices)
        return world.render(masks, colours, view, indices), texts, no_labels(len(indices))


@dataclass(eq=False)
class GlyphLabels(MadeSource):
    """A label set, narrow where the captions are broad: one face, plain ground, few scripts, every class as often.

    Its classes are training characters of four scripts; their names are the only words it has.

    Attributes:
        offset: of the pictures' indices, so that training and test pictures differ.
        part: all classes, every other one, or the rest: a large label set, a small one, and the large without it.
        renamed: classes that have other words for their name are called by those.
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
        self.synonyms = tuple(in_other_words(name) for name in names)
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
        """Pictures and labels."""
        labels = indices % len(self.characters)
        masks = self.world.table.first[self.characters[labels]]
        key = derive_seed(self.world.seed, "labels")
        moved = indices + self.offset
        colours = integers(uniforms(derive_seed(key, "colour"), moved, 1)[:, 0], len(COLOUR_NAMES))
        return self.world.render(masks, colours, key, moved, PLAIN_NUISANCE), labels

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Pictures, each class name in a template drawn by ``seed``, and labels."""
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
    """The same classes in pictures that the training part does not have."""
    return replace(source, offset=source.offset + len(source), name=f"{source.name}-test")
