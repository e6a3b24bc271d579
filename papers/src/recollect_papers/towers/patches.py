"""A strong image tower for a laptop: fixed features of whitened patches, and a small head that learns.

Coates and Ng, "Learning feature representations with k-means" (2012) and Coates, Lee and Ng (2011): patches of 6 × 6
pixels, normalised for contrast and whitened, are compared with a dictionary of k-means centroids; what is nearer than
the average distance counts ("triangle" assignment), summed over the quarters of the picture. A small colour picture
is added. The dictionary is fitted to pictures in seconds and is the same for every seed, so that the features
of a source are computed once and read by any number of trainings.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.seeding import numpy_generator
from recollect.core.types import ImageLike, Source
from recollect.data.sources.images import BrokenImageError
from recollect.data.transforms import ImageTransform
from recollect.models.dual import DualEncoder
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import read_pictures
from recollect_papers.towers.small import BagOfWords, SmallEncoder, WordTransformer
from recollect_papers.towers.words import WordTokenizer

FIT_PICTURES = 10_000
"""Pictures that the dictionary is fitted to; more change nothing that could be measured."""

_PATCHES, _LEARNED_FROM, _ROUNDS = 200_000, 100_000, 12
_STANDARDISED_BY = 4_096  # pictures whose features give each feature's mean and spread
_CONTRAST = 10.0  # added to a patch's variance, of brightness 0…255: flat patches stay flat
_WHITENING = 0.1  # added to the eigenvalues: directions that are noise alone are not blown up
_TINY = 1e-4
_BLOCK = 256
_AT_ONCE = 64  # pictures: their distances to 384 centroids take 19 MB


@dataclass(frozen=True)
class PatchTowers:
    """Settings of the patch tower and its text tower.

    Attributes:
        text: the text tower.
        size: side of a picture in pixels.
        patch, stride: side of a patch, and the way to the next, in pixels.
        centroids: of the dictionary.
        pool: the responses are averaged over ``pool`` × ``pool`` parts of the picture.
        colour: side of the small colour picture; 0 leaves it out.
        hidden: width of the head's hidden layer; 0 leaves the head linear.
        dropout: of the features before the hidden layer.
        width: entries of an embedding.
    """

    text: BagOfWords | WordTransformer
    size: int = 32
    patch: int = 6
    stride: int = 2
    centroids: int = 384
    pool: int = 2
    colour: int = 4
    hidden: int = 512
    dropout: float = 0.2
    width: int = 128

    @property
    def features(self) -> int:
        """Entries of a picture's features."""
        return self.centroids * self.pool**2 + 3 * self.colour**2


MAKE_FEATURES = frozenset({"size", "patch", "stride", "centroids", "pool", "colour"})
"""Settings that the features depend on; the others are of what learns."""


