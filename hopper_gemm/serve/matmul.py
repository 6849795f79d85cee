"""``hopper_gemm.matmul``: torch.mm on Hopper, by the kernel that was tuned for the problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling, is_dynamo_compiling

from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.compiler.padding import Rows, load_padded
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve.checks import (
    DTYPES,
    PLAIN,
    UnsupportedError,
    check_device,
    check_fit,
    check_memory,
    check_supported,
    refuse_foreign,
)
from hopper_gemm.serve.eager import recordable, recording
from hopper_gemm.serve.fallback import POLICY, checked, is_plain, launch_torch, torch_is_faster, torch_mm
from hopper_gemm.serve.kernels import MODE, kernel_for, pick_for
from hopper_gemm.serve.known import KNOWN, native
from hopper_gemm.serve.operands import copied, extent, has_rows, reaches, reads_along_k
from hopper_gemm.serve.ops import backward, implement, in_autocast, mm, mm_out, save


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: GemmConfig | None = None,
    fallback: str | None = None,
    batch_invariant: bool | None = None,
) -> torch.Tensor:
    """``a @ b`` on a Hopper GPU, fp32 accumulation, as :func:`torch.mm`, with gradients.

    The first call for a config compiles its kernel (about a second) unless the store holds it; calls from several
    threads wait for each other there. Later calls with the same shapes and strides look it up and launch. It may be
    captured into a CUDA graph.

    Args:
        a: (m, k), bf16 or fp16, contiguous along either axis (a pitch is fine); read in place.
        b: (k, n), same type and device, likewise: row-major, or the ``.t()`` of a row-major (n, k) matrix, as a linear
            layer's weight is.
        out: (m, n), the operands' type or fp32, same device; made, contiguous, if None. There is no gradient through
            it.
        out_dtype: of the output: ``torch.float32``, what was accumulated, or the operands' type; by default that of
            ``out``, or of the operands where that is None.
        config: how to run it; by default the config tuned for this problem on this kind of GPU (order of the tables:
            :func:`hopper_gemm.use_table`), else the choice of an analytic model: for a launch between other
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
    if not is_dynamo_compiling() and config is None and fallback is None and (native := KNOWN.native) is not None:
        product = native.matmul(a, b, out, out_dtype, batch_invariant)
        if product is not None:
            return product
    if batch_invariant is None:
        batch_invariant = MODE.batch_invariant
    if is_dynamo_compiling():
        return _operator(a, b, out, out_dtype, config, batch_invariant, fallback)
    if fallback is not None:
        before, POLICY.fallback = POLICY.fallback, checked(fallback)  # the context manager takes longer
        try:
            return matmul(a, b, out=out, out_dtype=out_dtype, config=config, batch_invariant=batch_invariant)
        finally:
            POLICY.fallback = before
    try:
        if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
            if out is None and config is None:
                left, right = in_autocast(a, b) if torch.float32 in (a.dtype, b.dtype) and cast(a, b) else (a, b)
                if recordable(left, right):
                    return _recorded(left, right, out_dtype, batch_invariant)
            return _operator(a, b, out, out_dtype, config, batch_invariant)
        if KNOWN.launch is not None and KNOWN.native is None and config is None:
            product = _repeated(KNOWN.launch, a, b, out, out_dtype, batch_invariant)
            if product is not None:
                return product
        if out is None:
            key: Any = (
                a.shape, a.stride(), a.dtype, a.get_device(), a.is_neg(), type(a),
                b.shape, b.stride(), b.dtype, b.get_device(), b.is_neg(), type(b),
                out_dtype, config, MODE.context, batch_invariant, POLICY.fallback,
            )  # fmt: skip
        else:
            if out.requires_grad and torch.is_grad_enabled():
                return _operator(a, b, out, out_dtype, config, batch_invariant)
            key = (
                a.shape, a.stride(), a.dtype, a.get_device(), a.is_neg(), type(a),
                b.shape, b.stride(), b.dtype, b.get_device(), b.is_neg(), type(b),
                out.shape, out.stride(), out.dtype, out.get_device(), out.is_neg(), type(out),
                out_dtype, config, MODE.context, batch_invariant, POLICY.fallback,
            )  # fmt: skip
        known = _known.get(key)
    except (AttributeError, TypeError):
        refuse_foreign(a, b, out, config)
        raise
    if known is None:
        return _first(a, b, out, out_dtype, config, batch_invariant, key)
    kernel, device, span_a, span_b, span_out = known
    at_a, at_b = a.data_ptr(), b.data_ptr()
    if out is None:
        if kernel is None or (at_a | at_b) & _MISALIGNED:
            return _elsewhere(a, b, out, out_dtype, config, batch_invariant, key)
        size = a.shape[0], b.shape[1]
        out = a.new_empty(size) if out_dtype is None else a.new_empty(size, dtype=out_dtype)
    else:
        at = out.data_ptr()
        if (
            kernel is None
            or (at_a | at_b | at) & _MISALIGNED
            or at_a - span_out < at < at_a + span_a
            or at_b - span_out < at < at_b + span_b
        ):
            return _elsewhere(a, b, out, out_dtype, config, batch_invariant, key)
    if device is None or device == torch.cuda.current_device():
        kernel(a, b.mT, out)
    else:
        with torch.cuda.device(device):
            kernel(a, b.mT, out)
    return out


