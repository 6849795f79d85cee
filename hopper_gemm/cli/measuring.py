"""Commands that measure, on a Hopper GPU or in a replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopper_gemm.cli.app import CHECK_FAILED, INTERRUPTED, app, fail, plain_errors, saying, stderr
from hopper_gemm.cli.options import (
    TYPES,
    BackendName,
    Gpu,
    Json,
    Recorded,
    Regime,
    StudyOut,
    TunedTable,
    one_gpu,
    several_gpus,
)

if TYPE_CHECKING:
    from hopper_gemm.tuning.run import SweepRun


@app.command()
@plain_errors
def sweep(
    spec: Annotated[Path, typer.Argument(help="The question, as TOML; see sweeps/.")],
    out: StudyOut = None,
    storage: Annotated[str | None, typer.Option(help="Optuna storage: a journal file, or a database URL.")] = None,
    gpus: Annotated[
        str, typer.Option(help="Index of the GPU, as nvidia-smi lists it; for one sweep on several: 0,1.")
    ] = "0",
    trials: Annotated[
        int | None, typer.Option(min=0, help="Stop after so many points; the rest can follow later.")
    ] = None,
    backend: BackendName = "auto",
    recorded: Recorded = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the points and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Measure every point of a sweep, or go on where the last run stopped."""
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.run import SweepRun

    where: dict[str, Any] = {"out": out, "recorded": recorded, "storage": storage}
    say = saying(as_json)
    indices = several_gpus(gpus)
    if dry_run:
        plan = SweepRun.plan(spec, backend=backend, gpu=indices[0], **where)
        for line in plan.lines():
            say(line)
        if as_json:
            print(json.dumps(plan.as_dict()))
        return
    if len(indices) > 1 and trials is not None:
        raise ValueError(f"--trials is for one GPU but --gpus is {gpus}; name one, or leave --trials out")
    run = SweepRun.prepare(spec, backend=backend, gpu=indices[0], **where)
    say(run.opening)
    _execute(run, trials, indices if run.gpu is not None else indices[:1], storage)
    if as_json:
        print(json.dumps(run.summary()))
    else:
        print((run.sweep.out / "table.md").read_text())
        print(f"Written to {shown(run.sweep.out)}")


