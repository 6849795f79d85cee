"""One row is left to Inductor where it multiplies it in a fused reduction, and to our operators elsewhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import hopper_gemm
from hopper_gemm.serve.inductor import one_row
from hopper_gemm.serve.inductor.one_row import NAMES, by_inductor
from hopper_gemm.serve.ops import BY_NAME, call_of

ONE, MORE = [(1, 64), (1, 1, 64), (64,)], [(2, 64), (1, 3, 64)]


def targets(name, sizes, tuned=True, device="cuda", **more):
    """Operators of the graph that Inductor gets of a call on fake tensors."""
    one_row.offer()
    wide = (64, 32) if name == "mm" else (32, 64)
    with FakeTensorMode(), config.patch(coordinate_descent_tuning=tuned):
        x, w = (torch.empty(size, dtype=torch.bfloat16, device=device) for size in (sizes, wide))
        call = partial(BY_NAME[name], **more)
        graph = make_fx(call, decomposition_table=select_decomp_table())(x, w).graph
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("sizes", ONE)
@pytest.mark.parametrize("name", NAMES)
def test_one_row_becomes_a_reduction(name, sizes):
    if name == "mm" and len(sizes) != 2:
        return
    found = targets(name, sizes, batch_invariant=False)
    assert not any("hopper_gemm" in target for target in found)
    assert any(target.startswith("aten.sum") for target in found) or len(sizes) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_inductor_multiplies_by_a_library_stays_ours(name):
    def ours(sizes=(1, 64), **more):
        return f"hopper_gemm.{name}.default" in targets(name, sizes, **{"batch_invariant": False} | more)

    assert not ours()
    assert all(ours(sizes) for sizes in MORE if name != "mm" or len(sizes) == 2)
    assert ours(tuned=False)
    assert ours(device="cpu")
    assert ours(batch_invariant=True)
    assert name == "swiglu" or ours(out_dtype=torch.float32)
    with hopper_gemm.fallback("never"):
        assert ours()


def test_a_call_of_one_row_has_the_same_product():
    x, w, wide = (torch.randn(size, dtype=torch.bfloat16) for size in ((1, 64), (64, 64), (128, 64)))
    follows = (torch.randn(64, dtype=torch.bfloat16), "gelu", x, 0.5)
    for name, given in (("mm", (x, w)), ("linear", (x, w, *follows)), ("swiglu", (x, wide))):
        found, wanted = by_inductor(call_of(name, *given)).double(), BY_NAME[name](*given).double()
        assert (found - wanted).norm() < 2**-6 * wanted.norm()


def test_torch_compile_takes_it_by_itself(monkeypatch):
    """The fake tensors that torch.compile makes of our operators offer the decomposition."""
    offered = []
    monkeypatch.setattr(one_row, "offer", lambda: offered.append(True))
    torch._dynamo.reset()
    w = torch.randn(32, 64, dtype=torch.bfloat16)
    torch.compile(lambda x: hopper_gemm.linear(x, w), backend="aot_eager")(torch.randn(1, 64, dtype=torch.bfloat16))
    assert offered
