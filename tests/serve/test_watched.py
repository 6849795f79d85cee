"""A call that something watches is its operator's, and an output of the caller changes as torch would change it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import hopper_gemm
from hopper_gemm.serve import launches as room
from hopper_gemm.serve.ops import linear_op, linear_out_op, mm, mm_out
from tests.serve.test_matmul import random


@pytest.fixture(params=["first", "known"])
def known(request):
    return request.param == "known"


class Seen(TorchDispatchMode):
    """Notes operators, and hands each on in one of the ways that modes have."""

    def __init__(self, hand_on=None):
        super().__init__()
        self.seen, self.hand_on = [], hand_on

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        if self.hand_on is None:
            return func(*args, **(kwargs or {}))
        with self.hand_on():
            return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def call_in(kind, x, w, out=None):
    """A product or a layer of x (m, k) and w (n, k)."""
    if kind == "matmul":
        return hopper_gemm.matmul(x, w.t(), out=out)
    return hopper_gemm.linear(x, w, out=out)


OPERATORS = {"matmul": (mm, mm_out), "linear": (linear_op, linear_out_op)}

kinds = pytest.mark.parametrize("kind", OPERATORS)


def close(one, other):
    return torch.allclose(one, other, rtol=2e-2, atol=2e-2)


def operands(known, kind="matmul", out=None):
    """Operands of a call; with ``known`` its launch is kept, and that of the call with an output too."""
    x, w = random(24, 16), random(40, 16)
    if known:
        for given in (None, torch.empty(24, 40, dtype=x.dtype)):
            call_in(kind, x, w, given)
    return x, w


# Watched calls -------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("mode", [Seen, partial(Seen, torch._C._DisableTorchDispatch), Functions])
def test_a_mode_sees_the_operator_and_its_call_ends(launches, known, kind, into, mode):
    x, w = operands(known, kind)
    out = torch.empty(24, 40, dtype=x.dtype) if into else None
    with mode() as watching:
        found = call_in(kind, x, w, out)
    assert watching.seen.count(OPERATORS[kind][into]) == 1
    assert close(found, x @ w.t())


def test_modes_within_each_other_each_see_the_operator(launches, known):
    x, w = operands(known)
    with Functions() as functions, Seen() as outer, Seen() as inner:
        hopper_gemm.matmul(x, w.t())
    for mode in (functions, outer, inner):
        assert mode.seen.count(mm) == 1


def test_a_mode_that_calls_a_public_function_sees_its_operator_once_more(launches, known):
    class Again(Seen):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is mm and mm not in self.seen:
                self.seen.append(func)
                with self:
                    return hopper_gemm.matmul(*args[:2])
            return super().__torch_dispatch__(func, types, args, kwargs)

    x, w = operands(known)
    with Again() as mode:
        found = hopper_gemm.matmul(x, w.t())
    assert mode.seen.count(mm) == 2
    assert close(found, x @ w.t())


def test_a_config_is_run_within_a_function_mode_as_outside(launches):
    x, w = operands(True)
    with torch.device("cpu"):
        found = hopper_gemm.matmul(x, w.t(), config=hopper_gemm.GemmConfig())
    assert close(found, x @ w.t())


@kinds
@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic", "functionalized"])
def test_make_fx_traces_the_operator(launches, known, kind, tracing):
    x, w = operands(known, kind)
    call, mode = partial(call_in, kind), tracing
    if tracing == "functionalized":
        call, mode = torch.func.functionalize(call), "real"
    graph = make_fx(call, tracing_mode=mode)(x, w)
    assert OPERATORS[kind][0] in [node.target for node in graph.graph.nodes]
    other = random(24, 16)
    assert close(graph(other, w), other @ w.t())


@kinds
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_symbolic_sizes_has_the_operator(launches, known, kind, strict):
    class Model(torch.nn.Module):
        def __init__(self, w):
            super().__init__()
            self.w = torch.nn.Parameter(w, requires_grad=False)

        def forward(self, x):
            return call_in(kind, x, self.w)

    x, w = operands(known, kind)
    exported = torch.export.export(Model(w), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=strict)
    assert OPERATORS[kind][0] in [node.target for node in exported.graph.nodes]
    assert exported.module()(random(32, 16)).shape == (32, 40)


def test_a_level_of_forward_mode_is_the_operators(launches, known, monkeypatch):
    x, w = operands(known)
    asked = []
    monkeypatch.setattr(room, "by_operator", lambda call: asked.append(call.kind))
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(x, x)
        hopper_gemm.matmul(dual, w.t())
        hopper_gemm.linear(dual, w)
    assert asked == ["mm", "linear"]


@pytest.mark.parametrize("where", ["backward", "forward"])
def test_a_mode_around_a_backward_pass_sees_its_products(launches, known, where):
    x, w = operands(known)
    x.requires_grad_()
    for _ in range(2):  # the second time every launch is known
        out = hopper_gemm.matmul(x, w.t())
        with Seen() as mode:
            if where == "forward":
                hopper_gemm.matmul(x, w.t())
            else:
                out.sum().backward()
    assert mode.seen.count(mm) == 1


def test_selective_checkpointing_sees_the_operator_and_saves_its_output(launches, known):
    x, w = operands(known)
    x.requires_grad_()
    seen = []

    def policy(context, operator, *args, **kwargs):
        seen.append(operator)
        return CheckpointPolicy.MUST_SAVE if operator is mm else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    out = checkpoint(lambda x: hopper_gemm.matmul(x, w.t()).relu(), x, use_reentrant=False, context_fn=contexts)
    out.sum().backward()
    assert mm in seen
    right = x.detach().clone().requires_grad_()
    (right @ w.t()).relu().sum().backward()
    assert torch.allclose(x.grad, right.grad, rtol=2e-2, atol=2e-2)


def test_anomaly_and_deterministic_modes_change_nothing(launches, known):
    x, w = operands(known)
    x.requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            out = hopper_gemm.matmul(x, w.t())
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert close(out, x @ w.t())


# Outputs of the caller -----------------------------------------------------------------------


def outputs():
    """Outputs (24, 40) by how they lie: written in place, by another launch, or from a buffer."""
    return {
        "rows": torch.empty(24, 40),
        "off 16 bytes": torch.empty(24 * 40 + 1)[1:].view(24, 40),
        "columns": torch.empty(40, 24).t(),
    }


@kinds
@pytest.mark.parametrize("where", outputs())
@pytest.mark.parametrize("bf16", [True, False])
def test_an_output_that_autograd_saved_is_refused_in_the_backward_pass(launches, known, kind, where, bf16):
    x, w = operands(known, kind)
    dtype = torch.bfloat16 if bf16 else torch.float32
    for _ in range(2):
        out = outputs()[where].to(dtype).zero_()
        weight = torch.ones(24, 40, dtype=dtype, requires_grad=True)
        y = (weight * out).sum()
        before = out._version
        with torch.no_grad():
            call_in(kind, x, w, out)
        assert out._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_every_way_to_write_an_output_raises_its_version(launches):
    x, w = random(24, 16), random(40, 16)
    none, x_off, w_off, bf16 = random(0, 16), x[:, 1:], w[:, 1:], partial(torch.empty, 24, 40, dtype=x.dtype)
    ways = {
        "no rows": (lambda out: hopper_gemm.matmul(none, w.t(), out=out), torch.empty(0, 40, dtype=x.dtype)),
        "sums of none": (lambda out: hopper_gemm.matmul(x[:, :0], w[:, :0].t(), out=out), bf16()),
        "off 16 bytes": (lambda out: hopper_gemm.matmul(x_off, w_off.t(), out=out), bf16()),
        "by torch": (lambda out: hopper_gemm.matmul(x.double(), w.t().double(), out=out), torch.empty(24, 40).double()),
        "mm_out": (lambda out: mm_out(x, w.t(), out), bf16()),
        "mm_out on a GPU": (lambda out: room.on_gpu("mm_out", x, w.t(), out), bf16()),
        "linear_out": (lambda out: linear_out_op(x, w, out), bf16()),
        "linear_out on a GPU": (lambda out: room.on_gpu("linear_out", x, w, out), bf16()),
        "itself": (lambda out: hopper_gemm.linear(x, w, residual=out, out=out), torch.zeros(24, 40)),
        "an activation": (lambda out: hopper_gemm.linear(x, w, None, "gelu", out=out), bf16()),
    }
    for name, (write, out) in ways.items():
        for _ in range(3):
            before = out._version
            write(out)
            assert out._version > before, name


def test_a_new_output_is_at_its_first_version(launches):
    for known in (False, True):
        x, w = operands(known)
        assert hopper_gemm.matmul(x, w.t())._version == (x @ w.t())._version


@kinds
def test_an_inference_tensor_is_written_in_inference_mode_alone(launches, known, kind):
    with torch.inference_mode():
        x, w = operands(known, kind)
        out = torch.zeros(24, 40, dtype=x.dtype)
        call_in(kind, x, w, out)
        assert close(out, x @ w.t())
        out.zero_()
    x, w = operands(known, kind)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?i)inference tensor outside") as refused:
            call_in(kind, x, w, out)
        assert "\n" not in str(refused.value)
    assert not out.any()
    with torch.inference_mode():
        normal = call_in(kind, x.clone(), w, out)
    assert normal is out


@kinds
def test_inference_tensors_are_multiplied_and_never_saved_for_a_backward_pass(launches, known, kind):
    with torch.inference_mode():
        x, w = operands(known, kind)
    right = x @ w.t()
    for _ in range(2):
        assert close(call_in(kind, x, w), right)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            call_in(kind, x, w.clone().requires_grad_())


@kinds
def test_a_lazy_clone_is_written_and_its_source_left(launches, known, kind):
    x, w = operands(known, kind)
    for _ in range(2):
        source = torch.full((24, 40), 7.0, dtype=x.dtype)
        clone = torch._lazy_clone(source)
        call_in(kind, x, w, clone)
        assert bool((source == 7).all())
        assert close(clone, x @ w.t())


# Guards of what is known ---------------------------------------------------------------------


def test_one_tensor_given_twice_is_known_too(launches, monkeypatch):
    x, w = random(16, 16), random(16, 16)
    right = x @ x
    for _ in range(2):
        assert close(hopper_gemm.matmul(x, x), right)
        assert close(hopper_gemm.linear(x, w, residual=x), x @ w.t() + x)
        monkeypatch.setattr(room, "first_call", None)


def test_any_tensor_may_be_any_other(launches):
    x, w, row = random(16, 16), random(16, 16), random(1, 16)[0]
    for _ in range(3):
        assert close(hopper_gemm.linear(x, w, residual=w), x @ w.t() + w)
        assert close(hopper_gemm.linear(x, x, residual=x), x @ x.t() + x)
        assert close(hopper_gemm.linear(row, w, row), w @ row + row)
        assert close(hopper_gemm.linear(row, w, row, residual=row), w @ row + 2 * row)


def test_launches_of_one_key_are_told_apart_and_bounded(launches):
    for _ in range(2):
        for pitch in range(16, 16 + 8 * 40, 8):
            x, w = random(24, pitch)[:, :16], random(40, 16)
            assert close(hopper_gemm.matmul(x, w.t()), x @ w.t())
    assert max(map(len, room.LAUNCHES.table.values())) <= room.LAUNCHES.most_alike


def test_a_launch_kept_outside_of_autocast_is_none_within_it(launches):
    x, w = (random(*size).float() for size in ((24, 16), (40, 16)))
    for _ in range(2):
        assert hopper_gemm.matmul(x, w.t()).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert hopper_gemm.matmul(x, w.t()).dtype == torch.bfloat16


def test_a_parameter_without_recording_is_known_and_recorded_where_gradients_are(launches):
    x, w = random(24, 16), torch.nn.Parameter(random(40, 16))
    for recording in (False, True, False, True):
        with torch.set_grad_enabled(recording):
            assert hopper_gemm.linear(x, w).requires_grad is recording


def test_the_transpose_of_any_base_is_multiplied_as_it_is(launches):
    """A known product reads the base itself where that is the transpose, and no other base."""
    x, w = random(24, 16), random(16, 16)
    wide, typed = torch.cat((w, w), 1), w.view(torch.int16)
    turned = w.clone().t_()
    views = [w.t(), wide[:, :16].t(), typed.view(torch.bfloat16).t(), torch._neg_view(w).t(), w, turned, w.t().t().t()]
    for _ in range(2):
        for view in views:
            assert close(hopper_gemm.matmul(x, view), x @ view)
    w.t_()
    assert close(hopper_gemm.matmul(x, views[0]), x @ views[0])


def test_the_values_of_a_sparse_tensor_are_dense_operands(launches):
    x, values = random(24, 16), random(16, 40)
    sparse = torch.sparse_coo_tensor(torch.arange(16)[None], values, is_coalesced=True)
    for _ in range(2):
        assert close(hopper_gemm.matmul(x, sparse.values()), x @ values)
        assert close(hopper_gemm.matmul(x, sparse.values().t().contiguous().t()), x @ values)
