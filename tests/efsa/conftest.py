"""Small random dual encoders of three families, and indexes of random pictures."""
# ruff: noqa: F401, F811

import pytest

from dual_encoders import encoder, family, make_encoder, make_episode_batch, pictures
from recollect.index.source import source_index


@pytest.fixture
def make_index(pictures):
    """An index of 24 pictures; each has its own caption unless others are given."""

    def make(encoder, captions=None):
        own = [pictures.texts(row)[0] for row in range(24)]
        return source_index(encoder, pictures, own if captions is None else captions)

    return make
