"""The process that the user started: it owns the question and its rows, and hands tasks to workers.

Every point is answered once. Those that a worker had begun when it died are given to another worker once more; what it
had only queued costs nothing. Answers that arrive together are recorded together, and told to the question after that.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from hopper_gemm.model.point import Point
from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.run.executors.local import Executor
from hopper_gemm.tune.run.question import Member, Question, RefusedError, Taken
from hopper_gemm.tune.run.task import Answer, Begun, Event, Joined, Left, Said, Task

HOPELESS = 5
"""So many crashes from the first answer on, and the run ends."""

PATIENCE_SECONDS = 20.0
"""After so long without a worker the user is told what is waited for, and again after every three times that."""

AWAY_SECONDS = 120.0
"""So long a board may stay away after its worker died; then what is only for it is dropped."""

TICK_SECONDS = 0.5
BATCH = 8
"""Tasks that are handed out before answers are looked for again: a sampler thinks about each."""


class RunError(ValueError):
    """The run cannot go on; the message says why, and what to do."""


@dataclass(eq=False)
class _Sent:
    """A task that is out.

    Args:
        number: by which the worker answers.
        task: as the question gave it.
        board: where it was sent first.
        left: points without an answer.
        sent: of these, in the order in which the worker has them.
        begun: points that the worker has begun.
        deaths: workers that died over each point.
    """

    number: int
    task: Task
    board: str
    left: list[Point]
    sent: tuple[Point, ...] = ()
    begun: set[Point] = field(default_factory=set)
    deaths: Counter[Point] = field(default_factory=Counter)


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
        self._out: dict[str, dict[int, _Sent]] = {}
        self._again: deque[_Sent] = deque()
        self._numbers = count(1)
        self._held: list[Taken] | None = []
        self._reason = ""
        self._ever = False

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
                if not self._ever:
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
        """Give workers what they have room for; whether there is more to give."""
        hungry, given = list(self._members.values()), 0
        room = self._question.room(len(hungry)) if hungry else 0
        while hungry:
            for member in list(hungry):
                out = self._out[member.name]
                sent = self._open(member) if len(out) < room else None
                if sent is None:
                    hungry.remove(member)
                    continue
                sent.sent, sent.begun = tuple(sent.left), set()
                out[sent.number] = sent
                self._executor.send(member.name, sent.number, replace(sent.task, points=sent.sent))
                given += 1
                if given == BATCH:
                    return True
        return False

    def _open(self, member: Member) -> _Sent | None:
        """A task for a worker: one that another died over, or the question's next."""
        for sent in self._again:
            if not sent.task.pinned or sent.board == member.board:
                self._again.remove(sent)
                return sent
        task = self._question.next(member)
        return None if task is None else _Sent(next(self._numbers), task, member.board, list(task.points))

    def _hear(self, events: Sequence[tuple[str, Event]]) -> None:
        taken: list[Taken] = []
        for name, event in events:
            if isinstance(event, Joined):
                self._join(Member(name, event.gpu, dict(event.missing)))
            elif isinstance(event, Said):
                self._say(event.text)
            elif isinstance(event, Left):
                taken += self._lost(name, event)
            elif isinstance(event, Begun):
                sent = self._out.get(name, {}).get(event.number)
                if sent is not None:
                    sent.begun.add(sent.sent[event.index])
            else:
                taken += self._answered(name, event)
        if self._held is not None:
            self._held += taken
            crashed = [one for one in self._held if one.answer.status == "crash"]
            if len(crashed) < len(self._held):
                self._deliver()
            elif len(crashed) >= HOPELESS:
                raise RunError(
                    f"the first {HOPELESS} points all crashed, the last with: {crashed[-1].answer.reason}; nothing was "
                    "recorded: run hopper-gemm doctor and fix what it names, then run the same command"
                )
        elif taken:
            self._question.take(taken)

    def _join(self, member: Member) -> None:
        try:
            self._question.joined(member)
        except RefusedError as error:
            self._say(str(error))
            return
        self._ever = True
        self._members[member.name] = member
        self._out.setdefault(member.name, {})
        self._away.pop(member.name, None)

    def _drop_lost_boards(self) -> None:
        """Give back pinned tasks whose board does not return."""
        now = time.monotonic()
        for name in [name for name, (_, since) in self._away.items() if now - since > AWAY_SECONDS]:
            del self._away[name]
            self._question.left(name)
        boards = {*(board for board, _ in self._away.values()), *(member.board for member in self._members.values())}
        for sent in list(self._again):
            if sent.task.pinned and sent.board not in boards:
                self._again.remove(sent)
                self._question.dropped(sent.task, sent.board)

    def _deliver(self) -> None:
        """Stop holding answers back: they are not all crashes. What fails on every point is not the points' fault, and
        rows of it would keep them from being measured once it is fixed."""
        held, self._held = self._held or [], None
        self._question.take(held)

    def _answered(self, name: str, answer: Answer) -> list[Taken]:
        sent = self._out.get(name, {}).get(answer.number)
        if sent is None or (point := sent.sent[answer.index]) not in sent.left:
            return []  # of a worker that was taken for dead: another has answered, or will
        sent.left.remove(point)
        if not sent.left:
            del self._out[name][answer.number]
        return [Taken(self._members[name], sent.task, point, answer)]

    def _lost(self, name: str, left: Left) -> list[Taken]:
        """A worker is gone: what it had goes to others, and what it was measuring counts a death."""
        member = self._members.pop(name, None)
        self._reason = f"{name}: {left.reason}" if name and name not in left.reason else left.reason
        self._say(self._reason)
        if member is not None and not left.for_good:
            self._away[name] = member.board, time.monotonic()
        if left.for_good:
            self._away.pop(name, None)
            self._question.left(name)
        taken = []
        for sent in self._out.pop(name, {}).values():
            hit = [point for point in sent.left if point in sent.begun]
            sent.deaths.update(hit)
            for point in hit:
                if member is not None and sent.deaths[point] > 1:
                    sent.left.remove(point)
                    index, reason = sent.sent.index(point), f"two workers died over it; {left.reason}"
                    taken.append(Taken(member, sent.task, point, Answer(sent.number, index, "crash", reason)))
            if sent.left:
                self._again.append(sent)
        return taken


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
