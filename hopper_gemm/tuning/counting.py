"""Counting a study: which launches, which of them have a row already, and rows as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopper_gemm.build.pool import CompilePool
from hopper_gemm.build.store import KernelId, default_store, source_digest
from hopper_gemm.measure.counters import COUNTERS, Counted, CountRequest, count, wanted_metrics
from hopper_gemm.measure.device import GpuId, NoHopperError, find_hopper, slug
from hopper_gemm.measure.profiler import PROTOCOL, Profiler, open_profiler
from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.counters import ABOUT, counter_key, recorded_keys, write_counters
from hopper_gemm.tables.places import local_root, shown
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, ResultsError, read_json, read_trials, write_json
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
    """

    requests: tuple[CountRequest, ...]
    out: Path
    gpu: GpuId
    opening: str
    failed: list[Counted] = field(default_factory=list)

    @staticmethod
    def prepare(target: Path, gpu: int = 0, out: Path | None = None) -> Counting:
        """Read the question, find the GPU, choose the folder.

        Args:
            target: a sweep's file, for all of its legal configs; or a study's folder, for those that were timed in it.
            gpu: index, as nvidia-smi lists it.
            out: folder for the rows; by default the study's.

        Raises:
            SpecError, ResultsError: the target or the folder is not what it should be.
            NoHopperError: there is no such GPU.
        """
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
        return Counting(requests, folder, found, opening)

    def open_requests(self, limit: int | None = None) -> list[CountRequest]:
        """Requests without a row.

        Args:
            limit: so many configs at most; cuBLAS on their problems comes on top.
        """
        recorded = recorded_keys(self.out)
        todo = [request for request in self.requests if counter_key(row_of(request)) not in recorded]
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
        store: Path | None = None,
    ) -> int:
        """Count what has no row yet. Answers without figures go to :attr:`failed` and get none.

        Args:
            watch: told after each answer.
            limit: so many configs at most, leaving the rest for later.
            profiler: by what, or None for this machine's.
            store: folder of compiled kernels, or None for the default.

        Returns:
            How many rows were written.

        Raises:
            ProfilerError: the profiler is missing or cannot work here.
        """
        todo = self.open_requests(limit)
        if not todo:
            return 0
        profiler = profiler or open_profiler()
        store = store or default_store()
        total, done, written = len(todo), 0, 0
        codes, refused = _compile(todo, store)
        todo = [request for request in todo if request not in refused]
        for start in range(0, len(todo), CHUNK):
            chunk = todo[start : start + CHUNK]
            answers = count(chunk, self.gpu, profiler, store=store, keep=self.out)
            good = [counted for counted in answers if not counted.reason]
            write_counters(self.out, [self._row(counted, codes) for counted in good])
            self._write_about(profiler)
            written += len(good)
            self.failed += [counted for counted in answers if counted.reason]
            for counted in answers:
                done += 1
                watch(counted, done, total)
        for counted in refused.values():
            done += 1
            watch(counted, done, total)
        self.failed += refused.values()
        return written

    def _row(self, counted: Counted, codes: Mapping[CountRequest, str]) -> dict[str, Any]:
        about = {"kernel": counted.kernel, "code": codes.get(counted.request, ""), "note": counted.note}
        return {**row_of(counted.request), **counted.figures, **about, "gpu": self.gpu.name}

    def _write_about(self, profiler: Profiler) -> None:
        """Where the figures come from."""
        wanted = wanted_metrics(profiler)
        about = {
            "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "gpu": asdict(self.gpu),
            "profiler": profiler.version,
            "protocol": PROTOCOL,
            "metrics": {
                counter.name: [m for source in counter.sources for m in source.metrics if m in wanted]
                for counter in COUNTERS
            },
            "commit": commit(),
            "kernel": source_digest(),
        }
        write_json(self.out / ABOUT, about)


def row_of(request: CountRequest) -> dict[str, Any]:
    """The columns that tell a request's row from another."""
    config = {} if request.config is None else request.config.as_dict()
    return {**asdict(request.problem), **config, "arm": "cublas" if request.config is None else "ours"}


def _of_spec(path: Path) -> tuple[tuple[CountRequest, ...], str, str | None]:
    spec = read_spec(path)
    launches = [(point.problem, point.config) for point in points(spec) if not point.refused]
    return _requests(launches), spec.name, spec.digest


def _of_folder(path: Path) -> tuple[tuple[CountRequest, ...], str, str | None]:
    trials = read_trials(path / TRIALS)
    launches = [
        (
            GemmProblem(row["m"], row["n"], row["k"], row["dtype"], row["layouts"]),
            GemmConfig(**{name: row[name] for name in FIELDS}),
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
    requests: Sequence[CountRequest], store: Path
) -> tuple[dict[CountRequest, str], dict[CountRequest, Counted]]:
    """Digests of the machine code of all that compiled, and answers for what did not."""
    kernels = {
        request: KernelId.of(request.config, request.problem) for request in requests if request.config is not None
    }
    codes, refused = {}, {}
    pool = CompilePool(store)
    try:
        pool.submit(dict.fromkeys(kernels.values()))
        for request, kernel in kernels.items():
            built = pool.result(kernel)
            if built.status != "ok":
                refused[request] = Counted(request, reason=f"{built.status.replace('_', ' ')}: {built.reason}")
            elif built.report is not None:
                codes[request] = built.report.code
    finally:
        pool.close()
    return codes, refused


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
