"""bmm gives torch's products of batches and their gradients, in one launch where TMA reaches every matrix."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import hopper_gemm
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve import bmm as room
from hopper_gemm.serve.ops import bmm_op
from tests.serve.layers import with_gradients
from tests.serve.refusal import refused_in_one_line
from tests.serve.test_ops import exact_with_gradients, near, recorded

TYPES = [torch.bfloat16, torch.float16]

baddbmm_op = torch.ops.hopper_gemm.baddbmm.default

BATCH, M, N, K = 3, 24, 40, 16


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def batches(dtype=torch.bfloat16):
    """Pairs of operands by how they lie."""

    def of(*shape):
        return normal(*shape, dtype=dtype)

    return {
        "rows": (of(BATCH, M, K), of(BATCH, K, N)),
        "columns": (of(BATCH, K, M).mT, of(BATCH, N, K).mT),
        "batch inside": (of(M, BATCH, K).transpose(0, 1), of(K, BATCH, N).transpose(0, 1)),
        "one a": (of(M, K).expand(BATCH, M, K), of(BATCH, K, N)),
        "one b": (of(BATCH, M, K), of(N, K).t()),
        "one b expanded": (of(BATCH, M, K), of(N, K).t().expand(BATCH, K, N)),
        "one matrix": (of(1, M, K), of(1, K, N)),
        "none": (of(0, M, K), of(0, K, N)),
        "none of one b": (of(0, M, K), of(N, K).t().expand(0, K, N)),
    }


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", batches())
def test_the_product_and_its_gradients_are_those_of_float64(case, dtype):
    assert exact_with_gradients(bmm_op, *batches(dtype)[case])


def test_a_gradient_is_made_only_of_what_requires_one_and_has_a_gradient():
    a, b = batches()["rows"]
    (a,) = recorded(a)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.shape) or one, lambda one: one):
        bmm_op(a, b)
    assert kept == [b.shape]
    (first,) = torch.autograd.grad(bmm_op(a, b).float().square().sum(), a, create_graph=True)
    first.float().sum().backward()
    assert b.grad is None
    assert bool(a.grad.abs().sum() > 0)
    assert bmm_op(a.detach(), b).grad_fn is None


def test_a_compiled_call_makes_no_break_and_one_graph_for_all_batches_and_m():
    counter, b = CompileCounter(), normal(K, N)
    layer = torch.compile(
        lambda a, b: hopper_gemm.bmm(a.relu(), b).relu(), fullgraph=True, dynamic=True, backend=counter
    )
    for batch, m in ((2, 24), (3, 33), (5, 57)):
        a = normal(batch, m, K)
        assert torch.equal(layer(a, b), bmm_op(a.relu(), b).relu())
    assert counter.frame_count == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_the_kernel_cannot_run_torch_runs_unless_nothing_may(dtype):
    for a, b in (batches(dtype)["rows"], batches(dtype)["one b"]):
        assert torch.equal(hopper_gemm.bmm(a, b), torch.matmul(a, b))
        with hopper_gemm.fallback("never"), pytest.raises((RuntimeError, TypeError), match="must"):
            hopper_gemm.bmm(a, b)
    wide = hopper_gemm.bmm(*batches()["rows"], out_dtype=torch.float32)
    assert wide.dtype == torch.float32


def wrong_calls():
    """Calls that are refused, each with the error and its words."""
    a, b = batches()["rows"]
    fits = r"a and b must be \(batch, m, k\) and \(batch, k, n\) or \(k, n\) but got"
    return [
        (lambda: bmm_op(a, b.mT), ValueError, rf"{fits} \(3, 24, 16\) and \(3, 40, 16\); give one of them as \.mT"),
        (lambda: bmm_op(a[:2], b), ValueError, rf"{fits} \(2, 24, 16\) and \(3, 16, 40\)"),
        (lambda: bmm_op(a[0], b), ValueError, fits),
        (lambda: hopper_gemm.bmm(a[None], b), ValueError, fits),
        (lambda: bmm_op(a, b.half()), TypeError, "must both be bfloat16 or both float16"),
        (lambda: bmm_op(a.float(), b.float()), TypeError, "must both be bfloat16 or both float16"),
        (lambda: bmm_op(a, b, torch.float16), TypeError, "out_dtype must be torch.bfloat16"),
        (lambda: hopper_gemm.bmm(a, None), TypeError, "b must be a plain torch tensor but is None; give one"),
        (lambda: hopper_gemm.bmm(a, b, batch_invariant=True), RuntimeError, "must be on a Hopper GPU but are on cpu"),
    ]


@pytest.mark.parametrize("number", range(len(wrong_calls())))
def test_what_does_not_fit_is_refused_in_one_line(number):
    refused_in_one_line(*wrong_calls()[number])


# What is launched -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", batches())
def test_a_batch_is_one_launch_and_each_matrix_is_one_where_a_stride_is_zero(by_python, case):
    a, b = batches()[case]
    out = room._bmm(a, b)
    assert torch.allclose(out.float(), a.float() @ b.float(), atol=0.05, rtol=0.02)
    assert out.is_contiguous()
    rows = [problem.m for problem, _, _ in by_python.made]
    apart = case in ("one a", "one matrix") or not len(a)
    assert rows == ([M] * len(a) if apart else [BATCH * M])
    assert [getattr(problem, "groups", 1) for problem, _, _ in by_python.made] == (
        [1] * len(rows) if apart or case.startswith("one b") else [BATCH]
    )


@pytest.mark.parametrize("case", ["rows", "columns", "batch inside"])
def test_a_batch_is_read_and_written_in_place(by_python, case):
    a, b = batches()[case]
    out = room._bmm(a, b, torch.float32)
    (problem, _, product), (left, right) = by_python.made[0], by_python.read[0]
    assert [left.data_ptr(), right.data_ptr(), product] == [a.data_ptr(), b.data_ptr(), out.data_ptr()]
    assert (problem.dtype, problem.grouping, problem.groups) == ("bf16_fp32", "batch", BATCH)


def test_a_batch_whose_k_is_cut_into_parts_has_the_bits_of_each_product(by_python):
    a, b = normal(2, 8, 6144), normal(2, 6144, 64)
    room._bmm(a, b, None, True)
    assert [problem.batch_invariant for problem, _, _ in by_python.made] == [True, True]


@pytest.mark.parametrize("case", ["one a"])
def test_each_matrix_is_read_and_written_in_place(by_python, case):
    a, b = batches()[case]
    out = room._bmm(a, b, torch.float32, True)
    assert out.dtype == torch.float32
    for i, ((problem, _, product), (left, right)) in enumerate(zip(by_python.made, by_python.read, strict=True)):
        assert [left.data_ptr(), right.data_ptr(), product] == [a[i].data_ptr(), b[i].data_ptr(), out[i].data_ptr()]
        assert (problem.dtype, problem.batch_invariant) == ("bf16_fp32", True)


def test_one_b_for_all_is_multiplied_by_the_rows_of_a_in_place(by_python):
    a, b = batches()["one b"]
    out = room._bmm(a, b, torch.float32, True)
    ((left, right),) = by_python.read
    assert (left.data_ptr(), right.data_ptr()) == (a.data_ptr(), b.data_ptr())
    assert by_python.loaded == [(None, GemmProblem(BATCH * M, N, K, "bf16_fp32", batch_invariant=True))]
    assert out.dtype == torch.float32


def test_a_product_whose_matrices_start_anywhere_is_written_in_place(by_python):
    """Of 3 rows of 5 columns, 30 bytes each."""
    a, b = normal(4, 3, K), normal(4, K, 5)
    assert torch.allclose(room._bmm(a, b).float(), a.float() @ b.float(), atol=0.05, rtol=0.02)


ADDED = [
    (1, 1, (BATCH, M, N)),
    (1, -0.5, (N,)),
    (0, 2, (1, 1, N)),
    (0.25, 1, (BATCH, 1, N)),
    (1, 1, (M, 1)),
    (-2, 3, (1,)),
]
"""beta, alpha, and the sizes of what is added."""


def added(beta, alpha, shape, dtype):
    """The arguments of a call of baddbmm."""
    addend = normal(*shape, dtype=dtype) if beta else torch.full(shape, float("nan"), dtype=dtype)
    return addend, normal(BATCH, M, K, dtype=dtype), normal(BATCH, K, N, dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize(("beta", "alpha", "shape"), ADDED)
def test_baddbmm_and_its_gradients_are_those_of_float64(beta, alpha, shape, dtype, out_dtype):
    def exact(addend, a, b):
        return torch.baddbmm(addend.expand(BATCH, M, N), a, b, beta=beta, alpha=alpha)

    def ours(*given):
        return baddbmm_op(*given, beta, alpha, out_dtype)

    (out, right), *gradients = with_gradients(ours, exact, added(beta, alpha, shape, dtype))
    assert out.dtype == (out_dtype or dtype)
    assert near(out, right, dtype)
    assert all((found.double() - exactly).norm() <= 6e-3 * exactly.norm() for found, exactly in gradients)


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize(("beta", "alpha", "shape"), ADDED)
def test_baddbmm_is_one_launch_that_reads_what_is_added_in_place(launches, monkeypatch, beta, alpha, shape, out_dtype):
    addend, a, b = added(beta, alpha, shape, torch.bfloat16)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    out = room._sum_of(addend, a, b, beta, alpha, out_dtype)
    right = torch.baddbmm(addend.double().expand(BATCH, M, N), a.double(), b.double(), beta=beta, alpha=alpha)
    assert near(out, right, torch.bfloat16)
    ((_, problem),), (finish,) = launches.loaded, launches.finishes
    assert (problem.grouping, problem.groups, problem.rows) == ("batch", BATCH, M)
    scaled, residual = alpha != 1, beta != 0
    assert finish == (Epilogue(scale=scaled, residual=residual) if scaled or residual else None)


def test_the_operator_of_baddbmm_is_what_torch_asks_of_one():
    given = recorded(*added(1, 1, (N,), torch.bfloat16))
    torch.library.opcheck(baddbmm_op, given)
    torch.library.opcheck(baddbmm_op, (*given, 0.5, 2.0, torch.float32))
    whole = torch.compile(hopper_gemm.baddbmm, fullgraph=True, backend=CompileCounter())
    assert torch.equal(whole(*given, alpha=2), baddbmm_op(*given, alpha=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_baddbmm_of_other_tensors_is_torch_s(dtype):
    given = added(0.5, 2, (BATCH, M, N), dtype)
    right = torch.baddbmm(*given, beta=0.5, alpha=2)
    assert torch.equal(hopper_gemm.baddbmm(*given, beta=0.5, alpha=2), right)


def test_what_baddbmm_cannot_add_is_refused_in_one_line():
    addend, a, b = added(1, 1, (BATCH, M, N), torch.bfloat16)
    for call, error, words in (
        (lambda: baddbmm_op(addend[:, :5], a, b), ValueError, r"input must broadcast to \(3, 24, 40\) but is"),
        (lambda: baddbmm_op(addend[None], a, b), ValueError, "input must broadcast to"),
        (
            lambda: baddbmm_op(addend.half(), a, b),
            ValueError,
            "input must be torch.bfloat16 on cpu but is torch.float16",
        ),
        (lambda: baddbmm_op(addend, a, b[0]), ValueError, r"batch2 must be \(batch, k, n\) but is"),
        (lambda: hopper_gemm.baddbmm(1, a, b), TypeError, "input must be a torch tensor but is 'int'"),
    ):
        refused_in_one_line(call, error, words)


def test_the_gradient_of_transposed_matrices_lies_as_they_do():
    a, b = torch.randn(3, 5, 16, dtype=torch.bfloat16), torch.randn(3, 8, 16, dtype=torch.bfloat16, requires_grad=True)
    lying, view = [], b.mT
    view.register_hook(lambda gradient: lying.append(gradient.stride()))
    torch.ops.hopper_gemm.bmm(a, view).float().sum().backward()
    assert lying == [view.stride()]
