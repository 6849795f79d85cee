"""How a point is timed, and what comes back: the protocols of the two regimes, and the outcome of a measurement.

burst: the GPU rests, a short warm-up, then some milliseconds timed. The power cap's slow loop, a tenth of a second,
never closes; this is what a lone call in a model sees.

steady: the kernel runs alone until clock and power have settled at the cap, then it is timed, and energy is read over
the same window. This is what training sees. A kernel timed right after a thriftier neighbour would be given credit
by the power controller, whose memory is about a second: hence the settling, every time.

Measured on an NVIDIA H200 with cuBLAS at 8192^3: 786 TFLOP/s for the first 85 ms, then a dip to 540 at one second while
the controller overshoots, settled at 665 with 1.5 % ripple from 1.2 s on.

Needs neither torch nor a GPU: coordinators use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hopper_gemm.model.point import Sample


@dataclass(frozen=True)
class Burst:
    """Protocol of the burst regime.

    Args:
        rest: seconds of idleness before each timing, what the host prepares meanwhile included. Where launches are so
            long that two of them take longer than is warmed up or timed, the rest grows like the work: without that
            the power controller would see a load that hardly ever ends, and speeds at 16384^3 strayed by 5 %.
        warm: seconds of warm-up.
        timed: seconds timed.
        pairs: pairs (ours, baseline), in alternating order.
    """

    rest: float = 0.02
    warm: float = 0.002
    timed: float = 0.008
    pairs: int = 15

    @property
    def span(self) -> float:
        """Seconds of one timing of one side."""
        return self.rest + self.warm + self.timed

    @property
    def of_spacer(self) -> Burst:
        """How the spacer alone is timed between the two sides: a quarter as long, and without a rest of its own."""
        return replace(self, rest=0.0, warm=self.warm / 4, timed=self.timed / 4)


@dataclass(frozen=True)
class Steady:
    """Protocol of the steady regime.

    Args:
        settle: seconds alone before the window.
        window: seconds timed, in slices.
        slice: seconds of a slice; slices of ours and of the baseline are paired in order.
        pairs: blocks of (ours, baseline), in alternating order; each gives window / slice pairs of times.
        graph: seconds of one CUDA graph.
    """

    settle: float = 1.2
    window: float = 1.5
    slice: float = 0.5
    pairs: int = 1
    graph: float = 0.03

    @property
    def span(self) -> float:
        """Seconds of one timing of one side."""
        return self.settle + self.window

    @property
    def of_spacer(self) -> Steady:
        """How the spacer alone is timed between the two sides: one short slice."""
        return replace(self, settle=self.slice / 10, window=self.slice / 5, slice=self.slice / 5)


Protocol = Burst | Steady


def protocol_dict(protocol: Protocol) -> dict[str, Any]:
    """A protocol's figures by name, with its regime, for provenance."""
    return {"regime": type(protocol).__name__.lower(), **asdict(protocol)}


def seconds_of(protocol: Protocol, context: str) -> float:
    """Seconds that one pair takes on the GPU; isolated, the spacer's own timing is among them."""
    return 2 * protocol.span + (protocol.of_spacer.span if context == "isolated" else 0.0)


@dataclass(frozen=True)
class Outcome:
    """The result of measuring a point.

    Args:
        status: of the results schema: ``ok``, ``wrong_result``, ``unstable`` or ``no_baseline``.
        reason: why it is not ok, in one line.
        figures: by column of the results schema; empty unless the status is ok.
        samples: the pairs behind the figures.
        recipe: of the baseline's chosen candidate, which another process can restore from it.
        finalists: recipes among which another process may choose instead of searching; empty where there was no search.
        seconds: that each step took.
    """

    status: str
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    recipe: str = ""
    finalists: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
