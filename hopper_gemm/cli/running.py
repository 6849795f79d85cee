"""Shared by the measuring commands: run a question on GPUs or in a replay, show its progress, publish its pages."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hopper_gemm.cli.app import CHECK_FAILED, INTERRUPTED, fail, saying, stderr
from hopper_gemm.cli.options import gpus_of
from hopper_gemm.cli.progress import watching
from hopper_gemm.compiler.child import CONTEXT, settle_in
from hopper_gemm.model.rules.problem import filled_up
from hopper_gemm.model.tuned import local_root, slug
from hopper_gemm.tune.measure.device import GpuId, NoHopperError
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.executors.replay import recorded_points
from hopper_gemm.tune.run.question import Question
from hopper_gemm.tune.run.questions.many import Many
from hopper_gemm.tune.run.questions.sweep import Sweep
from hopper_gemm.tune.run.questions.tune import Options, question
from hopper_gemm.tune.run.source import Source, find
from hopper_gemm.tune.run.task import Job
from hopper_gemm.tune.run.tenants import busy
from hopper_gemm.tune.search.search import earlier_rows
from hopper_gemm.tune.study.files import shown, write_whole
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.study.space import Space, place_of, problem_label, space_of
from hopper_gemm.tune.study.spec import SweepSpec
from hopper_gemm.tune.tables.pages.campaign import PAGE, Rate, Tuned, campaign_page
from hopper_gemm.tune.tables.pages.publish import publish
from hopper_gemm.tune.tables.verdict import verdict

Say = Callable[[str], None]


def here(gpus: str, what: str) -> Source:
    """GPUs of this host, for what cannot be replayed."""
    try:
        return Source(find(gpus_of(gpus), "cuda")[0])
    except NoHopperError as error:
        raise NoHopperError(f"{str(error).split(';')[0]}; {what} is measured on an H100 or H200") from None


def name_tenants(gpus: Sequence[GpuId], say: Say, shared: bool = True) -> None:
    """Say which GPUs other processes keep busy.

    Raises:
        NoHopperError: there is one and GPUs may not be shared.
    """
    for told in filter(None, map(busy, gpus)):
        if not shared:
            raise NoHopperError(f"{told}; wait for it, name another with --gpus, or measure all the same with --shared")
        say(f"{told}; times measured beside it are not those of an idle GPU")


def answer(
    asked: Question, source: Source, name: str, say: Say, left: Any = None, *, shared: bool = True, **job: Any
) -> None:
    """Run a question; when interrupted, say what is left. GPUs that others keep busy are named before; an error unless
    they may be shared."""
    name_tenants(source.gpus, say, shared)
    try:
        run(asked, source.executor(Job(name, **job), say), say)
    except KeyboardInterrupt:
        kept = f" with {left.open} to go; what was measured is in {left.out}, run the same command" if left else ""
        fail(f"stopped{kept}", INTERRUPTED)


def opened(spec: SweepSpec, source: Source, out: Path | None, **options: Any) -> Sweep:
    """A sweep from its source, in its folder; nothing is measured yet."""
    only = None if source.recorded is None else recorded_points(source.recorded)
    return Sweep(spec, out or source.folder(spec), source.about, source=source.word, only=only, **options)


def swept(
    spec: SweepSpec, source: Source, out: Path | None, verb: str, say: Say, verbose: bool = False, **options: Any
) -> Path:
    """Run a sweep under a progress bar, and write its pages; its folder."""
    asked = opened(spec, source, out, **options)
    plan, trials = asked.plan(), options.get("trials")
    say(source.opening(verb, spec.name, asked.out))
    if source.recorded is not None and asked.unrecorded:
        stderr(f"{asked.unrecorded} points are not recorded in {shown(source.recorded.path)} and are left out")
    with watching(plan.open if trials is None else min(trials, plan.open), verbose) as (watch, line):
        asked.watch, asked.say = watch, line
        if not asked.finished:
            answer(asked, source, spec.name, line, asked, seed=spec.seed, fresh=spec.final.fresh)
    publish(asked.out)
    say(f"Written to {shown(asked.out)}")
    return asked.out


def tune_list(shapes: Path, options: Options, listen: str, gpus: str, out: Path | None, as_json: bool) -> None:
    """Tune every problem of a list; say what is left when interrupted."""
    read = read_shapes(shapes)
    problems = tuple(dict.fromkeys(map(filled_up, read.of_regime(options.regime))))
    if not problems:
        raise ValueError(f"no problem of {read.name} is marked steady; mark one, or tune it with M N K")
    source = Source(cluster=listen) if listen else here(gpus, "a list")
    kind = source.gpus[0].name if source.gpus else ""
    folder = out or local_root() / (slug(kind) if kind else "cluster")
    specs = {problem: question(problem, options) for problem in problems}
    for name in dict.fromkeys(name for spec in specs.values() for name in spec.warm_start):
        earlier_rows(Path(name), kind)  # what is refused is refused before a folder is made
    title = f"{read.name}, {options.regime}, {options.context}"
    saying(as_json)(source.opening("Tuning", f"{len(problems)} problems ({title})", folder))
    with watching(len(problems)) as (watch, line):

        def opener(spec: SweepSpec, space: Future[Space]) -> Callable[[], Sweep]:
            return lambda: opened(spec, source, folder / spec.name, watch=watch, say=line, space=space.result)

        def settled(problem: Any, reason: str) -> None:
            line(f"{problem} {'failed: ' + reason if reason else 'done'}")

        pages: dict[Path, Future[None]] = {}
        cores = max(1, len(os.sched_getaffinity(0)) // 2)
        with ProcessPoolExecutor(min(cores, len(specs)), CONTEXT, settle_in) as aside:  # GPUs do not wait for them
            sweeps = [(problem, opener(spec, aside.submit(space_of, spec))) for problem, spec in specs.items()]
            many = Many(folder, sweeps, lambda out: pages.update({out: aside.submit(publish, out)}), settled)
            spec = specs[problems[0]]
            try:
                answer(many, source, read.name, line, many, seed=spec.seed, fresh=spec.final.fresh)
            finally:
                aside.shutdown(wait=False, cancel_futures=not many.settled)
        for problem, spec in specs.items():
            written = pages.get(folder / spec.name)
            if written is not None and (error := written.exception()) is not None:
                why = (str(error).splitlines() or [""])[0]
                many.failures[problem] = f"its page could not be written: {type(error).__name__}: {why}"

    def told(problem: Any) -> Tuned:
        failure = many.failures.get(problem, "")
        try:
            if problem in many.settled:
                return verdict(folder / specs[problem].name).tuned
        except ResultsError as error:
            failure = str(error)
        return Tuned(problem_label(problem), "failed" if failure else "open", failure)

    found = [told(problem) for problem in problems]
    rates = [Rate(name, clock.trials, clock.last - clock.first) for name, clock in many.clocks.items()]
    if clocks := many.clocks.values():
        span = max(clock.last for clock in clocks) - min(clock.first for clock in clocks)
        rates.append(Rate("in all", sum(clock.trials for clock in clocks), span))
    where = f"Measured on {f'an {kind}' if kind else 'a cluster'}, {len(clocks) or len(source.gpus)} at a time."
    page = campaign_page(title, where, found, rates)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE, page)
    about = {"problems": [asdict(one) for one in found], "rates": [rate.as_dict() for rate in rates]}
    print(json.dumps({"out": str(folder), **about}) if as_json else f"\n{page}\nWritten to {shown(folder)}")
    if left := [one for one in found if one.state != "tuned"]:
        first = f"the first is {left[0].problem}: {left[0].reason or 'not finished'}"
        fail(f"{len(left)} of {len(found)} problems are not tuned, {first}; run the same command", CHECK_FAILED)


def summary(folder: Path) -> dict[str, Any]:
    """The best of each place, ready for JSON."""
    study = read_study(folder)
    rows, best = study.stage("sweep"), {}
    for row in sorted((row for row in rows if row.ok), key=lambda row: row.figures["speedup"]):
        names = ("tile_m", "tile_n", "k_depth", "stages", "stagger", "speedup", "speedup_low", "speedup_high", "tflops")
        best[place_of(row.point)] = {name: row.as_dict()[name] for name in names}
    status = dict(Counter(row.status for row in rows))
    return {"out": str(folder), "source": study.provenance["source"], "status": status, "best": best}
