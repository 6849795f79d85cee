"""Public functions called with arguments of wrong types and with odd tensors."""

from __future__ import annotations

import linecache
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import hopper_gemm
from hopper_gemm.serve import prebuild
from tests.conftest import ROOT
from tests.serve.launcher import Launches

PACKAGE = str(ROOT / "hopper_gemm")

ALLOWED = TypeError, ValueError, RuntimeError
"""Classes of the errors of wrong arguments; ours are derived from them."""

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda z: z,
    "": lambda z: z,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
}


class Tagged(torch.Tensor):
    """A subclass that changes nothing."""


def odd(draw: random.Random) -> Any:
    """A value of a kind that few arguments take."""
    kinds: list[Callable[[], Any]] = [
        *(lambda value=value: value for value in (0, 1, -1, 3, 10**400, True, False, None, "", "x", "gelu", "never")),
        *(lambda value=value: value for value in (0.5, 2.0, float("nan"), float("inf"), 1j, b"x", int, object())),
        *(lambda value=value: value for value in (torch.bfloat16, torch.float64, torch.int8, slice(3), Ellipsis)),
        *(list, dict, set, lambda: [1], lambda: (1, 2), lambda: (8, 8, 8), lambda: [(8, 8)], lambda: {"a": 1}),
        *(lambda: ["gelu"], lambda: lambda: None, lambda: range(3), lambda: iter([1]), lambda: Path("nowhere")),
        *(
            lambda: torch.ones(()),
            lambda: torch.ones(3),
            lambda: torch.ones(2, 2).numpy(),
            lambda: torch.ones(3).numpy()[0],
        ),
        *(hopper_gemm.GemmConfig, lambda: hopper_gemm.GemmProblem(8, 8, 8), hopper_gemm.Epilogue),
        *(lambda: torch.nn.Linear(8, 8), lambda: torch.nn.ReLU(), lambda: torch.device("cpu"), lambda: Exception("x")),
    ]
    return draw.choice(kinds)()


