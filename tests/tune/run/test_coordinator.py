"""The coordinator: every point is answered once, whoever dies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run import coordinator as module
from hopper_gemm.tune.run.coordinator import Coordinator, RunError
from hopper_gemm.tune.run.question import Question, RefusedError
from hopper_gemm.tune.run.task import Begun, Joined, Left, Said, Task

POINTS = [Point(GemmProblem(64, 64, 64 * i), GemmConfig()) for i in range(1, 40)]


class Asks(Question):
    """So many tasks; remembers what it was told."""

    def __init__(self, tasks, room=2):
        self.left_to_give, self._room = list(tasks), room
        self.taken, self.dropped_tasks, self.gone, self.members = [], [], [], []

    def joined(self, member):
        if member.gpu["name"] != "H":
            raise RefusedError(f"{member.name} is another")
        self.members.append(member.name)

    def room(self, workers):
        return self._room

    def next(self, member):
        return self.left_to_give.pop(0) if self.left_to_give else None

    def take(self, rows):
        self.taken += [row for _, row in rows]

    def dropped(self, task):
        self.dropped_tasks.append(task)

    def left(self, worker):
        self.gone.append(worker)


class Script:
    """An executor whose workers do what a function says: given worker, number and task it returns events."""

    def __init__(self, act, boards=None, awaited="more"):
        self.events = [(n, Joined({"name": "H", "uuid": b})) for n, b in (boards or {"w0": "A"}).items()]
        self.act, self.sent, self.awaited = act, [], awaited

    def poll(self, seconds):
        events, self.events = self.events, []
        return events

    def send(self, worker, number, task):
        self.sent.append((worker, number, task))
        self.events += [(worker, event) for event in self.act(worker, number, task)]

    def close(self):
        pass


def task_of(*points, **more):
    return Task(points, Burst(), **more)


def begun(task, index=0):
    return Begun(task.row(task.points[index], "A", "").key)


def row(task, index=0, status="ok", reason=""):
    return task.row(task.points[index], "A", status, reason)


def well(worker, number, task):
    for index in range(len(task.points)):
        yield begun(task, index)
        yield row(task, index)


def ran(tasks, act=well, boards=None, **options):
    question, executor, said = Asks(tasks, **options), Script(act, boards), []
    Coordinator(executor, said.append).run(question)
    return question, executor, said


def test_the_next_question_meets_the_workers_that_are_there_under_numbers_of_its_own():
    executor = Script(well, {"w0": "A", "w1": "B"})
    runner, questions = Coordinator(executor), [Asks([task_of(point) for point in POINTS[:3]]) for _ in range(2)]
    for question in questions:
        runner.run(question)
    assert [sorted(question.members) for question in questions] == [["w0", "w1"]] * 2
    assert [len(question.taken) for question in questions] == [3, 3]
    assert len({number for _, number, _ in executor.sent}) == len(executor.sent)


def test_no_worker_holds_more_than_it_has_room_for():
    held, most = Counter(), [0]

    def slow(worker, number, task):
        held[worker] += 1
        most[0] = max(most[0], held[worker])
        return []

    question, executor = Asks([task_of(point) for point in POINTS[:9]], room=3), Script(slow)
    runner = Coordinator(executor)
    runner._begin(question)
    for _ in range(3):
        runner._assign_tasks()
        runner._handle(executor.poll(0))
    assert most == [3]


def dying(times, begins=True):
    """Worker ``w0`` dies over its first point so many times, and joins again at once."""
    left = [times]

    def act(worker, number, task):
        if worker == "w0" and left[0]:
            left[0] -= 1
            yield from [begun(task)] if begins else []
            yield Left("its worker died with signal SIGKILL")
            yield Joined({"name": "H", "uuid": "A"})
            return
        yield from well(worker, number, task)

    return act


def test_what_a_dead_worker_had_begun_is_measured_once_more_and_then_no_more():
    question, executor, said = ran([task_of(POINTS[0])], dying(1), room=1)
    assert [one.status for one in question.taken] == ["ok"]
    assert len(executor.sent) == 2
    assert said == ["w0: its worker died with signal SIGKILL"]
    question, executor, _ = ran([task_of(point) for point in POINTS[:3]], dying(2), room=1)
    by_point = {one.point: one for one in question.taken}
    assert by_point[POINTS[0]].status == "crash"
    assert by_point[POINTS[0]].reason.startswith("two workers died over it; its worker died with")
    assert [by_point[point].status for point in POINTS[1:3]] == ["ok", "ok"]


def test_what_it_had_not_begun_costs_nothing_however_often_it_dies():
    question, _, _ = ran([task_of(POINTS[0])], dying(5, begins=False), room=1)
    assert [one.status for one in question.taken] == ["ok"]


def test_of_a_task_only_what_has_no_answer_is_sent_again():
    state = {"first": True}

    def act(worker, number, task):
        if state.pop("first", False):
            yield begun(task)
            yield row(task, 0, "ok", "first")
            yield begun(task, 1)
            yield Left("died")
            yield Joined({"name": "H", "uuid": "A"})
            return
        yield from well(worker, number, task)

    question, executor, _ = ran([task_of(*POINTS[:3])], act)
    assert executor.sent[1][2].points == tuple(POINTS[1:3])
    assert Counter(one.point for one in question.taken) == dict.fromkeys(POINTS[:3], 1)
    assert question.taken[0].reason == "first"


def test_tasks_that_wait_are_sent_again_where_rows_change_them():
    """So that a worker measures with what is known by then, and keeps nothing itself."""

    class Learns(Asks):
        def renewed(self, task, member):
            return replace(task, twins={row.point.problem: "known" for row in self.taken})

    waiting = {}

    def one_by_one(worker, number, task):
        waiting[number] = task
        return []

    executor = Script(one_by_one)

    def poll(seconds):
        if not executor.events and waiting:
            number = next(iter(waiting))
            task = waiting.pop(number)
            executor.sent.append(("measured", number, task))
            executor.events = [("w0", event) for event in well("w0", number, task)]
        return Script.poll(executor, seconds)

    executor.poll = poll
    question = Learns([task_of(point) for point in POINTS[:3]], room=3)
    Coordinator(executor).run(question)
    measured = [len(task.twins) for worker, _, task in executor.sent if worker == "measured"]
    assert measured == [0, 1, 2]
    assert [row.point for row in question.taken] == POINTS[:3]


def test_a_late_answer_of_a_worker_that_was_taken_for_dead_counts_for_nothing():
    def act(worker, number, task):
        if worker == "w0":
            return [begun(task), Left("gone"), row(task, 0, "ok", "late")]
        return list(well(worker, number, task))

    question, _, _ = ran([task_of(point) for point in POINTS[:4]], act, {"w0": "A", "w1": "B"}, room=1)
    assert Counter(one.point for one in question.taken) == dict.fromkeys(POINTS[:4], 1)
    assert "late" not in {one.reason for one in question.taken}


@pytest.mark.parametrize("points", [1, 3])
def test_of_two_answers_for_one_point_the_first_counts_and_the_second_is_passed_over(points):
    def act(worker, number, task):
        for index in range(len(task.points)):
            yield row(task, index, "ok", "first")
            yield row(task, index, "ok", "second")

    question, _, _ = ran([task_of(*POINTS[:points])], act)
    assert [one.point for one in question.taken] == POINTS[:points]
    assert {one.reason for one in question.taken} == {"first"}


def test_what_is_for_one_board_waits_for_it_and_is_given_back_when_that_is_gone_for_good():
    def act(worker, number, task):
        if worker == "w0":
            return [Left("cannot be used", for_good=True)]
        return list(well(worker, number, task))

    tasks = [task_of(POINTS[0], board="A"), task_of(POINTS[1])]
    question, _, _ = ran(tasks, act, {"w0": "A", "w1": "B"}, room=1)
    assert [(task.points[0], task.board) for task in question.dropped_tasks] == [(POINTS[0], "A")]
    assert [one.point for one in question.taken] == [POINTS[1]]
    assert question.gone == ["w0"]


def test_a_worker_on_another_board_does_not_take_what_waits_for_one():
    """A noise floor is of one board."""
    runner, task = Coordinator(Script(well)), task_of(POINTS[0], board="A")
    runner._begin(Asks([]))
    runner._retries.append(task)
    assert runner._next(SimpleNamespace(name="w1", board="B")) is None
    assert runner._next(SimpleNamespace(name="w0", board="A")) == task


def test_a_board_that_stays_away_too_long_is_gone_for_good(monkeypatch):
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.0)

    def act(worker, number, task):
        return [Left("died")] if worker == "w0" else list(well(worker, number, task))

    question, _, _ = ran([task_of(POINTS[0], board="A")], act, {"w0": "A", "w1": "B"}, room=1)
    assert question.gone == ["w0"]
    assert len(question.dropped_tasks) == 1


@pytest.mark.parametrize(("seconds", "gone"), [(module.AWAY_SECONDS, []), (module.AWAY_SECONDS + 1, ["w0"])])
def test_a_board_may_stay_away_for_exactly_so_long(monkeypatch, seconds, gone):
    question = Asks([])
    runner = Coordinator(Script(well))
    runner._begin(question)
    runner._absent["w0"] = "A", 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0 + seconds)
    runner._drop_absent_boards()
    assert question.gone == gone


@pytest.mark.parametrize("count", [5, 9])
def test_crashes_and_nothing_else_from_the_first_answer_on_end_the_run_and_are_not_recorded(count):
    def act(worker, number, task):
        return [begun(task), row(task, 0, "crash", "no such symbol")]

    question = Asks([task_of(point) for point in POINTS[:count]])
    with pytest.raises(RunError, match="the first 5 points all crashed, the last with: no such symbol; nothing was re"):
        Coordinator(Script(act)).run(question)
    assert question.taken == []


def test_crashes_after_something_else_are_answers():
    def act(worker, number, task):
        return [row(task, 0, "ok" if number == 3 else "crash", "gone")]

    question, _, _ = ran([task_of(point) for point in POINTS[:9]], act)
    assert Counter(one.status for one in question.taken) == {"ok": 1, "crash": 8}
    question, _, _ = ran([task_of(point) for point in POINTS[:2]], act)
    assert Counter(one.status for one in question.taken) == {"crash": 2}


def test_without_a_worker_the_run_ends_with_the_last_reason():
    executor = Script(well, {"w0": "A"})
    executor.events, executor.awaited = [("w0", Left("GPU 0 cannot be used: out of memory", True))], ""
    with pytest.raises(NoHopperError, match="GPU 0 cannot be used: out of memory"):
        Coordinator(executor).run(Asks([task_of(POINTS[0])]))

    def act(worker, number, task):
        executor.awaited = ""
        return [Left("its worker died, 4 times in a row", True)]

    executor = Script(act)
    with pytest.raises(RunError, match="4 times in a row; no worker is left, run the same command to go on"):
        Coordinator(executor).run(Asks([task_of(POINTS[0])]))


def test_what_is_waited_for_is_told_with_since_when(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    executor, said = Script(well), []
    late, executor.events = executor.events, []
    calls = []

    def poll(seconds):
        calls.append(seconds)
        return late if len(calls) == 3 else Script.poll(executor, seconds)

    executor.poll = poll
    Coordinator(executor, said.append).run(Asks([task_of(POINTS[0])]))
    assert said[0].startswith("waiting since ")
    assert said[0].endswith(" for more to be ready")


def test_a_worker_that_a_question_refuses_is_told_and_gets_nothing():
    executor = Script(well, {"w0": "A"})
    executor.events += [("w1", Joined({"name": "other", "uuid": "B"})), ("w0", Said("hello"))]
    question, said = Asks([task_of(point) for point in POINTS[:3]]), []
    Coordinator(executor, said.append).run(question)
    assert said == ["w1 is another", "hello"]
    assert {worker for worker, _, _ in executor.sent} == {"w0"}
