"""Commands that measure problems, on Hopper GPUs or in a replay."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, LINE_SECONDS, command, fail, saying, stderr
from hopper_gemm.cli.reading import show
from hopper_gemm.cli.shorthand import EXPLANATION, wording
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import local_root, read_tuned, slug
from hopper_gemm.tune.study.files import shown, suite_file, write_whole
from hopper_gemm.tune.study.reader import read_study

LOOPBACK = "127.0.0.1"


@command
def sweep(
    spec: Annotated[Path, Argument(metavar="SPEC.toml", help="Question of the sweep, as TOML; see sweeps/.")],
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    cluster: options.Cluster = False,
    host: options.Host = LOOPBACK,
    trials: options.Trials = None,
    backend: options.BackendName = "auto",
    recorded: options.Recorded = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Count the points and stop; with -v a line for each refused one.")
    ] = False,
    verbose: options.Verbose = False,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Measure the points of a sweep.

    Every row is written as it comes; the same command goes on where the last run stopped. Without a Hopper GPU the
    recorded measurements are replayed.
    """
    from hopper_gemm.cli.running import open_sweep, run_sweep, summary
    from hopper_gemm.tune.run.source import NotRecordedError, Source, choose, recorded_study
    from hopper_gemm.tune.study.space import place_of, points
    from hopper_gemm.tune.study.spec import read_spec
    from hopper_gemm.tune.tables.html.document import document
    from hopper_gemm.tune.tables.view import view

    say, question = saying(as_json), read_spec(spec)
    try:
        listen, indices = options.listening(cluster, host), options.gpus_of(gpus)
        source = choose(lambda why: recorded or recorded_study(question.name, why), backend, indices, listen)
    except NotRecordedError:
        if not dry_run:
            raise
        source = Source()
    if dry_run:
        plan = open_sweep(question, source, out, trials=trials).plan()
        listed = points(question).items() if verbose else ()
        for line in (*plan.lines(), *(f"{place_of(point)} {point.config}: {why}" for point, why in listed if why)):
            say(line)
        if as_json:
            print(json.dumps(plan.as_dict()))
        return
    folder = run_sweep(question, source, out, "Measuring", say, verbose, long, trials=trials)
    if as_json:
        print(json.dumps(summary(folder)))
    else:
        study = read_study(folder)
        show(view(study), page=(folder / "table.md").read_text(), long=long)
        with suppress(ModuleNotFoundError):  # of the extra lab
            write_whole(folder / "report.html", document(study))
            stderr(f"To look at: {(folder / 'report.html').absolute().as_uri()}")


