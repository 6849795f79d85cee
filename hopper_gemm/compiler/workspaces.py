"""Workspaces of launches in global memory: one for each stream, and for each stream of a captured graph.

Launches of one stream run in order, and every kernel leaves the words of a workspace zero, so that all kernels of a
stream share one workspace. A captured graph may be replayed on any stream, beside any other graph: it has a workspace
of its own, from its own memory pool, and clears the words when a replay begins. So a graph does not depend on the
capture of another, and no workspace outlives its graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

LEAST_SUMS, LEAST_WORDS = 4, 1024
"""Least sizes of a workspace, in elements."""

Pair = tuple["torch.Tensor", "torch.Tensor"]

T = TypeVar("T")


class PerStream(Generic[T]):
    """One thing of a kind for each stream, and for each stream of a captured graph. Thread-safe.

    Args:
        make: makes one on a device, of at least these sizes and as large as the one before, if there was one.
        fits: tells whether one is large enough.
    """

    def __init__(
        self, make: Callable[[int, tuple[int, ...], T | None], T], fits: Callable[[T, tuple[int, ...]], bool]
    ) -> None:
        self._make, self._fits = make, fits
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int, int], T] = {}
        """By device, stream, and number of the capture, 0 where there is none."""

    def get(self, device: int, *sizes: int) -> T:
        """The one for a launch on the current stream of a device.

        Args:
            device: index; it must be the current one.
            sizes: the least that it must have.
        """
        import torch

        stream = torch._C._cuda_getCurrentRawStream(device)
        key = device, stream, capture_of(stream) if torch.cuda.is_current_stream_capturing() else 0
        found = self._known.get(key)
        if found is None or not self._fits(found, sizes):
            with self._lock:
                for other in [other for other in self._known if other[2] and capture_of(other[1]) != other[2]]:
                    del self._known[other]  # the capture has ended: its graph's pool may use the memory again
                found = self._known[key] = self._make(device, sizes, found)
        return found


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
    place = torch.device("cuda", device)
    made = torch.empty(max(sums, least[0]), dtype=torch.float32, device=place)
    return made, torch.zeros(max(words, least[1]), dtype=torch.int32, device=place)


def _fits(pair: Pair, sizes: tuple[int, ...]) -> bool:
    sums, words = sizes
    return pair[0].numel() >= sums and pair[1].numel() >= words


WORKSPACES = PerStream(_made, _fits)
"""The workspaces of this process: fp32 sums and int32 words, of at least these numbers of elements. The words are zero
when a launch begins."""
