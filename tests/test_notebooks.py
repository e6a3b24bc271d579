"""The notebooks run from top to bottom, and the outputs they are shown with are small."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def shown(notebook):
    """What each cell printed, numbers left out: another processor rounds otherwise."""
    return [
        NUMBER.sub("#", "".join(output.get("text", "") for output in cell.outputs))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    before = shown(notebook)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert shown(notebook) == before


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small(path):
    assert path.stat().st_size < 50_000
