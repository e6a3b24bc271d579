"""Tower features of real pictures and texts, cached by content in the user's cache folder.

The towers are EfficientNet-Lite0 and MiniLM without heads (`recollect.models.starter`); scale ``smoke`` uses
`SyntheticData` instead.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import EfficientNetModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.core.types import NO_LABEL, Source
from recollect.data.sources import open_source
from recollect.data.sources.reader import readable_blocks
from recollect.data.sources.subset import Subset
from recollect.models import DualEncoder
from recollect.models.pretrained import open_efficientnet
from recollect.models.starter import IMAGE_TOWER, class_names, empty_starter
from recollect.models.towers import pooled
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import lock_source
from recollect.training.locked_towers import embed_texts_once
from recollect_papers.store import content_key, file_content

EXAMPLES, QUERIES, MAX_SET = 16, 300, 1000
"""Sets of more than `MAX_SET` pictures are reduced to `EXAMPLES` per class to learn from and `QUERIES` to classify."""

HELD_STYLES = ("noto", "fluent_flat", "openmoji_line")
"""Emoji styles held out from training."""

_WITH_TOKENS = ("tokens", "pixels")

PADDING = 0
"""MiniLM's padding token."""

CONCEPTS = 393
"""Number of emoji concepts for choosing settings, as many as in the split ``test``."""

_TEXT_HEAD = 1  # width of the starter's head, which is not used
_CHUNK = 32  # pictures whose maps fit the processor's cache
_GPU_CHUNK = 1024  # pictures whose activations fit a GPU's memory
_MADE_WIDTH, _WORD_WIDTH = 40, 16


Inputs = Literal["features", "maps", "tokens", "pixels"]
"""What a head is trained on: features of locked towers; feature maps before the image tower's last stage, to train that
stage too; features and tokens, to train the text tower too; or pixels and tokens, to train both towers."""


@dataclass(frozen=True)
class FeatureSet:
    """Features of one data set; all fields except ``name`` and ``class_names`` have one entry per picture.

    Attributes:
        images: features of the image tower, or its inputs (`Inputs`); pixels are bytes.
        captions: captions of each picture.
        labels: class indices, or -1.
        class_names: names by class index.
        splits, domains: names, or "" if the set has none.
    """

    name: str
    images: Shaped[Tensor, "pictures ..."]
    captions: Sequence[tuple[str, ...]]
    labels: Int64[np.ndarray, " pictures"]
    class_names: tuple[str, ...]
    splits: Shaped[np.ndarray, " pictures"]
    domains: Shaped[np.ndarray, " pictures"]

    def rows(self, *splits: str) -> Int64[np.ndarray, " rows"]:
        """Return the rows of some splits."""
        return np.flatnonzero(np.isin(self.splits, splits))


@dataclass(frozen=True)
class Roles:
    """Data sets by purpose.

    Attributes:
        training: captioned sets to train on (split ``train``).
        choosing: labeled sets for choosing settings, with the splits to classify.
        testing: labeled sets for the reported figures, with the splits to classify.
        choosing_pool: captioned set and split for choosing settings by retrieval.
        pools: captioned sets and splits for the reported retrieval figures.
        whole: labeled sets that are not reduced, because their captions are used too.
    """

    training: tuple[str, ...]
    choosing: Mapping[str, tuple[str, ...]]
    testing: Mapping[str, tuple[str, ...]]
    choosing_pool: tuple[str, str]
    pools: Mapping[str, str]
    whole: tuple[str, ...] = ()

    def measured(self, part: str) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, str]]:
        """Return the labeled sets and pools to measure for ``choosing`` settings, or for ``testing``."""
        return (self.choosing, dict([self.choosing_pool])) if part == "choosing" else (self.testing, self.pools)


class RealData(Protocol):
    """Source of features for studies."""

    roles: Roles

    @property
    def stage(self) -> nn.Module | None:
        """The part of the image tower that maps images to features, or None if images are features."""

    @property
    def text_stage(self) -> nn.Module | None:
        """The text tower if `texts` returns tokens, or None if it returns features."""

    def get(self, name: str) -> FeatureSet:
        """Return a data set by name."""

    def classes(self, name: str) -> FeatureSet:
        """Return a labeled set for few-shot classification: split ``train`` to learn from, other splits to test."""

    def concepts(self, part: str = "testing") -> FeatureSet:
        """Return held-out emoji in many styles (``domains``), labeled by concept.

        Args:
            part: ``testing``, or ``choosing`` for a disjoint set of the same size.
        """

    def named(self) -> FeatureSet:
        """Return labeled features without captions."""

    def texts(self, texts: Sequence[str]) -> Shaped[Tensor, "texts entries"]:
        """Return features of the text tower, or tokens."""

    def digest(self, *names: str) -> str:
        """Return a digest of the content of some data sets."""


