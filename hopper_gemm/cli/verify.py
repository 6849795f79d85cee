"""``hopper-gemm verify``: never wrong, never stuck, shown on drawn pairs and under load."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, command, saying
from hopper_gemm.tune.study.files import write_whole

OUT = Path("results/verification")

PROOFS = "verify-cpu.csv"
"""Table of damaged and killed runs; the page beside it sums it up."""


@command
def verify(
    pairs: Annotated[int, typer.Option(min=0, help="Drawn pairs of config and problem.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn pairs.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0, help="After so long nothing else is begun.")] = None,
    gpus: options.Gpus = "0",
    out: Annotated[Path, typer.Option(help="Folder of the rows; a run goes on where its rows stop.")] = OUT,
    report: Annotated[Path | None, typer.Option(help="Page to write. Default: report.md in the folder.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of compiled kernels.")] = None,
    load: Annotated[bool, typer.Option(help="Also every kind of kernel under load.")] = True,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Compile what is needed; needs no GPU.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Only the protocols' models; needs no GPU.")] = False,
    as_json: options.Json = False,
) -> None:
    """Verify the kernel on drawn problems and under load.

    With --cpu the models of its protocols run in every order of events, which needs no GPU. The exit code is 1 if
    anything failed.
    """
    from hopper_gemm.compiler.store import default_store
    from hopper_gemm.lab.verify.drawing import pairs as drawn
    from hopper_gemm.lab.verify.harness import Harness, Job, compile_all
    from hopper_gemm.lab.verify.kinds import load_jobs
    from hopper_gemm.lab.verify.protocols import verify_protocols, wanted
    from hopper_gemm.lab.verify.report import page
    from hopper_gemm.lab.verify.rows import latest, read_rows
    from hopper_gemm.tune.measure.device import find_hopper

    say, kept, path = saying(as_json), store or default_store(), report or out / "report.md"
    if report is not None and not report.parent.is_dir():
        raise ValueError(f"--report must lie in a folder that exists but got {report}; make {report.parent} first")
    boards = [] if cpu or compile_only else [find_hopper(index) for index in options.gpus_of(gpus)]
    loads, alone = list(load_jobs()), list(map(Job, drawn(seed, pairs)))
    if cpu:
        failed = verify_protocols(out, len(os.sched_getaffinity(0)), say)
    else:
        jobs = [*(loads if load else []), *alone]
        if compile_only:
            kernels = (kernel for job in jobs for kernel in job.kernels)
            raise typer.Exit(CHECK_FAILED if compile_all(kernels, kept, say) else 0)
        from hopper_gemm.lab.verify.load import answering

        harness = Harness(out, kept, boards, answering, say)
        harness.run(jobs, seconds)
        failed = harness.failed
    rows, proofs = read_rows(out), path.with_name(PROOFS)
    told = list(csv.DictReader(proofs.read_text().splitlines())) if proofs.exists() else []
    write_whole(path, page(rows, [*(job.row() for job in (*alone, *loads)), *wanted()], told))
    rows = list(latest(rows).values())
    if as_json:
        print(json.dumps({"rows": len(rows), "failed": failed, "by_status": Counter(row.status for row in rows)}))
    if failed:
        raise typer.Exit(CHECK_FAILED)
