"""One table holds the launches of all calls: what is known launches again, and nothing else does."""

from __future__ import annotations

import inspect
from itertools import product as every

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import launches as room
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.ops import linear_op, swiglu_op
from tests.serve.launcher import ORDER, in_threads_while_tables_change, launcher
from tests.serve.test_linear import layer
from tests.serve.test_matmul import random


def test_a_product_and_a_layer_of_the_same_matrices_are_kept_apart(launches):
    x, w = random(16, 16), random(16, 16)
    for _ in range(2):
        assert torch.equal(hopper_gemm.matmul(x, w), x @ w)
        assert torch.equal(hopper_gemm.linear(x, w), x @ w.t())


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_second_layer_checks_and_loads_nothing(launches, monkeypatch, activation, scale):
    def both():
        x, w, bias, residual = layer()
        more = {"bias": bias, "activation": activation, "residual": residual, "scale": scale}
        assert torch.equal(hopper_gemm.linear(x, w, **more), linear_op(x, w, *more.values()))
        w = torch.cat((w, w))
        assert torch.equal(hopper_gemm.swiglu(x, w), swiglu_op(x, w))

    both()
    monkeypatch.setattr(room, "first_call", None)
    both()
    assert len(launches.loaded) == 2
    assert len(launches.made) == 4


@pytest.mark.parametrize("added", ["nothing", "a residual", "itself"])
@pytest.mark.parametrize("shape", [(24, 40), (3, 8, 40)], ids=["matrix", "leading axes"])
def test_a_second_layer_is_written_where_the_caller_says(launches, monkeypatch, added, shape):
    def written():
        x, w, bias, residual = layer(m=shape[:-1])
        out = torch.randn(shape).to(torch.bfloat16)
        residual = {"nothing": None, "a residual": residual, "itself": out}[added]
        expected = linear_op(x, w, bias, "silu", residual)
        with torch.no_grad():
            assert hopper_gemm.linear(x, w, bias, "silu", residual, out=out) is out
        assert torch.equal(out, expected)

    written()
    monkeypatch.setattr(room, "first_call", None)
    written()
    monkeypatch.undo()
    x, w, bias, _ = layer(m=shape[:-1])
    with torch.no_grad(), pytest.raises(ValueError, match="out must be"):
        hopper_gemm.linear(x, w, bias, "silu", out=torch.empty(2, 12, 40, dtype=torch.bfloat16))


def test_a_scales_value_is_no_part_of_what_is_known(launches):
    x, w, _, _ = layer()
    for scale in (0.5, 2.0, 3):
        assert torch.equal(hopper_gemm.linear(x, w, scale=scale), linear_op(x, w, scale=scale))
    assert len(launches.loaded) == 1


@pytest.mark.parametrize("which", ["x", "w", "bias", "residual", "out"])
def test_addresses_off_multiples_of_16_bytes_are_read_and_written_too(launches, which):
    def shifted(one):
        return torch.empty(one.numel() + 8, dtype=one.dtype)[1:].as_strided(one.shape, one.stride()).copy_(one)

    for turn in range(4):
        tensors = dict(zip(("x", "w", "bias", "residual"), layer(), strict=True), out=torch.zeros(3, 8, 40).bfloat16())
        if turn % 2:
            tensors[which] = shifted(tensors[which])
        x, w, bias, residual, out = tensors.values()
        assert hopper_gemm.linear(x, w, bias, "gelu", residual, out=out) is out
        assert torch.equal(out, linear_op(x, w, bias, "gelu", residual))


def test_an_output_may_be_what_is_added_but_shares_no_part_of_what_is_read(launches):
    memory = random(1, 4096)[0]
    x, w, bias = random(16, 32), random(32, 32), random(1, 32)[0]
    out = memory.as_strided((16, 32), (32, 1))
    shared = "out must not share memory with x, w, bias or a part of residual"
    for _ in range(2):
        expected = linear_op(x, w, None, None, out)
        assert torch.equal(hopper_gemm.linear(x, w, residual=out, out=out), expected)
        hopper_gemm.linear(x, w, memory.as_strided((32,), (1,), 512), out=out)
        for start in (8, 504):
            with pytest.raises(ValueError, match=shared):
                hopper_gemm.linear(x, w, residual=memory.as_strided((16, 32), (32, 1), start), out=out)
        with pytest.raises(ValueError, match=shared):
            hopper_gemm.linear(x, w, memory.as_strided((32,), (1,), 24), out=out)
        with pytest.raises(ValueError, match=shared):
            hopper_gemm.linear(memory.as_strided((16, 32), (32, 1), 264), w, bias, out=out)


