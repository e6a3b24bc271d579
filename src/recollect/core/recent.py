"""A least-recently-used cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value]):
    """Thread-safe least-recently-used cache.

    Args:
        most: maximum total weight; beyond it the least recently used values are dropped, but never the newest one.
        weigh: returns the weight of a value; 1 by default.
    """

    def __init__(self, most: int, weigh: Callable[[_Value], int] = lambda value: 1) -> None:
        self._most, self._weigh = most, weigh
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._weight = 0
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
                self._weight -= self._weigh(self._values.pop(key))
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._most and len(self._values) > 1:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])
        return value

    def get_or_create(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the cached value, or call ``make`` and cache its result; two threads may both call ``make``."""
        found = self.get(key)
        return found if found is not None else self.put(key, make())
