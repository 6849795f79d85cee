"""What CTAs leave for one another in global memory: fp32 sums, four at a time, and flags that say they are there."""

from __future__ import annotations

from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.model import hopper

VECTOR = 4
"""Floats that one thread writes or reads at a time."""

VECTOR_BYTES = VECTOR * Float32.width // 8
ROW_BYTES = hopper.WARPGROUP_THREADS * VECTOR_BYTES
"""Of a vector of every thread of a consumer, side by side."""


def leave_vector(at: Int64, values: cute.Tensor, first: int) -> None:
    """Write four values from the ``first`` on."""
    inline_ptx(
        "st.global.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[at, *(values[first + i] for i in range(VECTOR))],
    )


def take_vector(at: Int64) -> tuple[Float32, ...]:
    """Read four values that another CTA left, from the L2: an L1 knows nothing of it."""
    return inline_ptx(
        "ld.global.cg.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Float32] * VECTOR,
        read_only_args=[at],
    )


def _acquired(word: Int64) -> Int32:
    """Read what other CTAs write; what they wrote before it is seen after."""
    return inline_ptx("ld.acquire.gpu.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[word])


@cute.jit
def wait_until(flag: Int64, least: int) -> None:
    """Wait until a flag has reached a value; what was written before it was raised is seen after."""
    seen = Int32(0)
    while seen < least:
        seen = _acquired(flag)


@cute.jit
def wait_turned(counter: Int64, before: Int32) -> None:
    """Wait until a counter's highest bit differs from that of a value it had; what was written before is seen after."""
    seen = before
    while (seen ^ before) >= 0:
        seen = _acquired(counter)


def lower(flag: Int64) -> None:
    """Set a flag back to 0, for the next launch."""
    inline_ptx("st.relaxed.gpu.global.b32 [{$r0}], {$r1};", read_only_args=[flag, Int32(0)])
