"""What :func:`torch.mm` multiplies instead of the kernel: operands that the kernel cannot run, and, where asked for,
problems on which torch.mm was measured to be faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from hopper_gemm.model.problem import shown
from hopper_gemm.model.tuned import Pick

Fallback = Literal["never", "unsupported", "faster"]
POLICIES: tuple[Fallback, ...] = get_args(Fallback)

GAIN = 1.02
"""Least speedup of torch.mm over a tuned kernel for which ``"faster"`` takes torch.mm: smaller ones lie within the
noise of boards and runs."""


class Policy(threading.local):
    """The policy of a thread for its next calls, of :data:`POLICIES`."""

    def __init__(self) -> None:
        self.fallback: Fallback = "unsupported"


POLICY = Policy()


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
    try:
        yield
    finally:
        POLICY.fallback = before


def checked(policy: object) -> Fallback:
    """Return a policy; raise a ValueError if there is no such policy."""
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"fallback must be one of {', '.join(POLICIES)} but got {shown(policy)}")
    return policy


def torch_is_faster(picked: Pick) -> bool:
    """Return True if torch.mm was faster by :data:`GAIN` than a picked kernel, where that was measured in the context
    of the pick."""
    measured = picked.how in ("tuned", "other regime", "warmup")
    return measured and picked.entry is not None and picked.entry.speedup * GAIN < 1.0
