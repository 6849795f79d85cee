"""``hopper_gemm.patch``: let the ``torch.nn.Linear`` layers of a model multiply by our kernel, where it pays."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling, is_dynamo_compiling

from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import GemmProblem, listed, shown
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.serve.call import autocast_type
from hopper_gemm.serve.checks import DTYPES, PLAIN, UnsupportedError, check_device
from hopper_gemm.serve.fallback import POLICY
from hopper_gemm.serve.kernels import MODE, tables_for
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.serve.linear import linear
from hopper_gemm.serve.operands import folded
from hopper_gemm.serve.ops import mm


class HopperLinear(torch.nn.Linear):
    """``torch.nn.Linear`` by our kernel: the same parameters, hooks and state_dict."""

    batch_invariant: bool | None = None
    """True on an instance whose rows do not depend on each other; None: as the thread's context says."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _linear(input, self.weight, self.bias, self.batch_invariant)


class AccumulatingLinear(HopperLinear):
    """:class:`HopperLinear` whose weight's gradient is added to ``weight.main_grad``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, rule = self.weight, self.batch_invariant
        recorded = torch.is_grad_enabled() and weight.requires_grad and weight.dtype in DTYPES
        if not recorded or _torch_alone(input, weight, self.bias):
            return super().forward(input)
        total = getattr(weight, "main_grad", None)
        if is_compiling():
            raise RuntimeError("main_grad must be used in eager code; leave these layers out of torch.compile")
        if total is None or (total.shape, total.dtype) != (weight.shape, torch.float32):
            given = None if total is None else f"{tuple(total.shape)} {total.dtype}"
            raise ValueError(
                f"weight.main_grad must be {tuple(weight.shape)} torch.float32 but is {given}; "
                "set it before a forward pass, or patch without main_grad"
            )
        return _Accumulated.apply(input, weight, self.bias, total, MODE.batch_invariant if rule is None else rule)


class _Accumulated(torch.autograd.Function):
    """Add a layer's weight gradient to an fp32 matrix, by the launch that multiplies it."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, total: torch.Tensor, rule: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.total, ctx.batch_invariant, ctx.bias_type = total, rule, None if bias is None else bias.dtype
        return _linear(x, weight, bias, rule)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        total, rule, rows = ctx.total, ctx.batch_invariant, folded(gradient)
        of_x = mm(rows, weight.to(rows.dtype), None, rule).view(x.shape) if ctx.needs_input_grad[0] else None
        linear(rows.t(), folded(x).to(rows.dtype).t(), residual=total, batch_invariant=rule, out=total)
        of_bias = rows.sum(0, dtype=torch.float32).to(ctx.bias_type) if ctx.needs_input_grad[2] else None
        return of_x, None, of_bias, None, None


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool | None
) -> torch.Tensor:
    """``torch.nn.functional.linear`` by our kernel, or by torch where torch.mm was measured to be faster."""
    if not is_dynamo_compiling() and (native := LAUNCHES.native) is not None:
        layer = native.layer(x, weight, bias, batch_invariant)
        if layer is not None:
            return layer
    invariant = MODE.batch_invariant if batch_invariant is None else batch_invariant
    if POLICY.fallback != "never" and not invariant and _torch_alone(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)
    if (dtype := autocast_type(x)) is not None:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    before = POLICY.fallback
    POLICY.fallback = "faster" if before == "unsupported" else before
    try:
        return linear(x, weight, bias, batch_invariant=batch_invariant)
    finally:
        POLICY.fallback = before


def _torch_alone(x: Any, weight: Any, bias: Any) -> bool:
    """Return True for what ``torch.nn.functional.linear`` runs or refuses in its own way: tensors of a class that
    overrides it, sparse ones, types that autocast does not make one, and what does not fit."""
    given = (x, weight) if bias is None else (x, weight, bias)
    unaware = torch._C._disabled_torch_function_impl  # of subclasses that handle operators alone, such as DTensor
    for tensor in given:
        if type(tensor) not in PLAIN and getattr(type(tensor), "__torch_function__", None) is not unaware:
            return True
    if x.layout != torch.strided or x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        return True
    if weight.numel() == 0 or weight.device != x.device or (bias is not None and bias.device != x.device):
        return True
    if (target := autocast_type(x)) is not None:
        return target not in DTYPES or not {tensor.dtype for tensor in given} <= {torch.float32, *DTYPES}
    return x.dtype not in DTYPES or weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype)


@dataclass(frozen=True)
class PatchedLayer:
    """A layer's name, its class and weight of shape (n, k), whether it multiplies by our kernel, and why."""

    name: str
    summary: str
    replaced: bool
    why: str


