"""The command that maps a list of problems."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import command, saying, stderr
from hopper_gemm.cli.reading import show
from hopper_gemm.model.tuned import local_root, slug
from hopper_gemm.tune.study.files import shown, suite_file
from hopper_gemm.tune.study.reader import read_study

LINE_SECONDS = 5.0
"""Time between two lines of progress."""


@command
def map(
    shapes: options.Shapes = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Begin no further problem after this time. Default: map all.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Map only the problems of the list that nothing is fitted to.")
    ] = False,
    drawn: Annotated[
        int | None, typer.Option(min=0, help="Kernels of a problem drawn from the menu; 0: only picks. Default: 24.")
    ] = None,
    backend: Annotated[str, typer.Option(help="cuda; or replay: show what is recorded, and write nothing.")] = "cuda",
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
    import time

    from hopper_gemm.cli.running import local_source, run_question
    from hopper_gemm.tune.run.questions.map import LIBRARY, SEED, Map
    from hopper_gemm.tune.run.source import recorded_study
    from hopper_gemm.tune.study.shapes import read_shapes
    from hopper_gemm.tune.study.spec import command_spec
    from hopper_gemm.tune.tables.pages.publish import publish
    from hopper_gemm.tune.tables.view import view

    options.check_word("--backend", backend, ("cuda", "replay"))
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
    kind = source.gpus[0].name
    folder = out or local_root() / slug(kind) / name
    last_line = started = time.monotonic()

    def watch(row: Any, done: int, total: int) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line >= LINE_SECONDS or row.status in ("wrong_result", "timeout", "crash"):
            last_line = now
            what = f"{row.figures['speedup']:.3f}x" if row.ok else f"{row.status.replace('_', ' ')}: {row.reason}"
            pick = f"{row.figures['how']} over {row.point.against}"
            stderr(f"{now - started:7.1f}s {done}/{total} problems, {row.point.problem} {pick}: {what}")

    keys: dict[str, Any] = {"seed": SEED, "menu": {} if drawn is None else {"drawn": drawn}}
    spec = command_spec("map", problems, name=name, question=read.question, against=["cublas", LIBRARY], **keys)
    question = Map(spec, folder, kind, seconds=seconds, watch=watch, say=stderr)
    saying(as_json)(source.opening("Mapping", f"{len(problems)} problems", folder))
    run_question(question, source, name, stderr, question, shared=shared, against=tuple(spec.against))
    for baseline, reason in question.missing.items():
        stderr(f"without {baseline}: {reason}")
    publish(folder)
    result = view(read_study(folder))
    if as_json:
        print(json.dumps({"out": str(folder), "open": question.open, **result.as_dict()}))
        return
    show(result)
    print(f"\n{question.open} problems to go; written to {shown(folder)}")
