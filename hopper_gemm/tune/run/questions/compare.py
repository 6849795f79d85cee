"""Question of a comparison: our config for each problem against every baseline, in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from hopper_gemm.model.legality import reasons
from hopper_gemm.model.lookup import Table, find
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.tuned import CONTEXTS
from hopper_gemm.tune.measure.protocol import Burst, Protocol, Steady, protocol_dict
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.question import Recording
from hopper_gemm.tune.run.task import Joined, Task
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.provenance import fresh, versions
from hopper_gemm.tune.study.reader import read_provenance
from hopper_gemm.tune.study.row import ResultsError, Row, RowKey
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.study.spec import Spec

PROTOCOLS: dict[str, Protocol] = {"burst": Burst(), "steady": Steady(pairs=2)}
SEVERAL: dict[str, Protocol] = {"burst": Burst(pairs=7), "steady": Steady(pairs=2)}
"""Protocols if several processes measure a row. Pairs of one process share its luck, so an interval shrinks with the
number of processes: half of the pairs in each leave time for more processes."""

CUBLAS = "nvidia-cublas"


class Comparison(Recording):
    """A comparison, by a spec with a ``config``, in its results folder, which the first worker that joins opens; the
    name of its kind of GPU is empty until then. Tuned tables count in order. ``limit`` is the most rows to measure now;
    the rest is left for a later run. ``watch`` is called with each row, the number of rows so far, and the number in
    the end."""

    def __init__(
        self,
        spec: Spec,
        out: Path,
        gpu: str,
        *,
        tables: Sequence[Table] = (),
        limit: int | None = None,
        watch: Callable[[Row, int, int], None] = lambda row, done, total: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._protocol = PROTOCOLS[spec.regimes[0]]
        self._duel = (SEVERAL if spec.processes > 1 else PROTOCOLS)[spec.regimes[0]]
        noted = {"name": spec.name, "config": spec.config, "against": spec.against, "data": "normal", "seed": 0}
        used = [protocol_dict(protocol) for protocol in dict.fromkeys((self._protocol, self._duel))]
        keys = {"gpu": {"name": gpu}, "kernel": kernel_digest(), "spec": noted, "spec_digest": None, "protocols": used}
        super().__init__(fresh(spec.name, spec.question, "measured", **keys), out, say)
        self._watch, self._limit, self._processes, self._gpu = watch, limit, spec.processes, gpu
        self._spec, self._tables = spec, tables
        self._pick(SXM)
        if self._folder.provenance is not None:
            now, then = versions(), self._folder.provenance.get("versions", {})
            for name in (name for name in ("torch", CUBLAS) if then.get(name) != now[name]):
                recorded = f"{name} {then.get(name)}, now {now[name]}"
                raise ResultsError(f"{out} was begun with {recorded}; name another folder with --out")
        self._boards: dict[GemmProblem, str] = {}
        self._assigned: set[RowKey] = set()
        self._finalists: dict[str, tuple[str, ...]] = {}  # recipes by case and baseline, of the first search of each
        self._earlier_finalists: dict[str, tuple[tuple[str, ...], str]] = {}
        """Recipes of an earlier comparison and their origin, by case and baseline."""

    def _pick(self, chip: Chip) -> None:
        spec, regime, context = self._spec, self._spec.regimes[0], self._spec.contexts[0]
        tables = [] if spec.config == "auto" else self._tables
        self._picks = {problem: find(tables, problem, regime, context, chip) for problem in spec.multiplied}
        self._points = {
            problem: [Point(problem, pick.config, regime, context, name) for name in spec.against]
            for problem, pick in self._picks.items()
        }

    def begin_with(self, folder: Path) -> None:
        """Choose among the finalists of an earlier comparison, in this context or the other, instead of searching;
        cases without finalists are still searched. ResultsError if it is no results folder, or its finalists are of
        another GPU or another cuBLAS."""
        provenance, named = read_provenance(folder), shown(folder)
        finalists = provenance.get("finalists")
        if not finalists:
            raise ResultsError(f"{named} names no finalists of a comparison with cublaslt; leave --finalists out")
        then = {"GPU": provenance["gpu"]["name"], CUBLAS: provenance.get("versions", {}).get(CUBLAS)}
        now = {"GPU": self._gpu, CUBLAS: versions()[CUBLAS]}
        for name in (name for name in now if then[name] != now[name]):
            message = f"the finalists of {named} are of the {name} {then[name]}, here is {now[name]}"
            raise ResultsError(f"{message}; leave --finalists out to search anew")
        named_by = ("cublaslt", "heuristics")  # baselines whose candidates are searched
        searches = [point for points in self._points.values() for point in points if point.against in named_by]
        for point in searches:
            keys = (_finalists_key(replace(point, context=context)) for context in (point.context, *CONTEXTS))
            if key := next((key for key in keys if key in finalists), None):
                self._earlier_finalists[_finalists_key(point)] = tuple(finalists[key]), f"{named}: {key}"
        self.say(
            f"{len(self._earlier_finalists)} of {len(searches)} searches are left out for the finalists of {named}"
        )

    @property
    def open(self) -> int:
        return len(self._missing_keys())

    def joined(self, member: Joined) -> None:
        """Open the folder for the first worker and pick configs for its kind of GPU; note each worker's board."""
        if not self._opened:
            self._pick(self._chip_for(member))
        super().joined(member)
        self.missing |= member.missing
        used = self._provenance["protocols"]
        used += [protocol for protocol in self._new_provenance["protocols"] if protocol not in used]
        self._note_board(member, missing=self.missing, protocols=used)

    def room(self, workers: int) -> int:
        """Return 2: one problem under key and one that compiles."""
        return 2

    def next(self, member: Joined) -> Task | None:
        """Return the points of a problem in one process; before the first its noise floor. A problem is measured in one
        process at a time, because the next process takes up its finalists."""
        if self._limit == 0:
            return None
        missing = self._missing_keys()
        at_work = {key.point.problem for key in missing if key in self._assigned}
        new = [key for key in missing if key not in self._assigned and key.point.problem not in at_work]
        for (process, problem), group in groupby(new, lambda key: (key.process, key.point.problem)):
            if self._boards.setdefault(problem, member.board) != member.board:
                continue
            keys = list(group)[: self._limit]
            if control := self._control(keys[0].point, member, self._protocol):
                return control
            if self._limit is not None:
                self._limit -= len(keys)
            self._assigned.update(keys)
            child = f"process {process}" if self._processes > 1 else ""
            points, board = tuple(key.point for key in keys), member.board if child else ""
            earlier = {key: recipes for key, (recipes, _) in self._earlier_finalists.items()} | self._finalists
            finalists = {point.against: earlier.get(_finalists_key(point), ()) for point in points}
            return Task(points, self._duel, "compare", process, child, finalists=finalists, board=board)
        return None

    def take(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Record rows, each with the noise floor of its case, and note the finalists of new searches."""
        complete = []
        for member, row in rows:
            picked, more = self._picks[row.point.problem], {}
            if row.stage == "compare":
                noise = self._noise.get((place_of(row.point), member.board))
                more = {"how": picked.how, "tuned_on": picked.tuned_on, "noise": noise}
            complete.append(self._complete(row, **more))
            self._learn(complete[-1])
        self._folder.append(complete)
        finalists = {
            _finalists_key(row.point): row.finalists for row in complete if row.finalists and row.stage == "compare"
        }
        if new := finalists.keys() - self._finalists.keys():
            self._finalists = {**finalists, **self._finalists}
            taken = {key: self._earlier_finalists[key][1] for key in sorted(new) if key in self._earlier_finalists}
            origin = {"finalists_from": {**self._provenance.get("finalists_from", {}), **taken}} if taken else {}
            self._folder.note(finalists={key: list(recipes) for key, recipes in self._finalists.items()}, **origin)
        for row in complete:
            if row.stage == "compare":
                total = len(self._keys())
                self._watch(row, total - self.open, total)

    def dropped(self, task: Task) -> None:
        """Free a problem whose board is gone for good, for other boards."""
        self._assigned -= {RowKey("compare", point, task.process) for point in task.points}
        self._boards.pop(task.points[0].problem, None)

    def left(self, worker: str) -> None:
        """Free the problems of a worker that is gone, for other boards."""
        self._boards = {}

    def _begin(self) -> None:
        """Load finalists and noise floors from the folder, and record the rows of illegal points."""
        self._finalists = {key: tuple(recipes) for key, recipes in self._provenance.get("finalists", {}).items()}
        for row in self._folder.rows.values():
            self._learn(row)
        rows = []
        for key in self._keys():
            violations = reasons(key.point.config, key.point.problem)
            if violations and key not in self._folder.rows:
                rows.append(self._refused(key.point, "; ".join(map(str, violations)), "compare", key.process))
        self._folder.append(rows)

    def _keys(self) -> list[RowKey]:
        """Return the keys of all rows of the comparison, without baselines that cannot run here."""
        return [
            RowKey("compare", point, process)
            for process in range(self._processes)
            for points in self._points.values()
            for point in points
            if point.against not in self.missing
        ]

    def _missing_keys(self) -> list[RowKey]:
        return [key for key in self._keys() if key not in self._folder.rows]


def _finalists_key(point: Point) -> str:
    """Return the key of a point's finalists in the provenance: its case and its baseline."""
    return f"{place_of(point)} against {point.against}"
