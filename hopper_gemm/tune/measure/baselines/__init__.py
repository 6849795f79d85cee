"""Libraries that our kernel is compared with; all but cuBLAS are optional."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from hopper_gemm.tune.measure.baselines.base import Baseline
from hopper_gemm.tune.measure.baselines.cublaslt import Cublas, CublasLt, Heuristics
from hopper_gemm.tune.measure.baselines.peers import Quack, Triton
from hopper_gemm.tune.registry import BASELINES as ADDED
from hopper_gemm.tune.registry import load


class Baselines(dict[str, Baseline]):
    """Baselines by name; a baseline that a higher package registers is imported at its first use."""

    def __contains__(self, name: object) -> bool:
        load()
        return super().__contains__(name) or name in ADDED

    def __missing__(self, name: str) -> Baseline:
        load()
        module, _, kind = ADDED[name].partition(":")
        self[name] = getattr(import_module(module), kind)()
        return self[name]


BASELINES = Baselines({baseline.name: baseline for baseline in (Cublas(), CublasLt(), Heuristics(), Triton(), Quack())})
"""Baselines by name, in the order of a table's columns."""


def missing(names: Iterable[str]) -> dict[str, str]:
    """Return the named baselines that cannot run here, each with the reason."""
    reasons = {name: BASELINES[name].missing() for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}
