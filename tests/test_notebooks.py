"""The notebooks run from top to bottom, and their saved outputs are up to date and small."""

import re
from pathlib import Path

import pytest

import guide_notebook

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def without_numbers(text):
    """Mask numbers, since processors round differently."""
    return NUMBER.sub("#", text)


def test_there_are_six_notebooks():
    names = ["adaptive-search", "few-shot", "own-loss", "page-loop", "post-train", "reco"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_its_saved_output(path, tmp_path):
    before = [guide_notebook.shown(cell) for cell in guide_notebook.code_cells(guide_notebook.read(path))]
    printed = guide_notebook.run(path, tmp_path)
    assert list(map(without_numbers, printed)) == list(map(without_numbers, before))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small(path):
    assert path.stat().st_size < 50_000