class PatchFeatures(nn.Module):
    """Pictures to features, by a dictionary of patches. Nothing here learns by gradients; `fit` sets all of it."""

    def __init__(self, settings: PatchTowers) -> None:
        super().__init__()
        self.settings = settings
        entries = 3 * settings.patch**2

        def fixed(tensor: Tensor) -> nn.Parameter:
            return nn.Parameter(tensor, requires_grad=False)

        self.mean = fixed(torch.zeros(entries))
        self.whitening = fixed(torch.eye(entries))
        self.centroids = fixed(torch.zeros(settings.centroids, entries))
        self.feature_mean = fixed(torch.zeros(settings.features))
        self.feature_spread = fixed(torch.ones(settings.features))

    def forward(self, pixels: Float[Tensor, "n 3 rows columns"]) -> Float[Tensor, "n features"]:
        """Standardised features of pictures with entries from 0 to 1.

        Raises:
            UserError: nothing was fitted yet.
        """
        if not self.centroids.any():
            raise UserError("the patch tower was not fitted to pictures yet. Call fit(pictures) first.")
        return torch.cat([self.at_once(block) for block in pixels.split(_AT_ONCE)])

    def at_once(self, pixels: Float[Tensor, "n 3 rows columns"]) -> Float[Tensor, "n features"]:
        """The same for few pictures, by a fitted dictionary and in one piece: what a graph can hold."""
        return (self._raw(pixels) - self.feature_mean) / self.feature_spread

    def _raw(self, pixels: Float[Tensor, "n 3 rows columns"]) -> Float[Tensor, "n features"]:
        settings = self.settings
        patches = F.unfold(255 * pixels, settings.patch, stride=settings.stride).transpose(1, 2)
        rows, places, _ = patches.shape
        white = (_normalised(patches.reshape(rows * places, -1)) - self.mean) @ self.whitening
        squares = white.square().sum(1, keepdim=True) - 2 * white @ self.centroids.T + self.centroids.square().sum(1)
        distances = squares.clamp_min(1e-6).sqrt()
        near = (distances.mean(1, keepdim=True) - distances).clamp_min(0)  # Coates and Ng's triangle
        side = round(places**0.5)
        grid = near.reshape(rows, side, side, -1).permute(0, 3, 1, 2)
        parts = [F.adaptive_avg_pool2d(grid, settings.pool).flatten(1)]
        if settings.colour:
            parts.append(F.adaptive_avg_pool2d(pixels, settings.colour).flatten(1))
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def fit(self, pictures: np.ndarray) -> None:
        """Learn whitening, dictionary and standardisation; equal pictures give equal numbers on one machine.

        Args:
            pictures: uint8 (n, size, size, 3).

        Raises:
            UserError: they are all of one colour.
        """
        drawn = _normalised(_draw_patches(pictures, self.settings.patch))
        self.mean.copy_(drawn.mean(0))
        values, vectors = np.linalg.eigh(np.cov(drawn.numpy().astype(np.float64), rowvar=False))
        self.whitening.copy_(torch.from_numpy((vectors / np.sqrt(np.maximum(values, 0) + _WHITENING)) @ vectors.T))
        white = (drawn - self.mean) @ self.whitening
        if white.abs().max() < _TINY:
            raise UserError("the pictures are all of one and the same colour: there is no patch to learn. Name others.")
        self.centroids.copy_(_k_means(white, self.settings.centroids))
        self.feature_mean.zero_()
        self.feature_spread.fill_(1.0)
        step = max(1, len(pictures) // _STANDARDISED_BY)
        chosen = torch.from_numpy(pictures[::step][:_STANDARDISED_BY]).permute(0, 3, 1, 2)
        raw = torch.cat([self(chosen[start : start + _AT_ONCE] / 255) for start in range(0, len(chosen), _AT_ONCE)])
        self.feature_mean.copy_(raw.mean(0))
        self.feature_spread.copy_(raw.std(0, correction=0) + _TINY)


def _normalised(patches: Float[Tensor, "n entries"]) -> Float[Tensor, "n entries"]:
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + _CONTRAST).sqrt()


def _draw_patches(pictures: np.ndarray, side: int) -> Float[Tensor, "n entries"]:
    """Patches from anywhere in any picture, their entries in the order of `F.unfold`: channel, row, column."""
    generator = numpy_generator("patches")
    whose = generator.integers(0, len(pictures), _PATCHES)
    rows, columns = (
        generator.integers(0, length - side + 1, _PATCHES)[:, None, None] + np.arange(side).reshape(shape)
        for length, shape in ((pictures.shape[1], (side, 1)), (pictures.shape[2], (1, side)))
    )
    found = pictures[whose[:, None, None], rows, columns]
    return torch.from_numpy(found.transpose(0, 3, 1, 2).reshape(_PATCHES, -1).astype(np.float32))


def _k_means(points: Float[Tensor, "n entries"], count: int) -> Float[Tensor, "count entries"]:
    """Lloyd's algorithm from ``count`` of the points; a centroid that loses all its points stays where it is."""
    chosen = numpy_generator("centroids").permutation(len(points))[:count]
    centroids, points = points[torch.from_numpy(chosen)].clone(), points[:_LEARNED_FROM]
    for _ in range(_ROUNDS):
        nearest = torch.cat([torch.cdist(block, centroids).argmin(1) for block in points.split(8192)])
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        members = torch.bincount(nearest, minlength=count)[:, None]
        centroids = torch.where(members > 0, sums / members.clamp_min(1), centroids)
    return centroids


