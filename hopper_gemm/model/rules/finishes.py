"""Rules on a kernel, a problem and a finish together."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import BLOCK, GemmProblem
from hopper_gemm.model.rules.rule import Rule

RESIDUAL, SCALED, SWAPPED = 264, 256, 4
"""Most accumulators and columns of a chunk together, of a finish with a residual, and of an activation after a scale
alone; and what a residual adds with swapped operands, whose threads read it element by element. Found by compiling the
kernels of the menu and of the tuned table, like the limits of split-K; the other finishes never spilled."""

RESIDUAL_ACCUMULATORS = 200
"""Most accumulators of a finish with a residual."""


def _in_reach(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    """TMA reaches the matrices, and a bias is read in whole groups of wgmma's columns."""
    if problem.out_of_reach or problem.n % hopper.WGMMA_N_STEP:
        yield f"the finish {finish} needs matrices in TMA's reach; pad {problem} to multiples of {hopper.WGMMA_N_STEP}"


def _epilogue(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    if kernel.builder != GemmConfig().builder:
        yield f"the finish {finish} needs the plain kernel; leave the parameters of the design study at their defaults"


def _scales(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    if finish.scales and not problem.is_fp8:
        yield f"the finish {finish} is of FP8 operands but those of {problem.dtype} have no scales; leave scales out"
    if problem.is_fp8 and (finish.scale or finish.residual or finish.gated):
        yield f"a product of FP8 takes scales, a bias and an activation but got {finish}; leave the other steps out"


def _blocks(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    """A stage is a block of k, counted from a tile's first; a consumer's columns lie in two blocks of B at most."""
    if finish.scales != "blocks":
        return
    if problem.promote != BLOCK:
        yield f"scales of blocks change each {BLOCK} of k but promote is {problem.promote}; take promote {BLOCK}"
    if 2 * kernel.tile_k != BLOCK:
        yield f"a stage must be a block of {BLOCK} of k but is {2 * kernel.tile_k}; take k_depth {BLOCK // 32}"
    if kernel.reverse_k:
        yield "blocks of k are counted from the first but reverse_k may begin with the last; take reverse_k false"
    if not kernel.swap_ab and kernel.share_n - gcd(kernel.share_n, BLOCK) > BLOCK:
        yield f"{kernel.share_n} columns of a consumer may lie in three blocks of B; take a tile_n of at most {BLOCK}"
    if not kernel.scales_ahead:
        fix = "take a smaller tile" + ", or swap_ab false" * kernel.swap_ab
        yield f"scales of blocks need more than {kernel.registers.consumer} registers; {fix}"


def _registers(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    """The compiler starts all loads of a chunk's residual first, and mixes the arithmetic of a whole chunk where
    nothing that is read keeps it in order."""
    need, residual = kernel.accumulators + kernel.chunk_n, finish.residual
    most = RESIDUAL - SWAPPED * kernel.swap_ab if residual else SCALED if finish.scaled_alone else need
    if need > most or (residual and kernel.accumulators > RESIDUAL_ACCUMULATORS):
        yield (
            f"the finish {finish} beside {kernel.accumulators} accumulators in chunks of {kernel.chunk_n} columns "
            "runs out of registers; lower epi_n or take a smaller tile"
        )


def _gated(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    """Gate and up of one column of C must be accumulators of one thread: half a tile apart, or with swapped operands in
    its two rows of 16."""
    if not finish.gated:
        return
    if finish.scale or finish.bias or finish.residual or not finish.activation:
        yield f"a gated finish must be an activation alone but is {finish}; leave the other steps out"
    step = hopper.WGMMA_N_STEP
    if kernel.split_k > 1 or kernel.staging == "ring":
        yield f"the finish {finish} pairs accumulators of one consumer: take split_k 1, staging own"
    if kernel.swap_ab:
        if kernel.share_m % (block := 2 * hopper.WGMMA_M):
            yield f"the finish {finish} needs {block} rows of a swapped tile a consumer; change tile_m or consumers"
    else:
        yield from _gated_columns(kernel, problem, finish)
    if problem.n % (2 * step):
        yield f"n must be two halves of a multiple of {step} columns but got {problem.n}; pad gate and up"
    if problem.layouts[1] != "k":
        yield f"the finish {finish} reads a weight contiguous along k but got layouts {problem.layouts}; copy it"


def _gated_columns(kernel: Kernel, problem: GemmProblem, finish: Epilogue) -> Iterator[str]:
    half, step = kernel.tile_n // 2, hopper.WGMMA_N_STEP
    columns = kernel.chunk_columns(problem.out_bytes)
    if kernel.share_n != kernel.tile_n:
        yield f"the finish {finish} pairs columns of one consumer: take split m"
    if kernel.tile_n % (2 * step * kernel.cluster_m):
        yield f"tile_n = {kernel.tile_n} must be two halves of whole {step} rows for each CTA that shares it; change it"
    elif half % columns:
        yield f"chunks of {columns} columns cannot make up half a tile of {half}; take an epi_n that divides {half}"


FINISH_RULES = (
    Rule("finish in reach", "what is added is read where TMA stores C", _in_reach),
    Rule("scales", "scales belong to operands of FP8; the other steps were not tried with these", _scales),
    Rule("blocks", "scales of blocks change with each stage", _blocks),
    Rule("finish registers", "what is read stands in registers beside the accumulators", _registers),
    Rule("epilogue", "values are finished on their way through shared memory", _epilogue),
    Rule("gated", "a tile holds as many columns of the gate as of up, and multiplies them in registers", _gated),
)
"""The rules on a config, a problem and a finish together."""
