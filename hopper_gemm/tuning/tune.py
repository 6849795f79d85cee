"""Tuning one problem: a sweep over the whole space that is made up here, and why its winner won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.explain import explain
from hopper_gemm.model.menu import PACE, choose
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.pivot import Group, groups
from hopper_gemm.tables.places import here_or_in_checkout, results_root, shown
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import PROVENANCE, ResultsError, config_of
from hopper_gemm.tuning.run import SweepRun, check_backend, choose_gpu
from hopper_gemm.tuning.spec import SweepSpec, checked

LAUNCHES: dict[str, Any] = {"raster": ["m", "n"], "swizzle": [2, 4, 8, 11, 16]}
WHOLE: dict[str, Any] = {"zigzag": True, **LAUNCHES}
"""Where a CTA walks over whole tiles: backwards every other time, which costs nothing and saves 0.2 to 0.6 % where
there are rounds of them and k is not as long as 28672 (notebooks/locality)."""

SPACE: dict[str, Any] = {
    "tile_m": [64, 128, 192, 256, 320, 384],
    "tile_n": list(range(64, 257, 8)),
    "stagger": [1, 0],
    "cluster": ["1x1", "2x1", "1x2"],
    "swap_ab": [False, True],
    "epi_n": "wide",
    **WHOLE,
}
"""What is searched for every problem: the tile shapes."""

GRIDS: list[dict[str, Any]] = [
    {  # 192 rows beside more columns than three consumers can have
        "tile_m": 192,
        "tile_n": [208, 224, 240, 256],
        "consumers": 2,
        "split": "n",
        "stagger": 0,
        "cluster": ["1x1", "2x1", "1x2"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # shallow and deep stages
        "tile_m": [64, 128, 192, 256],
        "tile_n": [64, 96, 128, 160, 192, 256],
        "k_depth": [2, 8],
        "stagger": [1, 0],
        "cluster": ["1x1", "2x1", "1x2"],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # a shallower ring beside room for the whole tile on its way out
        "stages": 3,
        "tile": ["128x256", "256x128"],
        "stagger": 0,
        "cluster": ["1x1", "2x1", "1x2"],
        "swap_ab": [False, True],
        **WHOLE,
    },
    {  # widths that cannot be cut for two CTAs, which then take turns
        "multicast": "turns",
        "tile_m": [128, 192, 256],
        "tile_n": [104, 120, 136, 152, 168, 184, 200],
        "stagger": 0,
        "cluster": ["2x1", "4x1"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # and those whose chunks would be narrow beside a fourth stage
        "stages": 3,
        "tile_m": 256,
        "tile_n": [136, 152],
        "stagger": 0,
        "multicast": ["rows", "turns"],
        "cluster": ["1x1", "2x1", "1x2"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # clusters of four and eight
        "tile_m": [128, 192, 256],
        "tile_n": [96, 128, 160, 192, 256],
        "stagger": 0,
        "cluster": ["2x2", "4x1", "1x4", "4x2", "2x4"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # the store of one tile under the math of the next
        "schedule": "pingpong",
        "tile_m": [64, 128],
        "tile_n": [64, 80, 96, 112, 128, 144, 152, 160, 168, 176, 184, 192, 208, 256],
        "stagger": [1, 0],
        "cluster": ["1x1", "2x1", "1x2"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # too few tiles for the GPU, or few rows
        "tile_m": [64, 128, 256],
        "tile_n": [8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256],
        "k_depth": [4, 8],
        "stagger": [1, 0],
        "split_k": [1, 2, 4, 8],
        "swap_ab": [False, True],
        **LAUNCHES,
    },
    {  # the same through a workspace, which takes any number of parts and leaves clusters free for multicast
        "reduction": "workspace",
        "tile_m": [64, 128, 192, 256],
        "tile_n": [64, 96, 128, 160, 192, 256],
        "k_depth": [4, 8],
        "l2_promotion": [128, 256],
        "stagger": 0,
        "cluster": ["1x1", "2x1", "1x2", "2x2"],
        "split_k": [2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 20, 24, 32],
        "swap_ab": [False, True],
        "swizzle": [4, 8],
    },
    {  # two on an SM: the store of one under the math of the other, and room for the kernel behind
        "ctas_per_sm": 2,
        "tile_m": [64, 128],
        "tile_n": [16, 32, 48, 64, 80, 96, 128, 160, 192],
        "k_depth": [2, 4],
        "stagger": [1, 0],
        "cluster": ["1x1", "2x1", "1x2"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # and parts of k
        "ctas_per_sm": 2,
        "tile_m": [64, 128],
        "tile_n": [16, 32, 64, 96],
        "stagger": 0,
        "split_k": [2, 4, 8],
        "swap_ab": [False, True],
        "swizzle": [4, 8],
    },
    {  # few rows or columns, which memory paces: deep rings and wide multicast
        "tile_m": [64, 128],
        "tile_n": [8, 16, 32, 64],
        "k_depth": [4, 8],
        "stagger": [1, 0],
        "cluster": ["2x1", "4x1", "1x2", "1x4"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
    {  # a last wave that is hardly filled
        "stream_k": True,
        "tile_m": [128, 192, 256],
        "tile_n": [96, 128, 160, 192, 208, 256],
        "stagger": 0,
        "cluster": ["1x1", "2x1", "1x2"],
        "swap_ab": [False, True],
        "epi_n": "wide",
        **WHOLE,
    },
]
"""And what pays on some: each beside the grid above, with as many stages as fit."""

SHORT = 80e-6
"""Seconds of a launch up to which it is also tried with ``early``, so that each kernel sets itself up while the one
ahead of it on the stream drains. At most 1.2 us were seen to be saved; and a launch may lose by it, since its CTAs
start where SMs become free first, and no longer side by side."""

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
        problem, regime: what was tuned.
        source: measured or replayed.
        final: whether the winner's figures are those of fresh processes.
        winner, runner_up: the best and the next best; None where only one ran.
        even: configs that share the first place within the noise.
    """

    problem: str
    regime: str
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
            f"{self.problem} {self.regime}: {best.config}",
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


