"""Threads of the libraries that compute."""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """NumPy's and PyTorch's products stay in the thread that calls them: on small blocks their threads wait longer for
    each other than they compute."""
    return _libraries().limit(limits=1)


@cache
def _libraries() -> ThreadpoolController:
    """Cached, because finding them takes longer than a small task."""
    return ThreadpoolController()
