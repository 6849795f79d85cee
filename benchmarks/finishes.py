"""Kernels with a finish, each one step away from the one that is; ``benchmarks.linear`` times what a step is worth."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import e as euler
from math import log2
from pathlib import Path

from cutlass import Int32

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import LoadedKernel, compile_into, launcher_of
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.kernel.consumer import Mainloop, Share
from hopper_gemm.kernel.cta import CtaTask
from hopper_gemm.kernel.epilogue import ConsumerEpilogue
from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.kernel.steps import ActivationStep, Chunk, Functions, Step
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem

Job = tuple[str, Kernel, GemmProblem, Epilogue]
"""A variant of a kernel on a problem."""


class Ordered(HopperGemm):
    """Consumers end tiles in order from another stage on."""

    stages = 0

    def _mainloop(self, task: CtaTask, share: Share, epilogue: ConsumerEpilogue) -> Mainloop:
        loop, config = super()._mainloop(task, share, epilogue), self.config
        if loop.order is None or not self.stages:
            return replace(loop, order=None)
        return replace(loop, order=replace(loop.order, stages=min(self.stages, config.stages - config.stagger)))


class OrderedByOne(Ordered):
    stages = 1


class OrderedByTwo(Ordered):
    stages = 2


class OrderedByFour(Ordered):
    stages = 4


class Kept(HopperGemm):
    """Accumulators are kept through the epilogue: the loop of the plain kernel."""

    def _mainloop(self, task: CtaTask, share: Share, epilogue: ConsumerEpilogue) -> Mainloop:
        return replace(super()._mainloop(task, share, epilogue), peeled=False, order=None)


class Exact(HopperGemm):
    """Activations as exact as fp32 output asks."""

    def _steps(self, task: CtaTask, consumer: Int32) -> tuple[Step, ...]:
        steps = super()._steps(task, consumer)
        return tuple(replace(step, out="fp32") if isinstance(step, ActivationStep) else step for step in steps)


class FormerGelu(ActivationStep):
    """Gelu by a polynomial in 1 / (1 + 0.34 * abs(z)), times exp(-z * z / 2)."""

    def value(self, values, chunk: Chunk, first: int, count: int):
        """The function's values."""
        size = Functions.absolute(values)
        t = Functions.reciprocal(size * 0.34 + 1.0)
        tail = t * 0.04573285369037295 - 0.2047509697546278
        for coefficient in (0.27203906899134056, -0.03848104266420396, 0.16068604796768157, 0.12862918475671636):
            tail = tail * t + coefficient
        tail = (tail * t + 0.13614475596860826) * t
        return Functions.positive(values) - size * (tail * Functions.exp2(values * values * (-log2(euler) / 2)))


class Former(Kept):
    """Kept accumulators, and the former gelu."""

    def _steps(self, task: CtaTask, consumer: Int32) -> tuple[Step, ...]:
        steps, gelu = super()._steps(task, consumer), self.finish.activation == "gelu"
        return tuple(FormerGelu(**vars(step)) if gelu and isinstance(step, ActivationStep) else step for step in steps)


VARIANTS = {
    "not in order": Ordered,
    "in order by 1": OrderedByOne,
    "in order by 2": OrderedByTwo,
    "in order by 4": OrderedByFour,
    "exact as for fp32": Exact,
    "not in order, kept": Kept,
    "as it was": Former,
}
"""Variants by name: of the order in which consumers end tiles, of what is kept, of the polynomial."""


def varied(kernel: Kernel, name: str) -> Kernel:
    """The kernel as a variant builds it."""
    built_by = type(f"{VARIANTS[name].__name__}Kernel", (Kernel,), {"builder": f"{__name__}:{VARIANTS[name].__name__}"})
    return built_by.like(kernel)


def compiled(job: Job, folder: Path) -> tuple[Path, CubinReport]:
    """Compile a variant in this process: its object file, and the compiler's report."""
    name, kernel, problem, finish = job
    store, wanted = KernelStore(folder), KernelId.of(varied(kernel, name), problem, finish=finish)
    report = compile_into(store, wanted)
    return store.object_file(wanted), report


def compiled_all(
    jobs: Sequence[Job], folder: Path, processes: int | None = None
) -> dict[Job, tuple[Path, CubinReport]]:
    """Compile variants on all cores; those that spill or do not compile are left out, with a line."""
    found = {}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job, coming in {job: pool.submit(compiled, job, folder) for job in dict.fromkeys(jobs)}.items():
            try:
                path, report = coming.result()
            except Exception as error:
                print(f"{job[0]} of {job[1]}: {type(error).__name__}", flush=True)
                continue
            if report.spills:
                print(f"{job[0]} of {job[1]}: spills", flush=True)
            else:
                found[job] = path, report
    return found


def loaded(job: Job, built: tuple[Path, CubinReport]) -> LoadedKernel:
    """A compiled variant, loaded for the current device."""
    path, report = built
    return LoadedKernel.of(resolve(job[1]), report, launcher_of(path))
