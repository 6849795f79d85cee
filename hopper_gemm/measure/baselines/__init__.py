"""The libraries that a kernel of ours is compared with, each optional but cuBLAS."""

from __future__ import annotations

from collections.abc import Iterable

from hopper_gemm.measure.baselines.base import Baseline
from hopper_gemm.measure.baselines.cublaslt import Cublas, CublasLt
from hopper_gemm.measure.baselines.peers import Quack, Triton
from hopper_gemm.measure.baselines.recorded import Recorded

BASELINES: dict[str, Baseline] = {one.name: one for one in (Cublas(), CublasLt(), Triton(), Quack(), Recorded())}
"""Baselines by name, in the order of a table's columns."""


def missing(names: Iterable[str]) -> dict[str, str]:
    """The named baselines that cannot run here, each with the reason."""
    reasons = {name: BASELINES[name].missing() for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}
