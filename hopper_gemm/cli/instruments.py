"""Commands of the study's instruments, on Hopper GPUs: the ladder, the guard of recorded binaries, counters, traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, NO_GPU, command, fail, saying, stderr
from hopper_gemm.cli.reading import show
from hopper_gemm.model.tuned import local_root, recorded_tables, slug
from hopper_gemm.tune.study.files import ladder_file, shown
from hopper_gemm.tune.study.reader import read_study


@command
def ladder(
    spec: Annotated[Path | None, Argument(help="A sweep with rungs. Default: sweeps/ladder.toml.")] = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    backend: options.BackendName = "auto",
    recorded: options.Recorded = None,
    verbose: options.Verbose = False,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Measure the kernel one design step at a time.

    The table shows how fast each step is, the speedup over cuBLAS, and the gain over the step that it starts from.
    """
    from hopper_gemm.cli.running import run_sweep
    from hopper_gemm.tune.run.source import choose, recorded_study
    from hopper_gemm.tune.study.spec import read_spec
    from hopper_gemm.tune.tables.ladder import LADDER_LEGEND, ladder_table
    from hopper_gemm.tune.tables.ladder import ladder as steps_of
    from hopper_gemm.tune.tables.pivot import markdown_table, rows_of
    from hopper_gemm.tune.tables.view import view

    file = spec or ladder_file()
    question = read_spec(file)
    if not question.rungs:
        fail(f"{shown(file)} has no [[rungs]]; name a sweep that has, or run it with hopper-gemm sweep")
    source = choose(lambda why: recorded or recorded_study(question.name, why), backend, options.gpus_of(gpus))
    study = read_study(run_sweep(question, source, out, "Measuring", saying(as_json), verbose, long))
    steps = steps_of(rows_of(study, "sweep"), study.provenance["rungs"])
    if as_json:
        print(json.dumps([step.as_dict() for step in steps]))
    else:
        show(view(study), page=f"{markdown_table(ladder_table(steps), 'rung')}\n\n{LADDER_LEGEND}\n", long=long)


@command
def check(
    record: Annotated[bool, Option("--record", help="Instead keep today's binaries; needs no GPU.")] = False,
    digests: Annotated[
        bool, Option("--record-digests", help="Instead note today's machine code; needs no GPU.")
    ] = False,
    recorded: options.TunedTable = None,
    gpus: options.Gpus = "0",
    shared: options.Shared = False,
    as_json: options.Json = False,
) -> None:
    """Check that the recorded best configs still hold.

    Today's kernel must be right, and as fast as the binaries that are kept with the tuned table. Exit code 1: a config
    has fallen or is unsure; 3: it is unsure because another process uses the GPU.
    """
    from hopper_gemm.cli.running import local_source, run_question
    from hopper_gemm.lab.guard.binaries import FOLDER
    from hopper_gemm.lab.guard.check import Check, guarded_of, record_codes
    from hopper_gemm.lab.guard.check import record as keep
    from hopper_gemm.tune.measure.device import busy

    if record or digests:
        for path in [recorded] if recorded else recorded_tables().values():
            done = f"{len(keep(path))} binaries kept" if record else f"code of {record_codes(path)} kernels noted"
            print(f"{done} beside {shown(path)}")
        return
    source = local_source(gpus, "a check")
    kind = source.gpus[0].name
    table = recorded or recorded_tables().get(slug(kind))
    if table is None:
        fail(f"no tuned table is recorded for {kind}; name one with --from")
    guarded = guarded_of(table)
    if not guarded:
        fix = f"hopper-gemm check --record --from {shown(table)}"
        fail(f"no binaries are recorded in {shown(table.with_name(FOLDER))}; run {fix}")
    boards = {gpu.uuid: gpu for gpu in source.gpus}
    before = {board: busy(gpu) for board, gpu in boards.items()} if shared else {}
    question = Check(guarded, lambda board: before.get(board) or busy(boards[board], measuring=True))
    run_question(question, source, "check", stderr, shared=shared)
    for result in question.checked:
        if result.warning:
            stderr(f"{result.point.problem} {result.point.context}: {result.warning}")
    lines = [f"{row.verdict.status:8} {row.point.problem}: {row.verdict.message}" for row in question.checked]
    print(json.dumps([result.as_dict() for result in question.checked]) if as_json else "\n".join(lines))
    unheld = [result for result in question.checked if result.verdict.status != "held"]
    if unheld:
        raise Exit(NO_GPU if all(result.busy for result in unheld) else CHECK_FAILED)


