"""What :func:`torch.mm` multiplies instead of the kernel: operands that the kernel cannot run, and, where asked for,
problems on which torch.mm was measured to be faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hopper_gemm.model.tuned import Pick
from hopper_gemm.serve.checks import PLAIN, check_memory

POLICIES = ("never", "unsupported", "faster")

GAIN = 1.02
"""Least speedup of torch.mm over a tuned kernel for which ``"faster"`` takes torch.mm: smaller ones lie within the
noise of boards and runs."""


class Policy(threading.local):
    """The policy of a thread for its next calls.

    Args:
        fallback: of :data:`POLICIES`.
    """

    def __init__(self) -> None:
        self.fallback = "unsupported"


POLICY = Policy()


@contextmanager
def fallback(policy: str) -> Iterator[None]:
    """Context in which calls of this thread fall back to torch.mm by a policy. Outside of any it is ``"unsupported"``.

    A product of torch.mm has the shape, type and gradients of ours, and accumulates as torch does. A call that names a
    config or batch invariance never falls back. Wrong arguments, such as shapes that do not fit, are errors under every
    policy.

    Args:
        policy: ``"never"``: what the kernel cannot run is an error. ``"unsupported"``: torch.mm runs it: tensors that
            are not on a Hopper GPU, other element types than bf16 and fp16, subclasses of tensors, sparse ones.
            ``"faster"``: also problems on which torch.mm was more than 2 % faster than the tuned kernel, by the entry
            of the tuned table; of :func:`hopper_gemm.linear` calls with a bias and nothing else that follows, which
            torch.addmm then runs. Untuned problems do not fall back.

    Raises:
        ValueError: another policy.

    Example:
        >>> with hopper_gemm.fallback("never"):                                # doctest: +SKIP
        ...     y = hopper_gemm.matmul(x, weight.t())
    """
    before, POLICY.fallback = POLICY.fallback, checked(policy)
    try:
        yield
    finally:
        POLICY.fallback = before


def checked(policy: str) -> str:
    """Return a policy that exists.

    Raises:
        ValueError: another one.
    """
    if policy not in POLICIES:
        raise ValueError(f"fallback must be one of {', '.join(POLICIES)} but got {policy!r}")
    return policy


def torch_is_faster(picked: Pick) -> bool:
    """Return True if torch.mm was faster by :data:`GAIN` than a picked kernel, where that was measured in the context
    of the pick."""
    measured = picked.how in ("tuned", "other regime", "warmup")
    return measured and picked.entry is not None and picked.entry.speedup * GAIN < 1.0


def torch_mm(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The product by torch.mm, as :func:`hopper_gemm.matmul` returns it: arguments that fit, of any type and device."""
    dtype = out.dtype if out is not None else out_dtype or a.dtype
    if out is not None and have_memory(a, b, out):
        check_memory(out, a, b)
    asked: dict[str, Any] = {} if out is None else {"out": out}
    if dtype != a.dtype:
        if a.is_cuda and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
            asked["out_dtype"] = dtype
        else:
            a, b = a.to(dtype), b.to(dtype)
    product = torch.mm(a, b, **asked)
    if out is not None:
        return out
    return product if out_dtype is None else product.to(out_dtype)  # autocast has chosen another


def is_plain(*matrices: torch.Tensor) -> bool:
    """Return True if matrices are dense ones of real numbers on a GPU, whose product a launch can repeat."""
    return all(
        type(one) in PLAIN and one.layout == torch.strided and one.is_cuda and one.is_floating_point() and one.numel()
        for one in matrices
    )


def launch_torch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """torch.mm in the form of a loaded kernel: ``b`` is (n, k)."""
    if out.dtype == a.dtype:
        torch.mm(a, b.mT, out=out)
    else:
        torch.mm(a, b.mT, out_dtype=out.dtype, out=out)


def launch_torch_linear(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, bias: torch.Tensor, *others: Any) -> None:
    """torch.addmm in the form of a loaded kernel that adds a bias alone."""
    torch.addmm(bias, x, w.mT, out=out)


def have_memory(*tensors: torch.Tensor) -> bool:
    """Return True if the elements of tensors have addresses."""
    return all(type(one) in PLAIN and one.layout == torch.strided and one.device.type != "meta" for one in tensors)
