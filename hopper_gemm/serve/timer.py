"""Times of launches on this GPU, good enough to rank picks: by events, each launch behind a copy that fills the L2.

The study's own timer (:mod:`hopper_gemm.tune.measure.timing`) is more exact: CUDA graphs, rotating matrices, the
spacer's time taken off. Here the time between two events includes some microseconds beside the launch, the same for
every launch, so that speedups of short launches come out closer to 1 than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

WARM = 2
"""Rounds before the timed ones."""


def isolated_seconds(launches: Sequence[Callable[[], object]], rounds: int, l2_bytes: int) -> list[list[float]]:
    """Seconds of every launch in each of some rounds, on the current stream of the current device.

    A round runs each launch once, odd rounds in reverse. Before each, a copy reads and writes twice the L2: operands
    are cold, another kernel runs between any two launches, and the host is ahead of the GPU while the copy runs.

    Args:
        launches: each starts work on the current stream.
        rounds: timed.
        l2_bytes: of the GPU's L2.
    """
    source, target = (torch.zeros(2 * l2_bytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in launches]
    for number in range(WARM + rounds):
        order = list(zip(launches, marks, strict=True))
        for launch, noted in reversed(order) if number % 2 else order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            target.copy_(source)
            begin.record()
            launch()
            end.record()
            noted.append((begin, end))
    torch.cuda.synchronize()
    return [[begin.elapsed_time(end) / 1e3 for begin, end in noted[WARM:]] for noted in marks]