def test_what_differs_in_an_output_is_another_launch(launches):
    """Its type, its pitch; of the others its address alone."""
    x, w = random(16, 24), random(8, 24)
    wide = torch.zeros(16, 16, dtype=x.dtype)
    for out in (wide[:, :8].contiguous(), wide[:, :8], wide[:, 8:], torch.zeros(16, 8)) * 2:
        hopper_gemm.matmul(x, w.t(), out=out)
        torch.testing.assert_close(out, (x @ w.t()).to(out.dtype), rtol=2e-2, atol=2e-2)
    assert len(launches.loaded) == 3


def test_the_bound_of_what_is_kept_is_that_of_both_ways(launches, monkeypatch):
    monkeypatch.setattr(LAUNCHES, "most", 8)
    for m, n in every(range(1, 9), (8, 16, 24)):
        a, b = random(m, 16), random(16, n)
        assert torch.equal(hopper_gemm.matmul(a, b), a @ b)
        assert len(LAUNCHES.table) <= 8
    for _ in range(2):
        assert torch.equal(hopper_gemm.matmul(a, b), a @ b)


def test_the_extension_repeats_no_launch_that_needs_more_than_its_matrices(launches):
    """Such as a workspace: the dynamic scheduler counts there."""
    if launches.native is None:
        pytest.skip("of the extension alone")
    a, b, out = random(16, 24), random(24, 8), random(16, 8)
    kernel = LoadedKernel(resolve(GemmConfig(scheduler="dynamic")), None, launcher(lambda *given: None), ORDER[0])
    assert not kernel.repeatable
    call = Call(a, b, kind="mm")
    LAUNCHES.record(LAUNCHES.setting(call), call, kernel, out)
    LAUNCHES.record(LAUNCHES.setting(call), call, lambda *given: None, out)
    assert launches.native.matmul(a, b, None, None, None) is None


def test_settings_have_another_id_after_the_tables_changed(by_python):
    call, other = Call(random(8, 8), random(8, 8)), Call(random(8, 8), random(8, 8), batch_invariant=True)
    first = LAUNCHES.setting(call)
    assert LAUNCHES.setting(call) == first != LAUNCHES.setting(other)
    CHANGES.happened()
    assert LAUNCHES.setting(call) > first


def test_threads_may_call_and_forget_at_once(launches):
    wrong = []

    def work(number):
        for turn in range(40):
            m = 1 + (turn * 7 + number) % 20
            a, w = torch.ones(m, 16, dtype=torch.bfloat16), torch.ones(8, 16, dtype=torch.bfloat16)
            found = hopper_gemm.matmul(a, w.t())
            if found.shape != (m, 8) or not bool((found == 16).all()):
                wrong.append((number, turn))

    in_threads_while_tables_change(work)
    assert wrong == []


def test_sizes_without_a_hash_are_traced():
    """As a symbolic make_fx traces them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w = random(8, 16), random(24, 16)
    graph = make_fx(lambda x, w: hopper_gemm.linear(x, w), tracing_mode="symbolic")(x, w)
    assert torch.equal(graph(x, w), linear_op(x, w))


CHANGES_OF_A_CALL = {
    "bias": lambda n, half: {"bias": torch.ones(n).to(half)},
    "activation": lambda n, half: {"activation": "gelu"},
    "residual": lambda n, half: {"residual": torch.ones(3, 8, n).to(half)},
    "scale": lambda n, half: {"scale": 0.5},
    "out_dtype": lambda n, half: {"out_dtype": torch.float32},
    "batch_invariant": lambda n, half: {"batch_invariant": True},
    "out": lambda n, half: {"out": torch.ones(3, 8, n).to(half)},
}
"""A value of each argument of a layer that is not its default."""


@pytest.mark.parametrize("name", CHANGES_OF_A_CALL)
def test_whatever_changes_a_launch_is_in_its_key(launches, monkeypatch, name):
    """Change one argument: the call is a first one, and gives its own result. A scaled layer never runs the kernel of
    one without a scale."""
    x, w, _, _ = layer()
    firsts, first_call = [], room.first_call
    monkeypatch.setattr(room, "first_call", lambda *given: firsts.append(given) or first_call(*given))
    n, half = w.shape[0], x.dtype
    with torch.no_grad():
        for more in ({}, CHANGES_OF_A_CALL[name](n, half), {}, CHANGES_OF_A_CALL[name](n, half)):
            expected = {key: value for key, value in more.items() if key not in ("batch_invariant", "out", "out_dtype")}
            product = linear_op(x, w, **expected)
            given = hopper_gemm.linear(x, w, **more)
            assert given.dtype == more.get("out_dtype", half)
            torch.testing.assert_close(given.to(half), product)  # another blocking of BLAS may round otherwise
    assert len(firsts) == 2 or name == "out"  # the extension runs one launch with an output and without
    assert set(CHANGES_OF_A_CALL) | {"x", "w"} >= set(inspect.signature(hopper_gemm.linear).parameters)
