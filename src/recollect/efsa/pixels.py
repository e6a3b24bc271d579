"""Cache of decoded pictures."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.recent import LruCache
from recollect.core.types import ImageLike
from recollect.data.sources.reader import blocks_ahead
from recollect.data.transforms import ImageTransform
from recollect.index import Picture

_GIB = 2**30


class PixelCache:
    """LRU cache of decoded, transformed pictures as bytes.

    Attributes:
        unreadable: ids of unreadable pictures.
    """

    def __init__(self, transform: ImageTransform, max_bytes: int = _GIB) -> None:
        self.transform = transform
        self.unreadable: set[str] = set()
        self._cache: LruCache[str, np.ndarray] = LruCache(max_bytes, lambda picture: picture.nbytes)

    def __len__(self) -> int:
        return len(self._cache)

    def read(self, items: Sequence[Picture]) -> list[np.ndarray | None]:
        """Return each item's picture, (size, size, 3) bytes or a 1-d vector; None if unreadable."""
        found = {item.id: self._cache.get(item.id) for item in items}
        missing = [item for item in items if found[item.id] is None and item.id not in self.unreadable]
        if missing:
            (opened,) = blocks_ahead(lambda number: self._open(missing[number]), range(len(missing)), len(missing))
            for item, picture in zip(missing, opened, strict=True):
                found[item.id] = picture
                if picture is None:
                    self.unreadable.add(item.id)
                else:
                    self._cache.put(item.id, picture)
        return [found[item.id] for item in items]

    def prepared(self, image: ImageLike) -> np.ndarray:
        """Transform a picture to the form returned by `read`."""
        vector = isinstance(image, np.ndarray) and image.ndim == 1
        return np.asarray(image, dtype=np.float32) if vector else self.transform.pixels(image)

    def tensor(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Return the input of the image tower."""
        rows = torch.from_numpy(np.stack(pictures))
        return rows.float() if rows.ndim == 2 else self.transform.normalize(rows)

    def _open(self, item: Picture) -> np.ndarray | None:
        try:
            return self.prepared(item.read())
        except (UserError, OSError):
            return None