ROLES = Roles(
    training=("coco_captions", "flickr8k"),
    choosing={"eurosat": ("test",), "dtd10": ("test",), "caltech101": ("test",), "pacs": ("test",),
              "rsicd_captions": ("val",)},
    testing={"imagenette": ("test",), "resisc12": ("test",), "flowers12": ("test",), "butterfly10": ("test",),
             "grocery": ("test",), "gtsrb": ("test",), "ucm_captions": ("val", "test")},
    choosing_pool=("flickr8k", "val"),
    pools={"flickr8k": "test", "coco_captions": "val"},
)  # fmt: skip

LIGHT_ROLES = Roles(
    training=("coco_captions",),
    choosing={"eurosat": ("test",), "dtd10": ("test",)},
    testing={"imagenette": ("test",), "resisc12": ("test",), "flowers12": ("test",), "butterfly10": ("test",)},
    choosing_pool=("coco_captions", "val"),
    pools={"coco_captions": "val"},
    whole=("ucm_captions",),
)
"""Fewer sets and pictures, for studies with many measurements per model."""

FLICKR_ROLES = replace(LIGHT_ROLES, pools={"flickr8k": "test"})
"""`LIGHT_ROLES`, for studies that choose settings by retrieval: other pictures are searched for testing."""


class TowerStart(nn.Module):
    """EfficientNet without its last stage."""

    def __init__(self, tower: EfficientNetModel) -> None:
        super().__init__()
        self.embeddings, self.blocks, self.config = tower.embeddings, tower.encoder.blocks[:-1], tower.config

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """Return the flattened feature map before the last stage."""
        states = self.embeddings(pixel_values)
        for block in self.blocks:
            states = block(states)
        return BaseModelOutputWithPooling(pooler_output=states.flatten(1))


class TowerEnd(nn.Module):
    """Last stage of an EfficientNet with frozen batch-norm statistics, and mean pooling.

    In training, convolutions compute in bfloat16. Chunks that fit the processor's cache and channels stored last make a
    step on 512 pictures three times faster.
    """

    def __init__(self, tower: EfficientNetModel) -> None:
        super().__init__()
        end = tower.encoder
        self.layers = nn.Sequential(end.blocks[-1], end.top_conv, end.top_bn, end.top_activation).eval()
        self.channels = end.blocks[-1].expansion.expand_conv.in_channels

    def train(self, mode: bool = True) -> "TowerEnd":
        """Stay in evaluation mode, so batch norms use the tower's statistics."""
        return super().train(False)

    def forward(self, maps: Float[Tensor, "n numbers"]) -> Float[Tensor, "n features"]:
        """Return the tower's features."""
        side = math.isqrt(maps.shape[1] // self.channels)
        states = maps.unflatten(1, (self.channels, side, side)).split(_CHUNK)
        with torch.autocast(maps.device.type, torch.bfloat16, enabled=torch.is_grad_enabled()):
            ends = [self.layers(part.contiguous(memory_format=torch.channels_last)) for part in states]
        return torch.cat([end.to(maps.dtype).mean(dim=(2, 3)) for end in ends])


class WholeTower(nn.Module):
    """One of the starter's towers, from bytes or tokens to features, without dropout and with frozen batch norms.

    In training, layers compute in bfloat16, and on a GPU activations are recomputed in the backward pass.
    """

    def __init__(self, encoder: DualEncoder, kind: Literal["image", "text"]) -> None:
        super().__init__()
        model: Any = encoder.model
        self.tower = (model.vision_model if kind == "image" else model.text_model).eval()
        self.kind, self.transform, self.config = kind, encoder.transform, model.config
        for block in self.tower.encoder.blocks if kind == "image" else ():
            block.squeeze_excite = nn.Identity()  # EfficientNet-Lite has no gates, but the loaded model has open ones

    def train(self, mode: bool = True) -> "WholeTower":
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, inputs: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n features"]:
        """Return the tower's features."""
        first = next(self.parameters())
        learns, gpu = torch.is_grad_enabled() and first.requires_grad, first.device.type != "cpu"
        lengths = torch.arange(len(inputs)) if self.kind == "image" else (inputs != PADDING).sum(1).cpu()
        order = lengths.argsort(stable=True)  # texts of a chunk have similar lengths
        features = []
        for chunk in inputs[order].split(_GPU_CHUNK if gpu else _CHUNK):
            chunk = chunk.to(first.device)
            with torch.autocast(first.device.type, torch.bfloat16, enabled=learns):
                recompute = learns and gpu
                found = checkpoint(self._features, chunk, use_reentrant=False) if recompute else self._features(chunk)
            features.append(found.float())
        return torch.cat(features)[order.argsort()]

    def _features(self, inputs: Tensor) -> Tensor:
        if self.kind == "image":
            pixels = self.transform.normalize(inputs).contiguous(memory_format=torch.channels_last)
            return pooled(self.tower(pixel_values=pixels), self.config.vision_pooling)
        mask = (inputs != PADDING).long()
        longest = int(mask.sum(1).max())
        ids, mask = inputs[:, :longest].long(), mask[:, :longest]
        output = self.tower(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids))
        features = pooled(output, self.config.text_pooling, mask)
        return nn.functional.normalize(features, dim=-1) if self.config.text_normalize else features


