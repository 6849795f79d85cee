"""Workspaces of launches in global memory.

Launches of one stream run in order, and every kernel leaves the words of a workspace zero, so that all eager kernels of
a stream share one workspace. It lives as long as the process, and never in a memory pool of others, who take memory
back or look for what they do not know: ``torch.cuda.use_mem_pool``, CUDA graph trees that warm up for
``torch.compile(mode="reduce-overhead")``. Pools take the allocations of one thread; another thread allocates it.

A launch that is captured takes scratch memory (partial sums, padded operands) from its graph's pool and gives it back:
it lives as long as the graph, and later launches of the capture reuse it. A graph may be replayed on any stream, beside
any other graph, so that each stream of each capture has words of its own. They are zeroed once, outside of all pools,
and live as long as the process, since nothing tells when a graph is gone: some kilobytes a capture.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

LEAST_SUMS, LEAST_WORDS = 4, 1024
"""Least sizes of a workspace, in elements."""

Pair = tuple["torch.Tensor", "torch.Tensor"]

T = TypeVar("T")


class PerStream(Generic[T]):
    """A workspace for each stream, and a new one for each launch that is captured. Thread-safe.

    Args:
        make: allocates on a device, for the current stream, at least these sizes and those of the previous workspace.
        fits: True if a workspace is large enough.
        capture: allocates for a launch that is captured, on the current stream; by default as ``make``.
    """

    def __init__(
        self,
        make: Callable[[int, tuple[int, ...], T | None], T],
        fits: Callable[[T, tuple[int, ...]], bool],
        capture: Callable[[int, tuple[int, ...]], T] | None = None,
    ) -> None:
        self._make, self._fits = make, fits
        self._capture = capture or (lambda device, sizes: make(device, sizes, None))
        self._lock = threading.Lock()
        self._by_stream: dict[tuple[int, int], T] = {}
        """By device and stream."""

    def get(self, device: int, *sizes: int) -> T:
        """Return the workspace of a launch on the current stream; that of a captured launch must not be kept.

        Args:
            device: index of the current device.
            sizes: least sizes.
        """
        import torch

        if torch.cuda.is_current_stream_capturing():
            return self._capture(device, sizes)
        key = device, torch._C._cuda_getCurrentRawStream(device)
        workspace = self._by_stream.get(key)
        if workspace is None or not self._fits(workspace, sizes):
            with self._lock:
                before = self._by_stream.get(key)
                workspace = self._by_stream[key] = outside_pools(device, lambda: self._make(device, sizes, before))
        return workspace


IDLE: dict[int, torch.cuda.Stream] = {}
"""A stream of each device that is not captured. It is kept, since each stream that allocates takes 2 MB at least."""


def outside_pools(device: int, make: Callable[[], T], idle: bool = False) -> T:
    """Call a function whose allocations must lie in no memory pool, also while a stream is captured; return its result.

    Args:
        device: index of the current device.
        make: called in a thread of its own, whose current stream is the caller's.
        idle: take another stream, which is not captured, and wait for it.
    """
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


class CapturedWords:
    """Words that are zero between launches, for each stream of each capture. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: defaultdict[tuple[int, int, int], list[torch.Tensor]] = defaultdict(list)
        """By device, stream and number of its capture; the last are the largest. Kept for good: a graph may use any."""

    def get(self, device: int, count: int) -> torch.Tensor:
        """Return at least ``count`` words for the current stream, which is captured."""
        import torch

        stream, where = torch._C._cuda_getCurrentRawStream(device), torch.device("cuda", device)
        with self._lock:
            made = self._words[device, stream, capture_of(stream)]
            if not made or made[-1].numel() < count:
                size = max(count, LEAST_WORDS)
                made.append(
                    outside_pools(device, lambda: torch.zeros(size, dtype=torch.int32, device=where), idle=True)
                )
            return made[-1]


def capture_of(stream: int) -> int:
    """Return the number of the capture under way on a stream, 0 without one."""
    from cuda.bindings import runtime

    error, status, number, *_ = runtime.cudaStreamGetCaptureInfo(stream)
    active = runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive
    return int(number) if not int(error) and status == active else 0


def _made(device: int, sizes: tuple[int, ...], before: Pair | None) -> Pair:
    """Allocate a workspace at least as large as the previous one, for later launches of the current stream."""
    import torch

    sums, words = sizes
    least = (LEAST_SUMS, LEAST_WORDS) if before is None else (before[0].numel(), before[1].numel())
    where = torch.device("cuda", device)
    made = torch.empty(max(sums, least[0]), dtype=torch.float32, device=where)
    return made, torch.zeros(max(words, least[1]), dtype=torch.int32, device=where)


def _captured(device: int, sizes: tuple[int, ...]) -> Pair:
    """Allocate the workspace of a launch that is captured."""
    import torch

    sums = torch.empty(max(sizes[0], LEAST_SUMS), dtype=torch.float32, device=torch.device("cuda", device))
    return sums, CAPTURED_WORDS.get(device, sizes[1])


def _fits(pair: Pair, sizes: tuple[int, ...]) -> bool:
    sums, words = sizes
    return pair[0].numel() >= sums and pair[1].numel() >= words


CAPTURED_WORDS = CapturedWords()
"""The words of the captures of this process."""

WORKSPACES = PerStream(_made, _fits, _captured)
"""The workspaces of this process: fp32 sums and int32 words, of at least these numbers of elements. The words are zero
when a launch begins."""
