"""cuBLASLt's whole list: every algorithm that its heuristic offers, timed by our clock.

torch.mm runs the first of one such list. The list depends on how the product is asked for, though the matrices lie in
memory in the same way: as C = A B with a row-major C, or as C^T = B^T A^T with a column-major one, as torch does. Both
are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hopper_gemm.measure.baselines.base import BaselineError, Candidate
from hopper_gemm.measure.baselines.cublaslt_api import (
    COLUMN_MAJOR,
    ROW_MAJOR,
    Algo,
    CublasLtError,
    Layout,
    Library,
    Plan,
    library,
)
from hopper_gemm.measure.workload import Operands, Workload
from hopper_gemm.model.problem import types_of

COUNT = 100
"""Algorithms asked for in each order; the library gives fewer where it has no more."""

WORKSPACE_BYTES = 64 * 2**20
"""Twice what cuBLAS takes on Hopper by itself: more room for split-K."""

ORDERS = ("AB", "BA")
"""``AB``: C = A B. ``BA``: C^T = B^T A^T, as torch.mm asks."""


@dataclass(frozen=True)
class Recipe:
    """An algorithm, to be run again.

    Args:
        order: of :data:`ORDERS`.
        algo: the library's 64 bytes, which its version alone must share.
    """

    order: str
    algo: bytes


class CublasLt:
    """The best of cuBLASLt's heuristic lists.

    Args:
        find: gives the library; that of the process by default.
    """

    name = "cublaslt"
    seconds = 180.0

    def __init__(self, find: Callable[[], Library] = library) -> None:
        self._find = find

    def missing(self) -> str | None:
        """Whether the library can be loaded."""
        try:
            self._find()
        except (OSError, AttributeError) as error:
            return f"cuBLASLt cannot be used: {error}"
        return None

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Every algorithm of both orders' lists."""
        found, refusals = [], []
        workspace = _workspace()
        for order in ORDERS:
            try:
                plan = self._plan(order, workload)
                results = plan.heuristics(WORKSPACE_BYTES, COUNT)
            except CublasLtError as error:
                refusals.append(f"{order}: {error}")
                continue
            found += [self._candidate(order, plan, result.algo, workspace) for result in results]
        if not found:
            raise BaselineError(f"cuBLASLt has no algorithm: {'; '.join(refusals) or 'its lists are empty'}")
        return found

    def restore(self, workload: Workload, recipe: Any) -> Candidate:
        """The algorithm of a recipe."""
        assert isinstance(recipe, Recipe)
        plan = self._plan(recipe.order, workload)
        return self._candidate(recipe.order, plan, Algo.from_buffer_copy(recipe.algo), _workspace())

    def _plan(self, order: str, workload: Workload) -> Plan:
        first = workload.sets[0]
        a, b, out = (_layout(matrix) for matrix in (first.a, first.b, first.theirs))
        dtype, out_dtype = types_of(workload.problem.dtype)
        if order == "AB":
            return self._find().plan(dtype, a, False, _transposed(b), False, out, out_dtype)
        (b_columns, b_flipped), (a_columns, a_flipped) = _by_columns(b), _by_columns(_transposed(a))
        return self._find().plan(dtype, b_columns, b_flipped, a_columns, a_flipped, _transposed(out), out_dtype)

    def _candidate(self, order: str, plan: Plan, algo: Algo, workspace: torch.Tensor) -> Candidate:
        swapped = order == "BA"

        def launch(operands: Operands) -> None:
            a, b = operands.a.data_ptr(), operands.b.data_ptr()
            left, right = (b, a) if swapped else (a, b)
            stream = torch.cuda.current_stream().cuda_stream
            out = operands.theirs.data_ptr()
            plan.run(algo, left, right, out, workspace.data_ptr(), workspace.numel(), stream)

        fields = self._find().algo_fields(algo)
        label = " ".join([order, *(f"{name}={value}" for name, value in fields.items() if value or name == "id")])
        return Candidate(launch, label, Recipe(order, bytes(algo)))


def _layout(matrix: torch.Tensor) -> Layout:
    """A matrix as it lies: by rows, unless its columns are what is contiguous."""
    rows, cols = matrix.shape
    if matrix.stride(1) == 1:
        return Layout(rows, cols, matrix.stride(0), ROW_MAJOR)
    return Layout(rows, cols, matrix.stride(1), COLUMN_MAJOR)


def _transposed(layout: Layout) -> Layout:
    """The same memory, read as the transpose."""
    return Layout(layout.cols, layout.rows, layout.pitch, 1 - layout.order)


def _by_columns(layout: Layout) -> tuple[Layout, bool]:
    """The same memory as a column-major matrix, and whether that is the transpose of the one meant."""
    return (layout, False) if layout.order == COLUMN_MAJOR else (_transposed(layout), True)


def _workspace() -> torch.Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
