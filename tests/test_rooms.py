"""Imports run downward only, in no circle; a folder is one noun with few modules; who reads results needs no GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "hopper_gemm"
MAY_IMPORT = {
    "model": set(),
    "kernel": {"model"},
    "compiler": {"kernel", "model"},
    "ladder": {"kernel", "model"},
    "measure": {"ladder", "compiler", "kernel", "model"},
    "study": {"ladder", "model"},
    "search": {"study", "ladder", "model"},
    "run": {"search", "study", "measure", "ladder", "compiler", "model"},
    "tables": {"study", "ladder", "model"},
    "serve": {"compiler", "model"},
    "verify": {"compiler", "measure", "ladder", "model"},
    "cli": {"run", "search", "study", "tables", "serve", "verify", "measure", "ladder", "compiler", "model"},
    "__init__": {"model", "serve"},
    "__main__": {"cli"},
}
"""Packages whose modules a package may import; no other package of the project than these."""

HEAVY = {
    "model": {"torch", "cutlass", "numpy", "pandas", "pydantic"},
    "study": {"torch", "cutlass", "optuna"},
    "tables": {"torch", "cutlass", "optuna", "distributed"},
    "search": {"torch", "cutlass", "pandas"},
    "run": {"torch", "cutlass", "pandas", "optuna"},
    "measure": {"optuna", "pandas"},
    "kernel": {"torch", "optuna", "pandas"},
    "ladder": {"torch", "optuna", "pandas"},
    "serve": {"optuna", "pandas"},
    "verify": {"cutlass", "optuna", "pandas"},
    "cli": {"torch", "cutlass", "optuna", "pandas"},
}
"""Libraries that a package must do without."""

MODULES = 12
"""The most modules that a folder may have."""

FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path):
    """Modules that a file imports anywhere in it, with the names taken from each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def package_of(path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name(path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_imports_only_from_the_packages_below_its_own(path):
    package = package_of(path)
    known = {module.split(".")[1] for module, _ in imports(path) if module.startswith("hopper_gemm.")}
    assert known <= MAY_IMPORT[package] | {package}
    assert not {module.split(".")[0] for module, _ in imports(path)} & HEAVY.get(package, set())


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_private_name_is_imported_from_another_module(path):
    private = [f"{module}.{what}" for module, what in imports(path) if what.startswith("_") and what[1] != "_"]
    assert [one for one in private if one.startswith("hopper_gemm")] == []


def test_no_folder_has_more_than_a_dozen_modules():
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {name(folder): n for folder, n in counts.items() if n > MODULES} == {}


def modules_of(path):
    """Modules of the package that a file imports as it is loaded."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hopper_gemm"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_by_way_of_others():
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph = {
        one: {other for other in modules_of(path) if other in names and other != one} for one, path in names.items()
    }
    while leaves := {one for one, known in graph.items() if not known & graph.keys()}:
        for one in leaves:
            del graph[one]
    assert graph.keys() == set()


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import hopper_gemm", {"torch", "cutlass", "optuna", "pandas", "numpy"}),
        ("from hopper_gemm.cli import app", {"torch", "cutlass", "optuna", "pandas"}),
        ("import hopper_gemm.tables.pages.publish, hopper_gemm.tables.pages.index", {"torch", "cutlass", "optuna"}),
        ("import hopper_gemm.study.space, hopper_gemm.study.reader", {"torch", "cutlass", "optuna"}),
        ("import hopper_gemm.ladder.config", {"torch", "cutlass", "optuna", "pandas", "numpy"}),
    ],
)
def test_what_opens_on_a_laptop_loads_no_more_than_it_needs(statement, without):
    shown = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not without & set(done.stdout.split())
