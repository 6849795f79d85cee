"""Timing of a point and its result: the protocols of the two regimes, and the outcome of a measurement.

burst: the GPU rests, a short warm-up runs, then some milliseconds are timed. The power cap's slow loop, a tenth of a
second, never closes. A lone call in a model sees this regime.

steady: the kernel runs alone until clock and power have settled at the cap, then it is timed, and energy is read over
the same window. Training sees this regime. Every timing settles first, because the power controller remembers about a
second: right after a kernel of less power it would allow a higher clock.

Measured on an NVIDIA H200 with cuBLAS at 8192^3: 786 TFLOP/s for the first 85 ms, then a dip to 540 at one second while
the controller overshoots, settled at 665 with 1.5 % ripple from 1.2 s on.

Needs neither torch nor a GPU: coordinators use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from hopper_gemm.tune.point import Sample

Seconds = Annotated[float, Field(gt=0, le=86400 * 30)]
Count = Annotated[int, Field(ge=1, le=10**6)]
"""Limits that hold where a sweep's file gives a value."""

GRAPH_SECONDS = 0.03
"""Seconds of a CUDA graph in the steady regime."""


@dataclass(frozen=True)
class Burst:
    """Protocol of the burst regime: idleness before each timing, the host's preparation included, a warm-up, a timed
    span. If two launches take longer than the warm-up or the timed span, the rest grows with the work: otherwise the
    power controller sees a load that hardly ever ends, and speeds at 16384^3 varied by 5 %."""

    rest: Seconds = 0.02  # seconds of idleness before each timing
    warm: Seconds = 0.002  # seconds of launches before the timed ones
    timed: Seconds = 0.008  # seconds of timed launches
    pairs: Count = 15  # (ours, baseline), in alternating order
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @property
    def span(self) -> float:
        """Seconds of one timing of one side."""
        return self.rest + self.warm + self.timed

    @property
    def of_spacer(self) -> Burst:
        """Protocol of the spacer alone, between the two sides: a quarter as long, and without a rest of its own."""
        return replace(self, rest=0.0, warm=self.warm / 4, timed=self.timed / 4)


@dataclass(frozen=True)
class Steady:
    """Protocol of the steady regime."""

    settle: Seconds = 1.2  # seconds alone before the window
    window: Seconds = 1.5  # seconds that are timed, in slices
    slice: Seconds = 0.5  # seconds; slices of ours and of the baseline are paired in order
    pairs: Count = 1  # blocks of (ours, baseline), in alternating order; each gives window / slice pairs of times
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @property
    def span(self) -> float:
        """Seconds of one timing of one side."""
        return self.settle + self.window

    @property
    def of_spacer(self) -> Steady:
        """Protocol of the spacer alone, between the two sides: a short slice."""
        return replace(self, settle=self.slice / 10, window=self.slice / 5, slice=self.slice / 5)


Protocol = Burst | Steady


def protocol_dict(protocol: Protocol) -> dict[str, Any]:
    """Return a protocol's regime and fields, for provenance."""
    graph = {} if isinstance(protocol, Burst) else {"graph": GRAPH_SECONDS}
    return {"regime": type(protocol).__name__.lower(), **asdict(protocol), **graph}


def seconds_of(protocol: Protocol, context: str) -> float:
    """Return the seconds that a pair takes on the GPU, in the isolated context with the timing of the spacer."""
    return 2 * protocol.span + (protocol.of_spacer.span if context == "isolated" else 0.0)


@dataclass(frozen=True)
class Outcome:
    """The result of measuring a point."""

    status: str  # of the results schema: ok, wrong_result, unstable or no_baseline
    reason: str = ""  # why it is not ok, in one line
    # by column of the results schema; empty unless the status is ok
    figures: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()  # the pairs behind the figures
    recipe: str = ""  # recipe of the baseline's chosen candidate, from which another process can restore it
    # recipes among which another process may choose instead of searching; empty without a search
    finalists: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # seconds of each step
