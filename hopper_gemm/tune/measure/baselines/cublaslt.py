"""cuBLAS: torch.mm, and cuBLASLt's algorithms timed by our clock, from its heuristic and from its attributes.

torch.mm runs the first algorithm of a list of the heuristic. The list depends on the workspace and on the form of the
request, though the matrices lie in memory in the same way: C = A B with a row-major C, or C^T = B^T A^T with a
column-major C, as torch requests it. Both forms are requested, with several workspaces. Beside the lists stand all
tiles of all algorithm ids that the library would run; algorithms near the fastest are also tried with other clusters,
options, orders of tiles and splits of k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch

from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import GemmProblem, types_of
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.measure.arms import Launch, cublas_launch, scaled_launch
from hopper_gemm.tune.measure.baselines.base import Baseline, BaselineError, Candidate, Care
from hopper_gemm.tune.measure.baselines.cublaslt_api import (
    CLUSTERS,
    COLUMN_MAJOR,
    REDUCED_IN_FP32,
    ROW_MAJOR,
    SCALE_MODES,
    Algo,
    CublasLtError,
    Layout,
    Library,
    Plan,
    library,
)
from hopper_gemm.tune.measure.workload import MatrixSet, Workload

WORKSPACE_BYTES = tuple(size * 2**20 for size in (0, 4, 32, 64, 256))
"""cuBLAS takes 32 MiB on Hopper by default; more allows split-K, and less may change the order of the list."""

HEURISTICS, TORCH_WORKSPACE_BYTES = 64, 32 * 2**20
"""Algorithms that :class:`Heuristics` requests, and the workspace of torch on Hopper."""

TORCH = "torch.mm"
"""Recipe and label of torch's own kernel, of FP8 that of its scaled_mm. It stays among the candidates to the end, so
that the choice is never slower."""

GLANCES_MOST = 1500
"""The most first looks at algorithms that no heuristic listed."""


class Cublas(Baseline):
    """torch.mm: cuBLAS with the kernel that its own heuristic takes, as every user of PyTorch has it. Of FP8 torch's
    scaled_mm of the same recipe, with fast sums only where ours are; of groups torch's grouped_mm or bmm."""

    name = "cublas"

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        problem = workload.problem
        if isinstance(problem, GroupedProblem) and problem.grouping in ("rows", "depth"):
            return (_grouped(),)
        return (Candidate(_torchs(problem)),)


