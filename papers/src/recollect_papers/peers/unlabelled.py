"""Zero-shot classification with unlabelled pictures: a whole folder, a stream, or many views of each picture."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from PIL import Image

from recollect.classifiers.heads.base import softmax
from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.seeding import numpy_generator
from recollect.core.types import Source
from recollect.data.sources.images import as_rgb
from recollect.data.transforms import ImageTransform
from recollect.evaluation.zero_shot import Named, NamedPictures, UnlabelledMethod
from recollect_papers.peers.adapt import OnlineGaussians, adapt
from recollect_papers.peers.online import OnlineCache, counted_vote
from recollect_papers.peers.transductive import Assignment, stat_a, trans_clip

VIEWS = 64
"""As published: the picture and 63 random crops, half of them mirrored."""

_CROPS = ImageTransform(training=True, scale=(0.08, 1.0), flip=True)
_LARGEST = 384
_PICTURES = 8


_Predict = Callable[[NamedPictures], Named]


def _folder(method: Callable[..., Assignment]) -> _Predict:
    def predict(given: NamedPictures) -> Named:
        found = method(given.images, given.texts, scale=given.scale)
        return Named(found.labels, found.probabilities.max(axis=1))

    return predict


def _stream(method: Callable[..., OnlineCache | OnlineGaussians]) -> _Predict:
    def predict(given: NamedPictures) -> Named:
        order = numpy_generator("stream", given.seed).permutation(len(given.images))
        scores = np.empty((len(order), len(given.texts)))
        scores[order] = method(given.texts, scale=given.scale).scores(given.images[order])
        return Named(scores.argmax(axis=1), softmax(scores).max(axis=1))

    return predict


def _by_views(given: NamedPictures) -> Named:
    found, confidence = np.empty(len(given.rows), dtype=np.int64), np.empty(len(given.rows))
    with progress(f"views of {given.source.name}", len(found), "images") as counter:
        for start in range(0, len(found), _PICTURES):
            rows = given.rows[start : start + _PICTURES].tolist()
            views = [view for row in rows for view in views_of(given.source, row, given.seed)]
            embedded = given.encoder.embed_images(views).numpy().reshape(len(rows), VIEWS, -1)
            for row, each in enumerate(embedded, start):
                found[row], confidence[row] = counted_vote(each, given.texts, scale=given.scale)
            counter.advance(len(rows))
    return Named(found, confidence)


def views_of(source: Source, row: int, seed: int = 0) -> list[Image.Image | np.ndarray]:
    """The picture and random crops of 8 to 100 % of its area, half of them mirrored.

    Raises:
        UserError: the source has vectors instead of pictures.
    """
    image = source[row].image
    if isinstance(image, np.ndarray) and image.ndim == 1:
        raise UserError(f"{source.name}: has vectors, which cannot be cropped. Remove zero from --methods.")
    picture = as_rgb(image if isinstance(image, Image.Image) else Image.fromarray(image))
    crops = replace(_CROPS, size=min(*picture.size, _LARGEST))
    random = numpy_generator("views", seed, row)
    return [picture, *(crops.pixels(picture, random) for _ in range(VIEWS - 1))]


UNLABELLED_METHODS: Mapping[str, UnlabelledMethod] = {
    "trans-clip": UnlabelledMethod("folder", _folder(trans_clip)),
    "stat-a": UnlabelledMethod("folder", _folder(stat_a)),
    "adapt-folder": UnlabelledMethod("folder", _folder(adapt)),
    "tda": UnlabelledMethod("stream", _stream(OnlineCache)),
    "adapt": UnlabelledMethod("stream", _stream(OnlineGaussians)),
    "zero": UnlabelledMethod("views", _by_views),
}
"""TransCLIP, StatA and ADAPT on a folder; TDA and ADAPT on a stream; ZERO on 64 views of each picture."""