@command
def counters(
    target: Annotated[Path, Argument(metavar="SPEC_OR_RESULTS", help="A sweep, or a study's folder.")],
    out: options.StudyOut = None,
    limit: options.Limit = None,
    gpus: options.Gpus = "0",
    no_ncu: Annotated[bool, Option("--no-ncu", help="Only what our kernel counts; needs no profiler.")] = False,
    no_meter: Annotated[bool, Option("--no-meter", help="Only what the profiler counts.")] = False,
    as_json: options.Json = False,
) -> None:
    """Count what a study's kernels and cuBLAS do on the GPU.

    The profiler counts clock, traffic, L2 hits and instructions; the kernel itself counts how often its roles find a
    stage ready and how long they wait. Rows go to the study's folder if it takes rows.
    """
    from hopper_gemm.cli.running import local_source, run_question
    from hopper_gemm.lab.counters.counting_question import Counting, folder_of
    from hopper_gemm.lab.counters.profiler import find_profiler
    from hopper_gemm.lab.counters.table import counters_table
    from hopper_gemm.tune.study.pooling import pooled

    kinds = [kind for kind, left_out in (("profile", no_ncu), ("meter", no_meter)) if not left_out]
    if not kinds:
        raise ValueError("--no-ncu and --no-meter together leave nothing to count; drop one of them")
    source = local_source(gpus, "counting")
    if not no_ncu:
        find_profiler()
    kind = source.gpus[0].name
    folder = out or folder_of(target, slug(kind))

    def watch(point: Any, text: str, done: int, total: int) -> None:
        subject = "cuBLAS" if point.is_baseline else point.config
        stderr(f"{done}/{total} {point.problem} {subject}{f': {text}' if text else ''}")

    counting = Counting(target, folder, kind, kinds=kinds, limit=limit, watch=watch)
    saying(as_json)(source.opening("Counting", str(target), folder))
    if counting.open:
        run_question(counting, source, "counters", stderr)
    if not counting.written and counting.failed:
        fail(f"nothing could be counted; the first of {len(counting.failed)} failures: {counting.failed[0][1]}")
    rows = read_study(folder).stage("counters")
    if as_json:
        failed = [{"problem": str(p.problem), "config": str(p.subject), "reason": why} for p, why in counting.failed]
        summary = {"out": str(folder), "counted": counting.written, "open": counting.open, "failed": failed}
        print(json.dumps({**summary, "rows": [row.as_dict() for row in rows]}))
        return
    progress = f"{counting.written} counted now, {len(counting.failed)} failed, {counting.open} to go"
    print(f"\n{counters_table(pooled(rows))}\n{progress}; written to {shown(folder)}")


@command
def trace(
    spec: Annotated[Path | None, Argument(help="A sweep with rungs. Default: sources/timeline.toml.")] = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
) -> None:
    """Trace when the roles of a CTA do what.

    The result is a table of moments in SM clocks for each rung of a ladder.
    """
    from hopper_gemm.cli.running import local_source, name_tenants
    from hopper_gemm.lab.counters.trace import trace as traced

    source = local_source(gpus, "a trace")
    file = spec or ladder_file().with_name("sources") / "timeline.toml"
    folder = out or local_root() / slug(source.gpus[0].name) / file.stem
    name_tenants(source.gpus, stderr)
    print(f"Written to {shown(traced(file, folder, source.gpus[0], say=stderr))}")
