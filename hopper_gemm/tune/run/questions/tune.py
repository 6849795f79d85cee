"""Tuning of problems: the command's spec is widened to a sweep over the whole space."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.lookup import pick, without_pdl
from hopper_gemm.model.menu import PACE, choose
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import recipe_of
from hopper_gemm.model.rules.invariance import forward, parts_of
from hopper_gemm.model.tuned import TunedEntry
from hopper_gemm.tune.parameters import DEFAULTS
from hopper_gemm.tune.study.files import recorded_entries, shown
from hopper_gemm.tune.study.reader import Study, read_provenance, read_study, recorded_folders
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.study.spec import SearchedProblem, Spec, checked

SHORT = 80e-6
"""Seconds of a launch up to which ``pdl`` is searched: each kernel sets itself up while the previous one drains. The
largest saving seen was 1.2 us; a launch may also lose, because its CTAs start on the SMs that become free first, no
longer side by side."""

PACED = 250e-6
"""Seconds of a launch from which on ``pace`` is searched; its gain stands beside
:data:`hopper_gemm.model.menu.LONG`."""

COUNTED = 40e-6
"""Seconds of a launch from which on the dynamic scheduler is searched: a launch of several rounds, whose CTAs do not
end at one time. With one round it lost 2 % at 2048^3, where a static schedule is complete."""

KEEP = 500
"""Kernels to compile that stay in the space, of some four thousand: the most promising by the model."""

FAR = 0.015
"""A config that is slower than the best by this fraction after one pair gets no second pair. Of the pairs of configs
that got fifteen in the first search of the suite, 16384^3 aside, one in 41 lies so far below its config's median."""

PAIRS = 7
"""Pairs of a config that may be the best, and of each process of a final."""

REST = 0.01
"""Seconds of idleness before a timing of the search; finals rest as long as other protocols. At 8192^3 the ratios of
tiles near cuBLAS moved by 0.1 % between 10, 20 and 40 ms, by up to 0.25 % from 5 ms on
(results/measurements/rest.csv)."""

USUAL = {"pdl": False, "evict_c": False, "scheduler": "static", "pace": 0}
"""Values of parameters that are searched only if a problem's size and the context suggest it."""

SECONDS = 60.0


