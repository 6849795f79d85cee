"""Eight workers share a sweep: each legal point exactly once, whoever is killed and whenever the database restarts."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter

import optuna
import pytest
from optuna.trial import TrialState

from hopper_gemm.tables.locks import FileLock
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import ResultsError, read_samples, read_trials
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.fleet import FileFleet, PostgresFleet
from hopper_gemm.tuning.folder import LOCK
from hopper_gemm.tuning.queue import packed_answer, unpacked_answer
from hopper_gemm.tuning.spec import read_spec
from hopper_gemm.tuning.storage import StorageError, open_fleet, open_storage, patiently, shown_url
from hopper_gemm.tuning.sweep import Sweep
from tests.tuning import databases
from tests.tuning.fakes import FakeBackend

WORKERS = 8
SPACE = """
name = "shared"
skip_illegal = true
[[problems]]
m = 1024
n = 1024
k = 1024
[[problems]]
m = 2048
n = 1024
k = 1024
[space]
tile_m = [64, 128, 192, 256]
tile_n = [64, 128]
k_depth = [2, 4, 16]
raster = ["m", "n"]
[final]
best = 1
"""
SEARCHED = SPACE.replace("skip_illegal = true", 'sampler = "gp"') + "[budget]\ntrials = 30\n"
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def server():
    why = databases.missing()
    if why:
        pytest.skip(why)
    made = databases.Server()
    yield made
    made.remove()


@pytest.fixture(params=["journal", "sqlite", "postgres"])
def storage(request, tmp_path):
    if request.param == "journal":
        return str(tmp_path / "shared.journal")
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    return request.getfixturevalue("server").url(f"{request.node.name[:40]}-{os.getpid()}")


class Noting(FakeBackend):
    """Notes in a file what it is asked, so that what killed workers did is known too."""

    def __init__(self, notes, seconds):
        super().__init__()
        self._notes, self._seconds = notes, seconds

    def note(self, kind, point):
        with self._notes.open("a") as file:
            file.write(f"{kind} {point.study} {point.config}\n")

    def measure(self, point, pairs=None):
        self.note("measure", point)
        time.sleep(self._seconds)
        return super().measure(point, pairs)

    def final(self, point):
        self.note("final", point)
        return super().final(point)


def spec_of(tmp_path, text=SPACE):
    path = tmp_path / "shared.toml"
    path.write_text(text)
    return read_spec(path)


def work(spec, out, storage, notes, seconds):
    Sweep(spec, out, storage).run(Noting(notes, seconds), page=False)


def start(spec, tmp_path, number, storage, seconds=0.005):
    arguments = (spec, tmp_path / f"worker-{number}", storage, tmp_path / "notes", seconds)
    process = FORK.Process(target=work, args=arguments)
    process.start()
    return process


def noted(tmp_path, kind):
    lines = (tmp_path / "notes").read_text().splitlines()
    return Counter(line.removeprefix(f"{kind} ") for line in lines if line.startswith(f"{kind} "))


def trials_of(storage):
    opened = open_storage(storage)
    return {
        name: optuna.load_study(study_name=name, storage=opened).trials for name in optuna.get_all_study_names(opened)
    }


def ended(storage):
    """The label of each trial that was answered, by study."""
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return [
        (name, trial.user_attrs.get("planned") or trial.user_attrs["config"])
        for name, trials in trials_of(storage).items()
        for trial in trials
        if trial.state in states
    ]


def test_eight_workers_measure_each_point_once_and_each_has_all_rows(tmp_path, storage):
    spec = spec_of(tmp_path)
    processes = [start(spec, tmp_path, number, storage) for number in range(WORKERS)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * WORKERS
    points = Sweep(spec, tmp_path / "none").plan().legal
    measured = noted(tmp_path, "measure")
    assert (len(measured), set(measured.values())) == (points, {1})
    assert len(ended(storage)) == len(set(ended(storage))) == points
    assert set(noted(tmp_path, "final").values()) == {1}, "one of the workers measures the finals"
    frames = [read_trials(tmp_path / f"worker-{number}" / "trials.csv") for number in range(WORKERS)]
    key = ["m", "tile_m", "tile_n", "k_depth", "raster"]
    for number, frame in enumerate(frames):
        assert len(frame) == points
        assert frame.sort_values(key)["status"].tolist() == frames[0].sort_values(key)["status"].tolist()
        assert frame["speedup"].sum() == pytest.approx(frames[0]["speedup"].sum())
        samples = read_samples(tmp_path / f"worker-{number}").query("stage == 'sweep'")
        assert len(samples) == 3 * (frame["status"] == "ok").sum()


def test_killed_at_random_and_the_database_restarted_the_same_command_goes_on(tmp_path, storage, request):
    """What a kill costs at most is the point in flight, measured once more; none is lost, none is answered twice."""
    spec, seconds = spec_of(tmp_path), 0.2
    drawn = random.Random(0)
    processes = {number: start(spec, tmp_path, number, storage, seconds) for number in range(WORKERS)}
    kills, restarts = 0, 2 if storage.startswith("postgres") else 0
    until = time.monotonic() + 150
    while any(process.is_alive() or process.exitcode for process in processes.values()):
        assert time.monotonic() < until, "the workers do not come to an end"
        time.sleep(0.15)
        if kills < 12:
            number = drawn.randrange(WORKERS)
            if processes[number].is_alive():
                os.kill(processes[number].pid, signal.SIGKILL)
                processes[number].join()
                kills += 1
        if kills >= 6 * (3 - restarts) and restarts:
            made = request.getfixturevalue("server")
            made.stop(signal.SIGINT if restarts == 2 else signal.SIGQUIT)
            time.sleep(0.3)
            made.start()
            restarts -= 1
        for number, process in list(processes.items()):
            assert process.exitcode in (None, 0, -signal.SIGKILL), f"worker {number} died by itself"
            if process.exitcode == -signal.SIGKILL:
                processes[number] = start(spec, tmp_path, number, storage, seconds)
    assert kills >= 6, "the sweep was over before it was disturbed"
    assert not restarts or not storage.startswith("postgres")
    points = Sweep(spec, tmp_path / "none").plan().legal
    answered = ended(storage)
    assert len(answered) == len(set(answered)) == points
    assert not [one for trials in trials_of(storage).values() for one in trials if one.state == TrialState.RUNNING]
    measured = noted(tmp_path, "measure")
    assert len(measured) == points
    assert sum(measured.values()) - points <= kills
    for number in range(WORKERS):
        study = read_study(tmp_path / f"worker-{number}")
        assert len(study.trials) == points
        assert not study.trials.duplicated(["m", "tile_m", "tile_n", "k_depth", "raster"]).any()


def test_a_search_shared_by_eight_proposes_nothing_twice_and_keeps_its_budget(tmp_path, storage):
    spec = spec_of(tmp_path, SEARCHED)
    processes = [start(spec, tmp_path, number, storage, 0.02) for number in range(WORKERS)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * WORKERS
    measured = noted(tmp_path, "measure")
    assert (len(measured), set(measured.values())) == (2 * 30, {1})
    assert len(ended(storage)) == len(set(ended(storage))) == 2 * 30


def test_a_row_that_did_not_reach_the_storage_is_told_by_the_next_run(tmp_path, storage, monkeypatch):
    """Killed between its row and the storage, a worker tells it when it comes back; nobody measures it again."""
    spec = spec_of(tmp_path)

    def killed(queue, asked, answer):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hopper_gemm.tuning.sweep.PointQueue.tell", killed)
        with pytest.raises(KeyboardInterrupt):
            work(spec, tmp_path / "worker-0", storage, tmp_path / "notes", 0)
    work(spec, tmp_path / "worker-0", storage, tmp_path / "notes", 0)
    assert set(noted(tmp_path, "measure").values()) == {1}
    work(spec, tmp_path / "worker-1", storage, tmp_path / "notes", 0)
    assert set(noted(tmp_path, "measure").values()) == {1}
    ours, theirs = (read_samples(tmp_path / name).query("stage == 'sweep'") for name in ("worker-0", "worker-1"))
    assert len(ours) == len(theirs)


class TakenForDead(FakeBackend):
    """While it measures its third point another worker closes its trial, and may begin the point anew."""

    def __init__(self, storage, begins):
        super().__init__()
        self._storage, self._begins = storage, begins

    def measure(self, point, pairs=None):
        if len(self.asked) == 2:
            opened = open_storage(self._storage)
            name = next(name for name in optuna.get_all_study_names(opened) if name.endswith(point.study))
            study = optuna.load_study(study_name=name, storage=opened)
            running = [trial for trial in study.trials if trial.state == TrialState.RUNNING]
            (trial,) = [one for one in running if str(point.config) in one.user_attrs.values()]
            study.tell(trial.number, state=TrialState.FAIL)
            if self._begins:
                attributes = {**trial.user_attrs, "worker": "somebody who died"}
                study.add_trial(
                    optuna.trial.create_trial(
                        state=TrialState.RUNNING,
                        params=trial.params,
                        distributions=trial.distributions,
                        user_attrs=attributes,
                    )
                )
        return super().measure(point, pairs)


@pytest.mark.parametrize("begins", [False, True], ids=["closed", "begun anew"])
@pytest.mark.parametrize("text", [SPACE, SEARCHED], ids=["grid", "search"])
def test_a_worker_that_was_taken_for_dead_measures_nothing_twice_and_its_answer_stands(tmp_path, text, begins):
    storage = str(tmp_path / "shared.journal")
    spec = spec_of(tmp_path, text)
    Sweep(spec, tmp_path / "worker-0", storage).run(TakenForDead(storage, begins), page=False)
    frame = read_trials(tmp_path / "worker-0" / "trials.csv")
    assert not frame.duplicated(["m", "tile_m", "tile_n", "k_depth", "raster"]).any()
    assert len(ended(storage)) == len(set(ended(storage))) == len(frame)
    other = FakeBackend()
    Sweep(spec, tmp_path / "worker-1", storage).run(other, page=False)
    assert not other.asked
    assert len(read_trials(tmp_path / "worker-1" / "trials.csv")) == len(frame)


def test_another_sweep_in_the_same_storage_is_refused(tmp_path, storage):
    work(spec_of(tmp_path), tmp_path / "one", storage, tmp_path / "notes", 0)
    other = spec_of(tmp_path, SPACE.replace("best = 1", "best = 2"))
    with pytest.raises(ResultsError, match=r"of another sweep \(.*; name another --storage$"):
        work(other, tmp_path / "two", storage, tmp_path / "notes", 0)


def test_two_processes_in_one_folder_are_refused(tmp_path):
    with (
        FileLock(tmp_path / "one" / LOCK),
        pytest.raises(ResultsError, match=r"another process is at work in .*; wait for it, or name another folder"),
    ):
        Sweep(spec_of(tmp_path), tmp_path / "one").run(FakeBackend())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "mysql://u:secret@host/db",
            r"^--storage must be a path, sqlite:///FILE, or postgresql.* got mysql://u:\.\.\.",
        ),
        (
            "postgresql+psycopg://u:secret@127.0.0.1:1/db",
            r"^postgresql\+psycopg://u:\.\.\.@127.0.0.1:1/db cannot be rea",
        ),
    ],
)
def test_a_storage_that_cannot_be_is_named_without_its_password(url, message, monkeypatch):
    monkeypatch.setattr("hopper_gemm.tuning.storage.START_SECONDS", 0.0)
    if url.startswith("postgres"):
        pytest.importorskip("psycopg")
    for opening in (open_storage, open_fleet):
        with pytest.raises(StorageError, match=message) as told:
            opening(url)
        assert "secret" not in str(told.value)
        assert "\n" not in str(told.value)
    assert shown_url("postgresql://sweep@host/db") == "postgresql://sweep@host/db"


def test_a_mistake_is_not_waited_out():
    def mistaken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        patiently(mistaken)


def test_a_torn_last_line_of_the_journal_is_cut_off(tmp_path):
    path = tmp_path / "study.journal"
    optuna.create_study(study_name="one", storage=open_storage(str(path)))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "wor')
    study = optuna.load_study(study_name="one", storage=open_storage(str(path)))
    study.tell(study.ask(), 1.0)
    assert len(optuna.load_study(study_name="one", storage=open_storage(str(path))).trials) == 1


def test_an_answer_comes_back_as_it_was():
    answer = Answer("ok", "", {"speedup": 1.25, "pairs": 3, "code": "c0de"}, ((0, 1.5, 2.5), (1, 1.25, 2.0)))
    assert unpacked_answer(packed_answer(answer)) == answer
    assert json.loads(packed_answer(Answer("timeout", "60 s", {"speedup": float("nan")})))[2] == {}


def test_a_worker_is_alive_until_it_leaves_or_dies(tmp_path):
    mine, theirs = FileFleet(tmp_path), FileFleet(tmp_path)
    assert mine.alive(theirs.worker)
    theirs.close()
    assert not mine.alive(theirs.worker)
    assert mine.alive(mine.worker)
    assert not mine.alive("somebody")


def test_after_a_restart_of_the_database_nobody_is_taken_for_dead_too_soon(server):
    url = server.url(f"grace-{os.getpid()}").replace("+psycopg", "")
    now = [0.0]
    mine, theirs = (PostgresFleet(url, grace=1.0, ping=0.1, clock=lambda: now[0]) for _ in range(2))
    now[0] = 1.5
    assert mine.alive(theirs.worker)
    assert not mine.alive("somebody")
    server.stop()
    server.start()
    new = PostgresFleet(url, grace=100.0, ping=0.1, clock=lambda: now[0])
    assert new.alive("somebody"), "one that has just come knows as little"
    new.close()
    for one in (mine, theirs):
        patiently(lambda one=one: one.alive("somebody"))
    now[0] = 3.0
    assert not mine.alive("somebody")
    assert mine.alive(theirs.worker)
    theirs.close()
    theirs.close()
    assert not mine.alive(theirs.worker)
    mine.close()
