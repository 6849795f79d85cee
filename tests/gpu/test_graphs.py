"""On a GPU: products that need a workspace or padding, in CUDA graphs of every kind and in memory pools of others."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler import workspaces
from hopper_gemm.compiler.padded import PADDED
from hopper_gemm.compiler.store import KernelId, PaddingId
from hopper_gemm.compiler.workspaces import WORKSPACES
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import default_config
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.patch import HopperLinear

pytestmark = pytest.mark.gpu

DEEP, ODD = (16, 256, 16384), (33, 77, 65)
"""m, n and k of a product whose parts meet in a workspace, and of one whose operands are padded."""
OTHERS = [(48, 256, 16384), (16, 512, 16384), (65, 77, 129), (200, 75, 333)]


def kernels() -> list[KernelId | PaddingId]:
    problems = [GemmProblem(*sizes) for sizes in (DEEP, ODD, *OTHERS)]
    return [PaddingId(), *(KernelId.of(default_config(problem), problem) for problem in problems)]


@pytest.fixture(autouse=True)
def first_call(monkeypatch):
    """Nothing is known: no launch, and no workspace."""
    LAUNCHES.forget()
    monkeypatch.setattr(WORKSPACES, "_by_stream", {})
    monkeypatch.setattr(PADDED, "_by_stream", {})
    monkeypatch.setattr(workspaces, "CAPTURED", defaultdict(list))
    yield
    torch.cuda.synchronize()


def operands(m, n, k):
    """Small integers, so that sums are exact in any order."""
    a, b = (torch.randint(-2, 3, sides, device="cuda").to(torch.bfloat16) for sides in ((m, k), (n, k)))
    return a, b.t()


def right(out, a, b):
    return torch.equal(out, (a.float() @ b.float()).to(out.dtype))


def live_blocks(pool) -> int:
    """Allocations of a memory pool that are in use."""
    torch.cuda.synchronize()
    segments = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == tuple(pool)]
    return sum(block["state"] == "active_allocated" for one in segments for block in one["blocks"])


@pytest.mark.parametrize("sizes", [DEEP, ODD], ids=str)
def test_a_product_that_is_first_called_in_reduce_overhead_runs_and_stays_right(sizes):
    """Warmed up, recorded and replayed, and again after other shapes and eager calls."""
    torch.compiler.reset()
    compiled = torch.compile(lambda a, b: hopper_gemm.matmul(a, b).relu(), mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        for number in (sizes, *OTHERS, sizes, OTHERS[0], sizes):
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                a, b = operands(*number)
                out = compiled(a, b).clone()
                assert torch.equal(out, (a.float() @ b.float()).relu().to(out.dtype))
            hopper_gemm.matmul(*operands(*OTHERS[-1]))
    torch.compiler.reset()


def test_a_patched_model_trains_in_reduce_overhead():
    """With products of the backward pass, of which some need a workspace and some padding."""
    torch.compiler.reset()
    about = {"device": "cuda", "dtype": torch.bfloat16}
    model = torch.nn.Sequential(torch.nn.Linear(16384, 77, **about), torch.nn.ReLU(), torch.nn.Linear(77, 256, **about))
    for layer in (model[0], model[2]):
        layer.__class__ = HopperLinear
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(16, 16384, **about)
        model.zero_grad()
        model(x).float().square().sum().backward()
        expected = [one.grad.clone() for one in model.parameters()]
        model.zero_grad()
        compiled(x).float().square().sum().backward()
        for one, other in zip(model.parameters(), expected, strict=True):
            assert float((one.grad - other).float().norm() / other.float().norm()) < 0.02
    torch.compiler.reset()


@pytest.mark.parametrize("sizes", [DEEP, ODD], ids=str)
def test_a_captured_launch_leaves_nothing_in_the_pool_of_its_graph(sizes):
    a, b = operands(*sizes)
    out, graph = torch.zeros(sizes[0], sizes[1], device="cuda", dtype=a.dtype), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            hopper_gemm.matmul(a, b, out=out)
    assert live_blocks(graph.pool()) == 0
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert right(out, a, b)


@pytest.mark.parametrize("sizes", [DEEP, ODD], ids=str)
def test_an_eager_launch_leaves_nothing_in_a_pool_that_is_in_use(sizes):
    a, b = operands(*sizes)
    out, pool = torch.zeros(sizes[0], sizes[1], device="cuda", dtype=a.dtype), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        hopper_gemm.matmul(a, b, out=out)
    assert live_blocks(pool.id) == 0
    assert right(out, a, b)
    assert right(hopper_gemm.matmul(a, b), a, b)


def test_graphs_of_their_own_pools_may_be_replayed_on_two_streams_at_once_beside_eager_calls():
    """Of one problem too: neither words nor partial sums are shared."""
    graphs = []
    for sizes in (DEEP, DEEP, ODD, ODD):
        a, b = operands(*sizes)
        out, graph = torch.zeros(sizes[0], sizes[1], device="cuda", dtype=a.dtype), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            hopper_gemm.matmul(a, b, out=out)
        graphs.append((graph, out, a, b))
    streams = [torch.cuda.Stream() for _ in range(2)]
    for first, second in ((0, 1), (2, 3), (0, 2), (3, 1)):
        for _ in range(20):
            pair = graphs[first], graphs[second]
            for (graph, *_), stream in zip(pair, streams, strict=True):
                with torch.cuda.stream(stream):
                    for _ in range(10):
                        graph.replay()
            a, b = pair[0][2:]
            assert right(hopper_gemm.matmul(a, b), a, b)
            torch.cuda.synchronize()
            for _, out, a, b in pair:
                assert right(out, a, b)
                out.zero_()
            torch.cuda.synchronize()


def test_graphs_that_share_a_pool_are_right_in_any_order_and_after_it_is_emptied():
    pool, graphs = torch.cuda.graph_pool_handle(), []
    for sizes in (DEEP, ODD, *OTHERS):
        a, b = operands(*sizes)
        out, graph = torch.zeros(sizes[0], sizes[1], device="cuda", dtype=a.dtype), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            hopper_gemm.matmul(a, b, out=out)
        graphs.append((graph, out, a, b))
        torch.cuda.empty_cache()
        torch.full((2**26,), float("nan"), device="cuda")  # takes what was given back
    for graph, out, a, b in (*reversed(graphs), *graphs[::2]):
        out.zero_()
        graph.replay()
        assert right(out, a, b)


def test_forked_streams_of_one_capture_have_words_and_sums_of_their_own():
    pairs = [operands(*DEEP) for _ in range(2)]
    outs = [torch.zeros(DEEP[0], DEEP[1], device="cuda", dtype=torch.bfloat16) for _ in pairs]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            hopper_gemm.matmul(*pairs[1], out=outs[1])
        hopper_gemm.matmul(*pairs[0], out=outs[0])
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(20):
        for out in outs:
            out.zero_()
        graph.replay()
        assert all(right(out, *pair) for out, pair in zip(outs, pairs, strict=True))


def test_a_patched_layer_in_make_graphed_callables_has_its_outputs_and_gradients():
    (m, n, k), about = DEEP, {"device": "cuda", "dtype": torch.bfloat16}
    layer = torch.nn.Linear(k, n, **about)
    layer.__class__ = HopperLinear
    x = torch.randn(m, k, **about, requires_grad=True)
    expected = layer(x)
    gradients = torch.autograd.grad(expected.float().square().sum(), (x, *layer.parameters()))
    expected = expected.detach()  # a graph of autograd that lives ties the parameters to this stream, also torch's own
    graphed = torch.cuda.make_graphed_callables(layer, (torch.randn(m, k, **about, requires_grad=True),))
    for _ in range(3):
        out = graphed(x)
        assert torch.allclose(out, expected, atol=0.02, rtol=0.02)
        found = torch.autograd.grad(out.float().square().sum(), (x, *layer.parameters()))
        for one, other in zip(found, gradients, strict=True):
            assert float((one - other).float().norm() / other.float().norm()) < 0.02
