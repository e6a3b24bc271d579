"""The commands of `recollect-papers`."""

import subprocess
import sys

from recollect_papers.cli import COMMANDS


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from recollect_papers.cli import main
for name in {sorted(COMMANDS)}:
    try:
        main([*name.split(), "--help"])
    except SystemExit as stop:
        assert not stop.code
print(sorted({{"torch", "numpy", "transformers", "pyarrow", "matplotlib"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
