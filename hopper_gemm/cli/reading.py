"""Commands that need no GPU: they read results, predict or compile."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Exit, Option

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, LINE_SECONDS, command, fail, stderr
from hopper_gemm.cli.shorthand import EXPLANATION, LABEL, wording
from hopper_gemm.tune.study.files import shown, write_whole

if TYPE_CHECKING:
    from hopper_gemm.serve.prebuild import MenuPart
    from hopper_gemm.tune.study.reader import Study
    from hopper_gemm.tune.tables.view import View

ALL = "exhaustive,random,tpe,gp,prior"


def read_and_warn(folder: Path) -> Study:
    """Read a study; warn on stderr of rows that an unfinished one lacks."""
    from hopper_gemm.tune.study.reader import missing, read_study

    study = read_study(folder)
    if lacks := missing(study):
        stderr(f"{folder} is unfinished: {lacks} missing")
    return study


CONSIDERED = 4
"""Kernels of the menu that ``explain`` shows where no table has a problem, the chosen one first."""


@command
def table(
    results: options.StudyFolder,
    rows: Annotated[str | None, Option(help="Column of the results that goes down. Default: the study's own.")] = None,
    cols: Annotated[
        str | None, Option(help="Column of the results that goes across. Default: the study's own.")
    ] = None,
    value: Annotated[str, Option(help="Figure to show.")] = "speedup",
    form: Annotated[
        options.TableForm | None,
        Option("--format", help="csv, json, markdown or html. Default: for the terminal; markdown in a pipe."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write this file, .csv, .json, .md or .html; CSV with provenance beside it."),
    ] = None,
    regime: options.OnlyRegime = None,
    context: options.OnlyContext = None,
    problem: options.OnlyProblem = None,
    write: Annotated[bool, Option("--write", help="Also write the folder's pages and pictures anew.")] = False,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Show the table of a recorded study.

    There is one table for each problem, regime and context; of a comparison one for each regime and context. CSV and
    JSON have one row for each cell, with numbers; docs/data explains their columns.
    """
    from hopper_gemm.tune.tables.pages.publish import publish
    from hopper_gemm.tune.tables.view import FORMS, view

    suffixes = {suffix: name for name, suffix in FORMS.items()}
    text: str | None = "json" if as_json else form
    if out is not None and text is None and (text := suffixes.get(out.suffix)) is None:
        fail(f"--out must end in one of {', '.join(suffixes)} but is {out}; or name the form with --format")
    study = read_and_warn(results)
    if write:
        publish(results)
    result = view(study, {"problem": problem, "regime": regime, "context": context}, rows, cols, value)
    if out is not None and text is not None:
        print("\n".join(f"Written to {shown(path)}" for path in result.write(out, text)))
    else:
        show(result, text, long=long)


