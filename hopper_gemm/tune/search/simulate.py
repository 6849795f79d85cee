"""Samplers against each other on a recorded study: how soon would each have found its best? No GPU, seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopper_gemm.tune.search.catalogue import SAMPLERS, make
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective
from hopper_gemm.tune.search.samplers import predictions
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import place_of

WITHIN = 0.01
"""A config so close to the recorded best is as good as it."""

SHARE = 0.05
"""Part of the space in which the default sampler should get there."""

CLOSED = 0.95
"""Part of the way from the median config to the best after which random search is expected to be; up to there a
sampler is scored."""

NOTHING = 1e-9
"""Speedup of a config that did not run."""

BLIND = "-blind"
"""End of the name of a sampler without the model prior, such as ``gp-blind``: where the model was fitted to the very
study that is searched, only this says what the sampler itself finds."""


@dataclass(frozen=True)
class Recorded:
    """One place of a recorded study, for samplers to search.

    Args:
        place: as :func:`hopper_gemm.tune.study.space.place_of`.
        space: the recorded configs that could run.
        speedups: one for each; nan where it did not run after all.
        predicted: what the model says, as :func:`hopper_gemm.tune.search.samplers.predictions`.
    """

    place: str
    space: LegalSpace
    speedups: np.ndarray
    predicted: np.ndarray

    @staticmethod
    def of(rows: Sequence[Row]) -> Recorded | None:
        """From the rows of a place; None where fewer than two ran."""
        legal = {row.point.config: row for row in rows if row.status != "illegal" and not row.point.is_baseline}
        if sum(row.ok for row in legal.values()) < 2:
            return None
        point = next(iter(legal.values())).point
        configs = list(legal)
        speedups = np.array([row.figures["speedup"] if row.ok else np.nan for row in legal.values()])
        return Recorded(place_of(point), LegalSpace(configs), speedups, predictions(configs, point.problem))

    @property
    def best(self) -> float:
        """The greatest recorded speedup."""
        return float(np.nanmax(self.speedups))


@dataclass(frozen=True)
class Curve:
    """One sampler on one place, all seeds.

    Args:
        place: its name.
        sampler: its name.
        size: legal configs.
        regret: best so far over the recorded best, less 1; a row for each seed, a column for each trial.
        luck: the regret that random search is expected to have, for each trial.
        median: the regret of the median config.
    """

    place: str
    sampler: str
    size: int
    regret: np.ndarray
    luck: np.ndarray
    median: float

    @staticmethod
    def of(recorded: Recorded, sampler: str, bests: np.ndarray) -> Curve:
        """From the best speedup after each trial: a row for each seed, a column for each trial."""
        regrets = recorded.best / np.nan_to_num(recorded.speedups, nan=NOTHING) - 1
        luck = expected_luck(regrets, bests.shape[1])
        regret = recorded.best / np.maximum(bests, NOTHING) - 1
        return Curve(recorded.place, sampler, len(regrets), regret, luck, float(np.median(regrets)))

    @property
    def needed(self) -> np.ndarray:
        """Trials until within :data:`WITHIN` of the best, for each seed; inf where it never got there."""
        there = self.regret <= WITHIN
        return np.where(there.any(axis=1), there.argmax(axis=1) + 1.0, np.inf)

    def found(self) -> float:
        """Part of the seeds that got there within :data:`SHARE` of the space."""
        return float((self.needed <= max(1, round(SHARE * self.size))).mean())

    def score(self) -> float:
        """How much of what random search lacks the sampler does not: 0 as random search, 1 the best at once, below 0
        worse; the mean over seeds and over trials, until random search has come :data:`CLOSED` of the way.

        After Willemsen and others, A methodology for comparing optimization algorithms for auto-tuning (2024), with
        trials where that has seconds.
        """
        close = self.luck <= (1 - CLOSED) * self.median
        until = int(close.argmax()) + 1 if close.any() else len(self.luck)
        luck = np.maximum(self.luck[:until], 1e-12)
        return float(((luck - self.regret.mean(axis=0)[:until]) / luck).mean())


def play(
    recorded: Recorded, sampler: str, seed: int, trials: int, seeds: int = 4, ahead: int = 1
) -> tuple[list[int], np.ndarray]:
    """Let a sampler search a recorded problem.

    Args:
        recorded: the problem.
        sampler: its name; with :data:`BLIND` at its end it sees no prediction.
        seed: of the sampler.
        trials: how many configs it may try.
        seeds: configs that it takes from the model first.
        ahead: trials that are asked before the first of them is answered.

    Returns:
        The configs tried, by number in their order, and the best speedup after each.
    """
    space, blind = recorded.space, sampler.endswith(BLIND)
    nothing = np.random.default_rng(seed).uniform(0, 1e-12, len(space))  # only so that the first config is any
    predicted, first = (nothing, 0) if blind else (recorded.predicted, seeds)
    proposing = make(sampler.removesuffix(BLIND), space, Objective(), seed, predicted, first)
    tried: list[int] = []
    asked: list[int] = []
    while len(tried) < min(trials, len(space)):
        while len(asked) < ahead and len(tried) + len(asked) < min(trials, len(space)):
            asked.append(proposing.ask())
        tried.append(asked.pop(0))
        speedup = float(recorded.speedups[tried[-1]])
        proposing.tell(tried[-1], None if np.isnan(speedup) else [speedup])
    found = np.nan_to_num(recorded.speedups[tried], nan=0.0)
    return tried, np.maximum.accumulate(found)


def expected_luck(regrets: np.ndarray, trials: int) -> np.ndarray:
    """The regret that random search without replacement is expected to have after each trial.

    Args:
        regrets: of all configs.
        trials: how many, at most as there are configs.

    Example:
        >>> expected_luck(np.array([0.0, 1.0, 2.0]), 3).round(3).tolist()
        [1.0, 0.333, 0.0]
    """
    ordered = np.sort(regrets)
    count = len(ordered)
    found = np.empty(trials)
    beyond = np.ones(count)  # the chance that all configs tried lie beyond the first i of the order
    for trial in range(trials):
        beyond = beyond * np.maximum(count - trial - np.arange(1, count + 1), 0) / (count - trial)
        found[trial] = ordered[0] + (np.diff(ordered) * beyond[:-1]).sum()
    return found


def simulate(
    places: Iterable[Recorded],
    samplers: Sequence[str],
    seeds: int,
    trials: int | None = None,
    watch: Callable[[str], None] = lambda text: None,
) -> list[Curve]:
    """Let every sampler search every place with several seeds.

    Args:
        places: of :func:`recorded_places`.
        samplers: names.
        seeds: runs of each; the exhaustive one and the prior alone draw nothing and run once.
        trials: of a run; by default a quarter of the space, and at least 40.
        watch: told before each sampler.

    Raises:
        ValueError: there is no such sampler.
    """
    unknown = [name for name in samplers if name.removesuffix(BLIND) not in SAMPLERS]
    if unknown:
        raise ValueError(f"samplers must be among {', '.join(SAMPLERS)} but got {unknown[0]!r}")
    curves = []
    for recorded in places:
        size = len(recorded.space)
        most = min(size, trials or max(40, size // 4))
        for sampler in samplers:
            watch(f"{recorded.place}: {sampler}, {most} of {size} configs")
            runs = 1 if sampler in ("exhaustive", "prior") else seeds
            bests = np.stack([play(recorded, sampler, seed, most)[1] for seed in range(runs)])
            curves.append(Curve.of(recorded, sampler, bests))
    return curves


def recorded_places(folder: Path) -> list[Recorded]:
    """The places of a recorded sweep, or of a map beside torch.mm.

    Raises:
        ResultsError: the folder is not one, or nothing in it can be searched.
    """
    by_place: dict[str, list[Row]] = {}
    for row in read_study(folder).stage("sweep", "map"):
        if row.stage == "map" and row.point.against != "cublas":
            continue
        by_place.setdefault(place_of(row.point), []).append(row)
    found = [recorded for rows in by_place.values() if (recorded := Recorded.of(rows)) is not None]
    if not found:
        raise ResultsError(f"{folder} has no problem with two configs that ran; name a recorded study")
    return found


def summary(curve: Curve) -> dict[str, Any]:
    """A curve in figures, ready for JSON: trials that each run needed, and how far behind the best the runs were after
    each trial: a tenth of them less than ``low``, half less than ``middle``, a tenth more than ``high``."""
    needed = curve.needed
    ninety = float(np.sort(needed)[max(0, int(np.ceil(0.9 * len(needed))) - 1)])
    at = min(max(1, round(SHARE * curve.size)), curve.regret.shape[1]) - 1
    low, middle, high = np.round(np.quantile(curve.regret, [0.1, 0.5, 0.9], axis=0), 5).tolist()
    return {
        "place": curve.place,
        "sampler": curve.sampler,
        "configs": curve.size,
        "runs": len(needed),
        "median_trials": _known(float(np.median(needed))),
        "trials_90": _known(ninety),
        "found": curve.found(),
        "score": round(curve.score(), 4),
        "regret": float(np.median(curve.regret[:, at])),
        "needed": [_known(one) for one in needed.tolist()],
        "low": low,
        "middle": middle,
        "high": high,
    }


def _known(trials: float) -> float | None:
    return None if np.isinf(trials) else trials
