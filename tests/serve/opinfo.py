"""torch's own samples for mm, addmm, bmm and linear, run by our functions and by torch's in the same ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import hopper_gemm
from hopper_gemm.serve.checks import DTYPES

try:
    from torch.testing._internal.common_methods_invocations import op_db
except ImportError as error:  # a module of torch's tests that this machine lacks, such as expecttest
    pytest.skip(f"torch.testing._internal cannot be imported: {error}", allow_module_level=True)

WHOLE = (torch.bfloat16, torch.float16)
"""Types of which every sample runs."""
PARTS = (torch.float32, torch.float64, torch.int64, torch.complex64)
"""Types of which every third sample runs: none reaches the kernel."""

TOLERANCE = {
    torch.bfloat16: 2**-5,
    torch.float16: 2**-8,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.complex64: 1e-5,
}
"""Largest error of an element by type, as a share of the largest element; integers are equal."""


class Difference(NamedTuple):
    """What is meant to differ from torch.

    Args:
        call: how the lines of :class:`Tally` that it explains begin.
        what: of our call.
        reason: why it is meant.
    """

    call: str
    what: str
    reason: str


DIFFERENCES = (
    Difference(
        "mm error: out of another shape",
        "`out` of another shape is refused",
        "torch resizes it, with a warning that a later version will not",
    ),
    Difference(
        "nn.functional.linear error: a weight of one axis",
        "a weight of one axis is refused by `linear`",
        "it is a matrix (n, k), whose n is the last axis of the result",
    ),
    Difference(
        "mm error: devices",
        "a meta tensor beside one that has memory is refused",
        "torch takes one on a CPU for a meta tensor, and refuses one on a GPU",
    ),
)
"""All of them; docs/works-with.md prints the list."""


class Sample(NamedTuple):
    """Arguments of a call: tensors, of which derivatives are taken where their type has any, and all else."""

    tensors: tuple[torch.Tensor, ...]
    theirs: Callable[..., torch.Tensor]
    ours: Callable[..., torch.Tensor]


def addmm(source: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: Any, layer: Any) -> torch.Tensor:
    """torch.addmm by a layer: what is added is its bias if it is a vector, else its residual."""
    scale = None if alpha == 1 else alpha
    n = b.shape[-1]
    if source.shape == (n,):
        return layer(a, b.t(), source, scale=scale)
    return layer(a, b.t(), residual=source.broadcast_to(a.shape[0], n).contiguous(), scale=scale)


def standing_in(name: str, sample: Any, entry: Any) -> Sample | str:
    """A sample with torch's function and ours; or the reason why ours has no such call. Of torch.addmm's samples the
    tensors and a real alpha run: a layer adds no multiple of a matrix (beta)."""
    given, named = (sample.input, *sample.args), dict(sample.kwargs)
    tensors = tuple(value for value in given if isinstance(value, torch.Tensor))
    theirs = partial(entry, **named)
    if name == "addmm":
        alpha = 1 if isinstance(given := named.pop("alpha", 1), complex) else given
        theirs = partial(entry, **named | {"alpha": alpha, "beta": 1})
        return Sample(tensors, theirs, partial(addmm, alpha=alpha, layer=hopper_gemm.linear))
    if len(tensors) != len([value for value in given if value is not None]):
        return "an argument that is no tensor"
    return Sample(tensors, theirs, partial(OURS[name], **named))


OURS = {"mm": hopper_gemm.matmul, "bmm": hopper_gemm.bmm, "nn.functional.linear": hopper_gemm.linear}

ENTRIES = [
    entry
    for entry in op_db
    if entry.name in ("mm", "addmm", "bmm", "nn.functional.linear") and not entry.variant_test_name
]


def samples(entry: Any, dtype: torch.dtype, device: str) -> Iterator[tuple[int, Any]]:
    """torch's samples of a type by number, those left out as None."""
    torch.manual_seed(0)
    gradients = dtype.is_floating_point or dtype.is_complex
    for number, sample in enumerate(entry.sample_inputs(device, dtype, requires_grad=gradients)):
        yield number, sample if dtype in WHOLE or number % 3 == 0 else None


# The ways in which a call is run: functions of a function and its tensors, of each of which all results are compared --


def _leaves(tensors: tuple[torch.Tensor, ...], recorded: bool = True) -> tuple[torch.Tensor, ...]:
    return tuple(one.detach().clone().requires_grad_(recorded and one.requires_grad) for one in tensors)


