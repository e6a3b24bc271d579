"""Real pictures and texts as the starter's towers see them: each embedded once and kept by content in the user's cache.

Towers are EfficientNet-Lite0 and MiniLM, without any head (`recollect.models.starter`). `MadeData` stands in for them
where a study only has to show that it runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn
from transformers import EfficientNetModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.core.types import NO_LABEL, Source
from recollect.data.sources import open_source
from recollect.data.sources.subset import Subset
from recollect.models import DualEncoder
from recollect.models.pretrained import open_efficientnet
from recollect.models.starter import IMAGE_TOWER, class_names, empty_starter
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import lock_source
from recollect.training.locked_towers import embed_texts_once
from recollect_papers.store import content_key, file_content

EXAMPLES, QUERIES, WHOLE = 16, 300, 1000
"""Of a set of more than `WHOLE` pictures: pictures of a class to draw examples from, and pictures to classify."""

HELD_STYLES = ("noto", "fluent_flat", "openmoji_line")
"""Emoji styles that are never trained on."""

CONCEPTS = 393
"""To choose settings on; the split ``test`` of emoji has as many."""

_TEXT_HEAD = 1  # no head is used
_MADE_WIDTH = 40


@dataclass(frozen=True)
class FeatureSet:
    """One data set; every field but ``name`` and ``class_names`` has an entry for each picture.

    Attributes:
        images: features of the image tower.
        captions: texts that describe each picture.
        labels: number of its class, or -1.
        class_names: by number.
        splits, domains: names, "" where the set has none.
    """

    name: str
    images: Float[Tensor, "pictures features"]
    captions: Sequence[tuple[str, ...]]
    labels: Int64[np.ndarray, " pictures"]
    class_names: tuple[str, ...]
    splits: Shaped[np.ndarray, " pictures"]
    domains: Shaped[np.ndarray, " pictures"]

    def rows(self, *splits: str) -> Int64[np.ndarray, " rows"]:
        """Pictures of some splits."""
        return np.flatnonzero(np.isin(self.splits, splits))


@dataclass(frozen=True)
class Roles:
    """What each data set is for.

    Attributes:
        training: captioned sets; their split ``train`` is trained on.
        choosing, testing: labeled sets: settings are chosen on the first, figures come from the second. Of each the
            splits that are asked.
        choosing_pool: captioned set and split whose retrieval settings are chosen on.
        pools: captioned sets and splits that are searched in the tables.
        whole: labeled sets that are never sampled, since their captions are read too.
    """

    training: tuple[str, ...]
    choosing: Mapping[str, tuple[str, ...]]
    testing: Mapping[str, tuple[str, ...]]
    choosing_pool: tuple[str, str]
    pools: Mapping[str, str]
    whole: tuple[str, ...] = ()


class RealData(Protocol):
    """Where studies get features from."""

    roles: Roles

    @property
    def stage(self) -> nn.Module | None:
        """Turns images into the tower's features, where they come from before its last stage; else None."""

    def get(self, name: str) -> FeatureSet:
        """A data set by name."""

    def classes(self, name: str) -> FeatureSet:
        """A sample of a labeled set, to classify: pictures of split ``train`` to learn from, and others."""

    def concepts(self, part: str = "testing") -> FeatureSet:
        """Emoji that no head is trained on, in many styles (``domains``); a class is a concept.

        Args:
            part: ``testing``, or ``choosing`` for as many others to choose settings on.
        """

    def named(self) -> FeatureSet:
        """Features of things that have names and no captions."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts entries"]:
        """Features of the text tower."""

    def digest(self, *names: str) -> str:
        """Changes with the content of these data sets."""


ROLES = Roles(
    training=("coco_captions", "flickr8k"),
    choosing={"eurosat": ("test",), "dtd10": ("test",), "caltech101": ("test",), "pacs": ("test",),
              "rsicd_captions": ("val",)},
    testing={"imagenette": ("test",), "resisc12": ("test",), "flowers12": ("test",), "butterfly10": ("test",),
             "grocery": ("test",), "gtsrb": ("test",), "ucm_captions": ("val", "test")},
    choosing_pool=("flickr8k", "val"),
    pools={"flickr8k": "test", "coco_captions": "val"},
)  # fmt: skip

LIGHT = Roles(
    training=("coco_captions",),
    choosing={"eurosat": ("test",), "dtd10": ("test",)},
    testing={"imagenette": ("test",), "resisc12": ("test",), "flowers12": ("test",), "butterfly10": ("test",)},
    choosing_pool=("coco_captions", "val"),
    pools={"coco_captions": "val"},
    whole=("ucm_captions",),
)
"""Fewer sets and pictures, for studies that compare much on each model."""


class TowerStart(nn.Module):
    """An EfficientNet without its last stage."""

    def __init__(self, tower: EfficientNetModel) -> None:
        super().__init__()
        self.embeddings, self.blocks, self.config = tower.embeddings, tower.encoder.blocks[:-1], tower.config

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """The map before the last stage, flattened."""
        states = self.embeddings(pixel_values)
        for block in self.blocks:
            states = block(states)
        return BaseModelOutputWithPooling(pooler_output=states.flatten(1))


class TowerEnd(nn.Module):
    """The last stage of an EfficientNet, with its norms as they are, and the mean over places."""

    def __init__(self, tower: EfficientNetModel) -> None:
        super().__init__()
        end = tower.encoder
        self.layers = nn.Sequential(end.blocks[-1], end.top_conv, end.top_bn, end.top_activation).eval()
        self.channels = end.blocks[-1].expansion.expand_conv.in_channels

    def train(self, mode: bool = True) -> "TowerEnd":
        """Norms keep the statistics of the tower, also in training."""
        return super().train(False)

    def forward(self, maps: Float[Tensor, "n numbers"]) -> Float[Tensor, "n features"]:
        """The tower's features."""
        side = math.isqrt(maps.shape[1] // self.channels)
        return self.layers(maps.unflatten(1, (self.channels, side, side))).mean(dim=(2, 3))


@dataclass
class StarterData:
    """Parquet files in a folder of the user's, through the starter's towers.

    Attributes:
        folder: of the files, ``NAME.parquet`` each.
        roles: see `Roles`.
        maps: whether images come from before the last stage of the image tower, which can then be trained.
    """

    folder: Path
    roles: Roles = ROLES
    maps: bool = False
    _sets: dict[str, FeatureSet] = field(default_factory=dict)
    _texts: dict[str, Tensor] = field(default_factory=dict)
    _encoder: DualEncoder | None = None

    @property
    def encoder(self) -> DualEncoder:
        """Both towers."""
        if self._encoder is None:
            self._encoder = empty_starter(_TEXT_HEAD)
            if self.maps:
                self._encoder.model.vision_model = TowerStart(self._encoder.model.vision_model)
                self._encoder.model.config.vision_pooling = "pooler"
        return self._encoder

    @cached_property
    def stage(self) -> nn.Module | None:
        """A fresh last stage of the image tower, or None where images are its features."""
        return TowerEnd(empty_starter(_TEXT_HEAD).model.vision_model) if self.maps else None

    def get(self, name: str) -> FeatureSet:
        """A data set by the name of its file.

        Raises:
            UserError: there is no such file, or a package of the extra ``starter`` is missing.
        """
        if name not in self._sets:
            self._sets[name] = self._read(name, None)
        return self._sets[name]

    def classes(self, name: str) -> FeatureSet:
        """A set of at most `WHOLE` pictures, or `EXAMPLES` pictures of a class to learn from and `QUERIES` others.

        Raises:
            UserError: see `get`.
        """
        if name in self.roles.whole:
            return self.get(name)
        key = f"{name} classes"
        if key not in self._sets:
            self._sets[key] = self._read(name, (*self.roles.choosing.get(name, ()), *self.roles.testing.get(name, ())))
        return self._sets[key]

    def concepts(self, part: str = "testing") -> FeatureSet:
        """Concepts of ``emoji``, those left out whose picture stands for another concept too.

        Those of the split ``test``, or as many at random of the split ``train``, on which nothing is trained here.
        """
        key = f"concepts {part}"
        if key not in self._sets:
            split = "test" if part == "testing" else "train"
            found = self._read(f"emoji?split={split}&ambiguous=false", None)
            names = sorted({captions[0] for captions in found.captions})
            numbers = {name: number for number, name in enumerate(names)}
            labels = np.array([numbers[captions[0]] for captions in found.captions])
            self._sets[key] = replace(found, labels=labels, class_names=tuple(names))
        return self._sets[key]

    def named(self) -> FeatureSet:
        """Five features of each of ImageNet's 1,000 classes, made from the weights of the tower's own classifier.

        ``x = m + 6 C (w_c - mean w) + 0.6 (r - m)``, clamped to 0…6: m and C are mean and covariance of the training
        pictures' features, r one of these at random.
        """
        if "named" not in self._sets:
            weights = open_efficientnet(IMAGE_TOWER)[1]
            real = torch.cat([self.get(name).images for name in self.roles.training])
            mean, count = real.mean(0), 5
            centers = mean + 6 * (weights - weights.mean(0)) @ torch.cov(real.T)
            drawn = real[torch.from_numpy(numpy_generator("named").integers(0, len(real), count * len(centers)))]
            images = (centers.repeat(count, 1) + 0.6 * (drawn - mean)).clamp(0, 6)
            labels, nothing = np.tile(np.arange(len(centers)), count), np.full(len(images), "")
            names = tuple(own[0] for own in class_names())
            self._sets["named"] = FeatureSet(
                "named", images, [()] * len(images), labels, names, np.full(len(images), "train"), nothing
            )
        return self._sets["named"]

    def _read(self, name: str, asked: tuple[str, ...] | None) -> FeatureSet:
        name, _, filters = name.partition("?")
        file = self._file(name)
        source: Source = open_source(f"{file}?{filters}" if filters else str(file), split=None if filters else "all")
        names = tuple(source.class_names or ())
        if filters:  # there is one split, and domains are values of the source
            if "split=train" in filters:
                source = Subset(source, _some_concepts(source))
            domains = np.array([str(value) for value in source.values("domain")])
            locked = lock_source(self.encoder, source)
            return FeatureSet(
                name, locked.features[:, 0], [locked.texts(row) for row in range(len(locked))], locked.labels, names,
                np.full(len(locked), "test"), domains[locked.indices],
            )  # fmt: skip
        table = pq.read_table(
            file, columns=[each for each in ("split", "domain") if each in pq.read_schema(file).names]
        )
        nothing = np.full(len(source), "")
        columns = {key: np.array(table[key].to_pylist(), dtype=str) for key in table.column_names}
        splits, domains = columns.get("split", nothing), columns.get("domain", nothing)
        rows = np.arange(len(source))
        if asked is not None and len(source) > WHOLE:
            rows = _sample(name, source.labels, splits, asked)
            source = Subset(source, rows)
        locked = lock_source(self.encoder, source)
        rows = rows[locked.indices]
        captions = [locked.texts(row) for row in range(len(locked))]
        return FeatureSet(name, locked.features[:, 0], captions, locked.labels, names, splits[rows], domains[rows])

    def _file(self, name: str) -> Path:
        file = self.folder / f"{name}.parquet"
        if not file.is_file():
            raise UserError(
                f"{self.folder}: no {file.name} there. Name the folder of the real pictures: --data FOLDER."
            )
        return file

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts entries"]:
        """Features of texts, by MiniLM."""
        new = sorted(set(texts) - self._texts.keys(), key=lambda text: (len(text), text))  # little padding
        if new:
            found = embed_texts_once(self.encoder, new, None, FeatureStore())
            self._texts |= dict(zip(new, found, strict=True))
        return torch.stack([self._texts[text] for text in texts])

    def digest(self, *names: str) -> str:
        """Of the files."""
        return content_key([file_content(self._file(name)) for name in names], *(["maps"] if self.maps else []))


@dataclass
class MadeData:
    """Vectors instead of pictures: classes and attributes, seen through random maps with noise, and texts of words."""

    maps: bool = False
    roles: Roles = Roles(
        ("pairs",), {"a": ("test",)}, {"b": ("test",), "c": ("test",)}, ("pairs", "val"), {"pairs": "test"}
    )
    _sets: dict[str, FeatureSet] = field(default_factory=dict)

    @cached_property
    def stage(self) -> nn.Module | None:
        """A layer that changes nothing before it is trained."""
        if not self.maps:
            return None
        layer = nn.Linear(_MADE_WIDTH, _MADE_WIDTH)
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def get(self, name: str) -> FeatureSet:
        """A made set: ``pairs`` has captions, all others classes."""
        if name not in self._sets:
            self._sets[name] = self._made(name)
        return self._sets[name]

    def classes(self, name: str) -> FeatureSet:
        """The same."""
        return self.get(name)

    def named(self) -> FeatureSet:
        """The same."""
        return self.get("d")

    def concepts(self, part: str = "testing") -> FeatureSet:
        """Things of their own, in two styles."""
        found = self.get(f"concepts {part}")
        names = tuple(f"{name} of it" for name in found.class_names)
        captions = [(names[label],) for label in found.labels]
        domains = np.array(["noto", "twemoji"])[np.arange(len(found.labels)) % 2]
        return replace(found, captions=captions, domains=domains, class_names=names)

    def _made(self, name: str) -> FeatureSet:
        draw, classes, each = numpy_generator("made set", name), 6, 60
        known = [f"thing{number}" for number in range(classes)] if name == "pairs" else [
            f"{name}{number}" for number in range(classes)]  # fmt: skip
        labels = np.repeat(np.arange(classes), each)
        colors = draw.integers(0, 4, len(labels))
        words = [(known[label], f"color{color}") for label, color in zip(labels, colors, strict=True)]
        mixing = numpy_generator("made pictures").normal(size=(16, _MADE_WIDTH))
        latent = np.array([_word(a) + _word(b) for a, b in words])
        images = latent @ mixing + draw.normal(size=(len(labels), _MADE_WIDTH))
        splits = np.array(["train", "train", "test", "val"])[np.arange(len(labels)) % 4]
        captions = [(f"{a} of {b}", f"the {a} {b}") for a, b in words]
        return FeatureSet(
            name,
            torch.from_numpy(images).float(),
            captions,
            labels.astype(np.int64),
            tuple(known),
            splits,
            np.full(len(labels), ""),
        )

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts entries"]:
        """The mean of the vectors of their words."""
        found = np.array([np.mean([_word(word.strip(".")) for word in text.split()], axis=0) for text in texts])
        return torch.nn.functional.normalize(torch.from_numpy(found).float(), dim=1)

    def digest(self, *names: str) -> str:
        """The same always."""
        return "made"


def _some_concepts(source: Source, count: int = CONCEPTS) -> Int64[np.ndarray, " rows"]:
    """Pictures of some concepts, drawn at random; a concept is a first caption."""
    concepts = [source.texts(row)[0] for row in range(len(source))]
    names = sorted(set(concepts))
    taken = {names[each] for each in numpy_generator("concepts").permutation(len(names))[:count]}
    return np.flatnonzero([concept in taken for concept in concepts])


def _word(word: str) -> np.ndarray:
    return numpy_generator("made word", word).normal(size=16)


def _sample(name: str, labels: np.ndarray, splits: np.ndarray, asked: tuple[str, ...]) -> Int64[np.ndarray, " rows"]:
    draw = numpy_generator("sample", name)
    order = draw.permutation(np.flatnonzero((splits == "train") & (labels != NO_LABEL)))
    taken = [row for label in np.unique(labels[order]) for row in order[labels[order] == label][:EXAMPLES]]
    query = draw.permutation(np.flatnonzero(np.isin(splits, asked) & (labels != NO_LABEL)))[:QUERIES]
    return np.sort(np.concatenate([taken, query]))


def open_data(data: Sequence[str], smoke: bool, roles: Roles = ROLES, maps: bool = False) -> RealData:
    """The data of a study's options.

    Args:
        maps: whether the last stage of the image tower is to be trained (`StarterData`).

    Raises:
        UserError: no folder was named.
    """
    if smoke:
        return MadeData(maps)
    if not data:
        raise UserError("These are real pictures: name the folder of their Parquet files, --data FOLDER.")
    return StarterData(Path(data[0]).expanduser(), roles, maps)


def labeled(found: FeatureSet, *splits: str) -> Int64[np.ndarray, " rows"]:
    """Pictures of some splits that have a class."""
    rows = found.rows(*splits)
    return rows[found.labels[rows] != NO_LABEL]