def _repeated(
    launch: Callable[..., int],
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    batch_invariant: bool,
) -> torch.Tensor | None:
    """The product by a launch that the library knows; None where it knows none."""
    if type(a) not in PLAIN or type(b) not in PLAIN or a.is_neg() or b.is_neg() or a.dim() != 2 or b.dim() != 2:
        return None
    if out is None:
        m, n = a.shape[0], b.shape[1]
        out = a.new_empty(m, n) if out_dtype is None else a.new_empty((m, n), dtype=out_dtype)  # a tuple takes longer
    elif (
        type(out) not in PLAIN
        or out.is_neg()
        or (out.requires_grad and torch.is_grad_enabled())
        or out_dtype not in (None, out.dtype)
    ):
        return None
    if KNOWN.several and a.get_device() != torch.cuda.current_device():
        return None
    setting = KNOWN.setting(None, MODE.context, batch_invariant, POLICY.fallback)
    return out if launch(setting, a, b, out) else None


_MISALIGNED = hopper.TMA_ALIGN_BYTES - 1
"""Bits of an address that must be 0."""

_KNOWN_MOST = 4096
"""Most launches kept in ``_known``; beyond it all are dropped."""

_Known = tuple[Callable[..., None] | None, int | None, int, int, int]

_known: dict[Any, _Known] = {}
"""Launches that passed every check, by all that the checks read: shapes, strides, types, devices, config, context,
batch invariance, fallback; and, where some address is no multiple of 16 bytes, by which ones. Each: the kernel, None if
only such addresses are known; the device that must be current, None on a host that has only one; the extents of the
operands and the output, in bytes."""


def _forget() -> None:
    """Drop known launches after a change of the tuned tables; a call in progress records its launch in the old dict."""
    global _known
    _known = {}


CHANGES.watchers.append(_forget)