def _like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Values for a tangent or a gradient, the same each time."""
    torch.manual_seed(seed)
    return torch.randn(tensor.shape, dtype=torch.float64).to(tensor.device, tensor.dtype)


def eager(f: Any, tensors: Any) -> Any:
    return f(*tensors)


def plain(f: Any, tensors: Any) -> Any:
    """Twice, without gradients: a first call and a known one."""
    tensors = _leaves(tensors, recorded=False)
    return f(*tensors), f(*tensors)


def inference(f: Any, tensors: Any) -> Any:
    with torch.inference_mode():
        return f(*_leaves(tensors, recorded=False))


def compiled(f: Any, tensors: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True)(*tensors)


def vmapped(f: Any, tensors: Any) -> Any:
    """Of all arguments, and of the first alone."""
    tensors = _leaves(tensors, recorded=False)
    many = tuple(torch.stack((one, -one, one + one)) for one in tensors)
    first = (0, *(None,) * (len(tensors) - 1))
    return torch.vmap(f)(*many), torch.vmap(f, in_dims=first)(many[0], *tensors[1:])


def forward(f: Any, tensors: Any) -> Any:
    """A dual tensor's value and tangent."""
    tensors = _leaves(tensors, recorded=False)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(one, _like(one, at)) for at, one in enumerate(tensors)]
        return tuple(forward_ad.unpack_dual(f(*duals)))


def jvp(f: Any, tensors: Any) -> Any:
    tensors = _leaves(tensors, recorded=False)
    return torch.func.jvp(f, tensors, tuple(_like(one, at) for at, one in enumerate(tensors)))


def reverse(f: Any, tensors: Any) -> Any:
    tensors = _leaves(tensors)
    result = f(*tensors)
    return torch.autograd.grad(result, tensors, _like(result, 7))


def twice(f: Any, tensors: Any) -> Any:
    """The gradients of a function of the gradients."""
    tensors = _leaves(tensors)
    result = f(*tensors)
    incoming = _like(result, 7).requires_grad_()
    first = torch.autograd.grad(result, tensors, incoming, create_graph=True)
    weighted = sum((one * _like(one, at)).sum() for at, one in enumerate(first))
    return torch.autograd.grad(weighted, (*tensors, incoming), allow_unused=True)


def each_gradient(f: Any, tensors: Any) -> Any:
    """Gradients of each of three samples, by torch.func."""
    tensors = _leaves(tensors, recorded=False)
    many = tuple(torch.stack((one, -one, one + one)) for one in tensors)
    wanted = tuple(range(len(tensors)))
    return torch.vmap(torch.func.grad(lambda *given: f(*given).float().sum(), argnums=wanted))(*many)


def autocast(f: Any, tensors: Any) -> Any:
    tensors = _leaves(tensors)
    with torch.autocast(tensors[0].device.type, torch.bfloat16):
        result = f(*tensors)
    return result, torch.autograd.grad(result, tensors, _like(result, 7))


def _traced_by(trace: Callable[[Any, Any], Any], f: Any, tensors: Any) -> Any:
    """What was traced, with other values."""
    tensors = _leaves(tensors, recorded=False)
    return trace(f, tensors)(*(one + one for one in tensors))


def _jit(f: Any, tensors: Any) -> Any:
    return torch.jit.trace(lambda *given: f(*given), tensors, check_trace=False)


def flops(f: Any, tensors: Any) -> Any:
    with FlopCounterMode(display=False) as counter:
        f(*_leaves(tensors, recorded=False))
    return torch.tensor(counter.get_total_flops())


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "eager": eager,
    "plain": plain,
    "inference mode": inference,
    "torch.compile": compiled,
    "vmap": vmapped,
    "forward mode": forward,
    "torch.func.jvp": jvp,
    "reverse mode": reverse,
    "double backward": twice,
    "vmap of grad": each_gradient,
    "autocast": autocast,
    "make_fx": partial(_traced_by, lambda f, given: make_fx(lambda *more: f(*more))(*given)),
    "symbolic make_fx": partial(
        _traced_by, lambda f, given: make_fx(lambda *more: f(*more), tracing_mode="symbolic")(*given)
    ),
    "jit.trace": partial(_traced_by, _jit),
    "FLOPs": flops,
}
DERIVATIVES = ("forward mode", "torch.func.jvp", "reverse mode", "double backward", "vmap of grad", "autocast")
COMPILERS = ("torch.compile", "symbolic make_fx")
"""Slow: one sample in three of bf16, and in six of other types."""


