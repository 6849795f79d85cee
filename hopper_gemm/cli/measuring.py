"""Commands that measure, on Hopper GPUs or in a replay."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, NO_GPU, command, fail, saying, stderr
from hopper_gemm.cli.reading import show
from hopper_gemm.model.point import CONTEXTS, REGIMES
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import local_root, recorded_tables, slug
from hopper_gemm.tune.study.files import ladder_file, shown, suite_file
from hopper_gemm.tune.study.reader import read_study

LOOPBACK = "127.0.0.1"


@command
def sweep(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Question of the sweep, as TOML; see sweeps/.")],
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    cluster: options.Cluster = False,
    host: options.Host = LOOPBACK,
    trials: options.Trials = None,
    backend: options.BackendName = "auto",
    recorded: options.Recorded = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the points and stop.")] = False,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Measure the points of a sweep.

    Every row is written as it comes; the same command goes on where the last run stopped. Without a Hopper GPU the
    recorded measurements are replayed.
    """
    from hopper_gemm.cli.running import open_sweep, run_sweep, summary
    from hopper_gemm.tune.run.source import NotRecordedError, Source, choose, recorded_study
    from hopper_gemm.tune.study.spec import read_spec
    from hopper_gemm.tune.tables.html.document import write
    from hopper_gemm.tune.tables.view import view

    say, question = saying(as_json), read_spec(spec)
    try:
        listen = options.listening(cluster, host)
        source = choose(
            lambda why: recorded or recorded_study(question.name, why), backend, options.gpus_of(gpus), listen
        )
    except NotRecordedError:
        if not dry_run:
            raise
        source = Source()
    if dry_run:
        plan = open_sweep(question, source, out, trials=trials).plan()
        for line in plan.lines():
            say(line)
        if as_json:
            print(json.dumps(plan.as_dict()))
        return
    folder = run_sweep(question, source, out, "Measuring", say, verbose, trials=trials)
    if as_json:
        print(json.dumps(summary(folder)))
    else:
        study = read_study(folder)
        show(view(study), page=(folder / "table.md").read_text())
        with suppress(ModuleNotFoundError):  # of the extra lab
            write(study, folder / "report.html")
            stderr(f"To look at: {(folder / 'report.html').absolute().as_uri()}")