def question(
    problems: Sequence[GemmProblem],
    keys: Mapping[str, Any],
    *,
    listed: str = "",
    recorded: Study | None = None,
    tuned_first: bool = True,
    pdl: bool | None = None,
) -> Spec:
    """Return the spec that tunes problems, each in the whole space, or in that of a recorded study, which is replayed.
    SpecError or ResultsError for a mistake in keys or study; one line each.

    The command line gives keys of the spec in place of the usual ones; the seconds of ``budget`` are those of a
    problem, :data:`SECONDS` if neither seconds nor trials are given. ``listed`` names the list of problems; empty for
    one problem. If ``tuned_first``, it begins with configs of the recorded tables for the problem and for its nearest
    neighbours. ``pdl`` searches programmatic dependent launch as well; None: in the chained context, for launches
    shorter than :data:`SHORT`. A kernel between other kernels hardly gains by it."""
    keys = {"regimes": ["burst"], "contexts": ["isolated"], "sampler": "gp", "budget": {"seconds": SECONDS}, **keys}
    problem, (regime,), (context,) = problems[0], keys["regimes"], keys["contexts"]
    what = f"{problem} {problem.dtype}" if not listed else f"each problem of {listed}"
    if recorded is None:
        chained = pdl is None and context == "chained"
        seeds = 12  # tried first: half are the most promising tiles, half the most promising techniques
        space: dict[str, Any] = {**_space(), "keep": KEEP, "seeds": seeds, "problems": []}
        for each in problems:
            own = _problem_space(each, bool(pdl), chained)
            warm = _tuned_grids(each, regime, context, own, recorded_entries()) if tuned_first else []
            keep = {"keep": KEEP + KEEP // 2} if own.keys() & {"pdl", "pace", "scheduler"} else {}
            space["problems"].append({**each.as_dict(), "space": own, "known": warm, **keep})
    else:
        spec = recorded.provenance["spec"]
        if not spec.get("space") or spec.get("rungs"):
            raise ResultsError(f"{shown(recorded.path)} is no grid and cannot be searched; name another with --from")
        space = {name: spec[name] for name in ("space", "grids", "keep", "lower_to_fit") if spec.get(name)}
        space["problems"] = [sizes for sizes in spec["problems"] if SearchedProblem(**sizes).problem() == problem]
    budget = dict(keys["budget"])
    if "seconds" in budget:
        budget["seconds"] *= len(problems)
    usual = {
        "name": study_name(listed or str(problem), problem, regime, context),
        "question": f"Which config is the fastest for {what} in the {regime} regime, {context}?",
        "skip_illegal": True,
        "race": {"far": FAR},
        "burst": {"pairs": PAIRS, "rest": REST},
        "ahead": 24,  # configs that compile while a config is measured: more than there are compilers
        "table": {"rows": "tile_m", "cols": "tile_n"},
    }
    final = {"best": 8, "burst_pairs": PAIRS, **keys.get("final", {})}
    return checked({**usual, **keys, "budget": budget, "final": final, **space}, "tune")


def study_name(what: str, problem: GemmProblem, regime: str, context: str) -> str:
    """Return the name of a tuning run and of its folder: ``tune-4096x4096x4096-burst``, followed by a context other
    than isolated, ``batch-invariant``, and for a single problem a type other than bf16, the recipe of FP8, and layouts
    other than kk."""
    unusual = [] if context == "isolated" else [context]
    unusual += ["batch-invariant"] * problem.batch_invariant
    if what == str(problem):
        unusual += [problem.dtype.replace("_", "-")] * (problem.dtype != "bf16")
        unusual += recipe_of(problem).split()
        unusual += [problem.layouts] * (problem.layouts != "kk")
    return "-".join(["tune", what, regime, *unusual])


def recorded_problem(problem: GemmProblem, regime: str, context: str) -> Path:
    """Return the folder of the recorded study with the most rows of a problem; ResultsError if none has any."""
    counted, wanted = [], (problem, regime, context, "normal")
    for folder in recorded_folders():
        spec = read_provenance(folder)["spec"]
        grid = spec.get("space") and not spec.get("rungs")
        if not (grid and regime in spec["regimes"] and context in spec["contexts"]):
            continue
        sizes = [its for its in spec["problems"] if (its["m"], its["n"], its["k"]) == (problem.m, problem.n, problem.k)]
        if not any(SearchedProblem(**its).problem() == problem for its in sizes):
            continue  # rows are read only where the spec names the problem: all studies together take half a minute
        points = [row.point for row in read_study(folder).stage("sweep")]
        if rows := sum((point.problem, point.regime, point.context, point.data) == wanted for point in points):
            counted.append((rows, folder))
    if not counted:
        raise ResultsError(
            f"there is no recorded study of {problem_label(problem)} {regime} {context}; name one with --from, name "
            "another --context, or tune it on a Hopper GPU"
        )
    return max(counted)[1]


@cache
def _space() -> dict[str, Any]:
    """Return space and grids of tune.toml with the values of :data:`USUAL`, which a problem may override; ``pace`` and
    ``scheduler`` are set only in grids with ``reverse_k``."""
    toml = tomllib.loads(Path(__file__).with_name("tune.toml").read_text(encoding="utf-8"))
    wide = {name: value for name, value in USUAL.items() if name not in ("pace", "scheduler")}
    space, *grids = [{**grid, **(USUAL if grid.get("reverse_k") else wide)} for grid in (toml["space"], *toml["grids"])]
    return {"space": space, "grids": grids}


def _problem_space(problem: GemmProblem, pdl: bool, chained: bool) -> dict[str, Any]:
    """Return the parameters beside the tiles that are searched for a problem, by its size; ``pdl`` always, or if
    launches are chained and short."""
    seconds = predict(choose(problem), problem).seconds
    space: dict[str, Any] = {}
    if pdl or (chained and seconds < SHORT):
        space["pdl"] = [False, True]
    if seconds > COUNTED:
        space["scheduler"] = ["static", "dynamic"]
    if seconds > PACED:
        space["pace"] = [0, PACE]
    if problem.m * problem.n * problem.out_bytes > hopper.L2_BYTES:
        space["evict_c"] = True  # C exceeds the L2: its reader misses in any case
    if problem.batch_invariant:
        space |= {"reverse_k": False, "split_k": [parts_of(problem.n, problem.k)]}
    return space


def _tuned_grids(
    problem: GemmProblem, regime: str, context: str, space: dict[str, Any], entries: Sequence[TunedEntry]
) -> list[dict[str, Any]]:
    """Return grids that begin at tuned configs: of this problem in any regime and context, or the pick where there are
    none; then of the four nearest problems. Each grid varies raster and swizzle. Grids of a batch-invariant problem
    read k forward."""
    same = (problem, replace(problem, batch_invariant=not problem.batch_invariant))

    def distance(other: GemmProblem) -> float:
        mine, its = problem.in_words, other.in_words
        return sum(abs(log2(getattr(mine, side) / getattr(its, side))) for side in "mnk")

    alike = problem.layouts, problem.promote  # sums that are promoted want other kernels
    others = {entry.problem for entry in entries if (entry.problem.layouts, entry.problem.promote) == alike} - {*same}
    nearest = sorted(others, key=distance)[:4]
    near = [pick(entries, other, regime, context).config for other in nearest]
    best = [*([entry.config for entry in entries if entry.problem in same] or [choose(problem)]), *near]
    best = list(map(forward, best)) if problem.batch_invariant else best
    early = [replace(config, pdl=True) for config in best] if "pdl" in space else []
    grids = []
    for config in dict.fromkeys([*map(without_pdl, best), *early]):
        fields = config.as_dict()
        order = ("raster", "swizzle")  # of the tiles, an argument of the launch: a change compiles nothing
        walks = {name: list(dict.fromkeys([fields[name], *_space()["space"][name]])) for name in order}
        grids.append({**{name: value for name, value in fields.items() if value != DEFAULTS[name]}, **walks})
    return grids
