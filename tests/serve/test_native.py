"""The extension repeats known launches without Python, with the gradients and the refusals of Python's way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product as every

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import hopper_gemm
from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import fallback, launches, patch
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.ops import linear_op, mm, mm_out, swiglu_op
from hopper_gemm.serve.reference import finished, reference
from tests.serve.launcher import ORDER, Launches, in_threads_while_tables_change, launcher
from tests.serve.test_linear import layer
from tests.serve.test_matmul import Tagged, random
from tests.serve.test_ops import recorded


@pytest.fixture
def native(monkeypatch, extension):
    """A GPU whose launches the extension repeats."""
    return Launches(monkeypatch, native=extension)


@pytest.fixture
def no_python(native, monkeypatch):
    """A function after whose call Python launches nothing."""

    def end():
        monkeypatch.setattr(LAUNCHES, "table", None)
        monkeypatch.setattr(launches, "first_call", None)

    return end


def shifted(one):
    """A tensor like another, two bytes further."""
    memory = torch.empty(one.numel() + 8, dtype=one.dtype)
    return memory[1:].as_strided(one.shape, one.stride()).copy_(one)


def twice(call, *given):
    """What a call returns once its launches are known: those of its gradients too."""
    out = call(*given)
    if out.requires_grad:
        out.backward(torch.randn_like(out))
        for one in given:
            if isinstance(one, torch.Tensor):
                one.grad = None
    return call(*given)


def patched(x, w, bias=None):
    """A patched layer of these parameters."""
    return patch.HopperLinear.forward(Parameters(w, bias), x)


class Parameters:
    batch_invariant = None

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias


CALLS = {
    "matmul": (lambda x, w, bias: hopper_gemm.matmul(x[0], w.t()), lambda x, w, bias: x[0] @ w.t()),
    "matmul by rows": (lambda x, w, bias: hopper_gemm.matmul(x[0].t(), x[1]), lambda x, w, bias: x[0].t() @ x[1]),
    "fp32": (
        lambda x, w, bias: hopper_gemm.matmul(x[0], w.t(), out_dtype=torch.float32),
        lambda x, w, bias: x[0].float() @ w.float().t(),
    ),
    "linear": (lambda x, w, bias: hopper_gemm.linear(x, w), lambda x, w, bias: x @ w.t()),
    "fp32 with a bias": (
        lambda x, w, bias: hopper_gemm.linear(x, w, bias, out_dtype=torch.float32),
        lambda x, w, bias: torch.nn.functional.linear(x.float(), w.float(), bias.float()),
    ),
    "bias": (hopper_gemm.linear, torch.nn.functional.linear),
    "patched": (lambda x, w, bias: patched(x, w), lambda x, w, bias: x @ w.t()),
    "patched with a bias": (patched, torch.nn.functional.linear),
}
"""Calls that record their gradient without Python, on x (2, m, k), w (n, k) and bias (n,); and torch's."""


def tensors(m=24, n=40, k=16, dtype=torch.bfloat16, leading=2):
    return [torch.randn(*shape).to(dtype) for shape in ((leading, m, k), (n, k), (n,))]


