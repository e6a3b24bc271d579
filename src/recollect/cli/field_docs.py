"""Help texts of options, read from the docstrings of dataclass fields."""

import ast
import inspect
import sys
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each dataclass field: the string below it, or its entry under ``Attributes:``."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if is_dataclass(each):
            docs |= _attributes(each.__doc__ or "") | _strings(each.__module__).get(each.__qualname__, {})
    return {name: " ".join(text.split()) for name, text in docs.items()}


def _attributes(doc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = None
    for line in inspect.cleandoc(doc).partition("Attributes:\n")[2].splitlines():
        if line and not line.startswith("    "):
            break
        if line.startswith("        ") and name is not None:
            found[name] += f" {line.strip()}"
        elif ": " in line or line.endswith(":"):
            name, _, text = line.strip().partition(":")
            found[name] = text.strip()
    return {name: text[:1].upper() + text[1:] for name, text in found.items()}


@cache
def _strings(module: str) -> dict[str, dict[str, str]]:
    """Return the strings below the fields of all classes in a module."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            docs = found[node.name] = {}
            for item, below in pairwise(node.body):
                match item, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        docs[name] = text
    return found
