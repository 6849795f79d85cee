"""Question of a sweep: the noise floor of each case and board, the points, the finals."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.child import CONTEXT, settle_in
from hopper_gemm.tune.measure.protocol import Protocol, protocol_dict, seconds_of
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.question import Recording
from hopper_gemm.tune.run.questions.finals import TWIN, Finals
from hopper_gemm.tune.run.task import Joined, Task, launch_key, ratio_of
from hopper_gemm.tune.search.search import Search, earlier_rows
from hopper_gemm.tune.search.trials import importances
from hopper_gemm.tune.statistics import ALONE, Race
from hopper_gemm.tune.study.provenance import fresh
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import Space, count, noted_rungs, place_of, space_of
from hopper_gemm.tune.study.spec import Spec

LARGE = 200_000
"""Points of several problems from which on processes enumerate them: 100,000 take a second or more."""

REWRITTEN = ("question", "seed", "spec", "rungs", "skipped", "points", "rows", "cols", "facet_rows", "facet_cols")
"""Keys of provenance that follow from the question; they are rewritten when a folder is resumed."""


@dataclass(frozen=True)
class SweepPlan:
    """The work of a sweep, counted before anything is measured: numbers of all points, of legal, open (to be measured)
    and recorded (with a row) ones, of illegal ones by the rule that refuses them, and of illegal ones without a row.
    ``minutes`` is the GPU time of the open points by their protocols; kernels compile meanwhile."""

    points: int
    legal: int
    open: int
    recorded: int
    minutes: float
    refused: dict[str, int]
    skipped: int

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "minutes": round(self.minutes, 2)}

    def lines(self) -> list[str]:
        refused = ", ".join(f"{count} by {rule}" for rule, count in self.refused.items()) or "none"
        refused += " (the first rule that a point breaks)" * (len(self.refused) > 1)
        skipped = f" ({self.skipped} of them skipped)" if self.skipped else ""
        rows = self.open + self.recorded
        legal = f" of {self.legal} legal ones" if rows < self.legal else ""
        return [
            f"{self.points} points: {self.open} to measure, {self.recorded} recorded, refused: {refused}{skipped}",
            f"{rows}{legal} get a row; timing those that are left takes {self.minutes:.1f} minutes",
        ]


@dataclass(frozen=True)
class Progress:
    """The state of a sweep after a row, for a watcher: ``done`` of ``total`` points have a row; ``best`` is the best
    speedup of the row's case."""

    row: Row
    worker: str
    done: int
    total: int
    best: float | None


Watcher = Callable[[Progress], None]


