"""The operators on a GPU: gradients of every layout and type, compiled calls, and no copy that nobody asked for."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from hopper_gemm import linear, matmul
from hopper_gemm.serve.ops import linear_op, mm, mm_out
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


def test_tangents_of_operators_are_those_of_torch():
    """By torch.func, dual numbers and compiled; a tangent that is lost would be zero."""
    x, w = operands(64, 128, 256)
    steps = torch.randn_like(x), torch.randn_like(w)
    calls = {
        "mm": (mm, torch.mm, (x, w), steps),
        "linear": (
            lambda x, w: linear_op(x, w, None, "silu"),
            lambda x, w: torch.nn.functional.silu(x @ w.t()),
            (x, w.t()),
            (steps[0], steps[1].t()),
        ),
    }
    for name, (ours, theirs, given, tangents) in calls.items():
        expected = torch.func.jvp(theirs, tuple(t.float() for t in given), tuple(t.float() for t in tangents))[1]
        for _ in range(2):  # first and known launches
            found = torch.func.jvp(ours, given, tangents)[1]
            with forward_ad.dual_level():
                dual = forward_ad.unpack_dual(ours(*map(forward_ad.make_dual, given, tangents))).tangent
        compiled = torch.compile(lambda *g, f=ours: torch.func.jvp(f, g[:2], g[2:])[1])(*given, *tangents)
        for tangent in (found, dual, compiled):
            assert float((tangent.float() - expected).abs().max()) <= 0.02 * float(expected.abs().max()), name


def test_autocast_casts_fp16_to_its_type_as_torch_does():
    x, w = torch.randn(64, 128, device="cuda").half(), torch.randn(256, 128, device="cuda").half()
    for to in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=to):
            right = torch.nn.functional.linear(x, w)
            for _ in range(2):
                assert linear(x, w).dtype == linear_op(x, w).dtype == matmul(x, w.t()).dtype == right.dtype == to


def test_flops_are_those_of_torch():
    def counted(function):
        a, b = recorded(*operands(64, 128, 256))
        with FlopCounterMode(display=False) as counter:
            function(a, b).sum().backward()
        return counter.get_total_flops()

    assert counted(mm) == counted(torch.mm)


def test_gradients_of_samples_are_those_of_torch():
    x, w = operands(64, 128, 256)

    def per_sample(function, *given):
        loss = lambda w, row: function(row[None], w).float().square().sum()  # noqa: E731
        return torch.vmap(torch.func.grad(loss), (None, 0))(given[1], given[0])

    found, right = per_sample(mm, x, w), per_sample(torch.mm, x.float(), w.float())
    assert float((found.float() - right).abs().max()) <= 0.02 * float(right.abs().max())
