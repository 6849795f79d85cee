"""The best of a sweep once more: the best of many is otherwise its luckiest sample.

All finals of a problem run on one board, in fresh processes, each of which begins with another config. A row is of one
config in one process; readers pool them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hopper_gemm.measure.protocol import Protocol
from hopper_gemm.measure.race import even
from hopper_gemm.measure.statistics import Ratio, speedup
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.point import Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import FILE, TunedEntry, read_tuned
from hopper_gemm.run.task import Task
from hopper_gemm.search.objective import Objective, joint
from hopper_gemm.study.files import FileLock, write_json
from hopper_gemm.study.folder import StudyFolder
from hopper_gemm.study.row import Row
from hopper_gemm.study.schema import FIGURES
from hopper_gemm.study.space import place_of
from hopper_gemm.study.spec import SweepSpec

TWIN = "same machine code as"
"""How the reason of a row begins whose figures are another's."""


class Finals:
    """The finals of a sweep.

    Args:
        spec: says how many finals each place has.
        legal: points of the sweep.
        folder: with the sweep's rows, and the finals that there are.
        noise_of: noise floor of a place.
        protocol: how a final is timed.
        boards: boards of the workers that are there.
    """

    def __init__(
        self,
        spec: SweepSpec,
        legal: Sequence[Point],
        folder: StudyFolder,
        noise_of: Callable[[str], float],
        protocol: Callable[[Point], Protocol],
        boards: Callable[[], Collection[str]],
    ) -> None:
        self._spec, self._folder, self._noise_of = spec, folder, noise_of
        self._protocol, self._boards = protocol, boards
        self._chosen: dict[str, list[Point]] = {}
        for point in _chosen(spec, folder.stage("sweep"), legal):
            self._chosen.setdefault(place_of(point), []).append(point)
        self._home: dict[GemmProblem, str] = {}
        self._settled: set[tuple[Point, int]] = set()
        self._given: set[tuple[str, int]] = set()
        for row in folder.stage("final"):
            self._home[row.point.problem] = row.board
            self._settle(row)

    @property
    def done(self) -> bool:
        """Whether every final has its rows."""
        return not any(self._missing(place, process) for place in self._chosen for process in self._processes)

    def claim(self, board: str) -> Point | None:
        """A point of a place whose finals are for this board, or for any."""
        for place, points in self._chosen.items():
            home = self._home.get(points[0].problem)
            if (home in (None, board) or home not in self._boards()) and any(
                (place, process) not in self._given and self._missing(place, process) for process in self._processes
            ):
                self._home[points[0].problem] = board
                return points[0]
        return None

    def next(self, place: str) -> Task:
        """The next process's task of a place that was claimed."""
        process = next(p for p in self._processes if (place, p) not in self._given and self._missing(place, p))
        self._given.add((place, process))
        missing = self._missing(place, process)
        start = process * len(missing) // self._spec.final.processes
        points = (*missing[start:], *missing[:start])  # each process begins elsewhere, so that none always comes first
        protocol = self._protocol(points[0])
        child = f"{place} {process}"
        return Task(points, stage="final", protocol=protocol, process=process, child=child, pinned=True)

    def dropped(self, task: Task) -> None:
        """Its board is gone for good: what it lacks is measured on another."""
        self._given.discard((place_of(task.points[0]), task.process))
        self._home.pop(task.points[0].problem, None)

    def take(self, task: Task, point: Point, row: Row | None) -> bool:
        """Note a final's row, or that there is none; whether its place is done."""
        if row is None:
            self._settled.add((point, task.process))
        else:
            self._settle(row)
        return not any(self._missing(place_of(point), process) for process in self._processes)

    def even(self) -> dict[str, list[str]]:
        """Where no final is the best beyond the noise: the configs that share the first place."""
        found = {}
        for place in self._chosen if self._spec.objective == ["speedup"] else ():
            ran = self.pooled(place)
            first = even([ratio for ratio, _ in ran.values()], self._noise_of(place))
            if len(first) > 1:
                found[place] = [str(list(ran)[i]) for i in first]
        return found

    def pooled(self, place: str) -> dict[GemmConfig, tuple[Ratio, dict[str, Any]]]:
        """Each config of a place that ran in every process in which it was tried, over all of them."""
        rows: dict[GemmConfig, list[Row]] = {}
        for row in self._folder.stage("final"):
            if place_of(row.point) == place and row.point.config is not None:
                rows.setdefault(row.point.config, []).append(row)
        return {config: pooled(of) for config, of in rows.items() if all(row.ok and row.samples for row in of)}

    def write(self, place: str, gpu: str) -> None:
        """Put the best of a place into the tuned table beside the study, if it ran on data like a user's."""
        spec, (point, *_) = self._spec, self._chosen[place]
        if point.data != "normal" or spec.across != "each" or "speedup" not in spec.objective:
            return  # across: it serves all problems well, and each of them not as well as its own would
        ran = self.pooled(place)
        if not ran:
            return
        config, (ratio, figures) = max(ran.items(), key=lambda one: one[1][0].median)
        entry = TunedEntry(
            problem=point.problem,
            regime=point.regime,
            config=config,
            speedup=float(f"{ratio.median:.6g}"),
            speedup_low=float(f"{ratio.low:.6g}"),
            speedup_high=float(f"{ratio.high:.6g}"),
            noise=self._noise_of(place),
            study=spec.name,
            gpu=gpu,
            context=point.context,
            board=self._home.get(point.problem, "unknown"),
            **{name: figures.get(name, "" if name == "code" else 0) for name in _COMPILED},
        )
        write_tuned(self._folder.path.parent / FILE, [entry])

    # -----------------------------------------------------------------------------------------

    @property
    def _processes(self) -> range:
        return range(self._spec.final.processes)

    def _missing(self, place: str, process: int) -> list[Point]:
        return [point for point in self._chosen[place] if (point, process) not in self._settled]

    def _settle(self, row: Row) -> None:
        """A row stands for its process; where it failed, or holds several processes, for all that follow."""
        last = row.process + 1 if row.ok and int(row.figures.get("processes", 1)) == 1 else self._spec.final.processes
        self._settled.update((row.point, process) for process in range(row.process, last))


