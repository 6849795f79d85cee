"""bmm on a GPU: products and gradients of batches however they lie, graphs, and batch invariance."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.tune.measure.correctness import same_bits
from tests.serve.test_bmm import batches
from tests.serve.test_ops import exact_with_gradients, near

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", batches())
def test_the_product_and_its_gradients_are_those_of_float64(case, dtype):
    with hopper_gemm.fallback("never"):
        assert exact_with_gradients(hopper_gemm.bmm, *(one.cuda() for one in batches(dtype)[case]))


def test_a_batch_whose_matrices_start_anywhere_is_multiplied():
    a, b = torch.randn(4, 3, 7, device="cuda").bfloat16(), torch.randn(4, 7, 5, device="cuda").bfloat16()
    assert near(hopper_gemm.bmm(a, b), a.double() @ b.double(), torch.bfloat16)


def test_a_captured_batch_and_a_compiled_one_have_the_bits_of_the_eager_one():
    a, b = (one.cuda() for one in batches()["rows"])
    expected = hopper_gemm.bmm(a, b)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = hopper_gemm.bmm(a, b)
    graph.replay()
    assert torch.equal(captured, expected)
    assert torch.equal(torch.compile(hopper_gemm.bmm, fullgraph=True)(a, b), expected)


def test_a_row_has_the_same_bits_alone_in_a_batch_and_beside_other_rows():
    a, b = torch.randn(4, 333, 1024, device="cuda").bfloat16(), torch.randn(4, 1024, 512, device="cuda").bfloat16()
    with hopper_gemm.batch_invariant():
        whole = hopper_gemm.bmm(a, b)
        assert same_bits(hopper_gemm.bmm(a[1:3, :7], b[1:3]), whole[1:3, :7])
        assert same_bits(hopper_gemm.matmul(a[2], b[2]), whole[2])
        assert same_bits(hopper_gemm.bmm(a, b[:1].expand(4, -1, -1))[3, :7], hopper_gemm.matmul(a[3, :7], b[0]))
