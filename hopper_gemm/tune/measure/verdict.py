"""Verdicts on measurements of several boards. Pure functions, without torch or a GPU.

The model: a measurement p of entry e on board b gives ln(speedup) = mu[e] + B[e, b] + W[e, b, p]. B, normal with
standard deviation *between*, is how the board suits our kernel more or less than the baseline's: the same for every
process on that board, so that no number of pairs on one board shrinks it. W, with *within*, is the luck of a process:
which memory it was given, which gap its graphs have; the pairs of one process share it, so that their bootstrap
interval does not show it. Both are pooled over all entries of a class of duration, since one entry meets too few
boards. Boards count as drawn at random from those of their model.

It follows that a speedup holds for other boards and processes within its own interval widened by both
(:func:`published`; how often that is true, :func:`coverage` counts); that two boards cannot tell a fallen kernel from
another board unless they differ by several times B, which is a warning at best (:func:`record_verdict`); and that a
kernel is compared with its former binary on one board, in pairs, where B cancels (:func:`paired_verdict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import fmean, median
from typing import Literal, NamedTuple

from hopper_gemm.tune.statistics import Ratio

Z = 1.96
"""Standard deviations in half of a 95 % interval."""

RARE = 3.3
"""Standard deviations beyond which the same entry lies once in a thousand times."""

FALL = 0.015
"""The smallest fall that a check must find, as a fraction."""

CLASSES = (8.0, 20.0, 150.0, inf)
"""Upper ends of the classes of duration, microseconds of a launch of the baseline."""

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Standard deviations in half of a 95 % interval by degrees of freedom, from 1 (Student's t)."""


@dataclass(frozen=True)
class Component:
    """The spread of measurements of one entry, standard deviations as fractions.

    Args:
        most_us: upper end of the class of duration.
        between: between boards.
        within: between processes on one board.
        entries, boards: behind the estimate.
    """

    most_us: float
    between: float
    within: float
    entries: int = 0
    boards: int = 0

    def half_width(self, boards: int = 1, looks: int = 1) -> float:
        """Half of a 95 % interval of a mean over boards and processes, as a logarithm.

        Args:
            boards: on which the entry was measured.
            looks: processes that measured it, on all boards together.
        """
        student = Z if self.boards - 1 > len(STUDENT) or self.boards < 2 else STUDENT[self.boards - 2]
        return student * sqrt(self.between**2 / boards + self.within**2 / looks)


COMPONENTS = (
    Component(8.0, 0.0171, 0.0043, 16, 11),
    Component(20.0, 0.0274, 0.0122, 15, 13),
    Component(150.0, 0.0, 0.0138, 57, 20),
    Component(inf, 0.0030, 0.0030, 42, 14),
)
"""Components by class of duration, of NVIDIA H200 boards: of finals and comparisons of the same machine code, bursts in
both contexts. Below 20 us most of *between* is not the board: the gap between two launches of a graph is 0.35 us longer
in some rows than in others, for both sides alike, and a baseline of two kernels pays it twice."""


class Measured(NamedTuple):
    """A measurement of an entry.

    Args:
        entry: what tells entries of equal machine code, problem, regime and context from others.
        duration_us: of a launch of the baseline.
        board: on which it ran.
        speedup: its median.
    """

    entry: str
    duration_us: float
    board: str
    speedup: float


def component_of(duration_us: float, components: Sequence[Component] = COMPONENTS) -> Component:
    """The component of a duration's class; that of the longest class where none reaches so far."""
    return next((component for component in components if duration_us <= component.most_us), components[-1])


def components_of(measured: Iterable[Measured]) -> tuple[Component, ...]:
    """The components of each class of duration in which some entry was measured on two boards or more.

    Moments of a one-way layout of random effects, pooled over entries: the mean squares between boards, less what the
    scatter within boards contributes to them. Where nothing was measured twice on a board, *within* is 0 and what it
    would be is part of *between*.
    """
    classes: dict[float, dict[str, dict[str, list[float]]]] = {}
    for entry in measured:
        boards = classes.setdefault(class_of(entry.duration_us), {}).setdefault(entry.entry, {})
        boards.setdefault(entry.board, []).append(log(entry.speedup))
    found = []
    for most_us, entries in sorted(classes.items()):
        several = [boards for boards in entries.values() if len(boards) > 1]
        if not several:
            continue
        groups = [values for boards in entries.values() for values in boards.values()]
        repeats = sum(len(values) - 1 for values in groups)
        within = sum(_squares(values) for values in groups) / repeats if repeats else 0.0
        freedom = sum(len(boards) - 1 for boards in several)
        squares = sum(_squares([fmean(values) for values in boards.values()]) for boards in several)
        shares = sum((len(boards) - 1) * fmean(1 / len(values) for values in boards.values()) for boards in several)
        between = max(0.0, squares - within * shares) / freedom
        names = {board for boards in several for board in boards}
        found.append(Component(most_us, sqrt(between), sqrt(within), len(several), len(names)))
    return tuple(found)


