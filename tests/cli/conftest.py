"""Commands as a user runs them, on small pictures of shapes."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pictures import captioned
from recollect import cli
from recollect.cli import evaluations
from recollect.core import progress

SHAPES = ("circle", "cross", "square")


def picture(shape, seed):
    """Return a white shape of random size and position on a dark, noisy background."""
    random = np.random.default_rng([seed, SHAPES.index(shape)])
    ground = random.integers(0, 90, (32, 32, 3), dtype=np.uint8)
    image = Image.fromarray(ground)
    draw, (x, y), size = ImageDraw.Draw(image), random.integers(4, 10, 2).tolist(), int(random.integers(12, 18))
    box = (x, y, x + size, y + size)
    if shape == "circle":
        draw.ellipse(box, fill="white")
    elif shape == "square":
        draw.rectangle(box, fill="white")
    else:
        draw.line(box, fill="white", width=4)
        draw.line((x, y + size, x + size, y), fill="white", width=4)
    return image


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def few_templates(monkeypatch):
    """Use a tenth of the 80 templates, since these tests are about commands and not accuracies."""
    monkeypatch.setattr(evaluations, "GENERAL_TEMPLATES", evaluations.GENERAL_TEMPLATES[:8])


@pytest.fixture(scope="session")
def recollect():
    """Run a command in this process and return its output and exit status."""

    def run(*words, check=True):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            patch.setattr(progress.console, "_file", err)  # its default follows sys.stderr
            try:
                status = cli.main([str(word) for word in words])
            except SystemExit as exit_:
                status = exit_.code
        done = Done(status, out.getvalue(), err.getvalue())
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def check_error(recollect):
    """Run a command and check that it fails with status 2 and one line, which contains the message."""

    def run(message, *words):
        done = recollect(*words, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr

    return run


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """train/SHAPE/*.png and test/SHAPE/*.png."""
    folder = tmp_path_factory.mktemp("shapes")
    for split, count in (("train", 12), ("test", 8)):
        for shape in SHAPES:
            (folder / split / shape).mkdir(parents=True)
            for number in range(count):
                picture(shape, number + 100 * (split == "test")).save(folder / split / shape / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A CSV of captioned pictures."""
    texts = [f"a white {SHAPES[number % 3]} on a dark ground" for number in range(60)]
    return captioned(tmp_path_factory.mktemp("pairs"), texts, lambda n: picture(SHAPES[n % 3], 1000 + n))


@pytest.fixture(scope="session")
def trained(recollect, pairs, tmp_path_factory):
    """Models of two short training runs, without and with context."""
    out = tmp_path_factory.mktemp("runs")
    for recipe in ("siglip-tiny", "siglixp-tiny"):
        words = ("--data", pairs, "--steps", 6, "--batch-size", 16, "--out", out / recipe)
        recollect("train", recipe, *words)
    return [out / recipe / "model" for recipe in ("siglip-tiny", "siglixp-tiny")]
