"""The SM clock, read where it ticks.

NVML reports the SM clock up to a tenth too high under a power cap and cannot resolve a burst of milliseconds. Two
launches of this probe around a piece of work give the true mean clock in between: every SM notes its cycle counter
(``clock64``) and the global timer in nanoseconds; cycles over nanoseconds, SM by SM, is the clock in GHz.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
from cutlass import Int32, cute


@cute.kernel
def _note(readings: cute.Tensor) -> None:
    sm = cute.arch.smid()
    readings[sm, 0] = cute.arch.clock64()
    readings[sm, 1] = cute.arch.globaltimer()


@cute.jit
def clock_probe(readings: cute.Tensor, blocks: Int32, stream: cuda.CUstream) -> None:
    """Note (cycles, nanoseconds) of every SM.

    Args:
        readings: int64 (SMs, 2), one row per SM; rows of SMs that no block reached keep what they held.
        blocks: blocks to launch, one for each SM.
        stream: where to launch.
    """
    _note(readings).launch(grid=(blocks, 1, 1), block=(1, 1, 1), stream=stream)
