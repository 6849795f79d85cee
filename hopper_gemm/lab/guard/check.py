"""Question of the guard: does today's kernel run the best configs, right and as fast as their recorded binaries?

A binary and today's kernel are timed in pairs on one board, where the board's share of the ratio cancels. A config that
did not hold is timed once more; if another process uses the GPU, times decide nothing. A config that ``matmul`` no
longer serves has fallen, however fast it is. The speedup over cuBLAS in the tuned table may be of another board: a
difference is only a warning.

Today's loader launches both sides, so a slower launch slows both. Therefore today's machine code and launch arguments
are also recorded beside the binaries, and compared without a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.loader import LoadedKernel, compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore, default_store, versions
from hopper_gemm.lab.guard.binaries import FOLDER, RecordedBinary, RecordedBinaryError, record_binary, recorded_binaries
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.lookup import Table, find
from hopper_gemm.model.roofline import clusters_at_once
from hopper_gemm.model.tuned import TunedEntry, read_tuned
from hopper_gemm.serve.prebuild import build
from hopper_gemm.tune.measure.protocol import Burst, Protocol, Steady
from hopper_gemm.tune.measure.verdict import Verdict, paired_verdict, record_verdict
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.question import Question
from hopper_gemm.tune.run.task import Joined, Task, ratio_of
from hopper_gemm.tune.statistics import Ratio, noise_floor
from hopper_gemm.tune.study.files import read_object, write_sealed
from hopper_gemm.tune.study.reader import has_rows, read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.shapes import read_shapes

PROTOCOLS: dict[str, Protocol] = {"burst": Burst(), "steady": Steady()}

MORE = 3
"""Factor of the number of pairs in the second timing of a kernel that did not hold in the first."""

CODES = "recorded_code.json"
"""File of today's machine code, beside a tuned table; it lists the binaries that must be there."""


@dataclass(frozen=True)
class Guarded:
    """A best config with its recorded binary and its entry of the tuned table."""

    binary: RecordedBinary
    entry: TunedEntry | None  # entry of the tuned table; None if it has none, as the best of the seed table
    unserved: str = ""  # the config that matmul runs on the problem, if it is not guarded; else empty

    @property
    def point(self) -> Point:
        """Today's kernel beside the binary."""
        conditions = ("burst", "isolated") if self.entry is None else (self.entry.regime, self.entry.context)
        return Point(self.binary.problem, self.binary.config, *conditions, f"recorded:{self.binary.report.code}")


@dataclass(frozen=True)
class Checked:
    """The result of checking a guarded config."""

    point: Point  # today's kernel against the binary
    board: str  # UUID of the board that ran both
    verdict: Verdict  # on the pair
    warning: str  # warning if the speedup over cuBLAS differs from the recorded one by more than another board explains
    figures: dict[str, Any]  # ratio, its interval, noise floor, pairs of times in microseconds, equal machine code
    busy: str = ""  # other processes on the GPU, if they leave the verdict open; else empty

    def as_dict(self) -> dict[str, Any]:
        """Return the result, ready for JSON."""
        point = self.point
        return {
            "problem": str(point.problem),
            "regime": point.regime,
            "context": point.context,
            "board": self.board,
            "config": str(point.config),
            **vars(self.verdict),
            "warning": self.warning,
            "busy": self.busy,
            **self.figures,
        }


