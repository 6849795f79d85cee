"""Counting a study: which launches, which of them have a row already, and rows as they come.

Two kinds of figures stand in a row: what the profiler counts, and the waits that our own kernel counts, for which no
profiler is needed. Each kind goes its own way: one that fails, or is left for later, does not keep back the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.pool import Built, CompilePool
from hopper_gemm.compiler.store import KernelId, default_store, source_digest
from hopper_gemm.measure.counters import COUNTERS, Counted, CountRequest, count, wanted_metrics
from hopper_gemm.measure.device import GpuId, NoHopperError, find_hopper, slug
from hopper_gemm.measure.profiler import PROTOCOL, Profiler, open_profiler
from hopper_gemm.measure.waits import PROTOCOL as METER_PROTOCOL
from hopper_gemm.measure.waits import WaitMeter
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.counters import ABOUT, METERED, PROFILED, counter_key, recorded_keys, write_counters
from hopper_gemm.tables.places import local_root, shown
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, ResultsError, config_of, read_json, read_trials, write_json
from hopper_gemm.tuning.provenance import commit
from hopper_gemm.tuning.space import points
from hopper_gemm.tuning.spec import read_spec

CHUNK = 32
"""Launches of one run of the profiler: its start is spread over them, and a run that fails loses no more."""

Watcher = Callable[[Counted, int, int], None]
"""Told of each answer, how many there are by now, and how many there will be."""


@dataclass
class Counting:
    """What is to be counted, and where it goes.

    Args:
        requests: every launch of the study, cuBLAS first on each problem.
        out: the study's folder.
        gpu: where it runs.
        opening: the first line to tell the user.
        profiled: whether the profiler counts.
        metered: whether our kernel counts its waits.
    """

    requests: tuple[CountRequest, ...]
    out: Path
    gpu: GpuId
    opening: str
    profiled: bool = True
    metered: bool = True
    failed: list[Counted] = field(default_factory=list)

    @staticmethod
    def prepare(
        target: Path, gpu: int = 0, out: Path | None = None, *, profiled: bool = True, metered: bool = True
    ) -> Counting:
        """Read the question, find the GPU, choose the folder.

        Args:
            target: a sweep's file, for all of its legal configs; or a study's folder, for those that were timed in it.
            gpu: index, as nvidia-smi lists it.
            out: folder for the rows; by default the study's.
            profiled, metered: what is to be counted; without the profiler nothing is counted of cuBLAS.

        Raises:
            SpecError, ResultsError: the target or the folder is not what it should be.
            NoHopperError: there is no such GPU.
            ValueError: neither kind of figure is wanted.
        """
        if not (profiled or metered):
            raise ValueError("--no-ncu and --no-meter together leave nothing to count; drop one of them")
        requests, name, digest = _of_folder(target) if target.is_dir() else _of_spec(target)
        if not requests:
            raise ResultsError(f"{target} has no config that runs; name another sweep or study")
        try:
            found = find_hopper(gpu)
        except NoHopperError as error:
            raise NoHopperError(f"{str(error).split(';')[0]}; counters are read on an H100 or H200") from None
        folder = out or (target if target.is_dir() else local_root() / slug(found.name) / name)
        _refuse_another(folder, digest, found.name)
        opening = f"Counting {name} on {found.name} into {shown(folder)}"
        return Counting(requests, folder, found, opening, profiled, metered)

    def open_requests(self, limit: int | None = None) -> list[CountRequest]:
        """Requests that lack figures of a kind that is wanted.

        Args:
            limit: so many configs at most; cuBLAS on their problems comes on top.
        """
        lacking = self._unprofiled() | self._unmetered()
        todo = [request for request in self.requests if request in lacking]
        if limit is None:
            return todo
        ours = [request for request in todo if request.config is not None][:limit]
        problems = {request.problem for request in ours}
        return [
            request for request in todo if (request.problem in problems if request.config is None else request in ours)
        ]

    def run(
        self,
        watch: Watcher = lambda counted, done, total: None,
        limit: int | None = None,
        *,
        profiler: Profiler | None = None,
        meter: WaitMeter | None = None,
        store: Path | None = None,
    ) -> int:
        """Count what is lacking. Answers that lack figures go to :attr:`failed`; those without any get no row.

        Args:
            watch: told after each answer.
            limit: so many configs at most, leaving the rest for later.
            profiler: by what, or None for this machine's.
            meter: by what waits are measured, or None for a new one on the GPU; closed in the end.
            store: folder of compiled kernels, or None for the default.

        Returns:
            How many rows were written.

        Raises:
            ProfilerError: the profiler is missing or cannot work here.
        """
        todo = self.open_requests(limit)
        if not todo:
            return 0
        unprofiled, unmetered = self._unprofiled() & set(todo), self._unmetered() & set(todo)
        profiler = (profiler or open_profiler()) if unprofiled else None
        store = store or default_store()
        meter = meter or WaitMeter(self.gpu, store)
        total, done, written = len(todo), 0, 0
        codes, refused = _compile(todo, store)
        todo = [request for request in todo if request not in refused]
        unmeterable = _compile([request for request in todo if request in unmetered], store, metered=True)[1]
        try:
            for start in range(0, len(todo), CHUNK):
                chunk = todo[start : start + CHUNK]
                parts = []
                if profiler is not None:
                    meter.close()  # the profiler has the GPU to itself
                    profiled = [request for request in chunk if request in unprofiled]
                    parts += count(profiled, self.gpu, profiler, store=store, keep=self.out)
                metered = [request for request in chunk if request in unmetered]
                parts += [unmeterable.get(request) or meter.measure(request) for request in metered]
                answers = [joined([part for part in parts if part.request == request]) for request in chunk]
                good = [counted for counted in answers if counted.figures]
                write_counters(self.out, [self._row(counted, codes) for counted in good])
                self._write_about(profiler)
                written += len(good)
                self.failed += [counted for counted in answers if counted.reason]
                for counted in answers:
                    done += 1
                    watch(counted, done, total)
        finally:
            meter.close()
        for counted in refused.values():
            done += 1
            watch(counted, done, total)
        self.failed += refused.values()
        return written

    def _unprofiled(self) -> set[CountRequest]:
        return self._lacking(PROFILED) if self.profiled else set()

    def _unmetered(self) -> set[CountRequest]:
        lacking = self._lacking(METERED) if self.metered else set()
        return {request for request in lacking if request.config is not None}

    def _lacking(self, figures: Sequence[str]) -> set[CountRequest]:
        recorded = recorded_keys(self.out, figures)
        return {request for request in self.requests if counter_key(row_of(request)) not in recorded}

    def _row(self, counted: Counted, codes: Mapping[CountRequest, str]) -> dict[str, Any]:
        about = {"kernel": counted.kernel, "code": codes.get(counted.request, ""), "note": counted.note}
        return {**row_of(counted.request), **counted.figures, **about, "gpu": self.gpu.name}

    def _write_about(self, profiler: Profiler | None) -> None:
        """Where the figures come from; what is known of a kind that was counted earlier is kept."""
        path = self.out / ABOUT
        about = read_json(path) if path.is_file() else {}
        about |= {
            "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "gpu": asdict(self.gpu),
            "commit": commit(),
            "kernel": source_digest(),
        }
        if profiler is not None:
            wanted = wanted_metrics(profiler)
            about |= {
                "profiler": profiler.version,
                "protocol": PROTOCOL,
                "metrics": {
                    counter.name: [m for source in counter.sources for m in source.metrics if m in wanted]
                    for counter in COUNTERS
                },
            }
        if self.metered:
            about["meter"] = METER_PROTOCOL
        write_json(path, about)


def row_of(request: CountRequest) -> dict[str, Any]:
    """The columns that tell a request's row from another."""
    config = {} if request.config is None else request.config.as_dict()
    return {**asdict(request.problem), **config, "arm": "cublas" if request.config is None else "ours"}


