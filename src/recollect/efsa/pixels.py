"""Pictures decoded once."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import ImageLike
from recollect.data.sources.reader import blocks_ahead
from recollect.data.transforms import ImageTransform
from recollect.index import Picture

_GIB = 2**30


class PixelCache:
    """A cache of decoded, transformed pictures as bytes; the least recently used are dropped first.

    Attributes:
        gone: ids of pictures that could not be opened.
    """

    def __init__(self, transform: ImageTransform, most_bytes: int = _GIB) -> None:
        self.transform, self.most_bytes = transform, most_bytes
        self.gone: set[str] = set()
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, items: Sequence[Picture]) -> list[np.ndarray | None]:
        """Each item's picture, (size, size, 3) bytes or a 1-d vector; None if it cannot be opened."""
        missing = [item for item in items if item.id not in self._kept and item.id not in self.gone]
        fresh: dict[str, np.ndarray | None] = {}
        if missing:
            (opened,) = blocks_ahead(lambda place: self._open(missing[place]), range(len(missing)), len(missing))
            fresh = dict(zip((item.id for item in missing), opened, strict=True))
        found = [fresh[item.id] if item.id in fresh else self._kept.get(item.id) for item in items]
        for item in items:
            if item.id in self._kept:
                self._kept.move_to_end(item.id)
        for id, picture in fresh.items():
            self._keep(id, picture)
        return found

    def prepared(self, image: ImageLike) -> np.ndarray:
        """A picture in the form that `read` returns."""
        vector = isinstance(image, np.ndarray) and image.ndim == 1
        return np.asarray(image, dtype=np.float32) if vector else self.transform.pixels(image)

    def tensor(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Input of the image tower."""
        rows = torch.from_numpy(np.stack(pictures))
        return rows.float() if rows.ndim == 2 else self.transform.normalize(rows)

    def _open(self, item: Picture) -> np.ndarray | None:
        try:
            return self.prepared(item.read())
        except (UserError, OSError):
            return None

    def _keep(self, id: str, picture: np.ndarray | None) -> None:
        if picture is None:
            self.gone.add(id)
            return
        self._kept[id] = picture
        self._bytes += picture.nbytes
        while self._bytes > self.most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
