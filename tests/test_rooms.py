"""Imports run downward only, a folder is one noun, and who reads results needs no GPU."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "hopper_gemm"
MAY_IMPORT = {
    "model": set(),
    "kernel": {"model"},
    "compiler": {"kernel", "model"},
    "measure": {"compiler", "kernel", "model"},
    "study": {"model"},
    "search": {"study", "model"},
    "run": {"search", "study", "measure", "compiler", "model"},
    "tables": {"study", "model"},
    "serve": {"compiler", "model"},
    "verify": {"compiler", "measure", "model"},
    "__init__": {"model", "serve"},
    "__main__": {"cli"},
}
"""Packages that a package may import; the command line may import all."""

HEAVY = {
    "model": {"torch", "cutlass", "numpy", "pandas", "pydantic"},
    "study": {"torch", "cutlass", "optuna"},
    "tables": {"torch", "cutlass", "optuna", "distributed"},
    "search": {"torch", "cutlass"},
    "run": {"torch", "cutlass", "pandas"},
    "measure": {"cutlass", "optuna", "pandas"},
    "kernel": {"torch", "optuna", "pandas"},
    "serve": {"optuna", "pandas"},
    "verify": {"cutlass", "optuna", "pandas"},
}
"""Libraries that a package must do without."""

MOST_MODULES = 15
"""A dozen is the aim; more than this is no longer one noun."""

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
    if package == "cli":
        return
    known = {module.split(".")[1] for module, _ in imports(path) if module.startswith("hopper_gemm.")}
    assert known <= MAY_IMPORT[package] | {package}
    assert not {module.split(".")[0] for module, _ in imports(path)} & HEAVY.get(package, set())


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_private_name_is_imported_from_another_module(path):
    private = [
        f"{module}.{what}" for module, what in imports(path) if what.startswith("_") and not what.startswith("__")
    ]
    assert [one for one in private if one.startswith("hopper_gemm")] == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=lambda path: path.name)
def test_a_folder_is_one_noun(folder):
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import hopper_gemm", {"torch", "cutlass", "optuna", "pandas", "numpy"}),
        ("from hopper_gemm.cli import app", {"torch", "cutlass", "optuna", "pandas"}),
        ("import hopper_gemm.tables.publish, hopper_gemm.tables.index", {"torch", "cutlass", "optuna"}),
    ],
)
def test_what_opens_on_a_laptop_loads_no_more_than_it_needs(statement, without):
    shown = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not without & set(done.stdout.split())