def runs(way: str, number: int, dtype: torch.dtype) -> bool:
    """Return True if a sample runs in a way."""
    if way in COMPILERS and number % (3 if dtype == torch.bfloat16 else 6):
        return False
    if way == "vmap of grad" and dtype.is_complex:
        return False  # torch.func.grad is of real functions
    return way not in DERIVATIVES or dtype.is_floating_point or dtype.is_complex


# What is counted ------------------------------------------------------------------------------


@dataclass
class Tally:
    """Calls that were compared.

    Args:
        ran: calls by way.
        fell_back: of these the calls that torch ran for us.
        samples: of torch, by what became of them.
        failures: one line each: function, type, number of the sample, way, what differs.
        meant: the failures that :data:`DIFFERENCES` explains.
    """

    ran: Counter[str] = field(default_factory=Counter)
    fell_back: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    meant: Counter[str] = field(default_factory=Counter)

    def compare(self, title: str, ours: Any, theirs: Any, least: float = 0.0) -> None:
        """Note how two outcomes differ, by more than ``least`` at least."""
        wrong = difference(ours, theirs, least)
        if wrong is None:
            return
        line = f"{title}: {wrong}"
        for meant in DIFFERENCES:
            if line.startswith(meant.call):
                self.meant[meant.what] += 1
                return
        self.failures.append(line)

    def __str__(self) -> str:
        total, fallen = sum(self.ran.values()), sum(self.fell_back.values())
        ways = ", ".join(f"{way} {count}" for way, count in self.ran.items())
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.samples.items())
        meant = ", ".join(f"{count} {what}" for what, count in self.meant.items()) or "none"
        return (
            f"{total} calls, of which torch ran {fallen}, in {len(self.ran)} ways ({ways}); samples: {kinds}; "
            f"differences: {len(self.failures)}, meant: {meant}"
        )


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        error.__context__ = error.__cause__ = None  # whose frames keep tensors of a transform beyond its end
        return error.with_traceback(None)


def difference(ours: Any, theirs: Any, least: float) -> str | None:
    """What differs between two outcomes, each an exception or tensors; None if nothing does. Values differ by at most
    :data:`TOLERANCE`, or ``least`` where that is more."""
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        if isinstance(ours, Exception) and isinstance(theirs, Exception):
            return None if isinstance(ours, type(theirs)) else f"{_shown(ours)}, torch {_shown(theirs)}"
        return f"{_shown(ours)}, torch {_shown(theirs)}"
    for own, right in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        if own is None or right is None:
            if (own is None) != (right is None) and torch.count_nonzero(right if own is None else own):
                return f"{_shown(own)}, torch {_shown(right)}"
            continue
        for what in ("shape", "dtype", "device", "layout", "requires_grad"):
            if getattr(own, what) != getattr(right, what):
                return f"{what} {getattr(own, what)}, torch {getattr(right, what)}"
        share = max(least, TOLERANCE.get(right.dtype, 0.0))
        wide = torch.complex128 if right.is_complex() else torch.float64
        own, right = own.detach().to(wide), right.detach().to(wide)
        bound = share * max(1.0, float(right.abs().max()) if right.numel() else 1.0)
        if not torch.allclose(own, right, rtol=0.0, atol=bound, equal_nan=True):
            return f"values off by {float((own - right).abs().max()):.3g}, at most {bound:.3g}"
    return None


def _shown(outcome: Any) -> str:
    if isinstance(outcome, Exception):
        first = (str(outcome).splitlines() or [""])[0]
        return f"{type(outcome).__name__}({first[:100]})"
    return f"{type(outcome).__name__}"