def _first(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    config: GemmConfig | None,
    batch_invariant: bool,
    key: Any,
) -> torch.Tensor:
    """A call that is not known: check everything, multiply, and record the launch for later calls unless torch copies
    something."""
    if traced(a, b) or cast(a, b):
        return _operator(a, b, out, out_dtype, config, batch_invariant)
    remembered, setting = _known, KNOWN.setting(None, MODE.context, batch_invariant, POLICY.fallback)
    refuse_foreign(a, b, out, config)
    check_fit(a, b, out, out_dtype)
    if _falls_back(a, b, out, config is not None or batch_invariant):
        product = torch_mm(a, b, out, out_dtype)
        if product.dtype == a.dtype and is_plain(a, b, product) and len(remembered) < _KNOWN_MOST:
            remembered[key] = (launch_torch, a.get_device(), extent(a), extent(b), extent(product))
        return product
    if a.is_neg() or b.is_neg():
        plain = a.resolve_neg(), b.resolve_neg()
        return matmul(*plain, out=out, out_dtype=out_dtype, config=config, batch_invariant=batch_invariant)
    if out is not None:
        check_memory(out, a, b)
    dtype = out.dtype if out is not None else out_dtype or a.dtype
    (m, k), n = a.shape, b.shape[1]
    if 0 in (m, n, k):
        return a.new_zeros((m, n), dtype=dtype) if out is None else out.zero_()
    how: Any = {"config": config, "batch_invariant": batch_invariant}
    if out is not None and (out.is_neg() or not has_rows(out) or out.stride(1) != 1):
        return out.copy_(matmul(a, b, out_dtype=dtype, **how))
    rows_a, rows_b = _rows(a), _rows(b.t())
    if rows_a is None or rows_b is None:
        read_a, read_b = copied(a) if rows_a is None else a, copied(b.t()).t() if rows_b is None else b
        return matmul(read_a, read_b, out=out, out_dtype=dtype, **how)
    layouts = "".join("k" if one.by_depth else axis for one, axis in zip((rows_a, rows_b), "mn", strict=True))
    kind = DTYPES[a.dtype] + ("_fp32" if dtype == torch.float32 else "")
    problem, index = GemmProblem(m, n, k, kind, layouts, batch_invariant), a.get_device()
    product = torch.empty(m, n, device=a.device, dtype=dtype) if out is None else out
    with torch.cuda.device(index), loading_allowed():
        may = POLICY.fallback == "faster" and config is None and not batch_invariant
        faster = may and torch_is_faster(pick_for(problem, index))
        kernel: Callable[..., None] = launch_torch
        if not faster:
            loaded = kernel_for(problem, index, config, scattered=not reaches(product))
            kernel = _behind_padding(loaded, (a, b.t()), (rows_a, rows_b))
        kernel(a, b.t(), product)
    if len(remembered) >= _KNOWN_MOST:
        remembered.clear()
    device = index if torch.cuda.device_count() > 1 else None
    off, extents = _off(a, b, out), (extent(a), extent(b), extent(product))
    remembered[(key, off) if any(off) else key] = (kernel, device, *extents)
    remembered.setdefault(key, (None, device, *extents))
    if config is None and not any(off):
        KNOWN.record(kernel, True, setting, a, b, product)
    return product


def _elsewhere(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    config: GemmConfig | None,
    batch_invariant: bool,
    key: Any,
) -> torch.Tensor:
    """A known call at other addresses: an ``out`` that may overlap an operand, or matrices off multiples of 16 bytes,
    which another launch serves."""
    known = _known.get((key, _off(a, b, out)))
    if known is None:
        return _first(a, b, out, out_dtype, config, batch_invariant, key)
    if out is not None:
        check_memory(out, a, b)
    kernel, device, *_ = known
    assert kernel is not None
    if out is None:
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
    with nullcontext() if device is None else torch.cuda.device(device):
        kernel(a, b.mT, out)
    return out


def _off(*matrices: torch.Tensor | None) -> tuple[bool, ...]:
    """Whether each matrix begins off a multiple of 16 bytes."""
    return tuple(one is not None and one.data_ptr() & _MISALIGNED != 0 for one in matrices)


def _rows(operand: torch.Tensor) -> Rows | None:
    """How an operand (m or n, k) lies; None if it cannot be read as rows."""
    along_k = reads_along_k(operand)
    if along_k is None:
        return None
    rows = Rows.of(operand.shape, operand.stride(), along_k)
    return rows if rows.countable else None


