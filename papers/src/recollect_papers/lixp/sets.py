"""Real pictures that benchmarks train on, choose settings on, and test.

Files are Parquet tables in one folder of the user's; the columns are those that `recollect.data` finds by itself.
Settings were chosen on the choosing sets alone.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recollect.core.errors import UserError

HELD_STYLES = ("noto", "fluent_flat", "openmoji_line")
"""Emoji styles that are never trained on."""

TRAINING: Mapping[str, str] = {
    "emoji": f"emoji.parquet?split=train&domain!={','.join(HELD_STYLES)}",
    "rsicd": "rsicd_captions.parquet?split=train",
    "flickr8k": "flickr8k.parquet?split=train",
    "coco": "coco_captions.parquet?split=train",
    "fashion": "fashion.parquet?split=train",
}
"""Drawings, aerial photographs, two kinds of everyday photographs, shop pictures, with captions."""


@dataclass(frozen=True)
class RealSet:
    """One set to learn classes of from a few examples.

    Attributes:
        file: its Parquet file, with filters.
        support, query: splits; with ``within`` one split is divided instead.
        spoken: share of its classes whose names ten or more training captions hold.
        label: column of the classes, where it is not ``label``.
        named: whether its class names mean something, for zero-shot classification.
    """

    file: str
    support: str = "train"
    query: str = "test"
    within: str | None = None
    spoken: float = 0.0
    label: str | None = None
    named: bool = True

    @property
    def scenes(self) -> bool:
        """Whether the captions speak of at least half of its classes: a rule of words alone, before any result."""
        return self.spoken >= 0.5


CHOOSING: Mapping[str, RealSet] = {
    "eurosat": RealSet("eurosat.parquet", spoken=0.4),
    "cifar10": RealSet("cifar10.parquet", spoken=0.8),
    "tiny_imagenet": RealSet("tiny_imagenet.parquet", spoken=0.2),
    "dtd10": RealSet("dtd10.parquet"),
    "caltech101": RealSet("caltech101.parquet", spoken=0.29),
    "pacs": RealSet("pacs.parquet", spoken=1.0),
    "rsicd scenes": RealSet("rsicd_captions.parquet", support="validation", spoken=0.97),
}
TESTING: Mapping[str, RealSet] = {
    "imagenette": RealSet("imagenette.parquet", spoken=0.2),
    "resisc12": RealSet("resisc12.parquet", spoken=1.0),
    "gtsrb": RealSet("gtsrb.parquet", spoken=0.07),
    "flowers12": RealSet("flowers12.parquet", spoken=0.08),
    "grocery": RealSet("grocery.parquet", spoken=0.07),
    "butterfly10": RealSet("butterfly10.parquet"),
    "cars196": RealSet("cars196.parquet"),
    "omniglot": RealSet("omniglot.parquet", within="test", named=False),
    "ucm scenes": RealSet("ucm_captions.parquet", spoken=0.71),
    "fashion kinds": RealSet("fashion.parquet", spoken=0.54, label="class_name"),
}


def times_spoken(names: Sequence[str], captions: Iterable[str]) -> list[int]:
    """In how many pictures' captions every word of each class name occurs, plural or not.

    Args:
        names: of a set's classes.
        captions: all captions of a picture, joined to one text.
    """
    wanted = [set(_words(name)) for name in names]
    counts = [0] * len(names)
    for caption in captions:
        said = set(_words(caption))
        for place, words in enumerate(wanted):
            counts[place] += bool(words) and words <= said
    return counts


def _words(text: str) -> list[str]:
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in re.findall("[a-z]+", text.lower())
    ]


def present(folder: Path, sets: Mapping[str, RealSet]) -> dict[str, RealSet]:
    """The sets whose file is in the folder; a set that can no longer be had is left out of new measurements."""
    return {name: one for name, one in sets.items() if (folder / one.file.split("?")[0]).is_file()}


def place(folder: Path, file: str) -> str:
    """The address of a file in the user's folder.

    Raises:
        UserError: it is not there.
    """
    name = file.split("?")[0]
    if not (folder / name).is_file():
        raise UserError(f"{folder}: no {name} there. Name the folder of the Parquet files: --data FOLDER.")
    return f"{folder}/{file}"
