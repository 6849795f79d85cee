"""Rules on a config and a problem together, whose k counts 16-bit words: split-K, staging, layouts, output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel, swizzle_bytes
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import cluster_tiles, parts_meet
from hopper_gemm.model.rules.invariance import INVARIANCE_RULE
from hopper_gemm.model.rules.rule import Rule

LEAST_SPAN = 16
ATOM_DEPTH = 8
"""Depth of an atom of the swizzle of an operand that is contiguous along its rows."""

WORKSPACE_BYTES_MAX = 2**28
"""Most bytes of a workspace, which limits the split-K parts of a launch."""


def reachable(size: int) -> int:
    """Round a size up to the next one whose pitch TMA accepts.

    Example:
        >>> reachable(444), reachable(448)
        (448, 448)
    """
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES
    return -(-size // step) * step


def _parts_of_k(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    if kernel.split_k > 1 and problem.k <= kernel.tile_k * (kernel.split_k - 1):
        parts = f"{kernel.split_k} parts of {kernel.tile_k} each"
        yield f"k = {problem.k} is too short for {parts}; lower split_k or k_depth"


def _workspace(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    if not parts_meet(kernel, problem):
        yield 'part_order "part" puts the parts of a tile too far apart to meet; lower split_k or take part_order tile'
    tiles = cluster_tiles(kernel, problem) * kernel.cluster_size if kernel.work_items > 1 else 0
    need = 4 * kernel.split_k * tiles * kernel.tile_m * kernel.tile_n
    if need > WORKSPACE_BYTES_MAX:
        room = f"{need / 2**20:.0f} MiB of {WORKSPACE_BYTES_MAX // 2**20} for a workspace"
        yield f"{kernel.split_k} parts of the output take {room}; lower split_k"


def _held(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    held = kernel.held_slots(problem.out_bytes)
    if held > kernel.stages:
        yield f'staging "ring" takes {held} slots for {problem.dtype} of {kernel.stages}; take staging own'
    if held and problem.k <= kernel.tile_k * (held - 1):
        yield f'k = {problem.k} fills fewer than the {held} slots that staging "ring" takes; take staging own'


def _layouts(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    """Operands contiguous along their rows: their swizzle spans rows, and a TMA box is one row of it. CTAs that share a
    tile share out its boxes, or else its depth in whole atoms of the swizzle."""
    if problem.layouts != "kk" and kernel.loads != "tma":
        yield f'loads "{kernel.loads}" read only layouts kk but got {problem.layouts}; take loads tma'
    axes = reversed(problem.layouts) if kernel.swap_ab else problem.layouts
    sides = (("tile_m", kernel.share_m, kernel.cluster_n), ("tile_n", kernel.share_n, kernel.cluster_m))
    for axis, (name, share, sharers) in zip(axes, sides, strict=True):
        span, tile = swizzle_bytes(share) // ELEMENT_BYTES, getattr(kernel, name)
        if axis == "k":
            continue
        if span < LEAST_SPAN:
            yield f"{name} must give each consumer a multiple of {LEAST_SPAN} with layouts {problem.layouts}"
        if kernel.multicast == "split" and tile // span % sharers and kernel.tile_k % (ATOM_DEPTH * sharers):
            boxes = f"{tile // span} boxes of {span} rows, {kernel.tile_k} deep"
            yield f"{name} = {tile} has {boxes}, which {sharers} CTAs cannot share out; change it or k_depth"


def _output(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    """Chunks of a wider output have the same bytes, so fewer columns, each group stored to its own address."""
    if problem.out_bytes == ELEMENT_BYTES:
        return
    columns, least = kernel.chunk_columns(problem.out_bytes), hopper.WGMMA_N_STEP
    if columns % least:
        need = least * problem.out_bytes // ELEMENT_BYTES
        fix = f"take epi_n {need} or more"
        if kernel.share_n % need:
            fix = f"give each consumer a multiple of {need} columns instead of {kernel.share_n}"
            fix += "" if kernel.swap_ab else ", or take stores direct"
        yield f"{problem.dtype} leaves in chunks of {columns} columns here and needs whole {least}; {fix}"


def _copies(kernel: Kernel, problem: GemmProblem) -> Iterator[str]:
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES
    if kernel.loads != "tma" and problem.k % step:
        yield f'loads "{kernel.loads}" copy {step} columns at once and k = {problem.k} ends within; take loads tma'


PAIR_RULES = (
    Rule("split_k", "every split-K part needs a stage of its own", _parts_of_k),
    Rule("workspace", "split-K of a large output writes and reads more than it saves", _workspace),
    Rule("staging", "C is staged in slots that the tile itself has filled", _held),
    Rule("loads", "a thread copies 16 bytes, and cannot fill a part of them with zeros", _copies),
    Rule("layouts", "TMA moves whole rows of the swizzle, which span the contiguous axis", _layouts),
    Rule("output", "the bytes of a chunk are fixed, and wgmma leaves its columns in groups of eight", _output),
    INVARIANCE_RULE,
)
"""The rules on a config and a problem together."""


def filled_up(problem: GemmProblem) -> GemmProblem:
    """Return the problem with every side that gives rows out of TMA's reach filled up to a multiple of 8. A config
    tuned for that problem serves this one. A problem within TMA's reach is returned unchanged.

    Example:
        >>> str(filled_up(GemmProblem(628, 89, 444)))
        '628x96x448'
    """
    axes = dict(zip("abc", (*problem.layouts, "n"), strict=True))
    sides = {axes[name] for name in problem.out_of_reach}
    filled: dict[str, Any] = {side: reachable(getattr(problem, side)) for side in sides}
    return replace(problem, **filled)
