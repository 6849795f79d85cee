"""``python -m tests.verify``: never wrong, never stuck, shown on drawn pairs and under load."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, command, entry, saying
from hopper_gemm.tune.study.files import write_whole

if TYPE_CHECKING:
    from hopper_gemm.tune.measure.device import GpuId

OUT = Path("results/verification")

INVARIANCE = OUT / "batch-invariance"
"""Folder of what ``--batch-invariant`` finds."""

PROOFS = "verify-cpu.csv"
"""Table of damaged and killed runs; it lies beside the rows."""

DAMAGES, FAULTS = "damages.csv", "mutants.jsonl"
"""Tables of ``benchmarks.damages`` and ``benchmarks.mutants``; they lie there too."""

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@partial(command, commands=app)
def verify(
    pairs: Annotated[
        int,
        typer.Option(
            min=0, help="Drawn pairs of config and problem; three of FP8 and three of groups besides for each ten."
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn pairs.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0, help="After so long nothing else is begun.")] = None,
    gpus: options.Gpus = "0",
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder of the rows; a run goes on where its rows stop. Default: {OUT}, or a folder in it."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Page to write. Default: report.md in the folder.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of compiled kernels.")] = None,
    load: Annotated[bool, typer.Option(help="Also every kind of kernel under load.")] = True,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Compile what is needed; needs no GPU.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Only the protocols' models; needs no GPU.")] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Instead compare rows across batches, bit by bit.")
    ] = False,
    fixed: Annotated[
        str | None, typer.Option(help="Only note what fixed the failures that stand, a commit or a sentence.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Verify the kernel on drawn problems and under load.

    With --cpu the models of its protocols run in every order of events, which needs no GPU. With --batch-invariant the
    kernels of batch-invariant products run on drawn rows of a batch, and must give the bits of the whole batch. The
    exit code is 1 as long as a failure of these sources stands, of this run or of an earlier one.
    """
    if batch_invariant:
        if cpu or fixed:
            raise ValueError("--batch-invariant compares kernels on a GPU; leave out --cpu and --fixed")
        _verify_invariance(out or INVARIANCE, report, store, seed, seconds, gpus, compile_only, as_json)
        return
    out = out or OUT
    from hopper_gemm.compiler.store import default_store
    from hopper_gemm.tune.measure.device import find_hopper
    from tests.verify.drawing import fp8_pairs, gated_pairs, grouped_pairs
    from tests.verify.drawing import pairs as drawn
    from tests.verify.harness import Harness, VerifyJob, compile_all, suspects
    from tests.verify.kinds import load_jobs
    from tests.verify.protocols import verify_protocols
    from tests.verify.protocols import wanted as wanted_models
    from tests.verify.rows import FIXED, Rows, VerifyRow, judged, read_rows
    from tests.verify.summary import page, standing

    say, kept, path = saying(as_json), store or default_store(), report or out / "report.md"
    if report is not None and not report.parent.is_dir():
        raise ValueError(f"--report must lie in a folder that exists but got {report}; make {report.parent} first")
    if cpu and seconds is not None:
        raise ValueError("--seconds limits the jobs of a GPU but --cpu runs all models, once; leave --seconds out")
    if fixed is not None and not fixed.strip():
        raise ValueError(f"--fixed must name a commit or say what was fixed but got {fixed!r}")
    measures = not (cpu or compile_only or fixed)
    boards = [find_hopper(index) for index in options.gpus_of(gpus)] if measures else []
    besides = pairs * 3 // 10
    every = *drawn(seed, pairs), *fp8_pairs(seed, besides), *grouped_pairs(seed, besides)
    every += tuple(gated_pairs(seed, pairs // 10))
    loads, alone = list(load_jobs()), list(map(VerifyJob, every))
    alone = [*suspects(read_rows(out), [*loads, *alone]), *alone]
    wanted = [*(job.row() for job in (*alone, *loads)), *wanted_models()]
    if fixed:
        rows = Rows(out)
        failures = standing(rows.rows, wanted)
        if not failures:
            raise ValueError(f"--fixed is for failures of these sources but none stands in {out}; leave it out")
        for row in (one.row for one in failures):
            rows.add(
                VerifyRow(
                    row.kind, row.subject, FIXED, fixed.strip(), row.kernel, board=row.board, verifier=row.verifier
                )
            )
            say(f"{row.kind}: noted as fixed, to be run again: {row.subject}")
    elif cpu:
        verify_protocols(out, len(os.sched_getaffinity(0)), say)
    else:
        jobs = [*(loads if load else []), *alone]
        if compile_only:
            kernels = (kernel for job in jobs for kernel in job.kernels)
            raise typer.Exit(CHECK_FAILED if compile_all(kernels, kept, say) else 0)
        from tests.verify.load import answering

        Harness(out, kept, boards, answering, say).run(jobs, seconds)
    found, proofs = read_rows(out), out / PROOFS
    failures = standing(found, wanted)
    told, damages = (
        list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
        for table in (proofs, out / DAMAGES)
    )
    faults = [*map(json.loads, (out / FAULTS).read_text().splitlines())] if (out / FAULTS).exists() else []
    write_whole(path, page(found, wanted, told, damages, faults))
    for one in failures:
        say(f"{one.row.kind}: {one.tally} with these sources: {one.row.reason}: {one.row.subject}")
    if as_json:
        statuses = Counter(one.row.status for one in judged(found).values() if one.rows)
        print(json.dumps({"rows": statuses.total(), "failed": len(failures), "by_status": statuses}))
    if failures:
        raise typer.Exit(CHECK_FAILED)


def _verify_invariance(
    out: Path,
    report: Path | None,
    store: Path | None,
    seed: int,
    seconds: float | None,
    gpus: str,
    compile_only: bool,
    as_json: bool,
) -> None:
    """Compare kernels of batch-invariant products with the reference, torch.mm with itself beside it."""
    from hopper_gemm.cli.doctor import chip_here, kind_here
    from hopper_gemm.compiler.store import default_store
    from hopper_gemm.model.lookup import tables
    from hopper_gemm.tune.measure.device import find_hopper
    from tests.verify.batches import answering, jobs
    from tests.verify.harness import Harness, compile_all
    from tests.verify.rows import read_rows
    from tests.verify.tally import counted, failures, page

    say, kept = saying(as_json), store or default_store()
    boards = [] if compile_only else [find_hopper(index) for index in options.gpus_of(gpus)]
    todo = jobs(seed, tables(kind := kind_here(), say), chip_here(kind))
    if compile_only:
        kernels = (kernel for job in todo for kernel in job.kernels)
        raise typer.Exit(CHECK_FAILED if compile_all(kernels, kept, say) else 0)
    table = out / "torch-mm.csv"
    with ThreadPoolExecutor(1) as beside:
        counting = None if table.exists() else beside.submit(_count_torch, table, boards[0], seed)
        Harness(out, kept, boards, answering, say).run(todo, seconds)
    if counting is not None and (error := counting.exception()):
        say(f"torch.mm was not counted: {error}")
    rows, wanted = read_rows(out), [job.row() for job in todo]
    told = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
    write_whole(report or out / "report.md", page(rows, wanted, told))
    wrong, sources = failures(rows, wanted), {row.sources for row in wanted}
    equal = counted(row for row in rows if row.sources in sources)
    for one in wrong:
        say(f"{one.row.kind}: {one.row.status}: {one.row.reason}: {one.row.subject}")
    changed = sum(row["rows_changed"] != "0" for row in told)
    if as_json:
        about = {"equal": equal, "failed": len(wrong), "torch_outputs": len(told), "torch_changed": changed}
        print(json.dumps(about))
    other = sum(one.row.status == "wrong_result" for one in wrong)
    say(
        f"{equal:,} outputs have the bits of the reference; {other} kernels have other bits somewhere, "
        f"{len(wrong) - other} gave no product; {changed} of {len(told)} outputs of torch.mm change"
    )
    if wrong:
        raise typer.Exit(CHECK_FAILED)


def _count_torch(table: Path, board: GpuId, seed: int) -> None:
    """Write the table of torch.mm."""
    from hopper_gemm.tune.study.provenance import versions
    from tests.verify.batches import torch_counts
    from tests.verify.tally import torch_table

    table.parent.mkdir(parents=True, exist_ok=True)
    counts = torch_counts(board.uuid, seed)
    write_whole(table, torch_table(counts, board=board.uuid, gpu=board.name, torch=str(versions()["torch"])))


if __name__ == "__main__":
    entry(app, "python -m tests.verify")