def published(
    ratio: Ratio, duration_us: float, boards: int = 1, looks: int = 1, components: Sequence[Component] = COMPONENTS
) -> Ratio:
    """A speedup with an interval that holds for other processes on other boards of the model.

    Args:
        ratio: as measured.
        duration_us: of a launch of the baseline.
        boards: on which it was measured.
        looks: processes that measured it.
        components: by class of duration.
    """
    beside = component_of(duration_us, components).half_width(boards, looks)

    def widened(end: float) -> float:
        """The distance from the median to an end, in logarithms, with the shares of boards and processes."""
        return sqrt(log(end / ratio.median) ** 2 + beside**2)

    low, high = exp(-widened(ratio.low)), exp(widened(ratio.high))
    return Ratio(ratio.median, ratio.median * low, ratio.median * high, ratio.pairs)


class Coverage(NamedTuple):
    """Coverage of the intervals of one class of duration.

    Args:
        most_us: upper end of the class.
        share: of the comparisons in which two boards' intervals allow for their difference.
        comparisons: of a process on one board with a process on another.
        entries: that they are of.
        half_width: median half of an interval of one process on one board, as a fraction.
    """

    most_us: float
    share: float
    comparisons: int
    entries: int
    half_width: float


def coverage(measured: Iterable[Measured]) -> tuple[Coverage, ...]:
    """Check the intervals of :func:`published` by leaving one board out.

    A board's measurements are compared with those of the same entries on all other boards, each with the interval that
    follows from components estimated without that board. Two intervals are right where the measurements differ by no
    more than the root of their summed squares, as two unbiased measurements do 95 times in a hundred.
    """
    known = list(measured)
    found: dict[float, list[tuple[bool, str, float]]] = {}
    for left_out in dict.fromkeys(one.board for one in known):
        components = {one.most_us: one for one in components_of(one for one in known if one.board != left_out)}
        others: dict[str, list[Measured]] = {}
        for one in known:
            if one.board != left_out:
                others.setdefault(one.entry, []).append(one)
        for one in known:
            component = components.get(class_of(one.duration_us))
            if one.board == left_out and component is not None:
                half = component.half_width()
                found.setdefault(component.most_us, []).extend(
                    (abs(log(one.speedup / other.speedup)) <= half * sqrt(2), one.entry, half)
                    for other in others.get(one.entry, ())
                )
    return tuple(
        Coverage(
            most_us, fmean(right for right, _, _ in of), len(of), len({e for _, e, _ in of}), median(h for *_, h in of)
        )
        for most_us, of in sorted(found.items())
        if of
    )


@dataclass(frozen=True)
class Verdict:
    """The verdict of a check on an entry.

    Args:
        status: ``"held"``, ``"fallen"``, or ``"unsure"`` where more pairs, or a quieter GPU, must decide.
        message: one line with the figures.
    """

    status: Literal["held", "fallen", "unsure"]
    message: str


def paired_verdict(ratio: Ratio, noise: float, same_code: bool = False) -> Verdict:
    """Return whether today's kernel is as fast as its recorded binary, timed in pairs on one board.

    Fallen is what lies below 1 as a whole by more than half of :data:`FALL`, and by more than the noise; held is what
    lies above a whole :data:`FALL` below 1. Between these two lie several times what runs on one board scatter. Equal
    machine code differs by its launch alone, and is held where its median lies above :data:`FALL` below 1.

    Args:
        ratio: time of the recorded binary over today's; below 1 today's is slower.
        noise: noise floor of the same run, as a fraction.
        same_code: whether both have the same machine code.
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


def record_verdict(recorded: Ratio, now: Ratio, component: Component) -> str | None:
    """A warning where a speedup over the baseline lies further from its record than another board explains; it is no
    regression: the board, the driver or the baseline may have changed.

    Args:
        recorded: as measured then, not widened.
        now: as measured now, perhaps on another board.
        component: of the entry's class of duration.
    """
    spread = [log(ratio.high / ratio.low) / (2 * Z) for ratio in (recorded, now)]
    limit = RARE * sqrt(2 * component.between**2 + sum(max(deviation, component.within) ** 2 for deviation in spread))
    apart = log(now.median / recorded.median)
    if abs(apart) <= limit:
        return None
    return (
        f"{now.median:.4f}x over the baseline now, recorded {recorded.median:.4f}x: {abs(apart):.2%} "
        f"{'below' if apart < 0 else 'above'} it, and another board explains {limit:.2%}; compare board, driver and "
        "the baseline's kernel"
    )


def class_of(duration_us: float) -> float:
    """Upper end of the class of a duration."""
    return next(limit for limit in CLASSES if duration_us <= limit)


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)
