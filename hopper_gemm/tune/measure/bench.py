"""Measurement of a point: check the product, time it in pairs with a baseline, check it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

from hopper_gemm.compiler.loader import IllegalConfigError
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import Chip
from hopper_gemm.tune.limits import least_seconds
from hopper_gemm.tune.measure.arms import Arm, Kernel, Launch, kernel_launch, load_any, seconds_per_launch, touch
from hopper_gemm.tune.measure.baselines import BASELINES
from hopper_gemm.tune.measure.baselines.base import Baseline, BaselineError
from hopper_gemm.tune.measure.baselines.choose import Chosen, Stopwatch, choose, choose_again
from hopper_gemm.tune.measure.correctness import Correctness, poison, same_bits
from hopper_gemm.tune.measure.device import DeviceInfo
from hopper_gemm.tune.measure.protocol import Outcome, Protocol, protocol_dict
from hopper_gemm.tune.measure.timing import TRIES, Timer, Timing
from hopper_gemm.tune.measure.workload import Workload, make_workload
from hopper_gemm.tune.point import Point, Sample
from hopper_gemm.tune.statistics import ALONE, Look, Race, hopeless, speedup

ENERGY_US = 150.0
"""Time of a launch from which on its energy is reported in the isolated context. The spacer's energy is in it, a share
below 3 % there."""

KEPT = 4
"""Loaded kernels that are kept; a kernel's workspace may hold much memory."""


class Round(NamedTuple):
    """A timing of each side, and of the spacer alone in the isolated context."""

    ours: Timing
    baseline: Timing
    spacer: Timing | None

    def samples(self, process: int) -> list[Sample]:
        spacer = None if self.spacer is None else self.spacer.us[0]
        return [Sample(process, *pair, spacer) for pair in zip(self.ours.us, self.baseline.us, strict=True)]


