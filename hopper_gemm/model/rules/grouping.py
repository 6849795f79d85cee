"""Rules on a kernel and a problem of groups."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.rules.rule import Rule


def _groups(kernel: Kernel, problem: GroupedProblem) -> Iterator[str]:
    """Tiles of groups are whole and read forward: so a row's bits depend on no other."""
    if kernel.builder != GemmConfig().builder:
        yield "groups need the plain kernel; leave the parameters of the design study at their defaults"
    if kernel.split_k > 1:
        yield f"groups are multiplied in whole tiles but split_k is {kernel.split_k}; take split_k 1"
    if kernel.reverse_k:
        yield "reverse_k would make a row's bits depend on where its group lies; take reverse_k false"
    if kernel.pace:
        yield f"pace counts tiles, which groups have as their offsets say, but got {kernel.pace}; take pace 0"


def _depth(kernel: Kernel, problem: GroupedProblem) -> Iterator[str]:
    """Each group along k has stages of its own number, which neither consumers in turns nor held slots can take."""
    if not problem.deep:
        return
    if problem.layouts != "mn":
        yield f"operands grouped along k must be contiguous along m and n but got layouts {problem.layouts}; copy them"
    if kernel.schedule == "pingpong":
        yield 'pingpong takes as many stages of every tile; take schedule "cooperative"'
    if kernel.staging == "ring":
        yield 'staging "ring" takes stages that a group may not have; take staging own'


def _rows(kernel: Kernel, problem: GroupedProblem) -> Iterator[str]:
    """A tile of a group begins at any row. Along a contiguous axis a TMA load must begin at a multiple of 16 bytes:
    elsewhere it was an illegal instruction on an H200."""
    if problem.grouping in ("rows", "masked") and problem.layouts[0] != "k":
        yield f"A with groups of rows must be contiguous along k but got layouts {problem.layouts}; copy it"


def _reach(kernel: Kernel, problem: GroupedProblem) -> Iterator[str]:
    if problem.out_of_reach:
        yield (
            f"TMA must reach the matrices of groups but not {', '.join(problem.out_of_reach)} of {problem} "
            f"{problem.layouts}; fill n and k up to multiples of 16 bytes"
        )


def _finish(kernel: Kernel, problem: GroupedProblem, finish: Epilogue) -> Iterator[str]:
    """Rows of a residual of a group of rows would be read beyond the last row of C."""
    if problem.deep or (finish.residual and problem.grouping != "batch"):
        yield f"groups of {problem.grouping} do not take the finish {finish}; apply it to their product"


GROUP_RULES = (
    Rule("groups", "the number of tiles is data, and a row's bits may not depend on it", _groups),
    Rule("group_depth", "the stages of a tile of a group along k are data", _depth),
    Rule("group_rows", "TMA loads begin at multiples of 16 bytes along a contiguous axis", _rows),
    Rule("group_reach", "neither padding nor stores by threads know groups", _reach),
)
"""The rules on a config and a problem of groups."""

GROUP_FINISH = Rule("group_finish", "what follows is read for rows of C, or for each group", _finish)
"""The rule on these and a finish."""
