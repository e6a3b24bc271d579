"""Every row of the table of commands can be imported, and the help that is kept of it is what it says itself."""

import re
import subprocess
import sys

import pytest

from recollect import cli
from recollect.cli import render_help
from recollect.cli.help import kept_help


def words(text):
    """The text without its frames and line breaks, which another version of the parser may draw otherwise."""
    return "".join(letter for letter in re.sub("-{3,}", "", text) if letter.isalnum() or letter in "-[]{}|.:,")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_the_help_that_is_kept_is_what_the_command_says(name, capsys):
    assert words(kept_help(name)) == words(render_help(name)), "an option has changed: run `make help`"
    assert cli.main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown == kept_help(name)
    assert shown.startswith(f"usage: recollect {name}")
    assert "STR STR" not in shown.splitlines()[0], "places have names"


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from recollect.cli import main
for name in {list(cli.COMMANDS)}:
    main([*name.split(), "--help"])
print(sorted({{"torch", "numpy", "transformers", "tyro", "PIL"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_narrow_terminal_gets_help_of_its_own_width(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert kept_help("search") is None
    monkeypatch.setenv("COLUMNS", "120")
    assert kept_help("search") is not None
