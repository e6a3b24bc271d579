"""How a result file says what made it."""

import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def this_command() -> str:
    """The command that runs now, for another machine: a path outside the project is its last part."""
    return shlex.join(["python", str(Path(sys.argv[0])), *map(_elsewhere, sys.argv[1:])])


def _elsewhere(word: str) -> str:
    path = Path(word)
    return path.name if path.is_absolute() or word.startswith("..") else word


def where(*packages: str) -> dict[str, Any]:
    """Machine and versions: torch's and NumPy's, and those of ``packages``."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    versions = {name: metadata.version(name) for name in ("torch", "numpy", *packages)}
    return {
        "threads": torch.get_num_threads(),
        "machine": {"processor": processor or platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": versions | {"python": platform.python_version()},
    }
