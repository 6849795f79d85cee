"""Commands that measure, on Hopper GPUs or in a replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopper_gemm.cli.app import CHECK_FAILED, INTERRUPTED, app, fail, plain_errors, saying, stderr
from hopper_gemm.cli.options import (
    TYPES,
    BackendName,
    Cluster,
    Context,
    Gpus,
    Host,
    Json,
    Recorded,
    Regime,
    StudyOut,
    TunedTable,
    gpus_of,
)

if TYPE_CHECKING:
    from hopper_gemm.run.coordinator import Question
    from hopper_gemm.run.source import Source
    from hopper_gemm.run.sweep import Sweep
    from hopper_gemm.run.task import Job
    from hopper_gemm.study.spec import SweepSpec


@app.command()
@plain_errors
def sweep(
    spec: Annotated[Path, typer.Argument(help="The question, as TOML; see sweeps/.")],
    out: StudyOut = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Optuna storage that mirrors the trials for its dashboard: a file, or a database URL."),
    ] = None,
    gpus: Gpus = "0",
    cluster: Cluster = False,
    host: Host = "127.0.0.1",
    trials: Annotated[
        int | None, typer.Option(min=0, help="Stop after so many points; the rest can follow later.")
    ] = None,
    backend: BackendName = "auto",
    recorded: Recorded = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the points and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Measure every point of a sweep, or go on where the last run stopped."""
    from hopper_gemm.run.source import NotRecordedError, Source
    from hopper_gemm.study.spec import read_spec

    say, asked = saying(as_json), read_spec(spec)
    try:
        source = _source(asked.name, backend, gpus, recorded, cluster, host)
    except NotRecordedError:
        if not dry_run:
            raise
        source = Source()
    options = {"trials": trials, "storage": storage}
    if dry_run:
        plan = _sweep(asked, source, out, **options).plan()
        for line in plan.lines():
            say(line)
        if as_json:
            print(json.dumps(plan.as_dict()))
        return
    found = _swept(asked, source, out, "Measuring", say, **options)
    if as_json:
        print(json.dumps(_summary(found)))
    else:
        print((found / "table.md").read_text())


