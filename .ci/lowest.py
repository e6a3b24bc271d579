"""Prints the lowest version that pyproject.toml promises for each requirement, as constraints for pip."""

import re
import tomllib
from pathlib import Path

held = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
project = held["project"]
extras = project["optional-dependencies"]
users = [each for name in extras if name not in {"all", "dev", "docs"} for each in extras[name]]
for requirement in sorted({*project["dependencies"], *users, *held["build-system"]["requires"]}):
    name, lowest = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[.*?\])?>=([0-9.]+)", requirement).groups()
    print(f"{name}=={lowest}")