@command
def report(
    results: options.StudyFolder,
    out: Annotated[Path | None, Option(metavar="FILE.html", help="Default: STUDY.html in the current folder.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a study as one interactive page.

    The file needs no network: a table to sort and filter, charts to hover over, the origin of every figure.
    """
    from hopper_gemm.tune.tables.html.document import document

    study = read_and_warn(results)
    path = out or Path(f"{study.provenance['study']}.html")
    write_whole(path, document(study))
    print(json.dumps({"file": str(path), "bytes": path.stat().st_size}) if as_json else f"Written to {shown(path)}")


def show(result: View, form: str | None = None, page: str = "", long: bool = False) -> None:
    """Print a view: without a form as tables on a terminal; elsewhere, or with the parameters of configs by name, its
    page if given, else Markdown."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    text = page or result.text(form or "markdown")
    tables = form is None and sys.stdout.isatty() and not long
    notes = "\n".join(note for table in result.tables for note in table.notes)
    if form is None and not long and LABEL.search(notes if tables else text):
        console.print(f"Configs: {EXPLANATION}.\n", soft_wrap=not tables)
    if tables:
        result.print(console)
    else:
        sys.stdout.write(wording(long and form not in ("csv", "json"))(text))


@command
def explain(
    m: options.M,
    n: options.N,
    k: options.K,
    settings: options.Settings = None,
    epilogue: options.Finish = None,
    dtype: options.Dtype = "bf16",
    scales: options.Scales = None,
    promote: options.Promote = 0,
    layouts: options.Layouts = "kk",
    context: options.Context = "isolated",
    batch_invariant: options.BatchInvariant = False,
    groups: options.Groups = None,
    grouping: options.Grouping = "rows",
    gpu: options.Kind = None,
    sms: options.Sms = None,
    long: options.Long = False,
    as_json: options.Json = False,
) -> None:
    """Explain what matmul runs for a problem, and what limits it.

    With --groups it is what grouped_mm or bmm runs, with --epilogue what linear or swiglu runs. With --set another
    config is explained: whether it can run, what it takes of an SM, what the chip allows. Of a kernel that is compiled
    here it also says where it lies, its registers, spills and instructions, and a digest of its machine code. No GPU is
    needed.
    """
    from hopper_gemm.cli.doctor import assumed, chip_here, kind_of
    from hopper_gemm.cli.stored import report_of
    from hopper_gemm.compiler.store import KernelId, compiled_in
    from hopper_gemm.model.finish import Epilogue
    from hopper_gemm.model.grouped import GroupedProblem
    from hopper_gemm.model.kernel import Kernel
    from hopper_gemm.model.lookup import find, tables
    from hopper_gemm.model.menu import Choice, choices, ranked
    from hopper_gemm.model.predict import Prediction, predict
    from hopper_gemm.model.problem import GemmProblem
    from hopper_gemm.tune.parameters import config_of
    from hopper_gemm.tune.tables.explain import explain as explained
    from hopper_gemm.tune.tables.explain import lines

    sizes = GemmProblem(m, n, k, layouts=layouts, batch_invariant=batch_invariant)
    (problem,) = options.with_recipe([sizes], dtype, scales, promote)
    problem, finish = options.as_called(problem, groups, grouping, epilogue)
    kind = kind_of(gpu)
    chip = chip_here(kind, sms)
    served = find(tables(kind, stderr), problem, context=context, chip=chip, finish=finish)
    config = config_of(options.config_values(settings)) if settings else served.config
    explanation = explained(config, problem, chip, finish)

    def predicted(kernel: Kernel) -> Prediction:
        even = problem.even(kernel) if isinstance(problem, GroupedProblem) else problem
        return predict(kernel, even, chip, finish=finish)

    considered = list[Choice]()
    if served.entry is None and isinstance(problem, GroupedProblem):
        times = ((one, predicted(one)) for one in choices(problem, CONSIDERED, chip, finish))
        considered = [Choice(one, prediction.seconds, prediction) for one, prediction in times]
    elif served.entry is None:
        considered = ranked(problem, CONSIDERED, chip, finish)
    found = compiled_in(KernelId.of(served.config if as_json else config, problem, finish=finish))
    report, assumption = report_of(KernelId.of(config, problem, finish=finish)), assumed(gpu)
    if as_json:
        entry = None if served.entry is None else {**asdict(served.entry), "table": str(served.table)}
        candidates = [
            {"config": candidate.as_dict(), "expected_us": seconds * 1e6}
            | {"predicted_us": prediction.seconds * 1e6, "paced_by": prediction.limit}
            for candidate, seconds, prediction in considered
        ]
        origin = {"how": served.how, "gpu": kind, "gpu_assumed": bool(assumption), "entry": entry}
        origin |= {"considered": candidates, "compiled": found}
        code = {"code": None if report is None else asdict(report)}
        print(json.dumps({**explanation, **code, "matmul": {"config": served.config.as_dict(), **origin}}))
        return
    spell = wording(long)
    title, *rest = lines(explanation)
    print(spell("\n".join([title, *([] if long else [f"  shorthand   {EXPLANATION}"]), *rest])))
    if not explanation["legal"]:
        return
    if assumption:
        print(f"  GPU         {assumption}")
    lacking = " by a kernel that can finish it" * bool(epilogue)
    source = f"from the menu: no tuned table of {kind} has {problem}{lacking}"
    if served.entry is not None and served.table is not None:
        source = f"{served.how}: {served.tuned_on}, {shown(served.table)}"
        if served.how != "other GPU":  # which tuned_on names
            source += f", measured on an {served.entry.gpu}"
    seconds = predicted(served.config).seconds
    other = f"{served.config}, {seconds * 1e6:.1f} us predicted; " if settings else "this; "
    if considered:
        print("  considered  by the time expected: the model's, corrected by recorded launches of its kind, if any")
    for candidate, seconds, prediction in considered:
        us = f"{seconds * 1e6:.1f} us, by the model alone {prediction.seconds * 1e6:.1f} us paced by {prediction.limit}"
        print(spell(f"  considered  {us}: {candidate}"))
    waits = batch_invariant or groups or settings or problem.is_fp8 or finish not in (None, Epilogue(bias=True))
    meanwhile = "the first call compiles it" if waits else "torch multiplies until a process compiled it"
    named = (("--set", settings), ("--epilogue", epilogue), ("--groups", groups))
    options_too = " and ".join(name for name, given in named if given)
    ahead = f"hopper-gemm prebuild{' with this ' * bool(options_too)}{options_too}"
    if groups is not None and settings:
        ahead, meanwhile = "", "no call names a config of groups"
    missing = f"in no store: {meanwhile}" + f"; {ahead} compiles ahead" * bool(ahead)
    print(f"  compiled    {f'in the {found}' if found else missing}")
    if report is not None:
        spills = f"{report.stack_bytes} B of stack, {report.local_loads} loads, {report.local_stores} stores"
        counted = f"{report.instructions} instructions, {report.wgmma} of them wgmma; digest {report.code[:16]}"
        print(f"  code        {report.registers} registers a thread at launch; spills: {spills}; {counted}")
    else:
        known = "registers, spills and instructions are known once it is compiled"
        print(f"  code        {known}" + f", by {ahead}" * bool(ahead))
    name = "picked" if finish or groups is not None else "matmul"
    print(spell(f"  {'scaled_mm' if scales else name:11} {other}{source}"))


@command
def simulate(
    results: options.StudyFolder,
    samplers: Annotated[str, Option(help="Names, with commas; gp-blind is gp without the model prior.")] = ALL,
    seeds: Annotated[int, Option(min=1, max=10_000, help="Runs of each sampler.")] = 30,
    trials: Annotated[int | None, Option(min=1, help="Trials of each run. Default: a quarter of the space.")] = None,
    regime: options.OnlyRegime = None,
    problem: options.OnlyProblem = None,
    out: Annotated[Path | None, Option(help="Folder for simulation.md, .svg and .json.")] = None,
    as_json: options.Json = False,
) -> None:
    """Let samplers search a recorded study.

    The page says how many trials each sampler needs to find the recorded best. No GPU is needed.
    """
    from hopper_gemm.tune.search.simulate import recorded_tasks, summary
    from hopper_gemm.tune.search.simulate import simulate as simulated
    from hopper_gemm.tune.tables.pages.simulation import publish, simulation_page

    read_and_warn(results)
    named = [task for task in recorded_tasks(results) if problem in (None, task.name.split()[0])]
    tasks = [task for task in named if regime in (None, *task.name.split()[1:])]
    if not tasks:
        fail(f"{results} has no such problem and regime; leave out --problem and --regime to see all")
    runs = [summary(curve) for curve in simulated(tasks, samplers.replace(" ", "").split(","), seeds, trials, stderr)]
    if out is not None:
        publish(out, results.name, runs)
    print(json.dumps(runs) if as_json else simulation_page(runs))


@command
def export(
    results: options.StudyFolder,
    form: Annotated[
        Literal["csv", "parquet", "t4"],
        Option("--format", help="csv or parquet: every row, for pandas; t4: Kernel Tuner's results format."),
    ] = "t4",
    out: Annotated[
        Path | None, Option(help="Default: t4.json, several problems having a file each; or STUDY.csv, .parquet.")
    ] = None,
    optuna: Annotated[Path | None, Option(help="Write this Optuna journal file instead.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a study for pandas or in the format of other tuners.

    CSV and Parquet have every row of every stage, the provenance beside it; T4 is the open results format of the
    autotuning community; --optuna writes an Optuna journal instead. docs/data explains the columns.
    """
    from hopper_gemm.tune.tables.t4 import export as exported
    from hopper_gemm.tune.tables.view import rows_as_measured

    study = read_and_warn(results)
    if optuna is not None:
        from hopper_gemm.tune.search.trials import write_journal

        if out is not None:
            fail("--out and --optuna name a file each; leave one of them out")
        write_journal(study, optuna)
        written = [optuna]
    elif form in ("csv", "parquet"):
        written = rows_as_measured(study).write(out or Path(f"{study.provenance['study']}.{form}"), form)
    else:
        written = exported(results, out)
    text = "\n".join(f"Written to {shown(path)}" for path in written)
    print(json.dumps({"files": [str(path) for path in written]}) if as_json else text)


@command
def pack(results: options.StudyFolder, as_json: options.Json = False) -> None:
    """Compress a finished study's rows to a tenth of their size.

    ``rows.csv`` becomes ``rows.csv.xz``, which every command reads as it reads the CSV.
    """
    from hopper_gemm.tune.study.folder import pack as packed

    read_and_warn(results)
    packed_sizes = packed(results)
    text = "\n".join(f"{name}: {new} bytes instead of {old}" for name, (old, new) in packed_sizes.items())
    sizes = {name: {"csv_bytes": old, "bytes": new} for name, (old, new) in packed_sizes.items()}
    print(json.dumps(sizes) if as_json else text)


def paced(say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """Return a watcher of compilation that says every :data:`LINE_SECONDS` how many kernels are done, and when all are,
    with the minutes that the others will take."""
    began = last = clock()

    def watch(done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if done == total or now - last >= LINE_SECONDS:
            last = now
            say(f"{done} of {total} compiled, {(now - began) / done * (total - done) / 60:.1f} minutes to go")

    return watch


@command
def seal(
    paths: Annotated[list[Path], Argument(help="Results folders and tuned tables.")],
    ended: Annotated[
        bool, Option("--ended", help="Also note the rows of a study that was stopped as all that it has.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write the sums of studies and tuned tables anew.

    For files of earlier versions, which carry none, and files that you corrected and know to be right. What they say is
    checked as always.
    """
    from hopper_gemm.tune.study.seal import seal as sealed

    written = [sealed(path, ended) for path in paths]
    print(json.dumps(written) if as_json else "\n".join(written))


@command
def prebuild(
    sizes: options.Sizes = None,
    settings: options.Settings = None,
    epilogue: options.Finish = None,
    shapes: options.Shapes = None,
    dtype: Annotated[
        options.DtypeName | None, Option(help=f"{options.TYPES}. With --scales: e4m3, e5m2 ... Default: bf16.")
    ] = None,
    layouts: Annotated[
        options.LayoutsName | None, Option(help="Contiguous axis of A, then of B: kk, mk, kn or mn. Default: kk.")
    ] = None,
    scales: options.Scales = None,
    promote: options.Promote = 0,
    menu: Annotated[
        bool, Option("--menu", help="Instead of problems, every kernel of the menu and of tuned tables.")
    ] = False,
    context: options.Context = "isolated",
    batch_invariant: options.BatchInvariant = False,
    groups: options.Groups = None,
    grouping: options.Grouping = "rows",
    gpu: options.Kind = None,
    sms: options.Sms = None,
    as_json: options.Json = False,
) -> None:
    """Compile ahead what matmul runs on problems, by default the suite.

    With --epilogue what linear or swiglu runs on them, with --groups what grouped_mm or bmm does. With --menu every
    kernel that it picks for untuned problems, and those of tuned tables: bf16 and fp16 in all layouts, layers with the
    usual epilogues, FP8 and groups of rows; with --dtype, --layouts or --scales the products of these alone. With --set
    the kernel of that config instead, for calls that name it. First calls then load a kernel instead of compiling it;
    what was compiled stays if the command is stopped. No GPU is needed.
    """
    from hopper_gemm.cli.doctor import assumed, chip_here, kind_of
    from hopper_gemm.cli.stored import counted, usage
    from hopper_gemm.compiler.extension import COMPILERS, extension_of
    from hopper_gemm.compiler.store import KernelId, KernelStore, PaddingId, default_store
    from hopper_gemm.model.legality import reasons
    from hopper_gemm.model.problem import BLOCK, GemmProblem
    from hopper_gemm.model.recipe import recipe_of
    from hopper_gemm.serve import EXTENSION
    from hopper_gemm.serve.prebuild import WHOLE_MENU, build
    from hopper_gemm.serve.prebuild import prebuild as compile_ahead
    from hopper_gemm.tune.parameters import config_of
    from hopper_gemm.tune.study.shapes import problems_of

    if menu and (sizes or shapes or settings or groups or epilogue is not None):
        fix = "leave out sizes, --shapes, --set, --groups and --epilogue"
        raise ValueError(f"--menu stands for all of its --dtype and --layouts; {fix}")
    like = GemmProblem(16, 16, BLOCK)
    _, _, problems = ("", "", (like,)) if menu else problems_of(shapes, sizes or (), "burst")
    if menu or sizes:
        problems = tuple(replace(problem, layouts=layouts or "kk") for problem in problems)
    if menu or sizes or scales:
        problems = options.with_recipe(problems, dtype or "bf16", scales, promote)
    kind, whole = kind_of(gpu), menu and (dtype, layouts, scales) == (None, None, None)
    parts: Sequence[MenuPart] = (WHOLE_MENU if whole else problems) if menu else ()
    of_part = f" for {problems[0].dtype} {recipe_of(problems[0]) or problems[0].layouts}" * (menu and not whole)
    problems = () if menu else options.with_rule(problems, batch_invariant)
    if settings and groups is not None:
        raise ValueError("no call names a config of groups; leave out --set or --groups")
    finished = dict(options.as_called(problem, groups, grouping, epilogue) for problem in problems)
    assumption = "" if settings else assumed(gpu)
    if assumption and not as_json:
        print(assumption, flush=True)

    def told() -> None:
        if not as_json and extension_of(EXTENSION) is None and any(map(shutil.which, COMPILERS)):
            print("a C++ compiler makes the extension of torch first, once: some 20 s", flush=True)

    if settings:
        config = config_of(options.config_values(settings))
        refused: dict[str, list[str]] = {}
        for problem, finish in finished.items():
            for refusal in reasons(config, problem, finish):
                refused.setdefault(str(refusal), []).append(str(problem))
        if refused:
            lines = [
                f"{first}{f' and {len(rest)} more' * bool(rest)}: {why}" for why, (first, *rest) in refused.items()
            ]
            raise ValueError("\n".join(lines))
        padding = [PaddingId()] * any(problem.padded for problem in problems)
        kernels = dict.fromkeys(KernelId.of(config, problem, finish=finish) for problem, finish in finished.items())
        told()
        done = build([*kernels, *padding], watch=paced(stderr))
    else:
        chip = chip_here(kind, sms)
        pairs = [(problem, finish) if finish else problem for problem, finish in finished.items()]
        told()
        try:
            done = compile_ahead(pairs, menu=parts, context=context, gpu=kind, chip=chip, watch=paced(stderr))
        except RuntimeError as error:
            fail(str(error), CHECK_FAILED)
    if as_json:
        used = {"gpu": None if settings else kind, "gpu_assumed": bool(assumption)}
        print(json.dumps({"store": str(default_store()), **used, **asdict(done)}))
    else:
        what = f"of menu and tables{of_part}" if menu else f"for {counted(len(problems), 'problem')}"
        print(f"{counted(done.kernels, 'kernel')} {what}, {done.compiled} compiled now: {default_store()}")
        print(f"it holds {usage(KernelStore(default_store()))}")
        if not done.extension:
            print("the extension of torch is not there: hopper-gemm doctor says what it needs")
    if done.failed:
        name, reason = next(iter(done.failed.items()))
        lost = counted(len(done.failed), "kernel")
        fail(f"{lost} could not be compiled, the first is {name}: {reason}", CHECK_FAILED)


@command
def store(
    clear: Annotated[bool, Option("--clear", help="Remove all of them; each is compiled again when used.")] = False,
    as_json: options.Json = False,
) -> None:
    """Say where compiled kernels are kept, or remove them."""
    from hopper_gemm.cli import stored
    from hopper_gemm.compiler.extension import kept_libraries
    from hopper_gemm.compiler.store import KernelStore, default_store

    kernels = KernelStore(default_store())
    usage = stored.clear(kernels) if clear else stored.usage(kernels)
    if clear:
        for library in kept_libraries().glob("*"):
            library.unlink(missing_ok=True)
    if as_json:
        print(json.dumps({"path": str(kernels.root), **asdict(usage), "cleared": clear}))
        return
    print(f"removed {usage} from {kernels.root}" if clear else f"{kernels.root}: {usage}")


@command
def doctor(as_json: options.Json = False) -> None:
    """Check this machine and say what to do.

    GPU, driver, versions, the extension in C++, machine code and tables; the last line has the commands that make fast
    what is slow.
    """
    from hopper_gemm.cli.doctor import examine, remedy

    findings = examine()
    lines = [*map(str, findings), *filter(None, [remedy(findings)])]
    print(json.dumps([finding.as_dict() for finding in findings]) if as_json else "\n".join(lines))
    if any(finding.mark == "missing" for finding in findings):
        raise Exit(CHECK_FAILED)
