"""Tuning problems: a sweep over the whole space that is made up here."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.menu import PACE, choose
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.invariance import forward, parts_of
from hopper_gemm.model.tuned import TunedEntry, pick, recorded_entries, without_pdl
from hopper_gemm.tune.parameters import DEFAULTS
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.reader import Study, read_study, recorded_folders
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.spec import SearchedProblem, SweepSpec, checked

SHORT = 80e-6
"""Seconds of a launch up to which it is also tried with ``pdl``, so that each kernel sets itself up while the last
drains. At most 1.2 us were seen to be saved; and a launch may lose by it, since its CTAs start where SMs become free
first, and no longer side by side."""

PACED = 250e-6
"""Seconds of a launch from which on it is also tried with ``pace``; what that is worth stands beside
:data:`hopper_gemm.model.menu.LONG`."""

COUNTED = 40e-6
"""Seconds of a launch from which on tiles are also handed out by a counter: a launch of several rounds, whose CTAs do
not end at one time. With one round it lost 2 % at 2048^3, where the tiles need no handing out."""

KEEP = 500
"""Ways to compile the kernel that stay, of some four thousand: the most promising by the model."""

FAR = 0.015
"""A config that is so much slower than the best after one pair of times gets no second one. Of the pairs of configs
that got fifteen in the first search of the suite, 16384^3 aside, one in 41 lies so far below its config's median."""

PAIRS = 7
"""Pairs of a config that may be the best, and of each process of a final."""

REST = 0.01
"""Seconds of idleness before a timing of the search; its finals rest as long as any. At 8192^3 the ratios of tiles that
come near cuBLAS moved by 0.1 % between 10, 20 and 40 ms, by up to 0.25 % from 5 ms on
(results/measurements/rest.csv)."""

SEEDS = 12
"""Tried first: half of them the most promising tiles, half the most promising techniques."""

NEAR = 4
"""Number of other tuned problems, the nearest ones, whose best configs a search tries first."""

USUAL = {"pdl": False, "evict_c": False, "scheduler": "static", "pace": 0}
"""Parameters that are searched where a problem's size and the context suggest it."""

WALK = ("raster", "swizzle")
"""Fields that set the order of the tiles: launch arguments, so that a change compiles nothing."""

SECONDS = 60.0
AHEAD = 24
"""Configs that compile while one is measured: more than there are processes to compile them."""
FINALS = 8


@dataclass(frozen=True)
class Options:
    """Options of a search.

    Args:
        regime, context: where it is timed.
        seconds: of the search of a problem; :data:`SECONDS` where neither they nor trials are given.
        trials: configs of a problem to measure.
        sampler: of :data:`hopper_gemm.tune.search.catalogue.SAMPLERS`.
        warm_start: results folders whose rows are told to the sampler.
        known: begin with what the recorded tables hold for the problem and for those nearest to it.
        pdl: whether programmatic dependent launch is searched as well; None: in the chained context where a launch is
            as short as :data:`SHORT`. A kernel that runs between others hardly gains by it.
        finals: configs that are measured again in fresh processes.
    """

    regime: str = "burst"
    context: str = "isolated"
    seconds: float | None = None
    trials: int | None = None
    sampler: str = "gp"
    warm_start: tuple[Path, ...] = ()
    known: bool = True
    pdl: bool | None = None
    finals: int | None = None


def question(
    problems: Sequence[GemmProblem], options: Options, listed: str = "", recorded: Study | None = None
) -> SweepSpec:
    """The sweep that tunes problems, each in its own space: the whole one, or the one that was recorded.

    Args:
        problems: each once.
        options: how they are tuned.
        listed: name of their list; one problem needs none.
        recorded: a study that is replayed.

    Raises:
        SpecError, ResultsError: a mistake in what was asked; one line each.
    """
    problem, regime, context = problems[0], options.regime, options.context
    what = f"{problem} {problem.dtype}" if not listed else f"each problem of {listed}"
    space: dict[str, Any] = {**_space(), "keep": KEEP, "seeds": SEEDS}
    space["problems"] = [_own(problem, options) for problem in problems]
    if recorded is not None:
        raw_spec = recorded.provenance["spec"]
        if not raw_spec.get("space") or raw_spec.get("rungs"):
            raise ResultsError(f"{shown(recorded.path)} is no grid and cannot be searched; name another with --from")
        space = {name: raw_spec[name] for name in ("space", "grids", "keep", "lower_to_fit") if raw_spec.get(name)}
        space["problems"] = [sizes for sizes in raw_spec["problems"] if SearchedProblem(**sizes).problem() == problem]
    raw = {
        "name": study_name(listed or str(problem), problem, options),
        "question": f"Which config is the fastest for {what} in the {regime} regime, {context}?",
        "regimes": [regime],
        "contexts": [context],
        "sampler": options.sampler,
        "skip_illegal": True,
        "warm_start": list(map(str, options.warm_start)),
        "budget": _budget(options, len(problems)),
        "race": {"far": FAR},
        "burst": {"pairs": PAIRS, "rest": REST},
        "ahead": AHEAD,
        "final": {"best": FINALS if options.finals is None else options.finals, "burst_pairs": PAIRS},
        "table": {"rows": "tile_m", "cols": "tile_n"},
        **space,
    }
    return checked(raw, "tune")


