"""``hopper-gemm``: parses, calls, prints. Data goes to stdout, progress and complaints to stderr.

Exit codes: 0 fine; 1 a check failed; 2 bad input, one line saying what and the mend; 3 no suitable GPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hopper_gemm.model.problem import DTYPES

if TYPE_CHECKING:
    from hopper_gemm.tuning.run import SweepRun

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

BAD_INPUT, CHECK_FAILED, NO_GPU, INTERRUPTED = 2, 1, 3, 130

_TYPES = f"Element types, of operands and output or of operands, then output: {', '.join(DTYPES)}"

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]


def entry() -> None:
    """The command: what typer would print over several lines for a mistyped option becomes one."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as error:
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        asked_nothing = message.startswith("Usage")
        print(
            message if asked_nothing else f"hopper-gemm: {message.splitlines()[0].rstrip('.')}; see hopper-gemm --help",
            file=sys.stderr,
        )
        code = BAD_INPUT
    sys.exit(code)


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """One line (or one line for each mistake) on stderr, then out."""
    for line in message.splitlines():
        print(f"hopper-gemm: {line}", file=sys.stderr)
    raise typer.Exit(code)


def plain_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the errors that a user can mend into one line and an exit code."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        from hopper_gemm.measure.device import NoHopperError

        try:
            command(*args, **kwargs)
        except NoHopperError as error:
            fail(str(error), NO_GPU)
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            fail(str(error))

    return run


@app.callback()
def main() -> None:
    """Fast matrix multiplication on NVIDIA Hopper GPUs: sweeps, tables, and what limits a config."""


