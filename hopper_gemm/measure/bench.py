"""One config on one problem in one regime: checked, timed against cuBLAS or another baseline, checked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch

from hopper_gemm.compiler.loader import load
from hopper_gemm.measure.arms import (
    Arm,
    Clock,
    Kernel,
    Launch,
    cublas_launch,
    kernel_launch,
    make_arm,
    seconds_per_launch,
)
from hopper_gemm.measure.baselines.base import Baseline
from hopper_gemm.measure.baselines.choose import Chosen, GpuStopwatch, choose
from hopper_gemm.measure.correctness import Correctness, check, poison
from hopper_gemm.measure.device import DeviceInfo, Telemetry
from hopper_gemm.measure.regimes import Burst, Protocol, Steady, Timing, time_burst, time_steady
from hopper_gemm.measure.statistics import Pair, Ratio, speedup
from hopper_gemm.measure.workload import Workload, make_workload
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import filled_up
from hopper_gemm.model.problem import GemmProblem

TRIES = 3
"""How often a timing that something voided is taken again before it is called unstable."""


@dataclass(frozen=True)
class Figures:
    """What was measured of a config that works. Where it was held against another baseline, that one stands for cuBLAS.

    Args:
        ratio: speedup over cuBLAS.
        time_us, cublas_us: median microseconds per launch.
        tflops: 10^12 floating-point operations per second.
        sm_mhz, cublas_sm_mhz: mean SM clock while ours and while cuBLAS ran.
        watts, cublas_watts: mean power; None in a burst, which is shorter than a step of NVML's counter.
        pj_per_flop, cublas_pj_per_flop: energy of one operation; None without power.
        tensor_active: percent of the tensor cores' peak at that clock.
        rel_err: relative Frobenius error against fp32.
        samples: the pairs behind the ratio.
    """

    ratio: Ratio
    time_us: float
    cublas_us: float
    tflops: float
    sm_mhz: float
    cublas_sm_mhz: float
    watts: float | None
    cublas_watts: float | None
    pj_per_flop: float | None
    cublas_pj_per_flop: float | None
    tensor_active: float
    rel_err: float
    samples: tuple[Pair, ...]


@dataclass(frozen=True)
class Outcome:
    """A status of the results schema, why, and the figures where it is ``"ok"``."""

    status: str
    reason: str = ""
    figures: Figures | None = None


@dataclass
class Bench:
    """A GPU, its clock and the matrices of the problem at hand. One per process; it holds the CUDA context.

    A config is checked on standard-normal data whatever it is timed on: a product of zeros is right by accident.

    Args:
        device: the GPU.
        store: folder of compiled kernels, or None for the default.
        seed: of the matrices.
    """

    device: DeviceInfo
    store: Path | None = None
    seed: int = 0
    _workload: Workload | None = None
    _checked: Workload | None = None
    _baselines: dict[Protocol, Arm] = field(default_factory=dict)
    _rivals: dict[tuple[str, Protocol], tuple[Arm, Chosen]] = field(default_factory=dict)
    _last: tuple[tuple[GemmConfig, Protocol], Arm, Correctness] | None = None
    """The config at hand, so that another look at it checks and captures nothing anew."""

    def __post_init__(self) -> None:
        self._clock = Clock(self.device.sms)
        self._idle_since: float | None = None

    def cell(
        self, config: GemmConfig, problem: GemmProblem, protocol: Protocol, process: int = 0, data: str = "normal"
    ) -> Outcome:
        """Measure one config.

        Args:
            config: a legal config.
            problem: what to multiply.
            protocol: how to time; its type says in which regime.
            process: number of this process, noted with each pair.
            data: what the matrices hold while they are timed.
        """
        return self._cell(config, problem, protocol, process, data, lambda: self._baseline(protocol))

    def versus(
        self, config: GemmConfig, problem: GemmProblem, protocol: Protocol, baseline: Baseline, process: int = 0
    ) -> tuple[Outcome, Chosen | None]:
        """Measure one config against a baseline, on normal data.

        Args:
            config: a legal config.
            problem: what to multiply.
            protocol: how to time; its type says in which regime.
            baseline: the best of its candidates is chosen when it is first met with a problem and a protocol.
            process: number of this process, noted with each pair.

        Returns:
            The outcome, its figures of cuBLAS being those of the baseline; and what the baseline ran, None where our
            product was wrong and it was not asked.

        Raises:
            BaselineError: the baseline cannot run the problem.
        """
        outcome = self._cell(config, problem, protocol, process, "normal", lambda: self._rival(baseline, protocol)[0])
        _, chosen = self._rivals.get((baseline.name, protocol), (None, None))
        return outcome, chosen

    def prepare(self, config: GemmConfig, problem: GemmProblem, data: str = "normal") -> None:
        """Do ahead what the first request would wait for: the matrices of a problem, and what loads a kernel."""
        self._prepare(problem, data)
        load(config, problem, self.store)

    def control(self, problem: GemmProblem, protocol: Protocol, process: int = 0, data: str = "normal") -> Outcome:
        """cuBLAS against itself by the same protocol on the same data: the noise floor of the run."""
        self._prepare(problem, data)
        return self._compare(self._arm(cublas_launch, protocol), self._baseline(protocol), protocol, process, None)

    # -----------------------------------------------------------------------------------------

    def _cell(
        self,
        config: GemmConfig,
        problem: GemmProblem,
        protocol: Protocol,
        process: int,
        data: str,
        theirs: Callable[[], Arm],
    ) -> Outcome:
        checked, workload = self._prepare(problem, data)
        key = config, _one_pair(protocol)
        if self._last is None or self._last[0] != key:
            self._last = None
            kernel = self._kernel(config, problem)
            before = self._check(kernel, checked)
            if not before.ok:
                return Outcome("wrong_result", before.reason or "")
            self._last = key, self._arm(kernel_launch(kernel), protocol, workload.sets[0].ours), before
        else:
            poison(workload.sets[0].ours)
            self._idle()
        _, arm, before = self._last
        outcome = self._compare(arm, theirs(), protocol, process, before)
        after = check(workload.sets[0].ours, workload.reference, problem.k)
        if not after.ok:
            return Outcome("wrong_result", f"after timing: {after.reason}")
        return outcome

    def _kernel(self, config: GemmConfig, problem: GemmProblem) -> Kernel:
        """What is launched: the kernel, or where TMA cannot reach the matrices what matmul does, copies and all."""
        filled = filled_up(problem)
        kernel = load(config, filled, self.store)
        if filled == problem:
            return kernel
        from hopper_gemm import matmul

        def through_copies(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
            matmul(a, b.t(), out=out, config=config)

        return through_copies

    def _prepare(self, problem: GemmProblem, data: str) -> tuple[Workload, Workload]:
        """The matrices to check on and those to time on: the same where the data is normal."""
        if self._workload is None or (self._workload.problem, self._workload.data) != (problem, data):
            self._checked, self._workload, self._baselines, self._rivals, self._last = None, None, {}, {}, None
            torch.cuda.empty_cache()
            self._workload = make_workload(problem, self.device.l2_bytes, self.seed, data)
            normal = data == "normal"
            self._checked = self._workload if normal else make_workload(problem, l2_bytes=0, seed=self.seed)
        assert self._checked is not None
        return self._checked, self._workload

    def _baseline(self, protocol: Protocol) -> Arm:
        alike = _one_pair(protocol)
        if alike not in self._baselines:
            self._baselines[alike] = self._arm(cublas_launch, protocol)
        return self._baselines[alike]

    def _rival(self, baseline: Baseline, protocol: Protocol) -> tuple[Arm, Chosen]:
        key = baseline.name, protocol
        if key not in self._rivals:
            assert self._workload is not None
            watch = GpuStopwatch(self._workload, protocol, self._clock, self.device.uuid)
            best, chosen = choose(baseline.candidates(self._workload), watch)
            self._rivals[key] = self._arm(best.launch, protocol), chosen
        return self._rivals[key]

    def _arm(self, launch: Launch, protocol: Protocol, poisoned: torch.Tensor | None = None) -> Arm:
        """Capture a side, the GPU at rest meanwhile; before that, have an output poisoned."""
        workload = self._workload
        assert workload is not None
        seconds = seconds_per_launch(launch, workload)
        if poisoned is not None:
            poison(poisoned)
        self._idle()
        if isinstance(protocol, Burst):
            return make_arm(launch, workload, protocol.warm, protocol.timed, seconds)
        return make_arm(launch, workload, protocol.graph, protocol.graph, seconds)

    def _idle(self) -> None:
        """Wait until the GPU has nothing to do, and remember since when."""
        torch.cuda.synchronize()
        self._idle_since = time.perf_counter()

    def _check(self, kernel: Kernel, workload: Workload) -> Correctness:
        """Run twice into poisoned output: right, and the same bits both times."""
        first = workload.sets[0]
        poison(first.ours)
        kernel(first.a, first.b, first.ours)
        found = check(first.ours, workload.reference, workload.problem.k)
        if not found.ok:
            return found
        again = torch.empty_like(first.ours)
        poison(again)
        kernel(first.a, first.b, again)
        if not torch.equal(first.ours.view(torch.int16), again.view(torch.int16)):
            return Correctness(found.rel_err, 0, 0, "a second run gave other bits")
        return found

    def _compare(
        self, ours: Arm, theirs: Arm, protocol: Protocol, process: int, checked: Correctness | None
    ) -> Outcome:
        for _ in range(TRIES):
            with Telemetry(self.device.uuid, energy=isinstance(protocol, Steady)) as telemetry:
                timings = [
                    self._pair(ours, theirs, protocol, telemetry, ours_first=i % 2 == 0) for i in range(protocol.pairs)
                ]
            if telemetry.harm is None:
                return Outcome("ok", "", self._figures(timings, process, checked))
        return Outcome("unstable", f"{telemetry.harm} in each of {TRIES} tries")

    def _pair(
        self, ours: Arm, theirs: Arm, protocol: Protocol, telemetry: Telemetry, ours_first: bool
    ) -> tuple[Timing, Timing]:
        """Time both sides next to each other; ours is returned first whichever ran first."""

        def timed(arm: Arm) -> Timing:
            if isinstance(protocol, Steady):
                return time_steady(arm, protocol, self._clock, telemetry)
            timing = time_burst(arm, protocol, self._clock, self._idle_since, telemetry.look)
            self._idle()
            return timing

        if ours_first:
            first = timed(ours)
            return first, timed(theirs)
        second = timed(theirs)
        return timed(ours), second

    def _figures(self, timings: list[tuple[Timing, Timing]], process: int, checked: Correctness | None) -> Figures:
        assert self._workload is not None
        flop = self._workload.problem.flop
        pairs = tuple(
            Pair(process, our_us, their_us)
            for ours, theirs in timings
            for our_us, their_us in zip(ours.us, theirs.us, strict=True)
        )
        time_us, cublas_us = median(pair.ours_us for pair in pairs), median(pair.cublas_us for pair in pairs)
        sm_mhz, cublas_sm_mhz = (median(pair[side].sm_mhz for pair in timings) for side in (0, 1))
        watts, cublas_watts = (_mean([pair[side].watts for pair in timings]) for side in (0, 1))
        tflops = flop / time_us / 1e6
        peak = hopper.FLOP_PER_CLOCK_PER_SM * self.device.sms * sm_mhz / 1e6
        return Figures(
            ratio=speedup(pairs),
            time_us=time_us,
            cublas_us=cublas_us,
            tflops=tflops,
            sm_mhz=sm_mhz,
            cublas_sm_mhz=cublas_sm_mhz,
            watts=watts,
            cublas_watts=cublas_watts,
            pj_per_flop=None if watts is None else watts * time_us * 1e6 / flop,
            cublas_pj_per_flop=None if cublas_watts is None else cublas_watts * cublas_us * 1e6 / flop,
            tensor_active=100 * tflops / peak,
            rel_err=float("nan") if checked is None else checked.rel_err,
            samples=pairs,
        )


def _one_pair(protocol: Protocol) -> Protocol:
    """What an arm depends on: not how often it is timed."""
    return replace(protocol, pairs=1)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