def study_name(what: str, problem: GemmProblem, options: Options) -> str:
    """The name of a tuning run and of its folder: ``tune-4096x4096x4096-burst``, with the context where it is not
    isolated, with ``batch-invariant`` where that is asked, and for a problem its type where it is not bf16 and its
    layouts where they are not kk."""
    unusual = [] if options.context == "isolated" else [options.context]
    unusual += ["batch-invariant"] * problem.batch_invariant
    if what == str(problem):
        unusual += [problem.dtype.replace("_", "-")] * (problem.dtype != "bf16")
        unusual += [problem.layouts] * (problem.layouts != "kk")
    return "-".join(["tune", what, options.regime, *unusual])


def recorded_problem(problem: GemmProblem, options: Options) -> Path:
    """The recorded study with the most rows of a problem.

    Raises:
        ResultsError: there is none.
    """
    counted, wanted = [], (problem, options.regime, options.context, "normal")
    for folder in recorded_folders():
        study = read_study(folder)
        points = [row.point for row in study.stage("sweep")]
        rows = sum((point.problem, point.regime, point.context, point.data) == wanted for point in points)
        if rows and not study.provenance["spec"].get("rungs"):
            counted.append((rows, folder))
    if not counted:
        conditions = f"{problem} {problem.dtype} {options.regime} {options.context}"
        raise ResultsError(
            f"there is no recorded study of {conditions}; name one with --from, name another --context, or tune it on a "
            "Hopper GPU"
        )
    return max(counted)[1]


@cache
def _space() -> dict[str, Any]:
    """The space and the grids, in which a problem may give :data:`USUAL` other values where they may have some."""
    read = tomllib.loads(Path(__file__).with_name("tune.toml").read_text(encoding="utf-8"))
    wide = {name: value for name, value in USUAL.items() if name not in ("pace", "scheduler")}
    space, *grids = [{**grid, **(USUAL if grid.get("reverse_k") else wide)} for grid in (read["space"], *read["grids"])]
    return {"space": space, "grids": grids}


def _own(problem: GemmProblem, options: Options) -> dict[str, Any]:
    """A problem's section of the sweep."""
    ways = _ways(problem, options)
    return {
        **problem.as_dict(),
        "space": ways,
        "known": _known(problem, options, ways, recorded_entries()) if options.known else [],
        **({"keep": KEEP + KEEP // 2} if ways.keys() & {"pdl", "pace", "scheduler"} else {}),
    }


def _budget(options: Options, problems: int) -> dict[str, float]:
    if options.trials is not None and options.seconds is None:
        return {"trials": options.trials}
    seconds = {"seconds": (options.seconds or SECONDS) * problems}
    return seconds if options.trials is None else {**seconds, "trials": options.trials}


def _ways(problem: GemmProblem, options: Options) -> dict[str, Any]:
    """Parameters that are searched beside the tiles, as the problem's size and the context suggest."""
    seconds = predict(choose(problem), problem).seconds
    ways: dict[str, Any] = {}
    if (options.context == "chained" and seconds < SHORT) if options.pdl is None else options.pdl:
        ways["pdl"] = [False, True]
    if seconds > COUNTED:
        ways["scheduler"] = ["static", "dynamic"]
    if seconds > PACED:
        ways["pace"] = [0, PACE]
    if problem.m * problem.n * problem.out_bytes > hopper.L2_BYTES:
        ways["evict_c"] = True  # nobody finds it there anyway
    if problem.batch_invariant:
        ways |= {"reverse_k": False, "split_k": [parts_of(problem.n, problem.k)]}
    return ways


def _known(
    problem: GemmProblem, options: Options, ways: dict[str, Any], entries: Sequence[TunedEntry]
) -> list[dict[str, Any]]:
    """Grids that begin at known configs: of this problem in any regime and context, then of the problems nearest to it.
    Each varies raster and swizzle. Those of a batch-invariant problem read k forward."""
    same = (problem, replace(problem, batch_invariant=not problem.batch_invariant))

    def far(other: GemmProblem) -> float:
        sides = zip((problem.m, problem.n, problem.k), (other.m, other.n, other.k), strict=True)
        return sum(abs(log2(mine / its)) for mine, its in sides)

    alike = {entry.problem for entry in entries if entry.problem.layouts == problem.layouts} - {*same}
    near = [pick(entries, other, options.regime, options.context).config for other in sorted(alike, key=far)[:NEAR]]
    best = [*(entry.config for entry in entries if entry.problem in same), *near]
    best = list(map(forward, best)) if problem.batch_invariant else best
    early = [replace(config, pdl=True) for config in best] if "pdl" in ways else []
    grids = []
    for config in dict.fromkeys([*map(without_pdl, best), *early]):
        fields = config.as_dict()
        walks = {name: list(dict.fromkeys([fields[name], *_space()["space"][name]])) for name in WALK}
        grids.append({**{name: value for name, value in fields.items() if value != DEFAULTS[name]}, **walks})
    return grids
