"""Uncertainty of a speedup, and verdicts on it. Pure functions, without torch or a GPU.

The model: process p on board b measures ln(speedup) = mu[e] + B[e, b] + W[e, b, p] of entry e.

- B, with standard deviation *between*: the board suits our kernel more or less than the baseline's. It is the same for
  every process on that board, so that no number of pairs there shrinks it.
- W, with *within*: the luck of a process, such as its memory addresses and the gap between launches of its graphs. The
  pairs of a process share it, so that their bootstrap interval does not show it.

Both are pooled over the entries of a class of duration, because an entry meets too few boards. Neither need be normal:
half of an interval is as many standard deviations as hold 95 % of the differences between boards.

So a speedup holds for other boards and processes within an interval of both; two boards that differ by several times B
prove no slower kernel; and a kernel is compared with its former binary on one board, in pairs, where B cancels.
docs/measuring says how the components are estimated and how often the intervals are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, inf, log, sqrt
from typing import Literal

from hopper_gemm.tune.statistics import Ratio

Z = 1.96
"""Standard deviations in half of a 95 % interval of a normal distribution."""

FALL = 0.015
"""The smallest fall that a check must find, as a fraction."""


@dataclass(frozen=True)
class Component:
    """The spread of measurements of one entry, standard deviations as fractions."""

    most_us: float  # upper end of the class of duration
    between: float  # between boards
    within: float  # between processes on one board
    deviations: float = Z  # standard deviations in half of a 95 % interval
    entries: int = 0  # entries and boards behind the estimate
    boards: int = 0

    def half_width(self, looks: Sequence[int] = (1,)) -> float:
        """Return half of a 95 % interval of a mean over boards, as a logarithm; ``looks`` is the number of processes
        that measured the entry, board by board."""
        variance = sum(self.between**2 + self.within**2 / processes for processes in looks)
        return self.deviations * sqrt(variance) / len(looks)


COMPONENTS = (
    Component(8.0, 0.0116, 0.0095, 2.11, 21, 20),
    Component(20.0, 0.0258, 0.0092, 2.10, 19, 22),
    Component(150.0, 0.0030, 0.0113, 2.04, 87, 32),
    Component(inf, 0.0027, 0.0037, 2.07, 72, 25),
)
"""Components by class of duration, of NVIDIA H200 boards, from finals and comparisons of the same machine code, bursts
in both contexts. Below 20 us most of *between* is not the board but the gap between two launches of a graph: it is
longer in some rows than in others, for both sides alike, and a baseline of two kernels has it twice."""


def component_of(duration_us: float, components: Sequence[Component] = COMPONENTS) -> Component:
    """Return the component of a duration's class, or of the longest class if the duration exceeds it."""
    return next((component for component in components if duration_us <= component.most_us), components[-1])


def published(
    ratio: Ratio, duration_us: float, looks: Sequence[int] = (1,), components: Sequence[Component] = COMPONENTS
) -> Ratio:
    """Return a speedup, the mean of several boards, with an interval that holds for other processes on other boards of
    the GPU model: its own interval, or the wider one of the components of a baseline's duration. ``looks`` is the
    number of processes that measured it, board by board."""
    half = component_of(duration_us, components).half_width(looks)
    low, high = (exp(max(abs(log(end / ratio.median)), half)) for end in (ratio.low, ratio.high))
    return Ratio(ratio.median, ratio.median / low, ratio.median * high, ratio.pairs)


def mean_of(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of speedups on different problems, whose errors are independent: boards and processes
    scatter by entry."""
    halves = [[log(ratio.median / ratio.low), log(ratio.high / ratio.median)] for ratio in ratios]
    mean = exp(sum(log(ratio.median) for ratio in ratios) / len(ratios))
    below, above = (exp(hypot(*side) / len(ratios)) for side in zip(*halves, strict=True))
    return Ratio(mean, mean / below, mean * above, sum(ratio.pairs for ratio in ratios))


@dataclass(frozen=True)
class Verdict:
    """The verdict of a check on an entry."""

    # "held", "fallen", or "unsure" if more pairs, or an idle GPU, must decide
    status: Literal["held", "fallen", "unsure"]
    message: str  # one line with the figures


def paired_verdict(ratio: Ratio, noise: float, same_code: bool = False) -> Verdict:
    """Return whether today's kernel is as fast as its recorded binary, timed in pairs on one board: the ratio is the
    time of the binary over today's.

    Fallen: the whole interval lies below 1 by more than half of :data:`FALL`, and by more than the noise, a fraction.
    Held: the whole interval lies above 1 - :data:`FALL`. Between these limits lies several times the scatter of runs on
    one board. Equal machine code differs by its launch alone, and is held if its median lies above 1 - :data:`FALL`.
    """
    interval = f"{ratio.median:.4f}x [{ratio.low:.4f}, {ratio.high:.4f}]"
    figures = f"{interval} of the recorded binary's speed, noise {noise:.2%}"
    if same_code:
        figures = f"the same machine code; {figures}"
    if ratio.high < 1 - max(FALL / 2, noise):
        return Verdict("fallen", f"slower by {1 - ratio.median:.2%}: {figures}")
    if ratio.median > 1 - FALL if same_code else ratio.low > 1 - FALL and noise <= FALL / 2:
        return Verdict("held", figures)
    return Verdict("unsure", f"{figures}; measure more pairs, on a GPU of its own")


def record_verdict(
    recorded: Ratio, now: Ratio, duration_us: float, components: Sequence[Component] = COMPONENTS
) -> str | None:
    """Return a warning if a speedup over a baseline, whose launch lasts ``duration_us``, lies further from the recorded
    one, not widened, than another board explains; else None. It is no regression: the board, the driver or the baseline
    may have changed."""
    wide = [published(ratio, duration_us, components=components) for ratio in (recorded, now)]
    # 3.3 standard deviations, beyond which the same entry lies once in a thousand times
    limit = 3.3 / Z * hypot(*(log(ratio.high / ratio.low) / 2 for ratio in wide))
    apart = log(now.median / recorded.median)
    if abs(apart) <= limit:
        return None
    return (
        f"{now.median:.4f}x over the baseline now, recorded {recorded.median:.4f}x: {abs(apart):.2%} "
        f"{'below' if apart < 0 else 'above'} it, and another board explains {limit:.2%}; compare board, driver and "
        "the baseline's kernel"
    )
