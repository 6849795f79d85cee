"""The GPU side of a comparison: one child measures, another names kernels, and both may die."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from hopper_gemm.compiler.child import Child, Handler, Reply
from hopper_gemm.compiler.pool import Built, CompilePool
from hopper_gemm.compiler.store import KernelId, default_store
from hopper_gemm.measure.bench import Figures
from hopper_gemm.measure.device import GpuId
from hopper_gemm.measure.regimes import Protocol as Regime
from hopper_gemm.measure.statistics import noise_floor
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.compare import NO_BASELINE
from hopper_gemm.tuning.cuda import RUN_SECONDS, UnusableGpuError, allowed

NAME_SECONDS = 60.0
"""Allowance for naming a kernel, beside making its baseline anew."""

HOST_SECONDS = 120.0


@dataclass(frozen=True)
class Duel:
    """Our config against a baseline on a problem.

    Args:
        problem: what is multiplied.
        config: legal on it.
        against: a name of :data:`hopper_gemm.measure.baselines.BASELINES`.
        protocol: how it is timed.
        process: fresh processes before this one.
    """

    problem: GemmProblem
    config: GemmConfig
    against: str
    protocol: Regime
    process: int = 0


@dataclass(frozen=True)
class Result:
    """What came of a duel.

    Args:
        status: of :data:`hopper_gemm.tables.compare.STATUSES`.
        reason: why it is not ok.
        figures: columns of ``compare.csv``.
        samples: our microseconds and theirs, of every pair.
    """

    status: str
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    samples: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class About:
    """What a comparer says of itself.

    Args:
        gpu: fields of :class:`hopper_gemm.measure.device.DeviceInfo`.
        missing: baselines that cannot be asked here, with the reason.
        cublaslt: version of that library; None without it.
    """

    gpu: dict[str, Any]
    missing: dict[str, str]
    cublaslt: str | None = None


class Comparer(Protocol):
    """Compiles and measures; a failure is a result."""

    def describe(self, against: Sequence[str]) -> About:
        """The GPU, and which of these baselines are missing."""
        ...

    def compile(self, kernels: Sequence[tuple[GemmConfig, GemmProblem]]) -> None:
        """Told of all configs to come, so that compiling can run ahead."""
        ...

    def built(self, config: GemmConfig, problem: GemmProblem) -> Built:
        """Wait for a kernel."""
        ...

    def noise(self, problem: GemmProblem, protocol: Regime) -> float | None:
        """torch.mm against itself; None where that fails."""
        ...

    def duel(self, duel: Duel) -> Result:
        """Measure."""
        ...

    def renew(self) -> None:
        """Measure what follows in a fresh process."""
        ...

    def close(self) -> None:
        """End all processes; may be called more than once."""
        ...


@dataclass(frozen=True)
class _Ask:
    kind: Literal["describe", "noise", "duel", "name", "host"]
    problem: GemmProblem | None = None
    protocol: Any = None
    duel: Duel | None = None
    against: tuple[str, ...] = ()
    recipe: Any = None


class CudaComparer:
    """Measures on one GPU.

    Args:
        gpu: where.
        store: folder of compiled kernels, or None for the default.
        seed: of the matrices.
    """

    def __init__(self, gpu: GpuId, store: Path | None = None, seed: int = 0) -> None:
        self._gpu = gpu
        store = store or default_store()
        self._pool = CompilePool(store)
        environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
        self._child = Child(_comparing, store, seed, environment=environment)
        self._namer = Child(_naming, environment=environment)
        self._names: dict[Any, str] = {}

    def describe(self, against: Sequence[str]) -> About:
        """Ask the child."""
        reply = self._child.ask(_Ask("describe", against=tuple(against)), RUN_SECONDS)
        if reply.kind != "answer":
            raise UnusableGpuError(f"GPU {self._gpu.index} ({self._gpu.name}) cannot be used: {reply.error}")
        return reply.value

    def compile(self, kernels: Sequence[tuple[GemmConfig, GemmProblem]]) -> None:
        """In parallel processes, in order."""
        self._pool.submit(dict.fromkeys(KernelId.of(config, problem) for config, problem in kernels))

    def built(self, config: GemmConfig, problem: GemmProblem) -> Built:
        """Of the pool."""
        return self._pool.result(KernelId.of(config, problem))

    def noise(self, problem: GemmProblem, protocol: Regime) -> float | None:
        """By the protocol of the duels."""
        reply = self._child.ask(_Ask("noise", problem, protocol), allowed(protocol))
        if reply.kind != "answer" or reply.value.figures is None:
            return None
        return noise_floor(reply.value.figures.ratio)

    def duel(self, duel: Duel) -> Result:
        """In the measuring child; then the baseline's kernel is named in the other."""
        from hopper_gemm.measure.baselines import BASELINES

        seconds = allowed(duel.protocol) + BASELINES[duel.against].seconds
        reply = self._child.ask(_Ask("duel", duel=duel), seconds)
        if reply.kind != "answer":
            return Result("timeout" if reply.kind == "timeout" else "crash", reply.error)
        if isinstance(reply.value, str):
            return Result(NO_BASELINE, reply.value)
        outcome, chosen = reply.value
        if outcome.figures is None:
            return Result(outcome.status, outcome.reason)
        about = {
            "theirs_rel_err": chosen.rel_err,
            "candidates": chosen.of,
            "choice": chosen.label,
            "kernel": self._name(duel, chosen.recipe),
        }
        samples = tuple((pair.ours_us, pair.cublas_us) for pair in outcome.figures.samples)
        return Result(outcome.status, outcome.reason, {**_columns(outcome.figures, duel.problem), **about}, samples)

    def renew(self) -> None:
        """The child is ended; the next request meets a new one."""
        self._child.close()

    def close(self) -> None:
        """Children and compilers."""
        self._child.close()
        self._namer.close()
        self._pool.close()

    def host(self, problem: GemmProblem) -> dict[str, float]:
        """Median host microseconds of a launch, by what launches; see :mod:`hopper_gemm.measure.host`."""
        reply = self._child.ask(_Ask("host", problem), HOST_SECONDS)
        if reply.kind != "answer":
            raise UnusableGpuError(f"the host time of a launch could not be measured: {reply.error}")
        return reply.value

    def _name(self, duel: Duel, recipe: Any) -> str:
        """The profiler slows what its process launches later, so another process asks it."""
        from hopper_gemm.measure.baselines import BASELINES

        key = duel.problem, duel.against, recipe
        if key not in self._names:
            ask = _Ask("name", duel.problem, against=(duel.against,), recipe=recipe)
            reply: Reply = self._namer.ask(ask, NAME_SECONDS + BASELINES[duel.against].seconds)
            self._names[key] = reply.value if reply.kind == "answer" else "unknown"
        return self._names[key]


