"""The page of a small memory, running."""

import shutil

import numpy as np
import pytest

import guide_world
from pages import colour_memory, start
from recollect.memory.rows import Pairs
from recollect.memory.store import Memory
from recollect.models import load_model


@pytest.fixture(scope="session")
def painted(tmp_path_factory):
    """A memory that nobody changes; a test that would copies it."""
    folder = tmp_path_factory.mktemp("painted") / "memory"
    colour_memory(folder)
    return folder


@pytest.fixture
def page(tmp_path, painted):
    """A page of one's own."""
    shutil.copytree(painted, tmp_path / "memory")
    running, stop = start(tmp_path / "memory")
    yield running
    stop()


@pytest.fixture(scope="module")
def shared_page(tmp_path_factory, painted):
    """A page for tests that change nothing."""
    folder = tmp_path_factory.mktemp("shared") / "memory"
    shutil.copytree(painted, folder)
    running, stop = start(folder)
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


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    """The page of thirty drawings, every third without a caption, with a model that can adapt; nobody changes it."""
    folder = tmp_path_factory.mktemp("drawings")
    guide_world.checkpoint(folder / "MODEL", seed=9)  # adapting it moves pictures near both ends of the first 16
    encoder = load_model(str(folder / "MODEL"))
    images = [guide_world.drawing(number) for number in range(30)]
    captions = [guide_world.caption(number) if number % 3 else "" for number in range(30)]
    texts = encoder.embed_texts([caption or "nothing" for caption in captions]).numpy()
    texts[[not caption for caption in captions]] = 0
    name = str(folder / "MODEL")
    memory = Memory.create(folder / "memory", width=encoder.width, model=encoder.fingerprint, model_name=name)
    memory.add(
        Pairs(
            ids=[f"d/{number}" for number in range(30)],
            image_vectors=encoder.embed_images(images).numpy(),
            text_vectors=texts,
            captions=captions,
            model=encoder.fingerprint,
            sources=["drawings"] * 30,
            metadata=[{"number": number} for number in range(30)],
            images=[guide_world.encoded(image) for image in images],
        )
    )
    running, stop = start(folder / "memory", encoder=encoder, name=name)
    yield running
    stop()
