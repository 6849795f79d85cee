"""A comparison as a question: our config for each problem beside every baseline, in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from hopper_gemm.model.legality import reasons
from hopper_gemm.model.lookup import Table, find, tables
from hopper_gemm.model.point import CONTEXTS, Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.tuned import Pick, modelled, read_tuned
from hopper_gemm.tune.measure.protocol import Burst, Protocol, Steady, protocol_dict
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.run.question import Member, Recording
from hopper_gemm.tune.run.task import Task
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.folder import identity_of
from hopper_gemm.tune.study.provenance import fresh, versions
from hopper_gemm.tune.study.reader import read_provenance
from hopper_gemm.tune.study.row import ResultsError, Row, RowKey
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.study.space import place_of

PROTOCOLS: dict[str, Protocol] = {"burst": Burst(), "steady": Steady(pairs=2)}
SEVERAL: dict[str, Protocol] = {"burst": Burst(pairs=7), "steady": Steady(pairs=2)}
"""The same where several processes measure a row. The pairs of one process share its luck, so that an interval shrinks
with the processes: half of the pairs in each leave time for more of them."""

AGAINST = ("cublas", "cublaslt", "heuristics", "triton", "quack")
"""Baselines, in the order of a table's columns."""

CONFIGS = ("tuned", "auto")
"""``tuned``: the best known config of the very problem, else what matmul picks. ``auto``: what matmul picks for a
problem without an entry."""

CUBLAS = "nvidia-cublas"
LIBRARIES = ("torch", CUBLAS)
"""A folder holds figures of one version of each."""

SEARCHED = ("cublaslt", "heuristics")
"""Baselines whose way is searched, and which name finalists."""


@dataclass(frozen=True)
class ComparisonSpec:
    """Question of a comparison: problems, baselines and conditions.

    Args:
        name, question: of the list of problems.
        problems: what is multiplied.
        against: names of baselines, in order.
        regime, context: how everything is timed.
        config: of :data:`CONFIGS`.
        processes: fresh processes, one after the other, that measure everything. The first that meets a problem
            searches each baseline's ways; those after it choose again among the finalists of that search.

    Raises:
        ValueError: a value is none of its choices.
    """

    name: str
    question: str
    problems: Sequence[GemmProblem]
    against: Sequence[str] = ("cublas", "cublaslt")
    regime: str = "burst"
    context: str = "isolated"
    config: str = "tuned"
    processes: int = 1

    def __post_init__(self) -> None:
        if self.config not in CONFIGS:
            raise ValueError(f"--config must be one of {', '.join(CONFIGS)} but got {self.config!r}")
        unknown = [name for name in self.against if name not in AGAINST]
        if unknown or not self.against:
            raise ValueError(f"--against must be among {', '.join(AGAINST)} but got {(unknown or [''])[0]!r}")

    def points(self, problem: GemmProblem, pick: Pick) -> list[Point]:
        """A problem's points: its config beside each baseline."""
        return [Point(problem, pick.config, self.regime, self.context, name) for name in dict.fromkeys(self.against)]