@app.command()
@plain_errors
def sweep(
    spec: Annotated[Path, typer.Argument(help="The question, as TOML; see sweeps/.")],
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/local/<gpu>/<name>.")] = None,
    storage: Annotated[str | None, typer.Option(help="Optuna storage: a journal file, or a database URL.")] = None,
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it.")] = "0",
    trials: Annotated[
        int | None, typer.Option(min=0, help="Stop after so many points; the rest can follow later.")
    ] = None,
    backend: Annotated[str, typer.Option(help="cuda, replay, or auto: cuda where there is a Hopper GPU.")] = "auto",
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Recorded study to replay. Default: the one of the same name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the points and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Measure every point of a sweep, or go on where the last run stopped."""
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.run import SweepRun

    run = SweepRun.prepare(spec, backend=backend, gpu=_one_gpu(gpus), out=out, recorded=recorded, storage=storage)
    say = _stderr if as_json else print
    if dry_run:
        plan = run.sweep.plan()
        refused = ", ".join(f"{count} by {rule}" for rule, count in plan.refused.items()) or "none"
        skipped = f" ({plan.skipped} of them skipped)" if plan.skipped else ""
        say(f"{plan.total} points: {plan.open} to measure, {plan.recorded} recorded, refused: {refused}{skipped}")
        legal = f" of {plan.legal} legal ones" if plan.open + plan.recorded < plan.legal else ""
        say(
            f"{plan.open + plan.recorded}{legal} get a row; timing those that are left takes {plan.minutes:.1f} minutes"
        )
        if as_json:
            counts: dict[str, float] = {
                "points": plan.total,
                "legal": plan.legal,
                "open": plan.open,
                "recorded": plan.recorded,
            }
            counts["minutes"] = round(plan.minutes, 2)
            print(json.dumps({**counts, "refused": plan.refused, "skipped": plan.skipped}))
        return
    say(run.opening)
    _execute(run, trials)
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
    dtype: Annotated[str, typer.Option(help=f"{_TYPES}; a list says so itself.")] = "bf16",
    regime: Annotated[str, typer.Option(help="burst, or steady: of a list only the problems marked so.")] = "burst",
    budget: Annotated[
        float | None,
        typer.Option("--budget", "--seconds", min=1, help="To search a problem; the finals come after. Default: 60."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Configs to measure. Default: what the time allows.")
    ] = None,
    sampler: Annotated[str, typer.Option(help="gp, tpe, prior, random or exhaustive.")] = "gp",
    backend: Annotated[str, typer.Option(help="cuda, replay, or auto: cuda where there is a Hopper GPU.")] = "auto",
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Recorded study to search in a replay, over what it recorded.")
    ] = None,
    warm_start: Annotated[
        list[Path] | None, typer.Option(help="Results folder whose rows are told to the sampler; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Results folder; of a list that of its problems' folders. Default: results/local/<gpu>/tune-<problem>."
        ),
    ] = None,
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it; for a list several: 0,1.")] = "0",
    as_json: Json = False,
) -> None:
    """Find the best config for one problem, or for each of a list, and put it into the tuned table. A list goes on
    where the last run stopped."""
    if shapes is not None:
        if (m, n, k) != (None, None, None):
            raise ValueError("give the problem as M N K or a list with --shapes, not both")
        if recorded is not None or backend == "replay":
            raise ValueError("a list is measured, not replayed; leave out --from and --backend, or give one M N K")
        if dtype != "bf16":
            raise ValueError(f"--dtype must be left to the list but got {dtype!r}; write it beside its problems")
        options = {"seconds": budget, "trials": trials, "sampler": sampler, "warm_start": warm_start or []}
        _tune_list(shapes, _several_gpus(gpus), regime, out, options, as_json)
        return
    if m is None or n is None or k is None:
        raise ValueError("tune needs a problem as M N K, or a list with --shapes")
    from hopper_gemm.model.problem import GemmProblem
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.tune import prepare, verdict

    run = prepare(
        GemmProblem(m, n, k, dtype),
        regime=regime,
        seconds=budget,
        trials=trials,
        sampler=sampler,
        backend=backend,
        gpu=_one_gpu(gpus),
        recorded=recorded,
        warm_start=warm_start or [],
        out=out,
    )
    (_stderr if as_json else print)(run.opening)
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
    (_stderr if as_json else print)(campaign.opening)
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
def simulate(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS_DIR", help="A recorded study, such as results/h200/seed-table.")
    ],
    samplers: Annotated[
        str, typer.Option(help="Names, with commas; gp-blind is gp without the model.")
    ] = "exhaustive,random,tpe,gp,prior",
    seeds: Annotated[int, typer.Option(min=1, help="Games of each sampler.")] = 30,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of a game. Default: a quarter of the space, at least 40.")
    ] = None,
    regime: Annotated[str | None, typer.Option(help="Only this regime.")] = None,
    problem: Annotated[str | None, typer.Option(help="Only this problem, as MxNxK.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for simulation.md, .png and .json.")] = None,
    as_json: Json = False,
) -> None:
    """Let samplers search a recorded study: how many trials does each need for its best? No GPU needed."""
    from hopper_gemm.tables.plots import regret_curves
    from hopper_gemm.tables.trials import write_json
    from hopper_gemm.tuning.simulate import course, recorded_problems, simulation_table, summary
    from hopper_gemm.tuning.simulate import simulate as simulated

    games = [
        game
        for game in recorded_problems(results)
        if regime in (None, game.group.regime) and problem in (None, game.group.problem)
    ]
    if not games:
        fail(f"{results} has no such problem and regime; leave out --problem and --regime to see all")
    curves = simulated(games, [name.strip() for name in samplers.split(",")], seeds, trials, _stderr)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulation.md").write_text(simulation_table(curves) + "\n")
        write_json(out / "simulation.json", [{**summary(curve), **course(curve)} for curve in curves])
        titled: dict[str, dict[str, Any]] = {}
        for curve in curves:
            titled.setdefault(curve.group.title, {})[curve.sampler] = curve.regret
        regret_curves(titled, out / "simulation.png", f"{results.name}: best so far, behind the recorded best")
    print(json.dumps([summary(curve) for curve in curves]) if as_json else simulation_table(curves))


@app.command()
@plain_errors
def ladder(
    spec: Annotated[Path | None, typer.Argument(help="A sweep with rungs. Default: sweeps/ladder.toml.")] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/local/<gpu>/<name>.")] = None,
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it.")] = "0",
    backend: Annotated[str, typer.Option(help="cuda, replay, or auto: cuda where there is a Hopper GPU.")] = "auto",
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Recorded study to replay. Default: the one of the same name.")
    ] = None,
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
    run = SweepRun.prepare(file, backend=backend, gpu=_one_gpu(gpus), out=out, recorded=recorded, storage=None)
    (_stderr if as_json else print)(run.opening)
    _execute(run)
    steps = run.ladder()
    if as_json:
        print(json.dumps([step.as_dict() for step in steps]))
    else:
        print(markdown_table(ladder_table(steps), "rung"))
        print(f"\n{LEGEND}\nWritten to {shown(run.sweep.out)}")


def _execute(run: SweepRun, trials: int | None = None) -> None:
    """Run a sweep under a progress bar; when interrupted, say what is left."""
    from hopper_gemm.progress import watching

    plan = run.sweep.plan()
    try:
        with watching(plan.total, plan.open if trials is None else min(trials, plan.open)) as watch:
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
def table(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS_DIR", help="A study's folder, such as results/h200/seed-table.")
    ],
    rows: Annotated[str, typer.Option(help="Column of the results that goes down.")] = "tile_m",
    cols: Annotated[str, typer.Option(help="Column of the results that goes across.")] = "k_depth",
    value: Annotated[str, typer.Option(help="Figure to show.")] = "speedup",
    form: Annotated[str, typer.Option("--format", help="md, csv or html.")] = "md",
    regime: Annotated[str | None, typer.Option(help="Only this regime.")] = None,
    problem: Annotated[str | None, typer.Option(help="Only this problem, as MxNxK.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Also write the folder's table.md and pictures anew.")] = False,
    as_json: Json = False,
) -> None:
    """Pivot a study's results, one table for each problem and regime."""
    from hopper_gemm.tables.pivot import groups, pivot
    from hopper_gemm.tables.report import read_study, render, source_line

    study = read_study(results)
    if write:
        from hopper_gemm.tables.publish import publish

        publish(results)
    tables = []
    for group, part in groups(study.trials):
        if regime in (None, group.regime) and problem in (None, group.problem):
            tables.append((group.label, pivot(part, rows, cols, value)))
    if not tables:
        known = ", ".join(f"{group.problem} {group.regime}" for group, _ in groups(study.trials))
        fail(f"{results} has no such problem and regime; it has {known}")
    if as_json:
        print(
            json.dumps(
                {
                    "source": source_line(study.provenance),
                    "tables": {name: frame.to_dict("index") for name, frame in tables},
                }
            )
        )
        return
    corner = f"{rows} \\ {cols}"
    parts = [f"{name}: {value}\n\n{render(frame, form, corner)}" for name, frame in tables]
    print("\n".join([f"{source_line(study.provenance)}\n", *parts]))


@app.command()
@plain_errors
def export(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS_DIR", help="A study's folder, such as results/h200/seed-table.")
    ],
    form: Annotated[str, typer.Option("--format", help="t4: Kernel Tuner's results format.")] = "t4",
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: t4.json; several problems have a file each.")
    ] = None,
    as_json: Json = False,
) -> None:
    """A study in the format of other tuners: T4, the open results format of the autotuning community."""
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tables.t4 import export as exported

    if form != "t4":
        fail(f"--format must be t4 but got {form!r}; tables come from hopper-gemm table RESULTS_DIR --format csv")
    written = exported(results, out)
    if as_json:
        print(json.dumps({"files": [str(path) for path in written]}))
    else:
        print("\n".join(f"Written to {shown(path)}" for path in written))


