"""Run notebooks in this process, since a kernel for each would import everything again.

``python tests/guide_notebook.py docs/notebooks/*.ipynb`` runs notebooks and saves their outputs.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """Read a notebook as JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the code cells in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def shown(cell: dict[str, Any]) -> str:
    """Return the saved output of a cell."""
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def run(path: Path, folder: Path) -> list[str]:
    """Run all code cells in ``folder``, and return the output of each."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    printed, cells = [], code_cells(read(path))
    with contextlib.chdir(folder):
        for number, cell in enumerate(cells):
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                exec(compile(source(cell), f"{path.name}, cell {number}", "exec"), scope)
            printed.append(text.getvalue())
    return printed


def write(path: Path) -> None:
    """Run a notebook and save its outputs."""
    notebook = read(path)
    with tempfile.TemporaryDirectory() as folder:
        printed = run(path, Path(folder))
    for number, (cell, text) in enumerate(zip(code_cells(notebook), printed, strict=True), start=1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
