"""Choice among a baseline's candidates: the fastest by our own clock.

1. All candidates are run once, and so are variants of the fastest.
2. Candidates near the fastest are timed in a short burst.
3. The best of these are timed in several short bursts.
4. The finalists are timed in alternation, in longer bursts, in the regime and the context of the comparison.

A sweep of our own configs takes the same care, with as many looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import torch

from hopper_gemm.tune.measure.arms import Arm, Launch, seconds_per_launch
from hopper_gemm.tune.measure.baselines.base import BaselineError, Candidate, Care
from hopper_gemm.tune.measure.correctness import poison
from hopper_gemm.tune.measure.protocol import Burst, Protocol, Steady
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import Workload

USUAL = Care()

SHORT = Burst(rest=0.005, warm=0.002, timed=0.002)
LONGER = Burst()
"""Bursts as long as those of the comparison: with three rounds of 5 ms, the choice lost to torch.mm by 3 % at
8192 x 4096 x 14336."""
SETTLED = Steady(settle=0.8, window=0.5, slice=0.5)

KEPT_WITHIN = 0.02
"""Other processes choose again among the finalists that lie no further behind the fastest."""

REL_ERR_MAX = 1e-2
"""The largest relative error of a baseline: several times the rounding of its output, because a library may round
partial sums too; a wrong product is off by about 1."""


@dataclass(frozen=True)
class Chosen:
    """The choice among a baseline's candidates."""

    candidate: Candidate  # the fastest
    of: int  # number of candidates
    rel_err: float  # relative Frobenius error of its product against fp32
    # candidates among which another process chooses by choose_again, the fastest first
    finalists: tuple[Candidate, ...]


class Stopwatch:
    """Times candidates on the GPU, in the regime of the comparison's protocol. Times are seconds or microseconds: only
    their order counts. ``arm`` makes an arm from a launch and its rough seconds, in the context of the comparison."""

    def __init__(
        self, workload: Workload, protocol: Protocol, timer: Timer, arm: Callable[[Launch, float], Arm]
    ) -> None:
        self._workload, self._timer, self._arm = workload, timer, arm
        self._long = SETTLED if isinstance(protocol, Steady) else LONGER
        self._seconds: dict[int, float] = {}
        self._arms: dict[int, Arm] = {}

    def glance(self, candidate: Candidate) -> float:
        """Return rough seconds of a launch, launched one by one on 16 sets at most; raise if it does not run."""
        try:
            seconds = seconds_per_launch(candidate.launch, self._workload.sets[:16])
        except Exception:
            with suppress(RuntimeError):  # torch reports a refused launch at its own next launch: take the report here
                torch.zeros(1, device="cuda")
            raise
        self._seconds[id(candidate)] = seconds
        return seconds

    def short(self, candidate: Candidate) -> float:
        return self._time(self._arm(candidate.launch, self._seconds[id(candidate)]), SHORT)

    def again(self, candidate: Candidate) -> float:
        """Time a longer burst, or a window of steady state; the graphs are kept for the next round."""
        if id(candidate) not in self._arms:
            self._arms[id(candidate)] = self._arm(candidate.launch, self._seconds[id(candidate)])
        return self._time(self._arms[id(candidate)], self._long)

    def rel_err(self, candidate: Candidate) -> float:
        """Return the relative error of the first set's product; NaN if elements are missing."""
        first = self._workload.sets[0]
        poison(first.theirs)
        candidate.launch(first)
        return self._workload.check(candidate.product(first)).rel_err

    def _time(self, arm: Arm, protocol: Protocol) -> float:
        with self._timer.telemetry(protocol) as telemetry:
            return median(self._timer.time(arm, protocol, telemetry).us)


def choose(candidates: Sequence[Candidate], watch: Stopwatch, care: Care = USUAL) -> Chosen:
    """Return the fastest of a baseline's candidates for a problem whose product is right."""
    failed: list[str] = []
    tried = list(candidates)
    ranked = tried
    if len(tried) > 1:
        glances = _timed(tried, watch.glance, failed)
        recipes = {candidate.recipe for candidate in tried}
        variants = (variant for candidate, _ in glances[: care.varied] for variant in candidate.variants())
        varied = list({variant.recipe: variant for variant in variants if variant.recipe not in recipes}.values())
        tried += varied
        glances = sorted(glances + _timed(varied, watch.glance, failed), key=lambda pair: pair[1])
        near = [candidate for candidate, seconds in glances if candidate.seeded or seconds <= care.near * glances[0][1]]
        once = [candidate for candidate, _ in _timed(near, watch.short, failed)]
        semifinal = [candidate for rank, candidate in enumerate(once) if candidate.seeded or rank < care.semifinalists]
        ranked = [candidate for candidate, _ in _timed(semifinal, watch.short, failed, care.short_rounds)]
    return _final(ranked, len(tried), watch, failed, care)


def choose_again(finalists: Sequence[Candidate], watch: Stopwatch, care: Care = USUAL) -> Chosen:
    """Return the fastest of :attr:`Chosen.finalists` of another process, by the last round of :func:`choose` alone."""
    failed: list[str] = []
    runnable = [candidate for candidate, _ in _timed(finalists, watch.glance, failed)]
    return _final(runnable, len(finalists), watch, failed, care)


def _final(ranked: Sequence[Candidate], of: int, watch: Stopwatch, failed: list[str], care: Care = USUAL) -> Chosen:
    """Time the finalists, the first candidates whose products are right and the seeded ones, and choose the fastest."""
    errors: dict[int, float] = {}
    finalists: list[Candidate] = []
    for candidate in ranked:
        if len(finalists) >= care.finalists and not candidate.seeded:
            continue
        try:
            rel_err = watch.rel_err(candidate)
        except Exception as error:
            failed.append(f"{candidate.label}: {error}")
            continue
        if rel_err <= REL_ERR_MAX:
            finalists.append(candidate)
            errors[id(candidate)] = rel_err
        else:
            failed.append(f"{candidate.label or 'its product'} is wrong, relative error {rel_err:.2e}")
    if not finalists:
        raise BaselineError(f"none of {of} candidates runs and is right: {failed[0]}")
    timed = [(finalists[0], 0.0)] if len(finalists) == 1 else _timed(finalists, watch.again, failed, care.rounds)
    best, least = timed[0]
    kept = tuple(candidate for candidate, time in timed if candidate.seeded or time <= (1 + KEPT_WITHIN) * least)
    return Chosen(best, of, errors[id(best)], kept)


def _timed(
    candidates: Sequence[Candidate], time: Callable[[Candidate], float], failed: list[str], rounds: int = 1
) -> list[tuple[Candidate, float]]:
    """Return the candidates that run with their median times, the shortest first; add the reasons of the others to
    ``failed``."""
    times: dict[int, list[float]] = {number: [] for number in range(len(candidates))}
    for _ in range(rounds):
        for number in list(times):
            try:
                times[number].append(time(candidates[number]))
            except Exception as error:  # a library may refuse what its own list offers
                del times[number]
                failed.append(f"{candidates[number].label}: {error}")
    return sorted(((candidates[number], median(row)) for number, row in times.items()), key=lambda pair: pair[1])