@command
def tune(
    m: options.MaybeM = None,
    n: options.MaybeN = None,
    k: options.MaybeK = None,
    shapes: options.Shapes = None,
    marked: Annotated[bool, Option("--marked", help="Of a list only the problems marked search.")] = False,
    dtype: options.Dtype = "bf16",
    scales: options.Scales = None,
    promote: options.Promote = 0,
    regime: options.Regime = "burst",
    context: options.Context = "isolated",
    budget: Annotated[
        float | None, Option("--budget", "--seconds", min=1, metavar="SECONDS", help="Time to search for. Default: 60.")
    ] = None,
    trials: Annotated[int | None, Option(min=1, help="Configs to measure. Default: as time allows.")] = None,
    sampler: Annotated[options.SamplerName, Option(help="gp, tpe, prior, random or exhaustive.")] = "gp",
    backend: Annotated[
        options.CudaOrReplay, Option(help="cuda; or replay: search a recorded study, which tunes nothing.")
    ] = "cuda",
    recorded: Annotated[
        Path | None, Option("--from", help="Study to replay. Default: the recorded one of this problem.")
    ] = None,
    warm_start: Annotated[
        list[Path] | None, Option(metavar="DIR", help="Results folder to begin with; may be repeated.")
    ] = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    cluster: options.Cluster = False,
    host: options.Host = LOOPBACK,
    tuned_first: options.TunedFirst = True,
    groups: options.Groups = None,
    grouping: options.Grouping = "rows",
    pdl: Annotated[
        bool | None, Option(help="Search programmatic dependent launch too. Default: for short chained launches.")
    ] = None,
    finals: Annotated[int | None, Option(min=1, help="Configs to measure again. Default: 8.")] = None,
    batch_invariant: options.BatchInvariant = False,
    verbose: options.Verbose = False,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Find the best config of a problem for matmul to run.

    It goes into your tuned table, which matmul reads first. With --shapes every problem of a list is tuned, in one
    study; several GPUs tune several problems at a time. The same command goes on where the last run stopped.

    With --groups it is for grouped_mm, or bmm whose second operand lies along k, as b.mT: the model's best --trials
    picks are timed, 16 by default.
    """
    if groups is not None:
        if m is None or n is None or k is None:
            raise ValueError("--groups needs a problem as M N K")
        others = {"--shapes": shapes, "--scales": scales, "--backend": backend == "replay", "--seconds": budget}
        others |= {"--regime": regime == "steady", "--batch-invariant": batch_invariant, "--out": out}
        if wrong := [name for name, value in (others | {"--gpus": gpus != "0", "--cluster": cluster}).items() if value]:
            raise ValueError(f"--groups times picks of one M N K of 16 bits on this GPU; leave out {', '.join(wrong)}")
        _tune_groups(GroupedProblem(m, n, k, dtype, groups=groups, grouping=grouping), context, trials, long, as_json)
        return
    from hopper_gemm.cli.running import local_source, run_sweep
    from hopper_gemm.tune.run.questions.tune import question, recorded_problem
    from hopper_gemm.tune.run.source import Source, choose
    from hopper_gemm.tune.study.shapes import read_shapes
    from hopper_gemm.tune.tables.conclusion import conclude

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
        from hopper_gemm.tune.tables.pages.report import winners

        if backend == "replay":
            raise ValueError("a list is measured, not replayed; leave out --backend replay, or give one M N K")
        if dtype != "bf16" and not scales:
            raise ValueError(f"--dtype must be left to the list but got {dtype!r}; write it beside its problems")
        read = read_shapes(shapes)
        listed = options.with_rule(read.of_regime(regime, marked), batch_invariant)
        problems = options.with_recipe(listed, dtype, scales, promote)
        if not problems:
            mark, instead = ("search", "leave out --marked") if marked else ("steady", "tune it with M N K")
            raise ValueError(f"no problem of {read.name} is marked {mark}; mark one, or {instead}")
        source = Source(cluster=listen) if listen else local_source(gpus, "a list")
        spec = question(problems, keys, listed=options.titled(read.name, problems), **ahead)
        folder = run_sweep(spec, source, out, "Tuning", say, verbose, long)
        best = winners(read_study(folder))
        result = {"out": str(folder), "problems": [winner.as_dict() for winner in best]}
        print(json.dumps(result) if as_json else wording(long)((folder / "table.md").read_text()))
        if left := [winner.key for winner in best if not winner.final]:
            lacking = f"{len(left)} of {len(best)} problems are not tuned"
            fail(f"{lacking}, the first is {left[0]}; its rows say why", CHECK_FAILED)
        return
    if m is None or n is None or k is None:
        raise ValueError("tune needs a problem as M N K, or a list with --shapes")
    sizes = GemmProblem(m, n, k, batch_invariant=batch_invariant)
    (problem,) = options.with_recipe([sizes], dtype, scales, promote)
    indices = options.gpus_of(gpus)
    source = choose(lambda _: recorded or recorded_problem(problem, regime, context), backend, indices, listen)
    spec = question([problem], keys, recorded=source.recorded, **ahead)
    folder = run_sweep(spec, source, out, "Tuning", say, verbose, long)
    conclusion = conclude(folder)
    text = wording(long)("\n".join(conclusion.lines()))
    print(json.dumps({**asdict(conclusion), "out": str(folder)}) if as_json else text)


def _tune_groups(problem: GroupedProblem, context: str, trials: int | None, long: bool, as_json: bool) -> None:
    """Time the best picks of groups; operands lie as experts' and their gradients' do."""
    from hopper_gemm.tune.measure.device import find_hopper

    find_hopper()
    from hopper_gemm.tune.autotune import time_groups

    if problem.deep:
        problem = replace(problem, layouts="mn")
    spell = wording(long)
    done = time_groups(problem, context, trials, say=lambda line: stderr(spell(line)))
    print(json.dumps([asdict(entry) for entry in done.measured]) if as_json else spell(str(done)))
    if done.failed:
        fail("; ".join(done.failed.values()), CHECK_FAILED)


@command
def compare(
    sizes: options.Sizes = None,
    shapes: options.Shapes = None,
    against: Annotated[
        str | None,
        Option(
            help="cublas, cublaslt, heuristics, triton, quack, with commas. Default: the first two; of a replay all."
        ),
    ] = None,
    dtype: options.Dtype = "bf16",
    scales: options.Scales = None,
    promote: options.Promote = 0,
    regime: options.Regime = "burst",
    context: options.Context = "isolated",
    config: Annotated[
        Literal["tuned", "auto"], Option(help="tuned: the best known; auto: as if nobody had tuned it.")
    ] = "tuned",
    batch_invariant: options.BatchInvariant = False,
    backend: Annotated[
        options.CudaOrReplay, Option(help="cuda; or replay: show what is recorded, without a GPU, and write nothing.")
    ] = "cuda",
    recorded: Annotated[Path | None, Option("--from", help="Tuned table; of a replay a study's folder.")] = None,
    out: options.StudyOut = None,
    processes: Annotated[int, Option(min=1, help="Measure everything in so many fresh processes.")] = 1,
    finalists: Annotated[
        Path | None, Option(metavar="DIR", help="A comparison whose cuBLASLt finalists are taken instead of a search.")
    ] = None,
    limit: options.Limit = None,
    gpus: options.Gpus = "0",
    shared: options.Shared = False,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Say where the seconds of each row went.")] = False,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Compare the kernel with cuBLAS and other libraries.

    Each problem runs the config that matmul runs. The same command goes on where the last run stopped.
    """
    from hopper_gemm.tune.study.shapes import problems_of
    from hopper_gemm.tune.study.spec import command_spec
    from hopper_gemm.tune.tables.comparison import recorded as recorded_comparison
    from hopper_gemm.tune.tables.view import view

    if finalists is not None and backend == "replay":
        raise ValueError(f"--finalists shortens a measurement but --backend is {backend}; leave one of them out")
    names = tuple(dict.fromkeys(filter(None, ("cublas,cublaslt" if against is None else against).split(","))))
    if not names:
        raise ValueError(f"--against must name a baseline but got {against!r}; leave it out for cublas,cublaslt")
    title, text, problems = problems_of(shapes, sizes or (), regime)
    problems = options.with_recipe(options.with_rule(problems, batch_invariant), dtype, scales, promote)
    keys: dict[str, Any] = {"regimes": [regime], "contexts": [context], "processes": processes}
    keys |= {"config": config, "against": names}
    spec = command_spec("compare", problems, name=options.titled(title, problems), question=text, **keys)
    unusual: list[str] = [word for word, usual in ((context, "isolated"), (config, "tuned")) if word != usual]
    unusual += ["batch-invariant"] * batch_invariant
    if backend == "replay":
        lists = [path.stem for path in sorted(suite_file().parent.glob("*.toml"))] if sizes else [title]
        words = [*(["steady"] if regime == "steady" else []), *unusual]
        plain = [options.titled(stem, problems) for stem in lists]
        stems = [*("-".join([stem, *words]) for stem in plain), *plain * (config == "tuned")]
        wanted = None if against is None else names
        study = recorded_comparison(stems, problems, wanted, (regime, context), recorded)
        if absent := {*(wanted or ())} - {row.point.against for row in study.rows}:
            stderr(f"{', '.join(sorted(absent))} is not recorded there; --from names another folder")
        show(view(study), "json" if as_json else None, long=long)
        return
    from hopper_gemm.cli.running import conclude, local_source, run_question
    from hopper_gemm.model.lookup import Table, tables
    from hopper_gemm.tune.run.questions.compare import Comparison

    source = local_source(gpus, "a comparison", "; --backend replay shows a recorded one")
    kind, title = source.gpus[0].name, spec.name
    folder = out or local_root() / slug(kind) / "-".join(["compare", title, *unusual])

    def watch(row: Any, done: int, total: int) -> None:
        outcome = f"{row.status.replace('_', ' ')}: {row.reason}"
        if row.ok:
            form = "{speedup:.3f}x [{speedup_low:.3f}, {speedup_high:.3f}], {time_us:.1f} us against {baseline_us:.1f}"
            outcome = form.format(**row.figures)
        stderr(f"{done}/{total} {row.point.problem} {row.point.against}: {outcome}")

    among = [Table(tuple(read_tuned(recorded)), recorded)] if recorded else tables(slug(kind), stderr)
    comparison = Comparison(spec, folder, kind, tables=among, limit=limit, watch=watch, say=stderr)
    if finalists is not None:
        comparison.begin_with(finalists)
    what = f"{len(problems)} problems with {', '.join(names)} in {regime}, {context}"
    saying(as_json)(source.opening("Comparing", what, folder))
    if comparison.open:
        job = {"against": names, "fresh": min(processes - 1, 1), "verbose": verbose}
        run_question(comparison, source, title, stderr, comparison, shared=shared, **job)
    conclude(comparison, {"missing": comparison.missing}, f"Written to {shown(folder)}", as_json, long)


@command
def map(
    shapes: options.Shapes = None,
    seconds: Annotated[
        float | None, Option(min=1, help="Begin no further problem after this time. Default: map all.")
    ] = None,
    held_out: Annotated[
        bool, Option("--held-out", help="Map only the problems of the list that nothing is fitted to.")
    ] = False,
    drawn: Annotated[
        int | None, Option(min=0, help="Kernels of a problem drawn from the menu; 0: only picks. Default: 24.")
    ] = None,
    backend: Annotated[
        options.CudaOrReplay, Option(help="cuda; or replay: show what is recorded, and write nothing.")
    ] = "cuda",
    recorded: options.Recorded = None,
    out: options.StudyOut = None,
    gpus: options.Gpus = "0",
    shared: options.Shared = False,
    as_json: options.Json = False,
) -> None:
    """Measure what picks for untuned problems are worth.

    Of each problem the pick's eight best kernels, 24 drawn from the menu, torch.mm and cuBLASLt's heuristic list are
    measured. Problems come in a shuffled order, so that a part of a map is a sample; the same command goes on.
    """
    from hopper_gemm.cli.running import ALARMING, conclude, local_source, run_question
    from hopper_gemm.tune.run.questions.map import LIBRARY, SEED, Map
    from hopper_gemm.tune.run.source import recorded_study
    from hopper_gemm.tune.study.shapes import read_shapes
    from hopper_gemm.tune.study.spec import command_spec
    from hopper_gemm.tune.tables.view import view

    read = read_shapes(shapes or suite_file().with_name("map.toml"))
    name = f"{read.name}-held-out" if held_out else read.name
    if backend == "replay":
        show(view(read_study(recorded or recorded_study(name, ""))), "json" if as_json else None)
        return
    problems = tuple(dict.fromkeys(section.problem() for section in read.problems if section.held_out or not held_out))
    if not problems:
        raise ValueError(f"{read.name} must hold problems to map but none is held out; leave --held-out away")
    if recorded is not None:
        raise ValueError(f"--from names a study to show but --backend is {backend}; add --backend replay")
    source = local_source(gpus, "a map", "; --backend replay shows a recorded one")
    last_line = started = time.monotonic()

    def watch(row: Any, done: int, total: int) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line >= LINE_SECONDS or row.status in ALARMING:
            last_line = now
            what = f"{row.figures['speedup']:.3f}x" if row.ok else f"{row.status.replace('_', ' ')}: {row.reason}"
            pick = f"{row.figures['how']} over {row.point.against}"
            stderr(f"{now - started:7.1f}s {done}/{total} problems, {row.point.problem} {pick}: {what}")

    keys: dict[str, Any] = {"seed": SEED, "menu": {} if drawn is None else {"drawn": drawn}}
    spec = command_spec("map", problems, name=name, question=read.question, against=["cublas", LIBRARY], **keys)
    folder = out or source.folder(spec)
    question = Map(spec, folder, source.gpus[0].name, seconds=seconds, watch=watch, say=stderr)
    saying(as_json)(source.opening("Mapping", f"{len(problems)} problems", folder))
    run_question(question, source, name, stderr, question, shared=shared, against=tuple(spec.against))
    note = f"{question.open} problems to go; written to {shown(folder)}"
    conclude(question, {"open": question.open}, note, as_json)


@command
def warmup(
    sizes: options.Sizes = None,
    shapes: options.Shapes = None,
    dtype: Annotated[options.DtypeName, Option(help=f"{options.TYPES}.")] = "bf16",
    layouts: options.Layouts = "kk",
    candidates: Annotated[int, Option(min=1, help="Picks to time of a problem that nobody tuned.")] = 4,
    batch_invariant: options.BatchInvariant = False,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Time a few picks of untuned problems; keep the fastest for matmul.

    It takes a fraction of a second a problem once its kernels are compiled. What tune finds comes before it.
    """
    from hopper_gemm.cli.running import local_source
    from hopper_gemm.tune.study.shapes import problems_of

    local_source("0", "a warm-up", "; hopper-gemm prebuild needs no GPU")
    from hopper_gemm.tune.warmup import warmup as warm_up

    _, _, problems = problems_of(shapes, sizes or (), "burst")
    if sizes:
        problems = tuple(replace(problem, dtype=dtype, layouts=layouts) for problem in problems)
    if not long:
        stderr(f"Configs: {EXPLANATION}.")
    spell = wording(long)
    done = warm_up(options.with_rule(problems, batch_invariant), candidates, say=lambda line: stderr(spell(line)))
    if as_json:
        failed = [{"problem": asdict(problem), "reason": why} for problem, why in done.failed.items()]
        print(json.dumps({**asdict(replace(done, failed={})), "failed": failed}))
    else:
        print(spell(str(done)))
    if done.failed:
        fail(f"{len(done.failed)} problems have no candidate that could be compiled", CHECK_FAILED)


@command
def worker(
    address: Annotated[str, Argument(metavar="URL", help="Of the coordinator, as sweep --cluster prints it.")],
    pem: Annotated[Path, Option(help="File with certificate and key, which the coordinator made.")],
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
