"""torch.mm: cuBLAS with the kernel that its own heuristic takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopper_gemm.measure.arms import cublas_launch
from hopper_gemm.measure.baselines.base import Candidate
from hopper_gemm.measure.workload import Workload


class Cublas:
    """What a user of PyTorch has."""

    name = "cublas"
    seconds = 30.0

    def missing(self) -> str | None:
        """It comes with torch."""
        return None

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """The one that torch runs."""
        return (Candidate(cublas_launch),)

    def restore(self, workload: Workload, recipe: Any) -> Candidate:
        """The same again."""
        return Candidate(cublas_launch)
