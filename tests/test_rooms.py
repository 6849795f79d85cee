"""Imports run downward only, in no circle; a folder is one noun with few modules, and keeps its helpers to itself."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "hopper_gemm"
MAY_IMPORT = {
    "model": set(),
    "kernel": {"model"},
    "compiler": {"kernel", "model"},
    "measure": {"compiler", "model"},
    "study": {"model"},
    "search": {"study", "model"},
    "run": {"search", "study", "measure", "compiler", "model"},
    "tables": {"study", "model"},
    "serve": {"compiler", "model"},
    "cli": {"run", "search", "study", "tables", "serve", "measure", "compiler", "model"},
    "__init__": {"model", "serve"},
    "__main__": {"cli"},
}
HEAVY = {
    "model": {"torch", "cutlass", "numpy", "pandas", "pydantic"},
    "study": {"torch", "cutlass", "optuna"},
    "search": {"torch", "cutlass", "pandas"},
    "run": {"torch", "cutlass", "pandas", "optuna"},
    "tables": {"torch", "cutlass", "optuna"},
    "measure": {"cutlass", "optuna", "pandas"},
    "kernel": {"torch", "optuna", "pandas"},
    "cli": {"torch", "cutlass", "optuna", "pandas"},
}
"""Packages that a room must do without."""

MODULES = 13
"""Of a folder, at most: about a dozen."""

FILES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in FILES]


def imported(path):
    """Modules that a file imports anywhere in it, with the names it takes from each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def room_of(path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_file_imports_only_from_the_rooms_below_its_own(path):
    room = room_of(path)
    known = {name.split(".")[1] for name, _ in imported(path) if name.startswith("hopper_gemm.")}
    assert known <= MAY_IMPORT[room] | {room}
    assert not {name.split(".")[0] for name, _ in imported(path)} & HEAVY.get(room, set())


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_no_private_name_is_taken_from_another_module(path):
    assert [f"{module}.{name}" for module, name in imported(path) if name.startswith("_")] == []


def test_no_folder_has_more_than_about_a_dozen_modules():
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {str(folder.relative_to(PACKAGE)): n for folder, n in counts.items() if n > MODULES} == {}


def modules_of(path):
    """Modules of the package that a file imports as it is loaded."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hopper_gemm"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_by_way_of_others():
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph = {name: {one for one in modules_of(path) if one in names and one != name} for name, path in names.items()}
    while leaves := {name for name, known in graph.items() if not known & graph.keys()}:
        for name in leaves:
            del graph[name]
    assert graph.keys() == set()
