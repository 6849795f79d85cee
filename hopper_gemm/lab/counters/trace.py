"""Time stamps of a traced kernel: the steps of each role of a CTA, by its SM's clock.

The traced kernel is another binary than the timed kernel: one thread of each role of the first CTA stores the clock at
every step of the CTA's first tile. Its order of events is that of the timed kernel; its times are a little longer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from hopper_gemm.compiler.child import Child, Handler, Reply
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.files import write_sealed, write_whole
from hopper_gemm.tune.study.provenance import PROVENANCE, fresh
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.space import noted_rungs, points, rungs
from hopper_gemm.tune.study.spec import read_spec

if TYPE_CHECKING:
    from hopper_gemm.compiler.loader import LoadedKernel
    from hopper_gemm.tune.measure.workload import MatrixSet

ROLES = ("producer", "consumer 0", "consumer 1", "consumer 2", "consumer 3")
ROLE_MOMENTS = ("entry", "set_up", "first", "fed", "stored", "left")
STAGE_MOMENTS = ("asked", "had", "issued", "released")
ROLE_WORDS, STAGES = 8, 128
"""Words that a traced kernel writes for each role: those of the role, then the moments of its stages."""

TRACE = "hopper_gemm.lab.ladder.meter:Trace"
"""The kernel's observer."""

WRAP = 2**32
"""A clock has 32 bits."""

MOMENTS = "moments.csv"
POINT_SECONDS = 60.0

LAUNCHES = 3
"""Launches of which the last is kept: by then instructions and descriptors are in the caches."""


class Moment(NamedTuple):
    """A step of a role."""

    role: str  # of ROLES
    stage: int  # of the tile, from 0; -1 for a step of the role itself
    # of ROLE_MOMENTS: the kernel entered, its barriers set up, the first tile begun, its last stage multiplied, C
    # stored, the role left; or of STAGE_MOMENTS: a stage asked for, had, its loads issued or its wgmma committed, and
    # an older stage released
    moment: str
    clocks: int  # SM clocks since the CTA's first role entered


def moments_of(words: np.ndarray) -> list[Moment]:
    """Return the moments of a traced launch, role by role, in the order of a role's steps, from (roles, words) of 32
    bits, read as unsigned; the clock may wrap once, and words never written are 0."""
    clocks = words.astype(np.int32).view(np.uint32).astype(np.int64)
    entries = [int(entry) for entry in clocks[:, 0] if entry]
    if not entries:
        return []
    late = [(entry - entries[0] + WRAP // 2) % WRAP for entry in entries]
    start = entries[late.index(min(late))]
    moments = []
    for role, row in zip(ROLES, clocks, strict=False):
        at = [(-1, moment, row[i]) for i, moment in enumerate(ROLE_MOMENTS)]
        of_stages = row[ROLE_WORDS:].reshape(-1, len(STAGE_MOMENTS))
        at += [(k, name, of_stages[k, i]) for k in range(len(of_stages)) for i, name in enumerate(STAGE_MOMENTS)]
        moments += [Moment(role, k, name, (int(clock) - start) % WRAP) for k, name, clock in at if clock]
    return moments


def read_trace(kernel: LoadedKernel, operands: MatrixSet) -> np.ndarray:
    """Launch a traced kernel once; return (roles, words) of int32."""
    import torch

    shape = (1, len(ROLES), ROLE_WORDS + len(STAGE_MOMENTS) * STAGES)
    words = torch.zeros(shape, dtype=torch.int32, device="cuda")
    kernel(operands.a, operands.b, operands.ours, readings=words)
    return words[0].cpu().numpy()


def tracing(store: Path | None, seed: int) -> Handler:
    """Return the handler of a process that traces points: it checks a point's product and returns its moments."""
    from hopper_gemm.compiler.loader import load
    from hopper_gemm.tune.measure.correctness import poison
    from hopper_gemm.tune.measure.device import describe_current
    from hopper_gemm.tune.measure.workload import make_workload

    def handle(point: Point) -> list[Moment]:
        workload = make_workload(point.problem, describe_current().l2_bytes, seed)
        kernel = load(point.config, point.problem, store, TRACE)
        first, rotation = workload.sets[0], cycle(workload.sets)
        poison(first.ours)
        read_trace(kernel, first)
        result = workload.check(first.ours)
        if not result.ok:
            raise ArithmeticError(f"traced, the product is wrong: {result.reason}")
        return moments_of([read_trace(kernel, next(rotation)) for _ in range(LAUNCHES)][-1])

    return handle


def trace(
    target: Path,
    out: Path,
    gpu: GpuId,
    say: Callable[[str], None] = lambda text: None,
    factory: Callable[[Path | None, int], Handler] = tracing,
) -> Path:
    """Trace every rung of a ladder, from a sweep's file, on each of its problems; return the path of the table of
    moments, which replaces an earlier one in the folder. ``factory`` makes the handler of the process that traces.

    Raises:
        SpecError, ResultsError: the target has no rungs, or no rung could be traced.
    """
    spec = read_spec(target)
    if not spec.rungs:
        raise ResultsError(f"{target} has no [[rungs]]; name a sweep that has, such as sweeps/sources/timeline.toml")
    names = {config: section.name for section, config in rungs(spec)}
    moments: list[tuple[Any, ...]] = []
    traced, failed = 0, ""
    with closing(Child(factory, None, spec.seed, environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})) as child:
        for point, why in points(spec).items():
            name, problem = names[point.config], point.problem
            reply = Reply("raised", error=why) if why else child.ask(point, POINT_SECONDS)
            if reply.kind != "answer":
                failed = f"{name}, {problem}: {reply.error}"
                say(failed)
                continue
            moments += [(name, problem.m, problem.n, problem.k, *moment) for moment in reply.value]
            traced += 1
            say(f"{name}, {problem}: {len(reply.value)} moments")
    if not traced:
        raise ResultsError(f"nothing could be traced: {failed}")
    provenance: dict[str, Any] = {"spec": spec.as_dict(), "rungs": noted_rungs(spec)}
    provenance |= {"gpu": {"name": gpu.name, "uuid": gpu.uuid}, "kernel": kernel_digest(), "seed": spec.seed}
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(out / PROVENANCE, fresh(spec.name, spec.question, "measured", spec_digest=spec.digest, **provenance))
    table = pd.DataFrame(moments, columns=["rung", "m", "n", "k", *Moment._fields])
    write_whole(out / MOMENTS, table.to_csv(index=False, lineterminator="\n"))
    return out / MOMENTS