def joined(parts: Sequence[Counted]) -> Counted:
    """One answer of several to the same request: the figures of all, and the reasons of those that have none.

    Args:
        parts: at least one.
    """
    whole = parts[0]
    for part in parts[1:]:
        whole = replace(
            whole,
            kernel=whole.kernel or part.kernel,
            figures={**whole.figures, **part.figures},
            note="; ".join(filter(None, (whole.note, part.note))),
            reason="; ".join(filter(None, (whole.reason, part.reason))),
        )
    return whole


def _of_spec(path: Path) -> tuple[tuple[CountRequest, ...], str, str | None]:
    spec = read_spec(path)
    launches = [(point.problem, point.config) for point in points(spec) if not point.refused]
    return _requests(launches), spec.name, spec.digest


def _of_folder(path: Path) -> tuple[tuple[CountRequest, ...], str, str | None]:
    trials = read_trials(path / TRIALS)
    launches = [
        (
            GemmProblem(row["m"], row["n"], row["k"], row["dtype"], row["layouts"]),
            config_of(row),
        )
        for row in trials[trials["status"] == "ok"].to_dict("records")
    ]
    return _requests(launches), path.resolve().name, None


def _requests(launches: Sequence[tuple[GemmProblem, GemmConfig]]) -> tuple[CountRequest, ...]:
    """Problem by problem, cuBLAS first, each config once whatever the regimes."""
    by_problem: dict[GemmProblem, dict[GemmConfig, None]] = {}
    for problem, config in launches:
        by_problem.setdefault(problem, {})[config] = None
    return tuple(
        CountRequest(problem, config) for problem, configs in by_problem.items() for config in (None, *configs)
    )


def _compile(
    requests: Sequence[CountRequest], store: Path, metered: bool = False
) -> tuple[dict[CountRequest, str], dict[CountRequest, Counted]]:
    """Digests of the machine code of all that compiled, and answers for what did not."""
    kernels = {
        request: KernelId.of(request.config, request.problem, metered)
        for request in requests
        if request.config is not None
    }
    codes, refused = {}, {}
    pool = CompilePool(store)
    try:
        pool.submit(dict.fromkeys(kernels.values()))
        for request, kernel in kernels.items():
            built = pool.result(kernel)
            if built.status != "ok":
                refused[request] = Counted(request, reason=_refusal(built, metered))
            elif built.report is not None:
                codes[request] = built.report.code
    finally:
        pool.close()
    return codes, refused


def _refusal(built: Built, metered: bool) -> str:
    return f"{'metered, ' if metered else ''}{built.status.replace('_', ' ')}: {built.reason}"


def _refuse_another(folder: Path, digest: str | None, gpu: str) -> None:
    """Counters stand beside trials only where both are of one sweep on one kind of GPU."""
    if folder.exists() and not folder.is_dir():
        raise ResultsError(f"{folder} is a file; name a folder with --out")
    if not (folder / PROVENANCE).is_file():
        return
    about = read_json(folder / PROVENANCE)
    if digest is not None and about.get("spec_digest") != digest:
        raise ResultsError(f"{folder} holds another sweep (its file has changed since); name another folder with --out")
    if about["gpu"]["name"] != gpu:
        raise ResultsError(
            f"{folder} was begun with another GPU ({about['gpu']['name']}, now {gpu}); name another folder with --out"
        )
