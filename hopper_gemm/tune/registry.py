"""Additions to the autotuner by the packages above it.

A package of ``hopper_gemm`` that adds something has a module ``extends``, which calls the functions of this module; the
autotuner names none of them. :func:`load` imports those modules, once.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import hopper_gemm

BASELINES: dict[str, str] = {}
"""Further baselines by name, each as ``module:Class``, which is imported when baselines are first used."""


def add_baseline(name: str, where: str) -> None:
    """Add a baseline under its name in rows; its class is named as ``module:Class``."""
    BASELINES[name] = where


@cache
def load() -> None:
    """Import the module ``extends`` of every package that has one."""
    for folder in hopper_gemm.__path__:
        for module in sorted(Path(folder).glob("*/extends.py")):
            import_module(f"hopper_gemm.{module.parent.name}.extends")
