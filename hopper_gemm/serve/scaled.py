"""``hopper_gemm.scaled_mm``: torch's scaled products of FP8 on Hopper, by the kernel of all other products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from hopper_gemm.model.finish import ActivationName, Epilogue
from hopper_gemm.model.problem import BLOCK, PROMOTED, GemmProblem, shown
from hopper_gemm.model.rules.fp8 import FP8_STEP
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve.call import Maybe
from hopper_gemm.serve.checks import PLAIN, MisfitError, UnsupportedError, check_device, misfit
from hopper_gemm.serve.fallback import POLICY
from hopper_gemm.serve.kernels import MODE, kernel_for
from hopper_gemm.serve.launches import loading_allowed
from hopper_gemm.serve.operands import MISALIGNED, reaches, share_memory
from hopper_gemm.serve.ops import OPERATORS, TAGS, implement, untraced
from hopper_gemm.serve.reference import activated

OPERANDS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
OUTPUTS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
RECIPES = {
    ("TensorWise", "TensorWise"): "tensor",
    ("RowWise", "RowWise"): "row",
    ("BlockWise1x128", "BlockWise128x128"): "blocks",
}
"""Names of torch.nn.functional.ScalingType for A and B that the kernel has, with their scales."""

Listed = torch.Tensor | Sequence[torch.Tensor]


def scaled_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: Listed,
    scale_recipe_a: Any,
    scale_b: Listed,
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Maybe = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    activation: ActivationName | None = None,
    out: Maybe = None,
    promote: int = 128,
) -> torch.Tensor:
    """``activation(scale_a * scale_b * (mat_a @ mat_b) + bias)`` of FP8 matrices, with the names, layouts and recipes
    of :func:`torch.nn.functional.scaled_mm`. It needs torch 2.10, which has that function.

    Args:
        mat_a: (m, k), float8_e4m3fn or float8_e5m2, contiguous along k; k a multiple of 16.
        mat_b: (k, n), same type, as the ``.t()`` of a row-major (n, k) weight; n a multiple of 16.
        scale_a, scale_b: fp32, contiguous: one element each (``TensorWise``), or (m, 1) and (1, n) (``RowWise``). Of
            blocks (m, k / 128) and (k / 128 rounded up to a multiple of 4, n / 128), rounded up, each contiguous along
            its first axis at any pitch; the rows of ``scale_b`` that only fill up may be left out.
        scale_recipe_a, scale_recipe_b: both ``ScalingType.TensorWise`` or both ``ScalingType.RowWise``; or
            ``BlockWise1x128`` and ``BlockWise128x128``.
        swizzle_a, swizzle_b, contraction_dim: as torch's; the kernel takes the defaults.
        bias: (n,), fp16 with an output of fp16, else bf16.
        output_dtype: bfloat16, float16 or float32.
        use_fast_accum: leave the sums to the tensor cores, which keep about 13 bits; else they move to fp32 registers
            after each ``promote`` of k. Of blocks they always do, each 128.
        activation: as of :func:`hopper_gemm.linear`.
        out: (m, n) of ``output_dtype``; made, contiguous, if None.
        promote: 128, 256 or 512: longer intervals take less time and lose more bits. 128 with blocks.

    Returns:
        ``out``, written on torch's current stream. There are no gradients.

    What the kernel cannot run (other recipes and types, operands of two types, tensors that are not on a Hopper GPU)
    goes to torch's function, by the policy of :func:`hopper_gemm.fallback`. Batch invariance is that of the thread.

    Raises:
        TypeError, ValueError: shapes, types, strides, addresses or scales that do not fit.
        RuntimeError: a gradient would be recorded, or torch is older than 2.10.
        UnsupportedError: the kernel cannot run it, where nothing falls back.

    Example:
        >>> y = hopper_gemm.scaled_mm(x, w.t(), sx, ROW, sw, ROW)                   # doctest: +SKIP
    """
    refuse_gradients(mat_a, mat_b, bias, out)
    given: tuple[Any, ...] = mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a, swizzle_b
    more = output_dtype, contraction_dim, use_fast_accum
    functional: Any = torch.nn.functional
    scales, promote, why = recipe_of(given, *more, promote)
    if why is not None:
        if POLICY.fallback == "never" or MODE.batch_invariant:
            raise UnsupportedError(why)
        Epilogue(activation=activation or "")  # raises where there is no such activation
        product = activated(functional.scaled_mm(*given, bias, *more), activation)
        if out is None:
            return product
        _check_out(tuple(product.shape), product.dtype, product.device, out)
        return out.copy_(product)
    arguments = mat_a, mat_b, *scales, bias, activation, output_dtype, promote, MODE.batch_invariant
    if out is None:
        return torch.ops.hopper_gemm.scaled_mm(*arguments)
    torch.ops.hopper_gemm.scaled_mm_out(*arguments, out)
    return out


def recipe_of(
    given: tuple[Any, ...], dtype: Any, axes: Any, fast: bool, promote: int
) -> tuple[tuple[Any, Any, str], int, str | None]:
    """Of a call with torch's arguments, from the operands to the swizzles and from the output's type on: scales of both
    operands, with their name in a finish; the interval of promotion; and why torch must run it, None if the kernel can.
    Refuse a promote that is none, gradients, and an older torch."""
    if not hasattr(torch.nn.functional, "scaled_mm"):
        raise RuntimeError(f"scaled_mm needs torch 2.10, whose recipes it takes, but this is {torch.__version__}")
    if fast is False and (type(promote) is not int or promote not in PROMOTED[1:]):
        raise ValueError(f"promote must be one of {', '.join(map(str, PROMOTED[1:]))} but got {shown(promote)}")
    a, b, *listed = given
    single = [part[0] if isinstance(part, list | tuple) and len(part) == 1 else part for part in listed]
    first, recipe_a, second, recipe_b, *swizzles = single
    recipes = [recipe_a, recipe_b]
    refuse_gradients(first, second)
    why = _unsupported(a, b, first, second, recipes, swizzles, dtype, axes)
    scales = RECIPES.get(_names(recipes), "")
    if why is None and scales == "blocks" and promote != BLOCK:
        raise ValueError(f"promote must be {BLOCK} with scales of blocks but got {promote}; leave it out")
    return (first, second, scales), BLOCK if scales == "blocks" else 0 if fast else promote, why


def _names(recipes: list[Any]) -> tuple[str, str]:
    """Names of two recipes; empty for what is none."""
    return getattr(recipes[0], "name", ""), getattr(recipes[1], "name", "")


def refuse_gradients(*tensors: Any) -> None:
    if torch.is_grad_enabled() and any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            "scaled products have no gradients but a tensor requires one; use torch.no_grad() or .detach()"
        )


def _unsupported(
    a: Any, b: Any, scale_a: Any, scale_b: Any, recipes: list[Any], swizzles: list[Any], dtype: Any, axes: Any
) -> str | None:
    """Why torch must run a call; None if the kernel can, or if arguments do not fit."""
    for name, tensor in (("mat_a", a), ("mat_b", b), ("scale_a", scale_a), ("scale_b", scale_b)):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} must be one plain torch tensor but is {shown(type(tensor).__name__)}; give one"
        if not torch.compiler.is_compiling() and type(tensor) not in PLAIN:
            return f"{name} must be a plain torch tensor but is a {type(tensor).__qualname__}; take its plain tensor"
    if _names(recipes) not in RECIPES:
        taken = ", ".join(" and ".join(names) for names in RECIPES)
        return f"recipes must be {taken} but got {' and '.join(map(shown, recipes))}; rescale"
    if any(getattr(swizzle, "value", swizzle) for swizzle in swizzles) or axes:
        return "swizzles and contraction_dim must be left at their defaults; leave them out"
    if a.dtype not in OPERANDS or a.dtype != b.dtype or dtype not in OUTPUTS:
        return (
            "mat_a and mat_b must have one FP8 type and the output bfloat16, float16 or float32 but got "
            f"{a.dtype}, {b.dtype} and {dtype}; convert them with .to()"
        )
    if not torch.compiler.is_compiling():
        try:
            check_device(a.device)
        except UnsupportedError as error:
            return str(error)
    return None


_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str scales, Tensor? bias, str? activation, "
    "ScalarType out_dtype, int promote, bool batch_invariant"
)


def check(a: Any, b: Any, scale_a: Any, scale_b: Any, scales: str, bias: Maybe, dtype: Any, out: Maybe) -> None:
    """Refuse what does not fit; tensors may be fake."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise MisfitError(
            f"mat_a and mat_b must be (m, k) and (k, n) but got {tuple(a.shape)} and {tuple(b.shape)}; "
            "give one of them as .t() or reshape it"
        )
    (m, k), n = a.shape, b.shape[1]
    for name, size in (("k", k), ("n", n)):
        if size % FP8_STEP:
            raise MisfitError(f"{name} must be a multiple of {FP8_STEP} for FP8 but got {size}; pad with zeros")
    for name, rows in (("mat_a", a), ("mat_b", b.t())):
        if rows.stride(1) != 1 and k > 1:
            fix = "give it as .contiguous()" if name == "mat_a" else "give the .t() of a row-major (n, k) weight"
            raise MisfitError(f"{name} must be contiguous along k but has strides {tuple(rows.stride())}; {fix}")
    _check_scales((m, n, k), scales, a.device, scale_a, scale_b)
    wide = torch.float16 if dtype == torch.float16 else torch.bfloat16
    if bias is not None and (tuple(bias.shape), bias.dtype, bias.device) != ((n,), wide, a.device):
        raise MisfitError(misfit("bias", bias, (n,), a.device, wide))
    if b.device != a.device or b.dtype != a.dtype:
        raise MisfitError(f"mat_b must be {a.dtype} on {a.device} but is {b.dtype} on {b.device}; move it with .to()")
    if out is not None:
        _check_out((m, n), dtype, a.device, out)