_COMPILED = ("registers", "wgmma", "instructions", "code")


def pooled(rows: Sequence[Row]) -> tuple[Ratio, dict[str, Any]]:
    """The speedup of one point over several processes, and its other figures: means of numbers, words of the first.

    Args:
        rows: ok, with samples; at least one.
    """
    ratio = speedup([sample for row in rows for sample in row.samples])
    figures = dict(rows[0].figures)
    for name in FIGURES:
        values = [row.figures[name] for row in rows if isinstance(row.figures.get(name), float)]
        if values and name in figures:
            figures[name] = float(np.mean(values))
    figures |= {"speedup": ratio.median, "speedup_low": ratio.low, "speedup_high": ratio.high, "pairs": ratio.pairs}
    return ratio, figures


def write_tuned(path: Path, entries: Iterable[TunedEntry]) -> None:
    """Merge entries into a tuned table: one per problem, regime and context. A newer one of the same study or of the
    same config replaces the older, since the better of two measurements of one thing is only the luckier; any other one
    only if it is faster. Several processes may write one table: each waits for the other."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    while not lock.take():
        time.sleep(0.05)  # held for milliseconds, and freed by the kernel if its holder dies
    try:
        known = {_key(entry): entry for entry in (read_tuned(path) if path.is_file() else [])}
        for entry in entries:
            old = known.get(_key(entry))
            same = old is not None and (old.study == entry.study or old.config == entry.config)
            if old is None or same or entry.speedup > old.speedup:
                known[_key(entry)] = entry
        write_json(path, [asdict(known[key]) for key in sorted(known)])
    finally:
        lock.release()


def _key(entry: TunedEntry) -> tuple[Any, ...]:
    problem = entry.problem
    return (problem.m, problem.n, problem.k, problem.dtype, problem.layouts, entry.regime, entry.context)


def _chosen(spec: SweepSpec, rows: Sequence[Row], legal: Sequence[Point]) -> list[Point]:
    """The best of each place, or those that serve all problems best; twins of others left out."""
    objective, able = Objective(tuple(spec.objective)), set(legal)
    ran = [row for row in rows if row.ok and row.point in able]
    if spec.across == "each":
        by_place: dict[str, list[Row]] = {place_of(point): [] for point in legal}
        for row in ran:
            if not row.reason.startswith(TWIN):
                by_place[place_of(row.point)].append(row)
        return [
            of[i].point
            for of in by_place.values()
            for i in objective.best([row.figures for row in of], spec.final.best)
        ]
    problems = {point.problem for point in legal}
    by_config: dict[tuple[str, ...], dict[GemmConfig | None, list[Row]]] = {}
    for row in ran:
        point = row.point
        about = by_config.setdefault((point.regime, point.context, point.data), {})
        about.setdefault(point.config, []).append(row)
    found = []
    for configs in by_config.values():
        whole = [of for of in configs.values() if len(of) == len(problems)]
        judged = [figures for of in whole if (figures := joint(of, spec.across)) is not None]
        found += [row.point for i in objective.best(judged, spec.final.best) for row in whole[i]]
    return found
