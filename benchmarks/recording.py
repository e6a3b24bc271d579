"""Options of the scripts, and provenance of result files: command, machine and versions."""

import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch

from recollect.cli.parser import parse
from recollect.core.errors import UserError

_T = TypeVar("_T")


def script_options(kind: type[_T]) -> _T:
    """Parse the command line of a script; on invalid options, print one line and exit with status 2."""
    try:
        return parse(kind, sys.argv[1:], Path(sys.argv[0]).name)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def this_command() -> str:
    """Return the running command; paths outside the project are reduced to their last part."""
    return shlex.join(["python", str(Path(sys.argv[0])), *map(_elsewhere, sys.argv[1:])])


def _elsewhere(word: str) -> str:
    path = Path(word)
    return path.name if path.is_absolute() or word.startswith("..") else word


def where(*packages: str) -> dict[str, Any]:
    """Return the machine and the versions of torch, NumPy and ``packages``."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    versions = {name: metadata.version(name) for name in ("torch", "numpy", *packages)}
    return {
        "threads": torch.get_num_threads(),
        "machine": {"processor": processor or platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": versions | {"python": platform.python_version()},
    }
