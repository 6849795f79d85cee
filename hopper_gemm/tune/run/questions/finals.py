"""Finals: the best configs of a sweep are measured again, because the best of many samples is the luckiest.

All finals of a problem run on one board, in fresh processes, each of which begins with another config. A row holds one
config in one process; readers pool the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import FILE, TunedEntry, write_tuned
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.task import Task, ratio_of
from hopper_gemm.tune.statistics import even
from hopper_gemm.tune.study.folder import StudyFolder
from hopper_gemm.tune.study.pooling import grouped, pooled
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.study.spec import Spec

TWIN = "same machine code as"
"""Beginning of the reason of a row with the figures of another row."""


class Finals:
    """The finals of a sweep: as many of each case (:func:`place_of`) as the spec says. The folder holds rows of the
    sweep and of earlier finals; ``noises`` returns the noise floor of each case; boards are those of the workers that
    joined."""

    def __init__(
        self, spec: Spec, folder: StudyFolder, noises: Callable[[], Mapping[str, float]], boards: Collection[str]
    ) -> None:
        self._spec, self._folder, self._noises, self._boards = spec, folder, noises, boards
        self._processes = range(spec.final.processes)
        self._chosen: dict[str, list[Point]] = {}
        self._boards_of: dict[GemmProblem, str] = {}
        self._settled: set[tuple[Point, int]] = set()
        self._assigned: dict[str, tuple[str, int]] = {}  # case and process of each board's last task
        for row in folder.stage("final"):
            self._boards_of[row.point.problem] = row.board
            self._settle(row)

    def add(self, legal: Sequence[Point]) -> None:
        """Choose finals among points whose search has ended: the best of each case, without twins."""
        if not legal:
            return
        candidates, rows = set(legal), self._folder.stage("sweep")
        able = [row for row in rows if row.ok and row.point in candidates and not row.reason.startswith(TWIN)]
        ranked = grouped(sorted(able, key=lambda row: -row.figures["speedup"]), lambda row: place_of(row.point))
        for case in dict.fromkeys(map(place_of, legal)):
            if best := ranked.get(case, [])[: self._spec.final.best]:
                self._chosen[case] = [row.point for row in best]

    @property
    def done(self) -> bool:
        """Return True if every final that was chosen has its rows."""
        return not any(self._missing(case, process) for case in self._chosen for process in self._processes)

    def claim(self, board: str) -> Point | None:
        """Return a point of a case whose finals belong to this board, or to none yet; None while the board measures a
        process, because a config that fails there is left out of later processes."""
        if board in self._assigned and self._missing(*self._assigned[board]):
            return None
        for case, points in self._chosen.items():
            owner = self._boards_of.get(points[0].problem)
            if (owner in (None, board) or owner not in self._boards) and self._next_process(case) is not None:
                self._boards_of[points[0].problem] = board
                return points[0]
        return None

    def next(self, case: str, board: str) -> Task:
        """Return the task of the next process of a case that was claimed for a board."""
        process = self._next_process(case)
        assert process is not None
        self._assigned[board] = case, process
        missing = self._missing(case, process)
        start = process * len(missing) // len(self._processes)
        points = (*missing[start:], *missing[:start])  # rotated, so that no config is the first of every process
        protocol = self._spec.protocol(points[0].regime, final=True)
        return Task(points, protocol, "final", process, child=f"{case} {process}", board=board)

    def dropped(self, task: Task) -> None:
        """Free a problem whose board is gone for good, for other boards."""
        self._assigned.pop(task.board, None)
        self._boards_of.pop(task.points[0].problem, None)

    def take(self, row: Row) -> bool:
        """Note a final's row, or that a replayed study has none; return True if its case is done."""
        if row.status:
            self._settle(row)
        else:
            self._settled.add((row.point, row.process))
        return not any(self._missing(place_of(row.point), process) for process in self._processes)

    def even(self) -> dict[str, list[str]]:
        """Return the configs that share the first place, by case; without cases in which the best final leads by more
        than the noise."""
        shared = {}
        for case in self._chosen:
            ran = self._ran(case)
            leaders = even([ratio_of(row.figures) for row in ran], self._noises().get(case, 0.0))
            if len(leaders) > 1:
                shared[case] = [str(ran[i].point.config) for i in leaders]
        return shared

    def write(self, case: str) -> None:
        """Write the best of a case to the tuned table beside the study, if it ran on normal data. Configs of the ladder
        stay out: the table is what ``matmul`` runs, and ``matmul`` runs the product's kernel alone."""
        spec, (point, *_) = self._spec, self._chosen[case]
        ran = [row for row in self._ran(case) if type(row.point.config) is Kernel]
        if point.data != "normal" or not ran:
            return
        best = max(ran, key=lambda row: row.figures["speedup"])
        noise = self._noises().get(case, 0.0)
        entry = entry_of(best.point, best.figures, noise, study=spec.name, gpu=best.gpu, board=best.board)
        rows = self._folder.stage("sweep")
        measured = {row.point.config for row in rows if row.ok and place_of(row.point) == case}
        write_tuned(self._folder.path.parent / FILE, [entry], measured)

    def _ran(self, case: str) -> list[Row]:
        """Return the finals of a case that ran in every process in which they were tried, pooled over the processes."""
        rows = [row for row in self._folder.stage("final") if place_of(row.point) == case]
        failed = {row.point for row in rows if not row.ok}
        return pooled(row for row in rows if row.point not in failed)

    def _next_process(self, case: str) -> int | None:
        return next((process for process in self._processes if self._missing(case, process)), None)

    def _missing(self, case: str, process: int) -> list[Point]:
        return [point for point in self._chosen[case] if (point, process) not in self._settled]

    def _settle(self, row: Row) -> None:
        """Mark a row's process as measured; after a failure, or a row of several processes, all later ones too."""
        last = row.process + 1 if row.ok and int(row.figures.get("processes", 1)) == 1 else len(self._processes)
        self._settled.update((row.point, process) for process in range(row.process, last))


def entry_of(point: Point, figures: Mapping[str, Any], noise: float, **origin: str) -> TunedEntry:
    """Return the entry of a kernel with its figures; of its origin study, GPU and board."""
    kept: dict[str, Any] = {name: float(f"{figures[name]:.6g}") for name in ("speedup", "speedup_low", "speedup_high")}
    kept |= {name: int(figures.get(name, 0)) for name in ("registers", "wgmma", "instructions")}
    kept |= {"noise": noise, "code": str(figures.get("code", "")), "context": point.context, **origin}
    return TunedEntry(point.problem, point.regime, point.config, **kept)