@app.command()
@plain_errors
def pack(
    results: Annotated[Path, typer.Argument(metavar="RESULTS_DIR", help="Folder of a finished study.")],
    as_json: Json = False,
) -> None:
    """Turn a finished study's CSV files into Parquet, a fifth of the size; every command reads either."""
    from hopper_gemm.tables.pack import pack as packed

    found = packed(results)
    if as_json:
        print(json.dumps({name: {"csv_bytes": old, "bytes": new} for name, (old, new) in found.items()}))
    else:
        print("\n".join(f"{name}: {new} bytes instead of {old}" for name, (old, new) in found.items()))


@app.command()
@plain_errors
def explain(
    m: Annotated[int, typer.Argument(help="Rows of A and C.")],
    n: Annotated[int, typer.Argument(help="Columns of B and C.")],
    k: Annotated[int, typer.Argument(help="Depth of the product.")],
    tile_m: Annotated[int, typer.Option(help="Rows of a CTA's tile.")] = 256,
    tile_n: Annotated[int, typer.Option(help="Columns of a CTA's tile.")] = 128,
    k_depth: Annotated[int, typer.Option(help="k-blocks of 16 per stage.")] = 4,
    stages: Annotated[str, typer.Option(help="Slots of the ring, or max.")] = "max",
    stagger: Annotated[int, typer.Option(help="wgmma groups in flight when a stage is released.")] = 1,
    consumers: Annotated[str, typer.Option(help="MMA warpgroups, or auto.")] = "auto",
    split: Annotated[str, typer.Option(help="Side the consumers divide: m, n or auto.")] = "auto",
    cluster: Annotated[str, typer.Option(help="CTAs of a cluster along m and n, as 2x1.")] = "1x1",
    epi_n: Annotated[str, typer.Option(help="Columns of an epilogue chunk, or auto.")] = "auto",
    epi_buffers: Annotated[str, typer.Option(help="Chunk buffers of a consumer, or max.")] = "max",
    dtype: Annotated[str, typer.Option(help=f"{_TYPES}.")] = "bf16",
    as_json: Json = False,
) -> None:
    """Can a config run a problem, what does it take of an SM, what would the chip allow, and what would matmul run
    instead. No GPU needed."""
    from hopper_gemm.model.config import GemmConfig
    from hopper_gemm.model.explain import explain as explained
    from hopper_gemm.model.legality import problem_reasons
    from hopper_gemm.model.predict import predict
    from hopper_gemm.model.problem import GemmProblem
    from hopper_gemm.tables.tuned import pick, recorded_entries
    from hopper_gemm.tuning.spec import fields_of

    config = GemmConfig(
        tile_m=tile_m,
        tile_n=tile_n,
        k_depth=k_depth,
        stages=_number_or(stages),
        stagger=stagger,
        consumers=_number_or(consumers),
        split=split,  # type: ignore[arg-type]
        epi_n=_number_or(epi_n),
        epi_buffers=_number_or(epi_buffers),
        **fields_of("cluster", cluster),
    )
    problem = GemmProblem(m, n, k, dtype)
    found = explained(config, problem)
    served = None if problem_reasons(problem) else pick(recorded_entries(), problem)
    if as_json:
        serves = None if served is None else {"config": served.config.as_dict(), "how": served.how}
        print(json.dumps({**found.as_dict(), "matmul": serves}))
        return
    print(f"{found.config} on {found.problem} {dtype}: {'legal' if found.legal else 'not legal'}")
    for reason in found.reasons:
        print(f"  refused     {reason}")
    regions = " + ".join(f"{name} {size}" for name, size in found.smem_map.items())
    print(f"  stages      up to {found.stages_max} of {found.stage_bytes} B, swizzle {found.swizzle_bytes} B")
    print(f"  smem        {found.smem_bytes} B = {regions}")
    print(
        f"  registers   {found.accumulators} accumulators per consumer thread, "
        f"{found.registers}, {found.threads} threads"
    )
    print(f"  wgmma       {found.wgmma} per consumer and stage")
    print(f"  waves       {found.tiles} tiles in {found.waves} waves, {found.wave_efficiency:.1%} of them useful")
    reads = f", wgmma reads {found.smem_read_bytes_per_flop:.4f} B/FLOP back" if found.smem_read_bytes_per_flop else ""
    print(f"  intensity   {found.flop_per_smem_byte:.1f} FLOP per byte into shared memory{reads}")
    print(f"  limit       {found.limit_us:.1f} us")
    if found.predicted_us is not None:
        print(f"  predicted   {found.predicted_us:.1f} us, paced by {found.paced_by}")
    if served is not None:
        how = {"model": "the model's choice"}.get(served.how, f"tuned on {served.tuned_on}")
        print(f"  matmul      {served.config}, {predict(served.config, problem).seconds * 1e6:.1f} us predicted; {how}")


