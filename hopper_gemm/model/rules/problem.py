"""Rules on a problem, and on a config and a problem together: what TMA can reach, and what a divided k needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import WIDE_CHUNK, Footprint, swizzle_bytes
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import cluster_tiles, clusters_at_once
from hopper_gemm.model.rules.rule import PairRule, ProblemRule

LEAST_SPAN = 16
WORKSPACE_BYTES_MAX = 2**28
WIDE_PARTS, WIDE_ACCUMULATORS = 7, 104
"""Where several consumers have more accumulators, a workspace for an fp32 output has registers for so many parts."""


def reachable(size: int) -> int:
    """The size, or the next one whose pitch TMA can reach.

    Example:
        >>> reachable(444), reachable(448)
        (448, 448)
    """
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES
    return -(-size // step) * step


def _aligned(name: str) -> Callable[[GemmProblem], str | None]:
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES

    def check(problem: GemmProblem) -> str | None:
        value = getattr(problem, name)
        if value == reachable(value) or (name != "n" and name not in problem.layouts):
            return None
        return f"{name} must be a multiple of {step} but got {value}; pad it to {reachable(value)}"

    return check


_PITCHES = "TMA wants pitches in multiples of 16 bytes"

PROBLEM_RULES = (
    ProblemRule("m_aligned", f"{_PITCHES}: m is that of A where A is contiguous along m", _aligned("m")),
    ProblemRule("n_aligned", f"{_PITCHES}: n is that of C, and of B where B is contiguous along n", _aligned("n")),
    ProblemRule("k_aligned", f"{_PITCHES}: k is that of the operands contiguous along k", _aligned("k")),
)
"""The rules on problems."""


def _parts_of_k(shares: Footprint, problem: GemmProblem) -> str | None:
    config = shares.config
    if problem.k > config.tile_k * (config.split_k - 1):
        return None
    return f"k = {problem.k} is too short for {config.split_k} parts of {config.tile_k} each; lower split_k or k_depth"


def _workspace(shares: Footprint, problem: GemmProblem) -> str | None:
    config = shares.config
    if config.work_items == 1:
        return None
    at_once = clusters_at_once(config.cluster_size) * config.ctas_per_sm
    if config.part_order == "part" and cluster_tiles(config, problem) * config.split_k > at_once:
        return 'part_order "part" puts the parts of a tile too far apart to meet; lower split_k, or take part_order tile'
    crowded = config.consumers != 1 and shares.accumulators > WIDE_ACCUMULATORS and config.split_k > WIDE_PARTS
    if crowded and problem.out_bytes > ELEMENT_BYTES:
        return (
            f"{config.split_k} parts of {shares.accumulators} accumulators spill with the output of {problem.dtype}; "
            f"lower split_k to {WIDE_PARTS} or take a smaller tile"
        )
    tiles = cluster_tiles(config, problem) * config.cluster_size
    need = 4 * config.split_k * tiles * config.tile_m * config.tile_n
    if need <= WORKSPACE_BYTES_MAX:
        return None
    most = WORKSPACE_BYTES_MAX // 2**20
    return f"{config.split_k} parts of the output take {need / 2**20:.0f} MiB of {most} for a workspace; lower split_k"


def _held(shares: Footprint, problem: GemmProblem) -> str | None:
    config = shares.config
    assert isinstance(config.stages, int)
    held = shares.held_slots(problem.out_bytes)
    if not held:
        return None
    if held > config.stages:
        return f'staging "ring" takes {held} slots for {problem.dtype} of {config.stages}; take staging own'
    if problem.k > config.tile_k * (held - 1):
        return None
    return f'k = {problem.k} fills fewer than the {held} slots that staging "ring" takes; take staging own'


def _layouts(shares: Footprint, problem: GemmProblem) -> str | None:
    """Operands contiguous along their rows: their swizzle spans rows, and a TMA box is one row of it."""
    config = shares.config
    if problem.layouts == "kk":
        return None
    if config.loads != "tma":
        return f'loads "{config.loads}" read only layouts kk but got {problem.layouts}; take loads tma'
    axes = reversed(problem.layouts) if config.swap_ab else problem.layouts
    sides = (
        ("tile_m", config.tile_m, shares.share_m, config.cluster_n),
        ("tile_n", config.tile_n, shares.share_n, config.cluster_m),
    )
    for axis, (name, tile, share, sharers) in zip(axes, sides, strict=True):
        span = swizzle_bytes(share) // ELEMENT_BYTES
        if axis == "k":
            continue
        if span < LEAST_SPAN:
            return f"{name} must give each consumer a multiple of {LEAST_SPAN} with layouts {problem.layouts}"
        if tile // span % sharers:
            return f"{name} = {tile} has {tile // span} boxes of {span}, which {sharers} CTAs cannot share out"
    return None


def _output(shares: Footprint, problem: GemmProblem) -> str | None:
    """A wider output in chunks of the same bytes: they have fewer columns, each stored to an address of its own."""
    columns, least = shares.chunk_columns(problem.out_bytes), hopper.WGMMA_N_STEP
    if problem.out_bytes == ELEMENT_BYTES:
        return None
    full = shares.accumulators + shares.spare_registers >= shares.registers.consumer
    if shares.config.stream_k and shares.chunk_n == WIDE_CHUNK and full and shares.config.stores == "tma":
        return (
            f"stream_k beside {shares.accumulators} accumulators has no registers for the addresses of {columns} "
            f"columns of {problem.dtype}; take epi_n 32"
        )
    if columns % least == 0:
        return None
    need = least * problem.out_bytes // ELEMENT_BYTES
    found = f"{problem.dtype} leaves in chunks of {columns} columns here and needs whole {least}"
    if shares.share_n % need == 0:
        return f"{found}; take epi_n {need} or more"
    mend = f"{found}; give each consumer a multiple of {need} columns instead of {shares.share_n}"
    return mend if shares.config.swap_ab else f"{mend}, or take stores direct"


PAIR_RULES = (
    PairRule("split_k", "every CTA that divides k needs a stage of its own", _parts_of_k),
    PairRule("workspace", "split-K of a large output writes and reads more than it saves", _workspace),
    PairRule("staging", "C is staged in slots that the tile itself has filled", _held),
    PairRule("layouts", "TMA moves whole rows of the swizzle, which span the contiguous axis", _layouts),
    PairRule("output", "a chunk keeps its bytes, and wgmma leaves its columns in groups of eight", _output),
)
"""The rules on a config and a problem together."""


def filled_up(problem: GemmProblem) -> GemmProblem:
    """The problem as it is run where TMA cannot reach its matrices: on copies, with zeros up to the next multiple of 8
    of every size that must be one. A problem that some config can run is returned as it is.

    Example:
        >>> str(filled_up(GemmProblem(628, 89, 444)))
        '628x96x448'
    """
    sides = {rule.name.removesuffix("_aligned") for rule in PROBLEM_RULES if rule.check(problem) is not None}
    filled: dict[str, Any] = {side: reachable(getattr(problem, side)) for side in sides}
    return replace(problem, **filled)