def prepare(
    problem: GemmProblem,
    *,
    regime: str = "burst",
    seconds: float | None = None,
    trials: int | None = None,
    sampler: str = "gp",
    backend: str = "auto",
    gpu: int = 0,
    recorded: Path | None = None,
    warm_start: Sequence[Path] = (),
    out: Path | None = None,
    early: bool | None = None,
    finals: int | None = None,
) -> SweepRun:
    """A sweep that tunes one problem: over :data:`SPACE` on a GPU, over what was recorded in a replay.

    Args:
        problem: what is multiplied.
        regime: burst or steady.
        seconds: of the search; :data:`SECONDS` where neither they nor trials are given.
        trials: configs to measure.
        sampler: of :data:`hopper_gemm.tuning.samplers.SAMPLERS`.
        backend, gpu, recorded, out: as for :meth:`hopper_gemm.tuning.run.SweepRun.prepare`.
        warm_start: results folders whose rows are told to the sampler; one without a study of its own, such as that of
            a list, stands for its folder of this problem, if it has one.
        early: whether kernels that are launched early are searched as well; None: where a launch is as short as
            :data:`SHORT`. A kernel that runs alone gains nothing by it.
        finals: configs that are measured again in fresh processes; :data:`FINALS` where None.

    Raises:
        SpecError, ResultsError: a mistake in what was asked; one line each.
        NoHopperError: there is no such GPU.
    """
    check_backend(backend)
    found, _ = choose_gpu(backend, gpu)
    source = None if found is not None else recorded or _recorded(problem, regime)
    ways = _ways(problem, early)
    space: dict[str, Any] = {
        "space": _with(ways, SPACE),
        "grids": [_with(ways, grid) for grid in GRIDS],
        "keep": KEEP + KEEP // 2 if ways else KEEP,
        "seeds": SEEDS,
    }
    if source is not None:
        asked = read_study(source).provenance["spec"]
        if not asked.get("space") or asked.get("rungs"):
            raise ResultsError(f"{shown(source)} is no grid and cannot be searched; name another study with --from")
        space = {name: asked[name] for name in ("space", "grids", "keep", "lower_to_fit") if asked.get(name)}
    budget = {name: value for name, value in (("trials", trials), ("seconds", seconds)) if value is not None}
    name = study_name(problem, regime)
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layouts": problem.layouts}
    raw = {
        "name": name,
        "question": f"Which config is the fastest for {problem} {problem.dtype} in the {regime} regime?",
        "regimes": [regime],
        "problems": [sizes],
        "sampler": sampler,
        "skip_illegal": True,
        "warm_start": [str(folder) for asked in warm_start for folder in _of_problem(asked, name)],
        "budget": budget or {"seconds": SECONDS},
        "race": {"far": FAR},
        "burst": {"pairs": PAIRS, "rest": REST},
        "ahead": AHEAD,
        "final": {"best": FINALS if finals is None else finals, "burst_pairs": PAIRS},
        "table": {"rows": "tile_m", "cols": "tile_n"},
        **space,
    }
    spec: SweepSpec = checked(raw, "tune")
    return SweepRun.of(spec, backend="replay" if found is None else "cuda", gpu=gpu, out=out, recorded=source)


