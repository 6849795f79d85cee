"""Additions to the autotuner by the packages above it.

A package of ``hopper_gemm`` that adds something has a module ``extends``, which adds to the tables of this module;
the autotuner names none of them. :func:`load` imports those modules, once.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import hopper_gemm

BASELINES: dict[str, str] = {}
"""Further baselines by name in rows, each as ``module:Class``, which is imported when the baseline is first used."""


@cache
def load() -> None:
    """Import the module ``extends`` of every package that has one."""
    for folder in hopper_gemm.__path__:
        for module in sorted(Path(folder).glob("*/extends.py")):
            import_module(f"hopper_gemm.{module.parent.name}.extends")