@dataclass
class Patch:
    """What :func:`patch` did to a model; printable. All layers that are a ``torch.nn.Linear`` or derived from it, and
    the modules that are replaced; none after :meth:`undo`."""

    layers: tuple[PatchedLayer, ...]
    modules: tuple[torch.nn.Linear, ...]

    def undo(self) -> None:
        """Let the replaced layers multiply by torch again. A class that others derived from ours since then, as
        parametrizations and FSDP do, is made anew of ``torch.nn.Linear``; one that is not ours any more stays."""
        classes: dict[type, type] = dict.fromkeys((HopperLinear, AccumulatingLinear), torch.nn.Linear)
        for module in self.modules:
            module.__class__ = _without_ours(type(module), classes)
            vars(module).pop("batch_invariant", None)
        self.modules = ()

    def __str__(self) -> str:
        count = sum(layer.replaced for layer in self.layers)
        width = max((len(layer.name) for layer in self.layers), default=0)
        end = "were replaced, and are torch's again" if count and not self.modules else "multiply by hopper_gemm"
        for device in {module.weight.device for module in self.modules}:
            try:
                check_device(device)
            except UnsupportedError:
                end = f"are replaced; torch multiplies on {device}, which is no Hopper GPU"
        cast = sum(module.weight.dtype == torch.float32 for module in self.modules)
        end = f"({cast} of float32, only within torch.autocast) " * bool(cast) + end
        lines = [f"{count} of {len(self.layers)} linear layers {end}; weights are (n, k), out_features and in_features"]
        lines += [
            f"  {layer.name:{width}}  {layer.summary}: {'replaced' if layer.replaced else 'left'}, {layer.why}"
            for layer in self.layers
        ]
        return "\n".join(lines)


def _without_ours(cls: type, classes: dict[type, type]) -> type:
    """A class with ``torch.nn.Linear`` in the place of ours; those that are made are added to ``classes``."""
    if not issubclass(cls, HopperLinear):
        return cls
    if cls not in classes:
        bases, name = [_without_ours(base, classes) for base in cls.__bases__], cls.__name__
        for old, new in zip(cls.__bases__, bases, strict=True):
            name = name.replace(old.__name__, new.__name__)
        kept = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
        classes[cls] = type(name, tuple(bases), kept)
    return classes[cls]


def patch(
    model: torch.nn.Module, batch_invariant: bool = False, tokens: Iterable[int] = (), main_grad: bool = False
) -> Patch:
    """Let the ``torch.nn.Linear`` layers of a model multiply by our kernel where it pays.

    A replaced layer runs :func:`hopper_gemm.linear`, and stays the same object with the same parameters: optimizers,
    hooks, state_dict, DDP and tied weights see no difference. A call goes to torch where torch.mm was measured to be
    faster for its number of rows, and where the kernel cannot run, as on a CPU, unless :func:`hopper_gemm.fallback`
    says ``"never"``; so does what ``torch.nn.functional.linear`` runs or refuses in its own way.

    A layer is left as it is if its tuned entries show torch.mm to be faster, in the geometric mean; if it is untuned
    and its operands would be copied at each call; if its type is not supported; or if other code runs in the place of
    its class's ``forward``, such as TorchScript or ``torch.nn.MultiheadAttention``, which reads the weight. Another
    untuned layer is replaced: time it before by :func:`hopper_gemm.warmup`.

    Args:
        model: changed in place; of bf16 or fp16, or of fp32, whose replaced layers torch runs outside
            ``torch.autocast``; a printed result counts them apart.
        batch_invariant: True: all layers, and no row of a layer's output depends on the other rows; the model is left
            as it is if that cannot be. Norms and attention are the model's own.
        tokens: rows of the activations that count; by default all that have an entry.
        main_grad: True: the gradient of a weight of bf16 or fp16 is added, unrounded, to ``weight.main_grad``, an fp32
            tensor of the weight's shape that the caller sets, and zeroes; ``weight.grad`` stays as it is, and hooks of
            the weight's gradient are not called. For eager code.

    Returns:
        What was replaced and why, with each weight's (n, k): out_features, in_features; print it, or undo it.

    Raises:
        TypeError: an argument of another class.
        ValueError: with ``batch_invariant``, layers that cannot be, by name.

    Example:
        >>> done = patch(torch.nn.Sequential(torch.nn.Linear(64, 64, dtype=torch.bfloat16)))
        >>> done.layers[0].replaced
        True
        >>> done.undo()
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module but is {shown(model)}; give the model itself")
    for option, value in (("batch_invariant", batch_invariant), ("main_grad", main_grad)):
        if not isinstance(value, bool):
            raise TypeError(f"{option} must be True or False but is {shown(value)}; give a bool")
    tokens = listed("tokens", tokens, "numbers of rows")
    if wrong := [rows for rows in tokens if type(rows) is not int]:
        raise TypeError(f"tokens must be numbers of rows but has {shown(wrong[0])}; give ints")
    readers, linears, layers = _readers(model, batch_invariant), list[Any](), list[PatchedLayer]()
    for name, module in model.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule) and getattr(module, "original_name", "") == "Linear"
        if scripted or isinstance(module, torch.nn.Linear):
            hidden = readers.get(id(module)) or _hidden(module)
            linears.append(module)
            layers.append(_decided(name, module, batch_invariant, frozenset(tokens), hidden))
    if batch_invariant and (cannot := [layer for layer in layers if not layer.replaced]):
        refused = "; ".join(f"{layer.name or 'the model'} ({layer.summary}): {layer.why}" for layer in cannot)
        raise ValueError(f"batch_invariant needs every linear layer, and nothing was replaced: {refused}")
    modules = tuple(module for module, layer in zip(linears, layers, strict=True) if layer.replaced)
    for module in modules:
        module.__class__ = AccumulatingLinear if main_grad else HopperLinear
        if batch_invariant:
            module.batch_invariant = True
    return Patch(tuple(layers), modules)


def _readers(model: torch.nn.Module, always: bool) -> dict[int, str]:
    """Why a layer is not called, by the id of each whose parent reads its weight; ``always``: also of an encoder layer
    in training, which may take its fast path later (the conditions are those of its ``forward``)."""
    reasons: dict[int, str] = {}
    parent: Any
    for parent in model.modules():
        forward = getattr(type(parent), "forward", None)  # TorchScript's classes have none
        if forward is torch.nn.MultiheadAttention.forward:
            reasons[id(parent.out_proj)] = "its MultiheadAttention reads the weight and does not call the layer"
        if forward is torch.nn.TransformerEncoderLayer.forward and (always or not parent.training):
            own, relu_or_gelu = parent.self_attn, parent.activation_relu_or_gelu
            if own.batch_first and own.in_proj_bias is not None and own.num_heads % 2 == 0 and relu_or_gelu:
                why = "the fast path of its TransformerEncoderLayer in eval reads the weight, not calling the layer"
                reasons |= {id(layer): why for layer in (parent.linear1, parent.linear2)}
    return reasons


def _hidden(module: Any) -> str:
    """Return why the ``forward`` of our class would not run, or be wrong, in a layer's place; empty if it would run."""
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript compiled it; patch before"
    if type(module) is not torch.nn.Linear:
        return "replaced before" if isinstance(module, HopperLinear) else "a class of its own"
    if "forward" in vars(module) or "_call_impl" in vars(module):
        return "a forward of its own, set on the instance, as hooks of accelerate do; patch before or remove it"
    if not isinstance(module.weight, torch.Tensor) or module.weight.dim() != 2:
        return "no weight of two axes"
    if type(module.weight) not in PLAIN:
        return f"its weight is a {type(module.weight).__name__}, which has products of its own"
    return "no features" if module.weight.numel() == 0 else ""