@app.command()
@plain_errors
def tune(
    m: Annotated[int | None, typer.Argument(help="Rows of A and C.")] = None,
    n: Annotated[int | None, typer.Argument(help="Columns of B and C.")] = None,
    k: Annotated[int | None, typer.Argument(help="Depth of the product.")] = None,
    shapes: Annotated[Path | None, typer.Option(help="Instead of M N K a list of problems, as TOML.")] = None,
    dtype: Annotated[str, typer.Option(help=f"{TYPES}; a list says so itself.")] = "bf16",
    regime: Regime = "burst",
    context: Context = "isolated",
    budget: Annotated[
        float | None,
        typer.Option("--budget", "--seconds", min=1, help="To search a problem; the finals come after. Default: 60."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Configs to measure. Default: what the time allows.")
    ] = None,
    sampler: Annotated[str, typer.Option(help="gp, tpe, prior, random or exhaustive.")] = "gp",
    backend: BackendName = "auto",
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Recorded study to search in a replay, over what it recorded.")
    ] = None,
    warm_start: Annotated[
        list[Path] | None,
        typer.Option(help="Results folder, of a study or a list, whose rows are told to the sampler; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Results folder; of a list that of its problems' folders. Default: results/local/<gpu>/tune-<problem>."
        ),
    ] = None,
    gpus: Gpus = "0",
    cluster: Cluster = False,
    host: Host = "127.0.0.1",
    pdl: Annotated[
        bool | None,
        typer.Option("--pdl/--no-pdl", help="Search programmatic dependent launch too. Default: chained, if short."),
    ] = None,
    finals: Annotated[
        int | None, typer.Option(help="Configs to measure again in fresh processes. Default: 8.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the best config for one problem, or for each of a list, and put it into the tuned table. A list goes on
    where the last run stopped."""
    from hopper_gemm.model.point import CONTEXTS, REGIMES
    from hopper_gemm.run.tune import Options

    for option, value, known in (("regime", regime, REGIMES), ("context", context, CONTEXTS)):
        if value not in known:
            raise ValueError(f"--{option} must be one of {', '.join(known)} but got {value!r}")
    options = Options(regime, context, budget, trials, sampler, tuple(warm_start or ()), pdl, finals)
    if shapes is not None:
        if (m, n, k) != (None, None, None):
            raise ValueError("give the problem as M N K or a list with --shapes, not both")
        if recorded is not None or backend == "replay":
            raise ValueError("a list is measured, not replayed; leave out --from and --backend, or give one M N K")
        if dtype != "bf16":
            raise ValueError(f"--dtype must be left to the list but got {dtype!r}; write it beside its problems")
        _tune_list(shapes, options, out, as_json, gpus=gpus, cluster=cluster, host=host)
        return
    if m is None or n is None or k is None:
        raise ValueError("tune needs a problem as M N K, or a list with --shapes")
    from hopper_gemm.model.problem import GemmProblem
    from hopper_gemm.model.rules.problem import filled_up
    from hopper_gemm.run.tune import question, recorded_problem, study_name
    from hopper_gemm.study.places import shown
    from hopper_gemm.study.reader import read_study
    from hopper_gemm.tables.verdict import verdict

    asked = GemmProblem(m, n, k, dtype)
    problem, say = filled_up(asked), saying(as_json)
    if problem != asked:
        say(f"TMA cannot reach the matrices of {asked}; tuned is {problem}, as matmul runs it on copies")
    name = study_name(problem, regime, context)
    from hopper_gemm.run.source import Source, find
    from hopper_gemm.run.task import Rig

    found, missing = ((), "") if cluster else find(gpus_of(gpus), backend, Rig())
    if found or cluster:
        source = Source(found, cluster=host if cluster else "")
    else:
        source = Source(recorded=read_study(recorded or recorded_problem(problem, options)), missing=missing)
    spec = question(problem, options, source.recorded)
    folder = _swept(spec, source, out, "Tuning", say)
    told = verdict(folder)
    if as_json:
        print(json.dumps({**told.as_dict(), "out": str(folder), "study": name}))
        return
    print("\n".join(told.lines()))
    print(f"Written to {shown(folder)}")


@app.command()
@plain_errors
def ladder(
    spec: Annotated[Path | None, typer.Argument(help="A sweep with rungs. Default: sweeps/ladder.toml.")] = None,
    out: StudyOut = None,
    gpus: Gpus = "0",
    backend: BackendName = "auto",
    recorded: Recorded = None,
    as_json: Json = False,
) -> None:
    """Every design step of the study, one table: how fast, against cuBLAS, and the gain over the step before."""
    from hopper_gemm.study.places import ladder_file, shown
    from hopper_gemm.study.reader import read_study
    from hopper_gemm.study.spec import read_spec
    from hopper_gemm.tables.ladder import LADDER_LEGEND, ladder_table
    from hopper_gemm.tables.ladder import ladder as steps_of
    from hopper_gemm.tables.pivot import markdown_table, rows_of

    file = spec or ladder_file()
    asked = read_spec(file)
    if not asked.rungs:
        fail(f"{shown(file)} has no [[rungs]]; name a sweep that has, or run it with hopper-gemm sweep")
    found = _swept(asked, _source(asked.name, backend, gpus, recorded), out, "Measuring", saying(as_json))
    study = read_study(found)
    steps = steps_of(rows_of(study, "sweep"), study.provenance["rungs"])
    if as_json:
        print(json.dumps([step.as_dict() for step in steps]))
    else:
        print(markdown_table(ladder_table(steps), "rung"))
        print(f"\n{LADDER_LEGEND}\nWritten to {shown(found)}")


@app.command()
@plain_errors
def compare(
    sizes: Annotated[
        list[int] | None, typer.Argument(metavar="M N K", help="Problems, one after the other, instead of a list.")
    ] = None,
    shapes: Annotated[
        Path | None, typer.Option(help="A list of problems, as TOML. Default: sweeps/shapes/suite.toml.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Baselines, with commas: cublas, cublaslt, triton, quack.")
    ] = "cublas,cublaslt",
    regime: Regime = "burst",
    context: Context = "isolated",
    config: Annotated[
        str, typer.Option(help="tuned: the best known; auto: what matmul picks for a problem nobody tuned.")
    ] = "tuned",
    recorded: TunedTable = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: results/local/<gpu>/compare-<list>.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Measure everything in so many fresh processes.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many results; the rest can follow later.")
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="Only the host time of a launch.")] = False,
    gpus: Gpus = "0",
    as_json: Json = False,
) -> None:
    """Our kernel beside cuBLAS, the best of cuBLASLt and other libraries; goes on where the last run stopped."""
    from hopper_gemm.measure.device import slug
    from hopper_gemm.run.compare import Comparison, HostTimes, entries_of, problems_of
    from hopper_gemm.study.places import local_root, shown
    from hopper_gemm.study.reader import read_study
    from hopper_gemm.tables.compare import cells, means
    from hopper_gemm.tables.publish import publish

    names = list(dict.fromkeys(filter(None, against.split(","))))
    if host:
        question, source = HostTimes(), _here(gpus, "the host time of a launch")
        _run(question, source, _job("host", source), stderr)
        lines = [f"{name:20} {us:6.2f} us of the host a launch" for name, us in question.times.items()]
        print(json.dumps(question.times) if as_json else "\n".join(lines))
        return
    title, text, problems = problems_of(shapes, sizes or (), regime)
    source = _here(gpus, "a comparison")
    kind = source.gpus[0].name
    usual = ((context, "isolated"), (config, "tuned"))
    name = "-".join(["compare", title, *(word for word, common in usual if word != common)])
    folder = out or local_root() / slug(kind) / name
    say = saying(as_json)

    def watch(row: Any, done: int, total: int) -> None:
        figures, what = row.figures, f"{done}/{total} {row.point.problem} {row.point.against}"
        stderr(
            f"{what}: {figures['speedup']:.3f}x [{figures['speedup_low']:.3f}, {figures['speedup_high']:.3f}], "
            f"{figures['time_us']:.1f} us against {figures['baseline_us']:.1f}"
            if row.ok
            else f"{what}: {row.status.replace('_', ' ')}: {row.reason}"
        )

    asked: dict[str, Any] = {"against": names, "regime": regime, "context": context, "config": config}
    asked |= {"processes": processes, "entries": entries_of(recorded, slug(kind)), "limit": limit}
    comparison = Comparison(title, text, problems, folder, kind, **asked, watch=watch, say=stderr)
    say(source.opening("Comparing", f"{len(problems)} problems with {', '.join(names)} in {regime}, {context}", folder))
    if comparison.open:
        _run(comparison, source, _job(title, source, against=tuple(names)), stderr, comparison)
    for one, reason in comparison.missing.items():
        stderr(f"without {one}: {reason}")
    study = read_study(folder)
    publish(folder)
    if as_json:
        records = cells(study.stage("compare"))
        about = {"out": str(folder), "missing": comparison.missing, "rows": records}
        print(json.dumps({**about, "means": [mean.as_dict() for mean in means(records)]}))
    else:
        print(f"\n{(folder / 'compare.md').read_text()}\nWritten to {shown(folder)}")


@app.command()
@plain_errors
def check(
    everything: Annotated[bool, typer.Option("--all", help="The steady regime too.")] = False,
    recorded: TunedTable = None,
    gpus: Gpus = "0",
    as_json: Json = False,
) -> None:
    """Do the recorded best configs still run, and still reach their recorded figures?"""
    from hopper_gemm.measure.device import slug
    from hopper_gemm.model.tuned import read_tuned, recorded_tables
    from hopper_gemm.run.check import Check

    source = _here(gpus, "a check")
    kind = source.gpus[0].name
    table = recorded or recorded_tables().get(slug(kind))
    if table is None:
        fail(f"no tuned table is recorded for {kind}; run hopper-gemm tune --shapes FILE, or name one with --from")
    question = Check([entry for entry in read_tuned(table) if everything or entry.regime == "burst"])
    _run(question, source, _job("check", source), stderr)
    if as_json:
        print(json.dumps([one.as_dict() for one in question.checked]))
    else:
        for one in question.checked:
            entry = one.entry
            print(f"{one.status:8} {entry.problem} {entry.regime} {entry.context}  {entry.config}")
            print(f"         {one.message}")
    if any(one.status == "fallen" for one in question.checked):
        raise typer.Exit(CHECK_FAILED)


@app.command()
@plain_errors
def counters(
    target: Annotated[
        Path,
        typer.Argument(metavar="SPEC_OR_RESULTS", help="A sweep, for all its legal configs; or a study's folder."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the rows. Default: the study's, or results/local/<gpu>/<name>.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many configs; the rest can follow later.")
    ] = None,
    gpus: Gpus = "0",
    no_ncu: Annotated[
        bool, typer.Option("--no-ncu", help="Only what our kernel counts itself; needs no profiler.")
    ] = False,
    no_meter: Annotated[bool, typer.Option("--no-meter", help="Only what the profiler counts.")] = False,
    as_json: Json = False,
) -> None:
    """Hardware counters of a study's kernels and of cuBLAS: clock, traffic, L2 hits, instructions; and how often our
    kernel's roles find a stage ready, and how long they wait."""
    from hopper_gemm.measure.counters.profiler import find_profiler
    from hopper_gemm.measure.device import slug
    from hopper_gemm.run.counters import Counting, folder_of
    from hopper_gemm.study.places import shown
    from hopper_gemm.study.pooling import pooled
    from hopper_gemm.study.reader import read_study
    from hopper_gemm.tables.counters import counters_table

    kinds = [kind for kind, left_out in (("profile", no_ncu), ("meter", no_meter)) if not left_out]
    if not kinds:
        raise ValueError("--no-ncu and --no-meter together leave nothing to count; drop one of them")
    source = _here(gpus, "counting")
    if not no_ncu:
        find_profiler()
    kind = source.gpus[0].name
    folder = out or folder_of(target, slug(kind))

    def watch(point: Any, text: str, done: int, total: int) -> None:
        stderr(f"{done}/{total} {point.problem} {point.config or 'cuBLAS'}{f': {text}' if text else ''}")

    counting = Counting(target, folder, kind, kinds=kinds, limit=limit, watch=watch)
    saying(as_json)(source.opening("Counting", str(target), folder))
    if counting.open:
        _run(counting, source, _job("counters", source), stderr)
    if not counting.written and counting.failed:
        first = f"nothing could be counted; the first of {len(counting.failed)} failures: {counting.failed[0][1]}"
        fail(first)
    rows = read_study(folder).stage("counters")
    if as_json:
        failed = [{"problem": str(p.problem), "config": str(p.config), "reason": why} for p, why in counting.failed]
        records = [row.as_dict() for row in rows]
        about = {"out": str(folder), "counted": counting.written, "open": counting.open, "failed": failed}
        print(json.dumps({**about, "rows": records}))
        return
    print(f"\n{counters_table(pooled(rows))}")
    told = f"{counting.written} counted now, {len(counting.failed)} failed, {counting.open} to go"
    print(f"{told}; written to {shown(folder)}")


@app.command()
@plain_errors
def trace(
    spec: Annotated[Path | None, typer.Argument(help="A sweep with rungs. Default: sweeps/timeline.toml.")] = None,
    out: StudyOut = None,
    gpus: Gpus = "0",
) -> None:
    """When the roles of a CTA did what, in SM clocks: a table of moments for each rung."""
    from hopper_gemm.measure.device import slug
    from hopper_gemm.run.trace import trace as traced
    from hopper_gemm.study.places import ladder_file, local_root, shown

    source = _here(gpus, "a trace")
    file = spec or ladder_file().with_name("timeline.toml")
    folder = out or local_root() / slug(source.gpus[0].name) / file.stem
    print(f"Written to {shown(traced(file, folder, source.gpus[0], say=stderr))}")


@app.command()
@plain_errors
def worker(
    address: Annotated[str, typer.Argument(metavar="URL", help="Of the coordinator, as sweep --cluster prints it.")],
    pem: Annotated[Path, typer.Option(help="File with certificate and key, which the coordinator made.")],
    gpus: Gpus = "0",
) -> None:
    """Let GPUs of this host take part in a sweep that runs with --cluster."""
    from hopper_gemm.measure.device import find_hopper
    from hopper_gemm.run.cluster import serve

    if not address.startswith("tls://"):
        raise ValueError(f"the address must be like tls://HOST:PORT but got {address!r}")
    indices = gpus_of(gpus)
    for index in indices:
        find_hopper(index)
    serve(address, indices, pem)


# ---------------------------------------------------------------------------------------------


def _source(
    name: str, backend: str, gpus: str, recorded: Path | None = None, cluster: bool = False, host: str = "127.0.0.1"
) -> Source:
    from hopper_gemm.run.source import choose

    listen = host if cluster else ""
    return choose(name, backend=backend, gpus=gpus_of(gpus), recorded=recorded, cluster=listen)


def _here(gpus: str, what: str) -> Source:
    """GPUs of this host, for what cannot be replayed."""
    from hopper_gemm.measure.device import NoHopperError
    from hopper_gemm.run.source import Source, find
    from hopper_gemm.run.task import Rig

    try:
        return Source(find(gpus_of(gpus), "cuda", Rig())[0])
    except NoHopperError as error:
        raise NoHopperError(f"{str(error).split(';')[0]}; {what} is measured on an H100 or H200") from None


def _job(study: str, source: Source, **more: Any) -> Job:
    from hopper_gemm.run.task import Job

    return Job(study, rig=source.rig, **more)


def _run(question: Question, source: Source, job: Job, say: Callable[[str], None], left: Any = None) -> None:
    """Run a question; when interrupted, say what is left."""
    from hopper_gemm.run.coordinator import run

    try:
        run(question, source.executor(job, say), say)
    except KeyboardInterrupt:
        to_go = "" if left is None else f" with {left.open} to go"
        kept = "" if left is None else f"; what was measured is in {left.out}, run the same command to go on"
        fail(f"stopped{to_go}{kept}", INTERRUPTED)


def _sweep(spec: SweepSpec, source: Source, out: Path | None, **options: Any) -> Sweep:
    from hopper_gemm.run.replay import recorded_points
    from hopper_gemm.run.sweep import Sweep

    only = None if source.recorded is None else recorded_points(source.recorded)
    return Sweep(spec, out or source.folder(spec), source.about, source=source.word, only=only, **options)


def _swept(
    spec: SweepSpec, source: Source, out: Path | None, verb: str, say: Callable[[str], None], **options: Any
) -> Path:
    """Run a sweep under a progress bar, and write its pages; its folder."""
    from hopper_gemm.cli.progress import watching
    from hopper_gemm.study.places import shown
    from hopper_gemm.tables.publish import publish

    asked = _sweep(spec, source, out, **options)
    plan, trials = asked.plan(), options.get("trials")
    say(source.opening(verb, spec.name, asked.out))
    if source.recorded is not None and asked.unrecorded:
        stderr(f"{asked.unrecorded} points are not recorded in {shown(source.recorded.path)} and are left out")
    with watching(plan.open if trials is None else min(trials, plan.open)) as (watch, line):
        asked.watch, asked.say = watch, line
        if not asked.finished:
            fresh = spec.final.processes if spec.final.best else 0
            _run(asked, source, _job(spec.name, source, seed=spec.seed, fresh=fresh), line, asked)
    publish(asked.out)
    say(f"Written to {shown(asked.out)}")
    return asked.out


def _tune_list(
    shapes: Path, options: Any, out: Path | None, as_json: bool, *, gpus: str, cluster: bool, host: str
) -> None:
    """Tune every problem of a list; say what is left when interrupted."""
    from hopper_gemm.cli.progress import watching
    from hopper_gemm.measure.device import slug
    from hopper_gemm.model.rules.problem import filled_up
    from hopper_gemm.run.many import Many
    from hopper_gemm.run.source import Source
    from hopper_gemm.run.tune import question, study_name
    from hopper_gemm.study.files import write_whole
    from hopper_gemm.study.places import local_root, shown
    from hopper_gemm.study.shapes import read_shapes
    from hopper_gemm.tables.campaign import PAGE, Rate, campaign_page
    from hopper_gemm.tables.publish import publish

    read = read_shapes(shapes)
    problems = tuple(dict.fromkeys(map(filled_up, read.of_regime(options.regime))))
    if not problems:
        raise ValueError(f"no problem of {read.name} is marked steady; mark one, or tune it with M N K")
    source = Source(cluster=host) if cluster else _here(gpus, "a list")
    kind = source.gpus[0].name if source.gpus else ""
    folder = out or local_root() / (slug(kind) if kind else "cluster")
    specs = {problem: question(problem, options) for problem in problems}
    with watching(len(problems)) as (watch, line):

        def opened(problem: Any) -> Callable[[], Sweep]:
            name = study_name(problem, options.regime, options.context)
            return lambda: _sweep(specs[problem], source, folder / name, watch=watch, say=line)

        def settled(problem: Any, reason: str) -> None:
            line(f"{problem} {'failed: ' + reason if reason else 'done'}")

        many = Many(folder, [(problem, opened(problem)) for problem in problems], publish, settled)
        saying(as_json)(source.opening("Tuning", f"{len(problems)} problems ({read.name}, {options.regime})", folder))
        spec = specs[problems[0]]
        fresh = spec.final.processes if spec.final.best else 0
        _run(many, source, _job(read.name, source, seed=spec.seed, fresh=fresh), line, many)
    found = [_tuned(problem, many, folder / specs[problem].name) for problem in problems]
    rates = [Rate(name, clock.trials, clock.last - clock.first) for name, clock in many.clocks.items()]
    if rates:
        clocks = many.clocks.values()
        span = max(clock.last for clock in clocks) - min(clock.first for clock in clocks)
        rates.append(Rate("in all", sum(clock.trials for clock in clocks), span))
    about = f"Measured on {f'an {kind}' if kind else 'a cluster'}, {len(many.clocks) or len(source.gpus)} at a time."
    page = campaign_page(f"{read.name}, {options.regime}, {options.context}", about, found, rates)
    write_whole(folder / PAGE, page)
    if as_json:
        tuned = [one.as_dict() for one in found]
        print(json.dumps({"out": str(folder), "problems": tuned, "rates": [rate.as_dict() for rate in rates]}))
    else:
        print(f"\n{page}\nWritten to {shown(folder)}")
    left = [one for one in found if one.state != "tuned"]
    if left:
        first = f"the first is {left[0].problem}: {left[0].reason or 'not finished'}"
        fail(f"{len(left)} of {len(found)} problems are not tuned, {first}; run the same command", CHECK_FAILED)


def _tuned(problem: Any, many: Any, folder: Path) -> Any:
    """The line of a problem on the page of its list."""
    from hopper_gemm.study.row import ResultsError
    from hopper_gemm.tables.campaign import Tuned
    from hopper_gemm.tables.pivot import problem_label
    from hopper_gemm.tables.verdict import verdict

    label = problem_label(problem)
    if problem in many.failures:
        return Tuned(label, "failed", many.failures[problem])
    try:
        return verdict(folder).tuned if problem in many.settled else Tuned(label, "open")
    except ResultsError as error:
        return Tuned(label, "failed", str(error))


def _summary(folder: Path) -> dict[str, Any]:
    """The best of each place, ready for JSON."""
    from collections import Counter

    from hopper_gemm.study.reader import read_study
    from hopper_gemm.study.space import place_of

    study = read_study(folder)
    rows = study.stage("sweep")
    best: dict[str, Any] = {}
    for row in sorted((row for row in rows if row.ok), key=lambda row: row.figures["speedup"]):
        shown = ("tile_m", "tile_n", "k_depth", "stages", "stagger", "speedup", "speedup_low", "speedup_high", "tflops")
        best[place_of(row.point)] = {name: row.as_dict()[name] for name in shown}
    status = Counter(row.status for row in rows)
    return {"out": str(folder), "source": study.provenance["source"], "status": dict(status), "best": best}
