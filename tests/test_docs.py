"""What the guides print can be run: commands, recipes, studies, options, links and examples."""

import contextlib
import doctest
import functools
import importlib
import io
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import recollect
from recollect import cli
from recollect.commands.train import full_name
from recollect.studies import STUDIES
from recollect.training.recipes import RECIPES

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def commands(page):
    """Every command line of the page, continuation lines joined and comments taken away."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    lines = re.findall(r"(?:^|`)((?:[^\s`]+ )*recollect [^\n`]+)", text, re.MULTILINE)
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if "recollect" in words and not words[0].startswith(("from", "import")):
            found.append(words[words.index("recollect") + 1 :])
    return found


@functools.cache
def help_text(*words):
    with contextlib.redirect_stdout(io.StringIO()) as text, pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    return text.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_printed_exists(page):
    for words in (each for each in commands(page) if not each[0].startswith("-")):
        name, rest = cli._choose([word for word in words if word != "…"])
        positional = next((word for word in rest if not word.startswith("-")), None)
        if name == "train" and positional and not positional.startswith(("RECIPE", "$")):
            assert positional in RECIPES, words
        if name == "study" and positional:
            assert positional in STUDIES, words
        if name == "train" and not rest:
            continue
        text = help_text(*name.split(), *([positional] if name == "train" and positional in RECIPES else []))
        for option in (word.split("=")[0] for word in rest if word.startswith("--")):
            option = full_name(option) if name == "train" else option
            assert re.search(rf"{option}\b", text), (words, option)


def test_the_pages_print_commands():
    assert sum(len(commands(page)) for page in PAGES) > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("room", ["objectives", "fewshot", "core"])
def test_examples_in_docstrings_hold(room):
    package = importlib.import_module(f"{recollect.__name__}.{room}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
