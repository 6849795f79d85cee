"""What :func:`torch.mm` multiplies instead of the kernel: operands that the kernel cannot run, calls whose kernel is
being compiled, and, where asked for, problems on which torch.mm was measured to be faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch._guards import CompileContext

from hopper_gemm.model.lookup import Pick
from hopper_gemm.model.problem import shown

Fallback = Literal["never", "unsupported", "faster"]
POLICIES: tuple[Fallback, ...] = get_args(Fallback)

WhileCompiling = Literal["torch", "wait"]

GAIN = 1.02
"""Least speedup of torch.mm for which ``"faster"`` takes it: smaller ones lie within the noise of boards and runs."""


class Policy(threading.local):
    """The policies of a thread for its next calls; of :data:`WhileCompiling` None where it set none."""

    def __init__(self) -> None:
        self.fallback: Fallback = "unsupported"
        self.while_compiling: WhileCompiling | None = None


POLICY = Policy()

WAITING: list[str] = []
"""An element for each context, of any thread, within which calls wait for their kernel."""


@contextmanager
def fallback(policy: Fallback) -> Iterator[None]:
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
    waiting = ["never"] * (policy == "never")
    WAITING.extend(waiting)
    try:
        yield
    finally:
        POLICY.fallback = before
        del WAITING[: len(waiting)]


@contextmanager
def while_compiling(policy: WhileCompiling) -> Iterator[None]:
    """Context that says what a call of this thread does whose kernel no store holds. Outside of any it is ``"torch"``.

    The kernel is compiled by a process in the background, once, and the first call after that takes it; a kernel that
    cannot be compiled is a warning, and torch goes on. :func:`hopper_gemm.compiling` says which calls torch served.

    Under any policy a call waits that names a config, is batch-invariant, is captured into a CUDA graph, is timed by
    Inductor, or runs under ``fallback("never")`` or ``torch.use_deterministic_algorithms``; and where torch has no
    product that rounds as ours: ``linear`` with more than a bias, ``swiglu``, ``grouped_mm`` and ``scaled_mm``.

    Args:
        policy: ``"torch"``: torch.mm, torch.addmm or torch.bmm serves it. ``"wait"``: it waits until its kernel is
            compiled, some seconds. A thread that says nothing, such as those of backward passes, waits while any other
            thread is within ``"wait"`` or ``fallback("never")``.

    Raises:
        ValueError: another policy.

    Example:
        >>> with hopper_gemm.while_compiling("wait"):                          # doctest: +SKIP
        ...     y = hopper_gemm.matmul(x, weight.t())
    """
    if policy not in get_args(WhileCompiling):
        raise ValueError(f"while_compiling must be torch or wait but got {shown(policy)}")
    before, POLICY.while_compiling = POLICY.while_compiling, policy
    waiting = [policy] * (policy == "wait")
    WAITING.extend(waiting)
    try:
        yield
    finally:
        POLICY.while_compiling = before
        del WAITING[: len(waiting)]


def torch_may_serve() -> bool:
    """Return True if torch may serve a call of this thread while its kernel is compiled."""
    own = POLICY.while_compiling
    if own == "wait" or (own is None and WAITING) or POLICY.fallback == "never":
        return False
    if torch.are_deterministic_algorithms_enabled() or torch.cuda.is_current_stream_capturing():
        return False
    return CompileContext.try_get() is None  # else Inductor times what is launched, and would time torch for ours


def checked(policy: object) -> Fallback:
    """Return a policy; raise a ValueError if there is no such policy."""
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"fallback must be one of {', '.join(POLICIES)} but got {shown(policy)}")
    return policy


def torch_is_faster(picked: Pick) -> bool:
    """Return True if torch.mm was measured, in the context of the pick, to be faster than it by :data:`GAIN`."""
    measured = picked.how in ("tuned", "other regime", "warmup")
    return measured and picked.entry is not None and picked.entry.speedup * GAIN < 1.0
