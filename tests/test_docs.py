"""Everything the guides show works: Python blocks, commands (also those in loops) and links."""

import ast
import contextlib
import doctest
import importlib
import io
import itertools
import pkgutil
import re
import shutil
import sys
import traceback
import types
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import guide_notebook
import guide_shell
import guide_world
import recollect
from recollect import cli
from recollect.cli.parser import options_of
from recollect.training import loop

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

# Commands that cannot run in a test, and why. Their options are still checked.
NOT_RUN = {
    r"^--suite lixp-21": "opens 21 sets on the hub",
    r"milvus://db\.example\.org": "needs a Milvus cluster; tests/index runs the same code on Milvus Lite",
    r"^index accelerate\b": "needs thousands of rows; tests/index measures it",
    r"^serve\b": "runs until stopped; tests/web drives the page",
    r"^index watch\b": "runs until stopped; tests/index watches a folder",
    r"^export\b.*--classifier": "writes five graphs; tests/classifiers compares each with the model",
}
# Shell lines that are skipped: they set up the environment rather than run `recollect`.
SETUP_LINE = re.compile(
    r"^(recollect-papers|make|pip|python3 -m venv|source|\.venv/bin|pipx|docker|torchrun|git|uvx?|pre-commit|"
    r"mkdir -p ~)\b"
)


@dataclass(frozen=True)
class Block:
    """Fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    """Yield every fenced block, also those inside lists, without its indentation."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        lines = [line.removeprefix(match[1]) for line in match[3].splitlines()]
        yield Block(page, text[: match.start()].count("\n") + 1, match[2], "\n".join(lines))


def is_shell(block):
    return block.language in {"", "bash", "sh", "shell"} and re.search(r"(^|\s)recollect\s", block.text) is not None


def reason_not_to_run(words):
    line = " ".join(words)
    named = [why for pattern, why in NOT_RUN.items() if re.search(pattern.replace("^--", "(^| )--"), line)]
    return named[0] if named else None


def options_exist(words):
    """Check that the options of a command that is not run exist."""
    name, rest = cli.choose("recollect", cli.COMMANDS, words)
    typed = [word.split("=")[0] for word in rest if word.startswith("--")]
    options = list(options_of(cli.COMMANDS[name].kind))
    known = {f"--{each}" for option in options for each in (option.name, option.alias, f"no-{option.name}")}
    assert set(typed) <= known | {"--help", "--config", "--print-config"}, words


def run_command(words, folder):
    if reason_not_to_run(words):
        options_exist(words)
        return 0, "", ""
    return guide_shell.command(words, folder)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    return guide_world.make_world(tmp_path_factory.mktemp("guide"))


@pytest.fixture
def world(template, tmp_path, monkeypatch):
    """Fresh copy of the reader's folder."""
    folder = tmp_path / "here"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def names(world, template, monkeypatch):
    """Variables that Python blocks may assume: the reader's pictures, labels and embeddings."""
    original = recollect.train  # resolved before patching, since the front door caches imported names

    def train(recipe, *arguments, **options):
        return original(replace(recipe, steps=2, batch_size=8), *arguments, **options)

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(recollect, "train", train)
    pictures = [guide_world.drawing(number) for number in range(8)]
    generator = np.random.default_rng(0)

    def unit(rows):
        vectors = generator.normal(size=(rows, 16))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return {
        "pictures": pictures,
        "examples": pictures,
        "new_images": pictures[:3],
        "labels": np.array(["crane", "owl"] * 4),
        "support": unit(8),
        "queries": unit(3),
        "cat_files": sorted(Path("examples/owl").iterdir()),
        "dog_files": sorted(Path("examples/crane").iterdir()),
        "more_files": sorted(Path("more/owl").iterdir()),
        "texts": unit(2),
        "more": unit(4),
        "more_labels": np.array(["crane", "owl"] * 2),
    }


def assumed_names(page, names):
    """Return the variables that the blocks of a page may assume."""
    if page.name == "data.md":
        from recollect.data.sources import open_source

        return names | {
            "captions": open_source("pairs.parquet"),
            "labels": open_source("eurosat.parquet", kind="label"),
        }
    if page.name == "README.md":
        return {}  # its first block must run as pasted
    if page.name in {"indexes.md", "search.md", "few-shot.md"}:
        from recollect.models import load_model

        return names | {"model": load_model("MODEL")}
    return names


