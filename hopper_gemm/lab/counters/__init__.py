"""Hardware counters of kernels, by Nsight Compute, and waits that our kernel counts itself."""

from __future__ import annotations

from hopper_gemm.lab.counters.counting import FAILED_LOG, Counted, count
from hopper_gemm.lab.counters.figures import COUNTERS

__all__ = ["COUNTERS", "FAILED_LOG", "Counted", "count"]
