"""A comparison: every problem, every baseline, one run; rows as they come, and what is recorded is not done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.store import source_digest
from hopper_gemm.measure.device import GpuId, NoHopperError, find_hopper, slug
from hopper_gemm.measure.regimes import REGIMES, Burst, Protocol, Steady, protocol_dict
from hopper_gemm.model.legality import filled_up, reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.compare import (
    ABOUT,
    AGAINST,
    FILE,
    PAGE,
    Mean,
    cells,
    compare_page,
    means,
    read_compare,
    recorded_keys,
    row_text,
    write_rows,
)
from hopper_gemm.tables.places import local_root, shown
from hopper_gemm.tables.trials import ResultsError, read_json, write_json
from hopper_gemm.tables.tuned import Pick, TunedEntry, best_known, read_tuned, recorded_tables, untuned
from hopper_gemm.tuning.comparing import About, Comparer, CudaComparer, Duel, Result
from hopper_gemm.tuning.provenance import commit, versions
from hopper_gemm.tuning.shapes import read_shapes

PROTOCOLS: dict[str, Protocol] = {"burst": Burst(), "steady": Steady(pairs=2)}

CONFIGS = ("tuned", "auto")
"""``tuned``: the best known config of the very problem, else what matmul picks. ``auto``: what matmul would pick had
nobody tuned the problem."""

HOST_PROBLEM = GemmProblem(64, 64, 64)
"""Done before the next launch comes, so that the host alone is timed."""


@dataclass(frozen=True)
class Cell:
    """One thing to measure.

    Args:
        problem: what is multiplied.
        pick: our config for it.
        against: the baseline.
        process: fresh processes before.
    """

    problem: GemmProblem
    pick: Pick
    against: str
    process: int

    def __str__(self) -> str:
        return f"{self.problem} {self.against}"


Watcher = Callable[[Cell, Result, int, int], None]
"""Told of each result, how many there are by now, and how many there will be."""


@dataclass
class Comparison:
    """What is to be compared, and where it goes.

    Args:
        name: of the list of problems.
        question: what the list is for.
        problems: what is multiplied.
        against: names of baselines, in order.
        regime: burst or steady.
        config: of :data:`CONFIGS`.
        processes: fresh processes, one after the other, that measure everything.
        entries: of the tuned table.
        out: folder.
        gpu: where it runs.
    """

    name: str
    question: str
    problems: tuple[GemmProblem, ...]
    against: tuple[str, ...]
    regime: str
    config: str
    processes: int
    entries: tuple[TunedEntry, ...]
    out: Path
    gpu: GpuId
    missing: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def prepare(
        shapes: Path | None,
        sizes: Sequence[int],
        *,
        against: str,
        regime: str = "burst",
        config: str = "tuned",
        recorded: Path | None = None,
        out: Path | None = None,
        gpu: int = 0,
        processes: int = 1,
    ) -> Comparison:
        """Read the problems, find the GPU and its tuned table, choose the folder.

        Args:
            shapes: list of problems; the suite if None.
            sizes: m, n and k of one problem after the other, instead of a list.
            against: names of baselines, with commas.
            regime: burst or steady; from a list, steady takes only the problems marked so.
            config: of :data:`CONFIGS`.
            recorded: tuned table; by default those recorded for matmul, and for this GPU alone where it has one.
            out: folder for the rows; by default one beside the local studies.
            gpu: index, as nvidia-smi lists it.
            processes: see the class.

        Raises:
            SpecError, ResultsError: a file or folder is not what it should be.
            ValueError: an argument is none of its choices.
            NoHopperError: there is no such GPU.
        """
        names = tuple(dict.fromkeys(filter(None, against.split(","))))
        for name, value, known in (("--regime", regime, REGIMES), ("--config", config, CONFIGS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)} but got {value!r}")
        strange = [name for name in names if name not in AGAINST]
        if strange or not names:
            raise ValueError(f"--against must be among {', '.join(AGAINST)} but got {(strange or [against])[0]!r}")
        title, question, problems = _problems(shapes, sizes, regime)
        found = _hopper(gpu)
        folder = out or local_root() / slug(found.name) / f"compare-{title}{'' if config == 'tuned' else '-auto'}"
        entries = _entries(recorded, slug(found.name))
        return Comparison(title, question, problems, names, regime, config, processes, tuple(entries), folder, found)

    @property
    def opening(self) -> str:
        """The first line to tell the user: what will happen and where."""
        return (
            f"Comparing {len(self.problems)} problems with {', '.join(self.against)} in {self.regime} "
            f"on {self.gpu.name} into {shown(self.out)}"
        )

    def pick(self, problem: GemmProblem) -> Pick:
        """Our config for a problem, or for what matmul makes of it where TMA cannot reach its matrices."""
        filled = filled_up(problem)
        if self.config == "auto":
            return untuned(self.entries, filled)
        return best_known(self.entries, filled, self.regime)

    def run(
        self,
        watch: Watcher = lambda cell, result, done, total: None,
        limit: int | None = None,
        comparer: Comparer | None = None,
    ) -> int:
        """Measure what is not recorded.

        Args:
            watch: told after each result.
            limit: so many results at most, leaving the rest for later.
            comparer: what measures, or None for the GPU; closed in the end.

        Returns:
            How many rows were written.

        Raises:
            ResultsError: the folder holds figures of another GPU, or of other libraries.
        """
        comparer = comparer or CudaComparer(self.gpu)
        try:
            about = comparer.describe(self.against)
            self.missing = dict(about.missing)
            self._write_about(about)
            try:
                return self._measure(comparer, watch, limit)
            finally:
                self.publish()
        finally:
            comparer.close()

    def publish(self) -> None:
        """Write the page anew from the rows, where there are any."""
        if (self.out / FILE).is_file():
            (self.out / PAGE).write_text(compare_page(read_compare(self.out), read_json(self.out / ABOUT)))

    def summary(self) -> dict[str, Any]:
        """Everything of this folder, ready for JSON."""
        records = cells(read_compare(self.out)) if (self.out / FILE).is_file() else []
        found: list[Mean] = means(records)
        return {
            "out": str(self.out),
            "missing": self.missing,
            "rows": records,
            "means": [mean.as_dict() for mean in found],
        }

    # -----------------------------------------------------------------------------------------

    def _measure(self, comparer: Comparer, watch: Watcher, limit: int | None) -> int:
        picks = {problem: self.pick(problem) for problem in self.problems}
        filled = [(pick.config, filled_up(problem)) for problem, pick in picks.items()]
        comparer.compile([(config, problem) for config, problem in filled if not reasons(config, problem)])
        recorded = recorded_keys(self.out)
        present = [name for name in self.against if name not in self.missing]
        total = len(self.problems) * len(present) * self.processes
        done = written = 0
        for process in range(self.processes):
            fresh = process == 0
            for problem, pick in picks.items():
                noise: float | None = None
                noisy = False
                for cell in (Cell(problem, pick, name, process) for name in present):
                    done += 1
                    row, refused = self._start(cell, comparer)
                    if row_text(row) in recorded:
                        continue
                    if limit is not None and written >= limit:
                        return written
                    if not fresh:
                        comparer.renew()
                        fresh = True
                    result = refused
                    if result is None:
                        if not noisy:
                            noise, noisy = comparer.noise(problem, self._protocol), True
                        duel = Duel(problem, pick.config, cell.against, self._protocol, process)
                        result = comparer.duel(duel)
                    figures = {**result.figures, "noise": noise} if result.status == "ok" else {}
                    row = {**row, **figures, "status": result.status, "reason": result.reason}
                    write_rows(self.out, [row], list(_samples(row, result)))
                    written += 1
                    watch(cell, result, done, total)
                self.publish()
        return written

    def _start(self, cell: Cell, comparer: Comparer) -> tuple[dict[str, Any], Result | None]:
        """The columns that are known beforehand, and the result where that is known too."""
        config, problem = cell.pick.config, filled_up(cell.problem)
        row = {
            **asdict(cell.problem),
            "regime": self.regime,
            "against": cell.against,
            "process": cell.process,
            "how": cell.pick.how,
            "tuned_on": cell.pick.tuned_on,
            **config.as_dict(),
            "code": "",
            "gpu": self.gpu.name,
        }
        found = reasons(config, problem)
        if found:
            return row, Result("illegal", "; ".join(map(str, found)))
        built = comparer.built(config, problem)
        if built.report is not None:
            row["code"] = built.report.code
        return row, None if built.status == "ok" else Result(built.status, built.reason)

    @property
    def _protocol(self) -> Protocol:
        return PROTOCOLS[self.regime]

    def _write_about(self, about: About) -> None:
        """Where the figures come from; a folder holds those of one kind of GPU and one set of libraries."""
        path = self.out / ABOUT
        libraries = {**versions("triton", "quack-kernels"), "cublaslt": about.cublaslt}
        if path.is_file():
            before = read_json(path)
            if before["gpu"]["name"] != about.gpu["name"]:
                raise ResultsError(
                    f"{self.out} was begun with another GPU ({before['gpu']['name']}, now {about.gpu['name']}); "
                    "name another folder with --out"
                )
            for name in ("torch", "cublaslt"):
                if before["versions"].get(name) != libraries[name]:
                    raise ResultsError(
                        f"{self.out} was begun with {name} {before['versions'].get(name)}, now {libraries[name]}; "
                        "name another folder with --out"
                    )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"{self.out} cannot be made ({error.strerror}); name another with --out") from None
        write_json(
            path,
            {
                "name": self.name,
                "question": self.question,
                "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                "config": self.config,
                "gpu": about.gpu,
                "missing": self.missing,
                "protocols": [protocol_dict(protocol) for protocol in PROTOCOLS.values()],
                "data": "normal",
                "seed": 0,
                "commit": commit(),
                "kernel": source_digest(),
                "versions": libraries,
            },
        )


def host_times(gpu: int = 0, problem: GemmProblem = HOST_PROBLEM) -> dict[str, float]:
    """Median host microseconds of a launch: torch.mm, hopper_gemm.matmul, and the loaded kernel alone.

    Raises:
        NoHopperError: there is no such GPU, or it cannot be used.
    """
    comparer = CudaComparer(_hopper(gpu))
    try:
        return comparer.host(problem)
    finally:
        comparer.close()


def _hopper(index: int) -> GpuId:
    try:
        return find_hopper(index)
    except NoHopperError as error:
        raise NoHopperError(f"{str(error).split(';')[0]}; a comparison is measured on an H100 or H200") from None


def _problems(shapes: Path | None, sizes: Sequence[int], regime: str) -> tuple[str, str, tuple[GemmProblem, ...]]:
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


def _entries(recorded: Path | None, kind: str) -> list[TunedEntry]:
    """Of the named table; else of the recorded one of this kind of GPU; else of all recorded ones, as matmul."""
    if recorded is not None:
        return read_tuned(recorded)
    tables = recorded_tables()
    paths = [tables[kind]] if kind in tables else list(tables.values())
    return [entry for path in paths for entry in read_tuned(path)]


def _samples(row: dict[str, Any], result: Result) -> Iterator[dict[str, Any]]:
    for ours_us, theirs_us in result.samples:
        yield {**row, "ours_us": ours_us, "theirs_us": theirs_us}