def _columns(figures: Figures, problem: GemmProblem) -> dict[str, Any]:
    """Figures by the names of ``compare.csv``; what :class:`Figures` calls cuBLAS is the baseline."""
    ratio = figures.ratio
    return {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "pairs": ratio.pairs,
        "time_us": figures.time_us,
        "theirs_us": figures.cublas_us,
        "tflops": figures.tflops,
        "theirs_tflops": problem.flop / figures.cublas_us / 1e6,
        "sm_mhz": figures.sm_mhz,
        "theirs_sm_mhz": figures.cublas_sm_mhz,
        "watts": figures.watts,
        "theirs_watts": figures.cublas_watts,
        "pj_per_flop": figures.pj_per_flop,
        "theirs_pj_per_flop": figures.cublas_pj_per_flop,
        "tensor_active": figures.tensor_active,
        "rel_err": figures.rel_err,
    }


def _comparing(store: Path, seed: int) -> Handler:
    """The measuring child's handler: keeps matrices and chosen baselines from request to request."""
    from hopper_gemm.measure.baselines import BASELINES, missing
    from hopper_gemm.measure.baselines.base import BaselineError
    from hopper_gemm.measure.bench import Bench
    from hopper_gemm.measure.device import describe_current

    bench = Bench(describe_current(), store, seed)

    def handle(ask: _Ask) -> Any:
        if ask.kind == "describe":
            return About(bench.device.as_dict(), missing(ask.against), _cublaslt_version())
        if ask.kind == "noise":
            assert ask.problem is not None
            return bench.control(ask.problem, ask.protocol)
        if ask.kind == "host":
            assert ask.problem is not None
            return _host(ask.problem, store)
        duel = ask.duel
        assert duel is not None
        try:
            return bench.versus(duel.config, duel.problem, duel.protocol, BASELINES[duel.against], duel.process)
        except BaselineError as error:
            return str(error)

    return handle


def _naming() -> Handler:
    """The naming child's handler."""
    from hopper_gemm.measure.baseline import chosen_kernel
    from hopper_gemm.measure.baselines import BASELINES

    def handle(ask: _Ask) -> str:
        assert ask.problem is not None
        return chosen_kernel(ask.problem, BASELINES[ask.against[0]], ask.recipe)

    return handle


def _cublaslt_version() -> str | None:
    from hopper_gemm.measure.baselines.cublaslt_api import library

    try:
        return library().version
    except (OSError, AttributeError):
        return None


def _host(problem: GemmProblem, store: Path) -> dict[str, float]:
    """By way of the package's public face, as a user calls it."""
    from hopper_gemm import matmul
    from hopper_gemm.compiler.loader import load
    from hopper_gemm.measure.host import launch_times
    from hopper_gemm.tables.tuned import pick, recorded_entries

    entries = recorded_entries()
    return launch_times(problem, load(pick(entries, problem).config, problem, store), matmul)