class Check(Question):
    """Times every guarded config against its binary and against cuBLAS, on the same board; once more, with more pairs,
    if it did not hold. ``busy`` returns the processes that keep a board busy, by its UUID; empty if there are none."""

    def __init__(self, guarded: Sequence[Guarded], busy: Callable[[str], str] = lambda board: "") -> None:
        self._guarded, self._busy = {config.point: config for config in guarded}, busy
        self._left = deque(self._tasks())
        self._tasks_of = {point: task for task in self._left for point in task.points}
        self._rows: dict[Point, Row] = {}
        self.checked: list[Checked] = []

    def next(self, member: Joined) -> Task | None:
        """Return the task of the next config."""
        return self._left.popleft() if self._left else None

    def take(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Judge configs whose rows are complete."""
        for _, row in rows:
            task = self._tasks_of[row.point]
            self._rows[row.point] = row
            if all(point in self._rows for point in task.points):
                guarded = next(point for point in task.points if point in self._guarded)
                self._judge(self._guarded[guarded], task)

    def _tasks(self) -> list[Task]:
        """Return a task for each config: binary against itself for the noise floor, config against binary, config
        against cuBLAS."""
        tasks = []
        for point, guarded in self._guarded.items():
            points = [point.control, point]
            points += [replace(point, against="cublas")] if guarded.entry else []
            files = {point.against: (str(guarded.binary.description.absolute()),)}
            tasks.append(Task(tuple(points), PROTOCOLS[point.regime], "check", finalists=files))
        return tasks

    def _judge(self, guarded: Guarded, task: Task) -> None:
        """Add the result of a config, or queue the second timing of a config that did not hold."""
        point, rows = guarded.point, self._rows
        control, now = rows[point.control], rows[point]
        figures: dict[str, Any] = {}
        if now.status == "no_baseline":  # such as a binary that another version of the DSL cannot load
            verdict = Verdict("unsure", f"not compared: {now.reason}")
        elif now.status != "ok":
            verdict = Verdict("fallen", f"{now.status.replace('_', ' ')}: {now.reason}")
        elif control.status != "ok":
            verdict = Verdict("unsure", f"the binary could not be timed beside itself: {control.reason}")
        else:
            ratio, noise = ratio_of(now.figures), noise_floor(ratio_of(control.figures))
            same = now.figures.get("code") == guarded.binary.report.code
            verdict = paired_verdict(ratio, noise, same)
            pairs = [[round(us - (sample.spacer_us or 0), 4) for us in sample[1:3]] for sample in now.samples]
            figures = {"ratio": ratio.median, "low": ratio.low, "high": ratio.high, "noise": noise, "same_code": same}
            figures |= {"time_us": now.figures["time_us"], "pairs": pairs}
        timed = bool(figures) and verdict.status != "held"
        if (timed or verdict.status == "unsure") and not task.process:
            self._retry(task)
            return
        cublas, entry, warning = rows.get(replace(point, against="cublas")), guarded.entry, None
        if entry is not None and cublas is not None and cublas.ok:
            recorded = Ratio(entry.speedup, entry.speedup_low, entry.speedup_high, 0)
            warning = record_verdict(recorded, ratio_of(cublas.figures), float(cublas.figures["baseline_us"]))
        if tenants := self._busy(now.board) if timed else "":
            verdict = Verdict("unsure", f"the GPU is busy ({tenants}); {verdict.message}")
        if guarded.unserved:
            verdict, tenants = Verdict("fallen", f"{guarded.unserved}; {verdict.message}"), ""
        self.checked.append(Checked(point, now.board, verdict, warning or "", figures, tenants))

    def _retry(self, task: Task) -> None:
        """Queue the second timing of a config and its noise floor, with more pairs."""
        protocol = PROTOCOLS[task.points[0].regime]
        retry = replace(task, points=task.points[:2], method=replace(protocol, pairs=MORE * protocol.pairs), process=1)
        self._left.append(retry)
        for point in retry.points:
            self._tasks_of[point] = retry
            del self._rows[point]


def guarded_of(table: Path) -> list[Guarded]:
    """Return the guarded configs of a tuned table: the binaries in its folder, with their entries."""
    tuned = read_tuned(table)
    entries = {(entry.problem, entry.config): entry for entry in _best(tuned)}
    binaries = listed_binaries(table)
    guarded = {(binary.problem, binary.config) for binary in binaries}
    picks = {problem: find([Table(tuple(tuned), table)], problem) for problem, _ in guarded}
    unserved = {
        problem: f"matmul runs another config on it ({pick.how}: {pick.config})"
        for problem, pick in picks.items()
        if (problem, resolve(pick.config)) not in guarded
    }
    return [
        Guarded(binary, entries.get((binary.problem, binary.config)), unserved.get(binary.problem, ""))
        for binary in binaries
    ]


def listed_binaries(table: Path) -> list[RecordedBinary]:
    """Return the binaries beside a tuned table, which are those that :data:`CODES` lists; none where both are missing.

    Raises:
        RecordedBinaryError: one is missing, unlisted or damaged.
    """
    binaries, path = recorded_binaries(table.parent / FOLDER), table.with_name(CODES)
    stems = {binary.description.stem for binary in binaries}
    try:
        listed = set(read_object(path).get("kernels") or ()) if stems or path.exists() else stems
    except ResultsError as error:
        raise RecordedBinaryError(str(error)) from None
    if other := sorted(stems ^ listed):
        which = f"{other[0]}.json" + (f" and {len(other) - 1} more" if other[1:] else "")
        raise RecordedBinaryError(
            f"{table.parent / FOLDER} must hold the {len(listed)} binaries that {CODES} lists but holds {len(stems)} "
            f"(compare {which}); restore both from git, or record them again"
        )
    return binaries


def codes(binaries: Sequence[RecordedBinary]) -> dict[str, Any]:
    """Return today's machine code and launch arguments of guarded configs, with the versions of the compiling packages.
    It compiles; no GPU is needed.

    Raises:
        ChildProcessError: a kernel does not compile; the message says why.
    """
    store = KernelStore(default_store())
    kernels = list(dict.fromkeys(KernelId.of(binary.config, binary.problem) for binary in binaries))
    failed = build(kernels, store.root).failed
    for kernel in kernels:
        if reason := failed.get(str(kernel.config)):
            name = f"{kernel.config} {kernel.dtype} {kernel.layouts}"
            raise ChildProcessError(f"{name} must compile but does not ({reason}); fix the kernel")
    kernel_codes = {binary.description.stem: code_of(binary, store) for binary in binaries}
    return {"versions": versions(), "kernels": kernel_codes}


def code_of(binary: RecordedBinary, kernels: KernelStore) -> dict[str, Any]:
    """Return today's machine code of a guarded config, and its launch arguments on a GPU with all SMs."""
    report = compile_into(kernels, KernelId.of(binary.config, binary.problem))
    clusters = clusters_at_once(binary.config.cluster_size) * binary.config.ctas_per_sm
    launch = LoadedKernel(binary.config, report, None, clusters).order
    return {"code": report.code, "launch": list(launch)}


def record_codes(table: Path) -> int:
    """Record today's machine code beside a tuned table, whose recorded binaries stay; return the number of kernels."""
    today = codes(listed_binaries(table))
    write_sealed(table.with_name(CODES), today)
    return len(today["kernels"])


def record(table: Path) -> list[RecordedBinary]:
    """Record today's binaries of the best configs beside their tuned table, in place of the former binaries: of every
    problem of the suite, isolated bursts, and of the best cells of a seed table beside it. It compiles; no GPU is
    needed."""
    suite = set(read_shapes().of_regime("burst"))
    best = {(entry.problem, entry.config): None for entry in _best(read_tuned(table)) if entry.problem in suite}
    seed_table = table.parent / "seed-table"
    finals = read_study(seed_table).stage("final") if has_rows(seed_table) else ()
    ranked = sorted((row for row in finals if row.ok), key=lambda row: row.figures["speedup"])
    seed = {row.point.problem: row.point.config for row in ranked if row.point.regime == "burst"}
    best |= dict.fromkeys(seed.items())
    folder = table.parent / FOLDER
    kept = [record_binary(folder, config, problem) for problem, config in best]
    files = {path for binary in kept for path in (binary.object_file, binary.description)}
    for path in set(folder.glob("*")) - files:
        path.unlink()
    write_sealed(table.with_name(CODES), codes(kept))
    return kept


def _best(entries: Sequence[TunedEntry]) -> list[TunedEntry]:
    return [entry for entry in entries if (entry.regime, entry.context) == ("burst", "isolated")]
