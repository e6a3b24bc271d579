"""What ``prefix/real`` trains on, in which ways, and what it asks: files of the user, by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from recollect.core.types import Kind
from recollect_papers.lixp.sets import HELD_STYLES

CAPTIONS = ("rsicd_captions.parquet", "flickr8k.parquet", "fashion.parquet")
LABELS = (f"emoji-labels.parquet?split=train&domain!={','.join(HELD_STYLES)}", "tiny_imagenet_b.parquet")
"""``emoji-labels`` is made here of ``emoji``: each concept a class, which its name names."""


@dataclass(frozen=True)
class TestSet:
    """One set that is classified by its names.

    Attributes:
        file: its Parquet file, with filters.
        group: what its classes are to the sources.
    """

    file: str
    group: str


OWN, TOLD, FOREIGN = "classes of the label sets, other pictures", "what captions speak of", "foreign sets"
SETS: Mapping[str, TestSet] = {
    "emoji, held-out styles": TestSet(f"emoji-labels.parquet?split=train&domain={','.join(HELD_STYLES)}", OWN),
    "tiny_imagenet_b": TestSet("tiny_imagenet_b.parquet?split=test", OWN),
    "emoji, new concepts": TestSet("emoji-labels.parquet?split=test", FOREIGN),
    "rsicd scenes": TestSet("rsicd_captions.parquet?split=test", TOLD),
    "ucm scenes": TestSet("ucm_captions.parquet?split=test", TOLD),
    "resisc12": TestSet("resisc12.parquet?split=test", TOLD),
    "fashion kinds": TestSet("fashion.parquet?split=test", TOLD),
} | {
    name: TestSet(f"{name}.parquet?split=test", FOREIGN)
    for name in ("eurosat", "cifar10", "imagenette", "tiny_imagenet", "caltech101", "pacs", "flowers12", "grocery")
}
POOLS = ("rsicd_captions.parquet", "flickr8k.parquet", "fashion.parquet")


@dataclass(frozen=True)
class ReadingArm:
    """One way of training, at the budget of all.

    Attributes:
        name: in files and tables.
        labels: whether to train on the labels as well as the captions.
        prefix: whether each kind has its token.
        sampling: of the two kinds.
        attends: whether the words of a text, and its prefix, read each other: a small transformer for the bag of words.
    """

    name: str
    labels: bool = True
    prefix: bool = False
    sampling: str = "debiased"
    attends: bool = False


PLAIN, PREFIX = "both, debiased batches", "both, debiased batches, prefixes"
ATTENDING_PLAIN, ATTENDING_PREFIX = "transformer over words", "transformer over words, prefixes"
ARMS = (
    ReadingArm(PLAIN),
    ReadingArm(PREFIX, prefix=True),
    ReadingArm("captions alone", labels=False, sampling="proportional"),
    ReadingArm("both, equal batches", sampling="equal"),
    ReadingArm(ATTENDING_PLAIN, attends=True),
    ReadingArm(ATTENDING_PREFIX, prefix=True, attends=True),
)
KINDS_READ: tuple[Kind, ...] = ("caption", "label")
