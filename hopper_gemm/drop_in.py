"""The drop-in: ``hopper_gemm.matmul``, served from the tuned table.

The module is not called ``matmul``: importing it would put the module where the package keeps the function.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch

from hopper_gemm.compiler.loader import LoadedKernel, load
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import problem_reasons, reachable
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.tuned import TunedEntry, pick, recorded_entries

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Of the operands. Of the output the same, or fp32."""


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: GemmConfig | None = None,
) -> torch.Tensor:
    """``a @ b`` on a Hopper GPU, fp32 accumulation, as :func:`torch.mm`.

    The first call for a config compiles its kernel (about a second) unless the store holds it. Later calls with
    the same shapes and strides look it up and launch.

    Args:
        a: (m, k), bf16 or fp16, contiguous along either axis (a pitch is fine); read in place.
        b: (k, n), same type and device, likewise: row-major, or the ``.t()`` of a row-major (n, k) matrix, as a linear
            layer's weight is.
        out: (m, n), the operands' type or fp32, same device; made, contiguous, if None.
        out_dtype: of the output: ``torch.float32``, what was accumulated, or the operands' type; by default that of
            ``out``, or of the operands where that is None.
        config: how to run it; by default what was tuned for this very problem, else what an analytic model chooses.

    Returns:
        ``out``, written on torch's current stream.

    What TMA cannot reach in place is copied first, at each call: operands whose n or k is no multiple of 8, whose rows
    do not start at multiples of 16 bytes, or that are contiguous along neither axis; an ``out`` of that kind is written
    from a buffer. A copy costs the time to read and write the matrix once. To spare it, pad a weight once.

    Raises:
        TypeError: an element type that is not supported, types that differ, or an output of a third type.
        ValueError: shapes that do not fit, or an illegal config.
        RuntimeError: the tensors are not on a Hopper GPU.

    Example:
        >>> weight = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)   # doctest: +SKIP
        >>> y = hopper_gemm.matmul(x, weight.t())                                   # doctest: +SKIP
    """
    if out is None:
        key: Any = (
            a.shape,
            a.stride(),
            a.dtype,
            a.get_device(),
            b.shape,
            b.stride(),
            b.dtype,
            b.get_device(),
            out_dtype,
            config,
        )
        known = _known.get(key)
        if known is None or (a.data_ptr() | b.data_ptr()) & _MISALIGNED:
            _check_pair(a, b)
            _check_out_dtype(out_dtype, a)
            if _out_of_reach(a, b, None):
                return _staged(a, b, None, out_dtype or a.dtype, config)
            problem = _problem(a, b, out_dtype)
            out = torch.empty(problem.m, problem.n, device=a.device, dtype=out_dtype or a.dtype)
            known = _remember(key, a, out, problem, config)
        elif out_dtype is None:
            out = a.new_empty((a.shape[0], b.shape[1]))
        else:
            out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
    else:
        key = (
            a.shape,
            a.stride(),
            a.dtype,
            a.get_device(),
            b.shape,
            b.stride(),
            b.dtype,
            b.get_device(),
            out.shape,
            out.stride(),
            out.dtype,
            out.get_device(),
            out_dtype,
            config,
        )
        known = _known.get(key)
        if known is None or (a.data_ptr() | b.data_ptr() | out.data_ptr()) & _MISALIGNED:
            _check_pair(a, b)
            _check_out_dtype(out_dtype, a)
            _check_out(out, a, b, out_dtype)
            if _out_of_reach(a, b, out):
                return _staged(a, b, out, out.dtype, config)
            known = _remember(key, a, out, _problem(a, b, out.dtype), config)
    kernel, device = known
    if device is None or device == torch.cuda.current_device():
        kernel(a, b.t(), out)
    else:
        with torch.cuda.device(device):
            kernel(a, b.t(), out)
    return out


_MISALIGNED = hopper.TMA_ALIGN_BYTES - 1
"""Bits of an address that must be 0."""

_KNOWN_MOST = 4096
"""Remembered at once; when there are more, all are forgotten."""

_known: dict[Any, tuple[LoadedKernel, int | None]] = {}
"""What passed every check, by all that the checks look at: shapes, strides, types, devices, config; not addresses. The
kernel to launch, and the device that must be current; None on a host that has only one."""


def _remember(
    key: Any, a: torch.Tensor, out: torch.Tensor, problem: GemmProblem, config: GemmConfig | None
) -> tuple[LoadedKernel, int | None]:
    """Do the check that is left, load the kernel, and spare later calls both."""
    _check_device(a.device)
    index = a.get_device()
    with torch.cuda.device(index):
        kernel = _kernel(config, problem, index)
    if len(_known) >= _KNOWN_MOST:
        _known.clear()
    _known[key] = known = (kernel, index if torch.cuda.device_count() > 1 else None)
    return known


