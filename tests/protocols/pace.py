"""The protocol of producers that meet.

Mirrors :class:`hopper_gemm.kernel.producer.Pace`: a producer adds 1 to the counter, who adds the last sets it back to
zero, and then each looks at the counter a bounded number of times until on average all have come to the meeting before.
Each step is one access to the counter. Any producer may begin first, and no more than ``resident`` are under way at
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.protocols.exploration import Broken, Explored, explore

Fault = Literal["", "torn", "short total", "whole waves"]
"""A mistake to make: read the counter and write it in two steps; reset it one too early; reset it at the end of the
meetings that all attend."""


@dataclass(frozen=True, order=True)
class Producer:
    """State of one producer.

    Args:
        attends: meetings of its tiles.
        step: ``absent``, ``come``, ``write`` (of a torn addition), ``reset``, ``look``, ``done``.
        attended: meetings so far.
        seen: what it last saw of the counter.
        looks: that it may still take.
    """

    attends: int
    step: str = "absent"
    attended: int = 0
    seen: int = 0
    looks: int = 0


@dataclass(frozen=True)
class PaceState:
    """The counter, and every producer."""

    counter: int
    producers: tuple[Producer, ...]


@dataclass(frozen=True)
class Meetings:
    """One launch.

    Args:
        attends: meetings that each producer attends; with the dynamic scheduler any numbers.
        shared: meetings that each is expected to attend: nobody waits at a later one.
        resident: producers under way at once.
        looks: of each, given back after every meeting that came about; None to wait without a bound.
        ahead: nobody may be so many meetings ahead of the average; 0 where that is not looked at.
        fault: a mistake to make.
    """

    attends: tuple[int, ...]
    shared: int
    resident: int
    looks: int | None = 2
    ahead: int = 0
    fault: Fault = ""

    @property
    def total(self) -> int:
        """Value that the counter reaches before it is set back."""
        if self.fault == "whole waves":
            return self.shared * len(self.attends)
        return sum(self.attends) - (self.fault == "short total")

    def run(self) -> Explored:
        """Run every order of events.

        Raises:
            Broken: a producer does not get to its end (``deadlock``), the counter is not zero then (``counter``), or a
                producer is further ahead than allowed (``ahead``).
        """
        start = PaceState(0, tuple(sorted(Producer(attends, looks=self.looks or 0) for attends in self.attends)))
        return explore(start, self._moves, self._ended)

    def _moves(self, moment: PaceState) -> Iterator[PaceState]:
        came = [one.attended for one in moment.producers]
        if self.ahead and len(came) * max(came) - sum(came) >= self.ahead * len(came):
            raise Broken("ahead", str(moment))
        under_way = sum(one.step not in ("absent", "done") for one in moment.producers)
        for i, one in enumerate(moment.producers):
            waits = (
                one.step == "look" and self.looks is None and moment.counter < (one.attended - 1) * len(self.attends)
            )
            if one.step == "done" or waits or (one.step == "absent" and under_way == self.resident):
                continue
            counter, after = self._step(moment.counter, one)
            yield PaceState(counter, tuple(sorted((*moment.producers[:i], after, *moment.producers[i + 1 :]))))

    def _step(self, counter: int, one: Producer) -> tuple[int, Producer]:
        if one.step == "absent":
            return counter, replace(one, step="come" if one.attends else "done")
        if one.step == "come" and self.fault == "torn":
            return counter, replace(one, step="write", seen=counter)
        if one.step in ("come", "write"):
            before = one.seen if one.step == "write" else counter
            one = replace(one, attended=one.attended + 1, seen=before + 1)
            return before + 1, replace(one, step="reset") if before + 1 == self.total else self._looking(one)
        if one.step == "reset":
            return 0, self._looking(one)
        if self.looks is None:
            return counter, self._next(one)
        return counter, self._looking(replace(one, seen=counter, looks=one.looks - 1))

    def _looking(self, one: Producer) -> Producer:
        """The producer with what it last saw: it looks again, or goes on."""
        if one.attended > self.shared:
            return self._next(one)
        met = one.seen >= (one.attended - 1) * len(self.attends)
        if not met and (one.looks > 0 or self.looks is None):
            return replace(one, step="look")
        return self._next(replace(one, looks=self.looks or 0) if met and one.looks > 0 else one)

    @staticmethod
    def _next(one: Producer) -> Producer:
        return replace(one, step="done" if one.attended == one.attends else "come")

    def _ended(self, moment: PaceState) -> None:
        if any(one.step != "done" for one in moment.producers):
            raise Broken("deadlock", str(moment))
        if moment.counter:
            raise Broken("counter", f"left at {moment.counter}")
