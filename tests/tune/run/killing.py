"""Killing what runs: a sweep on faked GPUs loses processes at random, and the same command goes on until it is done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopper_gemm.tune.study.reader import read_study
from tests.conftest import ROOT
from tests.tune.run import fakes

KINDS = ("worker", "child", "coordinator", "scheduler")
"""What is killed: a worker or what is beneath it, or the command; the scheduler of a cluster is closed in it."""


@dataclass
class Report:
    """What a run under fire came to: kills by kind of the victim, starts of the command, rows in the end, points that
    should have one, rows that two kills made a crash, measurements beyond one for each point, processes alive a
    minute after each death of the coordinator, and lines on the terminal that a user should not meet."""

    executor: str
    workers: int
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    points: int = 0
    rows: int = 0
    crashed: int = 0
    twice: int = 0
    orphans: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Range:
    """A place for one run: its folder, log, cache and processes."""

    def __init__(self, folder: Path, workers: int, executor: str, text: str = fakes.WIDE, seconds: float = 0.06):
        self.folder, self.workers, self.executor = folder, workers, executor
        folder.mkdir(parents=True, exist_ok=True)
        self.spec, self.out, self.log = folder / "spec.toml", folder / "out", str(folder / "log")
        self.spec.write_text(text)
        Path(self.log + ".plan").write_text(json.dumps({"seconds": seconds}))
        self.environment = {
            **os.environ,
            "FAKE_LOG": self.log,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.processes: list[subprocess.Popen[str]] = []
        self.errors = folder / "stderr"

    def command(self, *words: str) -> subprocess.Popen[str]:
        """Start ``hopper-gemm``; what it prints goes to a file."""
        with self.errors.open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.tune.run.command", *words],
                cwd=ROOT,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )

    def start(self) -> subprocess.Popen[str]:
        """Start the sweep, and with a cluster the workers that join it; the coordinator."""
        words = ["sweep", str(self.spec), "--out", str(self.out)]
        gpus = ",".join(map(str, range(self.workers)))
        if self.executor == "local":
            coordinator = self.command(*words, "--gpus", gpus)
        else:
            before = self.errors.stat().st_size if self.errors.exists() else 0
            coordinator = self.command(*words, "--cluster")
            words = self.joining(before, coordinator)
            if words:
                self.processes.append(self.command(*words, "--gpus", gpus))
        self.processes.append(coordinator)
        return coordinator

    def joining(self, before: int, coordinator: subprocess.Popen[str]) -> list[str]:
        """The command by which workers join, as the coordinator prints it."""
        until = time.monotonic() + 120
        while time.monotonic() < until and coordinator.poll() is None:
            text = self.errors.read_text()[before:]
            for line in text.splitlines():
                if "other hosts join by: hopper-gemm " in line and text.endswith("\n"):
                    words = line.partition("hopper-gemm ")[2].split()
                    at = words.index("--gpus")
                    return words[:at] + words[at + 2 :]
            time.sleep(0.1)
        return []

    def alive(self) -> dict[int, str]:
        """Our processes, but for the resource trackers, which end with the last of them."""
        return {pid: what for pid, what in fakes.descendants(self.log).items() if "resource_tracker" not in what}

    def gone(self, seconds: float = 60.0) -> list[str]:
        """What is still alive after so long."""
        until = time.monotonic() + seconds
        while self.alive() and time.monotonic() < until:
            time.sleep(0.05)
        return list(self.alive().values())

    def until(self, condition: Callable[[], bool], coordinator: subprocess.Popen[str]) -> None:
        """Wait for a condition, while the coordinator runs."""
        until = time.monotonic() + 120
        while not condition():
            assert coordinator.poll() is None, self.errors.read_text()
            assert time.monotonic() < until
            time.sleep(0.1)

    def end(self) -> None:
        """End the commands; nothing that they started may live on."""
        for process in self.processes:
            process.kill()
            process.wait()
        assert self.gone(20) == []

    def rows(self) -> int:
        """Lines of the rows file so far."""
        path = self.out / "rows.csv"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def victim(self, kind: str, rng: random.Random, coordinator: int) -> int | None:
        """A process of a kind."""
        if kind in ("coordinator", "scheduler"):
            return coordinator
        pids = fakes.descendants(self.log)
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]) for pid in list(pids)}
        spawned = [pid for pid, what in pids.items() if "spawn_main" in what]
        depth = 1 if self.executor == "local" else 2
        level = {coordinator: 0}
        if self.executor != "local":
            level = {one.pid: 0 for one in self.processes if one.pid != coordinator and one.poll() is None}
        for _ in range(5):
            level |= {pid: level[parents[pid]] + 1 for pid in spawned if parents.get(pid) in level}
        workers = [pid for pid in spawned if level.get(pid) == depth]
        under = [pid for pid in spawned if level.get(pid) == depth + 1]
        chosen = workers if kind == "worker" else under
        if kind == "worker" and self.executor != "local":
            chosen = [pid for pid in spawned if level.get(pid) in (1, 2)]  # Dask's worker, or ours beneath it
        return rng.choice(sorted(chosen)) if chosen else None


def under_fire(folder: Path, executor: str, workers: int, kills: int, seed: int, points: str = fakes.WIDE) -> Report:
    """Run a sweep in an empty folder while its processes are killed, one about every half a second, until it is done;
    fewer are killed if it is done before."""
    rng, report = random.Random(seed), Report(executor, workers, seed)
    place = Range(folder, workers, executor, points)
    started = time.monotonic()
    often = ["worker", "child", "coordinator", "worker", "child", "worker", "child"]
    often += ["scheduler"] if executor == "dask" else []
    left = [often[i % len(often)] for i in range(kills)]
    rng.shuffle(left)
    while True:
        coordinator = place.start()
        report.starts += 1
        seen = place.rows()
        while coordinator.poll() is None:
            time.sleep(rng.uniform(0.2, 0.8))
            if not left or place.rows() <= seen + 3 or coordinator.poll() is not None:
                continue
            victim = place.victim(left[0], rng, coordinator.pid)
            if victim is None:
                continue
            try:
                os.kill(victim, signal.SIGUSR1 if left[0] == "scheduler" else signal.SIGKILL)
            except ProcessLookupError:
                continue
            lost = left[0] == "scheduler"
            report.kills[left.pop(0)] += 1
            if lost:
                coordinator.wait(600)
        code = coordinator.wait()
        if code == 0:
            break
        if code != -signal.SIGKILL and not (executor == "dask" and code == 2):
            report.lines.append(f"exit code {code}")
            if len(report.lines) > 2:
                raise AssertionError(place.errors.read_text()[-2000:])
        if executor == "dask":
            report.orphans += place.gone()
        # else the same command at once, while orphans may still be ending
    report.orphans += place.gone()
    study = read_study(place.out)
    sweep = study.stage("sweep")
    report.rows, report.points = len(sweep), len({row.point for row in sweep})
    report.crashed = sum(row.status == "crash" for row in sweep)
    counted = fakes.measured(Path(place.log))
    counted.pop("cublas", None)
    report.twice = sum(counted.values()) - len(counted)
    report.lines += unclear(place.errors.read_text())
    report.seconds = round(time.monotonic() - started, 1)
    return report


CLEAR = (
    "To look at: file://",
    "worker died with",
    "its worker is gone",
    "waiting since",
    "joined tls://",
    "other hosts join by",
    "are gone from",
    "the scheduler is gone",
)


def unclear(text: str) -> list[str]:
    """Lines of a terminal that a user should not meet."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not any(one in line for one in CLEAR)]
    return [line for line in told if not (": sweep " in line or ": final " in line)]


def as_row(report: Report) -> dict[str, Any]:
    """For the table of reports."""
    kills = {kind: report.kills[kind] for kind in KINDS}
    about = {"executor": report.executor, "workers": report.workers, "seed": report.seed, **kills}
    counts = {"starts": report.starts, "points": report.points, "rows": report.rows, "crashed": report.crashed}
    rest = {"measured_again": report.twice, "orphans": len(report.orphans), "unclear_lines": len(report.lines)}
    return {**about, **counts, **rest, "seconds": report.seconds}