def _check_pair(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a and b must be (m, k) and (k, n) but got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise TypeError(
            f"a and b must both be bfloat16 or both float16 but got {a.dtype} and {b.dtype}; convert them with .to()"
        )
    if a.device != b.device:
        raise ValueError(f"a and b must be on one device but are on {a.device} and {b.device}")
    if 0 in (*a.shape, *b.shape):
        raise ValueError(f"m, n and k must be positive but a and b are {tuple(a.shape)} and {tuple(b.shape)}")


def _check_out_dtype(out_dtype: torch.dtype | None, a: torch.Tensor) -> None:
    if out_dtype not in (None, a.dtype, torch.float32):
        raise TypeError(f"out_dtype must be {a.dtype}, as the operands are, or torch.float32 but got {out_dtype}")


def _check_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    m, n = a.shape[0], b.shape[1]
    allowed = (a.dtype, torch.float32) if out_dtype is None else (out_dtype,)
    if tuple(out.shape) != (m, n) or out.dtype not in allowed or out.device != a.device:
        raise ValueError(
            f"out must be ({m}, {n}) {' or '.join(map(str, allowed))} on {a.device} "
            f"but is {tuple(out.shape)} {out.dtype} on {out.device}"
        )


def _problem(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> GemmProblem:
    """The problem, by the axis along which each operand is read; its output of the operands' type if None."""
    layouts = ("k" if _has_rows(a) else "m") + ("n" if _has_rows(b) and not _has_rows(b.t()) else "k")
    dtype = DTYPES[a.dtype] + ("_fp32" if out_dtype == torch.float32 else "")
    return GemmProblem(a.shape[0], b.shape[1], a.shape[1], dtype, layouts)


# What TMA cannot reach -----------------------------------------------------------------------


def _out_of_reach(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> bool:
    """Whether TMA cannot read an operand, or write the output, where it lies."""
    if problem_reasons(_problem(a, b)):
        return True
    return not (_reaches(a) or _reaches(a.t())) or not (_reaches(b) or _reaches(b.t())) or not _reaches(out)


def _has_rows(matrix: torch.Tensor) -> bool:
    """Whether the matrix can be read as contiguous rows that do not overlap."""
    rows, columns = matrix.shape
    return (columns == 1 or matrix.stride(1) == 1) and (rows == 1 or matrix.stride(0) >= columns)


def _reaches(matrix: torch.Tensor | None) -> bool:
    """Whether it has contiguous rows that start at multiples of 16 bytes; nothing is always within reach."""
    if matrix is None:
        return True
    step = hopper.TMA_ALIGN_BYTES
    return _has_rows(matrix) and not (matrix.data_ptr() % step or matrix.stride(0) * matrix.element_size() % step)


def _staged(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype, config: GemmConfig | None
) -> torch.Tensor:
    """The product by way of copies that TMA can reach, filled up to multiples of 8: with zeros along k; rows that are
    filled up hold anything, since they meet nothing but rows and columns of the product that nobody sees."""
    _check_device(a.device)
    (m, k), n = a.shape, b.shape[1]
    rows = reachable(m) if _has_rows(a.t()) and not _has_rows(a) else m
    read_a = _reachable(a, rows, reachable(k))
    read_b = _reachable(b.t(), reachable(n), reachable(k)).t()
    written = out
    if out is None or (rows, read_b.shape[1]) != (m, n) or not _reaches(out):
        written = a.new_empty(rows, read_b.shape[1], dtype=out_dtype)
    assert written is not None
    matmul(read_a, read_b, out=written, config=config)
    if written is out:
        return out
    product = written[:m, :n]
    return product.contiguous() if out is None else out.copy_(product)


def _reachable(matrix: torch.Tensor, rows: int, depth: int) -> torch.Tensor:
    """An operand as (rows, depth), copied and filled up if it must be; it keeps its contiguous axis."""
    if tuple(matrix.shape) == (rows, depth) and (_reaches(matrix) or _reaches(matrix.t())):
        return matrix
    own_rows, own_depth = matrix.shape
    lies = _has_rows(matrix.t()) and not _has_rows(matrix)
    copy = matrix.new_empty(depth, rows).t() if lies else matrix.new_empty(rows, depth)
    if own_depth == depth or lies:
        copy[:own_rows, :own_depth] = matrix
        copy[:, own_depth:] = 0
    else:  # short of a launch: of a small matrix launches are all that a copy costs
        torch.cat((matrix, matrix.new_zeros(own_rows, depth - own_depth)), 1, out=copy[:own_rows])
    return copy


@cache
def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise RuntimeError(
            f"a and b must be on a Hopper GPU but are on {device}; move them with .cuda(), or use torch.mm"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability != hopper.COMPUTE_CAPABILITY:
        major, minor = capability
        raise RuntimeError(
            f"the kernel needs a Hopper GPU (sm_90) but {device} is sm_{major}{minor}; use torch.mm there"
        )


@cache
def _kernel(config: GemmConfig | None, problem: GemmProblem, device: int) -> LoadedKernel:
    """The kernel for a problem, once for each device."""
    return load(config or default_config(problem), problem)


def default_config(problem: GemmProblem) -> GemmConfig:
    """The recorded best config of this very problem; where it was not tuned, what the analytic model chooses."""
    return pick(_tuned(), problem).config


@lru_cache(maxsize=1)
def _tuned() -> tuple[TunedEntry, ...]:
    return tuple(recorded_entries())
