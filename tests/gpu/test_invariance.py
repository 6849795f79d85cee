"""Batch invariance on a GPU: each row's bits, forward and backward, whatever the number of rows and whoever asks."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm import matmul
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.serve.kernels import default_config
from hopper_gemm.tune.measure.correctness import same_bits

pytestmark = pytest.mark.gpu

ROWS = 1500
SIZES = (1, 7, 64, 333, ROWS)
SHAPES = ((1024, 1024), (512, 16384), (89, 1003))
"""n and k: whole, cut into four parts, copied and padded."""


def kernels():
    """The kernels of the products and of their gradients."""
    asked = [(m, n, k, "kk") for n, k in SHAPES for m in SIZES]
    asked += [(m, k, n, "kn") for n, k in SHAPES for m in SIZES]
    problems = [filled_up(GemmProblem(*sizes, "bf16", layouts, True)) for *sizes, layouts in asked]
    return [KernelId.of(default_config(one), one) for one in problems]


def operands(n, k):
    generator = torch.Generator("cuda").manual_seed(n + k)
    x, weight = (torch.randn(rows, k, device="cuda", generator=generator).bfloat16() for rows in (ROWS, n))
    return x, weight


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_has_the_same_bits_in_any_batch(n, k):
    x, weight = operands(n, k)
    whole = matmul(x, weight.t(), batch_invariant=True)
    with hopper_gemm.batch_invariant():
        assert all(same_bits(matmul(x[:m], weight.t()), whole[:m]) for m in SIZES)
        assert same_bits(matmul(x[100:433], weight.t()), whole[100:433])


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_gradient_of_a_row_has_the_same_bits_in_any_batch_and_that_of_the_weight_in_any_run(n, k):
    x, weight = operands(n, k)
    upstream = torch.randn(ROWS, n, device="cuda").bfloat16()

    def gradients(m):
        a, b = x[:m].clone().requires_grad_(), weight.clone().requires_grad_()
        with hopper_gemm.batch_invariant():
            y = matmul(a, b.t())
        y.backward(upstream[:m])  # in a thread of autograd's, outside the context
        return a.grad, b.grad

    whole, of_weight = gradients(ROWS)
    assert all(same_bits(gradients(m)[0], whole[:m]) for m in SIZES)
    assert same_bits(gradients(ROWS)[1], of_weight)


def test_a_compiled_call_and_a_replayed_graph_keep_the_rule():
    x, weight = operands(*SHAPES[0])
    whole = matmul(x, weight.t(), batch_invariant=True)
    layer = torch.compile(lambda a: matmul(a, weight.t()), fullgraph=True, dynamic=False)
    part = x[:333].contiguous()
    layer(part)
    with hopper_gemm.batch_invariant():
        assert same_bits(layer(part), whole[:333])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = matmul(part, weight.t())
    graph.replay()
    assert same_bits(captured, whole[:333])
