"""Shared by all packages: types, errors, atomic files, seeds, progress."""
