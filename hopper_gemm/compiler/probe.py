"""The clock probe, compiled for this process (a third of a second, once)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from hopper_gemm.kernel.clock_probe import clock_probe
from hopper_gemm.model import hopper


@cache
def load_clock_probe() -> Callable[[Any, int], None]:
    """A launcher ``probe(readings, blocks)``; see :func:`hopper_gemm.kernel.clock_probe.clock_probe`."""
    readings = make_fake_tensor(cutlass.Int64, (cute.sym_int(), 2), (2, 1), assumed_align=16)
    return cute.compile(
        clock_probe,
        readings,
        Int32(0),
        make_fake_stream(use_tvm_ffi_env_stream=True),
        options=f"--enable-tvm-ffi --gpu-arch {hopper.ARCH}",
    )