@app.command()
@plain_errors
def check(
    everything: Annotated[bool, typer.Option("--all", help="The steady regime too.")] = False,
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Tuned table. Default: the recorded one of this kind of GPU.")
    ] = None,
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it.")] = "0",
    as_json: Json = False,
) -> None:
    """Do the recorded best configs still run, and still reach their recorded figures?"""
    from hopper_gemm.tuning.run import check_recorded

    checked = check_recorded(recorded, _one_gpu(gpus), everything)
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "problem": str(c.entry.problem),
                        "regime": c.entry.regime,
                        "config": str(c.entry.config),
                        "status": c.verdict.status,
                        "message": c.verdict.message,
                    }
                    for c in checked
                ]
            )
        )
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
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it.")] = "0",
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

    counting = Counting.prepare(target, _one_gpu(gpus), out, profiled=not no_ncu, metered=not no_meter)
    (_stderr if as_json else print)(counting.opening)

    def watch(counted: Any, done: int, total: int) -> None:
        ending = f": {counted.reason or counted.note}" if counted.reason or counted.note else ""
        _stderr(f"{done}/{total} {counted.request}{ending}")

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
    regime: Annotated[str, typer.Option(help="burst, or steady: of a list only the problems marked so.")] = "burst",
    config: Annotated[
        str, typer.Option(help="tuned: the best known; auto: what matmul picks for a problem nobody tuned.")
    ] = "tuned",
    recorded: Annotated[
        Path | None, typer.Option("--from", help="Tuned table. Default: the recorded one of this kind of GPU.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: results/local/<gpu>/compare-<list>.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Measure everything in so many fresh processes.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many results; the rest can follow later.")
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="Only the host time of a launch.")] = False,
    gpus: Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it.")] = "0",
    as_json: Json = False,
) -> None:
    """Our kernel beside cuBLAS, the best of cuBLASLt and other libraries; goes on where the last run stopped."""
    from hopper_gemm.tables.compare import PAGE
    from hopper_gemm.tables.places import shown
    from hopper_gemm.tuning.compare import Comparison, host_times

    if host:
        times = host_times(_one_gpu(gpus))
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
        gpu=_one_gpu(gpus),
        processes=processes,
    )
    (_stderr if as_json else print)(comparison.opening)

    def watch(cell: Any, result: Any, done: int, total: int) -> None:
        figures = result.figures
        found = (
            f"{figures['speedup']:.3f}x [{figures['speedup_low']:.3f}, {figures['speedup_high']:.3f}], "
            f"{figures['time_us']:.1f} us against {figures['theirs_us']:.1f}"
            if result.status == "ok"
            else f"{result.status.replace('_', ' ')}: {result.reason}"
        )
        _stderr(f"{done}/{total} {cell}: {found}")

    try:
        comparison.run(watch, limit)
    except KeyboardInterrupt:
        fail(f"stopped; what was measured is in {comparison.out}, run the same command to go on", INTERRUPTED)
    for name, reason in comparison.missing.items():
        _stderr(f"without {name}: {reason}")
    if as_json:
        print(json.dumps(comparison.summary()))
        return
    page = comparison.out / PAGE
    print(f"\n{page.read_text() if page.is_file() else 'nothing was measured'}")
    print(f"Written to {shown(comparison.out)}")


@app.command()
@plain_errors
def doctor(as_json: Json = False) -> None:
    """What is here, what is missing, what to do."""
    from hopper_gemm.doctor import examine

    findings = examine()
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.mark:7} {finding.what}: {finding.found}{f'; {finding.mend}' if finding.mend else ''}")
    if any(finding.mark == "missing" for finding in findings):
        raise typer.Exit(CHECK_FAILED)


def _one_gpu(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"--gpus must be the index of one GPU but got {text!r}")
    return int(text)


def _several_gpus(text: str) -> list[int]:
    found = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in found) or len({int(word) for word in found}) < len(found):
        raise ValueError(f"--gpus must be indices with commas, each once, such as 0,1, but got {text!r}")
    return [int(word) for word in found]


def _number_or(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else text


def _stderr(text: str) -> None:
    print(text, file=sys.stderr)
