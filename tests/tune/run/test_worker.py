"""A worker: its GPU, its compilers, its measuring child, which may die at any moment."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hopper_gemm.compiler.child import CONTEXT
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.point import Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.parameters import varied
from hopper_gemm.tune.run import worker as module
from hopper_gemm.tune.run.task import Answer, Begun, Joined, Said, Task
from hopper_gemm.tune.run.worker import Worker, shares
from hopper_gemm.tune.study.files import FileLock
from tests.tune.run import fakes

CUBE = GemmProblem(1024, 1024, 1024)
CONFIGS = [resolve(GemmConfig(tile_m=m, tile_n=n)) for m in (64, 128, 256) for n in (64, 128)]
POINTS = [Point(CUBE, config) for config in CONFIGS]
BARE = Point(CUBE, "cublas")
SHORT = Burst(pairs=3)


class Bench:
    """A worker in a thread, and the other end of its line."""

    def __init__(self, folder: Path, gpu: int = 0, **job):
        self.log = folder / "log"
        self.line, far = CONTEXT.Pipe()
        self.error: BaseException | None = None
        self.worker = Worker(fakes.job(folder, **job), fakes.find(gpu), 2, far, folder / "children.log")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.worker.run()
        except (EOFError, OSError):
            pass
        except BaseException as error:
            self.error = error

    def hear(self, kind, seconds=120.0):
        """Events up to one of a kind."""
        found, until = [], time.monotonic() + seconds
        while True:
            assert self.error is None, self.error
            assert time.monotonic() < until, found
            if self.line.poll(0.1):
                found.append(self.line.recv())
                if isinstance(found[-1], kind):
                    return found

    def ask(self, *tasks, first=1):
        """Send tasks, numbered; their answers in the order in which they came."""
        for number, task in enumerate(tasks, first):
            self.line.send((number, task))
        found, expected = [], sum(len(task.points) for task in tasks)
        while len(found) < expected:
            found += [event for event in self.hear(Answer) if isinstance(event, Answer)]
        return found

    def measured(self):
        return fakes.measured(self.log)

    def close(self):
        self.line.close()
        self._thread.join(20)
        self.worker.close()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = []

    def start(plan=None, **options):
        (tmp_path / "log.plan").write_text(json.dumps(plan or {}))
        made.append(Bench(tmp_path, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def timed(*points, **more):
    return Task(points, protocol=SHORT, **more)


def test_a_worker_describes_its_gpu_and_answers_with_figures_pairs_and_what_compiling_told(bench):
    worker = bench()
    joined = worker.hear(Joined)[-1]
    assert joined.gpu["uuid"] == "GPU-fake-0"
    answers = worker.ask(timed(BARE, stage="control"), timed(POINTS[0]))
    control, ours = sorted(answers, key=lambda one: one.number)
    assert control.figures["baseline_kernel"] == "nvjet"
    assert (ours.status, len(ours.samples), ours.figures["registers"], ours.figures["wgmma"]) == ("ok", 3, 168, 8)
    assert {"code", "smem_bytes", "speedup"} <= set(ours.figures)


def test_the_baseline_is_named_once_for_each_problem_in_a_process_of_its_own(bench):
    worker = bench()
    worker.ask(*(timed(BARE, stage="control") for _ in range(3)))
    lines = [line.split() for line in worker.log.read_text().splitlines()]
    naming = {words[1] for words in lines if words[0] == "name"}
    assert len([words for words in lines if words[0] == "name"]) == 1
    assert not naming & {words[1] for words in lines if words[0] == "measure"}


@pytest.mark.parametrize("trouble", ["die", "raise"])
def test_a_point_that_kills_its_process_gets_another_try_and_then_counts_as_a_crash(bench, trouble):
    worker = bench({str(CONFIGS[1]): trouble})
    answers = {one.number: one for one in worker.ask(*map(timed, POINTS[:4]))}
    assert [answers[number].status for number in (1, 2, 3, 4)] == ["ok", "crash", "ok", "ok"]
    reason = {"die": "the process died with signal SIGKILL", "raise": "RuntimeError: CUDA error: an illegal"}[trouble]
    assert answers[2].reason.startswith(reason)
    assert worker.measured() == {str(config): 2 if config == CONFIGS[1] else 1 for config in CONFIGS[:4]}


def test_a_process_that_was_killed_once_measures_the_point_in_the_next(bench, tmp_path):
    worker = bench({str(CONFIGS[0]): "die"})
    worker.line.send((1, timed(POINTS[0])))
    worker.hear(Begun)
    while not worker.measured():
        time.sleep(0.02)
    (tmp_path / "log.plan").write_text("{}")
    answer = next(event for event in worker.hear(Answer) if isinstance(event, Answer))
    assert answer.status == "ok"


def test_a_point_that_hangs_is_killed_and_counts_as_a_timeout(bench, monkeypatch):
    monkeypatch.setattr(module, "RUN_SECONDS", 1.0)
    worker = bench({str(CONFIGS[0]): "hang"})
    answers = {one.number: one for one in worker.ask(timed(POINTS[0]), timed(POINTS[1]))}
    assert (answers[1].status, answers[2].status) == ("timeout", "ok")
    assert answers[1].reason.endswith("killed")


def test_what_does_not_compile_is_answered_and_never_measured(bench):
    worker = bench({"spills": [str(replace(CONFIGS[0]))]})
    answers = {one.number: one for one in worker.ask(timed(POINTS[0]), timed(POINTS[1]))}
    assert (answers[1].status, answers[2].status) == ("spilled", "ok")
    assert answers[1].reason == "8 B of stack, 8 loads from local memory"
    assert str(CONFIGS[0]) not in worker.measured()


def test_the_same_machine_code_is_measured_once_for_each_launch(bench):
    worker = bench({"twins": True})
    peeking = [varied(CONFIGS[0], peek=peek) for peek in (True, False, "producer")]
    launched = [replace(CONFIGS[0], swizzle=4)]
    tasks = [timed(Point(CUBE, config)) for config in (*peeking, *launched)]
    answers = worker.ask(*tasks)
    twins = {one.number: one.twin for one in answers}
    first = next(number for number in (1, 2, 3) if not twins[number])
    others = [number for number in (1, 2, 3) if number != first]
    assert [twins[number] for number in others] == [str(peeking[first - 1])] * 2
    assert twins[4] == "", "it walks otherwise"
    known = timed(POINTS[3], known={"one": "another"})
    assert worker.ask(known, first=9)[0].twin == "another"
    assert len(worker.measured()) == 2


def test_the_first_that_is_compiled_is_measured_first(bench, tmp_path):
    worker = bench({"compile_seconds": 0.7})
    worker.hear(Joined)
    answers = worker.ask(timed(POINTS[0]), timed(BARE, stage="control"), timed(POINTS[1]))
    assert [one.number for one in answers] == [2, 1, 3]


def test_finals_run_in_fresh_processes_that_are_prepared_together(bench):
    worker = bench(fresh=3)
    worker.ask(timed(POINTS[0]))
    finals = [
        timed(*POINTS[:3], stage="final", process=process, child=f"place {process}", pinned=True)
        for process in range(3)
    ]
    worker.ask(*finals, first=5)
    lines = [line.split(" ") for line in worker.log.read_text().splitlines()]
    by_process = {}
    for words in lines:
        if words[0] == "measure":
            by_process.setdefault(words[1], []).append((int(words[4]), words[0]))
    assert sorted(len(of) for of in by_process.values()) == [1, 3, 3, 3]
    first_final = next(i for i, words in enumerate(lines) if words[0] == "measure" and i > 0)
    prepared = [i for i, words in enumerate(lines) if words[0] == "prepare"]
    assert len(prepared) == 3
    assert max(prepared) < first_final + 1
    assert Counter(words[1] for words in lines if words[0] == "prepare").most_common(1)[0][1] == 1


def test_a_finalist_that_fails_is_left_out_of_the_processes_that_follow(bench):
    worker = bench({str(CONFIGS[1]): "die"})
    finals = [timed(*POINTS[:3], stage="final", process=p, child=f"place {p}", pinned=True) for p in range(2)]
    answers = {(one.number, one.index): one.status for one in worker.ask(*finals)}
    assert [answers[1, i] for i in range(3)] == ["ok", "crash", "ok"]
    assert [answers[2, i] for i in range(3)] == ["ok", "", "ok"]


def test_the_noise_floor_the_leader_and_what_follows_are_known_to_the_child(bench, monkeypatch):
    worker = bench()
    sent = []
    ask = Worker._ask

    def spy(self, child, request, seconds):
        sent.append(request)
        return ask(self, child, request, seconds)

    monkeypatch.setattr(Worker, "_ask", spy)
    worker.ask(timed(BARE, stage="control"), timed(POINTS[5]), *map(timed, POINTS[:3]))
    asked = [one for one in sent if getattr(one, "kind", "") == "measure" and not one.point.is_baseline]
    assert all(one.race.noise == pytest.approx(0.001, abs=1e-3) and one.race.noise > 0 for one in asked)
    assert asked[0].race.leader is None
    assert asked[-1].race.leader is not None
    again = [Point(CUBE, replace(point.config, swizzle=4)) for point in POINTS[:3]]
    worker.ask(*map(timed, again), first=9)  # compiled already
    asked = [one for one in sent if getattr(one, "kind", "") == "measure"][-3:]
    assert [one.following for one in asked][1:] == [again[2], None]


def test_a_gpu_that_another_process_holds_is_waited_for_and_that_is_told(bench, tmp_path, monkeypatch):
    folder = module.private_folder("gpus")
    assert folder.stat().st_mode & 0o777 == 0o700
    lock = FileLock(folder / "GPU-fake-0.lock")
    lock.take("process 7 since 10:00:00, other")
    worker = bench()
    said = worker.hear(Said)[-1].text
    assert "GPU 0 (NVIDIA H200), held by process 7 since 10:00:00, other; for at most 60 s" in said
    assert said.startswith("waiting since ")
    lock.release()
    worker.hear(Joined)


def test_a_gpu_that_stays_held_or_cannot_be_used_is_an_error_of_one_line(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GPU_SECONDS", 0.0)
    lock = FileLock(module.private_folder("gpus") / "GPU-fake-0.lock")
    lock.take("process 7 since 10:00:00")
    worker = bench()
    until = time.monotonic() + 60
    while worker.error is None and time.monotonic() < until:
        time.sleep(0.05)
    assert isinstance(worker.error, NoHopperError)
    assert "is held by process 7 since 10:00:00; wait for it, or name another with --gpus" in str(worker.error)
    lock.release()
    worker = bench({"gpu 1": "unusable"}, gpu=1)
    while worker.error is None and time.monotonic() < until + 60:
        time.sleep(0.05)
    assert str(worker.error) == "GPU 1 (NVIDIA H200) cannot be used: RuntimeError: CUDA error: out of memory"


def test_launches_are_counted_by_profiler_and_meter(bench):
    worker = bench({"unmetered": [str(CONFIGS[1])]})
    asked = {"profile": (BARE, *POINTS[:2]), "meter": tuple(POINTS[:2])}
    answers = worker.ask(*(Task(of, "count", fakes.COUNTERS[kind], stage="counters") for kind, of in asked.items()))
    by_key = {(one.number, one.index): one for one in answers}
    assert by_key[1, 0].figures == {"duration_us": 100.0, "dram_read_bytes": 1e6, "baseline_kernel": "nvjet"}
    assert "code" in by_key[1, 1].figures
    assert (by_key[2, 0].status, by_key[2, 1].status) == ("ok", "crash")
    assert by_key[2, 1].reason == "metered, it counted nothing"


def test_a_profiler_that_may_not_count_is_told_and_costs_nothing_else(bench):
    worker = bench({"profile": "refused"})
    (answer,) = worker.ask(Task((BARE,), "count", fakes.COUNTERS["profile"], stage="counters"))
    assert (answer.status, answer.reason[:42]) == ("crash", "this user may not read hardware counters; ")
    assert worker.ask(timed(POINTS[0]), first=2)[0].status == "ok"


def test_cores_are_divided_and_none_goes_without():
    assert list(shares(range(8), 3)) == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert list(shares([4, 5], 3)) == [(4, 5)] * 3
