"""What all studies share in tests: made worlds whose tokenizer learns from a few texts, and no wait for disks.

pytest reads this file before it starts its workers, so what takes long to import is imported in the fixtures.
"""

import os

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_worlds():
    """Every word of a made world is known beforehand, and how often it occurs does not change a table's form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.data.sources.subset._MAX_GENERATED_TEXTS", 300)
        patch.setattr(os, "fsync", lambda file: None)  # what a power cut leaves is tested where files are written
        yield


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Smoke scale with one seed, in a folder that the studies of a module share."""
    from recollect_papers.study import StudyOptions

    return StudyOptions("smoke", tmp_path_factory.mktemp("studies"), seeds=1, workers=1)


@pytest.fixture(scope="session")
def draw():
    """Runs a study, checks that its figure is a picture with something on it, and returns the report."""
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
