"""``hopper_gemm.matmul``: torch.mm on Hopper, by the kernel that was tuned for the problem."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.serve.fallback import POLICY, Fallback, checked
from hopper_gemm.serve.launches import LAUNCHES, launch


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: GemmConfig | None = None,
    fallback: Fallback | None = None,
    batch_invariant: bool | None = None,
) -> torch.Tensor:
    """``a @ b`` on a Hopper GPU, fp32 accumulation, as :func:`torch.mm`, with gradients.

    A kernel that no store holds is compiled in the background while torch.mm serves
    (:func:`hopper_gemm.while_compiling`); with a ``config`` the call compiles it. The first call after that loads it,
    and later calls with the same shapes and strides look it up and launch. It may be captured into a CUDA graph.

    Args:
        a: (m, k), bf16 or fp16, contiguous along either axis (a pitch is fine); read in place.
        b: (k, n), same type and device, likewise: row-major, or the ``.t()`` of a row-major (n, k) matrix, as a linear
            layer's weight is.
        out: (m, n), the operands' type or fp32, same device; made, contiguous, if None. There is no gradient through
            it.
        out_dtype: of the output: ``torch.float32``, what was accumulated, or the operands' type; by default that of
            ``out``, or of the operands where that is None.
        config: how to run it; by default the config tuned for this problem on this kind of GPU (order of the tables:
            :func:`hopper_gemm.use_table`), else a pick from the menu: for a launch between other
            kernels, or within :func:`hopper_gemm.chained` for launches back to back. Neither gradients nor
            torch.compile take one.
        fallback: ``"never"``, ``"unsupported"`` or ``"faster"``: what torch.mm runs instead; by default that of the
            thread, see :func:`hopper_gemm.fallback`.
        batch_invariant: True: a row's bits depend on its own values, on ``b``, and on n, k and the types alone, never
            on m, other rows, or the kernel that runs; tuned and picked configs are those that hold to it
            (docs/batch-invariance). By default as :func:`hopper_gemm.batch_invariant` says for this thread.

    Gradients are products of the same kernel. Where a model is traced, the call is ``torch.ops.hopper_gemm.mm``
    (:mod:`hopper_gemm.serve.ops`), at which torch.compile makes no break.

    Returns:
        ``out``, written on torch's current stream.

    Operands whose rows do not start at multiples of 16 bytes are out of TMA's reach: one launch ahead of the kernel
    copies them to a workspace of the stream, at each call. It costs the time to read and write such an operand once; to
    avoid it, pad a weight once. An output of that kind is written in place, by threads. Operands contiguous along
    neither axis are copied by torch first, and an ``out`` whose rows are not contiguous is written from a buffer.

    Raises:
        TypeError: no torch tensors, types that differ, or an output of a third type.
        ValueError: shapes that do not fit, an illegal config, or one that is not batch-invariant where that is asked,
            or an ``out`` that shares memory with an operand or with itself.
        RuntimeError: ``out`` or ``config`` is given where a gradient is recorded.
        UnsupportedError: a TypeError or RuntimeError where nothing falls back: the element type is not supported, or
            the tensors are not plain ones on a Hopper GPU.

    Example:
        >>> weight = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)   # doctest: +SKIP
        >>> y = hopper_gemm.matmul(x, weight.t())                                   # doctest: +SKIP
    """
    if not is_dynamo_compiling() and config is None and fallback is None and (native := LAUNCHES.native) is not None:
        product = native.matmul(a, b, out, out_dtype, batch_invariant)
        if product is not None:
            return product
    call = (a, b, None, None, None, None, out_dtype, batch_invariant, out, config, "mm")
    if fallback is None:
        return launch(call)
    before, POLICY.fallback = POLICY.fallback, checked(fallback)  # the context manager takes longer
    try:
        return launch(call)
    finally:
        POLICY.fallback = before