@dataclass
class StarterData:
    """Parquet files in a user's folder, embedded by the starter's towers.

    Attributes:
        folder: folder of the files, named ``NAME.parquet``.
        roles: data sets by purpose.
        inputs: what sets and texts consist of.
    """

    folder: Path
    roles: Roles = ROLES
    inputs: Inputs = "features"
    _sets: dict[str, FeatureSet] = field(default_factory=dict)
    _texts: dict[str, Tensor] = field(default_factory=dict)
    _encoder: DualEncoder | None = None

    @property
    def encoder(self) -> DualEncoder:
        """Both towers."""
        if self._encoder is None:
            self._encoder = empty_starter(_TEXT_HEAD)
            if self.inputs == "maps":
                self._encoder.model.vision_model = TowerStart(self._encoder.model.vision_model)
                self._encoder.model.config.vision_pooling = "pooler"
        return self._encoder

    @cached_property
    def stage(self) -> nn.Module | None:
        """A copy of the image tower, or of its last stage for maps; None for features."""
        if self.inputs == "pixels":
            return WholeTower(empty_starter(_TEXT_HEAD), "image")
        return TowerEnd(empty_starter(_TEXT_HEAD).model.vision_model) if self.inputs == "maps" else None

    @cached_property
    def text_stage(self) -> nn.Module | None:
        """A copy of the text tower if texts are tokens, else None."""
        return WholeTower(empty_starter(_TEXT_HEAD), "text") if self.inputs in _WITH_TOKENS else None

    def get(self, name: str) -> FeatureSet:
        """Return a data set by file name.

        Raises:
            UserError: the file, or a package of the extra ``starter``, is missing.
        """
        return self._cached(name, lambda: self._read(name, None))

    def classes(self, name: str) -> FeatureSet:
        """Return a labeled set; sets of more than `MAX_SET` pictures are reduced to `EXAMPLES` per class and `QUERIES`.

        Raises:
            UserError: see `get`.
        """
        if name in self.roles.whole:
            return self.get(name)
        splits = (*self.roles.choosing.get(name, ()), *self.roles.testing.get(name, ()))
        return self._cached(f"{name} classes", lambda: self._read(name, splits))

    def concepts(self, part: str = "testing") -> FeatureSet:
        """Return unambiguous concepts of ``emoji``: split ``test``, or as many random ones of ``train`` for choosing.

        Nothing is trained on emoji here.
        """

        def read() -> FeatureSet:
            split = "test" if part == "testing" else "train"
            found = self._read(f"emoji?split={split}&ambiguous=false", None)
            names, labels = np.unique([captions[0] for captions in found.captions], return_inverse=True)
            return replace(found, labels=labels, class_names=tuple(names.tolist()))

        return self._cached(f"concepts {part}", read)

    def named(self) -> FeatureSet:
        """Return five synthetic features for each ImageNet class, from the weights w of the tower's classifier.

        ``x = m + 6 C (w_c - mean w) + 0.6 (r - m)``, clamped to 0…6, where m and C are mean and covariance of the
        training pictures' features, and r is a random one of them.
        """

        def generate() -> FeatureSet:
            weights = open_efficientnet(IMAGE_TOWER)[1]
            real = torch.cat([self.get(name).images for name in self.roles.training])
            mean, count = real.mean(0), 5
            centers = mean + 6 * (weights - weights.mean(0)) @ torch.cov(real.T)
            drawn = real[torch.from_numpy(numpy_generator("named").integers(0, len(real), count * len(centers)))]
            images = (centers.repeat(count, 1) + 0.6 * (drawn - mean)).clamp(0, 6)
            labels, names = np.tile(np.arange(len(centers)), count), tuple(each[0] for each in class_names())
            splits, domains = np.full(len(images), "train"), np.full(len(images), "")
            return FeatureSet("named", images, [()] * len(images), labels, names, splits, domains)

        return self._cached("named", generate)

    def _cached(self, key: str, create: Callable[[], FeatureSet]) -> FeatureSet:
        if key not in self._sets:
            self._sets[key] = create()
        return self._sets[key]

    def _read(self, name: str, query_splits: tuple[str, ...] | None) -> FeatureSet:
        name, _, filters = name.partition("?")
        file = self._file(name)
        source: Source = open_source(f"{file}?{filters}" if filters else str(file), split=None if filters else "all")
        names = tuple(source.class_names or ())
        if filters:  # one split, and the source stores domains as values
            if "split=train" in filters:
                source = Subset(source, _some_concepts(source))
            domains = np.array([str(value) for value in source.values("domain")])
            read, images, captions = self._images(source)
            return FeatureSet(name, images, captions, source.labels[read], names, np.full(len(read), "test"),
                              domains[read])  # fmt: skip
        table = pq.read_table(
            file, columns=[each for each in ("split", "domain") if each in pq.read_schema(file).names]
        )
        empty = np.full(len(source), "")
        columns = {key: np.array(table[key].to_pylist(), dtype=str) for key in table.column_names}
        splits, domains = columns.get("split", empty), columns.get("domain", empty)
        rows = np.arange(len(source))
        if query_splits is not None and len(source) > MAX_SET:
            rows = _sample(name, source.labels, splits, query_splits)
            source = Subset(source, rows)
        read, images, captions = self._images(source)
        rows = rows[read]
        return FeatureSet(name, images, captions, source.labels[read], names, splits[rows], domains[rows])

    def _images(self, source: Source) -> tuple[np.ndarray, Tensor, list[tuple[str, ...]]]:
        """Return the rows that can be read, their images, and their captions."""
        if self.inputs != "pixels":
            locked = lock_source(self.encoder, source)
            return locked.indices, locked.features[:, 0], [locked.texts(row) for row in range(len(locked))]
        read = [each for block in readable_blocks(source, 256, encoder=self.encoder) for each in block]
        rows = np.array([row for row, _ in read])
        images = torch.from_numpy(np.stack([np.asarray(sample.image) for _, sample in read]))
        return rows, images, [source.texts(row) for row in rows.tolist()]

    def _file(self, name: str) -> Path:
        file = self.folder / f"{name}.parquet"
        if not file.is_file():
            raise UserError(f"{self.folder}: no {file.name}. Pass the folder of the real pictures with --data FOLDER.")
        return file

    def texts(self, texts: Sequence[str]) -> Shaped[Tensor, "texts entries"]:
        """Return MiniLM's features of texts, or tokens."""
        new = sorted(set(texts) - self._texts.keys(), key=lambda text: (len(text), text))  # minimizes padding
        if new and self.inputs in _WITH_TOKENS:
            tokens = self.encoder.tokenize(new)["input_ids"].int()
            padding = (self.encoder.longest_text or tokens.shape[1]) - tokens.shape[1]
            self._texts |= dict(zip(new, nn.functional.pad(tokens, (0, padding), value=PADDING), strict=True))
        elif new:
            found = embed_texts_once(self.encoder, new, None, FeatureStore())
            self._texts |= dict(zip(new, found, strict=True))
        return torch.stack([self._texts[text] for text in texts])

    def digest(self, *names: str) -> str:
        """Return a digest of the files."""
        return content_key(
            [file_content(self._file(name)) for name in names], *([] if self.inputs == "features" else [self.inputs])
        )


