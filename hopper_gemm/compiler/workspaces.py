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
    """One object of a kind for each stream, and a new one for each launch that is captured. Thread-safe.

    Args:
        make: makes one on a device, for the current stream, of at least these sizes and as large as the one before, if
            there was one.
        fits: tells whether one is large enough.
        capture: makes that of a launch that is captured, of these sizes, on the current stream; by default as ``make``.
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
        """The one for a launch on the current stream of a device. Of a launch that is captured it must not be kept.

        Args:
            device: index; it must be the current one.
            sizes: the least that it must have.
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


def outside_pools(device: int, make: Callable[[], T], idle: bool = False) -> T:
    """What a function makes, allocated in no memory pool, also while a stream is captured.

    Args:
        device: index; it must be the current one.
        make: called in a thread of its own, whose current stream is the caller's.
        idle: take another stream, which is not captured, and wait for it.
    """
    import torch
    from cuda.bindings import driver

    stream = None if idle else torch.cuda.current_stream(device)

    def work() -> T:
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        driver.cuThreadExchangeStreamCaptureMode(relaxed)  # else an allocation would end a capture
        chosen = stream or torch.cuda.Stream(device)
        while stream is None and capture_of(chosen.cuda_stream):  # torch hands its streams out in turn
            chosen = torch.cuda.Stream(device)
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
        self._made: list[torch.Tensor] = []
        """For good."""
        self._by_stream: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        """By device and stream: number of its last capture, and the words."""

    def get(self, device: int, count: int) -> torch.Tensor:
        """Those of the current stream, which is captured; ``count`` at least."""
        import torch

        stream, where = torch._C._cuda_getCurrentRawStream(device), torch.device("cuda", device)
        number = capture_of(stream)
        with self._lock:
            last, words = self._by_stream.get((device, stream), (0, None))
            if words is None or last != number or words.numel() < count:
                most = max(count, LEAST_WORDS)
                words = outside_pools(device, lambda: torch.zeros(most, dtype=torch.int32, device=where), idle=True)
                self._made.append(words)
                self._by_stream[device, stream] = number, words
            return words


def capture_of(stream: int) -> int:
    """Number of the capture under way on a stream; 0 where there is none."""
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
    """A workspace of a launch that is captured."""
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
