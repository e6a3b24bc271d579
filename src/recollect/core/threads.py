"""Limit the threads of numerical libraries."""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """Run NumPy's and PyTorch's matrix products in the calling thread while the block runs.

    On small blocks, their threads wait for each other longer than they compute.
    """
    return _libraries().limit(limits=1)


@cache
def _libraries() -> ThreadpoolController:
    """Cached, because finding the libraries takes longer than a small task."""
    return ThreadpoolController()
