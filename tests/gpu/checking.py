"""A child that checks kernels on the GPU, so that a hang costs a test and not the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hopper_gemm.compiler.child import Handler
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem

ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """A config to run on a problem so many times."""

    config: GemmConfig
    problem: GemmProblem
    runs: int = 2


def checking(store: Path) -> Handler:
    """Answers a case with what is wrong, or None: every element against fp32, and the same bits in every run."""
    import torch

    from hopper_gemm.compiler.loader import load
    from hopper_gemm.measure.correctness import check, poison
    from hopper_gemm.measure.workload import make_workload

    kept = {}

    def workload(problem: GemmProblem):
        if problem not in kept:
            kept.clear()
            kept[problem] = make_workload(problem, l2_bytes=0, seed=sum((problem.m, 7 * problem.n, 13 * problem.k)))
        return kept[problem]

    def handle(case: Case) -> str | None:
        work = workload(case.problem)
        kernel, operands = load(case.config, case.problem, store), work.sets[0]
        poison(operands.ours)
        kernel(operands.a, operands.b, operands.ours)
        found = check(operands.ours, work.reference, case.problem.k)
        if not found.ok:
            return found.reason
        for run in range(1, case.runs):
            poison(operands.theirs)
            kernel(operands.a, operands.b, operands.theirs)
            if not torch.equal(operands.ours.view(torch.int16), operands.theirs.view(torch.int16)):
                return f"run {run} gave other bits than the first"
        return None

    return handle
