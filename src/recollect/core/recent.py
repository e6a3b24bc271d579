"""A least-recently-used cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LruCache(Generic[_Key, _Value]):
    """Thread-safe least-recently-used cache.

    Args:
        max_size: maximum total size; beyond it the least recently used values are dropped, but never the newest one.
        size_of: returns the size of a value; 1 by default.
    """

    def __init__(self, max_size: int, size_of: Callable[[_Value], int] = lambda value: 1) -> None:
        self._max_size, self._size_of = max_size, size_of
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        """Return the value for a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def __contains__(self, key: _Key) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Store a value, and return it."""
        with self._lock:
            if key in self._values:
                self._size -= self._size_of(self._values.pop(key))
            self._values[key] = value
            self._size += self._size_of(value)
            while self._size > self._max_size and len(self._values) > 1:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
        return value

    def get_or_create(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the cached value, or call ``make`` and cache its result; two threads may both call ``make``."""
        found = self.get(key)
        return found if found is not None else self.put(key, make())
