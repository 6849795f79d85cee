"""Rules on a kernel and a problem of FP8: layouts, sizes, and promotion of the sums."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import SPARE_REGISTERS, Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.rule import Rule

FP8_STEP = 16
"""n and k are multiples of this: 16 bytes of an operand's row, as TMA wants them, and n as torch.scaled_mm has it."""


INVARIANT_DEPTH = 4
"""The k_depth of batch-invariant products with promotion, whose sums depend on it: stages of 128 elements."""


def stages_between(kernel: Kernel, problem: GemmProblem) -> int:
    """Return the stages from one promotion to the next; 0 without promotion, or where a stage is deeper."""
    return problem.promote // 2 // kernel.tile_k


def _fp8(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    if not problem.is_fp8:
        return
    if kernel.builder != GemmConfig().builder:
        yield "FP8 needs the plain kernel; leave the parameters of the design study at their defaults"
    if problem.layouts != "kk":
        yield f"operands of FP8 must be contiguous along k but got layouts {problem.layouts}; copy them"
    for side in ("n", "k"):
        if getattr(problem, side) % FP8_STEP:
            yield f"{side} must be a multiple of {FP8_STEP} for FP8 but got {getattr(problem, side)}; pad it"


def _promotion(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    """Blocks of 64 rows are multiplied one after the other into one set of registers, and all but the last leave the
    stages of the interval in the ring."""
    if not problem.promote:
        return
    stages, blocks = stages_between(kernel, problem), kernel.share_m // hopper.WGMMA_M
    if not stages or problem.promote % (2 * kernel.tile_k):
        yield f"stages of {2 * kernel.tile_k} elements do not make up {problem.promote}; take k_depth 4, 2 or 1"
    need = kernel.accumulators + kernel.share_n // 2 + SPARE_REGISTERS
    if need > kernel.registers.consumer:
        yield (
            f"{kernel.accumulators} accumulators and {kernel.share_n // 2} of a partial sum need {need} registers of "
            f"{kernel.registers.consumer}; take a smaller tile"
        )
    held = stages + 1 if blocks > 1 else min(2, stages)
    if held > kernel.stages:
        yield f"promotion each {problem.promote} of k takes {held} stages but got {kernel.stages}; lower promote"
    if problem.batch_invariant and kernel.k_depth != INVARIANT_DEPTH:
        yield f"stages beyond the last interval are promoted one by one; take k_depth {INVARIANT_DEPTH} for all m"
    if kernel.staging == "ring":
        yield 'promotion releases every stage and staging "ring" holds the last ones; take staging own'


FP8_RULES = (
    Rule("fp8", "wgmma reads FP8 operands along k alone, and TMA rows of whole 16 bytes", _fp8),
    Rule("promotion", "partial sums of 64 rows stand in registers beside the accumulators", _promotion),
)
"""The rules on a config and a problem of FP8."""
