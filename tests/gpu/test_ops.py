"""The operators on a GPU: gradients of every layout and type, compiled calls, and no copy that nobody asked for."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm import matmul
from hopper_gemm.serve.ops import mm, mm_out
from tests.serve.test_ops import exact_with_gradients, pair, recorded

pytestmark = pytest.mark.gpu

SIZES = (264, 520, 1032)


def operands(*sizes, dtype=torch.bfloat16, layouts="kk"):
    """Operands on the GPU, scaled so that sums stay small."""
    return [one.cuda() / one.shape[1] ** 0.5 for one in pair(*sizes, dtype=dtype, layouts=layouts)]


@pytest.mark.parametrize("layouts", ["kk", "kn", "mk", "mn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matmul_has_the_gradients_of_the_float64_product(layouts, dtype):
    assert exact_with_gradients(matmul, *operands(*SIZES, dtype=dtype, layouts=layouts))


def test_the_operators_pass_the_checks_of_torch():
    a, b = operands(64, 128, 256)
    torch.library.opcheck(mm, (*recorded(a, b), None))
    torch.library.opcheck(mm_out, (a, b, torch.empty(64, 128, device="cuda", dtype=a.dtype)))


def test_a_compiled_layer_gives_the_bits_of_the_eager_one_for_every_m():
    _, weight = operands(8, 512, 256)
    layer = torch.compile(lambda x: matmul(x, weight).relu(), fullgraph=True, dynamic=True)
    for m in (8, 100, 257):
        x = torch.randn(m, 256, device="cuda", dtype=torch.bfloat16)
        assert torch.equal(layer(x), matmul(x, weight).relu())


def test_a_training_step_is_captured_into_a_graph():
    a, b = recorded(*operands(256, 512, 128))

    def step():
        return torch.autograd.grad(mm(a, b).float().square().sum(), (a, b))

    expected = step()  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))


def test_autocast_multiplies_in_its_type():
    a, b = recorded(torch.randn(64, 128, device="cuda"), torch.randn(128, 256, device="cuda"))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = mm(a, b)
    out.float().sum().backward()
    assert (out.dtype, a.grad.dtype) == (torch.bfloat16, torch.float32)
