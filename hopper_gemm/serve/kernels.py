"""Which kernel serves a problem: picked from the tuned table or by the model, compiled and loaded once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from hopper_gemm.compiler.loader import LOADING, LoadedKernel, load
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import TunedEntry, pick, recorded_entries

_loaded: dict[tuple[GemmConfig | None, GemmProblem, str, int], LoadedKernel] = {}


class Mode(threading.local):
    """What a thread has said of the launches to come.

    Args:
        context: of :data:`hopper_gemm.model.point.CONTEXTS`.
    """

    context = "isolated"


MODE = Mode()


@contextmanager
def chained() -> Iterator[None]:
    """Within it, calls of this thread follow each other on one stream without other kernels between them.

    They then run what was tuned for launches back to back: kernels that start while the one before them ends
    (programmatic dependent launch). Between other kernels such a launch takes longer than one that does not.

    Example:
        >>> with hopper_gemm.chained():                                   # doctest: +SKIP
        ...     y = hopper_gemm.matmul(hopper_gemm.matmul(x, w1), w2)
    """
    before, MODE.context = MODE.context, "chained"
    try:
        yield
    finally:
        MODE.context = before


def kernel_for(problem: GemmProblem, device: int, config: GemmConfig | None = None) -> LoadedKernel:
    """The kernel for a problem in this thread's context, loaded for a device that is current.

    Args:
        problem: what is multiplied.
        device: its index.
        config: how to run it; by default :func:`default_config`.

    Raises:
        IllegalConfigError: the config cannot run the problem.
    """
    key = config, problem, MODE.context, device
    if key not in _loaded:
        with LOADING:
            if key not in _loaded:
                _loaded[key] = load(config or default_config(problem), problem)
    return _loaded[key]


def default_config(problem: GemmProblem) -> GemmConfig:
    """The recorded best config of this very problem in this thread's context; where it was not tuned, what the analytic
    model chooses."""
    return pick(_tuned(), problem, context=MODE.context).config


@lru_cache(maxsize=1)
def _tuned() -> tuple[TunedEntry, ...]:
    return tuple(recorded_entries())