def _ways(problem: GemmProblem, early: bool | None) -> dict[str, Any]:
    """What is searched beside the tiles, as the problem's size suggests."""
    seconds = predict(choose(problem), problem).seconds
    ways: dict[str, Any] = {}
    if seconds < SHORT if early is None else early:
        ways["early"] = [False, True]
    if seconds > PACED:
        ways["pace"] = [0, PACE]
    if problem.m * problem.n * problem.out_bytes > hopper.L2_BYTES:
        ways["evict_c"] = True  # nobody finds it there anyway
    return ways


def _with(ways: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """A grid in these ways, as far as they are legal there."""
    walks = grid.get("zigzag") and not grid.get("stream_k")
    return {**grid, **{name: values for name, values in ways.items() if walks or name != "pace"}}


def _of_problem(folder: Path, name: str) -> list[Path]:
    """A folder to start from; where it is that of a list, its folder of the problem, or none."""
    found = here_or_in_checkout(folder)
    if not found.is_dir() or (found / PROVENANCE).is_file():
        return [folder]
    return [folder / name] if (found / name / PROVENANCE).is_file() else []


def study_name(problem: GemmProblem, regime: str) -> str:
    """What tuning a problem is called, and its folder: ``tune-4096x4096x4096-burst``, with the type where it is not
    bf16 and the layouts where they are not kk."""
    unusual = [word for word, usual in ((problem.dtype, "bf16"), (problem.layouts, "kk")) if word != usual]
    return "-".join(["tune", str(problem), regime, *unusual])


def verdict(folder: Path) -> Verdict:
    """What the tuning in a folder found.

    Raises:
        ResultsError: nothing ran.
    """
    study = read_study(folder)
    ran = [(group, part[part["status"] == "ok"]) for group, part in groups(study.trials)]
    ran = [(group, part) for group, part in ran if len(part)]
    if not ran:
        raise ResultsError(f"nothing ran in {shown(folder)}; its trials.csv says why")
    group, trials = ran[0]
    finals = group.of(study.finals)
    finals = finals[finals["status"] == "ok"]
    rows = (finals if len(finals) else trials).sort_values("speedup", ascending=False)
    if len(rows) < 2:
        rows = pd.concat([rows, trials.sort_values("speedup", ascending=False)])
    contenders = list({config_of(row): row for row in reversed(rows.to_dict("records"))}.items())[::-1][:2]
    first, *others = [_contender(group, config, row) for config, row in contenders]
    return Verdict(
        problem=group.problem,
        regime=group.regime,
        source=study.provenance["source"],
        final=bool(len(finals)),
        winner=first,
        runner_up=others[0] if others else None,
        even=study.provenance.get("even", {}).get(group.place, []),
    )


def _contender(group: Group, config: GemmConfig, row: dict[str, Any]) -> Contender:
    problem = GemmProblem(group.m, group.n, group.k, group.dtype)
    found, said = explain(config, problem), predict(config, problem)
    assert isinstance(config.stages, int)
    return Contender(
        config=str(config),
        **{name: float(row[name]) for name in ("speedup", "speedup_low", "speedup_high", "tflops")},
        waves=found.waves,
        wave_efficiency=found.wave_efficiency,
        intensity=found.flop_per_smem_byte,
        ahead_kib=max(0, config.stages - 1 - config.stagger) * found.stage_bytes / 1024,
        limit=said.limit,
        predicted_us=said.seconds * 1e6,
    )


def _recorded(problem: GemmProblem, regime: str) -> Path:
    """The recorded study with the most rows of the problem."""
    counted = []
    for path in sorted(results_root().glob(f"*/*/{PROVENANCE}")):
        study = read_study(path.parent)
        if study.provenance["spec"].get("rungs"):
            continue
        for group, part in groups(study.trials):
            if (group.m, group.n, group.k, group.dtype, group.regime, group.data) == (
                problem.m,
                problem.n,
                problem.k,
                problem.dtype,
                regime,
                "normal",
            ):
                counted.append((len(part), path.parent))
    if not counted:
        raise ResultsError(
            f"there is no Hopper GPU here and no recorded study of {problem} {problem.dtype} {regime}; "
            "name one with --from, or run it on a Hopper GPU"
        )
    return max(counted)[1]
