"""A Hopper GPU as a backend. The supervisor holds no CUDA context; a child measures, others compile ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.child import Child, Reply
from hopper_gemm.compiler.pool import Built, CompilePool
from hopper_gemm.compiler.store import KernelId, default_store, source_digest
from hopper_gemm.measure.bench import Figures, Outcome
from hopper_gemm.measure.device import DeviceInfo, NoHopperError, find_hopper
from hopper_gemm.measure.regimes import Burst, Protocol, Steady, protocol_dict
from hopper_gemm.measure.statistics import Pair, speedup
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec
from hopper_gemm.tuning.worker import Request, measuring

RUN_SECONDS = 60.0
"""Allowance for allocating, checking and capturing, beside the timing itself."""


class UnusableGpuError(NoHopperError):
    """The GPU is there but cannot be used; the message says why."""


class CudaBackend:
    """Measures points on one GPU.

    Args:
        spec: of the sweep: protocols and seed.
        gpu: index of the GPU, as nvidia-smi lists it.
        store: folder of compiled kernels, or None for the default.

    Raises:
        NoHopperError: there is no such Hopper GPU.
    """

    source = "measured"
    elsewhere = True
    busy = 0.0

    def __init__(self, spec: SweepSpec, gpu: int = 0, store: Path | None = None) -> None:
        self._gpu = find_hopper(gpu)
        self._store = store or default_store()
        self._pool = CompilePool(self._store)
        self._serve(spec)
        self._child = self._new_child()
        self._child.start()
        self._namer = self._new_child()
        self._namer.start()
        self._fresh: list[Child] = []
        self._load_fresh(self._processes)
        self._cublas: dict[GemmProblem, str] = {}
        self._device: DeviceInfo | None = None

    def serving(self, spec: SweepSpec) -> CudaBackend:
        """This backend for another sweep: the same GPU, processes, compiled kernels and names."""
        seed = self._spec.seed
        self._serve(spec)
        if spec.seed != seed:
            for child in (self._child, *self._fresh):
                child.close()
            self._child, self._fresh = self._new_child(), []
        self._load_fresh(self._processes)
        return self

    def describe(self) -> dict[str, Any]:
        """The GPU, the protocols and the kernel's digest."""
        if self._device is None:
            reply = self._child.ask(Request("describe"), RUN_SECONDS)
            if reply.kind != "answer":
                raise UnusableGpuError(f"GPU {self._gpu.index} ({self._gpu.name}) cannot be used: {reply.error}")
            self._device = reply.value
        protocols = [protocol_dict(self._protocols[regime]) for regime in self._spec.regimes]
        return {"gpu": self._device.as_dict(), "protocols": protocols, "kernel": source_digest()}

    def prepare(self, points: Sequence[Point]) -> None:
        """Start compiling everything, in order."""
        self._pool.submit(dict.fromkeys(KernelId.of(point.config, point.problem) for point in points))

    def ready(self, point: Point) -> bool:
        """Whether it is compiled, as well as it can be."""
        return self._pool.done(KernelId.of(point.config, point.problem))

    def control(self, point: Point) -> Answer:
        """The A/A control, timed as any cell."""
        protocol = self._protocols[point.regime]
        return _answer(self._timed(Request("control", point.problem, protocol=protocol, data=point.data)))

    def code(self, point: Point) -> str:
        """Of the compiled kernel; empty where it does not compile."""
        built = self._pool.result(KernelId.of(point.config, point.problem))
        return str(_report(built).get("code", "")) if built.status == "ok" else ""

    def measure(self, point: Point, pairs: int | None = None) -> Answer:
        """Compile (or wait for it), check, time."""
        protocol = self._protocols[point.regime]
        if pairs is not None:
            protocol = replace(protocol, pairs=pairs)
        request = Request("cell", point.problem, point.config, protocol, data=point.data)
        built = self._pool.result(KernelId.of(point.config, point.problem))
        if built.status != "ok":
            return _completed(Answer(built.status, built.reason, {}), point, built)
        return _completed(_answer(self._timed(request)), point, built)

    def finals(self, points: Sequence[Point]) -> Iterator[tuple[Point, Answer]]:
        """Measure points of one study again, in processes that have measured nothing before: each process measures all
        of them, and each begins with another one. A point that fails is answered at once and not asked again; where
        it takes its process along, the others go on in a new one."""
        built = {point: self._pool.result(KernelId.of(point.config, point.problem)) for point in points}
        for point in points:
            if built[point].status != "ok":
                yield point, _completed(Answer(built[point].status, built[point].reason, {}), point, built[point])
        parts: dict[Point, list[Figures]] = {point: [] for point in points if built[point].status == "ok"}
        if not parts:
            return
        self._pool.drop()
        self._child.close()
        processes = self._spec.final.processes
        self._load_fresh(processes)
        fresh = self._fresh[:processes]
        self._each_prepares(fresh, points[0])
        for process, child in enumerate(fresh):
            if not parts:
                break
            self._child.close()
            self._child = child
            for point in turned(list(parts), process, processes):
                protocol = self._final_protocol(point.regime)
                request = Request("cell", point.problem, point.config, protocol, process, point.data)
                reply = child.ask(request, allowed(protocol))
                if reply.kind != "answer" or reply.value.figures is None:
                    del parts[point]
                    yield point, _completed(_answer(reply), point, built[point])
                    continue
                parts[point].append(reply.value.figures)
                if process == processes - 1:
                    pooled = Reply("answer", Outcome("ok", "", _pooled(parts[point])))
                    yield point, _completed(_answer(pooled), point, built[point])
        for child in fresh:
            if child is not self._child:
                child.close()
        self._fresh = self._fresh[processes:]

    def cublas_kernel(self, problem: GemmProblem) -> str:
        """Learnt once for each problem, in a process of its own since the profiler slows what comes after it."""
        if problem not in self._cublas:
            reply = self._namer.ask(Request("kernel", problem), RUN_SECONDS)
            self._cublas[problem] = reply.value if reply.kind == "answer" else "unknown"
        return self._cublas[problem]

    def close(self) -> None:
        """End all processes."""
        for child in (self._child, self._namer, *self._fresh):
            child.close()
        self._pool.close()

    # -----------------------------------------------------------------------------------------

    def _timed(self, request: Request) -> Reply:
        """Ask for a measurement, and note how long the GPU was at work on it."""
        asked = time.monotonic()
        reply = self._child.ask(request, allowed(request.protocol))
        self.busy += time.monotonic() - asked
        return reply

    def _serve(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._protocols: dict[str, Protocol] = {
            "burst": Burst(**spec.burst.model_dump()),
            "steady": Steady(**spec.steady.model_dump()),
        }

    def _final_protocol(self, regime: str) -> Protocol:
        final, protocol = self._spec.final, self._protocols[regime]
        if isinstance(protocol, Burst):
            return replace(protocol, pairs=final.burst_pairs, rest=final.burst_rest)
        return replace(protocol, pairs=final.steady_pairs)

    @property
    def _processes(self) -> int:
        """That the finals will take."""
        return self._spec.final.processes if self._spec.final.best else 0

    def _load_fresh(self, processes: int) -> None:
        """Start the finals' processes, so that they load their modules while the sweep is measured; they do not touch
        the GPU before the finals."""
        while len(self._fresh) < processes:
            self._fresh.append(self._new_child())
            self._fresh[-1].start()

    @staticmethod
    def _each_prepares(fresh: Sequence[Child], point: Point) -> None:
        """Let the finals' processes make their contexts and matrices at the same time, before any is timed."""
        request = Request("prepare", point.problem, point.config, data=point.data)
        with ThreadPoolExecutor(len(fresh)) as together:
            for child in fresh:
                together.submit(child.ask, request, RUN_SECONDS)

    def _new_child(self) -> Child:
        environment = {"CUDA_VISIBLE_DEVICES": self._gpu.uuid}
        return Child(measuring, self._store, self._spec.seed, environment=environment)


def turned(points: Sequence[Point], process: int, processes: int) -> list[Point]:
    """The order in which one of several processes measures points: each begins at another place, evenly spread, so that
    none always comes first, or last."""
    start = process * len(points) // processes
    return [*points[start:], *points[:start]]


def allowed(protocol: Protocol) -> float:
    """Seconds within which an answer must come, repeats included."""
    each = (
        protocol.rest + protocol.warm + protocol.timed
        if isinstance(protocol, Burst)
        else protocol.settle + protocol.window
    )
    return RUN_SECONDS + 3 * 2 * protocol.pairs * each * 1.5


def _completed(answer: Answer, point: Point, built: Built) -> Answer:
    """The answer with what compiling told of the point."""
    known = {"smem_bytes": footprint(point.config).smem_bytes, **_report(built)}
    remark = _remark(built, point) if built.status == "ok" else ""
    return replace(answer, reason=answer.reason or remark, figures={**answer.figures, **known})


def _remark(built: Built, point: Point) -> str:
    """What a measured kernel's row should say beside its figures, if anything."""
    most = footprint(point.config).wgmma_waits
    if built.report is None or built.report.wgmma_waits <= most:
        return ""
    return f"the compiler serialised wgmma: {built.report.wgmma_waits} waits in the code instead of {most}"


def _report(built: Built) -> dict[str, Any]:
    if built.report is None:
        return {}
    names = ("registers", "wgmma", "instructions", "code")
    return {name: getattr(built.report, name) for name in names}


def _answer(reply: Reply) -> Answer:
    if reply.kind == "timeout":
        return Answer("timeout", reply.error, {})
    if reply.kind != "answer":
        return Answer("crash", reply.error, {})
    outcome: Outcome = reply.value
    if outcome.figures is None:
        return Answer(outcome.status, outcome.reason, {})
    samples = tuple((pair.process, pair.ours_us, pair.cublas_us) for pair in outcome.figures.samples)
    return Answer(outcome.status, outcome.reason, _columns(outcome.figures), samples)


def _columns(figures: Figures) -> dict[str, Any]:
    """Figures by the schema's names."""
    ratio = figures.ratio
    return {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "pairs": ratio.pairs,
        "processes": len({pair.process for pair in figures.samples}),
        "time_us": figures.time_us,
        "cublas_us": figures.cublas_us,
        "tflops": figures.tflops,
        "sm_mhz": figures.sm_mhz,
        "cublas_sm_mhz": figures.cublas_sm_mhz,
        "watts": figures.watts,
        "cublas_watts": figures.cublas_watts,
        "pj_per_flop": figures.pj_per_flop,
        "cublas_pj_per_flop": figures.cublas_pj_per_flop,
        "tensor_active": figures.tensor_active,
        "rel_err": figures.rel_err,
    }


def _pooled(parts: list[Figures]) -> Figures:
    """One set of figures from several processes: pairs together, the rest averaged."""
    samples: tuple[Pair, ...] = tuple(pair for part in parts for pair in part.samples)

    def mean(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if None in values else sum(values) / len(values)

    averaged = {name: mean(name) for name in _AVERAGED}
    return Figures(ratio=speedup(samples), samples=samples, **averaged)


_AVERAGED = tuple(name for name in Figures.__dataclass_fields__ if name not in ("ratio", "samples"))
