"""The page of a small memory, running."""

import numpy as np
import pytest

from pages import colour_memory, start


@pytest.fixture
def page(tmp_path):
    colour_memory(tmp_path / "memory")
    running, stop = start(tmp_path / "memory")
    yield running
    stop()


@pytest.fixture
def restart():
    """Start the page of a memory again, as after a kill."""
    stops = []

    def again(folder, token=None):
        running, stop = start(folder, token)
        stops.append(stop)
        return running

    yield again
    for stop in stops:
        stop()


@pytest.fixture
def unit():
    return lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