def judge(entry: Any, device: str) -> Tally:
    """All samples of an entry of torch's table, in every way; ours under the policy ``"never"`` where the kernel has
    the type."""
    tally = Tally()
    for dtype in (*WHOLE, *PARTS):
        if not entry.supports_dtype(dtype, device):
            tally.samples[f"of {dtype}, which torch lacks"] += 1
            continue
        for number, given in samples(entry, dtype, device):
            if given is None:
                tally.samples["left out"] += 1
                continue
            sample = standing_in(entry.name, given, entry)
            if isinstance(sample, str):
                tally.samples[sample] += 1
                continue
            tally.samples["run"] += 1
            for way in WAYS:
                if not runs(way, number, dtype):
                    continue
                casts = way == "autocast" and dtype in (*DTYPES, torch.float32)
                able = dtype in DTYPES or casts
                tally.ran[way] += 1
                tally.fell_back[way] += not able
                title = f"{entry.name} {str(dtype)[6:]} {number} {way}"
                policy = hopper_gemm.fallback("never") if able else nullcontext()
                with policy:
                    ours = _outcome(partial(WAYS[way], sample.ours, sample.tensors))
                theirs = _outcome(partial(WAYS[way], sample.theirs, sample.tensors))
                tally.compare(title, ours, theirs, TOLERANCE[torch.bfloat16] if casts else 0.0)
    return tally


# Errors ----------------------------------------------------------------------------------------


def errors(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Calls that torch refuses, with ours: torch's own error inputs, and further ones where it has few."""
    for entry in ENTRIES:
        ours = OURS.get(entry.name)
        if ours is None or entry.error_inputs_func is None:
            continue
        for number, error in enumerate(entry.error_inputs(device)):
            given, named = (error.sample_input.input, *error.sample_input.args), error.sample_input.kwargs
            yield f"{entry.name} error input {number}", partial(ours, *given, **named), partial(entry, *given, **named)

    def made(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.ones(shape, dtype=kind, device=device)

    wide = torch.float64
    further: list[tuple[str, str, tuple[Any, ...]]] = [
        ("k", "mm", (made(8, 16), made(8, 16))),
        ("a vector", "mm", (made(16), made(16, 8))),
        ("a batch", "mm", (made(2, 8, 16), made(16, 8))),
        ("no axis", "mm", (made(), made(16, 8))),
        ("types", "mm", (made(8, 16), made(16, 8, kind=wide))),
        ("devices", "mm", (made(8, 16), made(16, 8).to("meta"))),
        ("a list", "mm", ([[1.0]], made(16, 8))),
        ("None", "mm", (made(8, 16), None)),
        ("a number", "mm", (made(8, 16), 3)),
        ("batches", "bmm", (made(2, 8, 16), made(3, 16, 8))),
        ("k", "bmm", (made(2, 8, 16), made(2, 8, 16))),
        ("a matrix", "bmm", (made(8, 16), made(2, 16, 8))),
        ("types", "bmm", (made(2, 8, 16), made(2, 16, 8, kind=wide))),
        ("None", "bmm", (made(2, 8, 16), None)),
        ("k", "nn.functional.linear", (made(8, 16), made(16, 8))),
        ("no axis", "nn.functional.linear", (made(), made(8, 16))),
        ("a batch of weights", "nn.functional.linear", (made(8, 16), made(2, 8, 16))),
        ("types", "nn.functional.linear", (made(8, 16), made(8, 16, kind=wide))),
        ("a weight of one axis", "nn.functional.linear", (made(8, 16), made(16))),
        ("a short bias", "nn.functional.linear", (made(8, 16), made(8, 16), made(7))),
        ("a bias of another type", "nn.functional.linear", (made(8, 16), made(8, 16), made(8, kind=wide))),
        ("a list as bias", "nn.functional.linear", (made(8, 16), made(8, 16), [1.0])),
        ("None", "nn.functional.linear", (made(8, 16), None)),
    ]
    theirs = {"mm": torch.mm, "bmm": torch.bmm, "nn.functional.linear": torch.nn.functional.linear}
    for what, name, given in further:
        yield f"{name} error: {what}", partial(OURS[name], *given), partial(theirs[name], *given)
    targets = {"of another shape": made(9, 9), "of integers": made(8, 8, kind=torch.int64)}
    for what, out in targets.items():
        given = made(8, 16), made(16, 8)
        ours = partial(hopper_gemm.matmul, *given, out=out)
        yield f"mm error: out {what}", ours, partial(torch.mm, *given, out=out.clone())


def judge_errors(device: str, dtype: torch.dtype) -> Tally:
    """What torch refuses we refuse too, by an error that an ``except`` of torch's class catches."""
    tally = Tally()
    for title, ours, theirs in errors(device, dtype):
        tally.ran["errors"] += 1
        right = _outcome(theirs)
        tally.samples["refused" if isinstance(right, Exception) else "taken"] += 1
        tally.compare(f"{title} {str(dtype)[6:]}", _outcome(ours), right)
    return tally
