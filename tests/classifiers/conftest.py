"""Small random transformers checkpoints and pictures in a few colors."""

import numpy as np
import pytest
import torch

from models.conftest import MAKERS
from recollect.classifiers.tuning import LabeledPictures
from recollect.models import load_model
from recollect.models.transformers.encoder import quiet

COLORS = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}


@pytest.fixture(scope="session")
def make_encoder(tmp_path_factory):
    """Return a function that builds and caches a small random encoder by family and seed."""
    encoders = {}

    def make(family, seed=0):
        if (family, seed) not in encoders:
            folder = tmp_path_factory.mktemp("tuning") / family
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(seed)
                model, processor = MAKERS[family]()
                model.save_pretrained(folder)
                processor.save_pretrained(folder)
            encoders[family, seed] = load_model(folder, "cpu")
        return encoders[family, seed]

    return make


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