def _check_out(shape: tuple[Any, ...], dtype: Any, device: Any, out: torch.Tensor) -> None:
    """Refuse an output that does not fit, as :func:`check` does: torch would spread a product over it."""
    if (tuple(out.shape), out.dtype, out.device) != (shape, dtype, device):
        raise MisfitError(misfit("out", out, shape, device, dtype))


def _check_scales(sizes: tuple[Any, ...], scales: str, device: Any, scale_a: Any, scale_b: Any) -> None:
    """Refuse scales that do not fit, as :func:`check` does."""
    (m, n, k), lies = sizes, ", contiguous,"
    deep, wide = -(-k // BLOCK), -(-n // BLOCK)
    filled = -(-deep // 4) * 4
    shapes = {"blocks": ((m, deep), (filled, wide)), "row": ((m, 1), (1, n))}.get(scales, ((1,), (1,)))
    for name, scale, shape in zip(("scale_a", "scale_b"), (scale_a, scale_b), shapes, strict=True):
        if scales == "blocks":
            lies = f" with strides (1, {shape[0]})"
            alike = tuple(scale.shape) in (shape, (deep, wide) if name == "scale_b" else shape)
            alike = alike and (scale.stride(0) == 1 or scale.shape[0] == 1 or scale.numel() == 0)
        else:
            alike = scale.numel() == shape[0] * shape[-1] and scale.is_contiguous()
            alike = alike and (scales != "row" or scale.dim() == 1 or tuple(scale.shape) == shape)
        if not alike or scale.dtype != torch.float32 or scale.device != device:
            raise MisfitError(
                f"{name} must be {shape} torch.float32 on {device}{lies} but is {tuple(scale.shape)} "
                f"{scale.dtype} on {scale.device} with strides {tuple(scale.stride())}"
            )


def spread(scale: torch.Tensor, height: int, rows: int, k: int) -> torch.Tensor:
    """The scale of each element of an operand (rows, k), from one of each block of ``height`` rows and 128 of k."""
    return scale.repeat_interleave(height, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :k]


def reference(
    a: Any, b: Any, scale_a: Any, scale_b: Any, scales: str, bias: Maybe, activation: str | None, dtype: Any
) -> torch.Tensor:
    """The output in fp32 arithmetic, rounded once."""
    left, right = a.float(), b.float()
    if scales == "blocks":
        product = (left * spread(scale_a, 1, *a.shape)) @ (right * spread(scale_b.t(), BLOCK, *b.t().shape).t())
    else:
        product = (left @ right) * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    return activated(product if bias is None else product + bias.float(), activation).to(dtype)


def _on_cpu(*given: Any, out: Maybe = None) -> torch.Tensor:
    a, b, scale_a, scale_b, scales, bias, _, dtype, *_ = given
    check(a, b, scale_a, scale_b, scales, bias, dtype, out)
    result = reference(*given[:8])
    return result if out is None else out.copy_(result)


def _on_fake(*given: Any, out: Maybe = None) -> torch.Tensor:
    a, b, scale_a, scale_b, scales, bias, activation, dtype, *_ = given
    check(a, b, scale_a, scale_b, scales, bias, dtype, out)
    Epilogue(activation=activation or "")
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype) if out is None else out


@untraced
def _on_gpu(*given: Any, out: Maybe = None) -> torch.Tensor:
    a, b, scale_a, scale_b, scales, bias, activation, dtype, promote, invariant = given
    check(a, b, scale_a, scale_b, scales, bias, dtype, out)
    check_device(a.device)
    (m, k), n = a.shape, b.shape[1]
    finish = Epilogue(bias=bias is not None, activation=activation or "", scales=scales)
    if out is not None and any(map(partial(share_memory, out), (a, b))):
        raise MisfitError("out must not share memory with mat_a or mat_b, which are read meanwhile; give another one")
    target = a.new_empty((m, n), dtype=dtype) if out is None or not reaches(out) else out
    if 0 in (m, n, k):
        target.copy_(reference(*given[:8]))
    else:
        for name, rows in (("mat_a", a), ("mat_b", b.t())):
            if not reaches(rows):
                pitch = f"address {rows.data_ptr()}, pitch {rows.stride(0)} bytes"
                raise MisfitError(f"rows of {name} must start at multiples of 16 bytes but have {pitch}; copy it")
        kind, device = f"{OPERANDS[a.dtype]}_{OUTPUTS[dtype]}", a.get_device()
        added = None if bias is None else aligned(bias)
        with torch.cuda.device(device):
            problem = m, n, k, kind, "kk", invariant, promote
            kernel = _kernel(problem, finish, MODE.context, device, CHANGES.count)
            laid = of_blocks if scales == "blocks" else aligned
            kernel(a, b.t(), target, added, None, None, scales=(laid(scale_a), laid(scale_b)))
    return target if out is None or target is out else out.copy_(target)


def aligned(vector: torch.Tensor) -> torch.Tensor:
    """A vector, contiguous from a multiple of 16 bytes on: itself, or a copy."""
    flat = vector.reshape(-1)
    return flat if flat.is_contiguous() and not flat.data_ptr() & MISALIGNED else flat.new_empty(flat.shape).copy_(flat)


def of_blocks(scale: torch.Tensor) -> torch.Tensor:
    """Scales of blocks as the kernel takes them, contiguous along the last axis also where that has one element."""
    if scale.shape[0] > 1 and scale.shape[1] > 1:
        return scale.t()
    pitch = scale.stride(1) if scale.shape[1] > 1 else scale.shape[0]
    return scale.as_strided((scale.shape[1], scale.shape[0]), (pitch, 1))


@lru_cache(maxsize=4096)
def _kernel(fields: tuple[Any, ...], finish: Epilogue, context: str, device: int, _: int) -> Any:
    """The kernel of the fields of a problem in a context, until the tables change."""
    with loading_allowed():
        return kernel_for(GemmProblem(*fields), device, None, finish)


def by_autograd(name: str, keys: Any, *given: Any, **named: Any) -> Any:
    refuse_gradients(*given, *named.values())
    with torch._C._AutoDispatchBelowAutograd():
        operator = getattr(torch.ops.hopper_gemm, name).default
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *given, **named)


def _written(run: Any, *given: Any) -> None:
    """The operator with an output, its last argument."""
    run(*given[:-1], out=given[-1])


_runs = {"CUDA": _on_gpu, "CPU": _on_cpu}
OPERATORS.define(f"scaled_mm({_ARGUMENTS}) -> Tensor", tags=TAGS)
OPERATORS.define(f"scaled_mm_out({_ARGUMENTS}, Tensor(a!) out) -> ()", tags=TAGS)
implement("scaled_mm", _on_fake, **_runs, Autograd=partial(by_autograd, "scaled_mm"))
_runs = {key: partial(_written, run) for key, run in _runs.items()}
implement("scaled_mm_out", partial(_written, _on_fake), **_runs, Autograd=partial(by_autograd, "scaled_mm_out"))