def _decided(name: str, module: Any, batch_invariant: bool, tokens: Collection[int], hidden: str) -> PatchedLayer:
    """Decide on a layer; ``hidden`` is why its forward would not run, if so."""
    weight: Any = getattr(module, "weight", None)
    summary = type(module).__name__
    with suppress(AttributeError, RuntimeError):  # no weight, or not yet initialised
        summary = f"{summary} {tuple(weight.shape)} {weight.dtype}"
    if hidden:
        return PatchedLayer(name, summary, False, hidden)
    cast = weight.dtype == torch.float32 and not batch_invariant
    if weight.dtype not in DTYPES and not cast:
        return PatchedLayer(name, summary, False, "only bfloat16 and float16 are supported")
    replaced, why = (True, "batch-invariant") if batch_invariant else _pays(weight, tokens)
    return PatchedLayer(name, summary, replaced, f"{why}; within torch.autocast" if cast and replaced else why)


def _pays(weight: torch.Tensor, tokens: Collection[int]) -> tuple[bool, str]:
    """Return whether a layer is worth replacing, and the reason: the speedups of its tuned entries in this thread's
    context, by their rows. A speedup on another kind of GPU says nothing of this one."""
    (n, k), dtype = weight.shape, DTYPES.get(weight.dtype, "bf16")
    speedups: dict[int, float] = {}
    for table in reversed(tables_for(weight.get_device() if weight.is_cuda else 0)):
        for entry in () if table.of_sister else table.serving:
            problem = entry.problem
            same = (problem.n, problem.k, problem.dtype, problem.layouts) == (n, k, dtype, "kk")
            same = same and not isinstance(problem, GroupedProblem)
            if same and entry.context == MODE.context and (not tokens or problem.m in tokens):
                speedups[problem.m] = entry.speedup  # the first table counts
    if speedups:
        mean = geometric_mean(speedups.values())
        rows = ", ".join(map(str, sorted(speedups)[:4])) + (", ..." if len(speedups) > 4 else "")
        return mean >= 1.0, f"{mean:.3f}x torch.mm at m = {rows}"
    if filled_up(GemmProblem(8, n, k, dtype)) != GemmProblem(8, n, k, dtype):
        return False, "n or k is no multiple of 8, so that operands would be copied at each call"
    return True, "untuned: the model picks, hopper_gemm.warmup times"
