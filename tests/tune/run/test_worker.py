"""A worker: its GPU, its compilers, its measuring child, which may die at any moment."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hopper_gemm.compiler.child import CONTEXT
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run import worker as module
from hopper_gemm.tune.run.task import Begun, Joined, Said, Task
from hopper_gemm.tune.run.worker import Worker, shares
from hopper_gemm.tune.statistics import Look, Race, Ratio
from hopper_gemm.tune.study.files import FileLock
from hopper_gemm.tune.study.row import Row
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
        """Send tasks, numbered; their rows in the order in which they came."""
        for number, task in enumerate(tasks, first):
            self.line.send((number, task))
        found, expected = [], sum(len(task.points) for task in tasks)
        while len(found) < expected:
            found += [event for event in self.hear(Row) if isinstance(event, Row)]
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
    return Task(points, SHORT, **more)


def test_a_worker_describes_its_gpu_and_answers_with_figures_pairs_and_what_compiling_told(bench):
    worker = bench()
    joined = worker.hear(Joined)[-1]
    assert joined.gpu["uuid"] == "GPU-fake-0"
    answers = worker.ask(timed(BARE, stage="control"), timed(POINTS[0]))
    control, ours = sorted(answers, key=lambda row: row.stage)
    assert {(row.board, row.process) for row in answers} == {("GPU-fake-0", 0)}
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


def test_a_point_that_kills_its_process_gets_another_try_and_then_counts_as_a_crash(bench):
    worker = bench({str(CONFIGS[1]): "die", str(CONFIGS[2]): "raise"})
    rows = {row.point: row for row in worker.ask(*map(timed, POINTS[:4]))}
    assert [rows[point].status for point in POINTS[:4]] == ["ok", "crash", "crash", "ok"]
    assert rows[POINTS[1]].reason.startswith("the process died with signal SIGKILL")
    assert rows[POINTS[2]].reason.startswith("RuntimeError: CUDA error: an illegal")
    assert worker.measured() == dict(zip(map(str, CONFIGS[:4]), (1, 2, 2, 1), strict=True))


def test_a_process_that_was_killed_once_measures_the_point_in_the_next(bench, tmp_path):
    worker = bench({str(CONFIGS[0]): "die"})
    worker.line.send((1, timed(POINTS[0])))
    worker.hear(Begun)
    while not worker.measured():
        time.sleep(0.02)
    (tmp_path / "log.plan").write_text("{}")
    assert worker.hear(Row)[-1].status == "ok"


def test_a_point_that_hangs_is_killed_and_counts_as_a_timeout(bench, monkeypatch):
    monkeypatch.setattr(module, "RUN_SECONDS", 1.0)
    worker = bench({str(CONFIGS[0]): "hang"})
    rows = {row.point: row for row in worker.ask(timed(POINTS[0]), timed(POINTS[1]))}
    assert tuple(rows[point].status for point in POINTS[:2]) == ("timeout", "ok")
    assert rows[POINTS[0]].reason.endswith("killed")


def test_what_does_not_compile_is_answered_and_never_measured(bench):
    worker = bench({"spills": [str(replace(CONFIGS[0]))]})
    rows = {row.point: row for row in worker.ask(timed(POINTS[0]), timed(POINTS[1]))}
    assert tuple(rows[point].status for point in POINTS[:2]) == ("spilled", "ok")
    assert rows[POINTS[0]].reason == "8 B of stack, 8 loads from local memory"
    assert str(CONFIGS[0]) not in worker.measured()


def test_machine_code_that_the_task_knows_is_not_measured_and_what_a_worker_measured_itself_is(bench):
    """A worker keeps nothing of earlier tasks: the one who records rows says which machine code is known."""
    worker = bench({"twins": True})
    (first,) = worker.ask(timed(POINTS[0]))
    again, twin = worker.ask(timed(POINTS[1]), timed(POINTS[2], twins={first.figures["code"]: "another"}), first=2)
    assert (again.status, twin.status, twin.reason) == ("ok", "twin", "another")
    assert "speedup" not in twin.figures
    assert len(worker.measured()) == 2


def test_a_task_that_waits_is_renewed_and_each_is_measured_once_in_whatever_order_they_come(bench):
    worker = bench({"twins": True, "seconds": 0.5})
    worker.ask(*map(timed, POINTS[:2]))  # compiled
    for number, point in enumerate(POINTS[:2], 3):
        worker.line.send((number, timed(point)))
    worker.hear(Begun)
    for number, point in enumerate(POINTS[:2], 3):
        worker.line.send((number, timed(point, twins={"one": "another"})))
    rows = [worker.hear(Row)[-1] for _ in range(2)]
    assert [(row.point, row.status) for row in rows] == [(POINTS[0], "ok"), (POINTS[1], "twin")]
    for number in (6, 5):  # Dask may carry the later one first
        worker.line.send((number, timed(POINTS[number - 2])))
    assert {worker.hear(Row)[-1].point for _ in range(2)} == {POINTS[3], POINTS[4]}


def test_the_first_that_is_compiled_is_measured_first(bench, tmp_path):
    worker = bench({"compile_seconds": 0.7})
    worker.hear(Joined)
    answers = worker.ask(timed(POINTS[0]), timed(BARE, stage="control"), timed(POINTS[1]))
    assert [row.point for row in answers] == [BARE, *POINTS[:2]]


def test_finals_run_in_fresh_processes_that_are_prepared_together(bench):
    worker = bench(fresh=3)
    worker.ask(timed(POINTS[0]))
    finals = [timed(*POINTS[:3], stage="final", process=process, child=f"place {process}") for process in range(3)]
    for number, final in enumerate(finals, 5):  # each is sent when the rows of the one before are there
        worker.ask(final, first=number)
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


def test_a_spare_process_is_started_ahead_and_chooses_among_the_finalists_that_its_task_names(bench):
    """It has answered nothing before its first point: what touches the GPU is a request."""
    worker = bench(fresh=1, verbose=True)
    (first,) = worker.ask(timed(POINTS[0], stage="compare", child="process 0"))
    assert first.finalists == ("way 0",)
    for process in (1, 2):
        about = {"stage": "compare", "child": f"process {process}", "process": process}
        while not worker.worker._spares:
            time.sleep(0.01)
        spare = worker.worker._spares[0]
        worker.line.send((process + 1, timed(POINTS[0], **about, finalists={"cublas": first.finalists})))
        *_, told, row = worker.hear(Row)
        assert row.process == process
        assert worker.worker._child is spare
        steps = r"[\d.]+ s: process -?[\d.]+, pairs 0.50, name [\d.]+"
        assert re.fullmatch(rf"1024x1024x1024 cublas compare, process {process}: {steps}", told.text)
    lines = [line.split(" ") for line in worker.log.read_text().splitlines()]
    by_process = {}
    for words in lines:
        by_process.setdefault(words[1], []).append(words[0])
    rest = [of for of in by_process.values() if "name" not in of]
    assert sorted(rest) == [["measure", "among"], ["measure", "among"], ["prepare", "measure"]]
    assert [words[2:] for words in lines if words[0] == "among"] == [["way", "0"]] * 2


def test_the_race_and_what_follows_are_told_to_the_child(bench, monkeypatch):
    """The following point is that of a task in the queue, so the second three are measured once all were sent."""
    worker, arrived = bench(), threading.Event()
    sent = []
    ask = Worker._request

    def spy(self, child, request, seconds):
        sent.append(request)
        assert arrived.wait(60)
        return ask(self, child, request, seconds)

    monkeypatch.setattr(Worker, "_request", spy)
    race = Race((Look(1, 0.05),), Ratio(1.0, 0.99, 1.01, 7), 0.002)
    arrived.set()
    worker.ask(*(timed(point, race=race) for point in POINTS[:3]))
    again = [Point(CUBE, replace(point.config, swizzle=4)) for point in POINTS[:3]]  # compiled already
    arrived.clear()
    for number, point in enumerate(again, 9):
        worker.line.send((number, timed(point)))
    arrived.set()
    for _ in again:
        worker.hear(Row)
    measured = [request[1] for request in sent if request[0] == "measure"]
    assert [arguments["race"] for arguments in measured] == [race] * 3 + [Race()] * 3
    assert [arguments["following"] for arguments in measured[-2:]] == [again[2], None]


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
    profile, meter = (Task(of, fakes.COUNTERS[kind], "counters", kind == "meter") for kind, of in asked.items())
    rows = {(row.process, row.point): row for row in worker.ask(profile, meter)}
    assert rows[0, BARE].figures == {"duration_us": 100.0, "dram_read_bytes": 1e6, "baseline_kernel": "nvjet"}
    assert "code" in rows[0, POINTS[0]].figures
    assert (rows[1, POINTS[0]].status, rows[1, POINTS[1]].status) == ("ok", "crash")
    assert rows[1, POINTS[1]].reason == "metered, it counted nothing"


def test_cores_are_divided_and_none_goes_without():
    assert list(shares(range(8), 3)) == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert list(shares([4, 5], 3)) == [(4, 5)] * 3