class PatchHead(nn.Module):
    """The trained part: a linear map plus an MLP with dropout on its input."""

    def __init__(self, settings: PatchTowers) -> None:
        super().__init__()
        self.linear = nn.Linear(settings.features, settings.width)
        self.residual: nn.Module | None = None
        if settings.hidden:
            self.residual = nn.Sequential(
                nn.Dropout(settings.dropout),
                nn.Linear(settings.features, settings.hidden),
                nn.GELU(),
                nn.Linear(settings.hidden, settings.width),
            )

    def forward(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        straight = self.linear(features)
        return straight if self.residual is None else straight + self.residual(features)


class PatchEncoder(SmallEncoder):
    """The patch tower with a text tower that reads words; mainly for `locked` training."""

    architecture = "patches"
    has_dropout = True

    def __init__(self, settings: PatchTowers, words: WordTokenizer, preset: str = "") -> None:
        super().__init__(nn.Sequential(PatchFeatures(settings), PatchHead(settings)), settings, words, preset)
        self.transform = ImageTransform(size=settings.size, mean=(0.0,) * 3, std=(1.0,) * 3)

    def training_transform(self) -> ImageTransform:
        """A random crop: its pictures are photographs and drawings, which do not vary by themselves."""
        return DualEncoder.training_transform(self)

    @property
    def dictionary(self) -> PatchFeatures:
        """The part that `fit` sets."""
        first: nn.Module = self.image_tower[0]  # type: ignore[index]
        assert isinstance(first, PatchFeatures)
        return first

    def fit(self, pictures: Sequence[ImageLike]) -> None:
        """Fit the dictionary to pictures; those of the training source do. The head and the text tower are not touched.

        Args:
            pictures: in an order without meaning; some thousands are enough.

        Raises:
            UserError: there are none.
        """
        if len(pictures) == 0:
            raise UserError("the patch tower is fitted to pictures, and there are none. Name a source with pictures.")
        self.dictionary.fit(np.stack([self.transform.pixels(picture) for picture in pictures]))

    def prepare(self, sources: Sequence[Source]) -> None:
        """Fit the dictionary to pictures spread evenly over the sources, unless that was done before.

        It depends on the sources and on the settings that make features, not on the run's seed, its head or its text
        tower, so that all of them share features.

        Raises:
            UserError: no picture can be read.
        """
        store, settings = FeatureStore(), asdict(self.dictionary.settings)
        key = (
            "patches",
            json.dumps({name: settings[name] for name in MAKE_FEATURES}, sort_keys=True),
            self.transform.key,
            *(source.fingerprint for source in sources),
        )
        if kept := store.load(*key):
            self.dictionary.load_state_dict(kept)
            return
        sizes = [min(len(source), 2**31) for source in sources]
        pictures: list[ImageLike] = []
        with progress("fit patches", None, "pictures") as counter:
            for source, size in zip(sources, sizes, strict=True):
                wanted = max(1, round(FIT_PICTURES * size / sum(sizes)))
                indices = np.unique(np.linspace(0, size - 1, min(size, wanted)).astype(np.int64))
                for start in range(0, len(indices), _BLOCK):
                    read = read_pictures(source, indices[start : start + _BLOCK], 0, self.transform.needed)
                    pictures += [
                        self.transform.pixels(each) for _, each in read if not isinstance(each, BrokenImageError)
                    ]
                    counter.advance(len(read))
            self.fit(pictures)
        with suppress(OSError, UserError):  # no room: they are fitted again next time
            store.save(self.dictionary.state_dict(), *key)

    def set_dropout(self, share: float) -> None:
        """Drop this share of the features in training; no embedding changes."""
        self.settings = replace(self.settings, dropout=share)  # type: ignore[type-var]
        for module in self.image_tower.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def _image_parts(self) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
        tower = self.image_tower
        assert isinstance(tower, nn.Sequential)
        return tower[0], tower[1]