def tensor(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of these sizes in some form."""
    values = (torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30))) / 4).to(
        dtype
    )
    forms: dict[str, Callable[[], torch.Tensor]] = {
        "turned": lambda: values.mT.contiguous().mT,
        "expanded": lambda: values.narrow(0, 0, 1).expand(shape),
        "stepped": lambda: torch.stack((values, values), -1).flatten(-2)[..., ::2],
        "shifted": lambda: torch.cat((values.flatten(), values.flatten()))[1 : values.numel() + 1].view(shape),
        "negative": lambda: torch._neg_view(values),
        "tagged": lambda: values.as_subclass(Tagged),
        "parameter": lambda: torch.nn.Parameter(values, requires_grad=draw.random() < 0.5),
        "recorded": lambda: values.clone().requires_grad_() * 1,
        "meta": lambda: values.to("meta"),
        "coo": lambda: values.to_sparse(),
        "csr": lambda: values.to_sparse_csr(),
        "csc": lambda: values.to_sparse_csc(),
        "nested": lambda: torch.nested.nested_tensor([values, values]),
        "jagged": lambda: torch.nested.nested_tensor([values, values], layout=torch.jagged),
        "uninitialised": torch.nn.UninitializedParameter,
        "fake": lambda: FakeTensorMode().from_tensor(values),
        "int4": lambda: values.to(torch.float8_e4m3fn),
        "no axis": lambda: values.sum(),
        "one axis": lambda: values.flatten(),
        "one more axis": lambda: values.unsqueeze(0),
        "longer": lambda: torch.cat((values, values), -1),
        "double": lambda: values.double(),
        "integers": lambda: values.to(torch.int32),
        "complex": lambda: values.to(torch.complex64).conj(),
        "bool": lambda: values.to(torch.bool),
    }
    if draw.random() < 0.55:
        return values
    form = draw.choice([*forms])
    try:
        return forms[form]()
    except (RuntimeError, IndexError, NotImplementedError, TypeError):  # which these sizes or this type cannot take
        return values


def arguments(draw: random.Random) -> tuple[str, Callable[..., Any], list[Any], dict[str, Any], bool]:
    """A public function with arguments of a call: its name, the function, arguments, and True if one is odd."""
    dtype = draw.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
    m, n, k = (draw.choice([8, 16, 24, 32, 1, 7, 0]) for _ in range(3))
    name = draw.choice(["matmul", "linear", "linear", "swiglu", "bmm", *OTHERS])
    strange = draw.random() < 0.7
    if name in OTHERS:
        function, given, named = OTHERS[name](draw)
        at = draw.randrange(len(given) + len(named)) if strange and (given or named) else None
        if at is not None:
            if at < len(given):
                given[at] = odd(draw)
            else:
                named[[*named][at - len(given)]] = odd(draw)
        return name, function, given, named, at is not None
    one = {
        "matmul": ((m, k), (k, n)),
        "bmm": ((3, m, k), (3, k, n)),
        "linear": (draw.choice([(m, k), (2, m, k), (k,)]), (n, k)),
        "swiglu": ((m, k), (2 * n, k)),
    }[name]
    given = [tensor(draw, shape, dtype) for shape in one]
    named = {"batch_invariant": draw.choice([None, None, None, True, False])}
    if name == "swiglu":
        pass
    elif name != "linear":
        named["out_dtype"] = draw.choice([None, None, dtype, torch.float32])
    else:
        shape = (*one[0][:-1], n)
        named["bias"] = tensor(draw, (n,), dtype) if draw.random() < 0.4 else None
        named["activation"] = draw.choice([None, None, "", "gelu", "gelu_tanh", "silu", "relu"])
        named["residual"] = tensor(draw, shape, dtype) if draw.random() < 0.3 else None
        named["scale"] = draw.choice([None, None, 0.5, 2, float("nan"), float("inf"), 10**30])
        named["out_dtype"] = draw.choice([None, None, None, torch.float32])
    if name in ("matmul", "linear") and draw.random() < 0.3:
        shape = (m, n) if name == "matmul" else shape
        named["out"] = tensor(draw, shape, draw.choice([dtype, torch.float32]))
    if name == "matmul":
        named["fallback"] = draw.choice([None, "never", "unsupported", "faster"])
        named["config"] = draw.choice([None, None, None, hopper_gemm.GemmConfig()])
    if strange and draw.random() < 0.6:
        at = draw.randrange(2 + len(named))
        if at < 2:
            given[at] = odd(draw)
        else:
            named[[*named][at - 2]] = odd(draw)
    return name, getattr(hopper_gemm, name), given, named, strange


def _entered(policy: Any) -> None:
    with hopper_gemm.fallback(policy):
        pass


OTHERS: dict[str, Callable[[random.Random], tuple[Callable[..., Any], list[Any], dict[str, Any]]]] = {
    "fallback": lambda draw: (_entered, ["never"], {}),
    "patch": lambda draw: (
        hopper_gemm.patch,
        [torch.nn.Sequential(torch.nn.Linear(8, 8, dtype=torch.bfloat16), torch.nn.ReLU())],
        {"batch_invariant": draw.random() < 0.3, "tokens": (1, 8), "main_grad": draw.random() < 0.3},
    ),
    "use_table": lambda draw: (hopper_gemm.use_table, [None], {"other_gpus": False, "alone": draw.random() < 0.3}),
    "prebuild": lambda draw: (
        hopper_gemm.prebuild,
        [
            [
                (8, 8, 8),
                hopper_gemm.GemmProblem(16, 8, 8),
                (hopper_gemm.GemmProblem(8, 8, 8), hopper_gemm.Epilogue(bias=True)),
            ]
        ],
        {"menu": (), "context": "isolated", "gpu": None, "chip": prebuild.SXM, "workers": 1, "watch": print}
        | {"store": Path("nowhere")},
    ),
    "warmup": lambda draw: (hopper_gemm.warmup, [[(8, 8, 8)]], {"candidates": 2, "tokens": (), "say": print}),
    "GemmProblem": lambda draw: (
        hopper_gemm.GemmProblem,
        [8, 8, 8],
        {"dtype": "bf16", "layouts": "kk", "batch_invariant": False},
    ),
    "Epilogue": lambda draw: (
        hopper_gemm.Epilogue,
        [],
        {"scale": True, "bias": False, "activation": "gelu", "residual": True, "gated": False},
    ),
    "GemmConfig": lambda draw: (hopper_gemm.GemmConfig, [], {"tile_m": 128, "stages": 3, "pdl": True, "epi_n": 64}),
}
"""Functions that multiply nothing, with arguments that they take."""


def meaning(name: str, given: list[Any], named: dict[str, Any]) -> torch.Tensor:
    """What a call means, in fp64 of dense values."""

    def wide(value: torch.Tensor) -> torch.Tensor:
        value = value.detach().as_subclass(torch.Tensor) if value.layout == torch.strided else value.detach().to_dense()
        return value.resolve_conj().to(torch.complex128 if value.is_complex() else torch.float64)

    a, b = map(wide, given)
    if name in ("matmul", "bmm"):
        return a @ b
    z = a @ b.mT
    if name == "swiglu":
        gate, up = z.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    z = z if named["scale"] is None else z * named["scale"]
    z = ACTIVATIONS[named["activation"]](z if named["bias"] is None else z + wide(named["bias"]))
    return z if named["residual"] is None else z + wide(named["residual"])


def torch_refuses(name: str, given: list[Any], named: dict[str, Any]) -> Exception | None:
    """The error by which torch refuses the product of the same operands, or what follows it, too."""
    theirs = {"matmul": torch.mm, "bmm": torch.matmul}.get(name, torch.nn.functional.linear)
    bias, scale, residual = (named.get(step) for step in ("bias", "scale", "residual"))
    try:
        result = theirs(*given) if bias is None or scale is not None else theirs(*given, bias)
        if name == "swiglu":
            gate, up = result.chunk(2, -1)
            torch.nn.functional.silu(gate) * up
        if name == "linear":
            result = result if scale is None else result * scale + (0.0 if bias is None else bias)
            result = ACTIVATIONS[named["activation"]](result)
            result = result if residual is None else result + residual
        if isinstance(named.get("out"), torch.Tensor):
            torch.mm(*given, out=named["out"].detach()) if name == "matmul" else named["out"].detach().copy_(result)
        return None
    except Exception as error:
        return error


def wrong_with(error: Exception, name: str, given: list[Any], named: dict[str, Any]) -> str | None:
    """What is wrong with an error; None if it is ours, in one line, or torch's own of the same operands."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    if frame.filename.startswith(PACKAGE) and line.startswith("raise "):
        if not isinstance(error, ALLOWED):
            return f"{type(error).__name__} is no error of arguments ({where})"
        return None if "\n" not in str(error) else f"more than one line ({where})"
    if name not in OTHERS:
        theirs = torch_refuses(name, given, named)
        if theirs is not None and isinstance(error, (type(theirs), RuntimeError)):
            return None
        if any(isinstance(value, FakeTensor) for value in (*given, *named.values())):
            return (
                None if isinstance(error, AssertionError | TypeError) else f"{error!r} of a fake tensor"
            )  # beside a real one
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__} from inside ({where}): {first[:100]}"


