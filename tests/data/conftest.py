"""Shared fixtures."""

from pictures import captions, labels, make, own_cache, shade_fixture

__all__ = ["captions", "labels", "make", "own_cache", "shade_fixture"]
