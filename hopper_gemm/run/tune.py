"""Tuning a problem: a sweep over the whole space that is made up here, and why its winner won."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.explain import explain
from hopper_gemm.model.menu import PACE, choose
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import results_root
from hopper_gemm.run.finals import pooled
from hopper_gemm.study.places import here_or_in_checkout, shown
from hopper_gemm.study.provenance import PROVENANCE
from hopper_gemm.study.reader import Study, read_study
from hopper_gemm.study.row import ResultsError, Row
from hopper_gemm.study.space import place_of
from hopper_gemm.study.spec import SweepSpec, checked

SHORT = 80e-6
"""Seconds of a launch up to which it is also tried with ``pdl``, so that each kernel sets itself up while the one ahead
of it on the stream drains. At most 1.2 us were seen to be saved; and a launch may lose by it, since its CTAs start where
SMs become free first, and no longer side by side."""

PACED = 250e-6
"""Seconds of a launch from which on it is also tried with ``pace``; what that is worth stands beside
:data:`hopper_gemm.model.menu.LONG`."""

KEEP = 500
"""Ways to compile the kernel that stay, of some four thousand: the most promising by the model."""

FAR = 0.015
"""A config that is so much slower than the best after one pair of times gets no second one. Of the pairs of configs
that got fifteen in the first search of the suite, 16384^3 aside, one in 41 lies so far below its config's median."""

PAIRS = 7
"""Of a config that may be the best, and of a final in each of its processes."""

REST = 0.01
"""Seconds of idleness before a timing of the search; its finals rest as long as any. At 8192^3 the ratios of tiles that
come near cuBLAS moved by 0.1 % between 10, 20 and 40 ms, by up to 0.25 % from 5 ms on (docs/rest.csv)."""

SEEDS = 12
"""Tried first: half of them the most promising tiles, half the most promising techniques."""

SECONDS = 60.0
AHEAD = 24
"""Configs that compile while one is measured: more than there are processes to compile them."""
FINALS = 8


@dataclass(frozen=True)
class Options:
    """How a problem is tuned.

    Args:
        regime, context: where it is timed.
        seconds: of the search; :data:`SECONDS` where neither they nor trials are given.
        trials: configs to measure.
        sampler: of :data:`hopper_gemm.search.catalogue.SAMPLERS`.
        warm_start: results folders whose rows are told to the sampler; one without a study of its own, such as that of
            a list, stands for its folder of this problem, if it has one.
        pdl: whether programmatic dependent launch is searched as well; None: in the chained context where a launch is as
            short as :data:`SHORT`. A kernel that runs between others hardly gains by it.
        finals: configs that are measured again in fresh processes.
    """

    regime: str = "burst"
    context: str = "isolated"
    seconds: float | None = None
    trials: int | None = None
    sampler: str = "gp"
    warm_start: tuple[Path, ...] = ()
    pdl: bool | None = None
    finals: int | None = None


def question(problem: GemmProblem, options: Options, recorded: Study | None = None) -> SweepSpec:
    """The sweep that tunes a problem: over the whole space, or over what was recorded.

    Raises:
        SpecError, ResultsError: a mistake in what was asked; one line each.
    """
    ways = _ways(problem, options)
    space: dict[str, Any] = {
        "space": _with(ways, _space()["space"]),
        "grids": [_with(ways, grid) for grid in _space()["grids"]],
        "keep": KEEP + KEEP // 2 if "pdl" in ways or "pace" in ways else KEEP,
        "seeds": SEEDS,
    }
    if recorded is not None:
        asked = recorded.provenance["spec"]
        if not asked.get("space") or asked.get("rungs"):
            raise ResultsError(f"{shown(recorded.path)} is no grid and cannot be searched; name another with --from")
        space = {name: asked[name] for name in ("space", "grids", "keep", "lower_to_fit") if asked.get(name)}
    budget = {name: value for name in ("trials", "seconds") if (value := getattr(options, name)) is not None}
    name, regime, context = study_name(problem, options.regime, options.context), options.regime, options.context
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layouts": problem.layouts}
    raw = {
        "name": name,
        "question": f"Which config is the fastest for {problem} {problem.dtype} in the {regime} regime, {context}?",
        "regimes": [regime],
        "contexts": [context],
        "problems": [sizes],
        "sampler": options.sampler,
        "skip_illegal": True,
        "warm_start": [str(folder) for asked in options.warm_start for folder in _of_problem(asked, name)],
        "budget": budget or {"seconds": SECONDS},
        "race": {"far": FAR},
        "burst": {"pairs": PAIRS, "rest": REST},
        "ahead": AHEAD,
        "final": {"best": FINALS if options.finals is None else options.finals, "burst_pairs": PAIRS},
        "table": {"rows": "tile_m", "cols": "tile_n"},
        **space,
    }
    return checked(raw, "tune")