@dataclass
class SyntheticData:
    """Random classes and attributes instead of pictures: noisy linear projections, and texts as means of words."""

    inputs: Inputs = "features"
    roles: Roles = Roles(
        ("pairs",), {"a": ("test",)}, {"b": ("test",), "c": ("test",)}, ("pairs", "val"), {"pairs": "test"}
    )
    _sets: dict[str, FeatureSet] = field(default_factory=dict)

    @cached_property
    def stage(self) -> nn.Module | None:
        """A linear layer initialized to the identity if images are not features, else None."""
        return _identity(_MADE_WIDTH) if self.inputs in ("maps", "pixels") else None

    @cached_property
    def text_stage(self) -> nn.Module | None:
        """A linear layer initialized to the identity for pixels, else None."""
        return _identity(_WORD_WIDTH) if self.inputs == "pixels" else None

    def get(self, name: str) -> FeatureSet:
        """Return a synthetic set by name; set ``pairs`` is for training."""
        if name not in self._sets:
            self._sets[name] = self._generate(name)
        return self._sets[name]

    def classes(self, name: str) -> FeatureSet:
        """Same as `get`."""
        return self.get(name)

    def named(self) -> FeatureSet:
        """Return set ``d``."""
        return self.get("d")

    def concepts(self, part: str = "testing") -> FeatureSet:
        """Return classes that occur in no other set, in two styles."""
        found = self.get(f"concepts {part}")
        names = tuple(f"{name} of it" for name in found.class_names)
        captions = [(names[label],) for label in found.labels]
        domains = np.array(["noto", "twemoji"])[np.arange(len(found.labels)) % 2]
        return replace(found, captions=captions, domains=domains, class_names=names)

    def _generate(self, name: str) -> FeatureSet:
        draw, classes, each = numpy_generator("made set", name), 6, 60
        known = [f"{'thing' if name == 'pairs' else name}{number}" for number in range(classes)]
        labels = np.repeat(np.arange(classes), each)
        colors = draw.integers(0, 4, len(labels))
        words = [(known[label], f"color{color}") for label, color in zip(labels, colors, strict=True)]
        mixing = numpy_generator("made pictures").normal(size=(_WORD_WIDTH, _MADE_WIDTH))
        latent = np.array([_word(a) + _word(b) for a, b in words])
        images = latent @ mixing + draw.normal(size=(len(labels), _MADE_WIDTH))
        splits = np.array(["train", "train", "test", "val"])[np.arange(len(labels)) % 4]
        captions = [(f"{a} of {b}", f"the {a} {b}") for a, b in words]
        features, labels, domains = torch.from_numpy(images).float(), labels.astype(np.int64), np.full(len(labels), "")
        return FeatureSet(name, features, captions, labels, tuple(known), splits, domains)

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts entries"]:
        """Return normalized means of word vectors."""
        found = np.array([np.mean([_word(word.strip(".")) for word in text.split()], axis=0) for text in texts])
        return torch.nn.functional.normalize(torch.from_numpy(found).float(), dim=1)

    def digest(self, *names: str) -> str:
        """Return a constant."""
        return "made"


