"""Random pairs, and indexes of random pictures."""

import numpy as np
import pytest

from index_rows import HashEncoder, Pictures, unit
from recollect.index import Index
from recollect.reco.pairs import Pairs

WIDTH = 16
MODEL = "model-a"


def make_pairs(count, first=0, width=WIDTH, model=MODEL, seed=0):
    """Return random pairs; pair ``i`` does not depend on ``first``."""
    numbers = range(first, first + count)
    vectors = [np.random.default_rng([seed, number]).normal(size=(2, width)) for number in numbers]
    both = np.array(vectors).reshape(count, 2, width)
    captions = [f"picture {number} of {'a cat' if number % 2 else 'an owl'}" for number in numbers]
    return Pairs(unit(both[:, 0]), unit(both[:, 1]), captions, [f"row {number}" for number in numbers], model)


@pytest.fixture
def pairs():
    """Return the `make_pairs` factory."""
    return make_pairs


@pytest.fixture
def on_disk(tmp_path):
    """Saved index of forty pairs."""
    return make_pairs(40).index().save(tmp_path / "disk")


@pytest.fixture
def encoder():
    return HashEncoder(width=WIDTH)


@pytest.fixture
def other_encoder():
    return HashEncoder("b", WIDTH)


@pytest.fixture
def pictures():
    """Return the `Pictures` source class."""
    return Pictures


@pytest.fixture
def built(tmp_path, encoder):
    """Index of forty pictures with one caption each."""
    from recollect.index import IngestOptions

    return Index.build(
        Pictures(40), encoder, out=tmp_path / "index", precision="float32", options=IngestOptions(captions="first")
    )
