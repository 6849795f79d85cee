"""torch.mm: cuBLAS with the kernel that its own heuristic takes."""

from __future__ import annotations

from collections.abc import Sequence

from hopper_gemm.measure.arms import cublas_launch
from hopper_gemm.measure.baselines.base import Baseline, Candidate
from hopper_gemm.measure.workload import Workload


class Cublas(Baseline):
    """What a user of PyTorch has."""

    name = "cublas"
    seconds = 30.0

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """The one that torch runs."""
        return (Candidate(cublas_launch),)
