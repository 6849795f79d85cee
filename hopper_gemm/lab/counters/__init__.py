"""Hardware counters of kernels, by Nsight Compute, and waits that our kernel counts itself."""

from __future__ import annotations

from hopper_gemm.lab.counters.counting import Counted, count
from hopper_gemm.lab.counters.figures import COUNTERS

__all__ = ["COUNTERS", "Counted", "count"]
