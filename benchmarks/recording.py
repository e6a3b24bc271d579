"""How a result file says what made it."""

import shlex
import sys
from pathlib import Path


def this_command() -> str:
    """The command that runs now, for another machine: a path outside the project is its last part."""
    return shlex.join(["python", str(Path(sys.argv[0])), *map(_elsewhere, sys.argv[1:])])


def _elsewhere(word: str) -> str:
    path = Path(word)
    return path.name if path.is_absolute() or word.startswith("..") else word
