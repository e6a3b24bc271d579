"""The public names that ``recollect`` exports."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import grimp
import pytest

import recollect

PACKAGE = Path(recollect.__file__).parent

NAMES = sorted(recollect.__all__)


def test_dir_lists_all_public_names():
    assert {*NAMES} <= {*dir(recollect)}
    assert {"Index", "load_model", "train", "few_shot"} <= {*NAMES}


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="attribute loadmodel"):
        recollect.loadmodel  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    declared = {
        alias.asname: f"recollect.{node.module}.{alias.name}" if node.module else f"recollect.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(declared) | {"__version__"} == set(NAMES)
    for name, place in declared.items():
        module, _, attribute = place.rpartition(".")
        assert getattr(importlib.import_module(module), attribute) is getattr(recollect, name)


def names_of(node):
    """Return the names that a module-level statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def test_no_public_name_is_defined_twice():
    """Classes, functions, types and constants."""
    places = defaultdict(list)
    for file in PACKAGE.rglob("*.py"):
        where = file.relative_to(PACKAGE).parts
        for name in set().union(*map(names_of, ast.parse(file.read_text(encoding="utf-8")).body)):
            if not name.startswith("_"):
                places[name].append("/".join(where))
    several = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert several == {}


def test_there_are_no_circular_imports():
    """Imports inside functions count too; those for type checkers do not, since they never run."""
    graph = grimp.build_graph("recollect", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := [module for module, wanted in imports.items() if not wanted & imports.keys()]:
        for module in leaves:
            del imports[module]
    assert {module: sorted(wanted & imports.keys()) for module, wanted in imports.items()} == {}
