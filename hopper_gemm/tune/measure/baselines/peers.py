"""Kernels of other projects, if they are installed; each is tuned by its own autotuner."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from hopper_gemm.model.problem import types_of
from hopper_gemm.tune.measure.baselines.base import Baseline, BaselineError, Candidate
from hopper_gemm.tune.measure.workload import MatrixSet, Workload

TRITON_OPTIONS = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "triton.enable_persistent_tma_matmul": True,
}
"""Options of torch.compile: tune over all Triton templates, the Hopper ones included, and never fall back on cuBLAS.
Options that a version of torch does not know are left out."""


class Triton(Baseline):
    """torch.compile's Triton kernels, the best of its own tuning."""

    name = "triton"

    def missing(self) -> str | None:
        return None if find_spec("triton") else "triton is not installed; pip install triton"

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Return the kernel that torch.compile's tuning takes, for an output of the operands' type. The compiled
        function allocates its output: an output argument would add a copy. The last output of each set of matrices is
        kept, so that a launch writes where nothing is in the L2."""
        _refuse_wider(self.name, workload)
        torch._dynamo.reset()
        supported = set(torch._inductor.list_options())
        options: dict[str, Any] = {name: value for name, value in TRITON_OPTIONS.items() if name in supported}
        compiled = torch.compile(lambda a, b: torch.mm(a, b.t()), dynamic=False, fullgraph=True, options=options)
        outputs: dict[int, torch.Tensor] = {}

        def launch(operands: MatrixSet) -> None:
            outputs[id(operands)] = compiled(operands.a, operands.b)

        launch(workload.sets[0])
        return (Candidate(launch, product=lambda operands: outputs[id(operands)]),)


class Quack(Baseline):
    """quack's CuTe DSL kernel, the best of its own autotuner."""

    name = "quack"

    def missing(self) -> str | None:
        if find_spec("quack") is None:
            return "quack is not installed; pip install quack-kernels"
        try:
            _quack_gemm()
        except Exception as error:  # whatever its import meets in another version of the DSL
            return f"quack cannot be imported ({type(error).__name__}: {error})"
        return None

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Return the kernel that quack's autotuner takes at the first launch, for an output of the operands' type."""
        _refuse_wider(self.name, workload)
        gemm = _quack_gemm()

        def launch(operands: MatrixSet) -> None:
            gemm(operands.a, operands.b.t(), out=operands.theirs, tuned=True)

        with _children_allowed():
            launch(workload.sets[0])
        return (Candidate(launch),)


@contextmanager
def _children_allowed() -> Iterator[None]:
    """Permit child processes: quack compiles in processes, which multiprocessing refuses to daemons such as measuring
    children."""
    config: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    before = config.get("daemon")
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = before


def _refuse_wider(name: str, workload: Workload) -> None:
    """Raise a BaselineError if the output is wider than the operands: peers are called as their users call them."""
    operands, out = types_of(workload.problem.dtype)
    if out != operands:
        raise BaselineError(f"{name} is asked for an output of {operands} only but got {out}; compare with cublaslt")


def _quack_gemm() -> Callable[..., Any]:
    from quack.gemm_interface import gemm

    return gemm