class Laps:
    """Seconds of the steps of a measurement, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def end(self, step: str) -> None:
        """End a step, which began at the end of the previous step."""
        now = perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now


@dataclass
class Scene:
    """The state of a problem that is kept from point to point. Launches are timed on ``workload``, products are checked
    on ``checked``, which has normal data; ``alone`` is the arm of the spacer, and ``baselines`` are chosen by baseline,
    context and regime."""

    workload: Workload
    checked: Workload
    spacer: Launch
    alone: Arm
    baselines: dict[tuple[str, str, str], tuple[Chosen, Arm]] = field(default_factory=dict)

    def arm(self, launch: Launch, seconds: float, context: str) -> Arm:
        """Return an arm in a context; ``seconds`` are those of a launch without spacer."""
        if context == "chained":
            return Arm(launch, self.workload.sets, seconds)
        return Arm(launch, self.workload.sets, seconds + self.alone.seconds, self.spacer)


class Bench:
    """Measures points on a GPU. A process has one bench, which holds the CUDA context and the current problem's
    matrices.

    A config is checked on standard-normal data, whatever data it is timed on: a wrong kernel may still multiply zeros
    right.

    In the isolated context a spacer runs before every launch, in the graphs of both sides. Its own time, from a graph
    of spacers alone in the same round, is subtracted from both: the speedup is the median of the ratios of the
    differences, so its interval carries the noise of all three. Times are without the spacer; clock, power and energy
    are those of launches with spacers, and energy is left out below :data:`ENERGY_US`.

    ``store`` is the folder of compiled kernels, None for the default; ``spacer`` makes the spacer for a number of SMs;
    ``load`` loads the kernel of a config and a problem from the folder.
    """

    def __init__(
        self,
        device: DeviceInfo,
        store: Path | None = None,
        seed: int = 0,
        spacer: Callable[[int], Launch] | None = None,
        load: Callable[[GemmConfig, GemmProblem, Path | None], Kernel] | None = None,
    ) -> None:
        self.device = device
        self._seed = seed
        self._new_spacer = partial(spacer or touch, device.sms)
        self._timer = Timer(device)
        self._scene: Scene | None = None
        # behind a padding of operands that TMA cannot reach, as in matmul
        self._kernel = lru_cache(KEPT)(lambda config, problem: (load or load_any)(config, problem, store))
        self._following: Point | None = None

    def prepare(self, point: Point) -> None:
        """Make the matrices of a problem and load its kernel, before the first measurement."""
        self._scene_of(point)
        if not point.is_baseline:
            self._kernel(point.config, point.problem)

    def measure(
        self,
        point: Point,
        protocol: Protocol,
        *,
        process: int = 0,
        race: Race = ALONE,
        following: Point | None = None,
        finalists: Sequence[str] = (),
    ) -> Outcome:
        """Measure a point: a legal config, or a baseline, which is timed against itself.

        ``race`` says when to drop the config; its figures are then those of that look, and ``pairs`` counts until then.
        The kernel of ``following``, the compiled point that is likely to be measured next, is loaded while the GPU
        works on this one. The baseline's candidate is chosen among the recipes of another process's ``finalists``, or,
        without any, by a search. ValueError if the protocol is not of the point's regime, or the baseline is
        unknown."""
        if protocol_dict(protocol)["regime"] != point.regime:
            raise ValueError(f"a {point.regime} point must be timed by a {point.regime} protocol but got {protocol}")
        library = BASELINES[point.against.partition(":")[0]]  # of ``recorded:DIGEST`` the baseline ``recorded``
        laps = Laps()
        scene, self._following = self._scene_of(point), following
        laps.end("matrices")
        launch, seconds, checked = None, 0.0, None
        if not point.is_baseline:
            kernel = self._kernel(point.config, point.problem)
            laps.end("kernel")
            checked, seconds = checked_twice(kernel, scene.checked)
            if not checked.ok:
                return Outcome("wrong_result", checked.reason or "")
            launch = kernel_launch(kernel)
            laps.end("checks")
        try:
            chosen, baseline = self._baseline(library, scene, point, protocol, finalists)
        except BaselineError as error:
            return Outcome("no_baseline", str(error))
        laps.end("baseline")
        if launch is None:
            launch = chosen.candidate.launch
            seconds = baseline.seconds - (scene.alone.seconds if point.context == "isolated" else 0.0)
        first = scene.workload.sets[0]
        poison(first.ours)
        self._timer.idle()
        ours = scene.arm(launch, seconds, point.context)
        rounds, harm = self._run_race((ours, baseline), scene, point, protocol, race)
        if harm is not None:
            return Outcome("unstable", f"{harm} in each of {TRIES} tries")
        laps.end("pairs")
        if checked is not None:
            after = scene.workload.check(first.ours)
            self._timer.idle()
            if not after.ok:
                return Outcome("wrong_result", f"after timing: {after.reason}")
        samples = tuple(sample for timed in rounds for sample in timed.samples(process))
        if any(min(sample.ours_us, sample.baseline_us) <= (sample.spacer_us or 0) for sample in samples):
            return Outcome("unstable", "the spacer alone took as long as with a launch behind it")
        figures = self._figures(point, rounds, samples, chosen)
        least = 1e6 * least_seconds(point.problem, Chip(self.device.sms, memory_rate=self.device.memory_rate))
        if (us := min(figures["time_us"], figures["baseline_us"])) < least:
            return Outcome("unstable", f"{us:.2f} us are less than the {least:.2f} us in which operands can be read")
        if checked is not None:
            figures["rel_err"] = checked.rel_err
        laps.end("checks")
        recipes = tuple(finalist.recipe for finalist in chosen.finalists if finalist.recipe)
        return Outcome("ok", "", figures, samples, chosen.candidate.recipe, recipes, laps.seconds)

    def _scene_of(self, point: Point) -> Scene:
        """Return the scene of a point; a new one if problem or data differ from the last point's."""
        key = point.problem, point.data
        if self._scene is None or (self._scene.workload.problem, self._scene.workload.data) != key:
            self._scene = None
            torch.cuda.empty_cache()
            workload = make_workload(point.problem, self.device.l2_bytes, self._seed, point.data)
            checked = workload if point.data == "normal" else make_workload(point.problem, 0, self._seed)
            spacer = self._new_spacer()  # it keeps pieces of these matrices
            alone = Arm(spacer, workload.sets, seconds_per_launch(spacer, workload.sets))
            self._scene = Scene(workload, checked, spacer, alone)
        return self._scene

    def _baseline(
        self, library: Baseline, scene: Scene, point: Point, protocol: Protocol, finalists: Sequence[str]
    ) -> tuple[Chosen, Arm]:
        """Return the baseline's fastest candidate in this context and regime, chosen at its first use, and its arm."""
        key = point.against, point.context, point.regime
        if key not in scene.baselines:
            arm = partial(scene.arm, context=point.context)
            watch = Stopwatch(scene.workload, protocol, self._timer, arm)
            if finalists:
                restored = [library.restore(scene.workload, recipe) for recipe in finalists]
                chosen = choose_again(restored, watch, library.care)
            else:
                chosen = choose(library.candidates(scene.workload), watch, library.care)
            launch = chosen.candidate.launch
            scene.baselines[key] = chosen, arm(launch, seconds_per_launch(launch, scene.workload.sets))
        return scene.baselines[key]

    def _run_race(
        self, arms: tuple[Arm, Arm], scene: Scene, point: Point, protocol: Protocol, race: Race
    ) -> tuple[list[Round], str | None]:
        """Take rounds to the end, or to the look at which the config is dropped; return them, and the event that voided
        them, if any."""
        kept: list[Round] = []
        spacer = scene.alone if point.context == "isolated" else None
        for look in (*race.looks, Look(protocol.pairs)):
            wanted = min(look.pairs, protocol.pairs) - len(kept)
            if wanted <= 0:
                continue
            rounds, harm = self._take_rounds(arms, spacer, protocol, wanted, len(kept))
            if harm is not None:
                return rounds, harm
            kept += rounds
            ratio = speedup([sample for timed in kept for sample in timed.samples(0)])
            if race.leader is not None and hopeless(ratio, race.leader, race.noise + look.margin):
                break
        return kept, None

    def _take_rounds(
        self, arms: tuple[Arm, Arm], spacer: Arm | None, protocol: Protocol, count: int, before: int
    ) -> tuple[list[Round], str | None]:
        """Take rounds in the order A B, B A, A B, ...; take them again if the GPU was slowed down."""
        for _ in range(TRIES):
            rounds = []
            with self._timer.telemetry(protocol) as telemetry:
                for number in range(before, before + count):
                    timed = partial(self._timer.time, protocol=protocol, telemetry=telemetry, meanwhile=self._meanwhile)
                    first, second = arms if number % 2 == 0 else arms[::-1]
                    before_spacer = timed(first)
                    alone = None if spacer is None else self._timer.time(spacer, protocol.of_spacer, telemetry)
                    sides = (before_spacer, timed(second))
                    ours, baseline = sides if number % 2 == 0 else sides[::-1]
                    rounds.append(Round(ours, baseline, alone))
            if telemetry.harm is None:
                break
        return rounds, telemetry.harm

    def _meanwhile(self) -> None:
        """Load the following point's kernel while the GPU works; errors are reported when that point is measured."""
        point, self._following = self._following, None
        if point is not None and not point.is_baseline:
            with suppress(IllegalConfigError):
                self._kernel(point.config, point.problem)

    def _figures(
        self, point: Point, rounds: Sequence[Round], samples: Sequence[Sample], chosen: Chosen
    ) -> dict[str, Any]:
        """Return figures by column of the results schema, without those that have no value."""
        ratio, flop = speedup(samples), point.problem.flop
        time_us, baseline_us = (median(side) for side in zip(*(sample.bare_us for sample in samples), strict=True))
        tflops, words = flop / time_us / 1e6, point.problem.in_words.flop / time_us / 1e6
        figures: dict[str, Any] = {
            "speedup": ratio.median,
            "speedup_low": ratio.low,
            "speedup_high": ratio.high,
            "pairs": ratio.pairs,
            "processes": 1,
            "time_us": time_us,
            "baseline_us": baseline_us,
            "tflops": tflops,
            "sm_mhz": median(timed.ours.sm_mhz for timed in rounds),
            "baseline_sm_mhz": median(timed.baseline.sm_mhz for timed in rounds),
            "choice": chosen.candidate.label,
            "candidates": chosen.of,
            "baseline_rel_err": chosen.rel_err,
        }
        peak = hopper.FLOP_PER_CLOCK_PER_SM * self.device.sms * figures["sm_mhz"] / 1e6
        figures["tensor_active"] = 100 * words / peak
        if point.context == "isolated":
            figures["spacer_us"] = median(sample.spacer_us or 0.0 for sample in samples)
        if point.context == "chained" or time_us >= ENERGY_US:
            for side, name in (("", "ours"), ("baseline_", "baseline")):
                watts = [timing.watts for timed in rounds if (timing := getattr(timed, name)).watts is not None]
                if len(watts) == len(rounds):
                    mean, us = sum(watts) / len(watts), median(getattr(sample, f"{name}_us") for sample in samples)
                    figures |= {f"{side}watts": mean, f"{side}pj_per_flop": mean * us * 1e6 / flop}
        return figures


def checked_twice(kernel: Kernel, workload: Workload) -> tuple[Correctness, float]:
    """Run a kernel twice into poisoned outputs, and check product and equal bits; return also rough seconds of a
    launch."""
    first = workload.sets[0]
    poison(first.ours)
    kernel_launch(kernel)(first)
    result = workload.check(first.ours)
    again = replace(first, ours=torch.empty_like(first.ours))
    poison(again.ours)
    seconds = seconds_per_launch(kernel_launch(kernel), (again,))
    if result.ok and not same_bits(first.ours, again.ours):
        result = replace(result, reason="a second run gave other bits")
    return result, seconds
