"""The measuring child: it alone holds a CUDA context, and it may be killed at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.compiler.child import Handler
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem


@dataclass(frozen=True)
class Request:
    """One thing to do on the GPU.

    Args:
        kind: ``"describe"`` the GPU, name cuBLAS's ``"kernel"``, take the A/A ``"control"``, ``"prepare"`` for a
            cell, measure a ``"cell"``.
        problem, config, protocol: what the kind needs of them.
        process: number of the process, noted with each pair of times.
        data: what the matrices hold while they are timed.
    """

    kind: Literal["describe", "kernel", "prepare", "control", "cell"]
    problem: GemmProblem | None = None
    config: GemmConfig | None = None
    protocol: Any = None
    process: int = 0
    data: str = "normal"


def measuring(store: Path | None, seed: int) -> Handler:
    """The handler of a measuring child: keeps matrices and captured baselines from request to request. Made early it
    only loads modules; the GPU is touched by the first request."""
    from hopper_gemm.measure.baseline import cublas_kernel
    from hopper_gemm.measure.bench import Bench
    from hopper_gemm.measure.device import describe_current

    @cache
    def bench() -> Bench:
        return Bench(describe_current(), store, seed)

    def handle(request: Request) -> Any:
        if request.kind == "describe":
            return bench().device
        assert request.problem is not None
        if request.kind == "kernel":
            return cublas_kernel(request.problem)
        if request.kind == "control":
            return bench().control(request.problem, request.protocol, request.process, request.data)
        assert request.config is not None
        if request.kind == "prepare":
            return bench().prepare(request.config, request.problem, request.data)
        return bench().cell(request.config, request.problem, request.protocol, request.process, request.data)

    return handle
