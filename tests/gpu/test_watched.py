"""On a GPU, by both ways, a watched call is its operator's and an output is changed as torch would change it."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import hopper_gemm
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve import kernels as serving
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.ops import linear_op, mm, mm_out
from tests.serve.layers import excess

pytestmark = pytest.mark.gpu

PROBLEM = GemmProblem(264, 520, 1032)


def kernels() -> list[KernelId]:
    """That of all products of these tests."""
    return [KernelId.of(serving.default_config(PROBLEM), PROBLEM)]


@pytest.fixture(params=["python", "extension"], autouse=True)
def way(monkeypatch, request):
    """What repeats launches."""
    native = request.getfixturevalue("extension") if request.param == "extension" else None
    monkeypatch.setattr(LAUNCHES, "native", None)
    monkeypatch.setattr(LAUNCHES, "table", {})
    LAUNCHES.use(native)
    yield
    if native is not None:
        native.forget()


def operands():
    m, n, k = PROBLEM.m, PROBLEM.n, PROBLEM.k
    return [torch.randn(*size, device="cuda").bfloat16() for size in ((m, k), (n, k))]


def right(x, w, found):
    return excess(found, x.double() @ w.double().t()) <= 1


CALLS = {
    "matmul": lambda x, w, out=None: hopper_gemm.matmul(x, w.t(), out=out),
    "linear": lambda x, w, out=None: hopper_gemm.linear(x, w, out=out),
}

calls = pytest.mark.parametrize("name", CALLS)


@calls
def test_an_output_that_autograd_saved_is_refused_in_the_backward_pass(name):
    x, w = operands()
    for _ in range(3):
        out = torch.zeros(PROBLEM.m, PROBLEM.n, device="cuda", dtype=x.dtype)
        y = (torch.ones_like(out, requires_grad=True) * out).sum()
        with torch.no_grad():
            CALLS[name](x, w, out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
        assert right(x, w, out)


def test_the_operator_raises_the_version_of_its_output():
    x, w = operands()
    out = torch.empty(PROBLEM.m, PROBLEM.n, device="cuda", dtype=x.dtype)
    for _ in range(3):
        before = out._version
        mm_out(x, w.t(), out)
        assert out._version > before


@calls
@pytest.mark.parametrize("known", [False, True])
def test_tracers_record_the_operator(name, known):
    x, w = operands()
    if known:
        CALLS[name](x, w)
    other, _ = operands()
    for tracing in ("real", "symbolic"):
        graph = make_fx(lambda x, w: CALLS[name](x, w), tracing_mode=tracing)(x, w)
        assert {"matmul": mm, "linear": linear_op}[name] in [node.target for node in graph.graph.nodes]
        assert right(other, w, graph(other, w))
    traced = torch.jit.trace(lambda x, w: CALLS[name](x, w), (x, w), check_trace=False)
    assert right(other, w, traced(other, w))


@calls
def test_an_inference_tensor_is_written_in_inference_mode_alone(name):
    x, w = operands()
    with torch.inference_mode():
        out = torch.empty(PROBLEM.m, PROBLEM.n, device="cuda", dtype=x.dtype)
        for _ in range(2):
            assert right(x, w, CALLS[name](x, w, out))
    CALLS[name](x, w, torch.empty_like(x @ w.t()))
    with pytest.raises(RuntimeError, match="inference tensor outside"):
        CALLS[name](x, w, out)


@calls
def test_a_lazy_clone_is_written_and_its_source_left(name):
    x, w = operands()
    for _ in range(3):
        source = torch.full((PROBLEM.m, PROBLEM.n), 7.0, device="cuda", dtype=x.dtype)
        clone = torch._lazy_clone(source)
        CALLS[name](x, w, clone)
        assert bool((source == 7).all())
        assert right(x, w, clone)
