"""``hopper_gemm.bmm``: torch.bmm by matmul's kernel, in one launch."""

from __future__ import annotations

import torch

from hopper_gemm.model.rules.invariance import parts_of
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.checks import DTYPES, check_call
from hopper_gemm.serve.grouped_mm import batched
from hopper_gemm.serve.kernels import MODE
from hopper_gemm.serve.launches import launch
from hopper_gemm.serve.operands import folded
from hopper_gemm.serve.ops import OPERATORS, by_operator, untraced


def bmm(
    a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """``a @ b`` of batches of matrices on a Hopper GPU, fp32 accumulation, as :func:`torch.bmm`, with gradients.

    :func:`hopper_gemm.matmul`'s kernel multiplies all matrices in one launch. It is launched once for each matrix where
    TMA cannot read or write one in place (rows or matrices that do not start at multiples of 16 bytes, a stride of 0),
    and where a batch-invariant product cuts k into parts.

    Args:
        a: (batch, m, k), bf16 or fp16; each matrix as ``matmul`` takes it, read in place.
        b: (batch, k, n), same type and device. One matrix for the whole batch, given as (k, n) or expanded with a
            stride of 0, is multiplied in one launch by all rows of ``a`` together, without a copy where the strides of
            ``a`` allow that. Given as (k, n), its gradient is one product too.
        out_dtype: ``torch.float32`` or the operands' type, which is the default.
        batch_invariant: as of ``matmul``; by default as the thread's context says.

    Returns:
        (batch, m, n), contiguous, written on torch's current stream.

    What the kernel cannot run goes to torch, by the policy of :func:`hopper_gemm.fallback`.

    Raises:
        TypeError, ValueError: no torch tensors, types that differ, or shapes that do not fit.
        UnsupportedError: as of ``matmul``, where nothing falls back.

    Example:
        >>> y = hopper_gemm.bmm(x, experts)                                         # doctest: +SKIP
    """
    return by_operator(Call(a, b, out_dtype=out_dtype, batch_invariant=batch_invariant, kind="bmm"))


@untraced
def _bmm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """The operator on a GPU."""
    check_call(Call(a, b, out_dtype=out_dtype, kind="bmm"))
    batch, m, n = *a.shape[:2], b.shape[-1]
    with torch.no_grad():  # autograd has been here
        if b.dim() == 2 or (batch and b.stride(0) == 0):
            rows = Call(folded(a), b if b.dim() == 2 else b[0], out_dtype=out_dtype, batch_invariant=batch_invariant)
            return launch(rows._replace(kind="mm")).view(batch, m, n)
        out = a.new_empty((batch, m, n), dtype=out_dtype or a.dtype)
        rule = MODE.batch_invariant if batch_invariant is None else batch_invariant
        whole = out.numel() and a.shape[-1] and not (rule and parts_of(n, a.shape[-1]) > 1)
        if whole and a.dtype in DTYPES and batched(a, b, out, invariant=rule):
            return out
        for left, right, product in zip(a, b, out, strict=True):
            launch(Call(left, right, out=product, batch_invariant=batch_invariant, kind="mm"))
    return out


OPERATORS.impl("bmm", _bmm, "CUDA")