class Comparison(Recording):
    """See the module. Made, it only looks; the first worker that joins opens the folder.

    Args:
        spec: what is compared.
        out: folder.
        gpu: name of the kind of GPU, where it is known.
        tables: tuned tables, in order.
        limit: number of rows at most, leaving the rest for later.
        watch: told of each row, how many there are by now, and how many there will be.
        say: takes a line for the user.

    Raises:
        ResultsError: the folder is of another study, or damaged.
    """

    def __init__(
        self,
        spec: ComparisonSpec,
        out: Path,
        gpu: str,
        *,
        tables: Sequence[Table] = (),
        limit: int | None = None,
        watch: Callable[[Row, int, int], None] = lambda row, done, total: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(spec.name, out, "measured", say)
        self._watch, self._limit, self._processes, self._gpu = watch, limit, spec.processes, gpu
        self._spec, self._tables = spec, tables
        self._pick(SXM)
        self._protocol = PROTOCOLS[spec.regime]
        self._duel = (SEVERAL if spec.processes > 1 else PROTOCOLS)[spec.regime]
        noted = {"name": spec.name, "config": spec.config, "against": list(spec.against), "data": "normal", "seed": 0}
        used = [protocol_dict(protocol) for protocol in dict.fromkeys((self._protocol, self._duel))]
        identity = {"kernel": kernel_digest(), "spec": noted, "spec_digest": None}
        self._new_provenance = fresh(spec.name, spec.question, "measured", protocols=used, **identity)
        self._folder.refuse_another(identity_of(self._fresh({"name": gpu})))
        self._refuse_other_libraries()
        self._boards: dict[GemmProblem, str] = {}
        self._assigned: set[RowKey] = set()
        self._finalists: dict[str, tuple[str, ...]] = {}
        """Recipes by place and baseline, of the first search of each."""
        self._earlier_finalists: dict[str, tuple[tuple[str, ...], str]] = {}
        """Recipes that an earlier comparison found, and where they come from, likewise."""
        self.missing: dict[str, str] = {}
        """Baselines that cannot be asked here, with the reason."""

    def _pick(self, chip: Chip) -> None:
        """Choose the configs for a kind of GPU."""
        spec, conditions = self._spec, (self._spec.regime, self._spec.context, self._spec.config)
        self._picks = {problem: choose(self._tables, problem, *conditions, chip) for problem in spec.problems}
        self._points = {problem: spec.points(problem, pick) for problem, pick in self._picks.items()}

    def begin_with(self, folder: Path) -> None:
        """Choose among the finalists of an earlier comparison, in this context or the other, instead of searching. What
        it has none of is searched.

        Args:
            folder: of that comparison.

        Raises:
            ResultsError: the folder is none, or its finalists are of another GPU or another cuBLAS.
        """
        provenance, named = read_provenance(folder), shown(folder)
        finalists = provenance.get("finalists")
        if not finalists:
            raise ResultsError(f"{named} names no finalists of a comparison with cublaslt; leave --finalists out")
        then = {"GPU": provenance["gpu"]["name"], CUBLAS: provenance.get("versions", {}).get(CUBLAS)}
        now = {"GPU": self._gpu, CUBLAS: versions()[CUBLAS]}
        for name in (name for name in now if then[name] != now[name]):
            message = f"the finalists of {named} are of the {name} {then[name]}, here is {now[name]}"
            raise ResultsError(f"{message}; leave --finalists out to search anew")
        searches = [point for points in self._points.values() for point in points if point.against in SEARCHED]
        for point in searches:
            ways = (_way_of(replace(point, context=context)) for context in (point.context, *CONTEXTS))
            if way := next((way for way in ways if way in finalists), None):
                self._earlier_finalists[_way_of(point)] = tuple(finalists[way]), f"{named}: {way}"
        self.say(
            f"{len(self._earlier_finalists)} of {len(searches)} searches are left out for the finalists of {named}"
        )

    @property
    def open(self) -> int:
        """Rows that are still to be measured."""
        return len(self._missing_keys())

    def joined(self, member: Member) -> None:
        """Open the folder for the first worker, for whose kind of GPU the configs are, and note what each brings."""
        if not self._opened:
            self._pick(self._chip_for(member))
        super().joined(member)
        self.missing |= member.missing
        used = self._provenance["protocols"]
        used += [protocol for protocol in self._new_provenance["protocols"] if protocol not in used]
        self._note_board(member, missing=self.missing, protocols=used)

    def room(self, workers: int) -> int:
        """One problem under way and one that compiles."""
        return 2

    def next(self, member: Member) -> Task | None:
        """The duels of a problem in a process; before the first the noise floor of its place. A problem is measured in
        one process at a time, since the next one takes up its finalists."""
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
            finalists = {point.against: self._among(_way_of(point)) for point in points}
            return Task(points, self._duel, "compare", process, child, finalists=finalists, board=board)
        return None

    def take(self, rows: Sequence[tuple[Member, Row]]) -> None:
        """Record rows; a comparison notes the noise floor with each."""
        complete = []
        for member, row in rows:
            picked, more = self._picks[row.point.problem], {}
            if row.stage == "compare":
                noise = self._noise.get((place_of(row.point), member.board))
                more = {"how": picked.how, "tuned_on": picked.tuned_on, "noise": noise}
            complete.append(self._complete(row, **more))
            self._learn(complete[-1])
        self._folder.append(complete)
        finalists = {_way_of(row.point): row.finalists for row in complete if row.finalists and row.stage == "compare"}
        if new := finalists.keys() - self._finalists.keys():
            self._finalists = {**finalists, **self._finalists}
            taken = {way: self._earlier_finalists[way][1] for way in sorted(new) if way in self._earlier_finalists}
            origin = {"finalists_from": {**self._provenance.get("finalists_from", {}), **taken}} if taken else {}
            self._folder.note(finalists={way: list(among) for way, among in self._finalists.items()}, **origin)
        for row in complete:
            if row.stage == "compare":
                total = len(self._keys())
                self._watch(row, total - self.open, total)

    def dropped(self, task: Task) -> None:
        """Its board is gone for good: another may have the problem."""
        self._assigned -= {RowKey("compare", point, task.process) for point in task.points}
        self._boards.pop(task.points[0].problem, None)

    def left(self, worker: str) -> None:
        """The others may have its problems; what it measured stays."""
        self._boards = {}

    def close(self) -> None:
        """Note whether everything was measured, and let the folder go."""
        if self._opened and self._folder.rows:
            if self.open:
                self._folder.note(finished=None)
            else:
                self._folder.finish({}, {})
        super().close()

    # -----------------------------------------------------------------------------------------

    def _refuse_other_libraries(self) -> None:
        if self._folder.about is not None:
            now, then = versions(), self._folder.about.get("versions", {})
            for name in (name for name in LIBRARIES if then.get(name) != now[name]):
                recorded = f"{name} {then.get(name)}, now {now[name]}"
                raise ResultsError(f"{self.out} was begun with {recorded}; name another folder with --out")

    def _fresh(self, gpu: dict[str, Any]) -> dict[str, Any]:
        return {**self._new_provenance, "gpu": gpu}

    def _begin(self) -> None:
        """Take up what the folder holds; what a rule refuses gets its row now."""
        self._finalists = {way: tuple(recipes) for way, recipes in self._provenance.get("finalists", {}).items()}
        for row in self._folder.rows.values():
            self._learn(row)
        rows = []
        for key in self._keys():
            violations = reasons(key.point.config, key.point.problem)
            if violations and key not in self._folder.rows:
                rows.append(self._refused(key.point, "; ".join(map(str, violations)), "compare", key.process))
        self._folder.append(rows)

    def _among(self, way: str) -> tuple[str, ...]:
        """Recipes among which a baseline's way is chosen; none where it is searched."""
        return self._finalists.get(way) or self._earlier_finalists.get(way, ((), ""))[0]

    def _keys(self) -> list[RowKey]:
        """Rows in the end, but for baselines that cannot be asked."""
        return [
            RowKey("compare", point, process)
            for process in range(self._processes)
            for points in self._points.values()
            for point in points
            if point.against not in self.missing
        ]

    def _missing_keys(self) -> list[RowKey]:
        """Those that are still to come."""
        return [key for key in self._keys() if key not in self._folder.rows]


def _way_of(point: Point) -> str:
    """A point's place and baseline, as the provenance names them."""
    return f"{place_of(point)} against {point.against}"


def choose(
    among: Sequence[Table], problem: GemmProblem, regime: str, context: str, config: str, chip: Chip = SXM
) -> Pick:
    """Our config for a problem on a GPU."""
    if config == "auto":
        return modelled(problem, chip)
    return find(among, problem, regime, context, chip)


def problems_of(shapes: Path | None, sizes: Sequence[int], regime: str) -> tuple[str, str, tuple[GemmProblem, ...]]:
    """Name, question and problems of a list, or of sizes.

    Args:
        shapes: the list; the suite if None and there are no sizes.
        sizes: m, n and k of one problem after the other.
        regime: from a list, steady takes only the problems marked so.

    Raises:
        SpecError, ValueError: a mistake in what was asked; one line each.
    """
    if sizes:
        if shapes is not None:
            raise ValueError("give the problems as M N K or as a list with --shapes, not both")
        if len(sizes) % 3:
            raise ValueError(f"problems are M N K, one after the other, but got {len(sizes)} numbers")
        triples = zip(*(iter(sizes),) * 3, strict=True)
        return "shapes", "", tuple(dict.fromkeys(GemmProblem(*triple) for triple in triples))
    read = read_shapes(shapes)
    problems = read.of_regime(regime)
    if not problems:
        raise ValueError(f"no problem of {read.name} is marked steady; mark one, or give problems as M N K")
    return read.name, read.question, problems


def tables_of(named: Path | None, kind: str, say: Callable[[str], None]) -> list[Table]:
    """The named tuned table alone, whatever GPU it is of, else those that serve matmul on this kind of GPU."""
    return tables(kind, say) if named is None else [Table(tuple(read_tuned(named)), named)]
