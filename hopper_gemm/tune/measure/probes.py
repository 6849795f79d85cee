"""Small kernels that a measurement launches beside the timed kernel: the clock probe and the spacer.

**Clock probe.** NVML reports the SM clock up to a tenth too high under a power cap and cannot resolve a burst of
milliseconds. Two launches of the probe around a piece of work give the true mean clock in between: every SM notes its
cycle counter (``clock64``) and the global timer in nanoseconds; cycles over nanoseconds, SM by SM, is the clock in GHz.

**Spacer.** The kernel that stands between two launches in an isolated measurement, in place of the norm or activation
of a model: an ordinary kernel, without programmatic dependent launch, that writes operands of the launch after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from hopper_gemm.model import hopper

SPACER_THREADS = 256
"""Threads of a spacer's CTA; each writes one element."""


@cute.kernel
def _note(readings: cute.Tensor) -> None:
    sm = cute.arch.smid()
    readings[sm, 0] = cute.arch.clock64()
    readings[sm, 1] = cute.arch.globaltimer()


@cute.jit
def clock_probe(readings: cute.Tensor, blocks: Int32, stream: cuda.CUstream) -> None:
    """Note (cycles, nanoseconds) of every SM in a row of int64 (SMs, 2), by a block for each SM; rows of SMs that no
    block reached keep what they held."""
    _note(readings).launch(grid=(blocks, 1, 1), block=(1, 1, 1), stream=stream)


@cute.kernel
def _rewrite(piece: cute.Tensor, cycles: Int32, factor: Int32) -> None:
    started = cute.arch.clock64()
    index = cute.arch.block_idx()[0] * SPACER_THREADS + cute.arch.thread_idx()[0]
    value = Int32(0)
    if index < cute.size(piece):
        value = piece[index].to(Int32)
    waited = Int64(0)
    while waited < cycles:
        waited = cute.arch.clock64() - started
    if index < cute.size(piece):
        piece[index] = (value * factor).to(piece.element_type)


@cute.jit
def spacer(piece: cute.Tensor, blocks: Int32, cycles: Int32, factor: Int32, stream: cuda.CUstream) -> None:
    """Read a piece of memory, int16 (elements,), by a CTA for each SM, wait for a number of SM cycles, and write back
    what it holds, at most ``blocks * SPACER_THREADS`` elements.

    The wait makes a spacer last equally long whether or not the L2 holds its piece, so that the time of spacers alone
    can be taken off. The factor is 1: the product with a number that the compiler does not know keeps the write in the
    code.
    """
    _rewrite(piece, cycles, factor).launch(grid=(blocks, 1, 1), block=(SPACER_THREADS, 1, 1), stream=stream)


# Compiled for this process: a third of a second each, once ---------------------------------------


@cache
def load_spacer() -> Callable[[Any, int], None]:
    """A launcher ``spacer(piece, blocks)``; see :func:`spacer`. 4000 cycles last, with the launch, 3 to 5 us."""
    compiled = compile_spacer()
    return lambda piece, blocks: compiled(piece, blocks, 4000, 1)


@cache
def compile_clock_probe(options: str = "") -> Any:
    """A launcher ``probe(readings, blocks)``; see :func:`clock_probe`. Options are more ones of the DSL's compiler."""
    readings = make_fake_tensor(cutlass.Int64, (cute.sym_int(), 2), (2, 1), assumed_align=16)
    return _compiled(options, clock_probe, readings, Int32(0))


def compile_spacer(options: str = "") -> Any:
    """A launcher ``spacer(piece, blocks, cycles, step)``, likewise."""
    piece = make_fake_tensor(cutlass.Int16, (cute.sym_int(),), (1,), assumed_align=2)
    return _compiled(options, spacer, piece, Int32(0), Int32(0), Int32(0))


def _compiled(options: str, function: Any, *arguments: Any) -> Any:
    stream, options = make_fake_stream(use_tvm_ffi_env_stream=True), f"--gpu-arch {hopper.ARCH} {options}".strip()
    return cute.compile(function, *arguments, stream, options=f"--enable-tvm-ffi {options}")
