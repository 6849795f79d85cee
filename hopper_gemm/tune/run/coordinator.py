"""The process that the user started: it owns the question and its rows, and hands tasks to workers.

Every point gets one row. A point whose worker died while measuring it goes to another worker once more; a queued point
costs nothing. Rows that arrive together are recorded together; then the question renews the tasks that wait at workers,
because it alone knows noise floors, leaders and machine code that was measured.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count

from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.run.executors.local import Executor
from hopper_gemm.tune.run.question import Question, RefusedError
from hopper_gemm.tune.run.task import Begun, Event, Joined, Left, Said, Task
from hopper_gemm.tune.study.row import Row, RowKey

MAX_INITIAL_CRASHES = 5
"""Number of crashes, before any other row, at which the run ends."""

PATIENCE_SECONDS = 20.0
"""Seconds without a worker after which a message says what is awaited; it is repeated after every three times that."""

AWAY_SECONDS = 120.0
"""Seconds that a board may stay away after its worker died; then tasks for that board alone are dropped."""


class RunError(ValueError):
    """The run cannot go on; the message says why, and what to do."""


class Coordinator:
    """Runs questions on the workers of an executor, one after the other; the workers stay from question to question."""

    def __init__(self, executor: Executor, say: Callable[[str], None] = lambda text: None) -> None:
        self._executor, self._say = executor, say
        self._members: dict[str, Joined] = {}
        self._absent: dict[str, tuple[str, float]] = {}
        """Board and time of death of workers that died and may come back, by name."""
        self._assigned: dict[str, dict[int, Task]] = {}
        """Tasks of each worker by number, without the points that have a row."""
        self._begun: dict[str, set[RowKey]] = {}
        self._deaths: Counter[RowKey] = Counter()  # number of workers that died over each row
        self._retries: deque[Task] = deque()  # tasks whose worker died
        self._numbers = count(1)
        self._reason = ""
        self._any_joined = False

    def run(self, question: Question) -> None:
        """Run a question until it has no more tasks, and close it however that ends. NoHopperError if no GPU can be
        used, RunError if no worker is left or all of the first points crashed."""
        try:
            self._begin(question)
            self._run()
        finally:
            question.close()

    def close(self) -> None:
        self._executor.close()

    def _begin(self, question: Question) -> None:
        self._question = question
        self._withheld: list[tuple[Joined, Row]] | None = [] if question.records_crashes else None
        """Rows that are not recorded yet because all are crashes; None once another row has come."""
        members, self._members = list(self._members.values()), {}
        for member in members:
            self._add(member)

    def _run(self) -> None:
        last_seen, announced = time.monotonic(), 0.0
        while True:
            full = self._assign_tasks()
            busy = any(self._assigned.values()) or self._retries
            if self._members and not busy and not full:
                if not self._withheld:
                    return
                self._release_withheld()  # the run is over after a few crashes
                continue
            over = not self._members and not self._executor.awaited
            events = self._executor.poll(0.0 if full or over else 0.5)
            if over and not events:
                if not self._any_joined:
                    raise NoHopperError(self._reason or "no GPU was named")
                raise RunError(f"{self._reason}; no worker is left, run the same command to go on")
            self._handle(events)
            self._question.tick()
            self._drop_absent_boards()
            now = time.monotonic()
            if self._members:
                last_seen, announced = now, 0.0
            elif now - last_seen > PATIENCE_SECONDS and (not announced or now - announced > 3 * PATIENCE_SECONDS):
                announced = now
                since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - last_seen)))
                self._say(f"waiting since {since} for {self._executor.awaited} to be ready")

    def _assign_tasks(self) -> bool:
        """Fill the workers' queues in turn; return True after a batch, when there may be more tasks."""
        hungry, sent = list(self._members.values()), 0
        room = self._question.room(len(hungry)) if hungry else 0
        while hungry:
            for member in list(hungry):
                assigned = self._assigned[member.name]
                task = self._next(member) if len(assigned) < room else None
                if task is None:
                    hungry.remove(member)
                    continue
                number = next(self._numbers)
                assigned[number] = task
                self._executor.send(member.name, number, task)
                sent += 1
                if sent == 8:  # a sampler may take long to propose each: poll meanwhile
                    return True
        return False

    def _next(self, member: Joined) -> Task | None:
        """Return a task for a worker: a retry if there is one, else the question's next."""
        for task in self._retries:
            if task.board in ("", member.board):
                self._retries.remove(task)
                return self._question.renewed(task, member)
        return self._question.next(member)

    def _handle(self, events: Sequence[tuple[str, Event]]) -> None:
        """Handle events of workers, and record their rows together."""
        rows: list[tuple[Joined, Row]] = []
        for name, event in events:
            if isinstance(event, Joined):
                self._add(replace(event, name=name))
            elif isinstance(event, Said):
                self._say(event.text)
            elif isinstance(event, Left):
                rows += self._remove(name, event)
            elif isinstance(event, Begun):
                self._begun.setdefault(name, set()).add(event.key)
            elif self._accept(name, event):
                rows.append((self._members[name], event))
        if self._withheld is not None:
            self._withheld += rows
            crashes = [row for _, row in self._withheld if row.status == "crash"]
            if len(crashes) < len(self._withheld):
                self._release_withheld()
            elif len(crashes) >= MAX_INITIAL_CRASHES:
                raise RunError(
                    f"the first {MAX_INITIAL_CRASHES} points all crashed, the last with: {crashes[-1].reason}; nothing "
                    "was recorded: run hopper-gemm doctor and fix what it names, then run the same command"
                )
        elif rows:
            self._record(rows)

    def _record(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Let the question record rows, and resend waiting tasks that the rows changed."""
        self._question.take(rows)
        for name, assigned in self._assigned.items():
            for number, task in assigned.items():
                renewed = self._question.renewed(task, self._members[name])
                if renewed != task:
                    assigned[number] = renewed
                    self._executor.send(name, number, renewed)

    def _release_withheld(self) -> None:
        """Record the withheld rows. Until a row that is no crash arrives, the environment may be at fault, not the
        points: recorded crashes would keep these points from being measured once it is fixed."""
        rows, self._withheld = self._withheld or [], None
        self._record(rows)

    def _accept(self, name: str, row: Row) -> bool:
        """Take the point of a row off its worker's task; return False if no task of the worker has it: the worker was
        taken for dead, and the point was given to another."""
        assigned = self._assigned.get(name, {})
        for number, task in assigned.items():
            if (rest := task.without(row)) is not None:
                assigned[number] = rest
                if not rest.points:
                    del assigned[number]
                self._begun.get(name, set()).discard(row.key)
                return True
        return False

    def _add(self, member: Joined) -> None:
        """Add a worker that is ready, unless the question refuses it."""
        try:
            self._question.joined(member)
        except RefusedError as error:
            self._say(str(error))
            return
        self._any_joined = True
        self._members[member.name] = member
        self._assigned.setdefault(member.name, {})
        self._absent.pop(member.name, None)

    def _remove(self, name: str, left: Left) -> list[tuple[Joined, Row]]:
        """Remove a worker that is gone and queue its tasks for others; return crash rows of the points over which a
        second worker died."""
        member = self._members.pop(name, None)
        self._reason = f"{name}: {left.reason}" if name and name not in left.reason else left.reason
        self._say(self._reason)
        if member is not None and not left.for_good:
            self._absent[name] = member.board, time.monotonic()
        if left.for_good:
            self._absent.pop(name, None)
            self._question.left(name)
        rows, reason = [], f"two workers died over it; {left.reason}"
        begun = self._begun.pop(name, set())
        self._deaths.update(begun)
        for task in self._assigned.pop(name, {}).values():
            assert member is not None
            possible = [task.row(point, member.board, "crash", reason) for point in task.points]
            dead = [row for row in possible if row.key in begun and self._deaths[row.key] > 1]
            rows += [(member, row) for row in dead]
            points = tuple(point for point in task.points if point not in [row.point for row in dead])
            if points:
                self._retries.append(replace(task, points=points))
        return rows

    def _drop_absent_boards(self) -> None:
        """Drop the tasks for boards that stayed away too long."""
        now = time.monotonic()
        for name in [name for name, (_, since) in self._absent.items() if now - since > AWAY_SECONDS]:
            del self._absent[name]
            self._question.left(name)
        boards = {*(board for board, _ in self._absent.values()), *(member.board for member in self._members.values())}
        for task in list(self._retries):
            if task.board and task.board not in boards:
                self._retries.remove(task)
                self._question.dropped(task)


def run(question: Question, executor: Executor, say: Callable[[str], None] = lambda text: None) -> None:
    """Run a question, and close it and its workers however it ends."""
    with closing(Coordinator(executor, say)) as coordinator:
        coordinator.run(question)
