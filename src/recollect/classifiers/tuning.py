"""Fine-tuning with a few labeled pictures: CLIP-LoRA and 2SFS, for any CLIP or SigLIP of transformers."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.classifiers.texts import learned_scale
from recollect.core.checksums import check_checksums, write_folder_checksums
from recollect.core.errors import UserError, user_errors
from recollect.core.files import fresh_folder, read_json, write_json
from recollect.core.plugins import Table
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed, seed_default_generators, torch_generator
from recollect.core.types import ImageLike
from recollect.data.prompts import fill
from recollect.models import load_model
from recollect.models.dual import DualEncoder
from recollect.models.lora import adapter_sites, add_lora, merged
from recollect.models.transformers.encoder import TransformersEncoder

TUNED_FORMAT = 1
TEMPLATE = "a photo of a {}."

_ATTENDING = frozenset({"q_proj", "k_proj", "v_proj", "query", "key", "value", "q_lin", "k_lin", "v_lin", "qkv"})


@dataclass(frozen=True)
class LabeledPictures:
    """A support set of pictures.

    Attributes:
        pictures: PIL images or arrays (height, width, 3) of bytes.
        labels: class of each picture, 0…C - 1 (n,).
        unlabeled: more pictures of the same kind, for methods that also learn from unlabeled ones.
    """

    pictures: Sequence[ImageLike]
    labels: np.ndarray
    names: tuple[str, ...]
    unlabeled: Sequence[ImageLike] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))  # torch losses need int64
        if len(self.pictures) != len(self.labels):
            raise ValueError(f"{len(self.pictures)} pictures, but {len(self.labels)} labels")
        if len(self.names) < 2 or set(np.unique(self.labels).tolist()) != set(range(len(self.names))):
            raise ValueError(f"labels must cover 0 to {len(self.names) - 1}, with two or more classes")
        if any(isinstance(picture, np.ndarray) and picture.ndim == 1 for picture in self.pictures):
            raise UserError("tuning needs pictures, got vectors. Choose a method that reads embeddings.")

    @property
    def shots(self) -> int:
        """Average number of examples per class, at least one."""
        return max(1, round(len(self.labels) / len(self.names)))


def frozen_copy(encoder: DualEncoder) -> TransformersEncoder:
    """Return a copy to tune, with all parameters frozen.

    Raises:
        UserError: not a transformers model.
    """
    if not isinstance(encoder, TransformersEncoder):
        raise UserError("tuning needs a CLIP or SigLIP checkpoint of transformers.")
    twin = copy.deepcopy(encoder).eval()
    twin.requires_grad_(False)
    return twin


def random_crops(
    encoder: DualEncoder, pictures: Sequence[ImageLike], flip: bool = True, seed: int = 0
) -> Callable[[Tensor], Tensor]:
    """Return a function that crops rows at random to 8 to 100 % of each picture's area, as all published recipes do.

    Args:
        flip: mirror half of the crops; wrong for letters, signs and maps.

    Returns:
        Function from rows to pixels (rows, 3, size, size) on the encoder's device.
    """
    transform = replace(encoder.transform, training=True, scale=(0.08, 1.0), flip=flip)
    random = np.random.default_rng(derive_seed("crops", seed))

    def crops(rows: Tensor) -> Tensor:
        pixels = [transform.pixels(pictures[row], random) for row in rows.tolist()]
        return transform.normalize(torch.from_numpy(np.stack(pixels))).to(encoder.device, encoder.dtype)

    return crops


def class_loss(images: Tensor, texts: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Compute the cross-entropy of ``scale`` times the cosines of raw embeddings (n, width) and (classes, width)."""
    return F.cross_entropy(scale * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T, labels)


def descend(
    what: str,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor], Tensor],
    count: int,
    schedule: Schedule,
    seed: int,
    after: Callable[[float], None] | None = None,
) -> None:
    """Train on shuffled rows; the same seed gives the same steps.

    Args:
        after: called after each step with its learning rate.
    """
    steps = schedule.epochs * math.ceil(count / schedule.batch)
    generator = torch.Generator().manual_seed(derive_seed("tuning", seed) % 2**63)
    with torch.random.fork_rng(devices=[]), progress(what, steps, "steps") as counter:
        seed_default_generators(derive_seed("dropout", seed) % 2**63)

        def done(rate: float) -> None:
            counter.advance(1)
            if after is not None:
                after(rate)

        fit_by_gradient(optimizer, loss, count, generator, schedule, done)


