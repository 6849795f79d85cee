"""Many sweeps as one question: each is at home on one worker, and the next one goes to whoever is free."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.run.question import Member, Question
from hopper_gemm.tune.run.questions.sweep import Sweep
from hopper_gemm.tune.run.task import Task
from hopper_gemm.tune.study.row import Row


@dataclass
class _One:
    """A sweep of the list.

    Args:
        make: opens it; raises what is wrong with its folder.
        worker: name of the worker it is at home on.
        out: points that were given and not answered.
    """

    problem: GemmProblem
    make: Callable[[], Sweep]
    sweep: Sweep | None = None
    worker: str | None = None
    out: int = 0
    settled: bool = False


@dataclass
class Clock:
    """What a worker did: rows of searches, from its first task to its last answer."""

    trials: int = 0
    first: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)


class Many(Question):
    """See the module.

    Args:
        out: folder of the sweeps' folders.
        sweeps: of each problem, what opens its sweep.
        done: told the folder of each sweep that is finished.
        watch: told the problem of each sweep that is settled, and why it failed, if it did.
    """

    def __init__(
        self,
        out: Path,
        sweeps: Sequence[tuple[GemmProblem, Callable[[], Sweep]]],
        done: Callable[[Path], None] = lambda folder: None,
        watch: Callable[[GemmProblem, str], None] = lambda problem, reason: None,
    ) -> None:
        self.out = out
        self._ones = {problem: _One(problem, make) for problem, make in sweeps}
        self._done, self._watch = done, watch
        self.failures: dict[GemmProblem, str] = {}
        """Why problems are not tuned."""
        self.clocks: dict[str, Clock] = {}
        """Clocks by worker."""

    @property
    def settled(self) -> set[GemmProblem]:
        """Problems that are tuned, now or in an earlier run."""
        return {problem for problem, one in self._ones.items() if one.settled and problem not in self.failures}

    @property
    def open(self) -> int:
        """Problems that are still to be tuned."""
        return sum(not one.settled for one in self._ones.values())

    def left(self, worker: str) -> None:
        """A worker will not come back: its sweep goes to another."""
        for one in self._ones.values():
            one.worker = None if one.worker == worker else one.worker

    def room(self, workers: int) -> int:
        """Number of tasks to keep open: as many as the sweeps under way want."""
        return max((one.sweep.room(1) for one in self._ones.values() if one.sweep and one.worker), default=1)

    def next(self, member: Member) -> Task | None:
        """The next task of the worker's own sweep, else of the first sweep without a worker."""
        ones = sorted(self._ones.values(), key=lambda one: one.worker != member.name)
        for one in ones:
            if one.settled or one.worker not in (None, member.name):
                continue
            task = self._of(one, member)
            if task is not None:
                one.out += len(task.points)
                self.clocks.setdefault(member.name, Clock())
                return task
            if one.out:
                return None  # its last answers are still to come, and then its finals
            if one.sweep is not None and not one.settled:
                self._settle(one)
        return None

    def take(self, rows: Sequence[tuple[Member, Row]]) -> None:
        """Give each sweep its own."""
        found: dict[GemmProblem, list[tuple[Member, Row]]] = {}
        for member, row in rows:
            found.setdefault(row.point.problem, []).append((member, row))
            clock = self.clocks.setdefault(member.name, Clock())
            clock.last = time.monotonic()
        for problem, own in found.items():
            one = self._ones[problem]
            one.out -= len(own)
            assert one.sweep is not None
            one.sweep.take(own)
            counted = Counter(member.name for member, row in own if row.stage == "sweep")
            for name, trials in counted.items():
                self.clocks[name].trials += trials

    def renewed(self, task: Task, member: Member) -> Task:
        """See :class:`hopper_gemm.tune.run.question.Question`."""
        sweep = self._ones[task.points[0].problem].sweep
        return task if sweep is None else sweep.renewed(task, member)

    def dropped(self, task: Task) -> None:
        """See :class:`hopper_gemm.tune.run.question.Question`."""
        one = self._ones[task.points[0].problem]
        one.out -= len(task.points)
        if one.sweep is not None:
            one.sweep.dropped(task)

    def tick(self) -> None:
        """See :class:`hopper_gemm.tune.run.question.Question`."""
        for one in self._ones.values():
            if one.sweep is not None and not one.settled:
                one.sweep.tick()

    def close(self) -> None:
        """Close what is still open; however the run ended."""
        for one in self._ones.values():
            if one.sweep is not None and not one.settled:
                one.sweep.close()

    def _of(self, one: _One, member: Member) -> Task | None:
        """The next task of a sweep, opened on this worker where nobody has."""
        try:
            if one.sweep is None:
                sweep = one.make()
                one.sweep = sweep
                if sweep.finished:
                    return None
            if one.worker is None:
                one.sweep.joined(member)
                one.worker = member.name
            return one.sweep.next(member)
        except ValueError as error:
            if one.sweep is not None and one.worker is not None:
                raise
            self._settle(one, str(error).splitlines()[0])
            return None

    def _settle(self, one: _One, failure: str = "") -> None:
        one.settled, one.worker = True, None
        if failure:
            self.failures[one.problem] = failure
        elif one.sweep is not None:
            one.sweep.close()
            self._done(one.sweep.out)
        self._watch(one.problem, failure)
