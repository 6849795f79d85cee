"""The arguments of a launch, declared once: the compiler, the loader and the C of ``serve/`` read them here, and a test
compares them with :meth:`hopper_gemm.kernel.gemm.HopperGemm.__call__`.

Every launcher takes all of them in this order, None for each that its kernel lacks, and runs on TVM-FFI's stream. To
add one, add it here and to the kernel that reads it; the C is compiled anew by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Argument:
    """One argument.

    Args:
        name: as the kernel calls it.
        kind: a tensor, a number, or a flag.
        what: its shape, its unit, what it is for.
        of: kernels that have it; empty for all.
    """

    name: str
    kind: Literal["tensor", "int", "flag", "float"]
    what: str
    of: str = ""


MATRICES = (
    Argument("a", "tensor", "(m, k), contiguous along one of them"),
    Argument("b", "tensor", "(n, k), the transpose of the right operand, contiguous along one of them; gated (2 n, k)"),
    Argument("c", "tensor", "(m, n), n contiguous, written whole"),
)
ORDER = (
    Argument("clusters", "int", "the most that can be resident at once; any larger number for one cluster a tile"),
    Argument("along_m", "flag", "raster along m, not along n"),
    Argument("swizzle", "int", "raster group"),
    Argument("serpentine", "flag", "walk every other group in reverse"),
)
WORKSPACE = (
    Argument("sums", "tensor", "fp32, partial sums; see hopper_gemm.kernel.sums.workspace", "with a workspace"),
    Argument("words", "tensor", "int32, zero between launches; see there", "with a workspace"),
)
FINISH = (
    Argument("bias", "tensor", "(n,), of the operands' type, at a multiple of 16 bytes", "that add one"),
    Argument("residual", "tensor", "(m, n), of C's type, n contiguous, rows at multiples of 16 bytes", "that add one"),
    Argument("scale", "float", "the factor", "that scale"),
)
OBSERVER = (Argument("readings", "tensor", "int32, (CTAs, roles, words), zero before a launch", "with an observer"),)

ARGUMENTS = (*MATRICES, *ORDER, *WORKSPACE, *FINISH, *OBSERVER)
"""All arguments, in their order."""

NO_WORKSPACE, NO_FINISH, NO_OBSERVER = ((None,) * len(group) for group in (WORKSPACE, FINISH, OBSERVER))
"""What stands for the arguments of a group that a kernel lacks."""

DEFINITIONS = (
    *(f"-DABI_MATRICES={len(MATRICES)}", f"-DABI_ORDER={len(ORDER)}", f"-DABI_WORKSPACE={len(WORKSPACE)}"),
    *(f"-DABI_FINISH={len(FINISH)}", f"-DABI_ARGUMENTS={len(ARGUMENTS)}"),
)
"""Options of a C compiler: numbers of arguments, by group and of all."""
