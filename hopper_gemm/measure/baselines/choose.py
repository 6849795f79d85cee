"""Which of a baseline's candidates it is timed with: the fastest by our own clock.

All are run once; those that come near the fastest are timed in short bursts; the best few of them again, longer, in
turns, and in the regime that is asked about. The same care that a sweep of ours takes, and no luckiest sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from hopper_gemm.measure.arms import Arm, Clock, make_arm, seconds_per_launch
from hopper_gemm.measure.baselines.base import BaselineError, Candidate
from hopper_gemm.measure.correctness import check, poison
from hopper_gemm.measure.device import Telemetry
from hopper_gemm.measure.regimes import Burst, Steady, time_burst, time_steady
from hopper_gemm.measure.regimes import Protocol as Regime
from hopper_gemm.measure.workload import Workload

NEAR = 1.3
"""Candidates that take longer than this times the shortest are not timed further."""

FINALISTS, ROUNDS = 4, 5

SHORT = Burst(rest=0.005, warm=0.001, timed=0.002, pairs=1)
LONGER = Burst(pairs=1)
"""As long as the bursts of the comparison: where 5 ms were timed, in three rounds, the choice lost to torch.mm by
3 % at 8192 x 4096 x 14336."""
SETTLED = Steady(settle=0.8, window=0.5, slice=0.5, pairs=1)

GLANCED = 16
"""Sets of matrices, at most, that a first look takes."""

REL_ERR_MAX = 1e-2
"""What a baseline may be off by: several times the rounding of its output, since a library may round partial sums too;
a wrong product is off by about 1."""


@dataclass(frozen=True)
class Chosen:
    """What a baseline is timed with.

    Args:
        label: of the candidate.
        recipe: of the candidate.
        of: how many candidates there were.
        rel_err: relative Frobenius error of its product against fp32.
    """

    label: str
    recipe: Any
    of: int
    rel_err: float


class Stopwatch(Protocol):
    """What tells candidates apart. Times are seconds or microseconds: only their order counts."""

    def glance(self, candidate: Candidate) -> float:
        """Roughly; raises where the candidate does not run."""
        ...

    def short(self, candidate: Candidate) -> float:
        """In a short burst."""
        ...

    def again(self, candidate: Candidate) -> float:
        """Longer, in the regime that is asked about."""
        ...

    def rel_err(self, candidate: Candidate) -> float:
        """Relative error of its product; NaN where elements are missing."""
        ...


def choose(candidates: Sequence[Candidate], watch: Stopwatch) -> tuple[Candidate, Chosen]:
    """The fastest candidate whose product is right.

    Args:
        candidates: of one baseline, for one problem.
        watch: times them.

    Raises:
        BaselineError: none of them runs and is right; the message has the first one's reason.
    """
    failed: list[str] = []
    ranked = list(candidates)
    if len(ranked) > 1:
        glances = _timed(ranked, watch.glance, failed)
        near = [one for one, seconds in glances if seconds <= NEAR * glances[0][1]]
        ranked = [one for one, _ in _timed(near, watch.short, failed)]
    errors: dict[int, float] = {}
    finalists: list[Candidate] = []
    for one in ranked:
        rel_err = watch.rel_err(one)
        if rel_err <= REL_ERR_MAX:
            finalists.append(one)
            errors[id(one)] = rel_err
        else:
            failed.append(f"{one.label or 'its product'} is wrong, relative error {rel_err:.2e}")
        if len(finalists) == FINALISTS:
            break
    if not finalists:
        raise BaselineError(f"none of {len(candidates)} candidates runs and is right: {failed[0]}")
    best = finalists[0]
    if len(finalists) > 1:
        rounds = [[watch.again(one) for one in finalists] for _ in range(ROUNDS)]
        times = [median(column) for column in zip(*rounds, strict=True)]
        best = finalists[times.index(min(times))]
    return best, Chosen(best.label, best.recipe, len(candidates), errors[id(best)])


def _timed(
    candidates: Sequence[Candidate], time: Callable[[Candidate], float], failed: list[str]
) -> list[tuple[Candidate, float]]:
    """Candidates that run, the fastest first; reasons of the others are added to ``failed``."""
    times = []
    for one in candidates:
        try:
            times.append((one, time(one)))
        except Exception as error:  # a library may refuse what its own list offers
            failed.append(f"{one.label}: {error}")
    return sorted(times, key=lambda pair: pair[1])


class GpuStopwatch:
    """Times candidates on the GPU.

    Args:
        workload: the problem's matrices.
        protocol: its type says which regime is asked about.
        clock: for the timings.
        uuid: of the GPU, for its telemetry.
    """

    def __init__(self, workload: Workload, protocol: Regime, clock: Clock, uuid: str) -> None:
        self._workload, self._clock, self._uuid = workload, clock, uuid
        self._steady = isinstance(protocol, Steady)
        self._few = replace(workload, sets=workload.sets[:GLANCED])
        self._seconds: dict[int, float] = {}
        self._arms: dict[int, Arm] = {}

    def glance(self, candidate: Candidate) -> float:
        """Launched one by one."""
        seconds = seconds_per_launch(candidate.launch, self._few)
        self._seconds[id(candidate)] = seconds
        return seconds

    def short(self, candidate: Candidate) -> float:
        """One burst."""
        arm = make_arm(candidate.launch, self._workload, SHORT.warm, SHORT.timed, self._seconds[id(candidate)])
        return time_burst(arm, SHORT, self._clock).us[0]

    def again(self, candidate: Candidate) -> float:
        """One longer burst, or a stretch of steady state; the graphs are kept for the next round."""
        arm = self._arms.get(id(candidate))
        if arm is None:
            spans = (SETTLED.graph, SETTLED.graph) if self._steady else (LONGER.warm, LONGER.timed)
            arm = self._arms[id(candidate)] = make_arm(candidate.launch, self._workload, *spans)
        if not self._steady:
            return time_burst(arm, LONGER, self._clock).us[0]
        with Telemetry(self._uuid) as telemetry:
            return median(time_steady(arm, SETTLED, self._clock, telemetry).us)

    def rel_err(self, candidate: Candidate) -> float:
        """Of the first set's product."""
        first = self._workload.sets[0]
        poison(first.theirs)
        candidate.launch(first)
        return check(candidate.product(first), self._workload.reference, self._workload.problem.k).rel_err
