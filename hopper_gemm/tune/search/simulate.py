"""Simulated searches: the trials that each sampler needs to find the best config of a recorded study. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import predictions
from hopper_gemm.tune.search.search import SAMPLERS, make
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import place_of

WITHIN = 0.01
"""Regret, relative to the recorded best, up to which a config counts as the best."""

SHARE = 0.05
"""Share of the space within which the default sampler should reach it."""

CLOSED = 0.95
"""Part of the median config's regret that random search is expected to have made up where scoring ends."""

NOTHING = 1e-9
"""Speedup of a config that did not run."""

BLIND = "-blind"
"""Suffix of a sampler's name: without the model prior, such as to judge it on rows to which the model was fitted."""


@dataclass(frozen=True)
class RecordedTask:
    """One problem, regime and context of a recorded study, for samplers to search."""

    name: str  # by place_of
    space: LegalSpace  # the recorded legal configs
    speedups: np.ndarray  # speedup of each config; nan where it did not run
    predicted: np.ndarray  # logarithm of each config's predicted time

    @staticmethod
    def of(rows: Sequence[Row]) -> RecordedTask | None:
        """Return the task of these rows; None where fewer than two ran."""
        legal = {row.point.config: row for row in rows if row.status != "illegal" and not row.point.is_baseline}
        if sum(row.ok for row in legal.values()) < 2:
            return None
        point = next(iter(legal.values())).point
        configs = list(legal)
        speedups = np.array([row.figures["speedup"] if row.ok else np.nan for row in legal.values()])
        return RecordedTask(place_of(point), LegalSpace(configs), speedups, predictions(configs, point.problem))

    @property
    def best(self) -> float:
        return float(np.nanmax(self.speedups))


@dataclass(frozen=True)
class Curve:
    """One sampler on one task, all seeds."""

    task: str  # name of the task
    sampler: str  # name of the sampler
    size: int  # number of legal configs
    regret: np.ndarray  # recorded best over the best so far, less 1; a row for each seed, a column for each trial
    random_regret: np.ndarray  # expected regret of random search after each trial
    median: float  # regret of the median config

    @staticmethod
    def of(recorded: RecordedTask, sampler: str, bests: np.ndarray) -> Curve:
        """Return the curve of the best speedups after each trial: a row for each seed, a column for each trial; 0 until
        a config ran. ValueError if they cannot be that."""
        size, most = len(recorded.space), recorded.best * (1 + 1e-6)  # rounded to float32 too
        if bests.ndim != 2 or not bests.size or bests.shape[1] > size:
            raise ValueError(f"bests must be 2-D, seeds x trials, at most {size} of these, but got shape {bests.shape}")
        if len(wrong := bests[~((bests >= 0) & (bests <= most))]):
            raise ValueError(f"bests must be speedups, 0 to the recorded best {recorded.best:.6g}, but got {wrong[0]}")
        if (np.diff(bests) < 0).any():
            raise ValueError("bests must not fall along a row; take np.maximum.accumulate of each run's speedups")
        regrets = recorded.best / np.nan_to_num(recorded.speedups, nan=NOTHING) - 1
        random_regret = random_search_regret(regrets, bests.shape[1])
        regret = recorded.best / np.maximum(bests, NOTHING) - 1
        return Curve(recorded.name, sampler, size, regret, random_regret, float(np.median(regrets)))

    @property
    def needed(self) -> np.ndarray:
        """Trials until the regret is at most :data:`WITHIN`, for each seed; inf where it never is."""
        close = self.regret <= WITHIN
        return np.where(close.any(axis=1), close.argmax(axis=1) + 1.0, np.inf)

    def success_rate(self) -> float:
        """Return the share of the seeds that need at most :data:`SHARE` of the space."""
        return float((self.needed <= max(1, round(SHARE * self.size))).mean())

    @property
    def covered(self) -> int:
        """Trials that a score covers: until random search has made up :data:`CLOSED` of the median config's regret."""
        close = self.random_regret <= (1 - CLOSED) * self.median
        return int(close.argmax()) + 1 if close.any() else len(self.random_regret)

    def scores(self) -> np.ndarray:
        """Return of each run the share of random search's regret that the sampler avoids: 0 as random search, 1 the
        best at once, below 0 worse; the mean over the :attr:`covered` trials.

        After Willemsen and others, A methodology for comparing optimization algorithms for auto-tuning (2024), with
        trials in place of seconds.
        """
        random_regret = np.maximum(self.random_regret[: self.covered], 1e-12)
        shares: np.ndarray = (random_regret - self.regret[:, : self.covered]) / random_regret
        return shares.mean(axis=1)

    def score(self) -> float:
        """Return the mean over the runs of :meth:`scores`."""
        return float(self.scores().mean())


