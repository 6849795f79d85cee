"""Batch invariance: the kernels whose results depend on neither m nor the tile.

An element of C is a chain of additions in fp32, and rounding makes its order part of the result. Each kernel adds in
the same order if two things are the same: where k is cut into parts, and the order within a part. A part's order is
that of k, in steps of one wgmma (16 elements), from first to last; :func:`cuts` and :func:`parts_of` fix the cuts.
docs/batch-invariance.md has the argument, and how it was tested.
"""

from __future__ import annotations

from collections.abc import Iterator

from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.rules.rule import Rule

CUT = hopper.SWIZZLE_BYTES[0] // ELEMENT_BYTES
"""Parts of k are whole multiples of this many elements: a stage of k_depth 4, the most frequent one."""

DEEP = 6144
"""Least k of a problem that is cut: at 4096 no cut pays, whatever m."""

STEEP = {8: 32, 4: 12}
"""Parts, with the ratio of k to n from which on a problem is cut so. Few columns leave most SMs idle where m is small,
unless k is cut; a large m, which fills them anyway, pays for the sums. The ratios balance the two by the analytic
model's times, from 1 to 8192 rows, also where parts through a workspace are taken to last 12 % longer than it says.
More than eight parts would need a workspace, which grows with m without bound."""


def parts_of(n: int, k: int) -> int:
    """Parts into which k is cut, a function of n and k alone.

    Sizes that differ only by padding, n to a multiple of 8 and k to one of :data:`CUT`, have the same parts.

    Example:
        >>> parts_of(4096, 4096), parts_of(1024, 16384), parts_of(512, 16384)
        (1, 4, 8)
    """
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES
    columns, depth = -(-n // step) * step, -(-k // CUT) * CUT
    return next((parts for parts, ratio in STEEP.items() if depth >= max(DEEP, ratio * columns)), 1)


def cuts(k: int, parts: int, tile_k: int = CUT) -> tuple[int, ...]:
    """Elements of k at which a kernel with stages of ``tile_k`` begins another part; the first parts get the
    remainder, one stage each.

    Example:
        >>> cuts(65536, 4), cuts(8256, 4), cuts(8256, 4, tile_k=128)
        ((16384, 32768, 49152), (2112, 4160, 6208), (2176, 4224, 6272))
    """
    each, over = divmod(-(-k // tile_k), parts)
    return tuple(tile_k * (part * each + min(part, over)) for part in range(1, parts))


def forward(kernel: Kernel) -> Kernel:
    """Return the kernel with every tile read from the beginning of k."""
    return kernel.but(reverse_k=False)


def _invariant(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    if not problem.batch_invariant:
        return
    parts = parts_of(problem.n, problem.k)
    if type(kernel.narrowed()) is not Kernel:
        yield "a kernel of the design study may add along k in another order; leave its parameters at their defaults"
    if kernel.reverse_k:
        yield "reverse_k adds every other tile of a CTA from the end of k; take reverse_k false"
    if kernel.split_k != parts:
        added = f"n = {problem.n}, k = {problem.k} are added up in {parts} parts but split_k is {kernel.split_k}"
        yield f"{added}; take split_k {parts}"
    elif cuts(problem.k, parts, kernel.tile_k) != cuts(problem.k, parts):
        yield f"stages of {kernel.tile_k} cut k = {problem.k} elsewhere than stages of {CUT}; take k_depth 4"


INVARIANCE_RULE = Rule("batch_invariant", "a sum in fp32 depends on the order of its terms, so m may not", _invariant)
"""The rule on a config and a batch-invariant problem."""