def study_name(problem: GemmProblem, regime: str, context: str) -> str:
    """What tuning a problem is called, and its folder: ``tune-4096x4096x4096-burst``, with the context where it is not
    isolated, the type where it is not bf16 and the layouts where they are not kk."""
    usual = ((context, "isolated"), (problem.dtype.replace("_", "-"), "bf16"), (problem.layouts, "kk"))
    return "-".join(["tune", str(problem), regime, *(word for word, common in usual if word != common)])


def recorded_problem(problem: GemmProblem, options: Options) -> Path:
    """The recorded study with the most rows of a problem.

    Raises:
        ResultsError: there is none.
    """
    counted = []
    for path in sorted(results_root().glob(f"*/*/{PROVENANCE}")):
        study = read_study(path.parent)
        if study.provenance["spec"].get("rungs"):
            continue
        of = (problem, options.regime, options.context, "normal")
        points = [row.point for row in study.stage("sweep")]
        rows = sum((point.problem, point.regime, point.context, point.data) == of for point in points)
        if rows:
            counted.append((rows, path.parent))
    if not counted:
        asked = f"{problem} {problem.dtype} {options.regime} {options.context}"
        raise ResultsError(
            f"there is no Hopper GPU here and no recorded study of {asked}; name one with --from, name another "
            "--context, or run it on a Hopper GPU"
        )
    return max(counted)[1]


@cache
def _space() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("tune.toml").read_text(encoding="utf-8"))


def _ways(problem: GemmProblem, options: Options) -> dict[str, Any]:
    """What is searched beside the tiles, as the problem's size and the context suggest."""
    seconds = predict(choose(problem), problem).seconds
    ways: dict[str, Any] = {}
    if (options.context == "chained" and seconds < SHORT) if options.pdl is None else options.pdl:
        ways["pdl"] = [False, True]
    if seconds > PACED:
        ways["pace"] = [0, PACE]
    if problem.m * problem.n * problem.out_bytes > hopper.L2_BYTES:
        ways["evict_c"] = True  # nobody finds it there anyway
    return ways