def play(recorded: RecordedTask, sampler: str, seed: int, trials: int, ahead: int = 1) -> tuple[list[int], np.ndarray]:
    """Let a sampler search a recorded task; return the configs tried, by number in their order, and the best speedup
    after each. The sampler tries ``trials`` configs at most, first some of the model, with ``ahead`` trials pending at
    a time; with the suffix :data:`BLIND` it gets no prediction."""
    space, predicted, seeds = recorded.space, recorded.predicted, 4
    if sampler.endswith(BLIND):  # not constant, so that the first config is random
        predicted, seeds = np.random.default_rng(seed).uniform(0, 1e-12, len(space)), 0
    proposer = make(sampler.removesuffix(BLIND), space, seed, predicted, seeds)
    tried, pending = list[int](), list[int]()
    while len(tried) < min(trials, len(space)):
        while len(pending) < ahead and len(tried) + len(pending) < min(trials, len(space)):
            pending.append(proposer.ask())
        tried.append(pending.pop(0))
        speedup = float(recorded.speedups[tried[-1]])
        proposer.tell(tried[-1], None if np.isnan(speedup) else speedup)
    speedups = np.nan_to_num(recorded.speedups[tried], nan=0.0)
    return tried, np.maximum.accumulate(speedups)


def random_search_regret(regrets: np.ndarray, trials: int) -> np.ndarray:
    """Return the expected regret of random search without replacement after each trial, from the regrets of all
    configs.

    Example:
        >>> random_search_regret(np.array([0.0, 1.0, 2.0]), 3).round(3).tolist()
        [1.0, 0.333, 0.0]
    """
    ordered = np.sort(regrets)
    count = len(ordered)
    expected = np.empty(trials)
    beyond = np.ones(count)  # probability that all configs tried lie beyond the first i of the order
    for trial in range(trials):
        beyond = beyond * np.maximum(count - trial - np.arange(1, count + 1), 0) / (count - trial)
        expected[trial] = ordered[0] + (np.diff(ordered) * beyond[:-1]).sum()
    return expected


def simulate(
    tasks: Iterable[RecordedTask],
    samplers: Sequence[str],
    seeds: int,
    trials: int | None = None,
    watch: Callable[[str], None] = lambda text: None,
) -> list[Curve]:
    """Let every sampler search every task with several seeds, other ones for each task: runs on problems with equal
    spaces would else be the same. ``exhaustive`` and ``prior`` are deterministic and run once. A run has ``trials``, by
    default a quarter of the space, and at least 40. ``watch`` is called with a line of text before each sampler.
    ValueError if there is no such sampler."""
    unknown = [name for name in samplers if name.removesuffix(BLIND) not in SAMPLERS]
    if unknown:
        raise ValueError(f"samplers must be among {', '.join(SAMPLERS)} but got {unknown[0]!r}")
    curves = []
    for recorded in tasks:
        size = len(recorded.space)
        most = min(size, trials or max(40, size // 4))
        for sampler in samplers:
            watch(f"{recorded.name}: {sampler}, {most} of {size} configs")
            runs = range(1 if sampler in ("exhaustive", "prior") else seeds)
            own = [crc32(f"{recorded.name} {run}".encode()) for run in runs]
            bests = np.stack([play(recorded, sampler, seed, most)[1] for seed in own])
            curves.append(Curve.of(recorded, sampler, bests))
    return curves


def recorded_tasks(folder: Path) -> list[RecordedTask]:
    """Return the tasks of a recorded sweep, or of a map's rows over torch.mm; ResultsError if the folder holds neither,
    or no task with two configs that ran."""
    rows = read_study(folder).stage("sweep", "map")
    paired = [row for row in rows if row.stage == "sweep" or row.point.against == "cublas"]
    by_name = grouped(paired, lambda row: place_of(row.point))
    tasks = [recorded for rows in by_name.values() if (recorded := RecordedTask.of(rows)) is not None]
    if not tasks:
        raise ResultsError(f"{folder} has no problem with two configs that ran; name a recorded study")
    return tasks


def summary(curve: Curve) -> dict[str, Any]:
    """Return a curve ready for JSON: the trials that each run needed, and the 10th, 50th and 90th percentile of the
    regret after each trial as ``low``, ``middle`` and ``high``."""
    needed = curve.needed
    ninety = np.sort(needed)[max(0, int(np.ceil(0.9 * len(needed))) - 1)]
    finite = [None if np.isinf(trials) else float(trials) for trials in (np.median(needed), ninety, *needed)]
    last = min(max(1, round(SHARE * curve.size)), curve.regret.shape[1]) - 1
    curves = np.quantile(curve.regret, [0.1, 0.5, 0.9], axis=0)
    return {
        "place": curve.task,
        "sampler": curve.sampler,
        "configs": curve.size,
        "runs": len(needed),
        "median_trials": finite[0],
        "trials_90": finite[1],
        "found": curve.success_rate(),
        "score": round(curve.score(), 4),
        "scores": curve.scores().round(4).tolist(),
        "scored_trials": curve.covered,
        "regret": float(np.median(curve.regret[:, last])),
        "needed": finite[2:],
        **dict(zip(("low", "middle", "high"), curves.round(5).tolist(), strict=True)),
    }
