"""The libraries that a kernel of ours is compared with, each optional but cuBLAS."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from hopper_gemm.tune.measure.baselines.base import Baseline
from hopper_gemm.tune.measure.baselines.cublaslt import Cublas, CublasLt
from hopper_gemm.tune.measure.baselines.peers import Quack, Triton
from hopper_gemm.tune.registry import BASELINES as ADDED
from hopper_gemm.tune.registry import load


def _added() -> list[Baseline]:
    """The baselines that packages above this one add."""
    load()
    places = [where.split(":") for where in ADDED.values()]
    return [getattr(import_module(module), name)() for module, name in places]


BASELINES: dict[str, Baseline] = {one.name: one for one in (Cublas(), CublasLt(), Triton(), Quack(), *_added())}
"""Baselines by name, in the order of a table's columns."""


def missing(names: Iterable[str]) -> dict[str, str]:
    """The named baselines that cannot run here, each with the reason."""
    reasons = {name: BASELINES[name].missing() for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}