@command
def tune(
    m: options.MaybeM = None,
    n: options.MaybeN = None,
    k: options.MaybeK = None,
    shapes: options.Shapes = None,
    marked: Annotated[bool, typer.Option("--marked", help="Of a list only the problems marked search.")] = False,
    dtype: options.Dtype = "bf16",
    regime: options.Regime = "burst",
    context: options.Context = "isolated",
    budget: Annotated[
        float | None,
        typer.Option("--budget", "--seconds", min=1, metavar="SECONDS", help="Time to search for. Default: 60."),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Configs to measure. Default: as time allows.")] = None,
    sampler: Annotated[str, typer.Option(help="gp, tpe, prior, random or exhaustive.")] = "gp",
    backend: Annotated[
        str, typer.Option(help="cuda; or replay: search a recorded study, which tunes nothing.")
    ] = "cuda",
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Study to replay. Default: the recorded one of this problem.")
    ] = None,
    warm_start: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Results folder to begin with; may be repeated.")
    ] = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    cluster: options.Cluster = False,
    host: options.Host = LOOPBACK,
    tuned_first: options.TunedFirst = True,
    pdl: Annotated[
        bool | None, typer.Option(help="Search programmatic dependent launch too. Default: for short chained launches.")
    ] = None,
    finals: Annotated[int | None, typer.Option(min=1, help="Configs to measure again. Default: 8.")] = None,
    batch_invariant: options.BatchInvariant = False,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Find the best config of a problem for matmul to run.

    It goes into your tuned table, which matmul reads first. With --shapes every problem of a list is tuned, in one
    study; several GPUs tune several problems at a time. The same command goes on where the last run stopped.
    """
    from hopper_gemm.cli.running import local_source, run_sweep
    from hopper_gemm.tune.run.questions.tune import question, recorded_problem
    from hopper_gemm.tune.run.source import Source, choose
    from hopper_gemm.tune.study.shapes import read_shapes
    from hopper_gemm.tune.tables.conclusion import conclude
    from hopper_gemm.tune.tables.pages.winners import winners

    options.check_word("--regime", regime, REGIMES)
    options.check_word("--context", context, CONTEXTS)
    options.check_word("--backend", backend, ("cuda", "replay"))
    keys: dict[str, Any] = {"regimes": [regime], "contexts": [context], "sampler": sampler}
    limits = {"seconds": budget, "trials": trials}
    if given := {name: limit for name, limit in limits.items() if limit is not None}:
        keys["budget"] = given
    if finals is not None:
        keys["final"] = {"best": finals}
    keys["warm_start"] = [str(folder) for folder in warm_start or ()]
    ahead: dict[str, Any] = {"tuned_first": tuned_first, "pdl": pdl}
    listen, say = options.listening(cluster, host), saying(as_json)
    if recorded is not None and backend != "replay":
        raise ValueError(f"--from names a study to replay but --backend is {backend}; add --backend replay")
    if shapes is not None:
        if (m, n, k) != (None, None, None):
            raise ValueError("give the problem as M N K or a list with --shapes, not both")
        if backend == "replay":
            raise ValueError("a list is measured, not replayed; leave out --backend replay, or give one M N K")
        if dtype != "bf16":
            raise ValueError(f"--dtype must be left to the list but got {dtype!r}; write it beside its problems")
        read = read_shapes(shapes)
        listed = options.with_rule(read.of_regime(regime, marked), batch_invariant)
        problems = tuple(dict.fromkeys(listed))
        if not problems and marked:
            raise ValueError(f"no problem of {read.name} is marked search; mark one, or leave out --marked")
        if not problems:
            raise ValueError(f"no problem of {read.name} is marked steady; mark one, or tune it with M N K")
        source = Source(cluster=listen) if listen else local_source(gpus, "a list")
        spec = question(problems, keys, listed=read.name, **ahead)
        folder = run_sweep(spec, source, out, "Tuning", say, verbose)
        best = winners(read_study(folder))
        result = {"out": str(folder), "problems": [winner.as_dict() for winner in best]}
        print(json.dumps(result) if as_json else (folder / "table.md").read_text())
        if left := [winner.key for winner in best if not winner.final]:
            lacking = f"{len(left)} of {len(best)} problems are not tuned"
            fail(f"{lacking}, the first is {left[0]}; its rows say why", CHECK_FAILED)
        return
    if m is None or n is None or k is None:
        raise ValueError("tune needs a problem as M N K, or a list with --shapes")
    problem = GemmProblem(m, n, k, dtype, batch_invariant=batch_invariant)
    source = choose(
        lambda _: recorded or recorded_problem(problem, regime, context), backend, options.gpus_of(gpus), listen
    )
    spec = question([problem], keys, recorded=source.recorded, **ahead)
    folder = run_sweep(spec, source, out, "Tuning", say, verbose)
    conclusion = conclude(folder)
    print(json.dumps({**asdict(conclusion), "out": str(folder)}) if as_json else "\n".join(conclusion.lines()))


@command
def ladder(
    spec: Annotated[Path | None, typer.Argument(help="A sweep with rungs. Default: sweeps/ladder.toml.")] = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    backend: options.BackendName = "auto",
    recorded: options.Recorded = None,
    verbose: options.Verbose = False,
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
    study = read_study(run_sweep(question, source, out, "Measuring", saying(as_json), verbose))
    steps = steps_of(rows_of(study, "sweep"), study.provenance["rungs"])
    if as_json:
        print(json.dumps([step.as_dict() for step in steps]))
    else:
        show(view(study), page=f"{markdown_table(ladder_table(steps), 'rung')}\n\n{LADDER_LEGEND}\n")


@command
def compare(
    sizes: options.Sizes = None,
    shapes: options.Shapes = None,
    against: Annotated[
        str, typer.Option(help="cublas, cublaslt, heuristics, triton, quack, with commas.")
    ] = "cublas,cublaslt",
    regime: options.Regime = "burst",
    context: options.Context = "isolated",
    config: Annotated[str, typer.Option(help="tuned: the best known; auto: as if nobody had tuned it.")] = "tuned",
    batch_invariant: options.BatchInvariant = False,
    backend: Annotated[
        str, typer.Option(help="cuda; or replay: show what is recorded, without a GPU, and write nothing.")
    ] = "cuda",
    recorded: Annotated[Path | None, typer.Option("--from", help="Tuned table. Default: those of matmul.")] = None,
    out: options.StudyOut = None,
    processes: Annotated[int, typer.Option(min=1, help="Measure everything in so many fresh processes.")] = 1,
    finalists: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A comparison whose cuBLASLt finalists are taken instead of a search."),
    ] = None,
    limit: options.Limit = None,
    gpus: options.Gpus = "0",
    shared: options.Shared = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say where the seconds of each row went.")] = False,
    as_json: options.Json = False,
) -> None:
    """Compare the kernel with cuBLAS and other libraries.

    Each problem runs the config that matmul runs. The same command goes on where the last run stopped.
    """
    from hopper_gemm.cli.running import local_source, run_question
    from hopper_gemm.tune.run.questions.compare import Comparison, tables_of
    from hopper_gemm.tune.study.shapes import problems_of
    from hopper_gemm.tune.study.spec import command_spec
    from hopper_gemm.tune.tables import comparison as tables
    from hopper_gemm.tune.tables.pages.publish import publish
    from hopper_gemm.tune.tables.view import view

    options.check_word("--backend", backend, ("cuda", "replay"))
    if finalists is not None and backend == "replay":
        raise ValueError(f"--finalists shortens a measurement but --backend is {backend}; leave one of them out")
    names = tuple(dict.fromkeys(filter(None, against.split(","))))
    title, text, problems = problems_of(shapes, sizes or (), regime)
    problems = options.with_rule(problems, batch_invariant)
    unusual = [word for word, usual in ((context, "isolated"), (config, "tuned")) if word != usual]
    unusual += ["batch-invariant"] * batch_invariant
    if backend == "replay":
        lists = [path.stem for path in sorted(suite_file().parent.glob("*.toml"))] if sizes else [title]
        words = [*(["steady"] if regime == "steady" else []), *unusual]
        study = tables.recorded(["-".join([stem, *words]) for stem in lists], problems, names, regime, context)
        show(view(study), "json" if as_json else None)
        return
    source = local_source(gpus, "a comparison", "; --backend replay shows a recorded one")
    kind = source.gpus[0].name
    folder = out or local_root() / slug(kind) / "-".join(["compare", title, *unusual])

    def watch(row: Any, done: int, total: int) -> None:
        outcome = f"{row.status.replace('_', ' ')}: {row.reason}"
        if row.ok:
            form = "{speedup:.3f}x [{speedup_low:.3f}, {speedup_high:.3f}], {time_us:.1f} us against {baseline_us:.1f}"
            outcome = form.format(**row.figures)
        stderr(f"{done}/{total} {row.point.problem} {row.point.against}: {outcome}")

    conditions: dict[str, Any] = {"regimes": [regime], "contexts": [context], "processes": processes}
    spec = command_spec("compare", problems, name=title, question=text, config=config, against=names, **conditions)
    read = tables_of(recorded, slug(kind), stderr)
    comparison = Comparison(spec, folder, kind, tables=read, limit=limit, watch=watch, say=stderr)
    if finalists is not None:
        comparison.begin_with(finalists)
    what = f"{len(problems)} problems with {', '.join(names)} in {regime}, {context}"
    saying(as_json)(source.opening("Comparing", what, folder))
    if comparison.open:
        job = {"against": names, "fresh": min(processes - 1, 1), "verbose": verbose}
        run_question(comparison, source, title, stderr, comparison, shared=shared, **job)
    for baseline, reason in comparison.missing.items():
        stderr(f"without {baseline}: {reason}")
    publish(folder)
    result = view(read_study(folder))
    if as_json:
        print(json.dumps({"out": str(folder), "missing": comparison.missing, **result.as_dict()}))
        return
    show(result)
    print(f"\nWritten to {shown(folder)}")


@command
def check(
    record: Annotated[bool, typer.Option("--record", help="Instead keep today's binaries; needs no GPU.")] = False,
    digests: Annotated[
        bool, typer.Option("--record-digests", help="Instead note today's machine code; needs no GPU.")
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
    from hopper_gemm.tune.run.tenants import busy

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
        raise typer.Exit(NO_GPU if all(result.busy for result in unheld) else CHECK_FAILED)


@command
def counters(
    target: Annotated[Path, typer.Argument(metavar="SPEC_OR_RESULTS", help="A sweep, or a study's folder.")],
    out: options.StudyOut = None,
    limit: options.Limit = None,
    gpus: options.Gpus = "0",
    no_ncu: Annotated[bool, typer.Option("--no-ncu", help="Only what our kernel counts; needs no profiler.")] = False,
    no_meter: Annotated[bool, typer.Option("--no-meter", help="Only what the profiler counts.")] = False,
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
    spec: Annotated[Path | None, typer.Argument(help="A sweep with rungs. Default: archive/timeline.toml.")] = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
) -> None:
    """Trace when the roles of a CTA do what.

    The result is a table of moments in SM clocks for each rung of a ladder.
    """
    from hopper_gemm.cli.running import local_source, name_tenants
    from hopper_gemm.lab.counters.timeline import trace as traced

    source = local_source(gpus, "a trace")
    file = spec or ladder_file().with_name("archive") / "timeline.toml"
    folder = out or local_root() / slug(source.gpus[0].name) / file.stem
    name_tenants(source.gpus, stderr)
    print(f"Written to {shown(traced(file, folder, source.gpus[0], say=stderr))}")


@command
def worker(
    address: Annotated[str, typer.Argument(metavar="URL", help="Of the coordinator, as sweep --cluster prints it.")],
    pem: Annotated[Path, typer.Option(help="File with certificate and key, which the coordinator made.")],
    gpus: options.Gpus = "0",
) -> None:
    """Let the GPUs of this host join a sweep on another host.

    The other host runs sweep --cluster, which prints the address and the key file.
    """
    from hopper_gemm.cli.running import name_tenants
    from hopper_gemm.tune.run.executors.cluster import serve
    from hopper_gemm.tune.run.task import Rig

    scheme, _, endpoint = address.partition("://")
    host, _, port = endpoint.rpartition(":")
    if scheme != "tls" or not host or not options.is_port(port):
        raise ValueError(f"the address must be like tls://HOST:PORT, as sweep --cluster prints it, but got {address!r}")
    indices = options.gpus_of(gpus)
    name_tenants([Rig().find(index) for index in indices], stderr)
    serve(address, indices, pem, stderr)
