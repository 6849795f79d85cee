"""An activation that follows our operator runs in its epilogue where it may, on a CPU: what Inductor compiles, and the
values, which are those of fp32 rounded once."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import hopper_gemm
from hopper_gemm.serve.inductor import folding, products
from hopper_gemm.serve.ops import ARGUMENTS, BY_NAME, SCHEMAS, arguments_of, call_of, linear_op, mm
from hopper_gemm.serve.reference import activated
from tests.serve.layers import excess

pytestmark = pytest.mark.timeout(400)

POINTWISE = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "silu": functional.silu,
    "relu": torch.relu,
}
"""Activations as models call them."""

M, N, K = 24, 40, 16


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


@pytest.fixture
def graphs(monkeypatch):
    """Folding, as if on a Hopper GPU; and the graphs that Inductor compiles, of each its calls."""
    seen = []

    class Noting(folding.CustomGraphPass):
        def __call__(self, graph):
            seen.append([node for node in graph.nodes if node.op == "call_function"])

        def uuid(self):
            return "notes the nodes of a graph"

    monkeypatch.setattr(folding, "able", lambda a, b: a.dtype == b.dtype and a.dtype in folding.DTYPES)
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True, post_grad_custom_post_pass=Noting()):
        hopper_gemm.inductor.enable()
        yield seen
        hopper_gemm.inductor.disable()
    torch._dynamo.reset()


def layers(graph):
    """The calls of our operators in a graph, as arguments of ``linear``."""
    return [folding._call(node) for node in graph if node.target in (mm, linear_op)]


def others(graph):
    """Names of the other operators in a graph that compute something."""
    moving = ("reshape", "view", "permute", "sym_size")
    names = [str(node.target) for node in graph if node.target not in (mm, linear_op)]
    return [name for name in names if not any(word in name for word in moving)]


def compiled(function, *given, dynamic=False):
    return torch.compile(function, fullgraph=True, dynamic=dynamic)(*given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_activation_runs_in_the_epilogue_of_our_product_and_nothing_is_rounded_before_it(graphs, dynamic, dtype):
    w, bias, b = normal(N, K, dtype=dtype), normal(N, dtype=dtype), normal(K, N, dtype=dtype)

    def model(x):
        for activate in POINTWISE.values():
            yield activate(hopper_gemm.matmul(x, w.t()))
            yield activate(hopper_gemm.matmul(x, b, out_dtype=torch.float32))
            yield activate(hopper_gemm.linear(x, w, bias, scale=0.5))

    def exact(x):
        x, wide = x.double(), w.double().t()
        for name in POINTWISE:
            for z in (x @ wide, x @ b.double(), 0.5 * (x @ wide) + bias.double()):
                yield activated(z, name)

    for m in (M, 33) if dynamic else (M,):
        x = normal(m, K, dtype=dtype)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        found = compiled(lambda x: list(model(x)), x, dynamic=None)
        assert [one.dtype for one in found] == [dtype, torch.float32, dtype] * len(POINTWISE)
        assert max(excess(one, right) for one, right in zip(found, exact(x), strict=True)) <= 1
    (graph,) = graphs
    assert [call.activation for call in layers(graph)] == [name for name in POINTWISE for _ in range(3)]
    assert {call.scale for call in layers(graph)} == {None, 0.5}
    assert others(graph) == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_patched_model_runs_its_activations_in_the_epilogue(graphs, dynamic):
    """Without a bias, a product of folded axes stands before a view; with one, a layer of any axes."""
    plain, biased = (torch.nn.Linear(K, K, bias=bias, dtype=torch.bfloat16) for bias in (False, True))
    model = torch.nn.Sequential(plain, torch.nn.GELU(), biased, torch.nn.SiLU())
    hopper_gemm.patch(model)
    with torch.no_grad():
        for m in (M, 33) if dynamic else (M,):
            x = normal(2, m, K)
            hidden = hopper_gemm.linear(x, plain.weight, activation="gelu")
            exact = functional.silu(hidden.double() @ biased.weight.double().t() + biased.bias.double())
            assert torch.allclose(compiled(model, x, dynamic=dynamic).double(), exact, rtol=0.02, atol=0.01)
    (graph,) = graphs
    assert [(call.activation, call.bias is not None) for call in layers(graph)] == [("gelu", False), ("silu", True)]
    assert others(graph) == []


def test_what_was_asked_of_the_product_is_asked_of_the_layer(graphs):
    w, x = normal(N, K), normal(M, K)
    compiled(lambda: torch.relu(hopper_gemm.matmul(x, w.t(), batch_invariant=True)))
    compiled(lambda: torch.relu(mm(x, w.t(), batch_invariant=None)))
    compiled(lambda: torch.relu(linear_op(x, w, scale=2.0, batch_invariant=True)))
    found = [layers(graph)[0] for graph in graphs]
    assert [(call.scale, call.batch_invariant) for call in found] == [(None, True), (None, None), (2.0, True)]


def unfolded():
    """Functions of x, w, bias and residual of whose activations none may be folded."""
    product, linear = hopper_gemm.matmul, hopper_gemm.linear
    gelu = functional.gelu
    return {
        "read twice": lambda x, w, *_: (z := product(x, w.t()), gelu(z)),
        "its view read twice": lambda x, w, *_: (z := product(x, w.t()).view(2, -1, N), gelu(z)),
        "read beside its view": lambda x, w, *_: (gelu((z := product(x, w.t())).view(2, -1, N)), z * 2),
        "a residual before it": lambda x, w, b, r: gelu(linear(x, w, b, residual=r)),
        "an activation before it": lambda x, w, b, r: gelu(linear(x, w, b, "silu")),
        "of another type": lambda x, w, b, r: gelu(product(x, w.t()).half()),
        "to another type": lambda x, w, b, r: gelu(product(x, w.t()).float()).half(),
        "a step between": lambda x, w, b, r: gelu(product(x, w.t()) + 1),
        "of a part": lambda x, w, b, r: gelu(product(x, w.t())[:, :8]),
        "n out of reach": lambda x, w, b, r: gelu(product(x, w.t()[:, :39])),
        "k out of reach": lambda x, w, b, r: gelu(product(x[:, :15], w.t()[:15])),
        "not ours": lambda x, w, b, r: gelu(x @ w.t()),
    }


def test_an_activation_stays_where_its_product_is_read_elsewhere_or_cannot_be_finished(graphs):
    """All cases in one graph, each of tensors of its own: it is compiled once."""
    cases = [(function, [normal(M, K), normal(N, K), normal(N), normal(M, N)]) for function in unfolded().values()]
    found = compiled(lambda: [function(*given) for function, given in cases])
    (graph,) = graphs
    assert "gelu" not in [call.activation for call in layers(graph)]
    assert others(graph).count("aten.erf.default") == len(cases)
    for one, (function, given) in zip(found, cases, strict=True):
        pairs = zip(tree_leaves(one), tree_leaves(function(*given)), strict=True)
        assert all(torch.allclose(ours.float(), right.float(), atol=0.05, rtol=0.02) for ours, right in pairs)


def test_a_backward_pass_keeps_what_it_reads(graphs):
    """gelu's reads the product, so that it is not folded; relu's reads what relu gave."""
    w = normal(N, K).requires_grad_()
    for activate, name in ((functional.gelu, None), (torch.relu, "relu")):
        graphs.clear()
        x = normal(M, K).requires_grad_()
        w.grad = None
        compiled(
            lambda x, activate=activate: activate(hopper_gemm.matmul(x, w.t())), x
        ).float().square().sum().backward()
        assert layers(graphs[0])[0].activation == name
        wide = [one.detach().double().requires_grad_() for one in (x, w)]
        activate(wide[0] @ wide[1].t()).square().sum().backward()
        for one, other in zip((x, w), wide, strict=True):
            assert float((one.grad.double() - other.grad).norm() / other.grad.norm()) < 0.01


def test_disabling_ends_it_and_the_caches_of_inductor_keep_both_apart(graphs):
    w, x = normal(N, K), normal(M, K)

    def folded():
        """The activation of each layer that is compiled, not found in a cache."""
        graphs.clear()
        torch._dynamo.reset()
        compiled(lambda x: functional.silu(hopper_gemm.matmul(x, w.t())), x)
        return [layers(graph)[0].activation for graph in graphs]

    with config.patch(force_disable_caches=False, fx_graph_cache=True), fresh_cache():
        assert folded() == ["silu"]
        assert folded() == [], "cached"
        hopper_gemm.inductor.disable()
        assert folded() == [None]


def test_what_is_on_no_hopper_gpu_is_not_folded(graphs, monkeypatch):
    monkeypatch.setattr(folding, "able", products.able)
    w = normal(N, K)
    compiled(lambda x: torch.relu(hopper_gemm.matmul(x, w.t())), normal(M, K))
    assert layers(graphs[0])[0].activation is None


@contextmanager
def held(*slots):
    """Passes of another's in places for passes."""
    with config.patch(dict.fromkeys(slots, print)):
        yield


def test_passes_of_others_stay_and_folding_takes_a_free_place_or_warns():
    first, second = folding.SLOTS
    with held(first):
        folding.start()
        folding.start()
        assert (getattr(config, first), getattr(config, second)) == (print, folding.folding())
        folding.stop()
        assert (getattr(config, first), getattr(config, second)) == (print, None)
    with held(first, second), pytest.warns(UserWarning, match="activations are not folded: other passes hold"):
        folding.start()
    assert (getattr(config, first), getattr(config, second)) == (None, None)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_arguments_of_an_operator_are_a_call_and_back(name):
    """A call of the operator in a graph is read as one."""
    given = tuple(range(len(ARGUMENTS[name])))
    call = call_of(name, *given)
    assert call.kind == name.removesuffix("_out")
    assert arguments_of(name, call) == given
    names = [one.name for one in BY_NAME[name]._schema.arguments]
    assert call_of(name, **dict(zip(names, given, strict=True))) == call