# Known calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_a_known_call_runs_no_python(native, no_python, name):
    ours, theirs = CALLS[name]
    twice(ours, *tensors())
    no_python()
    given = tensors()
    assert torch.allclose(ours(*given), theirs(*given), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("scale", [None, 2, 0.5])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("into", [False, True])
def test_a_known_layer_with_what_follows_it_runs_no_python(native, no_python, activation, scale, into):
    def call():
        x, w, bias, residual = layer()
        out = torch.empty_like(residual) if into else None
        found = hopper_gemm.linear(x, w, bias, activation, residual, scale, out=out)
        assert out is None or found is out
        assert torch.equal(found, linear_op(x, w, bias, activation, residual, scale))

    with torch.no_grad():
        hopper_gemm.linear(*layer()[:3], activation, layer()[3], scale)
        call()
        no_python()
        call()
    assert len(native.finishes) == 1


def test_a_known_gated_layer_runs_no_python(native, no_python):
    def call():
        x, w = random(24, 16), random(80, 16)
        assert torch.equal(hopper_gemm.swiglu(x, w), swiglu_op(x, w))

    call()
    no_python()
    call()
    x, w = random(24, 16), random(80, 16)
    assert native.native.linear(x, w, None, "swiglu", None, None, None, None, None) is None, "it is no activation"


# Left to Python ------------------------------------------------------------------------------

A, B, OUT = random(16, 24), random(8, 24).t(), random(16, 8)


class Mode(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


OTHERS = {
    "more rows": (random(17, 24), B, None, None, None),
    "another pitch": (random(16, 32)[:, :24], B, None, None, None),
    "another type": (A.half(), B.half(), None, None, None),
    "float64": (A.double(), B.double(), None, None, None),
    "types that differ": (A, B.half(), None, None, None),
    "three axes": (A[None], B, None, None, None),
    "an address off a multiple of 16 bytes": (shifted(A), B, None, None, None),
    "a negated view": (torch._neg_view(A), B, None, None, None),
    "a subclass": (A.as_subclass(Tagged), B, None, None, None),
    "sparse": (A.to_sparse(), B, None, None, None),
    "without memory": (A.to("meta"), B.to("meta"), None, None, None),
    "no tensor": (3, B, None, None, None),
    "None": (None, B, None, None, None),
    "an output of another shape": (A, B, random(16, 9), None, None),
    "an output of another type": (A, B, OUT.half(), None, None),
    "an output that is an operand": (A, B, A[:, :8], None, None),
    "an output that is no tensor": (A, B, 3, None, None),
    "an output with a gradient": (A, B, OUT.clone().requires_grad_(), None, None),
    "a gradient and an output": (A.clone().requires_grad_(), B, OUT, None, None),
    "an output of another type than is said": (A, B, OUT, torch.float32, None),
    "a type that is none": (A, B, None, "float32", None),
    "batch invariance": (A, B, None, None, True),
    "a condition that cannot be hashed": (A, B, None, None, []),
}
"""Arguments of a product, of which ``A, B`` alone is known, in both types of output."""


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_in_anything_is_left_to_python(native, name):
    for dtype in (None, torch.float32):
        hopper_gemm.matmul(A, B, out_dtype=dtype)
        assert native.native.matmul(A, B, None, dtype, None) is not None
    made = len(native.made)
    assert native.native.matmul(*OTHERS[name]) is None
    assert len(native.made) == made


X, W, BIAS, RESIDUAL = layer()
KNOWN_LAYER = {"x": X, "w": W, "bias": BIAS, "residual": RESIDUAL, "activation": "gelu", "scale": 0.5}
OTHER_LAYERS = {
    "no bias": {"bias": None},
    "no residual": {"residual": None},
    "another activation": {"activation": "silu"},
    "no activation": {"activation": None},
    "an activation that there is not": {"activation": ["gelu"]},
    "a scale that is no number": {"scale": torch.ones(())},
    "an integer scale": {"scale": 2},
    "a scale that no integer holds": {"scale": 2**70},
    "a matrix as bias": {"bias": BIAS[None]},
    "a shifted bias": {"bias": shifted(BIAS)},
    "leading axes that take a copy": {"x": X.transpose(0, 1).contiguous().transpose(0, 1)},
    "other leading axes of the residual": {"residual": RESIDUAL.view(24, 40)},
    "an element": {"x": X[0, 0, 0]},
    "no rows": {"x": X[:0]},
    "an output of another shape": {"out": torch.empty(24, 40, dtype=X.dtype)},
    "an output that lies otherwise": {"out": torch.empty(3, 8, 48, dtype=X.dtype)[..., 8:]},
    "another output": {"out_dtype": torch.float32},
    "a gradient": {"x": X.clone().requires_grad_()},
}


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_a_layer_that_differs_in_anything_is_left_to_python(native, name):
    hopper_gemm.linear(**KNOWN_LAYER)
    names = "x", "w", "bias", "activation", "residual", "scale", "out_dtype", "batch_invariant", "out"
    known = [KNOWN_LAYER.get(name) for name in names]
    assert torch.equal(native.native.linear(*known), linear_op(*known[:6]))
    other = {**KNOWN_LAYER, **OTHER_LAYERS[name]}
    assert native.native.linear(*map(other.get, names)) is None


@pytest.mark.parametrize("setting", ["chained", "batch-invariant", "never", "faster"])
def test_the_settings_of_a_thread_are_part_of_what_is_known_to_it(native, setting):
    contexts = {
        "chained": hopper_gemm.chained,
        "batch-invariant": hopper_gemm.batch_invariant,
        "never": lambda: hopper_gemm.fallback("never"),
        "faster": lambda: hopper_gemm.fallback("faster"),
    }
    hopper_gemm.matmul(A, B)
    with contexts[setting](), ThreadPoolExecutor(1) as other:
        assert native.native.matmul(A, B, None, None, None) is None
        assert other.submit(native.native.matmul, A, B, None, None, None).result() is not None
        hopper_gemm.matmul(A, B)
        assert native.native.matmul(A, B, None, None, None) is not None
    assert len(native.loaded) == 2


def test_a_patched_layer_is_known_as_one_that_torch_may_run(native):
    """It falls back where torch is faster, unless nothing may."""
    x, w, bias = tensors()
    patched(x, w, bias)
    assert native.native.layer(x, w, bias, None) is not None
    assert native.native.linear(x, w, bias, None, None, None, None, None, None) is None
    with hopper_gemm.fallback("faster"):
        assert native.native.linear(x, w, bias, None, None, None, None, None, None) is not None
    with hopper_gemm.fallback("never"):
        assert native.native.layer(x, w, bias, None) is None
    assert native.native.layer(x, w, bias.float(), None) is None, "a bias of another type"
    assert fallback.POLICY.fallback == "unsupported"


def test_what_was_forgotten_is_asked_for_again(native):
    a, b = recorded(A, B)
    hopper_gemm.matmul(a, b).sum().backward()
    out = hopper_gemm.matmul(a, b)
    CHANGES.happened()
    assert native.native.matmul(A, B, None, None, None) is None
    loaded = len(native.loaded)
    out.sum().backward()
    assert len(native.loaded) == loaded + 2, "the products of a backward pass too"
    hopper_gemm.matmul(A, B)
    assert native.native.matmul(A, B, None, None, None) is not None


def test_an_error_of_the_kernel_is_the_callers(native, monkeypatch):
    def fails(*given):
        raise ValueError("no such launch")

    hopper_gemm.matmul(A, B)
    setting = LAUNCHES.setting(Call(A, B, kind="mm"))
    failing = launcher(fails)
    native.native.record(failing.__chandle__(), ORDER, setting, True, A, B, OUT)
    table = {key: tuple(one._replace(kernel=fails) for one in entries) for key, entries in LAUNCHES.table.items()}
    monkeypatch.setattr(LAUNCHES, "table", table)
    for _ in range(2):
        assert native.native.matmul(A, B, None, None, None) is None
        with pytest.raises(ValueError, match="no such launch"):
            hopper_gemm.matmul(A, B)


def test_an_error_in_a_backward_pass_is_the_callers(native, monkeypatch):
    def fails(*given, **named):
        raise ValueError("no such kernel")

    given = recorded(*tensors())
    out = twice(hopper_gemm.linear, *given)
    CHANGES.happened()
    monkeypatch.setattr(launches, "kernel_for", fails)
    with pytest.raises(ValueError, match="no such kernel"):
        out.sum().backward()


# Gradients -----------------------------------------------------------------------------------


def gradients(out, given):
    incoming = torch.arange(out.numel()).reshape(out.shape).to(out.dtype) / out.numel()
    return torch.autograd.grad(out, given, incoming, allow_unused=True, retain_graph=True)


def alike(found, right):
    """Return True if gradients agree but for roundings, in their types too."""
    return all(
        one is other is None
        or (one.dtype == other.dtype and float((one.double() - other.double()).norm() / other.double().norm()) < 8e-3)
        for one, other in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_torchs_and_none_is_made_that_nobody_wants(native, no_python, name, wanted):
    ours, theirs = CALLS[name]
    given = tensors()
    for at in wanted:
        given[at].requires_grad_()
    twice(ours, *given)
    made = len(native.made)
    no_python()
    out, right = ours(*given), theirs(*given)
    assert out.requires_grad == right.requires_grad
    if not out.requires_grad:
        assert out.grad_fn is None
        return
    assert ("hopper_gemm_mm" if "matmul" in name or name == "fp32" else "hopper_gemm_linear") in out.grad_fn.name()
    leaves = [given[at] for at in wanted]
    assert alike(gradients(out, leaves), gradients(right, leaves))
    if name != "matmul by rows" and "bias" not in name:
        assert len(native.made) - made == 1 + len({*wanted} - {2})


@pytest.mark.parametrize("name", ["matmul", "linear", "patched", "patched with a bias"])
def test_the_gradient_of_a_weight_lies_as_the_weight_does(native, name):
    """Else autograd copies it."""
    x, w, bias = tensors()
    (w,) = recorded(w)
    out = twice(CALLS[name][0], x, w, bias)
    assert gradients(out, [w])[0].stride() == w.stride()


def test_the_gradient_of_a_bias_is_rounded_once(native):
    x, w, _ = tensors(m=2048)
    (bias,) = recorded(torch.zeros(40, dtype=torch.bfloat16))
    out = twice(hopper_gemm.linear, x, w, bias)
    incoming = torch.randn_like(out)
    out.backward(incoming)
    exact = incoming.double().sum((0, 1))
    assert bool(((bias.grad.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-3).all())


@pytest.mark.parametrize("shape", [(16,), (1, 16), (5, 16), (2, 3, 4, 16)], ids=str)
def test_a_layer_has_gradients_whatever_its_leading_axes(native, shape):
    x, (_, w, bias) = torch.randn(shape).to(torch.bfloat16), tensors()
    given = recorded(x, w, bias)
    for _ in range(2):
        out, right = hopper_gemm.linear(*given), torch.nn.functional.linear(*given)
        assert out.shape == right.shape
        assert alike(gradients(out, given), gradients(right, given))


@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_without_places_of_its_own_is_multiplied_too(native, name):
    """That of a sum is one element, expanded."""
    ours, theirs = CALLS[name]
    given = recorded(*tensors())
    twice(ours, *given)
    found, right = (torch.autograd.grad(f(*given).sum(), given, allow_unused=True) for f in (ours, theirs))
    assert alike(found, right)


def test_an_operand_that_was_changed_after_the_call_is_refused(native):
    given = recorded(*tensors())
    twice(hopper_gemm.linear, *given)
    out = hopper_gemm.linear(*given)
    with torch.no_grad():
        given[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_graph_that_was_freed_is_refused(native):
    given = recorded(*tensors())
    out = twice(hopper_gemm.linear, *given)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_hooks_of_tensors_nodes_and_modules_are_called(native):
    module = torch.nn.Linear(16, 40, dtype=torch.bfloat16)
    module.__class__ = patch.HopperLinear
    x = tensors()[0].requires_grad_()
    twice(module, x)
    called = []
    module.register_full_backward_hook(lambda *given: called.append("module"))
    module.weight.register_hook(lambda gradient: called.append("weight") or 2 * gradient)
    module.weight.register_post_accumulate_grad_hook(lambda one: called.append("accumulated"))
    out = module(x)
    out.register_hook(lambda gradient: called.append("out"))
    out.grad_fn.register_hook(lambda *given: called.append("node"))
    out.sum().backward()
    assert sorted(called) == ["accumulated", "module", "node", "out", "weight"]


@pytest.mark.parametrize("name", CALLS)
def test_autocast_casts_fp32_and_gradients_come_back_in_it(native, no_python, name):
    ours, theirs = CALLS[name]
    given = recorded(*tensors(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        twice(ours, *given)
        no_python()
        out, right = ours(*given), theirs(*given)
    assert out.dtype == (torch.float32 if "fp32" in name else torch.bfloat16)
    found = gradients(out, given)
    assert {one.dtype for one in found if one is not None} == {torch.float32}
    assert alike(found, gradients(right, given))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours(*given), out)


@pytest.mark.parametrize("known", [False, True])
def test_within_autocast_nothing_is_cast_for_a_launch_that_is_not_known(native, known):
    x, w, bias = tensors(dtype=torch.float32)
    calls = [
        lambda: native.native.matmul(x[0], w.t(), None, None, None),
        lambda: native.native.linear(x, w, bias, None, None, None, None, None, None),
        lambda: native.native.layer(x, w, bias, None),
    ]
    rounded = [one.bfloat16() for one in (x if known else x[:, :8], w, bias)]
    hopper_gemm.matmul(rounded[0][0], rounded[1].t())
    hopper_gemm.linear(*rounded)
    patched(*rounded)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for call in calls:
            with torch.autograd.profiler.profile() as profile:
                assert (call() is not None) is known
            assert ("aten::_to_copy" in [event.name for event in profile.function_events]) is known


def test_a_layer_checkpointed_by_reentry_has_the_same_gradients(native):
    """The other way to checkpoint is in test_eager."""
    given = recorded(*tensors())
    right = gradients(twice(hopper_gemm.linear, *given), given)
    again = checkpoint(hopper_gemm.linear, *given, use_reentrant=True)
    again.backward(torch.arange(again.numel()).reshape(again.shape).to(again.dtype) / again.numel())
    assert all(torch.equal(one.grad, other) for one, other in zip(given, right, strict=True))


def test_threads_multiply_and_record_at_once_while_launches_are_forgotten(native):
    wrong = []
    cases = [(m, n) for m, n in every((8, 16, 24), (16, 40))]

    def work(number):
        for turn in range(40):
            m, n = cases[(turn + number) % len(cases)]
            x, w, bias = recorded(*(torch.ones_like(one) for one in tensors(m, n)))
            out = hopper_gemm.linear(x, w, bias)
            out.sum().backward()
            if not (bool((out == 17).all()) and bool((x.grad == n).all()) and bool((w.grad == 2 * m).all())):
                wrong.append((number, turn))

    in_threads_while_tables_change(work)
    assert wrong == []


# Operators -----------------------------------------------------------------------------------


OPERATORS = {name: partial(launches.on_gpu, name) for name in ("mm", "mm_out", "linear", "swiglu")}
"""Operators of the extension, and the functions that run what is not known."""


@pytest.fixture
def operators(native):
    """The extension's operators on a CPU, in place of the references."""
    handles = [native.native.implement(name, function, "CPU") for name, function in OPERATORS.items()]
    yield native
    handles.clear()
    for operator in (mm, mm_out, linear_op, swiglu_op):
        operator._dispatch_cache.clear()  # where torch's tracers look kernels up; it learns of Python's alone


OPERATOR_CALLS = {
    "mm": (lambda x, w, bias: mm(x[0], w.t()), lambda x, w, bias: x[0] @ w.t()),
    "fp32": (
        lambda x, w, bias: mm(x[0], w.t(), torch.float32, True),
        lambda x, w, bias: x[0].float() @ w.float().t(),
    ),
    "product": (lambda x, w, bias: linear_op(x, w), lambda x, w, bias: x @ w.t()),
    "bias": (lambda x, w, bias: linear_op(x, w, bias), torch.nn.functional.linear),
}
"""Calls of operators that record their gradient without Python; and torch's."""


@pytest.mark.parametrize("name", OPERATOR_CALLS)
def test_a_known_operator_runs_no_python_and_has_torchs_gradients(operators, no_python, name):
    ours, theirs = OPERATOR_CALLS[name]
    twice(ours, *recorded(*tensors()))
    no_python()
    given = recorded(*tensors())
    out, right = ours(*given), theirs(*given)
    assert "hopper_gemm" in out.grad_fn.name()
    assert alike(gradients(out, given), gradients(right, given))
    with torch.inference_mode():
        assert torch.equal(ours(*given), out)


@pytest.mark.parametrize("name", OPERATOR_CALLS)
def test_an_operator_that_is_not_known_is_run_by_its_function_with_its_gradients(operators, name):
    ours, theirs = OPERATOR_CALLS[name]
    given = recorded(*tensors())
    out = ours(*given)
    assert "hopper_gemm" in out.grad_fn.name()
    assert alike(gradients(out, given), gradients(theirs(*given), given))


def test_operators_without_a_gradient_of_their_own_run_no_python_either(operators, no_python):
    def call():
        (x, w, bias, residual), out = layer(), torch.empty(24, 40, dtype=torch.bfloat16)
        assert mm_out(x.flatten(0, 1), w.t(), out) is None
        assert torch.equal(out, mm(x.flatten(0, 1), w.t()))
        z = x.float() @ w.float().t()
        found = linear_op(x, w, bias, "gelu", residual, 0.5)
        assert torch.equal(found, finished(z, Call(x, w, bias, "gelu", residual, 0.5)).bfloat16())
        gated = torch.cat((w, w))
        assert torch.equal(swiglu_op(x, gated), reference(Call(x, gated, kind="swiglu")))

    call()
    no_python()
    call()


def test_operators_refuse_what_they_refuse_without_the_extension(operators):
    x, w, bias, _ = layer()
    with pytest.raises(ValueError, match=r"x and w must be"):
        linear_op(x, w.t())
    with pytest.raises(ValueError, match=r"bias must be \(40,\)"):
        linear_op(x, w, bias[:8])
    with pytest.raises(ValueError, match="activation must be"):
        linear_op(x, w, bias, "swiglu")
    with pytest.raises(ValueError, match="a and b must be"):
        mm(A.clone().requires_grad_(), A)
    with pytest.raises(RuntimeError, match="out must be None where a gradient is recorded"), torch.enable_grad():
        hopper_gemm.matmul(A.clone().requires_grad_(), B, out=OUT)


@pytest.mark.parametrize("known", [False, True])
def test_operators_pass_the_checks_of_torch(operators, known):
    x, w, bias, residual = recorded(*layer())
    rows = x.detach().flatten(0, 1).clone().requires_grad_()
    calls = [
        (mm, (rows, w.detach().t().clone().t().t().requires_grad_())),
        (mm_out, (rows.detach(), w.detach().t(), torch.empty(24, 40, dtype=rows.dtype))),
        (linear_op, (x, w, bias, "gelu", residual, 0.5)),
        (linear_op, (x, w, bias)),
        (swiglu_op, (x, w)),
    ]
    for operator, given in calls:
        if known:
            with torch.no_grad():
                operator(*given)
        torch.library.opcheck(operator, given)


def test_operators_compile_and_what_is_compiled_runs_no_python(operators, no_python):
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias, dtype=torch.bfloat16) for bias in (True, False)))
    for module in model:
        module.__class__ = patch.HopperLinear
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for trial in range(3):
        if trial == 2:
            no_python()
        x = random(24, 16).requires_grad_()
        found = torch.autograd.grad(compiled(x).sum(), (x, *model.parameters()))
        if trial < 2:
            right = torch.autograd.grad(model(x).sum(), (x, *model.parameters()))
            assert alike(found, right)


def test_operators_are_seen_by_modes_batched_by_vmap_and_faked(operators):
    x, w = random(16, 16), random(24, 16)
    mm(x, w.t())
    with Mode() as mode:
        out = mm(x.clone().requires_grad_(), w.t())
    assert mm in mode.seen
    assert "hopper_gemm" in out.grad_fn.name()
    assert torch.equal(torch.vmap(lambda x: mm(x, w.t()))(x.expand(3, 16, 16))[2], mm(x, w.t()))
    with FakeTensorMode() as faked:
        a, b = faked.from_tensor(x).requires_grad_(), faked.from_tensor(w).t()
        mm(a, b).sum().backward()
        assert a.grad.shape == (16, 16)


def test_what_the_extension_implements_ends_with_its_handle(native):
    handles = [native.native.implement("mm", lambda *given: A, "CPU")]
    assert mm(A, B) is A
    handles.clear()
    assert torch.equal(mm(A, B), (A.float() @ B.float()).bfloat16())
    with pytest.raises(RuntimeError):
        native.native.implement("bmm", lambda *given: A, "CPU")
