"""Workspaces of launches in global memory.

Launches of one stream run in order, and every kernel leaves the words of its workspace zero. So all eager launches of a
stream share one workspace, which lives as long as the process. It must not lie in another owner's memory pool
(``torch.cuda.use_mem_pool``, the CUDA graph trees of ``torch.compile(mode="reduce-overhead")``): the owner takes memory
back, and reports tensors that it does not know. A pool takes the allocations of one thread, so another thread allocates
the workspace.

A captured launch takes its scratch memory (partial sums, padded operands) from the pool of its graph, and later
launches of the capture use it again. Its words must be zero at each replay, and a graph may be replayed on any stream
beside any other graph. So each stream of each capture has words of its own. They are zeroed once, outside of all pools,
and are never freed, since nothing tells when a graph is gone: some kilobytes a capture.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import ge
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

LEAST_SUMS, LEAST_WORDS = 4, 1024
"""Least sizes of a workspace, in elements."""

T = TypeVar("T")


class PerStream(Generic[T]):
    """A workspace for each stream, which ``make`` allocates on a device in these sizes, and a new one for each launch
    that is captured, by ``capture``, by default as ``make``. Thread-safe."""

    def __init__(
        self, make: Callable[[int, tuple[int, ...]], T], capture: Callable[[int, tuple[int, ...]], T] | None = None
    ) -> None:
        self._make, self._capture = make, capture or make
        self._lock = threading.Lock()
        self._by_stream: dict[tuple[int, int], tuple[tuple[int, ...], T]] = {}
        """Sizes and workspace, by device and stream."""

    def get(self, device: int, *sizes: int) -> T:
        """Return a workspace of these sizes for a launch on the current stream; keep none of a captured launch."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return self._capture(device, sizes)
        key = device, torch._C._cuda_getCurrentRawStream(device)
        kept = self._by_stream.get(key)
        if kept is None or not all(map(ge, kept[0], sizes)):
            with self._lock:
                kept = self._by_stream.get(key)
                larger = sizes if kept is None else tuple(map(max, kept[0], sizes))
                kept = self._by_stream[key] = larger, outside_pools(device, lambda: self._make(device, larger))
        return kept[1]


IDLE: dict[int, torch.cuda.Stream] = {}
"""A stream of each device that is not captured. It is kept, since each stream that allocates takes 2 MB at least."""


def outside_pools(device: int, make: Callable[[], T], idle: bool = False) -> T:
    """Call a function in a thread of its own, on the caller's current stream, so that its allocations lie in no memory
    pool; return its result. ``idle``: use a stream that is not captured instead, and wait for it."""
    import torch
    from cuda.bindings import driver

    stream = None if idle else torch.cuda.current_stream(device)

    def work() -> T:
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        driver.cuThreadExchangeStreamCaptureMode(relaxed)  # else an allocation would end a capture
        chosen = stream or IDLE.get(device)
        while chosen is None or (idle and capture_of(chosen.cuda_stream)):  # torch hands its streams out in turn
            chosen = IDLE[device] = torch.cuda.Stream(device)
        with torch.cuda.stream(chosen):
            made = make()
        if idle:
            chosen.synchronize()
        return made

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


CAPTURED: defaultdict[tuple[int, int, int], list[torch.Tensor]] = defaultdict(list)
"""Words, zero between launches, by device, stream and capture, the largest last; kept, since a graph may use any."""

_CAPTURING = threading.Lock()


def captured_words(device: int, count: int) -> torch.Tensor:
    """Return at least ``count`` words of :data:`CAPTURED` for the current stream, which is captured. Thread-safe."""
    import torch

    stream = torch._C._cuda_getCurrentRawStream(device)
    with _CAPTURING:
        made = CAPTURED[device, stream, capture_of(stream)]
        if not made or made[-1].numel() < count:
            size, gpu = max(count, LEAST_WORDS), torch.device("cuda", device)
            made.append(outside_pools(device, lambda: torch.zeros(size, dtype=torch.int32, device=gpu), idle=True))
        return made[-1]


def capture_of(stream: int) -> int:
    """Return the number of the capture under way on a stream, 0 without one."""
    from cuda.bindings import runtime

    error, status, number, *_ = runtime.cudaStreamGetCaptureInfo(stream)
    active = runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive
    return int(number) if not int(error) and status == active else 0


def _made(device: int, sizes: tuple[int, ...], captured: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate sums and words of a workspace."""
    import torch

    (sums, words), gpu = sizes, torch.device("cuda", device)
    made = torch.empty(max(sums, LEAST_SUMS), dtype=torch.float32, device=gpu)
    if captured:
        return made, captured_words(device, words)
    return made, torch.zeros(max(words, LEAST_WORDS), dtype=torch.int32, device=gpu)


WORKSPACES = PerStream(_made, lambda device, sizes: _made(device, sizes, captured=True))
"""The workspaces of this process: at least so many fp32 sums and int32 words, which are zero when a launch begins."""
