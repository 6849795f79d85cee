"""Question of a map: for every problem of a list, the kernels that the pick ranks best and kernels drawn uniformly from
the menu, single CTAs with the walk that a pick would have.

A model may be fitted to the drawn kernels: a search measures what its model already ranks high. A seed shuffles the
problems, so that a part of a map is a sample of the whole.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import behind_padding, choices, menu
from hopper_gemm.model.parts import PartsAtLaunch
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.walk import WAVES, WIDTHS, abreast
from hopper_gemm.tune.measure.protocol import Burst, protocol_dict
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.question import Recording
from hopper_gemm.tune.run.task import Joined, Task, ratio_of
from hopper_gemm.tune.statistics import Look, Race
from hopper_gemm.tune.study.provenance import fresh
from hopper_gemm.tune.study.row import Row, RowKey
from hopper_gemm.tune.study.shapes import STRATA, expected_seconds
from hopper_gemm.tune.study.spec import MenuSection, Spec

STAGE = "map"

LIBRARY = "heuristics"
"""Baseline beside torch.mm: the best of cuBLASLt's heuristic list, timed against the pick's first kernel."""

SEED = 28
"""Usual seed of the order of the problems and of the drawn kernels."""

PROTOCOL = Burst(rest=0.01, pairs=5)
BRIEF = Burst(rest=0.005, warm=0.001, timed=0.005, pairs=5)
"""Protocols of a point: :data:`BRIEF` if torch.mm is expected to lie below the last stratum, so that the power cap does
not act."""


def parts_for(kernel: Kernel, problem: GemmProblem, chip: Chip = SXM) -> tuple[int, ...]:
    """The numbers of split-K parts worth a prediction: of :class:`PartsAtLaunch`, none if no number is allowed; of
    other kernels their own.

    Example:
        >>> from hopper_gemm.model.config import GemmConfig
        >>> from hopper_gemm.model.kernel import resolve
        >>> kernel = resolve(GemmConfig(tile_m=128, tile_n=128, split_k=2, reduction="workspace", stagger=0))
        >>> parts_for(kernel, GemmProblem(512, 512, 65536)), parts_for(kernel, GemmProblem(1024, 1024, 128))
        ((2, 3, 8, 16, 22), (2,))
    """
    return tuple(map(int, PartsAtLaunch([kernel], chip)(problem)[1])) if kernel.parts_at_launch else (kernel.split_k,)


def points_of(problem: GemmProblem, numbers: MenuSection, seed: int = SEED, chip: Chip = SXM) -> dict[Point, str]:
    """Return the points of a problem on a GPU, each with its origin: ``pick 1`` to ``pick 8``, ``drawn``, or both. The
    drawn kernels depend on seed and problem alone.
    """
    picks = choices(problem, numbers.picks, chip=chip)
    origins = {kernel: [f"pick {rank}"] for rank, kernel in enumerate(picks, 1)}
    first = next(iter(origins), None)
    offered = menu(fp8=problem.is_fp8)
    ways = (kernel.but(split_k=parts) for kernel in offered for parts in parts_for(kernel, problem, chip))
    legal = (behind_padding(way, problem) for way in ways if is_legal(way, problem))
    able = list(dict.fromkeys(abreast(way, problem, chip) for way in legal))
    rng = random.Random(f"{seed} {problem} {problem.dtype} {problem.layouts}")
    for kernel in rng.sample(able, min(numbers.drawn, len(able))):
        origins.setdefault(kernel, []).append("drawn")
    points = {Point(problem, kernel): ", ".join(origin) for kernel, origin in origins.items()}
    if first is not None:
        points[Point(problem, first, against=LIBRARY)] = "pick 1"
    return points


class Map(Recording):
    """A map, by a spec with a ``menu``, in its results folder, which the first worker that joins opens; the name of its
    kind of GPU is empty until then. A problem is measured on one board: first the pick's kernels, then the drawn
    kernels, which are raced.

    After some ``seconds``, if given, no further problem is begun. ``watch`` is called with each row, the number of
    problems begun so far, and the number of all problems; ``clock`` returns seconds.
    """

    def __init__(
        self,
        spec: Spec,
        out: Path,
        gpu: str,
        *,
        seconds: float | None = None,
        watch: Callable[[Row, int, int], None] = lambda row, done, total: None,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.menu is not None
        self.watch, self._seed, self._numbers = watch, spec.seed, spec.menu
        self._seconds, self._clock = seconds, clock
        self._problems = spec.multiplied
        drawn, picks, protocols = spec.menu.drawn, spec.menu.picks, [protocol_dict(each) for each in (BRIEF, PROTOCOL)]
        noted = {"name": spec.name, "seed": spec.seed, "drawn": drawn, "picks": picks, "data": "normal"}
        kernels = hashlib.sha256("".join(map(repr, (*menu(fp8=True), WIDTHS, WAVES))).encode()).hexdigest()[:16]
        settings = [spec.seed, drawn, picks, protocols, kernels, [asdict(each) for each in self._problems]]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        keys = {"gpu": {"name": gpu}, "kernel": kernel_digest(), "spec": noted, "spec_digest": digest}
        super().__init__(fresh(spec.name, spec.question, "measured", protocols=protocols, **keys), out, say)
        self._until = float("inf")
        self._chip = SXM
        self._open = deque(random.Random(spec.seed).sample(self._problems, len(self._problems)))
        self._next_tasks: dict[str, Task] = {}  # drawn kernels of each worker's last problem
        self._begun: dict[GemmProblem, tuple[Point, ...]] = {}  # points without a row of each problem when it was begun
        self._origins: dict[Point, str] = {}
        self._best: dict[GemmProblem, Row] = {}

    @property
    def open(self) -> int:
        """Number of problems that lack rows, begun or not."""
        begun = {problem for problem, points in self._begun.items() if not all(map(self._has_row, points))}
        return len({*self._open, *begun})

    def joined(self, member: Joined) -> None:
        """Open the folder for the first worker; note each worker's board and missing baselines."""
        if not self._opened:
            self._chip = self._chip_for(member)
        super().joined(member)
        self.missing |= member.missing
        self._note_board(member, missing=self.missing)

    def room(self, workers: int) -> int:
        return 8  # two for each problem: kernels of later tasks compile meanwhile

    def next(self, member: Joined) -> Task | None:
        """Return the drawn kernels of the worker's last problem, else the pick's kernels of the next problem."""
        if (waiting := self._next_tasks.pop(member.name, None)) is not None:
            return self.renewed(waiting, member)
        while self._open and self._clock() < self._until:
            problem = self._open.popleft()
            method = PROTOCOL if expected_seconds(problem) >= STRATA[-2] else BRIEF
            points = points_of(problem, self._numbers, self._seed, self._chip)
            self._origins |= points
            missing = [point for point in points if not self._has_row(point) and point.against not in self.missing]
            self._begun[problem] = tuple(missing)
            picks = tuple(point for point in missing if points[point] != "drawn")
            drawn = tuple(point for point in missing if points[point] == "drawn")
            tasks = [Task(part, method, STAGE, board=member.board) for part in (picks, drawn) if part]
            if tasks:
                if tasks[1:]:
                    self._next_tasks[member.name] = tasks[1]
                return self.renewed(tasks[0], member)
        return None

    def renewed(self, task: Task, member: Joined) -> Task:
        """Return a task of drawn kernels with a race against the best of their problem so far."""
        best = self._best.get(task.points[0].problem)
        if best is None or best.board != member.board or self._origins[task.points[-1]] != "drawn":
            return task
        # a kernel that is behind the best so far by more than this after one pair gets no further pair
        return replace(task, race=Race((Look(1, 0.03),), ratio_of(best.figures), 0.005))

    def dropped(self, task: Task) -> None:
        """Reopen a problem whose board is gone for good, for other boards."""
        self._open.append(task.points[0].problem)

    def left(self, worker: str) -> None:
        """Reopen the last problem of a worker that is gone, if its drawn kernels were not given out."""
        if (drawn := self._next_tasks.pop(worker, None)) is not None:
            self._open.append(drawn.points[0].problem)

    def take(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Record rows with the origin of their kernels."""
        complete = [self._complete(row, how=self._origins[row.point]) for _, row in rows]
        self._folder.append(complete)
        for row in complete:
            self._remember(row)
            self.watch(row, len(self._problems) - len(self._open), len(self._problems))

    def _begin(self) -> None:
        """Load the best rows from the folder; the time limit begins to run."""
        for row in self._folder.rows.values():
            self._remember(row)
        if self._seconds is not None:
            self._until = self._clock() + self._seconds

    def _has_row(self, point: Point) -> bool:
        return RowKey(STAGE, point) in self._folder.rows

    def _remember(self, row: Row) -> None:
        """Race later kernels against this row if it is the best of its problem on its board."""
        best = self._best.get(row.point.problem)
        if row.ok and row.point.against == "cublas":
            slower = best is not None and best.board == row.board
            if not slower or row.figures["speedup"] > best.figures["speedup"]:  # type: ignore[union-attr]
                self._best[row.point.problem] = row
