"""The operators under ``torch.vmap``: what is batched becomes rows, columns or a batch of the same operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hopper_gemm.serve.call import Call, Maybe, finish_of, invariant
from hopper_gemm.serve.operands import folded
from hopper_gemm.serve.reference import finished
from hopper_gemm.serve.transforms.gradients import OPS

Fields = tuple[str, ...]


def _product(call: Call, batched: Fields) -> torch.Tensor:
    """Products of matrices or of batches of them, the axis of samples first; each is the same product of a sample."""
    a, b, more = call.a, call.b, (call.out_dtype, invariant(call))
    multiply = OPS.mm if call.kind == "mm" else OPS.bmm
    if "b" not in batched:  # more rows
        rows = multiply(a.movedim(0, -3).flatten(-3, -2), b, *more)
        return rows.unflatten(-2, (a.shape[0], a.shape[-2])).movedim(-3, 0)
    if "a" not in batched:  # more columns
        columns = multiply(a, b.movedim(0, -2).flatten(-2, -1), *more)
        return columns.unflatten(-1, (b.shape[0], b.shape[-1])).movedim(-2, 0)
    if a.dim() == 3:
        return OPS.bmm(a, b, *more)
    if b.dim() == 3:
        return OPS.bmm(a.flatten(1, 2), b, *more).unflatten(1, a.shape[1:3])
    return OPS.bmm(a.flatten(0, 1), b.flatten(0, 1), *more).unflatten(0, a.shape[:2])


def _layer(call: Call, batched: Fields, run: Callable[[Call], torch.Tensor]) -> torch.Tensor:
    """Layers of samples. Those of one weight and bias are a layer with another leading axis."""
    samples = next(getattr(call, field).shape[0] for field in batched)
    if "b" not in batched and "bias" not in batched:
        x = call.a if "a" in batched else call.a.expand(samples, *call.a.shape)
        residual = call.residual
        if residual is not None:
            residual = residual.contiguous() if "residual" in batched else residual.expand(samples, *residual.shape)
        return run(call._replace(a=x, residual=residual))
    leading = call.a.shape[1:-1] if "a" in batched else call.a.shape[:-1]
    x = call.a.reshape(samples, leading.numel(), call.a.shape[-1]) if "a" in batched else folded(call.a)
    dtype = call.out_dtype or call.a.dtype
    wide = torch.float32 if finish_of(call) else dtype
    operands = tuple(field for field in batched if field in ("a", "b"))
    pair = call._replace(a=x, b=call.b.mT, out_dtype=wide, kind="mm")
    product = _product(pair, operands) if operands else OPS.mm(x, call.b.t(), wide, invariant(call)).unsqueeze(0)
    bias = call.bias
    if bias is not None and "bias" in batched:
        bias = bias.reshape(samples, *(1,) * len(leading), bias.shape[-1])
    product = product.reshape(product.shape[0], *leading, product.shape[-1])
    return finished(product, call._replace(bias=bias)).to(dtype)


def batching_rule(
    call_of: Callable[..., Call],
    run: Callable[[Call], torch.Tensor],
    info: Any,
    axes: tuple[int | None, ...],
    *given: Any,
) -> tuple[Maybe, int | None]:
    """The output of an operator for all samples at once, their axis first, as ``torch.library.register_vmap`` needs."""
    call = call_of(*given)
    if call.out is not None:
        raise RuntimeError("out must be None under torch.vmap; use what is returned")
    axis_of = call_of(*axes, *(None,) * (len(given) - len(axes)))
    batched = tuple(field for field in ("a", "b", "bias", "residual") if getattr(axis_of, field) is not None)
    call = call._replace(**{field: getattr(call, field).movedim(getattr(axis_of, field), 0) for field in batched})
    return _product(call, batched) if call.kind in ("mm", "bmm") else _layer(call, batched, run), 0
