"""The best of a sweep once more: the best of many is otherwise its luckiest sample.

All finals of a problem run on one board, in fresh processes, each of which begins with another config. A row is of one
config in one process; readers pool them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.point import Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import FILE, TunedEntry, write_tuned
from hopper_gemm.tune.measure.protocol import Protocol
from hopper_gemm.tune.measure.race import even
from hopper_gemm.tune.run.task import Task, ratio_of
from hopper_gemm.tune.search.objective import Objective, joint
from hopper_gemm.tune.study.folder import StudyFolder
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.study.spec import SweepSpec

TWIN = "same machine code as"
"""Beginning of the reason of a row whose figures are another's."""


class Finals:
    """The finals of a sweep.

    Args:
        spec: says how many finals each place has.
        folder: with the sweep's rows, and the finals that there are.
        noises: returns the noise floor of each place.
        protocol: how a final is timed.
        boards: boards of the workers that are there.
    """

    def __init__(
        self,
        spec: SweepSpec,
        folder: StudyFolder,
        noises: Callable[[], Mapping[str, float]],
        protocol: Callable[[Point], Protocol],
        boards: Collection[str],
    ) -> None:
        self._spec, self._folder, self._noises = spec, folder, noises
        self._protocol, self._boards = protocol, boards
        self._chosen: dict[str, list[Point]] = {}
        self._boards_of: dict[GemmProblem, str] = {}
        self._settled: set[tuple[Point, int]] = set()
        self._assigned: dict[str, tuple[str, int]] = {}
        """Place and process that a board was given last."""
        for row in folder.stage("final"):
            self._boards_of[row.point.problem] = row.board
            self._settle(row)

    def add(self, legal: Sequence[Point]) -> None:
        """Choose among points whose search has ended."""
        for point in _chosen(self._spec, self._folder.stage("sweep"), legal) if legal else ():
            self._chosen.setdefault(place_of(point), []).append(point)

    @property
    def done(self) -> bool:
        """Return True if every final that was chosen has its rows."""
        return not any(self._missing(case, process) for case in self._chosen for process in self._processes)

    def claim(self, board: str) -> Point | None:
        """A point of a place whose finals are for this board, or for any; None while the board is at a process, since
        what fails there is left out of those that follow."""
        if board in self._assigned and self._missing(*self._assigned[board]):
            return None
        for case, points in self._chosen.items():
            home = self._boards_of.get(points[0].problem)
            if (home in (None, board) or home not in self._boards) and self._next_process(case) is not None:
                self._boards_of[points[0].problem] = board
                return points[0]
        return None

    def next(self, case: str, board: str) -> Task:
        """The next process's task of a place that was claimed for a board."""
        process = self._next_process(case)
        assert process is not None
        self._assigned[board] = case, process
        missing = self._missing(case, process)
        start = process * len(missing) // self._spec.final.processes
        points = (*missing[start:], *missing[:start])  # each process begins elsewhere, so that none always comes first
        return Task(points, self._protocol(points[0]), "final", process, child=f"{case} {process}", board=board)

    def dropped(self, task: Task) -> None:
        """Its board is gone for good: what it lacks is measured on another."""
        self._assigned.pop(task.board, None)
        self._boards_of.pop(task.points[0].problem, None)

    def take(self, row: Row) -> bool:
        """Note a final's row, or that the record has none; return True if its place is done."""
        if row.status:
            self._settle(row)
        else:
            self._settled.add((row.point, row.process))
        return not any(self._missing(place_of(row.point), process) for process in self._processes)

    def even(self) -> dict[str, list[str]]:
        """By place where no final is the best beyond the noise: the configs that share the first place."""
        found = {}
        for case in self._chosen if self._spec.objective == ["speedup"] else ():
            ran = self._ran(case)
            first = even([ratio_of(row.figures) for row in ran], self._noises().get(case, 0.0))
            if len(first) > 1:
                found[case] = [str(ran[i].point.config) for i in first]
        return found

    def write(self, case: str) -> None:
        """Put the best of a place into the tuned table beside the study, if it ran on data like a user's. A config of
        the design study stays out: the table is what ``matmul`` runs, and that is the kernel without it."""
        spec, (point, *_) = self._spec, self._chosen[case]
        ran = [row for row in self._ran(case) if type(row.point.config) is Kernel]
        if point.data != "normal" or spec.across != "each" or "speedup" not in spec.objective or not ran:
            return  # across: it serves all problems well, and each of them not as well as its own would
        best = max(ran, key=lambda row: row.figures["speedup"])
        figures: dict[str, Any] = {name: float(f"{best.figures[name]:.6g}") for name in _SPEEDUP}
        figures |= {name: int(best.figures.get(name, 0)) for name in ("registers", "wgmma", "instructions")}
        entry = TunedEntry(
            problem=point.problem,
            regime=point.regime,
            config=best.point.config,
            noise=self._noises().get(case, 0.0),
            code=str(best.figures.get("code", "")),
            study=spec.name,
            gpu=best.gpu,
            context=point.context,
            board=best.board,
            **figures,
        )
        rows = self._folder.stage("sweep")
        beside = {row.point.config for row in rows if row.ok and place_of(row.point) == case}
        write_tuned(self._folder.path.parent / FILE, [entry], beside)

    def _ran(self, case: str) -> list[Row]:
        """The finals of a place that ran in every process in which they were tried, each over all of these."""
        rows = [row for row in self._folder.stage("final") if place_of(row.point) == case]
        failed = {row.point for row in rows if not row.ok}
        return pooled(row for row in rows if row.point not in failed)

    # -----------------------------------------------------------------------------------------

    @property
    def _processes(self) -> range:
        return range(self._spec.final.processes)

    def _next_process(self, case: str) -> int | None:
        return next((process for process in self._processes if self._missing(case, process)), None)

    def _missing(self, case: str, process: int) -> list[Point]:
        return [point for point in self._chosen[case] if (point, process) not in self._settled]

    def _settle(self, row: Row) -> None:
        """A row stands for its process; where it failed, or holds several processes, for all that follow."""
        last = row.process + 1 if row.ok and int(row.figures.get("processes", 1)) == 1 else self._spec.final.processes
        self._settled.update((row.point, process) for process in range(row.process, last))


_SPEEDUP = ("speedup", "speedup_low", "speedup_high")


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
    by_config: dict[tuple[str, ...], dict[Kernel, list[Row]]] = {}
    for row in ran:
        point = row.point
        configs = by_config.setdefault((point.regime, point.context, point.data), {})
        configs.setdefault(point.config, []).append(row)
    finals = []
    for configs in by_config.values():
        whole = [of for of in configs.values() if len(of) == len(problems)]
        judged = [figures for of in whole if (figures := joint(of, spec.across)) is not None]
        finals += [row.point for i in objective.best(judged, spec.final.best) for row in whole[i]]
    return finals