def _with(ways: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """A grid in these ways, as far as they are legal there."""
    walks = grid.get("reverse_k") and not grid.get("stream_k")
    return {**grid, **{name: values for name, values in ways.items() if walks or name != "pace"}}


def _of_problem(folder: Path, name: str) -> list[Path]:
    """A folder to start from; where it is that of a list, its folder of the problem, or none."""
    found = here_or_in_checkout(folder)
    if not found.is_dir() or (found / PROVENANCE).is_file():
        return [folder]
    return [folder / name] if (found / name / PROVENANCE).is_file() else []


@dataclass(frozen=True)
class Contender:
    """A config with what it reached and what the model says of it.

    Args:
        config: its label.
        speedup, speedup_low, speedup_high: over cuBLAS.
        tflops: its rate.
        waves, wave_efficiency: how the output falls on the SMs.
        intensity: FLOP for each byte that enters shared memory.
        ahead_kib: bytes that can be in flight, KiB.
        limit: what the model thinks sets the pace of a stage: math, load or ring.
        predicted_us: the model's time.
    """

    config: str
    speedup: float
    speedup_low: float
    speedup_high: float
    tflops: float
    waves: int
    wave_efficiency: float
    intensity: float
    ahead_kib: float
    limit: str
    predicted_us: float


@dataclass(frozen=True)
class Verdict:
    """What tuning found.

    Args:
        problem, regime, context: what was tuned.
        source: measured or replayed.
        final: whether the winner's figures are those of fresh processes.
        winner, runner_up: the best and the next best; None where only one ran.
        even: configs that share the first place within the noise.
    """

    problem: str
    regime: str
    context: str
    source: str
    final: bool
    winner: Contender
    runner_up: Contender | None
    even: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For a person."""
        best = self.winner
        how = "in fresh processes" if self.final else "in the search"
        lines = [
            f"{self.problem} {self.regime}, {self.context}: {best.config}",
            f"  {best.speedup:.3f}x cuBLAS [{best.speedup_low:.3f}, {best.speedup_high:.3f}], "
            f"{best.tflops:.0f} TFLOP/s, {self.source} {how}",
        ]
        if self.even:
            lines.append(f"  no unique best: {len(self.even)} configs are even within the noise")
            lines += [f"    {label}" for label in self.even]
        if self.runner_up is None:
            return lines
        other = self.runner_up
        lines += [
            f"  runner-up {other.speedup:.3f}x: {other.config}",
            f"    waves      {best.waves}, {best.wave_efficiency:.1%} useful, against "
            f"{other.waves}, {other.wave_efficiency:.1%}",
            f"    intensity  {best.intensity:.1f} FLOP per byte into shared memory against {other.intensity:.1f}",
            f"    look-ahead {best.ahead_kib:.0f} KiB can be in flight against {other.ahead_kib:.0f}",
            f"    limit      {best.limit}, predicted {best.predicted_us:.1f} us, against "
            f"{other.limit}, {other.predicted_us:.1f} us",
        ]
        return lines


def verdict(folder: Path) -> Verdict:
    """What the tuning in a folder found.

    Raises:
        ResultsError: nothing ran.
    """
    study = read_study(folder)
    ran = [row for row in study.stage("sweep") if row.ok]
    if not ran:
        raise ResultsError(f"nothing ran in {shown(folder)}; the column reason of its rows says why")
    place = place_of(ran[0].point)
    finals: dict[Any, list[Row]] = {}
    for row in study.stage("final"):
        if place_of(row.point) == place:
            finals.setdefault(row.point.config, []).append(row)
    best = [(of[0], pooled(of)[1]) for of in finals.values() if all(row.ok and row.samples for row in of)]
    rows = [(row, row.figures) for row in ran if place_of(row.point) == place]
    ranked = sorted(best, key=lambda one: -one[1]["speedup"])
    ranked += sorted(rows, key=lambda one: -one[1]["speedup"]) if len(best) < 2 else []
    contenders = list({row.point.config: (row, figures) for row, figures in reversed(ranked)}.values())[::-1][:2]
    first, *others = [_contender(row, figures) for row, figures in contenders]
    return Verdict(
        problem=str(ran[0].point.problem),
        regime=ran[0].point.regime,
        context=ran[0].point.context,
        source=study.provenance["source"],
        final=bool(best),
        winner=first,
        runner_up=others[0] if others else None,
        even=study.provenance.get("even", {}).get(place, []),
    )


def _contender(row: Row, figures: Any) -> Contender:
    config, problem = row.point.config, row.point.problem
    assert config is not None
    found, said = explain(config, problem), predict(config, problem)
    assert isinstance(config.stages, int)
    return Contender(
        config=str(config),
        **{name: float(figures[name]) for name in ("speedup", "speedup_low", "speedup_high", "tflops")},
        waves=found.waves,
        wave_efficiency=found.wave_efficiency,
        intensity=found.flop_per_smem_byte,
        ahead_kib=max(0, config.stages - 1 - config.stagger) * found.stage_bytes / 1024,
        limit=said.limit,
        predicted_us=said.seconds * 1e6,
    )
