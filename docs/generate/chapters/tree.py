"""A copy of the package in which the functions of a listing stand in place of its own.

A listing drops what a reader does not need: decorators, annotations, docstrings, and the observer that meters and
traces carry through the roles. Decorators and annotations are those of the function that is replaced; the observer
becomes optional everywhere. The copy of an unchanged listing compiles to the machine code of the package.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Sequence
from pathlib import Path

from docs.generate.chapters.listing import Printed
from docs.generate.pages.specialised import OBSERVER, PACKAGE

SAME_HERE = {("lab/ladder/ring.py", "LadderRing"): ("init", "acquire", "expect", "wait")}
"""Methods of the design study's classes that do for the chapters' configs what the printed ones of their bases do; they
are left out of a copy, so that the printed ones run."""

KERNEL = ("kernel", "lab/ladder")
"""Folders whose functions take the observer."""


def write_tree(printed: Sequence[Printed], folder: Path) -> None:
    """Write the package with printed functions in place.

    Args:
        printed: functions of a listing.
        folder: takes the folder ``hopper_gemm``; it must not have one.

    Raises:
        ValueError: the package has no such file, class or function.
    """
    copied = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__", "machine_code", "results", "sweeps"))
    by_file: dict[str, list[Printed]] = {}
    for one in printed:
        by_file.setdefault(one.file, []).append(one)
        if not (copied / one.file).is_file():
            raise ValueError(f"the package has no file {one.file}; leave the lines that begin with '# ' as they are")
    for path in [path for room in KERNEL for path in sorted((copied / room).rglob("*.py"))]:
        file = str(path.relative_to(copied))
        module = ast.parse(path.read_text())
        for one in by_file.pop(file, []):
            _replace(module, one)
        for statement in module.body:
            if isinstance(statement, ast.ClassDef):
                gone = SAME_HERE.get((file, statement.name), ())
                statement.body = [method for method in statement.body if getattr(method, "name", None) not in gone]
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                _without_observer(node)
        path.write_text(ast.unparse(ast.fix_missing_locations(module)))
    if by_file:
        raise ValueError(f"{next(iter(by_file))} has no function that a chapter prints")


def _replace(module: ast.Module, printed: Printed) -> None:
    """Give a method the printed body and arguments; it keeps its decorators and annotations."""
    for owner in module.body:
        if isinstance(owner, ast.ClassDef) and owner.name == printed.owner:
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == printed.code.name:
                    known = {one.arg: one.annotation for one in method.args.args}
                    for one in printed.code.args.args:
                        one.annotation = known.get(one.arg)
                    method.args, method.body = printed.code.args, printed.code.body
                    return
    raise ValueError(f"{printed.file} has no {printed.owner}.{printed.code.name}; functions must keep their names")


def _without_observer(function: ast.FunctionDef) -> None:
    """Let calls leave the observer out."""
    names = [one.arg for one in function.args.args]
    if OBSERVER in names:
        missing = len(names) - names.index(OBSERVER) - len(function.args.defaults)
        function.args.defaults = [*(ast.Constant(None) for _ in range(missing)), *function.args.defaults]
