"""The drop-in: ``hopper_gemm.matmul``, served from the tuned table.

The module is not called ``matmul``: importing it would put the module where the package keeps the function.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch

from hopper_gemm.build.loader import LoadedKernel, load
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import problem_reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.tuned import TunedEntry, pick, read_tuned, recorded_tables

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, config: GemmConfig | None = None
) -> torch.Tensor:
    """``a @ b`` on a Hopper GPU, fp32 accumulation, as :func:`torch.mm`.

    The first call for a config compiles its kernel (about a second) unless the store holds it. Later calls with
    the same shapes and strides look it up and launch.

    Args:
        a: (m, k), bf16 or fp16, contiguous along either axis (a pitch is fine); read in place.
        b: (k, n), same type and device, likewise: row-major, or the ``.t()`` of a row-major (n, k) matrix, as a linear
            layer's weight is.
        out: (m, n), same type and device, n contiguous; made if None.
        config: how to run it; by default the recorded best of the most similar tuned problem.

    Returns:
        ``out``, written on torch's current stream.

    Raises:
        TypeError: an element type that is not supported, or types that differ.
        ValueError: shapes that do not fit, a layout or alignment that is not supported, or an illegal config.
        RuntimeError: the tensors are not on a Hopper GPU.

    Example:
        >>> weight = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)   # doctest: +SKIP
        >>> y = hopper_gemm.matmul(x, weight.t())                                   # doctest: +SKIP
    """
    if out is None:
        key: Any = (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device(), config)
        known = _known.get(key)
        if known is None or (a.data_ptr() | b.data_ptr()) & _MISALIGNED:
            problem = _problem(a, b)
            out = torch.empty(problem.m, problem.n, device=a.device, dtype=a.dtype)
            known = _remember(key, a, out, problem, config)
        else:
            out = a.new_empty((a.shape[0], b.shape[1]))
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
            config,
        )
        known = _known.get(key)
        if known is None or (a.data_ptr() | b.data_ptr() | out.data_ptr()) & _MISALIGNED:
            known = _remember(key, a, out, _problem(a, b), config)
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
    """Do the checks that are left, load the kernel, and spare later calls both."""
    _check_out(out, a, problem)
    _check_device(a.device)
    index = a.get_device()
    with torch.cuda.device(index):
        kernel = _kernel(config, problem, index)
    if len(_known) >= _KNOWN_MOST:
        _known.clear()
    _known[key] = known = (kernel, index if torch.cuda.device_count() > 1 else None)
    return known


def _problem(a: torch.Tensor, b: torch.Tensor) -> GemmProblem:
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
    layouts = ("k" if _has_rows(a) else "m") + ("n" if _has_rows(b) and not _has_rows(b.t()) else "k")
    problem = GemmProblem(a.shape[0], b.shape[1], a.shape[1], DTYPES[a.dtype], layouts)
    refused = problem_reasons(problem)
    if refused:
        raise ValueError("; ".join(map(str, refused)))
    by_rows = {"k": ("a", a), "m": ("a.t()", a.t())}[layouts[0]]
    _check_rows(*by_rows, "a = a.contiguous()")
    by_rows = {"k": ("b.t()", b.t()), "n": ("b", b)}[layouts[1]]
    _check_rows(*by_rows, "b = b.contiguous()")
    return problem


def _has_rows(matrix: torch.Tensor) -> bool:
    """Whether the matrix can be read as contiguous rows that do not overlap."""
    rows, columns = matrix.shape
    return (columns == 1 or matrix.stride(1) == 1) and (rows == 1 or matrix.stride(0) >= columns)


def _check_rows(name: str, matrix: torch.Tensor, mend: str) -> None:
    if not _has_rows(matrix):
        raise ValueError(
            f"{name} must have contiguous rows that do not overlap but has strides {tuple(matrix.stride())}; use {mend}"
        )
    step = hopper.TMA_ALIGN_BYTES
    if matrix.data_ptr() % step or matrix.stride(0) * matrix.element_size() % step:
        raise ValueError(
            f"{name} must start, and have its rows, at multiples of {step} bytes (TMA); "
            "pad its rows to multiples of 8 elements"
        )


def _check_out(out: torch.Tensor, a: torch.Tensor, problem: GemmProblem) -> None:
    if tuple(out.shape) != (problem.m, problem.n) or out.dtype != a.dtype or out.device != a.device:
        raise ValueError(
            f"out must be ({problem.m}, {problem.n}) {a.dtype} on {a.device} "
            f"but is {tuple(out.shape)} {out.dtype} on {out.device}"
        )
    _check_rows("out", out, "out = torch.empty(m, n, ...)")


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
    """The recorded best config of the most similar tuned problem; the kernel's default where nothing is recorded."""
    return pick(_tuned(), problem).config


@lru_cache(maxsize=1)
def _tuned() -> tuple[TunedEntry, ...]:
    return tuple(entry for path in recorded_tables().values() for entry in read_tuned(path))
