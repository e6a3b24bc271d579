"""Lists of pictures that were asked for, kept so that the browser can fetch what is in sight."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.core.errors import UserError

_KEPT = 16


class ListGoneError(UserError):
    """A list that is not kept any more: whoever still shows it can ask for it anew."""


@dataclass(frozen=True)
class Order:
    """Rows in the order of some scores.

    Attributes:
        key: to ask for parts of it.
        rows: best first.
        scores: of these rows.
        kind: ``all``, ``search``, ``adapted``, ``class``, ``next``, ``sorted``.
        before: rank of some rows by the model as it is, where an episode ranked them again.
        about: what the whole list's reader should know.
    """

    key: str
    rows: np.ndarray
    scores: np.ndarray
    kind: str
    before: Mapping[int, int] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


class Orders:
    """The latest few lists; safe to call from several threads."""

    def __init__(self) -> None:
        self._orders: OrderedDict[str, Order] = OrderedDict()
        self._lock = threading.Lock()

    def keep(
        self,
        rows: np.ndarray,
        scores: np.ndarray,
        kind: str,
        before: Mapping[int, int] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Order:
        """Keep a list; the one that was longest unused goes."""
        order = Order(secrets.token_urlsafe(9), rows, scores, kind, before or {}, about or {})
        with self._lock:
            self._orders[order.key] = order
            while len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
        return order

    def get(self, key: str) -> Order:
        """A list that was made before.

        Raises:
            ListGoneError: it is not kept any more.
        """
        with self._lock:
            if key not in self._orders:
                raise ListGoneError("this list is not there any more. Search again.")
            self._orders.move_to_end(key)
            return self._orders[key]
