"""Commands that need no GPU: they read results, or only think."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopper_gemm.cli.app import CHECK_FAILED, app, fail, plain_errors, stderr
from hopper_gemm.cli.options import (
    TYPES,
    Json,
    OnlyProblem,
    OnlyRegime,
    StudyFolder,
    number_or,
)

if TYPE_CHECKING:
    pass


@app.command()
@plain_errors
def table(
    results: StudyFolder,
    rows: Annotated[str, typer.Option(help="Column of the results that goes down.")] = "tile_m",
    cols: Annotated[str, typer.Option(help="Column of the results that goes across.")] = "k_depth",
    value: Annotated[str, typer.Option(help="Figure to show.")] = "speedup",
    form: Annotated[str, typer.Option("--format", help="md, csv or html.")] = "md",
    regime: OnlyRegime = None,
    problem: OnlyProblem = None,
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
    dtype: Annotated[str, typer.Option(help=f"{TYPES}.")] = "bf16",
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
        stages=number_or(stages),
        stagger=stagger,
        consumers=number_or(consumers),
        split=split,  # type: ignore[arg-type]
        epi_n=number_or(epi_n),
        epi_buffers=number_or(epi_buffers),
        **fields_of("cluster", cluster),
    )
    problem = GemmProblem(m, n, k, dtype)
    found = explained(config, problem)
    served = None if problem_reasons(problem) else pick(recorded_entries(), problem)
    if as_json:
        serves = None if served is None else {"config": served.config.as_dict(), "how": served.how}
        print(json.dumps({**found.as_dict(), "matmul": serves}))
        return
    print("\n".join(found.lines()))
    if served is not None:
        how = {"model": "the model's choice"}.get(served.how, f"tuned on {served.tuned_on}")
        print(f"  matmul      {served.config}, {predict(served.config, problem).seconds * 1e6:.1f} us predicted; {how}")


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
    regime: OnlyRegime = None,
    problem: OnlyProblem = None,
    out: Annotated[Path | None, typer.Option(help="Folder for simulation.md, .png and .json.")] = None,
    as_json: Json = False,
) -> None:
    """Let samplers search a recorded study: how many trials does each need for its best? No GPU needed."""
    from hopper_gemm.tuning.simulate import publish_simulation, recorded_problems, simulation_table, summary
    from hopper_gemm.tuning.simulate import simulate as simulated

    games = [
        game
        for game in recorded_problems(results)
        if regime in (None, game.group.regime) and problem in (None, game.group.problem)
    ]
    if not games:
        fail(f"{results} has no such problem and regime; leave out --problem and --regime to see all")
    curves = simulated(games, [name.strip() for name in samplers.split(",")], seeds, trials, stderr)
    if out is not None:
        publish_simulation(curves, out, results.name)
    print(json.dumps([summary(curve) for curve in curves]) if as_json else simulation_table(curves))


@app.command()
@plain_errors
def export(
    results: StudyFolder,
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
