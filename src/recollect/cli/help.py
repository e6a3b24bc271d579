"""The help of every command, kept as text: asking for it then imports no command and nothing heavy.

The texts lie in ``texts/``. `make help` writes them again after an option has changed; a test says when that was
forgotten.
"""

import shutil
import sys
from pathlib import Path

HELP_WIDTH = 100
"""Columns of the kept texts."""

HELP_TEXTS = Path(__file__).parent / "texts"


def help_file(name: str) -> Path:
    """Where the help of the command ``name`` lies."""
    return HELP_TEXTS / f"{name.replace(' ', '-')}.txt"


def kept_help(name: str) -> str | None:
    """The help of the command ``name``; None where there is none for a terminal as narrow as this."""
    file = help_file(name)
    if not file.is_file() or (sys.stdout.isatty() and shutil.get_terminal_size().columns < HELP_WIDTH):
        return None
    return file.read_text(encoding="utf-8")
