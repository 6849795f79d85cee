"""Counting a study, as a question: what the profiler counts of each kernel, and the waits that ours counts itself.

The two are rows of their own, of process 0 and process 1: one kind that fails, or is left for later, does not keep back
the other. Readers put them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopper_gemm.lab.counters import Counted, count
from hopper_gemm.lab.counters.waits import METER
from hopper_gemm.model.point import Point
from hopper_gemm.model.tuned import local_root
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.run.question import Member, Recording
from hopper_gemm.tune.run.task import LaunchCounter, Task
from hopper_gemm.tune.study.folder import identity_of
from hopper_gemm.tune.study.provenance import fresh
from hopper_gemm.tune.study.reader import ROWS, read_study
from hopper_gemm.tune.study.row import ResultsError, Row, RowKey
from hopper_gemm.tune.study.space import points
from hopper_gemm.tune.study.spec import read_spec

CHUNK = 32
"""Launches of one run of the profiler: its start is spread over them, and a run that fails loses no more."""


def profile(points: Sequence[Point], gpu: GpuId, store: Path) -> Sequence[Counted]:
    """Count one launch of each point under the profiler, which must have the GPU to itself; one answer for each point.

    Raises:
        ProfilerError: the profiler is missing or cannot work here.
    """
    from hopper_gemm.lab.counters.profiler import open_profiler

    return count(points, gpu, open_profiler(), store=store)


def meter(points: Sequence[Point], gpu: GpuId, store: Path) -> Sequence[Counted]:
    """Waits of the roles of each point's kernel, counted by the kernel itself; one answer for each point."""
    from hopper_gemm.lab.counters.waits import WaitMeter

    meter = WaitMeter(gpu, store)
    try:
        return [meter.measure(point) for point in points]
    finally:
        meter.close()


KINDS = {"profile": LaunchCounter(profile), "meter": LaunchCounter(meter, METER)}
"""Counters by name; the place of a counter is the process number of its rows."""


class Counting(Recording):
    """See the module.

    Args:
        target: a sweep's file, for all of its legal configs; or a study's folder, for those that were timed in it.
        out: folder for the rows.
        gpu: name of the kind of GPU.
        kinds: of :data:`KINDS`; without the profiler nothing is counted of cuBLAS.
        limit: so many configs at most, leaving the rest for later; cuBLAS on their problems comes on top.
        watch: told of each answer, how many there are by now, and how many there will be.

    Raises:
        SpecError, ResultsError: the target or the folder is not what it should be.
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
        launches, self._new_provenance = asked_of(target)
        super().__init__(self._new_provenance["study"], out, "measured", lambda text: None)
        self._watch = watch
        self._folder.refuse_another(identity_of(self._fresh({"name": gpu})))
        wanted = {kind: _with_baselines(launches) if kind == "profile" else launches for kind in kinds}
        if not any(wanted.values()):
            raise ResultsError(f"{target} has no config that runs; name another sweep or study")
        self._open = {
            kind: [point for point in of if _key(point, kind) not in self._folder.rows] for kind, of in wanted.items()
        }
        if limit is not None:
            for kind, of in self._open.items():
                ours = [point for point in of if not point.is_baseline][:limit]
                problems = {point.problem for point in ours}
                self._open[kind] = [p for p in of if (p.problem in problems if p.is_baseline else p in ours)]
        self.total = self.open
        self.written = 0
        self.failed: list[tuple[Point, str]] = []
        self._answered = 0
        self._finished: dict[str, Any] | None = None
        """The note of the study's end; None where it has not ended."""

    @property
    def open(self) -> int:
        """Rows that are still to be counted now."""
        return sum(map(len, self._open.values()))

    def _fresh(self, gpu: dict[str, Any]) -> dict[str, Any]:
        return {**self._new_provenance, "gpu": gpu, "kernel": kernel_digest()}

    def _begin(self) -> None:
        self._finished = self._provenance.get("finished", {} if not self._folder.stage("sweep") else None)
        self._folder.note(finished=None)

    def next(self, member: Member) -> Task | None:
        """A chunk of one kind."""
        for kind in KINDS:
            of = self._open.get(kind, [])
            if of:
                self._open[kind] = of[CHUNK:]
                process = list(KINDS).index(kind)
                return Task(tuple(of[:CHUNK]), KINDS[kind], "counters", process)
        return None

    def take(self, rows: Sequence[tuple[Member, Row]]) -> None:
        """Record what was counted; what was not is told, and can be tried again."""
        for _, row in rows:
            self._answered += 1
            self._watch(row.point, row.reason, self._answered, self.total)
            if not row.ok:
                self.failed.append((row.point, f"{row.status.replace('_', ' ')}: {row.reason}"))
        counted = [self._complete(row) for _, row in rows if row.ok]
        self._folder.append(counted)
        self.written += len(counted)

    def close(self) -> None:
        """Let the folder go."""
        if self._finished is not None:
            self._folder.finish(self._finished, {})
        super().close()


def asked_of(target: Path) -> tuple[list[Point], dict[str, Any]]:
    """Points of a sweep's file or of a study's folder, each config once whatever the regimes; and the provenance of a
    folder that is begun for them."""
    if target.is_dir():
        study = read_study(target)
        launches = [row.point for row in study.stage("sweep") if row.ok]
        provenance = study.provenance
        name, question = provenance["study"], provenance.get("question", "")
        spec, digest = provenance["spec"], provenance.get("spec_digest")
    else:
        spec = read_spec(target)
        launches = [point for point, why in points(spec).items() if not why]
        name, question, digest = spec.name, spec.question, spec.digest
        spec = spec.model_dump(mode="json", by_alias=True)
    bare = dict.fromkeys(Point(point.problem, point.config) for point in launches)
    return list(bare), fresh(name, question, "measured", spec=spec, spec_digest=digest)


def _with_baselines(launches: Sequence[Point]) -> list[Point]:
    """Problem by problem, cuBLAS first."""
    by_problem: dict[Any, list[Point]] = {}
    for point in launches:
        by_problem.setdefault(point.problem, [Point(point.problem, "cublas")]).append(point)
    return [point for of in by_problem.values() for point in of]


def _key(point: Point, kind: str) -> RowKey:
    return RowKey("counters", point, int(kind == "meter"))


def folder_of(target: Path, gpu: str) -> Path:
    """Default folder of a target's counters: its own folder where that takes rows, else a local one.

    Args:
        target: a study's folder, or a sweep's file.
        gpu: slug of the GPU.
    """
    if not target.is_dir():
        return local_root() / gpu / read_spec(target).name
    return target if (target / ROWS).is_file() else local_root() / gpu / f"{target.resolve().name}-counted"