class CublasLt(Baseline):
    """The best of cuBLASLt's algorithms; ``find`` returns the library, by default the one that the process has
    loaded."""

    name = "cublaslt"

    def __init__(self, find: Callable[[], Library] = library) -> None:
        self._find = find

    def missing(self) -> str | None:
        try:
            self._find()
        except (OSError, AttributeError) as error:
            return f"cuBLASLt cannot be used: {error}"
        return None

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Return torch.mm, every algorithm of both orders' lists, and as many of the other legal algorithms as there is
        time for a first look at."""
        listed: dict[str, Candidate] = {}
        others: dict[str, Candidate] = {}
        refusals: list[str] = []
        workspace = _workspace()
        for order in ("AB", "BA"):  # C = A B; C^T = B^T A^T, as torch.mm requests it
            try:
                plan = self._plan(order, workload)
                offered: set[int | None] = set()
                for algo in _heuristics(plan, refusals):
                    listed[_recipe(order, algo)] = self._candidate(order, plan, algo, workspace)
                    offered.add(self._find().algo_fields(algo).get("id"))
                for algo in self._tiles(plan, offered):
                    others[_recipe(order, algo)] = self._candidate(order, plan, algo, workspace)
            except CublasLtError as error:
                refusals.append(f"{order}: {error}")
        if not listed and not others:
            raise BaselineError(f"cuBLASLt has no algorithm: {'; '.join(refusals) or 'its lists are empty'}")
        unlisted = [candidate for recipe, candidate in others.items() if recipe not in listed]
        seconds = workload.problem.flop / 6e14 + workload.problem.bytes / 3e12 + 1e-5
        looks = min(GLANCES_MOST, max(100, int(20.0 / (3 * seconds))))  # of three launches each, 20 s in all
        step = -(-len(unlisted) // looks) or 1
        return [_torch(workload.problem), *listed.values(), *unlisted[::step]]

    def restore(self, workload: Workload, recipe: str) -> Candidate:
        if recipe == TORCH:
            return _torch(workload.problem)
        order, _, text = recipe.partition(":")
        algo = Algo.from_buffer_copy(bytes.fromhex(text))
        return self._candidate(order, self._plan(order, workload), algo, _workspace())

    def _plan(self, order: str, workload: Workload) -> Plan:
        first = workload.sets[0]
        a, b, out = (_layout(matrix) for matrix in (first.a, first.b, first.theirs))
        dtype, out_dtype = types_of(workload.problem.dtype)
        layouts, flipped = (a, _transposed(b), out), (False, False)
        if order == "BA":
            (b_columns, b_flipped), (a_columns, a_flipped) = _by_columns(b), _by_columns(_transposed(a))
            layouts, flipped = (b_columns, a_columns, _transposed(out)), (b_flipped, a_flipped)
        plan = self._find().plan((dtype, dtype, out_dtype), layouts, flipped)
        if isinstance(problem := workload.problem, ScaledProblem):
            modes = SCALE_MODES[problem.scales]
            plan.scale(modes if order == "AB" else modes[::-1], _scales(order, first), not problem.promote)
        return plan

    def _tiles(self, plan: Plan, offered: Set[int | None]) -> Iterator[Algo]:
        """Yield the tiles of every algorithm id with default attributes: of ids that the heuristic offers with every
        depth and several clusters, of others with a few depths."""
        cublaslt = self._find()
        for algo in plan.ids():
            tiles, stages = (cublaslt.capability(algo, name) or [0] for name in ("tile", "stages"))
            clusters: Sequence[int] = CLUSTERS[:4]
            if cublaslt.algo_fields(algo).get("id") not in offered:
                stages, clusters = stages[:: max(1, len(stages) // 4)], CLUSTERS[:1]
            choices = {"tile": tiles, "stages": stages, "cluster": clusters}
            yield from plan.legal(algo, choices, WORKSPACE_BYTES[-1])

    def _variants(self, plan: Plan, algo: Algo) -> Iterator[Algo]:
        """Yield an algorithm with other clusters, options and orders of tiles; and with k split."""
        cublaslt = self._find()
        options, swizzles, splits = (
            max(cublaslt.capability(algo, name), default=0) for name in ("custom", "swizzle", "split_k")
        )
        choices = {"cluster": CLUSTERS, "custom": range(min(options, 15) + 1), "swizzle": range(min(swizzles, 1) + 1)}
        yield from plan.legal(algo, choices, WORKSPACE_BYTES[-1])
        if splits and any(schemes & REDUCED_IN_FP32 for schemes in cublaslt.capability(algo, "reduction")):
            split = {"split_k": (2, 3, 4, 6, 8, 16), "reduction": (REDUCED_IN_FP32,)}
            yield from plan.legal(algo, split, WORKSPACE_BYTES[-1])

    def _candidate(self, order: str, plan: Plan, algo: Algo, workspace: torch.Tensor) -> Candidate:
        swapped = order == "BA"

        def launch(operands: MatrixSet) -> None:
            a, b = operands.a.data_ptr(), operands.b.data_ptr()
            left, right = (b, a) if swapped else (a, b)
            stream = torch.cuda.current_stream().cuda_stream
            room = workspace.data_ptr(), workspace.numel()
            plan.run(algo, left, right, operands.theirs.data_ptr(), *room, stream, *_scales(order, operands))

        def variants() -> list[Candidate]:
            return [self._candidate(order, plan, other, workspace) for other in self._variants(plan, algo)]

        fields = self._find().algo_fields(algo)
        label = " ".join([order, *(f"{name}={value}" for name, value in fields.items() if value or name == "id")])
        return Candidate(launch, label, _recipe(order, algo), variants=variants)


def _torchs(problem: GemmProblem) -> Launch:
    if isinstance(problem, ScaledProblem):
        return scaled_launch(problem.scales, not problem.promote)
    return cublas_launch


def _grouped() -> Candidate:
    """Return torch's grouped_mm. It takes no output: the last one of each set of matrices is kept, so that a launch
    writes where nothing is in the L2."""
    functional: Any = torch.nn.functional
    outputs: dict[int, torch.Tensor] = {}

    def launch(operands: MatrixSet) -> None:
        ends, dtype = operands.options["ends"], operands.theirs.dtype
        outputs[id(operands)] = functional.grouped_mm(operands.a, operands.b.mT, offs=ends, out_dtype=dtype)

    return Candidate(launch, product=lambda operands: outputs[id(operands)])


def _torch(problem: GemmProblem) -> Candidate:
    return Candidate(_torchs(problem), TORCH, TORCH, seeded=True)


def _scales(order: str, operands: MatrixSet) -> list[int]:
    """Return the addresses of scales, those of the library's A first; none of 16-bit operands."""
    addresses = [scale.data_ptr() for scale in operands.scales or ()]
    return addresses if order == "AB" else addresses[::-1]


