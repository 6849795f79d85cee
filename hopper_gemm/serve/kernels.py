"""Which kernel serves a problem: picked from the tuned tables or by the model, compiled and loaded once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from hopper_gemm.compiler.loader import LOADING, LoadedKernel, load
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.lookup import Table, find, tables
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CHANGES, slug

_loaded: dict[tuple[GemmConfig, GemmProblem, int], LoadedKernel] = {}
"""Never forgotten: a captured graph launches its kernel as long as the graph lives."""


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
    config = config or default_config(problem, device)
    key = config, problem, device
    if key not in _loaded:
        with LOADING:
            if key not in _loaded:
                _loaded[key] = load(config, problem)
    return _loaded[key]


def default_config(problem: GemmProblem, device: int = 0) -> Kernel:
    """What the tuned tables that serve a device have for this very problem and this thread's context, in the order of
    :func:`hopper_gemm.use_table`; where none has anything, what the analytic model chooses."""
    return _picked(problem, MODE.context, device, CHANGES.count)


@lru_cache(maxsize=4096)
def _picked(problem: GemmProblem, context: str, device: int, changes: int) -> Kernel:
    """The config for a problem, since the last change of the tables."""
    kind = _kind(device)
    found = find(_tables(kind, changes), problem, context=context)
    if found.entry is not None and kind not in (None, found.entry.kind):
        _warn_of_other_gpu(found.entry.gpu, str(found.table), changes)
    return found.config


@lru_cache(maxsize=8)
def _tables(kind: str | None, changes: int) -> tuple[Table, ...]:
    return tuple(tables(kind))


@lru_cache(maxsize=8)
def _warn_of_other_gpu(gpu: str, table: str, changes: int) -> None:
    """Warn once in a process for each table and GPU, until the tables change."""
    text = f"{table} was measured on an {gpu}, which is another kind of GPU; tune here, or hopper_gemm.use_table(None)"
    warnings.warn(text, stacklevel=2)


@lru_cache(maxsize=64)
def _kind(device: int) -> str | None:
    """The kind of a GPU; None where torch sees none."""
    return slug(torch.cuda.get_device_properties(device).name) if torch.cuda.is_available() else None
