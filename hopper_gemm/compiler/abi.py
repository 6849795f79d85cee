"""The arguments of a launch, declared once: the compiler, the loader and the C of ``serve/`` read them here, and a test
compares them with :meth:`hopper_gemm.kernel.gemm.HopperGemm.__call__`.

Every launcher takes all of them in this order, None for each that its kernel lacks, and runs on TVM-FFI's stream. To
add one, add it here and to the kernel that reads it; the C is compiled anew by itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One argument.

    Args:
        name: as the kernel calls it.
        dtype: of its elements: ``operand``, ``out``, ``fp32``, ``int32``, or ``bias``: the operands', with FP8 bf16 or
            the output's fp16.
        shape: names of its sizes, each open unless the kernel fixes it; empty for a number.
        what: the rest that a caller must know.
        part: of a kernel that has it: ``workspace``, ``observer`` or a step of a finish; empty for all kernels.
        blocks: names of its sizes in a kernel with scales of blocks, the last contiguous, at any pitch; empty if they
            are those of ``shape``.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    what: str
    part: str = ""
    blocks: tuple[str, ...] = ()


MATRICES = (  # of groups with one axis more, the group, before these: b of rows and masked, c of depth, of a batch all
    Argument("a", "operand", ("m", "k"), "contiguous along one axis"),
    Argument("b", "operand", ("rows of b", "k"), "n rows, gated 2 n; contiguous along one axis"),
    Argument("c", "out", ("m", "n"), "n contiguous; written whole"),
)
ORDER = (
    Argument("clusters", "int32", (), "the most that can be resident at once; any larger number for one a tile"),
    Argument("along_m", "int32", (), "1 to raster along m, 0 along n"),
    Argument("swizzle", "int32", (), "raster group"),
    Argument("serpentine", "int32", (), "1 to walk every other group in reverse"),
    Argument("parts", "int32", (), "split-K parts of a tile, at least 1, of a kernel that adds them up in a workspace"),
    Argument("by_part", "int32", (), "there 1 to take the first parts of all tiles first, 0 all parts of a tile"),
)
WORKSPACE = (
    Argument("sums", "fp32", ("sums",), "partial sums; see hopper_gemm.kernel.sums.workspace", "workspace"),
    Argument("words", "int32", ("words",), "zero between launches; see there", "workspace"),
)
FINISH = (
    Argument("bias", "bias", ("n",), "at a multiple of 16 bytes; of groups one after the other", "bias"),
    Argument("residual", "out", ("m", "n"), "as c, rows at multiples of 16 bytes", "residual"),
    Argument("scale", "fp32", (), "the factor", "scale"),
)
OBSERVER = (Argument("readings", "int32", ("ctas", "roles", "words of a role"), "zero before a launch", "observer"),)
SCALES = (
    Argument("scale_a", "fp32", ("scales of a",), "one, or m; at a multiple of 16 bytes", "scales", ("k blocks", "m")),
    Argument(
        "scale_b",
        "fp32",
        ("scales of b",),
        "one, or n; likewise; of each group",
        "scales",
        ("n blocks", "filled k blocks"),
    ),
)

ENDS = (
    Argument("ends", "int32", ("groups",), "ends of groups, in rows or along k, or counts; see kernel.groups", "ends"),
)

ARGUMENTS = (*MATRICES, *ORDER, *WORKSPACE, *FINISH, *OBSERVER, *SCALES, *ENDS)
"""All arguments, in their order."""

NO_WORKSPACE, NO_FINISH, NO_SCALES, NO_ENDS = ((None,) * len(group) for group in (WORKSPACE, FINISH, SCALES, ENDS))
"""What stands for the arguments of a group that a kernel lacks."""

NO_OBSERVER = (*(None,) * len(OBSERVER), *NO_SCALES, *NO_ENDS)
"""The arguments after those of a finish, of a launch without observer, scales and groups."""

DEFINITIONS = (
    *(f"-DABI_MATRICES={len(MATRICES)}", f"-DABI_ORDER={len(ORDER)}", f"-DABI_WORKSPACE={len(WORKSPACE)}"),
    *(f"-DABI_FINISH={len(FINISH)}", f"-DABI_ARGUMENTS={len(ARGUMENTS)}"),
)
"""Options of a C compiler: numbers of arguments, by group and of all."""