def _recipe(order: str, algo: Algo) -> str:
    """Return the order, and the library's 64 bytes in hexadecimal, which are valid for its version alone."""
    return f"{order}:{bytes(algo).hex()}"


class Heuristics(CublasLt):
    """The best of one heuristic list of cuBLASLt, torch.mm included: the result of a program that requests one list and
    times it. The choice takes less effort than that among all algorithms."""

    name = "heuristics"
    care = Care(near=1.1, varied=0, semifinalists=8, finalists=3, rounds=3)

    def candidates(self, workload: Workload) -> Sequence[Candidate]:
        """Return torch.mm, and the list that it takes its own kernel from: at most 64 algorithms, in torch's order and
        with torch's workspace."""
        try:
            plan, workspace = self._plan("BA", workload), _workspace()
            listed = [result.algo for result in plan.heuristics(TORCH_WORKSPACE_BYTES, HEURISTICS)]
        except CublasLtError as error:
            raise BaselineError(f"cuBLASLt has no algorithm: {error}") from None
        return [_torch(workload.problem), *(self._candidate("BA", plan, algo, workspace) for algo in listed)]


def _heuristics(plan: Plan, refusals: list[str]) -> Iterator[Algo]:
    """Yield the algorithms that the library offers, at most a hundred for each workspace."""
    for size in WORKSPACE_BYTES:
        try:
            yield from (result.algo for result in plan.heuristics(size, 100))
        except CublasLtError as error:
            refusals.append(f"{size >> 20} MiB: {error}")


def _layout(matrix: torch.Tensor) -> Layout:
    """Return a matrix's layout in memory: row-major, unless its columns are contiguous."""
    rows, cols = matrix.shape
    if matrix.stride(1) == 1:
        return Layout(rows, cols, matrix.stride(0), ROW_MAJOR)
    return Layout(rows, cols, matrix.stride(1), COLUMN_MAJOR)


def _transposed(layout: Layout) -> Layout:
    """Return the same memory, read as the transpose."""
    return Layout(layout.cols, layout.rows, layout.pitch, 1 - layout.order)


def _by_columns(layout: Layout) -> tuple[Layout, bool]:
    """Return the same memory as a column-major matrix, and True if that is the transpose of the matrix meant."""
    return (layout, False) if layout.order == COLUMN_MAJOR else (_transposed(layout), True)


def _workspace() -> torch.Tensor:
    return torch.empty(WORKSPACE_BYTES[-1], dtype=torch.uint8, device="cuda")
