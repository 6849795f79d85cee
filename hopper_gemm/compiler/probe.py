"""The small kernels of a measurement, compiled for this process (a third of a second each, once)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from hopper_gemm.kernel.probes import SPACER_CYCLES, SPACER_THREADS, clock_probe, spacer
from hopper_gemm.model import hopper


def spacer_elements(blocks: int) -> int:
    """The most elements that a launch of the spacer rewrites."""
    return blocks * SPACER_THREADS


@cache
def load_spacer() -> Callable[[Any, int], None]:
    """A launcher ``spacer(piece, blocks)``; see :func:`hopper_gemm.kernel.probes.spacer`."""
    compiled = compile_spacer()
    return lambda piece, blocks: compiled(piece, blocks, SPACER_CYCLES, 1)


@cache
def compile_clock_probe(options: str = "") -> Any:
    """A launcher ``probe(readings, blocks)``; see :func:`hopper_gemm.kernel.probes.clock_probe`.

    Args:
        options: more options of the DSL's compiler.
    """
    readings = make_fake_tensor(cutlass.Int64, (cute.sym_int(), 2), (2, 1), assumed_align=16)
    return _compiled(options, clock_probe, readings, Int32(0))


def compile_spacer(options: str = "") -> Any:
    """A launcher ``spacer(piece, blocks, cycles, step)``, likewise."""
    piece = make_fake_tensor(cutlass.Int16, (cute.sym_int(),), (1,), assumed_align=2)
    return _compiled(options, spacer, piece, Int32(0), Int32(0), Int32(0))


def _compiled(options: str, function: Any, *arguments: Any) -> Any:
    stream, options = make_fake_stream(use_tvm_ffi_env_stream=True), f"--gpu-arch {hopper.ARCH} {options}".strip()
    return cute.compile(function, *arguments, stream, options=f"--enable-tvm-ffi {options}")