@app.command()
@plain_errors
def tune(
    m: Annotated[int | None, typer.Argument(help="Rows of A and C.")] = None,
    n: Annotated[int | None, typer.Argument(help="Columns of B and C.")] = None,
    k: Annotated[int | None, typer.Argument(help="Depth of the product.")] = None,
    shapes: Annotated[Path | None, typer.Option(help="Instead of M N K a list of problems, as TOML.")] = None,
    dtype: Annotated[str, typer.Option(help=f"{TYPES}; a list says so itself.")] = "bf16",
    regime: Regime = "burst",
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
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it; for a list several: 0,1.")] = "0",
    early: Annotated[
        bool | None,
        typer.Option(
            help="Search kernels too that start while the one ahead on the stream drains. Default: for short problems."
        ),
    ] = None,
    finals: Annotated[
        int | None, typer.Option(help="Configs to measure again in fresh processes. Default: 8.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the best config for one problem, or for each of a list, and put it into the tuned table. A list goes on
    where the last run stopped."""
    options: dict[str, Any] = {
        "seconds": budget,
        "trials": trials,
        "sampler": sampler,
        "warm_start": warm_start or [],
        "early": early,
        "finals": finals,
    }
    if shapes is not None:
        if (m, n, k) != (None, None, None):
            raise ValueError("give the problem as M N K or a list with --shapes, not both")
        if recorded is not None or backend == "replay":
            raise ValueError("a list is measured, not replayed; leave out --from and --backend, or give one M N K")
        if dtype != "bf16":
            raise ValueError(f"--dtype must be left to the list but got {dtype!r}; write it beside its problems")
        _tune_list(shapes, several_gpus(gpus), regime, out, options, as_json)
        return
    if m is None or n is None or k is None:
        raise ValueError("tune needs a problem as M N K, or a list with --shapes")
    from hopper_gemm.model.legality import filled_up
    from hopper_gemm.model.problem import GemmProblem
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.tune import prepare, verdict

    asked = GemmProblem(m, n, k, dtype)
    problem = filled_up(asked)
    if problem != asked:
        saying(as_json)(f"TMA cannot reach the matrices of {asked}; tuned is {problem}, as matmul runs it on copies")
    run = prepare(
        problem,
        regime=regime,
        backend=backend,
        gpu=one_gpu(gpus),
        recorded=recorded,
        out=out,
        **options,
    )
    saying(as_json)(run.opening)
    _execute(run)
    found = verdict(run.sweep.out)
    if as_json:
        print(json.dumps({**found.as_dict(), "out": str(run.sweep.out)}))
        return
    print("\n".join(found.lines()))
    print(f"Written to {shown(run.sweep.out)}")


def _tune_list(
    shapes: Path, gpus: list[int], regime: str, out: Path | None, options: dict[str, Any], as_json: bool
) -> None:
    """Tune every problem of a list; say what is left when interrupted."""
    from hopper_gemm.progress import telling
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.campaign import Campaign

    campaign = Campaign.prepare(shapes, gpus=gpus, regime=regime, out=out, **options)
    saying(as_json)(campaign.opening)
    try:
        found = campaign.run(telling())
    except KeyboardInterrupt:
        to_go = sum(one.state == "open" for one in campaign.found())
        fail(
            f"stopped with {to_go} of {len(campaign.problems)} problems to go; what was measured is in {campaign.out}, "
            "run the same command to go on",
            INTERRUPTED,
        )
    if as_json:
        rates = [rate.as_dict() for rate in campaign.rates]
        problems = [one.as_dict() for one in found]
        print(json.dumps({"out": str(campaign.out), "problems": problems, "rates": rates}))
    else:
        print(f"\n{campaign.page(found)}\nWritten to {shown(campaign.out)}")
    left = [one for one in found if one.state in ("failed", "open")]
    if left:
        fail(
            f"{len(left)} of {len(found)} problems are not tuned, the first is {left[0].problem}: "
            f"{left[0].reason or 'not finished'}; run the same command to go on",
            CHECK_FAILED,
        )


@app.command()
@plain_errors
def ladder(
    spec: Annotated[Path | None, typer.Argument(help="A sweep with rungs. Default: sweeps/ladder.toml.")] = None,
    out: StudyOut = None,
    gpus: Gpu = "0",
    backend: BackendName = "auto",
    recorded: Recorded = None,
    as_json: Json = False,
) -> None:
    """Every design step of the study, one table: how fast, against cuBLAS, and the gain over the step before."""
    from hopper_gemm.tables.ladder import ladder_table
    from hopper_gemm.tables.places import ladder_file, shown
    from hopper_gemm.tables.report import LEGEND, markdown_table
    from hopper_gemm.tuning.run import SweepRun
    from hopper_gemm.tuning.spec import read_spec

    file = spec or ladder_file()
    if not read_spec(file).rungs:
        fail(f"{shown(file)} has no [[rungs]]; name a sweep that has, or run it with hopper-gemm sweep")
    run = SweepRun.prepare(file, backend=backend, gpu=one_gpu(gpus), out=out, recorded=recorded, storage=None)
    saying(as_json)(run.opening)
    _execute(run)
    steps = run.ladder()
    if as_json:
        print(json.dumps([step.as_dict() for step in steps]))
    else:
        print(markdown_table(ladder_table(steps), "rung"))
        print(f"\n{LEGEND}\nWritten to {shown(run.sweep.out)}")


def _execute(run: SweepRun, trials: int | None = None, gpus: Sequence[int] = (0,), storage: str | None = None) -> None:
    """Run a sweep under a progress bar, on one GPU or several; when interrupted, say what is left."""
    from hopper_gemm.progress import watching
    from hopper_gemm.tuning.together import Together

    plan = run.sweep.plan()
    try:
        with watching(plan.total, plan.open if trials is None else min(trials, plan.open)) as watch:
            if len(gpus) > 1:
                together = Together(run.sweep.spec, run.sweep.out, tuple(gpus), storage)
                for complaint in together.run(watch):
                    stderr(complaint)
            else:
                run.execute(watch, trials)
    except KeyboardInterrupt:
        left, rows = run.sweep.plan().open, plan.total - plan.skipped
        fail(
            f"stopped with {left} of {rows} points to go; what was measured is in {run.sweep.out}, "
            "run the same command to go on",
            INTERRUPTED,
        )


@app.command()
@plain_errors
def check(
    everything: Annotated[bool, typer.Option("--all", help="The steady regime too.")] = False,
    recorded: TunedTable = None,
    gpus: Gpu = "0",
    as_json: Json = False,
) -> None:
    """Do the recorded best configs still run, and still reach their recorded figures?"""
    from hopper_gemm.tuning.run import check_recorded

    checked = check_recorded(recorded, one_gpu(gpus), everything)
    if as_json:
        print(json.dumps([one.as_dict() for one in checked]))
    else:
        for one in checked:
            print(f"{one.verdict.status:8} {one.entry.problem} {one.entry.regime}  {one.entry.config}")
            print(f"         {one.verdict.message}")
    if any(one.verdict.status == "fallen" for one in checked):
        raise typer.Exit(CHECK_FAILED)


@app.command()
@plain_errors
def counters(
    target: Annotated[
        Path,
        typer.Argument(metavar="SPEC_OR_RESULTS", help="A sweep, for all its legal configs; or a study's folder."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for counters.csv. Default: the study's.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many configs; the rest can follow later.")
    ] = None,
    gpus: Gpu = "0",
    no_ncu: Annotated[
        bool, typer.Option("--no-ncu", help="Only what our kernel counts itself; needs no profiler.")
    ] = False,
    no_meter: Annotated[bool, typer.Option("--no-meter", help="Only what the profiler counts.")] = False,
    as_json: Json = False,
) -> None:
    """Hardware counters of a study's kernels and of cuBLAS: clock, traffic, L2 hits, instructions; and how often our
    kernel's roles find a stage ready, and how long they wait."""
    from hopper_gemm.tables.counters import counters_table, read_counters
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.counting import Counting

    counting = Counting.prepare(target, one_gpu(gpus), out, profiled=not no_ncu, metered=not no_meter)
    saying(as_json)(counting.opening)

    def watch(counted: Any, done: int, total: int) -> None:
        ending = f": {counted.reason or counted.note}" if counted.reason or counted.note else ""
        stderr(f"{done}/{total} {counted.request}{ending}")

    written = counting.run(watch, limit)
    left = len(counting.open_requests())
    if not written and counting.failed:
        fail(f"nothing could be counted; the first of {len(counting.failed)} failures: {counting.failed[0].reason}")
    frame = read_counters(counting.out)
    if as_json:
        failed = [{"launch": str(counted.request), "reason": counted.reason} for counted in counting.failed]
        rows = json.loads(frame.to_json(orient="records"))
        print(json.dumps({"out": str(counting.out), "counted": written, "open": left, "failed": failed, "rows": rows}))
        return
    print(f"\n{counters_table(frame)}")
    print(f"{written} counted now, {len(counting.failed)} failed, {left} to go; written to {shown(counting.out)}")


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
    gpus: Gpu = "0",
    as_json: Json = False,
) -> None:
    """Our kernel beside cuBLAS, the best of cuBLASLt and other libraries; goes on where the last run stopped."""
    from hopper_gemm.tables.compare import PAGE
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.compare import Comparison, host_times

    if host:
        times = host_times(one_gpu(gpus))
        if as_json:
            print(json.dumps(times))
        else:
            print("\n".join(f"{name:20} {us:6.2f} us of the host a launch" for name, us in times.items()))
        return
    comparison = Comparison.prepare(
        shapes,
        sizes or (),
        against=against,
        regime=regime,
        config=config,
        recorded=recorded,
        out=out,
        gpu=one_gpu(gpus),
        processes=processes,
    )
    saying(as_json)(comparison.opening)

    def watch(cell: Any, result: Any, done: int, total: int) -> None:
        figures = result.figures
        found = (
            f"{figures['speedup']:.3f}x [{figures['speedup_low']:.3f}, {figures['speedup_high']:.3f}], "
            f"{figures['time_us']:.1f} us against {figures['theirs_us']:.1f}"
            if result.status == "ok"
            else f"{result.status.replace('_', ' ')}: {result.reason}"
        )
        stderr(f"{done}/{total} {cell}: {found}")

    try:
        comparison.run(watch, limit)
    except KeyboardInterrupt:
        fail(f"stopped; what was measured is in {comparison.out}, run the same command to go on", INTERRUPTED)
    for name, reason in comparison.missing.items():
        stderr(f"without {name}: {reason}")
    if as_json:
        print(json.dumps(comparison.summary()))
        return
    page = comparison.out / PAGE
    print(f"\n{page.read_text() if page.is_file() else 'nothing was measured'}")
    print(f"Written to {shown(comparison.out)}")