def _some_concepts(source: Source, count: int = CONCEPTS) -> Int64[np.ndarray, " rows"]:
    """Return the rows of some random concepts; the first caption of a picture is its concept."""
    concepts = [source.texts(row)[0] for row in range(len(source))]
    names = sorted(set(concepts))
    taken = {names[each] for each in numpy_generator("concepts").permutation(len(names))[:count]}
    return np.flatnonzero([concept in taken for concept in concepts])


def _word(word: str) -> np.ndarray:
    return numpy_generator("made word", word).normal(size=_WORD_WIDTH)


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _sample(
    name: str, labels: np.ndarray, splits: np.ndarray, query_splits: tuple[str, ...]
) -> Int64[np.ndarray, " rows"]:
    draw = numpy_generator("sample", name)
    order = draw.permutation(np.flatnonzero((splits == "train") & (labels != NO_LABEL)))
    taken = [row for label in np.unique(labels[order]) for row in order[labels[order] == label][:EXAMPLES]]
    query = draw.permutation(np.flatnonzero(np.isin(splits, query_splits) & (labels != NO_LABEL)))[:QUERIES]
    return np.sort(np.concatenate([taken, query]))


def open_data(data: Sequence[str], smoke: bool, roles: Roles = ROLES, inputs: Inputs = "features") -> RealData:
    """Open a study's data: the folder ``data[0]``, or synthetic data if ``smoke``.

    Raises:
        UserError: no folder given.
    """
    if smoke:
        return SyntheticData(inputs)
    if not data:
        raise UserError("This study needs real pictures. Pass the folder of their Parquet files with --data FOLDER.")
    return StarterData(Path(data[0]).expanduser(), roles, inputs)


def labeled(found: FeatureSet, *splits: str) -> Int64[np.ndarray, " rows"]:
    """Return the labeled rows of some splits."""
    rows = found.rows(*splits)
    return rows[found.labels[rows] != NO_LABEL]
