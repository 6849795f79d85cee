"""Imports run downward only: who may know whom."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "hopper_gemm"
MAY_IMPORT = {
    "model": set(),
    "kernel": {"model"},
    "build": {"kernel", "model"},
    "measure": {"build", "model"},
    "tables": {"model"},
    "tuning": {"build", "measure", "tables", "model"},
    "drop_in": {"build", "tables", "model"},
    "doctor": {"build", "measure", "tables"},
    "progress": {"tuning"},
    "__init__": {"model", "drop_in"},
    "__main__": {"cli"},
}
HEAVY = {
    "model": {"torch", "cutlass", "numpy", "pandas", "pydantic"},
    "tables": {"torch", "cutlass", "optuna"},
    "tuning": {"torch", "cutlass"},
    "measure": {"cutlass", "optuna", "pandas"},
    "kernel": {"torch", "optuna", "pandas"},
}
"""Packages that a room must do without."""


def imports(path):
    """Modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def room_of(path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_the_rooms_below_its_own(path):
    room = room_of(path)
    if room == "cli":
        return
    known = {name.split(".")[1] for name in imports(path) if name.startswith("hopper_gemm.")}
    assert known <= MAY_IMPORT[room] | {room}
    assert not {name.split(".")[0] for name in imports(path)} & HEAVY.get(room, set())
