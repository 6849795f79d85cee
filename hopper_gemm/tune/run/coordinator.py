"""The process that the user started: it owns the question and its rows, and hands tasks to workers.

Every point gets one row. Those that a worker had begun when it died are given to another worker once more; what it had
only queued costs nothing. Rows that arrive together are recorded together; then the question renews the tasks that wait
at workers, since it alone knows noise floors, leaders and machine code that was measured.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.run.executors.local import Executor
from hopper_gemm.tune.run.question import Member, Question, RefusedError
from hopper_gemm.tune.run.task import Begun, Event, Joined, Left, Said, Task
from hopper_gemm.tune.study.row import Row, RowKey

MAX_INITIAL_CRASHES = 5
"""Number of crashes, before any other row, at which the run ends."""

PATIENCE_SECONDS = 20.0
"""Time without a worker after which the user is told what is waited for, and again after every three times that."""

AWAY_SECONDS = 120.0
"""Time that a board may stay away after its worker died; then what is only for it is dropped."""

TICK_SECONDS = 0.5
BATCH = 8
"""Tasks that are handed out before rows are looked for again: a sampler thinks about each."""


class RunError(ValueError):
    """The run cannot go on; the message says why, and what to do."""


class Coordinator:
    """Runs a question on workers.

    Args:
        question: what is asked.
        executor: the workers.
        say: takes a line for the user.
    """

    def __init__(self, question: Question, executor: Executor, say: Callable[[str], None] = lambda text: None) -> None:
        self._question, self._executor, self._say = question, executor, say
        self._members: dict[str, Member] = {}
        self._away: dict[str, tuple[str, float]] = {}
        """Boards of workers that died and may come back, by name, with when they died."""
        self._out: dict[str, dict[int, Task]] = {}
        """Tasks that each worker has, by number, with those of their points that have no row."""
        self._begun: dict[str, set[RowKey]] = {}
        self._deaths: Counter[RowKey] = Counter()
        """Number of workers that died over each row."""
        self._again: deque[Task] = deque()
        """Tasks whose worker died."""
        self._numbers = count(1)
        self._held: list[tuple[Member, Row]] | None = [] if question.records_crashes else None
        """Rows that are kept back as long as all are crashes; None from the first other row on."""
        self._reason = ""
        self._any_joined = False

    def run(self) -> None:
        """Until the question has nothing more to ask.

        Raises:
            NoHopperError: not one GPU can be used.
            RunError: all workers are gone, or nothing but crashes came.
        """
        waited, told = time.monotonic(), 0.0
        while True:
            full = self._hand_out()
            busy = any(self._out.values()) or self._again
            if self._members and not busy and not full:
                if not self._held:
                    return
                self._deliver()  # all that there was were a few crashes
                continue
            over = not self._members and not self._executor.awaited
            events = self._executor.poll(0.0 if full or over else TICK_SECONDS)
            if over and not events:
                if not self._any_joined:
                    raise NoHopperError(self._reason or "no GPU was named")
                raise RunError(f"{self._reason}; no worker is left, run the same command to go on")
            self._hear(events)
            self._question.tick()
            self._drop_lost_boards()
            now = time.monotonic()
            if self._members:
                waited, told = now, 0.0
            elif now - waited > PATIENCE_SECONDS and (not told or now - told > 3 * PATIENCE_SECONDS):
                told = now
                since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - waited)))
                self._say(f"waiting since {since} for {self._executor.awaited} to be ready")

    # -----------------------------------------------------------------------------------------

    def _hand_out(self) -> bool:
        """Give workers the tasks that they have room for; return True if there may be more."""
        hungry, given = list(self._members.values()), 0
        room = self._question.room(len(hungry)) if hungry else 0
        while hungry:
            for member in list(hungry):
                out = self._out[member.name]
                task = self._next(member) if len(out) < room else None
                if task is None:
                    hungry.remove(member)
                    continue
                number = next(self._numbers)
                out[number] = task
                self._executor.send(member.name, number, task)
                given += 1
                if given == BATCH:
                    return True
        return False

    def _next(self, member: Member) -> Task | None:
        """A task for a worker: one that another died over, or the question's next."""
        for task in self._again:
            if task.board in ("", member.board):
                self._again.remove(task)
                return self._question.renewed(task, member)
        return self._question.next(member)

    def _hear(self, events: Sequence[tuple[str, Event]]) -> None:
        """Take up events of workers, and record the rows among them together.

        Raises:
            RunError: nothing but crashes came.
        """
        rows: list[tuple[Member, Row]] = []
        for name, event in events:
            if isinstance(event, Joined):
                self._join(Member(name, event.gpu, dict(event.missing)))
            elif isinstance(event, Said):
                self._say(event.text)
            elif isinstance(event, Left):
                rows += self._lost(name, event)
            elif isinstance(event, Begun):
                self._begun.setdefault(name, set()).add(event.key)
            elif self._awaited(name, event):
                rows.append((self._members[name], event))
        if self._held is not None:
            self._held += rows
            crashes = [row for _, row in self._held if row.status == "crash"]
            if len(crashes) < len(self._held):
                self._deliver()
            elif len(crashes) >= MAX_INITIAL_CRASHES:
                raise RunError(
                    f"the first {MAX_INITIAL_CRASHES} points all crashed, the last with: {crashes[-1].reason}; nothing "
                    "was recorded: run hopper-gemm doctor and fix what it names, then run the same command"
                )
        elif rows:
            self._record(rows)

    def _record(self, rows: Sequence[tuple[Member, Row]]) -> None:
        """Let the question record rows, and send tasks that wait at workers again where that changes them."""
        self._question.take(rows)
        for name, out in self._out.items():
            for number, task in out.items():
                renewed = self._question.renewed(task, self._members[name])
                if renewed != task:
                    out[number] = renewed
                    self._executor.send(name, number, renewed)

    def _join(self, member: Member) -> None:
        try:
            self._question.joined(member)
        except RefusedError as error:
            self._say(str(error))
            return
        self._any_joined = True
        self._members[member.name] = member
        self._out.setdefault(member.name, {})
        self._away.pop(member.name, None)

    def _drop_lost_boards(self) -> None:
        """Give back tasks for boards that do not return."""
        now = time.monotonic()
        for name in [name for name, (_, since) in self._away.items() if now - since > AWAY_SECONDS]:
            del self._away[name]
            self._question.left(name)
        boards = {*(board for board, _ in self._away.values()), *(member.board for member in self._members.values())}
        for task in list(self._again):
            if task.board and task.board not in boards:
                self._again.remove(task)
                self._question.dropped(task)

    def _deliver(self) -> None:
        """Stop keeping rows back: they are not all crashes. What fails on every point is not the points' fault, and
        rows of it would keep them from being measured once it is fixed."""
        held, self._held = self._held or [], None
        self._record(held)

    def _awaited(self, name: str, row: Row) -> bool:
        """Return True if a worker was to give this row, and take it off its task. A row of a worker that was taken for
        dead is not awaited: another worker has given it, or will."""
        out = self._out.get(name, {})
        for number, task in out.items():
            if (rest := task.without(row)) is not None:
                out[number] = rest
                if not rest.points:
                    del out[number]
                self._begun.get(name, set()).discard(row.key)
                return True
        return False

    def _lost(self, name: str, left: Left) -> list[tuple[Member, Row]]:
        """A worker is gone: what it had goes to others, and what it was measuring counts a death."""
        member = self._members.pop(name, None)
        self._reason = f"{name}: {left.reason}" if name and name not in left.reason else left.reason
        self._say(self._reason)
        if member is not None and not left.for_good:
            self._away[name] = member.board, time.monotonic()
        if left.for_good:
            self._away.pop(name, None)
            self._question.left(name)
        rows, reason = [], f"two workers died over it; {left.reason}"
        begun = self._begun.pop(name, set())
        self._deaths.update(begun)
        for task in self._out.pop(name, {}).values():
            assert member is not None
            possible = [task.row(point, member.board, "crash", reason) for point in task.points]
            dead = [row for row in possible if row.key in begun and self._deaths[row.key] > 1]
            rows += [(member, row) for row in dead]
            points = tuple(point for point in task.points if point not in [row.point for row in dead])
            if points:
                self._again.append(replace(task, points=points))
        return rows


def run(question: Question, executor: Executor, say: Callable[[str], None] = lambda text: None) -> None:
    """Run a question, and close it and its workers however it ends.

    Raises:
        NoHopperError, RunError: as :meth:`Coordinator.run`.
    """
    try:
        Coordinator(question, executor, say).run()
    finally:
        try:
            question.close()
        finally:
            executor.close()
