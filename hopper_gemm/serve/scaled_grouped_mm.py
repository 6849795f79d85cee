"""``hopper_gemm.scaled_grouped_mm``: torch's scaled products of FP8 in groups of rows, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from hopper_gemm.model.finish import ActivationName, Epilogue
from hopper_gemm.model.grouped import ROWS_MOST
from hopper_gemm.model.problem import shown
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import scaled
from hopper_gemm.serve.call import Maybe
from hopper_gemm.serve.checks import MisfitError, UnsupportedError, check_device
from hopper_gemm.serve.fallback import POLICY
from hopper_gemm.serve.grouped_mm import Grouped, along, check_ends, check_values, kernel_of_groups
from hopper_gemm.serve.kernels import MODE
from hopper_gemm.serve.ops import OPERATORS, TAGS, implement, untraced
from hopper_gemm.serve.reference import activated
from hopper_gemm.serve.scaled import Listed


def scaled_grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: Listed,
    scale_recipe_a: Any,
    scale_b: Listed,
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Maybe = None,
    offs: Maybe = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    activation: ActivationName | None = None,
    promote: int = 128,
) -> torch.Tensor:
    """:func:`hopper_gemm.scaled_mm` of the rows of each group in one launch, with the names, layouts and recipes of
    :func:`torch.nn.functional.scaled_grouped_mm`.

    Args:
        mat_a: (rows, k), as of ``scaled_mm``.
        mat_b: (groups, k, n), each matrix as of ``scaled_mm``.
        scale_a: as of ``scaled_mm``, or (rows,): of rows or of blocks.
        scale_b: that of ``scaled_mm`` for each group: (groups, n), or (groups, k / 128, n / 128) of blocks.
        scale_recipe_a, scale_recipe_b: both ``ScalingType.RowWise``; or ``BlockWise1x128`` and ``BlockWise128x128``.
        bias: (groups, n), of the type that ``scaled_mm`` takes.
        offs: as of :func:`hopper_gemm.grouped_mm`.
        swizzle_a, swizzle_b, output_dtype, contraction_dim, use_fast_accum, activation, promote: as of ``scaled_mm``.

    Returns:
        (rows, n), written on torch's current stream; rows behind the last group are not. There are no gradients.

    What the kernel cannot run, such as groups along k, goes to torch's function, by the policy of
    :func:`hopper_gemm.fallback`.

    Raises:
        TypeError, ValueError, RuntimeError, UnsupportedError: as of ``scaled_mm`` and ``grouped_mm``.

    Example:
        >>> y = hopper_gemm.scaled_grouped_mm(x, w.mT, sx, ROW, sw, ROW, offs=offs)  # doctest: +SKIP
    """
    scaled.refuse_gradients(mat_a, mat_b, bias)
    functional: Any = torch.nn.functional
    given = mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a, swizzle_b
    more = output_dtype, contraction_dim, use_fast_accum
    scales, promote, why = scaled.recipe_of(given, *more, promote)
    if why is None and (scales[2] == "tensor" or (mat_a.dim(), mat_b.dim()) != (2, 3)):
        why = "mat_a and mat_b must be (rows, k) and (groups, k, n), scaled by row or by blocks; others are torch's"
    if why is not None:
        if POLICY.fallback == "never" or MODE.batch_invariant:
            raise UnsupportedError(why)
        return activated(functional.scaled_grouped_mm(*given, bias, offs, *more), activation)
    if not isinstance(offs, torch.Tensor):
        raise TypeError(f"offs must be an int32 tensor but is {shown(offs)}; give each group's end")
    return torch.ops.hopper_gemm.scaled_grouped_mm(mat_a, mat_b, *scales, offs, bias, activation, output_dtype, promote)


def _check(a: Any, b: Any, scale_a: Any, scale_b: Any, scales: str, offs: Any, bias: Maybe, dtype: Any) -> None:
    """Refuse what does not fit; tensors may be fake."""
    check_ends(offs, b.shape[0] if b.dim() == 3 else 0, a.device)
    groups = offs.shape[0]
    for name, tensor, axes in (
        ("mat_b", b, 3),
        ("scale_b", scale_b, 3 if scales == "blocks" else 2),
        ("bias", bias, 2),
    ):
        if tensor is not None and (tensor.dim() != axes or tensor.shape[0] != groups):
            raise MisfitError(
                f"{name} must have {axes} axes, the first of {groups} groups, but is {tuple(tensor.shape)}; reshape it"
            )
    if groups:
        scaled.check(a, b[0], scale_a, scale_b[0], scales, None if bias is None else bias[0], dtype, None)


def _on_cpu(*given: Any) -> torch.Tensor:
    """Products in fp32, finished, rounded once; zeros behind the last group."""
    a, b, scale_a, scale_b, scales, offs, bias, activation, dtype, _ = given
    _check(a, b, scale_a, scale_b, scales, offs, bias, dtype)
    check_values(offs, a.shape[0])
    out = a.new_zeros((a.shape[0], b.shape[2]), dtype=dtype)
    for at, (start, end) in enumerate(Grouped(a, b, offs).spans()):
        sides = a[start:end], b[at], scale_a[start:end], scale_b[at]
        out[start:end] = scaled.reference(*sides, scales, None if bias is None else bias[at], activation, dtype)
    return out


def _on_fake(*given: Any) -> torch.Tensor:
    a, b, scale_a, scale_b, scales, offs, bias, activation, dtype, _ = given
    _check(a, b, scale_a, scale_b, scales, offs, bias, dtype)
    Epilogue(activation=activation or "")
    return a.new_empty((a.shape[0], b.shape[2]), dtype=dtype)


@untraced
def _on_gpu(*given: Any) -> torch.Tensor:
    a, b, scale_a, scale_b, scales, offs, bias, activation, dtype, promote = given
    _check(a, b, scale_a, scale_b, scales, offs, bias, dtype)
    check_values(offs, a.shape[0])
    check_device(a.device)
    (m, k), (groups, _, n) = a.shape, b.shape
    if m >= ROWS_MOST:
        raise MisfitError(f"mat_a must have fewer than {ROWS_MOST} rows but has {m}; multiply it in parts")
    if 0 in (m, n, k, groups):
        return _on_cpu(*given)
    finish = Epilogue(bias=bias is not None, activation=activation or "", scales=scales)
    added = None if bias is None else scaled.aligned(bias)
    if scales == "row":
        both = scaled.aligned(scale_a), scaled.aligned(scale_b)
    else:
        blocks = scale_b.mT
        whole = blocks.stride(2) == 1 and 1 not in blocks.shape
        both = scaled.of_blocks(scale_a), blocks if whole else blocks.clone(memory_format=torch.contiguous_format)
    kind, device = f"{scaled.OPERANDS[a.dtype]}_{scaled.OUTPUTS[dtype]}", a.get_device()
    out = a.new_empty((m, n), dtype=dtype)
    with torch.cuda.device(device):
        problem = m, n, k, kind, "kk", False, promote, groups, "rows"
        kernel = kernel_of_groups(problem, finish, MODE.context, device, CHANGES.count)
        left, right, ends = along(a, True), along(b.mT, True), scaled.aligned(offs)
        kernel(left, right, out, added, None, None, scales=both, ends=ends)
    return out


OPERATORS.define(
    "scaled_grouped_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str scales, Tensor offs, Tensor? bias, "
    "str? activation, ScalarType out_dtype, int promote) -> Tensor",
    tags=TAGS,
)
_recorded = partial(scaled.by_autograd, "scaled_grouped_mm")
implement("scaled_grouped_mm", _on_fake, CUDA=_on_gpu, CPU=_on_cpu, Autograd=_recorded)