def _behind_padding(kernel: LoadedKernel, operands: tuple[torch.Tensor, torch.Tensor], rows: tuple[Rows, Rows]) -> Any:
    """The kernel for operands (m or n, k) as they lie, behind what pads those that TMA cannot reach."""
    read = [one if row.by_depth else one.t() for one, row in zip(operands, rows, strict=True)]
    pad_a, pad_b = (None if reaches(one) else row for one, row in zip(read, rows, strict=True))
    return load_padded(kernel, pad_a, pad_b) if pad_a or pad_b else kernel


def _operator(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    config: GemmConfig | None,
    batch_invariant: bool,
    fallback: str | None = None,
) -> torch.Tensor:
    """The product as an operator of torch's, for autograd and for tracing. What is traced falls back by its type alone:
    which device it will run on is not known."""
    if traced(a, b):
        known = a.dtype in DTYPES or (fallback or POLICY.fallback) == "never" or batch_invariant or config is not None
        falls_back = not known and a.dtype == b.dtype and not cast(a, b)
    else:
        refuse_foreign(a, b, out, config)
        falls_back = _falls_back(a, b, out, config is not None or batch_invariant)
    if config is not None:
        raise RuntimeError("config must be None where gradients are recorded or a model is traced; use torch.no_grad()")
    if falls_back and not cast(a, b):
        check_fit(a, b, out, out_dtype)
    if out is None:
        return torch_mm(a, b, None, out_dtype) if falls_back else mm(a, b, out_dtype, batch_invariant)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or out.requires_grad):
        raise RuntimeError("out must be None where a gradient is recorded; use what is returned, or torch.no_grad()")
    if out_dtype not in (None, out.dtype):
        raise ValueError(f"out_dtype must be that of out, {out.dtype}, but got {out_dtype}; leave it out")
    if falls_back:
        return torch_mm(a, b, out)
    mm_out(a, b, out, batch_invariant)
    return out


def _falls_back(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, ours: bool) -> bool:
    """Return True if torch.mm runs a call that the kernel cannot.

    Args:
        a, b, out: of the call.
        ours: True if torch.mm could not give what is asked.

    Raises:
        UnsupportedError: the kernel cannot, and torch.mm may not.
    """
    try:
        if cast(a, b):
            check_device(a.device)
        else:
            check_supported(a, b, out)
    except UnsupportedError:
        if ours or POLICY.fallback == "never":
            raise
        return True
    return False


def traced(*tensors: Any) -> bool:
    """Return True if a call is being traced, for torch.compile or torch.export or by fake tensors alone."""
    return is_compiling() or any(isinstance(one, FakeTensor) for one in tensors)


def cast(*operands: Any) -> bool:
    """Return True if autocast changes the type of an operand, on a GPU or a CPU."""
    return any(
        isinstance(one, torch.Tensor)
        and one.dtype == torch.float32
        and one.device.type in ("cuda", "cpu")
        and torch.is_autocast_enabled(one.device.type)
        for one in operands
    )


@contextmanager
def loading_allowed() -> Iterator[None]:
    """While a stream of this thread is captured, permit what loading a kernel needs and captures forbid by default,
    such as allocating memory; none of it is part of the graph."""
    if not torch.cuda.is_current_stream_capturing():
        yield
        return
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


# Gradients of eager calls, and the operators on a GPU -----------------------------------------


def product(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """:func:`matmul` with the arguments of ``torch.ops.hopper_gemm.mm``."""
    return matmul(a, b, out_dtype=out_dtype, batch_invariant=batch_invariant)


_recorded = recording("hopper_gemm_mm", product, save, partial(backward, product=product))


def _mm(*given: Any, **named: Any) -> torch.Tensor:
    with torch.no_grad():  # autograd has been here
        return product(*given, **named)


def _mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, batch_invariant: bool | None = None) -> None:
    with torch.no_grad():
        matmul(a, b, out=out, batch_invariant=batch_invariant)


if (_extension := native()) is not None:
    _extension.start(MODE, POLICY, product)
implement("mm", _mm)
implement("mm_out", _mm_out)
