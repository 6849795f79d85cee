"""linear and swiglu on a GPU: every finish on every kind of kernel, gradients, graphs, streams, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler.loader import load
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.serve.reference import activated
from tests.each import each
from tests.serve.layers import Case, cases, excess, layer_of, with_gradients
from tests.serve.test_linear import finished_layer, gated_layer, near

pytestmark = pytest.mark.gpu


def kernels() -> list[KernelId]:
    """Those of the cases."""
    return [KernelId.of(case.config, case.problem, finish=case.finish) for case in cases()]


def product(case: Case, layer) -> torch.Tensor:
    """What the kernel of a case writes into an output that holds NaN."""
    kernel = load(case.config, case.problem, finish=case.finish)
    out = torch.full(layer.exact.shape, float("nan"), device="cuda", dtype=case.out)
    kernel(layer.x, layer.w, out, layer.bias, layer.residual, layer.scale)
    return out


@each("case", cases())
def test_each_element_is_that_of_float64_rounded_once(case):
    layer = layer_of(case, "cuda")
    assert excess(product(case, layer), layer.exact) <= 1


def tensors(*shapes, dtype=torch.bfloat16):
    """Random tensors, weights scaled so that products have a deviation of about 1."""
    return [
        torch.randn(*one, device="cuda", dtype=dtype) / (one[-1] ** 0.5 if i else 1) for i, one in enumerate(shapes)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_linear_has_the_gradients_of_float64(activation, dtype):
    def ours(x, w, bias, residual):
        return hopper_gemm.linear(x, w, bias, activation, residual, 0.5)

    given = tensors((3, 100, 256), (520, 256), (520,), (3, 100, 520), dtype=dtype)
    pairs = with_gradients(ours, partial(finished_layer, activation=activation), given)
    assert all(near(found, exact, dtype) for found, exact in pairs)


def test_swiglu_has_the_gradients_of_float64():
    pairs = with_gradients(hopper_gemm.swiglu, gated_layer, tensors((2, 77, 256), (528, 256)))
    assert all(near(found, exact, torch.bfloat16) for found, exact in pairs)


@pytest.mark.parametrize("sizes", [(13, 21, 5), (64, 24, 100), (40, 20, 64), (0, 8, 8), (8, 8, 0)])
def test_what_one_launch_cannot_reach_is_finished_by_torch(sizes):
    m, n, k = sizes
    x, w = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    bias = torch.randn(n, device="cuda").bfloat16()
    exact = activated(x.double() @ w.double().t() + bias.double(), "gelu")
    assert excess(hopper_gemm.linear(x, w, bias, "gelu"), exact) <= 1 if m else True
    if n % 2 == 0:
        assert hopper_gemm.swiglu(x, w).shape == (m, n // 2)


def test_a_bias_and_a_residual_off_the_launchs_addresses_are_added_all_the_same():
    x, w, bias, residual = tensors((64, 128), (256, 128), (257,), (64, 257))
    wanted = hopper_gemm.linear(x, w, bias[1:].clone(), "silu", residual[:, 1:].contiguous())
    assert excess(hopper_gemm.linear(x, w, bias[1:], "silu", residual[:, 1:]), wanted.double()) <= 2


def test_layers_are_captured_into_a_graph_and_run_on_other_streams():
    x, w, bias, both = tensors((256, 128), (256, 128), (256,), (512, 128))
    eager = hopper_gemm.linear(x, w, bias, "gelu"), hopper_gemm.swiglu(x, both)
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        captured = hopper_gemm.linear(x, w, bias, "gelu"), hopper_gemm.swiglu(x, both)
    graph.replay()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        apart = hopper_gemm.linear(x, w, bias, "gelu"), hopper_gemm.swiglu(x, both)
    torch.cuda.synchronize()
    for one, *others in zip(eager, captured, apart, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_a_compiled_layer_gives_the_bits_of_the_eager_one_for_every_m():
    w, bias = tensors((8, 8), (512, 256), (512,))[1:]
    layer = torch.compile(lambda x: hopper_gemm.linear(x, w, bias, "silu").relu(), fullgraph=True, dynamic=True)
    for m in (8, 100, 257):
        x = torch.randn(m, 256, device="cuda", dtype=torch.bfloat16)
        assert torch.equal(layer(x), hopper_gemm.linear(x, w, bias, "silu").relu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_output_is_written_where_it_lies_and_nothing_around_it(dtype):
    x, w, bias = tensors((3, 100, 256), (520, 256), (520,))
    for call in range(3):
        around = torch.full((3, 100, 536), 7.0, device="cuda", dtype=dtype)
        out = around[..., 8:528]
        assert hopper_gemm.linear(x, w, bias, "gelu", out=out) is out
        assert torch.equal(out, hopper_gemm.linear(x, w, bias, "gelu", out_dtype=dtype)), call
        assert bool((around[..., :8] == 7).all() and (around[..., 528:] == 7).all())
    turned = torch.empty(100, 3, 520, device="cuda", dtype=dtype).transpose(0, 1)
    assert torch.equal(hopper_gemm.linear(x, w, bias, out=turned), hopper_gemm.linear(x, w, bias, out_dtype=dtype))


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [(300, 528, 1000), (1, 1040, 264), (2056, 4104, 776), (64, 512, 16384)])
def test_a_residual_that_is_the_output_is_replaced_by_the_sum(sizes, dtype, chained):
    """As many times as it is added to, launch behind launch: nothing reads what another launch or CTA left behind."""
    m, n, k = sizes
    x, w = tensors((m, k), (n, k))
    with hopper_gemm.chained() if chained else nullcontext():
        total = torch.randn(m, n, device="cuda", dtype=dtype)
        apart = total.clone()
        for _ in range(20):
            apart = hopper_gemm.linear(x, w, residual=apart, out_dtype=dtype)
            hopper_gemm.linear(x, w, residual=total, out=total)
        assert torch.equal(total, apart)


@each("case", [case for case in cases() if case.finish.residual])
def test_every_kind_of_kernel_adds_in_place(case):
    layer = layer_of(case, "cuda")
    kernel, out = load(case.config, case.problem, finish=case.finish), layer.residual.clone()
    kernel(layer.x, layer.w, out, layer.bias, out, layer.scale)
    assert torch.equal(out, product(case, layer))