def off(result: Any, name: str, given: list[Any], named: dict[str, Any]) -> str | None:
    """How a result differs from what the call means; None where it does not, or cannot be said."""
    if not isinstance(result, torch.Tensor):
        return f"returned {type(result).__name__}"
    tensors = [value for value in (*given, *named.values()) if isinstance(value, torch.Tensor)]
    if any(one.is_nested or one.device.type == "meta" or isinstance(one, FakeTensor) for one in tensors):
        return None
    with torch.no_grad():
        right = meaning(name, given, named)
        found = result.detach() if result.layout == torch.strided else result.detach().to_dense()
        found = found.as_subclass(torch.Tensor).to(right.dtype)
        if found.shape != right.shape:
            return f"shape {tuple(found.shape)}, torch {tuple(right.shape)}"
        if not result.dtype.is_floating_point or result.dtype.itemsize == 1 or not torch.isfinite(right).all():
            return None  # whose sums wrap around; of few digits; whose infinities depend on the order of sums
        largest = float(right.abs().max()) if right.numel() else 0.0
        if largest > torch.finfo(result.dtype).max:
            return None
        if not torch.allclose(found, right, rtol=0.0, atol=0.04 * max(1.0, largest), equal_nan=True):
            return f"off by {float((found - right).abs().max()):.3g} of {largest:.3g}"
    return None


def described(value: Any) -> str:
    """An argument, short."""
    if not isinstance(value, torch.Tensor):
        return " ".join(repr(value).split())[:30]
    try:
        return f"{type(value).__name__}{tuple(value.shape)}{str(value.dtype)[6:]}"
    except (RuntimeError, ValueError):
        return f"{type(value).__name__} {value.dtype}"


def call(seed: int) -> tuple[str, str | None]:
    """Run a call: what became of it, and a line on what is wrong with that, if anything."""
    draw = random.Random(seed)
    name, function, given, named, _ = arguments(draw)
    try:
        result = function(*given, **named)
    except Exception as error:
        wrong, kind = wrong_with(error, name, given, named), "error"
    else:
        wrong, kind = None if name in OTHERS else off(result, name, given, named), "result"
    if wrong is None:
        return kind, None
    shown = ", ".join([*map(described, given), *(f"{key}={described(value)}" for key, value in named.items())])
    return kind, f"seed {seed}: {name}({shown}): {wrong}"


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU be a Hopper GPU, and nothing be compiled or changed."""
    Launches(monkeypatch)
    monkeypatch.setattr(prebuild, "build", lambda kernels, store, workers, watch: None)
    monkeypatch.setattr("hopper_gemm.model.lookup._named", (None, False, False))


def fuzz(seeds: range) -> tuple[Counter[str], list[str]]:
    """What became of calls, and what is wrong, a line each."""
    kinds: Counter[str] = Counter()
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            kind, line = call(seed)
            kinds[kind] += 1
            wrong += [] if line is None else [line]
    return kinds, wrong
