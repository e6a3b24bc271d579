"""The glyph world for RECO: training covers half of the characters, the index all of them."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from recollect.core.seeding import derive_seed
from recollect.core.types import NO_LABEL, Kind, Sample, Source
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.retrieval import RetrievalTask
from recollect_papers.worlds.arrays import ArraySource
from recollect_papers.worlds.glyph_table import SCRIPTS
from recollect_papers.worlds.glyph_tasks import drawn
from recollect_papers.worlds.glyphs import CHARACTER_SPLITS, GlyphWorld
from recollect_papers.worlds.tasks import world_tasks, world_zero_shot_tasks

_SAYS_NAME, _SAYS_ATTRIBUTE = 0.8, 0.3
ADDRESS = f"glyphs:captions?says_name={_SAYS_NAME}&says_attribute={_SAYS_ATTRIBUTE}"
"""Captions that usually name the character, like captions of rare entities."""

NEW_SCRIPTS = ("lao letter", "lisu letter", "nko letter")


@dataclass(eq=False)
class GlyphPairs(Source):
    """Captioned pictures of characters in the training faces, ``each`` per character; ``name`` seeds the drawing."""

    world: GlyphWorld
    characters: np.ndarray
    each: int
    name: str
    kind: Kind = "caption"
    class_names: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Digest of the world's settings and the characters."""
        return f"{derive_seed(self.name, repr(self.world), repr(self.characters.tolist()), self.each):016x}"

    def __len__(self) -> int:
        return len(self.characters) * self.each

    def __getitem__(self, index: int) -> Sample:
        owner = int(np.repeat(self.characters, self.each)[index])
        about = {"character": owner, "name": self.world.table.names[owner]}
        pictures, texts = self._drawn
        return Sample(pictures[index], (texts[index],), NO_LABEL, self.name, "caption", str(index), about)

    @cached_property
    def _drawn(self) -> tuple[np.ndarray, list[str]]:
        owners, key = np.repeat(self.characters, self.each), derive_seed("reco", self.name)
        pictures, masks = drawn(self.world, owners, derive_seed(key, "style"), key)
        return pictures, self.world.captions(owners, masks, key, np.arange(len(owners)))


@lru_cache(maxsize=4)
def glyph_world() -> GlyphWorld:
    """Return the world of RECO's studies."""
    return GlyphWorld(says_name=_SAYS_NAME, says_attribute=_SAYS_ATTRIBUTE)


def training_sources(new: int, known: int, every: int) -> tuple[GlyphPairs, ...]:
    """Return training pairs for fusions: ``new`` per character not seen in pretraining, ``known`` per other character.

    A fusion trained only on pairs that the frozen model was fitted to learns to trust the model, not the index. New
    characters are those of split ``validation`` in none of its tasks, so the tasks remain usable for choosing settings.
    """
    world = glyph_world()
    tested = {name for column in ("new characters", "new scripts") for task in glyph_tasks("validation")[column]
             for name in task.class_names}  # fmt: skip
    free = [character for character in world.split["validation"] if world.table.names[character] not in tested]
    return (
        GlyphPairs(world, np.array(free)[::every], new, "glyph pairs, new characters"),
        GlyphPairs(world, world.split["train"][::every], known, "glyph pairs, known characters"),
    )


def memory_sources(each: int, every: int) -> tuple[GlyphPairs, ...]:
    """Return pairs for the index, of all characters, with different pictures than in training and tests."""
    world = glyph_world()
    return tuple(
        GlyphPairs(world, world.split[split][::every], each, f"glyph memory {split}") for split in CHARACTER_SPLITS
    )


def glyph_tasks(split: str = "test") -> dict[str, list[ClassificationTask]]:
    """Return tasks by column: new characters in known and new scripts, and the scripts and attributes in captions."""
    tasks = world_tasks(ADDRESS, split)
    new = {f"glyphs-{split}-{script.replace(' ', '-')}" for script in (*NEW_SCRIPTS, "tifinagh letter")}
    generic = world_zero_shot_tasks(ADDRESS, split)
    return {
        "new characters": [task for task in tasks if task.name not in new],
        "new scripts": [task for task in tasks if task.name in new],
        "scripts": generic[:1],
        "attributes": generic[1:3],
    }


def name_of(world: GlyphWorld, character: int) -> str:
    """Return the words of a character's name that occur in training, and its script."""
    return " ".join([*world.name_words[character], SCRIPTS[world.table.scripts[character]][0]])


def _pictures_of(world: GlyphWorld, characters: np.ndarray, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw each character, in a held-out face if it has one; return pictures and masks."""
    faces = [[world.table.masks_of(int(each), held_out=held_out) for held_out in (True, False)] for each in characters]
    subjects = [held_out if len(held_out) else trained for held_out, trained in faces]
    return drawn(world, subjects, derive_seed("reco", key), derive_seed("reco", key, "view"))


def glyph_entities(split: str = "test", every: int = 1) -> tuple[ClassificationTask, np.ndarray]:
    """Return a task over all trained characters and a split's new ones with unique names, and which were trained."""
    world = glyph_world()
    both = np.concatenate([world.split["train"][::every], world.split[split][::every]])
    names = [name_of(world, int(character)) for character in both]
    counts = {name: names.count(name) for name in set(names)}
    unique = np.array([character for character, name in zip(both, names, strict=True) if counts[name] == 1])
    names = [name_of(world, int(character)) for character in unique]
    pictures, _ = _pictures_of(world, unique, f"entities {split}")
    query = ArraySource(f"glyphs-{split}-entities", pictures, np.arange(len(unique)), tuple(names))
    support = ArraySource("none", query.images[:0], query.labels[:0], tuple(names))
    task = ClassificationTask(query.name, support, query, tuple(names), ("{}",))
    return task, np.isin(unique, world.split["train"])


def glyph_pool(split: str = "test", every: int = 1) -> RetrievalTask:
    """Return a retrieval task with a picture per new character, and captions with its name and most attributes."""
    world = glyph_world()
    characters = world.split[split][::every]
    pictures, masks = _pictures_of(world, characters, f"pool {split}")
    images = ArraySource(f"glyphs-{split}-pool", pictures, np.zeros(len(characters), np.int64), ())
    telling = replace(world, says_name=1.0, drops_word=0.0, says_script=1.0)
    key, indices = derive_seed("reco pool", split), np.arange(len(characters))
    owners: dict[str, list[int]] = {}
    for row, text in enumerate(telling.captions(characters, masks, key, indices)):
        owners.setdefault(text, []).append(row)
    count = len(characters)
    return RetrievalTask(
        images.name, images, tuple(owners), tuple(map(tuple, owners.values())),
        ("glyphs",) * count, (False,) * count,
    )  # fmt: skip