def single_seed(script):
    """Shorten loops over seeds to one iteration."""
    return re.sub(r"for (\w+) in (\d+)( \d+)+;", r"for \1 in \2;", script)


def run_shell(block, folder, scratch):
    lines = [line for line in block.text.splitlines() if not SETUP_LINE.match(line.strip())]
    status, screen = guide_shell.run_script(single_seed("\n".join(lines)), folder, scratch, run_command)
    assert status == 0, f"{block}\n{screen[-1500:]}"
    return screen


def run_python(block, scope):
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            exec(compile(block.text, str(block), "exec"), scope)
    except Exception as error:
        raise AssertionError(f"{block}: {error}\n{traceback.format_exc(limit=-6)}") from error
    return shown.getvalue()


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def same_output(shown, printed):
    """Return whether words are equal and numbers agree to 1%, since processors round differently."""
    shown, printed = shown.strip(), printed.strip()
    if NUMBER.sub("#", re.sub(r"\s+", " ", shown)) != NUMBER.sub("#", re.sub(r"\s+", " ", printed)):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= 0.01 * max(1.0, abs(float(a))) for a, b in pairs)


def shell_pages():
    return [page for page in PAGES if any(is_shell(each) or each.language == "python" for each in blocks(page))]


@pytest.mark.parametrize("page", shell_pages(), ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom_and_prints_the_shown_output(page, world, names, tmp_path, monkeypatch):
    script = types.ModuleType("guide")  # a module, so that the page's definitions can be pickled, as in a script
    monkeypatch.setitem(sys.modules, script.__name__, script)
    scope, screen = vars(script), None
    scope.update(assumed_names(page, names))
    for block in blocks(page):
        if block.language == "python":
            screen = run_python(block, scope)
        elif is_shell(block):
            screen = run_shell(block, world, tmp_path)
        elif block.language == "text" and screen is not None:
            assert same_output(block.text, screen), f"{block} shows\n{block.text}\nbut it prints\n{screen}"
            screen = None


def imports(code):
    """Yield the recollect modules that a piece of code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "recollect":
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "recollect")


def test_guides_and_notebooks_import_only_public_names():
    rooms = {f"recollect.{name}" for name in dir(recollect) if isinstance(getattr(recollect, name), types.ModuleType)}
    guides = [page for page in PAGES if page.name != "CONTRIBUTING.md"]  # contributors import from inner modules
    pages = {str(each): each.text for page in guides for each in blocks(page) if each.language == "python"}
    cells = {
        f"{path.name}, cell {number}": guide_notebook.source(cell)
        for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")
        for number, cell in enumerate(guide_notebook.code_cells(guide_notebook.read(path)))
    }
    elsewhere = {place: set(imports(code)) - {"recollect", *rooms} for place, code in (pages | cells).items()}
    assert {place: modules for place, modules in elsewhere.items() if modules} == {}


def test_every_page_is_in_the_navigation():
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f'"{page}"' not in text} == set()


def test_every_fenced_block_has_a_known_language():
    known = {"", "bash", "sh", "shell", "python", "text", "diff", "json", "yaml", "toml", "math", "dockerfile", "html"}
    assert {str(each): each.language for page in PAGES for each in blocks(page) if each.language not in known} == {}


def test_inline_commands_exist():
    found = 0
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"`recollect ([a-z][^`\n]*)`", text):
            words = [word for word in line.split() if word not in {"…", "..."}]
            first = list(itertools.takewhile(lambda word: re.fullmatch(r"[a-z-]+", word), words))
            assert any(" ".join(first[:n]) in cli.COMMANDS for n in (2, 1)) or any(
                name.startswith(f"{first[0]} ") for name in cli.COMMANDS
            ), (page.name, line)
            found += 1
    assert found > 5


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_every_exclusion_matches_a_page(pattern):
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert re.search(pattern.removeprefix("^"), text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def anchors(page):
    """Yield the anchors of a page: its headings, slugified as the site does."""
    text = re.sub(r"^( *)```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        yield re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_anchors_exist(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        if linked.suffix == ".md":
            assert anchor in set(anchors(linked)), f"{target}#{anchor}"


@pytest.mark.parametrize("room", ["objectives", "classifiers", "core"])
def test_docstring_examples_pass(room):
    package = importlib.import_module(f"{recollect.__name__}.{room}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