@dataclass(frozen=True)
class TunedClassifier:
    """Classifier by the nearest class text, after tuning.

    Attributes:
        encoder: the tuned copy, which can be saved like any model (`DualEncoder.save`).
        texts: unit-norm class embeddings (classes, width).
        template: class text with ``{}`` for the name; None if other names cannot be embedded.
    """

    encoder: TransformersEncoder
    names: tuple[str, ...]
    texts: Float[Tensor, "classes width"]
    scale: float
    template: str | None = None

    def embed_images(self, images: Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Embed pictures with the tuned image tower; unit-norm."""
        return self.encoder.embed_images(images)

    @torch.no_grad()
    def embed_names(self, names: Sequence[str]) -> Float[Tensor, "n width"]:
        """Embed any names with the tuned text tower; unit-norm.

        Raises:
            ValueError: the method only learned the given classes.
        """
        if self.template is None:
            raise ValueError("the method learned tokens for its classes only, so other names cannot be embedded")
        texts = [fill(self.template, name) for name in names]
        return unit_texts(self.encoder.encode_texts(self.encoder.tokenize(texts)))

    def save(self, folder: str | Path) -> Path:
        """Write model and classes to a new folder, atomically.

        Raises:
            UserError: the folder exists.
        """
        with fresh_folder(folder, "tuned classifier") as unfinished:
            self.encoder.save(unfinished / "model")
            save_file(self._tensors(), unfinished / "tuned.safetensors")
            about = {"format": TUNED_FORMAT, "names": self.names, "scale": self.scale, "template": self.template}
            write_json(unfinished / "tuned.json", about)
            write_folder_checksums(unfinished)
        return Path(folder)

    def _tensors(self) -> dict[str, Tensor]:
        return {"texts": self.texts.contiguous()}

    @classmethod
    def open(cls, folder: str | Path, device: str | None = None) -> "TunedClassifier":
        """Open a saved classifier.

        Raises:
            UserError: not a tuned classifier, or damaged.
        """
        folder = Path(folder)
        about = read_json(folder / "tuned.json")
        if not isinstance(about, dict) or about.get("format") != TUNED_FORMAT:
            raise UserError(f"{folder}: not a tuned classifier of this version")
        check_checksums(folder)
        encoder = load_model(str(folder / "model"), device)
        assert isinstance(encoder, TransformersEncoder)
        with user_errors(f"{folder}/tuned.safetensors: damaged", SafetensorError, OSError):
            tensors = load_file(folder / "tuned.safetensors")
        return cls._restored(encoder, about, tensors)

    @classmethod
    def _restored(
        cls, encoder: TransformersEncoder, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> "TunedClassifier":
        return cls(encoder, tuple(about["names"]), tensors["texts"], about["scale"], about["template"])

    def scores(self, images: Sequence[ImageLike]) -> Float[np.ndarray, "n classes"]:
        """Return ``scale`` times the cosines to the class texts, the logits of the trained probabilities."""
        return (self.scale * self.embed_images(images) @ self.texts.T).numpy()

    def predict(self, images: Sequence[ImageLike]) -> list[str]:
        """Return the most probable name of each picture."""
        return [self.names[best] for best in self.scores(images).argmax(axis=1)]


@torch.no_grad()
def unit_texts(raw: Tensor) -> Float[Tensor, "classes width"]:
    """Return detached unit-norm float32 rows on the CPU."""
    return F.normalize(raw.detach().float(), dim=1).cpu()


def _embedder(encoder: TransformersEncoder, template: str) -> Callable[[tuple[str, ...]], Tensor]:
    """Return a function from names to raw class embeddings, with gradients."""
    return lambda names: encoder.encode_texts(encoder.tokenize([fill(template, name) for name in names]))


@dataclass(frozen=True)
class _Tuning:
    """Settings and training loop of all methods.

    Attributes:
        learning_rate, weight_decay, batch: settings of AdamW; the learning rate follows a cosine.
        flip: mirror half of the crops.
        effort: share of the published steps.
        seed: seed of initialization, crops, order and dropout.
    """

    learning_rate: float = 2e-4
    weight_decay: float = 1e-2
    batch: int = 32
    template: str = TEMPLATE
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    def _descend(
        self, what: str, learned: list[nn.Parameter], loss: Callable[[Tensor], Tensor], count: int, steps: int
    ) -> None:
        """Take at least ``steps`` steps over ``count`` rows."""
        optimizer = torch.optim.AdamW(learned, lr=self.learning_rate, weight_decay=self.weight_decay)
        schedule = Schedule(math.ceil(steps / max(1, math.ceil(count / self.batch))), self.batch)
        descend(what, optimizer, loss, count, schedule, self.seed)


@dataclass(frozen=True)
class ClipLora(_Tuning):
    """CLIP-LoRA (Zanella and Ben Ayed, 2024): low-rank updates of queries, keys and values in every block of both
    towers, trained with the cross-entropy over classes, with the same settings for every data set and number of shots.

    Attributes:
        rank: rank of the update ``B A / sqrt(rank)``; A starts Kaiming uniform, B zero.
        dropout: dropout of A's input.
        steps_per_shot: 500 as published.
    """

    rank: int = 2
    dropout: float = 0.25
    steps_per_shot: int = 500

    def fit(self, encoder: DualEncoder, shots: LabeledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``; the updates are merged into its weights."""
        tuned = frozen_copy(encoder)
        sites = {name: layer for name, layer in adapter_sites(tuned).items() if name.rpartition(".")[2] in _ATTENDING}
        scale = learned_scale(encoder)
        crops = random_crops(tuned, shots.pictures, self.flip, self.seed)
        labels = torch.from_numpy(shots.labels).to(tuned.device)
        embed = _embedder(tuned, self.template)
        for layer in add_lora(tuned, *self.start(sites), self.rank**-0.5, self.dropout).values():
            layer.train()  # for dropout
        learned = [parameter for parameter in tuned.parameters() if parameter.requires_grad]

        def loss(rows: Tensor) -> Tensor:
            return class_loss(tuned.encode_images(crops(rows)), embed(shots.names), labels[rows], scale)

        steps = round(self.effort * self.steps_per_shot * shots.shots)
        self._descend("tune clip-lora", learned, loss, len(labels), steps)
        tuned = merged(tuned)
        with torch.no_grad():
            texts = unit_texts(_embedder(tuned, self.template)(shots.names))
        return TunedClassifier(tuned, shots.names, texts, scale, self.template)

    def start(self, sites: Mapping[str, nn.Linear]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the initial A and B of each layer."""

        def down(name: str, layer: nn.Linear) -> Tensor:
            drawn = torch.empty(self.rank, layer.in_features, dtype=torch.float64)
            nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=torch_generator(self.seed, "clip-lora", name))
            return drawn.to(layer.weight)

        up = {name: layer.weight.new_zeros(layer.out_features, self.rank) for name, layer in sites.items()}
        return {name: down(name, layer) for name, layer in sites.items()}, up


@dataclass(frozen=True)
class TwoStageTuning(_Tuning):
    """2SFS (Farina et al., 2025): trains all LayerNorms of both towers, then only the class embeddings, with the same
    settings for every data set and number of shots.

    Attributes:
        steps_per_shot: 300 as published, both stages together.
        first_share: share of steps for the norms.
    """

    steps_per_shot: int = 300
    first_share: float = 0.6

    def fit(self, encoder: DualEncoder, shots: LabeledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``; other names are embedded by its tuned text tower."""
        tuned, scale = frozen_copy(encoder), learned_scale(encoder)
        labels = torch.from_numpy(shots.labels).to(tuned.device)
        embed, steps = _embedder(tuned, self.template), self.effort * self.steps_per_shot * shots.shots
        first, second = (round(share * steps) for share in (self.first_share, 1 - self.first_share))
        crops = random_crops(tuned, shots.pictures, self.flip, self.seed)

        def of_norms(rows: Tensor) -> Tensor:
            return class_loss(tuned.encode_images(crops(rows)), embed(shots.names), labels[rows], scale)

        layers = (module for module in tuned.model.modules() if isinstance(module, nn.LayerNorm))
        norms = [parameter for layer in layers for parameter in layer.parameters()]
        for parameter in norms:
            parameter.requires_grad_(True)
        self._descend("tune 2sfs: norms", norms, of_norms, len(labels), first)
        for parameter in norms:
            parameter.requires_grad_(False)
        with torch.no_grad():
            head = nn.Parameter(F.normalize(embed(shots.names), dim=1))

        def of_head(rows: Tensor) -> Tensor:
            with torch.no_grad():
                images = tuned.encode_images(crops(rows))
            return class_loss(images, head, labels[rows], scale)

        self._descend("tune 2sfs: classes", [head], of_head, len(labels), second)
        return TunedClassifier(tuned, shots.names, unit_texts(head), scale, self.template)


MakeTuning = Callable[[float, bool, int], Any]
"""Function from effort (share of the published steps), flip and seed to a method with ``fit(encoder, shots)``."""

TUNING_METHODS: Table[MakeTuning] = Table("tuning_methods", {
    "clip-lora": lambda effort, flip, seed: ClipLora(effort=effort, flip=flip, seed=seed),
    "2sfs": lambda effort, flip, seed: TwoStageTuning(effort=effort, flip=flip, seed=seed),
})  # fmt: skip
"""Methods with the constants of their public code; packages add theirs (`recollect.core.plugins`)."""
