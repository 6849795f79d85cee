"""Both orders describe the same product of the same memory, whatever the layouts; checked against torch on a CPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.tune.measure.baselines import cublaslt as room
from hopper_gemm.tune.measure.baselines.base import BaselineError
from hopper_gemm.tune.measure.baselines.cublaslt import (
    GLANCES_MOST,
    HEURISTICS,
    TORCH,
    TORCH_WORKSPACE_BYTES,
    WORKSPACE_BYTES,
    CublasLt,
    Heuristics,
)
from hopper_gemm.tune.measure.baselines.cublaslt_api import COLUMN_MAJOR, Algo, CublasLtError, HeuristicResult
from hopper_gemm.tune.measure.scaling import drawn_scales
from hopper_gemm.tune.measure.workload import MatrixSet, Workload

M, N, K = 24, 40, 16


def read(memory: torch.Tensor, layout) -> torch.Tensor:
    """The matrix that a layout sees in memory."""
    strides = (1, layout.pitch) if layout.order == COLUMN_MAJOR else (layout.pitch, 1)
    return memory.as_strided((layout.rows, layout.cols), strides)


def algorithm(number: int) -> Algo:
    algo = Algo()
    algo.data[0] = number
    return algo


class FakePlan:
    """Computes on the CPU what the layouts say; addresses are looked up among the tensors."""

    def __init__(self, memory, a, transpose_a, b, transpose_b, d) -> None:
        self._memory, self._layouts, self._flags = memory, (a, b, d), (transpose_a, transpose_b)
        self.asked, self.tried, self.legal_ones = [], [], []

    def heuristics(self, workspace_bytes, count):
        """Two algorithms with any workspace, and one more where there is much of it."""
        self.asked.append(workspace_bytes)
        results = [HeuristicResult() for _ in range(3 if workspace_bytes > 2**27 else 2)]
        for number, result in enumerate(results):
            result.algo.data[0] = number + 1
        return results

    def ids(self):
        return [algorithm(2), algorithm(66)]

    def legal(self, algo, choices, workspace_bytes):
        assert workspace_bytes == WORKSPACE_BYTES[-1]
        self.tried.append(dict(choices))
        return iter(self.legal_ones)

    def scale(self, modes, pointers, fast):
        self.scaled = modes, pointers, fast

    def run(self, algo, a, b, d, workspace, workspace_bytes, stream, *scales):
        left, right, out = (
            read(self._memory[address], layout) for address, layout in zip((a, b, d), self._layouts, strict=True)
        )
        left, right = (x.t() if flag else x for x, flag in zip((left, right), self._flags, strict=True))
        rows, columns = (self._memory[scale] for scale in scales) if scales else (torch.ones(1), torch.ones(1))
        out.copy_(left @ right * rows.reshape(-1, 1) * columns.reshape(1, -1))


class FakeLibrary:
    def __init__(self, memory, refuse: tuple[str, ...] = ()) -> None:
        self._memory, self.plans, self._refuse = memory, [], list(refuse)
        self.types, self.made, self.legal_ones = [], [], []

    def plan(self, dtypes, layouts, transposed):
        (dtype, _, out_dtype), (a, b, d), (transpose_a, transpose_b) = dtypes, layouts, transposed
        if d.order != COLUMN_MAJOR and "AB" in self._refuse:
            raise CublasLtError("cublasLtMatmulAlgoGetHeuristic: not supported (15)")
        if d.order == COLUMN_MAJOR and "BA" in self._refuse:
            raise CublasLtError("cublasLtMatmulAlgoGetHeuristic: not supported (15)")
        self.plans.append((dtype, a, transpose_a, b, transpose_b, d))
        self.types.append((dtype, out_dtype))
        self.made.append(FakePlan(self._memory, a, transpose_a, b, transpose_b, d))
        self.made[-1].legal_ones = self.legal_ones
        return self.made[-1]

    def algo_fields(self, algo):
        return {"id": algo.data[0], "tile": 0, "split_k": 4}

    def capability(self, algo, name):
        caps = {
            "tile": [18, 20],
            "stages": [*range(28, 36)],
            "custom": [7],
            "swizzle": [1],
            "split_k": [1],
            "reduction": [6],
        }
        return caps[name]


@pytest.fixture
def make(monkeypatch):
    """A baseline over a fake library, and the workload it is asked about."""
    monkeypatch.setattr(room, "_workspace", lambda: torch.empty(16, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))

    def made(refuse=(), by_rows=(True, True)):
        def full(rows, cols, rowwise):
            return torch.randn(rows, cols) if rowwise else torch.randn(cols, rows).t()

        operands = MatrixSet(full(M, K, by_rows[0]), full(N, K, by_rows[1]), torch.zeros(M, N), torch.zeros(M, N))
        workload = Workload(GemmProblem(M, N, K), (operands,), operands.a @ operands.b.t(), 0)
        memory = {matrix.data_ptr(): matrix for matrix in (operands.a, operands.b, operands.theirs)}
        library = FakeLibrary(memory, refuse)
        return CublasLt(lambda: library), workload, library

    return made


@pytest.mark.parametrize("by_rows", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_every_candidate_of_both_orders_writes_the_row_major_product(make, by_rows):
    baseline, workload, _ = make(by_rows=by_rows)
    first = workload.sets[0]
    candidates = baseline.candidates(workload)
    assert [candidate.label.split()[0] for candidate in candidates] == [TORCH, *["AB"] * 3, *["BA"] * 3]
    for candidate in candidates:
        first.theirs.zero_()
        candidate.launch(first)
        torch.testing.assert_close(candidate.product(first), workload.reference)


def test_the_second_order_is_what_torch_asks_of_blas_with_k_contiguous(make):
    """TN with n and m swapped: every operand column-major, the first one transposed."""
    baseline, workload, library = make()
    baseline.candidates(workload)
    _, a, transpose_a, b, transpose_b, d = library.plans[1]
    assert (transpose_a, transpose_b) == (True, False)
    assert {layout.order for layout in (a, b, d)} == {COLUMN_MAJOR}
    assert [(layout.rows, layout.cols, layout.pitch) for layout in (a, b, d)] == [(K, N, K), (K, M, K), (N, M, N)]


@pytest.mark.parametrize(("scales", "modes"), [("tensor", (0, 0)), ("row", (3, 3))])
@pytest.mark.parametrize("promote", [0, 128])
def test_scales_follow_their_operand_in_either_order_and_fast_sums_their_recipe(make, scales, modes, promote):
    """The fake library multiplies rows of its first operand and columns of its second."""
    baseline, workload, library = make()
    problem = ScaledProblem(M, N, K, "e4m3_bf16", promote=promote, scales=scales)
    drawn = drawn_scales(problem, scales, torch.Generator().manual_seed(0))
    first = replace(workload.sets[0], scales=drawn)
    library._memory |= {scale.data_ptr(): scale for scale in drawn}
    reference = workload.reference * drawn[0].reshape(-1, 1) * drawn[1].reshape(1, -1)
    _, *candidates = baseline.candidates(replace(workload, problem=problem, sets=(first,)))
    assert len(candidates) == 6
    for candidate in candidates:
        first.theirs.zero_()
        candidate.launch(first)
        torch.testing.assert_close(first.theirs, reference)
    assert {dtype for dtype, _ in library.types} == {"e4m3"}
    assert [(tuple(plan.scaled[0]), plan.scaled[2]) for plan in library.made] == [(modes, not promote)] * 2


def first_byte(recipe):
    """The first byte of the algorithm that a recipe holds."""
    return bytes.fromhex(recipe.partition(":")[2])[0]


def test_a_recipe_gives_the_same_candidate_again(make):
    baseline, workload, _ = make()
    chosen = baseline.candidates(workload)[5]
    again = baseline.restore(workload, chosen.recipe)
    assert (again.label, again.recipe) == (chosen.label, chosen.recipe)
    assert first_byte(again.recipe) == 2


def test_an_order_that_the_library_refuses_leaves_the_other(make):
    baseline, workload, _ = make(refuse=("AB",))
    assert {candidate.label.split()[0] for candidate in baseline.candidates(workload)} == {TORCH, "BA"}


def test_torch_itself_is_a_candidate_to_the_end_and_can_be_restored(make):
    """So that the best of cuBLASLt is never behind torch.mm by choice."""
    baseline, workload, _ = make()
    candidates = baseline.candidates(workload)
    assert [candidate.seeded for candidate in candidates] == [True] + [False] * 6
    first = workload.sets[0]
    for candidate in (candidates[0], baseline.restore(workload, candidates[0].recipe)):
        first.theirs.zero_()
        candidate.launch(first)
        torch.testing.assert_close(first.theirs, workload.reference)


def test_lists_are_asked_for_with_every_workspace_and_an_algorithm_is_a_candidate_once(make):
    baseline, workload, library = make()
    recipes = [candidate.recipe for candidate in baseline.candidates(workload)]
    assert len(recipes) == len(set(recipes)) == 1 + 2 * 3
    assert [plan.asked for plan in library.made] == [list(WORKSPACE_BYTES)] * 2


def test_tiles_of_every_id_are_candidates_beside_the_lists_and_only_so_many(make):
    baseline, workload, library = make()
    library.legal_ones = [algorithm(number) for number in range(1, 21)]
    candidates = baseline.candidates(workload)
    assert len(candidates) == 1 + 2 * 20, "those of the lists are among them"
    offered, other = library.made[0].tried
    assert offered == {"tile": [18, 20], "stages": [*range(28, 36)], "cluster": (0, 2, 3, 5)}
    assert other == {"tile": [18, 20], "stages": [28, 30, 32, 34], "cluster": (0,)}
    library.legal_ones = [algorithm(number) for number in range(1, 5000)]
    assert 1000 < len(baseline.candidates(workload)) <= 1 + 2 * 3 + GLANCES_MOST
    huge = replace(workload, problem=GemmProblem(16384, 16384, 16384))
    assert 300 < len(baseline.candidates(huge)) < 800, "a launch takes twenty milliseconds"


def test_variants_have_other_clusters_options_orders_and_splits(make):
    baseline, workload, library = make()
    candidate = baseline.candidates(workload)[1]
    library.made[0].tried.clear()
    library.made[0].legal_ones = [algorithm(7), algorithm(8)]
    assert [first_byte(other.recipe) for other in candidate.variants()] == [7, 8, 7, 8]
    first, second = library.made[0].tried
    assert {name: len(values) for name, values in first.items()} == {"cluster": 7, "custom": 8, "swizzle": 2}
    assert second == {"split_k": (2, 3, 4, 6, 8, 16), "reduction": (2,)}


def test_no_algorithm_at_all_is_said_with_both_reasons(make):
    baseline, workload, _ = make(refuse=("AB", "BA"))
    with pytest.raises(BaselineError, match=r"cuBLASLt has no algorithm: AB: .*not supported.*; BA: "):
        baseline.candidates(workload)


def test_a_library_that_cannot_be_loaded_is_missing_with_the_reason():
    def find():
        raise OSError("none of libcublasLt.so.13 can be loaded")

    assert CublasLt(find).missing() == "cuBLASLt cannot be used: none of libcublasLt.so.13 can be loaded"


@pytest.mark.parametrize(("dtype", "types"), [("fp16", ("fp16", "fp16")), ("bf16_fp32", ("bf16", "fp32"))])
def test_both_orders_ask_for_the_types_of_the_problem(make, dtype, types):
    baseline, workload, library = make()
    baseline.candidates(replace(workload, problem=GemmProblem(M, N, K, dtype)))
    assert library.types == [types] * 2


def test_the_heuristic_list_is_that_of_torchs_order_and_workspace_with_torch_itself_to_the_end(make):
    _, workload, library = make()
    baseline = Heuristics(lambda: library)
    found = baseline.candidates(workload)
    assert [one.label.split()[0] for one in found] == [TORCH, "BA", "BA"]
    assert [one.seeded for one in found] == [True, False, False]
    assert not any(one.variants() for one in found[:1])
    (plan,) = library.made
    assert plan.asked == [TORCH_WORKSPACE_BYTES]
    assert not plan.tried
    found[1].launch(workload.sets[0])
    assert torch.equal(workload.sets[0].theirs, workload.reference)
    assert HEURISTICS == 64
    _, workload, library = make(refuse=("BA",))
    with pytest.raises(BaselineError, match="no algorithm"):
        Heuristics(lambda: library).candidates(workload)
