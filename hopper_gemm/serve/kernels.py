"""The kernel of a problem: picked from the tuned tables or by the model, compiled and loaded once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from hopper_gemm.compiler.loader import LOADING, LoadedKernel, load
from hopper_gemm.compiler.residency import memory_rate, resident_clusters
from hopper_gemm.compiler.store import KernelId, PaddingId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.hopper import COMPUTE_CAPABILITY
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.lookup import SISTERS, Pick, Table, find, tables
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import CLUSTER_SIZES, SXM, Chip
from hopper_gemm.model.tuned import CHANGES, slug
from hopper_gemm.serve.background import BACKGROUND, UncompiledError
from hopper_gemm.serve.fallback import torch_may_serve

_loaded: dict[tuple[GemmConfig, GemmProblem, int, Epilogue | None, bool], LoadedKernel] = {}
"""Loaded kernels. Their machine code is never unloaded, also when they are forgotten here: a captured graph launches
its kernel as long as the graph exists."""

_LOADED_MOST = 4096
"""Most entries of ``_loaded``; all are forgotten beyond it."""


class Mode(threading.local):
    """Settings of a thread for its next launches: one of :data:`hopper_gemm.model.tuned.CONTEXTS`, and whether a row's
    bits may not depend on the other rows; whether offsets of groups are checked on the host."""

    def __init__(self) -> None:
        self.context, self.batch_invariant = "isolated", False  # torch.compile guards what stands in the instance
        self.checked_offsets = False


MODE = Mode()


@contextmanager
def chained() -> Iterator[None]:
    """Context in which calls of this thread follow each other on one stream without other kernels between them.

    They then run configs tuned for back-to-back launches: kernels that start while the previous kernel ends
    (programmatic dependent launch). Between other kernels such a launch takes longer than a launch without it.

    Example:
        >>> with hopper_gemm.chained():                                   # doctest: +SKIP
        ...     y = hopper_gemm.matmul(hopper_gemm.matmul(x, w1), w2)
    """
    before, MODE.context = MODE.context, "chained"
    try:
        yield
    finally:
        MODE.context = before


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Context in which calls of this thread are batch-invariant, as ``matmul(..., batch_invariant=True)`` is.

    The setting is read when an operator is called, and kept for its backward pass, which may run in another thread.

    Example:
        >>> with hopper_gemm.batch_invariant():                           # doctest: +SKIP
        ...     y = hopper_gemm.matmul(x, weight.t())
    """
    before, MODE.batch_invariant = MODE.batch_invariant, True
    try:
        yield
    finally:
        MODE.batch_invariant = before


@contextmanager
def checked_offsets() -> Iterator[None]:
    """Context, for debugging, in which calls of this thread read the offsets and counts of groups on the host, wait for
    them, and refuse in one line what the kernel would clamp. Nothing is read while a graph is captured.

    Example:
        >>> with hopper_gemm.checked_offsets():                           # doctest: +SKIP
        ...     y = hopper_gemm.grouped_mm(x, experts.mT, offs=offs)
    """
    before, MODE.checked_offsets = MODE.checked_offsets, True
    try:
        yield
    finally:
        MODE.checked_offsets = before


CALLED: list[Callable[[GemmProblem, str], None]] = []
"""Called with problem and context of each first call that names no config."""


def kernel_for(
    problem: GemmProblem,
    device: int,
    config: GemmConfig | None = None,
    finish: Epilogue | None = None,
    scattered: bool | None = None,
) -> LoadedKernel:
    """The kernel for a problem in this thread's context, loaded for the current device, whose index is given; by
    default of :func:`default_config`. Other arguments and errors are those of :func:`load`."""
    picked = config or default_config(problem, device, finish)
    scattered = "c" in problem.out_of_reach if scattered is None else scattered
    key = picked, problem, device, finish, scattered
    if (loaded := _loaded.get(key)) is not None:  # without waiting for a thread that compiles
        return loaded
    if config is None:
        BACKGROUND.finish(KernelId.of(picked, problem, "", finish, scattered))
    with LOADING:
        if (loaded := _loaded.get(key)) is None:
            if len(_loaded) >= _LOADED_MOST:
                _loaded.clear()
            loaded = _loaded[key] = load(picked, problem, finish=finish, scattered=scattered)
    return loaded


def refuse_uncompiled(
    problem: GemmProblem,
    device: int,
    finish: Epilogue | None = None,
    scattered: bool | None = None,
    padded: bool = False,
) -> None:
    """Refuse what :func:`kernel_for` would compile, or the padding, while a process compiles it and if it cannot, by an
    UncompiledError, where torch may serve the call meanwhile."""
    if torch_may_serve():
        kernel = KernelId.of(default_config(problem, device, finish), problem, "", finish, scattered)
        if BACKGROUND.compiles(problem, [kernel, *[PaddingId()] * padded]):
            raise UncompiledError(problem)


def default_config(problem: GemmProblem, device: int = 0, finish: Epilogue | None = None) -> Kernel:
    """The config for a problem in this thread's context that the rules allow with the finish: of the tuned tables that
    serve a device, in the order of :func:`hopper_gemm.use_table`, else of :func:`hopper_gemm.model.menu.choose`."""
    return pick_for(problem, device, finish).config


def pick_for(problem: GemmProblem, device: int = 0, finish: Epilogue | None = None) -> Pick:
    """:func:`default_config`, and where it comes from."""
    return _picked(problem, MODE.context, device, CHANGES.count, finish)


def tables_for(device: int = 0) -> tuple[Table, ...]:
    """The tuned tables that serve a device, in order."""
    return _tables(kind_of(device), CHANGES.count)


# The caches below hold until the tables change, which counts CHANGES up.


@lru_cache(maxsize=4096)
def _picked(problem: GemmProblem, context: str, device: int, changes: int, finish: Epilogue | None) -> Pick:
    kind = kind_of(device)
    pick = find(_tables(kind, changes), problem, context=context, chip=chip_of(device), finish=finish)
    if kind and pick.entry is not None and pick.entry.kind not in (kind, SISTERS.get(kind)):
        _warn_of_other_gpu(pick.entry.gpu, str(pick.table), changes)
    return pick


@lru_cache(maxsize=8)
def _tables(kind: str | None, changes: int) -> tuple[Table, ...]:
    return tuple(tables(kind))


@lru_cache(maxsize=8)
def _warn_of_other_gpu(gpu: str, table: str, changes: int) -> None:
    text = f"{table} was measured on an {gpu}, which is another kind of GPU; tune here, or hopper_gemm.use_table(None)"
    warnings.warn(text, stacklevel=2)


@lru_cache(maxsize=64)
def chip_of(device: int = 0) -> Chip:
    """What a GPU has, as its driver says; an H200 where torch sees no Hopper GPU."""
    gpu = torch.cuda.get_device_properties(device) if torch.cuda.is_available() else None
    if gpu is None or (gpu.major, gpu.minor) != COMPUTE_CAPABILITY:
        return SXM
    with torch.cuda.device(device):
        clusters = tuple(map(resident_clusters, CLUSTER_SIZES))
        return Chip(gpu.multi_processor_count, gpu.L2_cache_size, clusters, memory_rate())


@lru_cache(maxsize=64)
def kind_of(device: int) -> str | None:
    """The kind of a GPU; None where torch sees none."""
    return slug(torch.cuda.get_device_properties(device).name) if torch.cuda.is_available() else None