class Sweep(Recording):
    """A sweep in its results folder, which the first worker that joins opens. ResultsError if the folder holds another
    sweep, takes no more rows, or is damaged.

    Provenance are the keys of the source (``measured`` or ``replayed``), such as the digest of the kernel; its ``gpu``
    needs only the name until a worker joins. ``only`` are points that can be measured, or that a replayed study has;
    after ``trials`` points it stops, and the rest is left for a later run. ``watch`` is called with the progress after
    each row."""

    def __init__(
        self,
        spec: Spec,
        out: Path,
        provenance: Mapping[str, Any],
        *,
        source: str = "measured",
        only: set[Point] | None = None,
        trials: int | None = None,
        watch: Watcher = lambda progress: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        keys = {"study": spec.name, "source": source, "spec_digest": spec.digest}
        super().__init__({**provenance, **keys}, out, say)
        self.spec, self.watch = spec, watch
        self._source_provenance, self._only, self._trials = dict(provenance), only, trials
        if only is not None and not self._space.total:
            where = provenance["replayed_from"]
            raise ResultsError(f"no point of {spec.name} is recorded in {where}; name another with --from")
        gpu = provenance["gpu"]["name"]
        self._earlier = self._warm_rows(gpu) if gpu else None
        """Rows of a warm start; None until a worker joins if the kind of GPU is not known before."""
        self._lost_controls: set[tuple[Point, str]] = set()
        """Controls of cases that have rows of a board, but not its noise floor."""
        self._baselines: dict[str, str] = {}
        self._leaders: dict[str, Row] = {}
        self._launches: dict[tuple[Any, ...], dict[str, Row]] = {}
        self._waiting: dict[str, Point] = {}  # points whose noise floor is measured first, by worker
        self._boards: set[str] = set()
        self._done = 0
        self._started = self._noted = time.monotonic()

    @cached_property
    def _space(self) -> Space:
        spec, problems = self.spec, len(self.spec.problems)
        if problems == 1 or count(spec) < LARGE:
            return space_of(spec, self._only)
        with ProcessPoolExecutor(min(problems, len(os.sched_getaffinity(0))), CONTEXT, settle_in) as pool:
            return space_of(spec, self._only, pool.map)

    @property
    def unrecorded(self) -> int:
        """Number of points that the replayed study lacks."""
        return self._space.left_out

    def plan(self) -> SweepPlan:
        """Count the work."""
        space, legal, trials = self._space, self._space.legal, self.spec.budget.trials
        counts = Counter(place_of(point) for point in legal)
        most = len(legal) if trials is None else sum(min(count, trials) for count in counts.values())
        conditions = product(self.spec.regimes, self.spec.contexts)
        protocols: dict[tuple[str, str], Protocol] = {each: self.spec.protocol(each[0]) for each in conditions}
        cost = {each: protocol.pairs * seconds_of(protocol, each[1]) for each, protocol in protocols.items()}
        seconds = [cost[point.regime, point.context] for point in legal]
        recorded, skipped = len(self._recorded()), space.total - len(space.points)
        open_points = max(0, most - recorded)
        minutes = open_points * (sum(seconds) / max(1, len(seconds))) / 60
        return SweepPlan(space.total, len(legal), open_points, recorded, minutes, dict(space.refused), skipped)

    @property
    def open(self) -> int:
        return self.plan().open

    @property
    def finished(self) -> bool:
        """Return True if an earlier run used up this budget and measured all its finals, and no row was lost since."""
        provenance = self._folder.provenance or {}
        return self._folder.finished and provenance["finished"].get("budget") == self.spec.budget.model_dump()

    def joined(self, member: Joined) -> None:
        """Open the folder for the first worker, and note the board of each."""
        if self._earlier is None:
            self._earlier = self._warm_rows(member.gpu["name"])
        super().joined(member)
        self._boards.add(member.board)
        self._note_board(member)

    def room(self, workers: int) -> int:
        """Return enough tasks to keep the compilers busy; fewer near the end, so that all workers end together."""
        if self.spec.sampled:
            return self.spec.ahead
        return max(2, min(32, -(-self._search.open // (2 * max(1, workers)))))

    def next(self, member: Joined) -> Task | None:
        """Return the task of a noise floor, of finals of a case whose search has ended, or of a point."""
        for lost, board in self._lost_controls:
            if board == member.board and (control := self._control(lost, member, self.spec.protocol(lost.regime))):
                return control
        # _trial may end a search, whose finals then begin: hence the second call of _final
        return self._final(member) or self._trial(member) or self._final(member)

    def left(self, worker: str) -> None:
        """Give the open points of a worker that is gone to others."""
        if self._opened:
            self._search.left(worker, self._waiting.pop(worker, None))

    def renewed(self, task: Task, member: Joined) -> Task:
        """Return a point's task with the present leader of its case and twins of its launch. Without a noise floor no
        config is dropped."""
        if task.stage != "sweep":
            return task
        (point,) = task.points
        case, race = place_of(point), ALONE
        if self.spec.race is not None:
            looks = self.spec.race.looks(point.regime)
            leader, noise = self._leaders.get(case), self._noise.get((case, member.board))
            race = Race(looks) if leader is None or noise is None else Race(looks, ratio_of(leader.figures), noise)
        twins = {code: str(row.point.config) for code, row in self._launches.get(launch_key(point), {}).items()}
        return replace(task, race=race, twins=twins)

    def dropped(self, task: Task) -> None:
        """Free the finals of a board that is gone for good, for other boards; its noise floor is not needed."""
        if task.stage == "final":
            self._finals.dropped(task)

    def take(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Record rows, then inform finals, search and watcher. A row without a status is not in the replayed study."""
        complete = []
        for member, row in rows:
            if row.status:
                row = self._complete(row)
                self._remember(row)  # before the next row, which may be its twin
            complete.append((member, row))
        self._folder.append([row for _, row in complete if row.status])
        for member, row in complete:
            case = place_of(row.point)
            if row.stage == "final":
                done = self._finals.take(row)
                if done and self._source == "measured":
                    self._finals.write(case)
            if not row.status or row.stage == "control":
                continue
            if row.stage == "sweep":
                self._search.tell(row)
                self._done += 1
            leader = self._leaders.get(case)
            best = None if leader is None else float(leader.figures["speedup"])
            self.watch(Progress(row, member.name, self._done, self._total, best))

    def tick(self) -> None:
        """Note the time spent on the search every five seconds, so that a kill does not give it back."""
        now = time.monotonic()
        if self._opened and now - self._noted >= 5.0:
            self._noted = now
            self._folder.note(spent=self._search.spent, noise=self._noises())

    def close(self) -> None:
        """Note the results of the search, and unlock the folder."""
        if not self._opened:
            return
        self._opened = False
        try:
            seconds = round(self._before.get("seconds", 0.0) + time.monotonic() - self._started, 1)
            provenance: dict[str, Any] = {"spent": self._search.spent, "noise": self._noises(), "seconds": seconds}
            if self.spec.sampled:
                provenance["importance"] = importances(self._folder.stage("sweep"))
            if self._search.finished and not self._search.ended() and self._finals.done:
                provenance["even"] = self._finals.even()
                cases = Counter(place_of(row.point) for row in self._folder.stage("sweep") if row.status != "illegal")
                self._folder.finish({"budget": self.spec.budget.model_dump(), "places": dict(cases)}, provenance)
            else:
                self._folder.note(**provenance)
        finally:
            self._exit.close()

    def _final(self, member: Joined) -> Task | None:
        self._finals.add(self._search.ended())
        point = self._finals.claim(member.board)
        if point is None:
            return None
        control = self._control(point, member, self.spec.protocol(point.regime))
        return control or self._finals.next(place_of(point), member.board)

    def _trial(self, member: Joined) -> Task | None:
        point = self._waiting.pop(member.name, None) or self._search.propose(member.name)
        if point is None:
            return None
        protocol = self.spec.protocol(point.regime)
        if control := self._control(point, member, protocol):
            self._waiting[member.name] = point
        return control or self.renewed(Task((point,), protocol), member)

    def _fresh(self, gpu: dict[str, Any]) -> dict[str, Any]:
        spec, keys = self.spec, self.spec.table.model_dump()
        keys |= {"seed": spec.seed, "spec": spec.as_dict(), "spec_digest": spec.digest}
        keys |= {"rungs": noted_rungs(spec)} if spec.rungs else {}
        keys |= {"skipped": dict(self._space.refused)} if spec.skips else {}
        keys |= {"points": self._space.total} if spec.sampled else {}
        keys["protocols"] = [protocol_dict(spec.protocol(regime)) for regime in dict.fromkeys(spec.regimes)]
        return fresh(spec.name, spec.question, self._source, **{**keys, **self._source_provenance, "gpu": gpu})

    def _begin(self) -> None:
        """Record illegal points, and resume search and finals from the folder's rows."""
        folder, spec = self._folder, self.spec
        self._before = dict(self._provenance)
        finished = self._before.get("finished", {})
        fresh_provenance = self._fresh(self._provenance["gpu"])  # the same question, perhaps in other words
        folder.note(finished=None, **{name: fresh_provenance[name] for name in REWRITTEN if name in fresh_provenance})
        settled = {row.point for row in folder.stage("sweep")}
        illegal = {point: why for point, why in self._space.points.items() if why}
        folder.append([self._refused(point, why, "sweep") for point, why in illegal.items() if point not in settled])
        recorded = self._recorded()
        counts = Counter(place_of(point) for point in recorded)
        owed = {case: n - counts[case] for case, n in finished.get("places", {}).items() if n > counts[case]}
        options: dict[str, Any] = {"spent": self._before.get("spent"), "most": self._trials, "owed": owed}
        self._search = Search(spec, self._space.legal, recorded.values(), earlier=self._earlier or [], **options)
        self._finals = Finals(spec, folder, self._noises, self._boards)
        self._done = len(illegal) + len(recorded)
        self._total = len(illegal) + self._search.planned
        self._started = self._noted = time.monotonic()
        for row in folder.rows.values():
            self._remember(row)
        self._lost_controls = {
            (row.point.control, row.board)
            for row in folder.stage("sweep", "final")
            if row.ok and (place_of(row.point), row.board) not in self._controls
        }

    def _warm_rows(self, gpu: str) -> list[Row]:
        """Return the rows of the warm start's folders, all of this kind of GPU."""
        return [row for name in self.spec.warm_start for row in earlier_rows(Path(name), gpu)]

    def _recorded(self) -> dict[Point, Row]:
        rows = {row.point: row for row in self._folder.stage("sweep") if row.status != "illegal"}
        return {point: rows[point] for point in self._space.legal if point in rows} if rows else {}

    def _complete(self, row: Row, **defaults: Any) -> Row:
        """Add origin and baseline's kernel to a worker's row. A twin takes the figures of the row whose machine code it
        shares; a twin that was measured before that row arrived keeps its own."""
        code = row.figures.get("code") if row.stage == "sweep" and self._source == "measured" else None
        first = self._launches.get(launch_key(row.point), {}).get(str(code)) if code else None
        if first is not None and row.status == "twin":
            reason = f"{TWIN} {row.reason}; not measured again"
            row = replace(row, status=first.status, reason=reason, figures=first.figures)
        elif first is not None and row.ok:
            row = replace(row, reason="; ".join(filter(None, [f"{TWIN} {first.point.config}", row.reason])))
        defaults |= {"baseline_kernel": self._baselines.get(place_of(row.point), "")} if row.ok else {}
        return super()._complete(row, **defaults)

    def _remember(self, row: Row) -> None:
        """Keep a row's noise floor, baseline kernel and machine code, and the row itself if it leads its case."""
        case, figures = place_of(row.point), row.figures
        self._learn(row)
        if row.stage == "control" and row.ok:
            self._baselines.setdefault(case, str(figures.get("baseline_kernel", "")))
        if row.stage != "sweep" or row.point.is_baseline:
            return
        leader = self._leaders.get(case)
        if row.ok and (leader is None or figures["speedup"] > leader.figures["speedup"]):
            self._leaders[case] = row
        code = figures.get("code")
        if code and row.status in ("ok", "wrong_result") and not row.reason.startswith(TWIN):
            self._launches.setdefault(launch_key(row.point), {}).setdefault(str(code), row)

    def _noises(self) -> dict[str, float]:
        """Return the noise floor of each case: that of its worst board."""
        noises: dict[str, float] = dict(self._before.get("noise", {})) if self._source != "measured" else {}
        for (case, _), noise in self._noise.items():
            noises[case] = max(noise, noises.get(case, 0.0))
        return noises
