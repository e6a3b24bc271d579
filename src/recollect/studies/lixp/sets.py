"""The real images of ``lixp/real``: what is trained on, what settings are chosen on, and what they are tested on.

Files are Parquet tables in one folder of the user's; the columns are those that `recollect.data` finds by itself.
Settings were chosen on the choosing sets alone.
"""

from collections.abc import Mapping
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
"""42,359 pictures with captions: drawings, aerial photographs, two kinds of everyday photographs, shop pictures."""


@dataclass(frozen=True)
class RealSet:
    """One set to learn classes of from a few examples.

    Attributes:
        file: its Parquet file, with filters.
        support, query: splits; with ``within`` one split is divided instead.
        scenes: whether its classes are what the captions that were trained on speak of.
        label: column of the classes, where it is not ``label``.
        named: whether its class names mean something, for zero-shot classification.
    """

    file: str
    support: str = "train"
    query: str = "test"
    within: str | None = None
    scenes: bool = False
    label: str | None = None
    named: bool = True


CHOOSING: Mapping[str, RealSet] = {
    "eurosat": RealSet("eurosat.parquet"),
    "cifar10": RealSet("cifar10.parquet"),
    "tiny_imagenet": RealSet("tiny_imagenet.parquet"),
    "dtd10": RealSet("dtd10.parquet"),
    "caltech101": RealSet("caltech101.parquet"),
    "pacs": RealSet("pacs.parquet"),
    "rsicd scenes": RealSet("rsicd_captions.parquet", support="validation", scenes=True),
}
TESTING: Mapping[str, RealSet] = {
    "imagenette": RealSet("imagenette.parquet"),
    "resisc12": RealSet("resisc12.parquet", scenes=True),
    "gtsrb": RealSet("gtsrb.parquet"),
    "flowers12": RealSet("flowers12.parquet"),
    "grocery": RealSet("grocery.parquet"),
    "butterfly10": RealSet("butterfly10.parquet"),
    "cars196": RealSet("cars196.parquet"),
    "omniglot": RealSet("omniglot.parquet", within="test", named=False),
    "ucm scenes": RealSet("ucm_captions.parquet", scenes=True),
    "fashion kinds": RealSet("fashion.parquet", scenes=True, label="class_name"),
}

RETRIEVAL: Mapping[str, str] = {
    "rsicd": "rsicd_captions.parquet",
    "flickr8k": "flickr8k.parquet",
    "fashion": "fashion.parquet",
}
"""Test splits to search by caption."""


def place(folder: Path, file: str) -> str:
    """The address of a file in the user's folder.

    Raises:
        UserError: it is not there.
    """
    name = file.split("?")[0]
    if not (folder / name).is_file():
        raise UserError(f"{folder}: no {name} there. lixp/real needs the folder of its Parquet files: --data FOLDER.")
    return f"{folder}/{file}"
