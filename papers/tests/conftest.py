"""Fixtures for studies: tokenizers trained on few texts, and no fsync.

pytest imports this file before starting its workers, so slow imports are inside the fixtures.
"""

import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_worlds():
    """Train tokenizers of synthetic worlds on few texts; word frequencies do not affect the form of tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.data.sources.subset._MAX_GENERATED_TEXTS", 300)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Smoke scale with one seed, in a folder shared by all studies of a module."""
    from recollect_papers.study import StudyOptions

    return StudyOptions("smoke", tmp_path_factory.mktemp("studies"), seeds=1, workers=1)


@pytest.fixture(scope="session")
def draw():
    """Return a function that runs a study, checks that its figure is not blank, and returns the report."""
    import numpy as np
    from PIL import Image

    from recollect_papers.studies import find_study

    def run(name, options):
        report = find_study(name).load()(options)
        (file,) = report.figures
        picture = np.asarray(Image.open(options.out / file).convert("L"))
        assert min(picture.shape) > 200
        assert (picture < 128).mean() > 0.001
        return report

    return run
