"""The operators give matmul's product and its gradients, and torch's compilers see shapes and types of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import hopper_gemm
from hopper_gemm.serve.ops import bmm_op, mm, mm_out
from tests.serve.layers import with_gradients

TYPES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half a unit in the last place of each type, relative."""


def pair(m, n, k, dtype=torch.bfloat16, layouts="kk"):
    """Operands (m, k) and (k, n), each contiguous along the axis that is named."""
    a = torch.randn(m, k, dtype=dtype) if layouts[0] == "k" else torch.randn(k, m, dtype=dtype).t()
    b = torch.randn(n, k, dtype=dtype).t() if layouts[1] == "k" else torch.randn(k, n, dtype=dtype)
    return a, b


def recorded(*tensors):
    return [one.detach().requires_grad_() for one in tensors]


def near(found, exact, dtype):
    """Return True if each element is the exact one, rounded once, but for fp32 sums."""
    return torch.allclose(found.double(), exact, rtol=1.01 * TOLERANCE[dtype], atol=1e-4)


def exact_with_gradients(multiply, a, b):
    """Return True if the product and both gradients are those of float64, in the operands' type."""
    pairs = with_gradients(multiply, torch.matmul, (a, b))
    return all(near(found, right, a.dtype) and found.dtype == a.dtype for found, right in pairs)


@pytest.mark.parametrize("layouts", ["kk", "kn", "mk", "mn"])
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_are_products_of_the_float64_ones(layouts, dtype):
    assert exact_with_gradients(mm, *pair(24, 40, 16, dtype, layouts))


def test_a_compiled_call_makes_no_break_and_one_graph_for_all_m():
    counter, weight = CompileCounter(), torch.randn(40, 16, dtype=torch.bfloat16)
    layer = torch.compile(lambda x: hopper_gemm.matmul(x.relu(), weight.t()).relu(), fullgraph=True, backend=counter)
    for m in (8, 24, 33, 57):
        x = torch.randn(m, 16, dtype=torch.bfloat16)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert torch.equal(layer(x), mm(x.relu(), weight.t()).relu())
    assert counter.frame_count == 1


def test_a_compiled_call_has_gradients_and_writes_to_out():
    a, b = recorded(*pair(24, 40, 16))
    torch.compile(lambda: hopper_gemm.matmul(a, b).sum(), fullgraph=True, backend="aot_eager")().backward()
    expected = torch.autograd.grad(mm(a, b).sum(), (a, b))
    assert all(torch.equal(one.grad, other) for one, other in zip((a, b), expected, strict=True))
    a, b = pair(24, 40, 16)
    out = torch.zeros(24, 40, dtype=torch.bfloat16)
    write = torch.compile(lambda: hopper_gemm.matmul(a, b, out=out), fullgraph=True, backend="aot_eager")
    assert torch.equal(write(), mm(a, b))
    assert torch.equal(out, mm(a, b))


def test_what_matmul_refuses_the_operators_refuse_in_the_same_words():
    (a, b), square = pair(8, 16, 24), torch.randn(16, 16, dtype=torch.bfloat16)
    wrong = [
        (lambda: mm(a, b.t()), ValueError, r"a and b must be \(m, k\) and \(k, n\) but got \(8, 24\) and \(16, 24\)"),
        (lambda: mm(a, b.half()), TypeError, "must both be bfloat16 or both float16"),
        (lambda: mm(a, b, torch.float16), TypeError, "out_dtype must be torch.bfloat16"),
        (lambda: mm_out(a, b, torch.empty(8, 8)), ValueError, r"out must be \(8, 16\)"),
        (lambda: mm_out(square, square.t(), square), ValueError, "must not share memory"),
    ]
    for call, error, message in wrong:
        with pytest.raises(error, match=message):
            call()


class Asked(TorchDispatchMode):
    """Notes with which condition each product is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.conditions: list[bool | None] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (mm, mm_out, bmm_op):
            self.conditions.append(args[3] if len(args) > 3 else None)
        return func(*args, **kwargs or {})


def traced(call, leading=()) -> list[bool | None]:
    """The conditions of the products of a call on fake tensors, and of those of its gradients."""
    with FakeTensorMode(), Asked() as asked:
        a, b = recorded(*(one.expand(*leading, *one.shape).clone() for one in pair(24, 40, 16)))
        out = call(a, b)
    with asked:
        out.sum().backward()
    return asked.conditions


@pytest.mark.parametrize(("function", "leading"), [(hopper_gemm.matmul, ()), (hopper_gemm.bmm, (3,))])
def test_batch_invariance_reaches_the_operator_and_its_gradients_and_an_argument_outweighs_the_context(
    function, leading
):
    def within(a, b):
        with hopper_gemm.batch_invariant():
            return function(a, b)

    assert traced(function, leading) == [False] * 3
    assert traced(partial(function, batch_invariant=True), leading) == [True] * 3
    assert traced(within, leading) == [True] * 3
    with hopper_gemm.batch_invariant():
        assert traced(partial(function, batch_invariant=False), leading) == [False] * 3


def test_an_operator_without_a_condition_asks_for_none():
    assert traced(lambda a, b: mm(a, b)) == [None, False, False]


def test_a_compiled_call_follows_the_context_within_and_around_it():
    asked: list[bool] = []

    def backend(graph, _):
        asked.extend(node.args[3] for node in graph.graph.nodes if node.target == mm)
        return graph.forward

    def both(a, b):
        with hopper_gemm.batch_invariant():
            first = hopper_gemm.matmul(a, b)
        return first + hopper_gemm.matmul(a, b)

    a, b = pair(24, 40, 16)
    compiled = torch.compile(both, fullgraph=True, backend=backend)
    compiled(a, b)
    assert asked == [True, False]
    with hopper_gemm.batch_invariant():
        compiled(a, b)
    assert asked == [True, False, True, True]
    compiled(a, b)
    assert len(asked) == 4, "compiled once for each"


@pytest.mark.parametrize("name", ["mm", "mm_out", "linear", "linear_out", "swiglu", "bmm"])
def test_the_public_functions_bring_the_operators_of_a_gpu(name):
    assert all(map(callable, (hopper_gemm.matmul, hopper_gemm.linear, hopper_gemm.swiglu, hopper_gemm.bmm)))
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hopper_gemm::{name}", "CUDA")
