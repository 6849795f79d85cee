"""Tracing the kernels of a sweep: a table of moments beside its provenance."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.child import Child, Handler, Reply
from hopper_gemm.lab.counters.trace import Moment, tracing
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.files import write_sealed, write_whole
from hopper_gemm.tune.study.provenance import PROVENANCE, fresh
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.space import noted_rungs, points, rungs
from hopper_gemm.tune.study.spec import read_spec

MOMENTS = "moments.csv"
POINT_SECONDS = 60.0


def trace(
    target: Path,
    out: Path,
    gpu: GpuId,
    say: Callable[[str], None] = lambda text: None,
    factory: Callable[[Path | None, int], Handler] = tracing,
) -> Path:
    """Trace every rung of a ladder on each of its problems; return the path of the table of moments.

    Args:
        target: a sweep's file with rungs, whose names stand in the table.
        out: folder for the table; an earlier table in it is replaced.
        gpu: GPU of the launches.
        say: takes a line for each kernel.
        factory: makes the handler of the process that traces.

    Raises:
        SpecError, ResultsError: the target has no rungs, or no rung could be traced.
    """
    spec = read_spec(target)
    if not spec.rungs:
        raise ResultsError(f"{target} has no [[rungs]]; name a sweep that has, such as sweeps/archive/timeline.toml")
    names = {config: section.name for section, config in rungs(spec)}
    child = Child(factory, None, spec.seed, environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("rung", "m", "n", "k", *Moment._fields))
    traced, failed = 0, ""
    try:
        for point, why in points(spec).items():
            name, problem = names[point.config], point.problem
            reply = Reply("raised", error=why) if why else child.ask(point, POINT_SECONDS)
            if reply.kind != "answer":
                failed = f"{name}, {problem}: {reply.error}"
                say(failed)
                continue
            writer.writerows((name, problem.m, problem.n, problem.k, *moment) for moment in reply.value)
            traced += 1
            say(f"{name}, {problem}: {len(reply.value)} moments")
    finally:
        child.close()
    if not traced:
        raise ResultsError(f"nothing could be traced: {failed}")
    provenance: dict[str, Any] = {"spec": spec.as_dict(), "rungs": noted_rungs(spec)}
    provenance |= {"gpu": {"name": gpu.name, "uuid": gpu.uuid}, "kernel": kernel_digest(), "seed": spec.seed}
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(out / PROVENANCE, fresh(spec.name, spec.question, "measured", spec_digest=spec.digest, **provenance))
    write_whole(out / MOMENTS, file.getvalue())
    return out / MOMENTS
