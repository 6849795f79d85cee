"""Question of counting a study: the profiler's counters of each kernel, and the waits that our kernel counts itself.

Each kind has rows of its own, of process 0 and process 1: if a kind fails, or is left for later, the other is still
recorded. Readers join them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopper_gemm.lab.counters.counting import Counted, count
from hopper_gemm.lab.counters.profiler import find_profiler
from hopper_gemm.lab.counters.waits import METER, meter
from hopper_gemm.model.tuned import local_root
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.question import Recording
from hopper_gemm.tune.run.task import Joined, LaunchCounter, Task
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.provenance import fresh
from hopper_gemm.tune.study.reader import ROWS, read_study
from hopper_gemm.tune.study.row import ResultsError, Row, RowKey
from hopper_gemm.tune.study.space import points
from hopper_gemm.tune.study.spec import read_spec

CHUNK = 32
"""Launches of a run of the profiler: they share its start, and a run that fails loses no more."""


def profile(points: Sequence[Point], gpu: GpuId, store: Path) -> Sequence[Counted]:
    """Count a launch of each point under the profiler, which must have the GPU to itself."""
    return count(points, gpu, find_profiler(), store=store)


TIMED = ("sweep", "compare", "map")
"""Stages of a study whose kernels can be counted."""

KINDS = {"profile": LaunchCounter(profile), "meter": LaunchCounter(meter, METER)}
"""Counters by name; the index of a counter is the process number of its rows."""


class Counting(Recording):
    """Counts the configs of a sweep's file, all of its legal ones, or of a study's folder, those timed in it, into a
    results folder.

    Without the profiler, one of the :data:`KINDS`, nothing is counted of cuBLAS. ``limit`` is the most configs to count
    now, the rest is left for a later run; cuBLAS on their problems is added. ``watch`` is called with each point, the
    reason, the number of results so far, and the number in the end.

    Raises:
        SpecError, ResultsError: the target has no config that runs, or the folder is of another study.
    """

    records_crashes = False

    def __init__(
        self,
        target: Path,
        out: Path,
        gpu: str,
        *,
        kinds: Sequence[str] = tuple(KINDS),
        limit: int | None = None,
        watch: Callable[[Point, str, int, int], None] = lambda point, text, done, total: None,
    ) -> None:
        launches, provenance = read_target(target)
        super().__init__({**provenance, "gpu": {"name": gpu}}, out, lambda text: None)
        self._watch = watch
        by_problem = grouped(launches, lambda point: point.problem)
        beside = [point for problem, of in by_problem.items() for point in (Point(problem, "cublas"), *of)]
        wanted = {kind: beside if kind == "profile" else launches for kind in kinds}
        if not any(wanted.values()):
            raise ResultsError(f"{target} has no config that runs; name another sweep or study")
        self._open = {
            kind: [point for point in points if _key(point, kind) not in self._folder.rows]
            for kind, points in wanted.items()
        }
        if limit is not None:
            for kind, points in self._open.items():
                ours = [point for point in points if not point.is_baseline][:limit]
                problems = {point.problem for point in ours}
                self._open[kind] = [p for p in points if (p.problem in problems if p.is_baseline else p in ours)]
        self.total = self.open
        self.written = 0
        self.failed: list[tuple[Point, str]] = []
        self._answered = 0
        self._finished: dict[str, Any] | None = None
        """The note of the study's end; None where it has not ended."""

    @property
    def open(self) -> int:
        """Number of rows that are still to be counted in this run."""
        return sum(map(len, self._open.values()))

    def _begin(self) -> None:
        self._finished = self._provenance.get("finished", {} if not self._folder.stage(*TIMED) else None)
        self._folder.note(finished=None)

    def next(self, member: Joined) -> Task | None:
        """Return the task of the next :data:`CHUNK` points of a kind."""
        for process, (kind, counter) in enumerate(KINDS.items()):
            points = self._open.get(kind, [])
            if points:
                self._open[kind] = points[CHUNK:]
                return Task(tuple(points[:CHUNK]), counter, "counters", process)
        return None

    def take(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Record the rows with counters; a point that failed is kept in :attr:`failed` and can be tried again."""
        for _, row in rows:
            self._answered += 1
            self._watch(row.point, row.reason, self._answered, self.total)
            if not row.ok:
                self.failed.append((row.point, f"{row.status.replace('_', ' ')}: {row.reason}"))
        counted = [self._complete(row) for _, row in rows if row.ok]
        self._folder.append(counted)
        self.written += len(counted)

    def close(self) -> None:
        """Restore the note of the study's end, and unlock the folder."""
        if self._finished is not None:
            self._folder.finish(self._finished, {})
        self._exit.close()


def read_target(target: Path) -> tuple[list[Point], dict[str, Any]]:
    """Return the points of a sweep's file or of a study's folder, each config once whatever the regimes; and the
    provenance of a new folder for them."""
    if target.is_dir():
        study = read_study(target)
        launches = [row.point for row in study.stage(*TIMED) if row.ok and not row.point.is_baseline]
        provenance = study.provenance
        name, question = provenance["study"], provenance.get("question", "")
        spec, digest = provenance["spec"], provenance.get("spec_digest")
    else:
        sweep = read_spec(target)
        launches = [point for point, reason in points(sweep).items() if not reason]
        name, question, digest = sweep.name, sweep.question, sweep.digest
        spec = sweep.as_dict()
    bare = dict.fromkeys(Point(point.problem, point.config) for point in launches)
    return list(bare), fresh(name, question, "measured", spec=spec, spec_digest=digest, kernel=kernel_digest())


def _key(point: Point, kind: str) -> RowKey:
    return RowKey("counters", point, int(kind == "meter"))


def folder_of(target: Path, gpu: str) -> Path:
    """Return the default folder of the counters of a study's folder or of a sweep's file, for a GPU's slug: its own
    folder if that takes rows, else a local one."""
    if not target.is_dir():
        return local_root() / gpu / read_spec(target).name
    return target if (target / ROWS).is_file() else local_root() / gpu / f"{target.resolve().name}-counted"
