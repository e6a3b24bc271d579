"""Running pages of small indexes, and a browser."""

import os
import shutil

import pytest

import guide_world
from browsing import CHROMIUM, SWITCHES
from pages import color_index, start
from recollect.index import Index, Rows
from recollect.models import load_model


@pytest.fixture(scope="session")
def painted(tmp_path_factory):
    """An index that tests must not change."""
    folder = tmp_path_factory.mktemp("painted") / "index"
    color_index(folder)
    return folder


@pytest.fixture
def page(tmp_path, painted, start_page):
    """A page that tests may change."""
    return start_page(shutil.copytree(painted, tmp_path / "index"))


@pytest.fixture(scope="module")
def shared_page(tmp_path_factory, painted):
    """A page that tests must not change."""
    running, stop = start(shutil.copytree(painted, tmp_path_factory.mktemp("shared") / "index"))
    yield running
    stop()


@pytest.fixture
def start_page():
    """Return a function that starts the page of an index; all pages are stopped at the end."""
    stops = []

    def start_one(folder, encoder=None):
        running, stop = start(folder, encoder=encoder)
        stops.append(stop)
        return running

    yield start_one
    for stop in stops:
        stop()


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    """A read-only page of thirty drawings, every third without a caption, with a model that can adapt."""
    folder = tmp_path_factory.mktemp("drawings")
    guide_world.checkpoint(folder / "MODEL", seed=9)  # adapting reorders pictures near both ends of the first 16
    encoder = load_model(str(folder / "MODEL"))
    images = [guide_world.drawing(number) for number in range(30)]
    captions = [guide_world.caption(number) if number % 3 else "" for number in range(30)]
    texts = encoder.embed_texts([caption or "nothing" for caption in captions]).numpy()
    index = Index.create(
        folder / "index", width=encoder.width, model=encoder.fingerprint, model_name=str(folder / "MODEL")
    )
    index.insert(
        Rows(
            ids=[f"d/{number}" for number in range(30)],
            image_vectors=encoder.embed_images(images).numpy(),
            captions=[(caption,) if caption else () for caption in captions],
            caption_vectors=[text[None] if caption else text[:0].reshape(0, len(text))
                             for caption, text in zip(captions, texts, strict=True)],
            metadata=[{"number": number} for number in range(30)],
            images=[guide_world.encoded(image) for image in images],
        )
    )  # fmt: skip
    running, stop = start(folder / "index", encoder=encoder)
    yield running
    stop()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'recollect[dev]'")
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"no chromium at {CHROMIUM} (apt-get install chromium, or set RECOLLECT_CHROMIUM)")
    with playwright.sync_playwright() as starter:
        opened = starter.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()
