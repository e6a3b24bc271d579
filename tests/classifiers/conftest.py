"""Small random encoders and pictures in a few colors."""
# ruff: noqa: F401, F811

import numpy as np
import pytest

from dual_encoders import make_encoder
from recollect.classifiers.tuning import LabeledPictures

COLORS = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}


@pytest.fixture(params=["clip", "siglip"])
def encoder(request, make_encoder):
    return make_encoder(request.param)


@pytest.fixture(scope="session")
def shots():
    """Two pictures in each of three colors."""
    labels = np.arange(6) % 3
    noise = np.random.default_rng(0).integers(0, 30, (6, 40, 36, 3))
    pictures = [(np.array(list(COLORS.values())[label]) + noise[i]).astype(np.uint8) for i, label in enumerate(labels)]
    return LabeledPictures(pictures, labels, tuple(COLORS))
