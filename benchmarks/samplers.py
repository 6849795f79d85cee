"""Let samplers search the spaces that were recorded whole, with and without the model's first configs.

    python -m benchmarks.samplers [--samplers gp,TPESampler] [--seeds 30] [--out FILE]

Needs no GPU. Optuna's samplers are plugged in by ask and tell; CmaEsSampler needs the package cmaes, GPSampler and
QMCSampler scipy. A line of the file is one run: ``steps`` are the trials at which the best so far improved, each as
trial:kernels:config, with the distinct kernels compiled until then and the number of the config. A run ends with the
recorded best, or after ``trials``. What is in the file is not run again.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import optuna

from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.search.samplers import LegalSampler, Plugged, diverse
from hopper_gemm.tune.search.search import make
from hopper_gemm.tune.search.simulate import CLOSED, SHARE, RecordedTask, random_search_regret, recorded_tasks
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.space import place_of

STUDIES = {"joint": "archive/h200/2026-11-22-joint", "space": "h200/space", "menu": "h200/menu"}
"""Studies whose spaces were recorded whole, by name."""

OPTUNA = {
    "TPESampler": {"multivariate": True, "constant_liar": True},
    "CmaEsSampler": {"warn_independent_sampling": False},
    "QMCSampler": {"warn_independent_sampling": False, "scramble": True},
    "GPSampler": {"warn_independent_sampling": False},
}
"""Optuna's samplers and their settings."""

FIRST = 4
"""Configs that a sampler with the model takes from its predictions first."""

MOST = 120
"""Most trials of a run."""

COLUMNS = ("study", "task", "sampler", "model", "seed", "trials", "steps")
FILE = results_root() / "measurements/samplers.csv"


@cache
def tasks(study: str) -> dict[str, RecordedTask]:
    """The recorded problems of a study, by name."""
    return {task.name: task for task in recorded_tasks(results_root() / STUDIES[study])}


@cache
def kernels(study: str) -> dict[str, np.ndarray]:
    """The number of the machine code of each config, by problem; a config that did not run has one of its own."""
    rows = read_study(results_root() / STUDIES[study]).stage("sweep", "map")
    code: dict[tuple[str, object], object] = {
        (place_of(row.point), row.point.config): row.figures.get("code") or str(row.point.config) for row in rows
    }
    numbers = {name: number for number, name in enumerate(sorted(set(map(str, code.values()))))}
    return {
        name: np.array([numbers[str(code[name, config])] for config in task.space.configs])
        for name, task in tasks(study).items()
    }


def horizon(task: RecordedTask) -> int:
    """Trials until random search is expected to have come 95 % of the way from the median config to the best; at least
    a twentieth of the space, at most :data:`MOST`."""
    regrets = task.best / np.nan_to_num(task.speedups, nan=1e-9) - 1
    close = random_search_regret(regrets, len(regrets)) <= (1 - CLOSED) * np.median(regrets)
    return min(MOST, len(regrets), max(int(close.argmax()) + 1, round(SHARE * len(regrets))))


def proposer(task: RecordedTask, name: str, model: bool, seed: int) -> LegalSampler:
    """A new sampler by name, that begins with the model's configs or knows nothing of the model."""
    if name in OPTUNA:
        first = diverse(task.predicted, task.space.configs, FIRST) if model else ()
        given = getattr(optuna.samplers, name)(seed=seed, **OPTUNA[name])
        return Plugged(task.space, seed, given, first)
    blind = np.random.default_rng(seed).uniform(0, 1e-12, len(task.space))
    return make(name, task.space, seed, task.predicted if model else blind, FIRST * model)


def search(task: RecordedTask, sampler: LegalSampler, most: int, codes: np.ndarray) -> str:
    """Let a sampler search and return its steps."""
    best, compiled, steps = 0.0, set(), []
    for trial in range(1, most + 1):
        number = sampler.ask()
        compiled.add(int(codes[number]))
        speedup = float(task.speedups[number])
        sampler.tell(number, None if np.isnan(speedup) else speedup)
        if speedup > best:
            best = speedup
            steps.append(f"{trial}:{len(compiled)}:{number}")
        if best == task.best:
            break
    return " ".join(steps)


def wanted(names: Iterable[str], studies: Iterable[str], seeds: int) -> Iterable[tuple[str, str, str, bool, int]]:
    """Every run: the study, the problem, the sampler, whether it has the model, and the seed."""
    for seed in range(seeds):
        for name in names:
            for study in studies:
                for task in tasks(study):
                    for model in {"prior": (True,), "random": (False,)}.get(name, (False, True)):
                        if seed == 0 or name != "prior":
                            yield study, task, name, model, seed


def main() -> None:
    """Run what the file lacks and append it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samplers", default=",".join(("prior", "random", "gp", *OPTUNA)))
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=FILE)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    there = {tuple(row.values())[:5] for row in csv.DictReader(given.out.open())} if given.out.exists() else set()
    with given.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not there:
            writer.writerow(COLUMNS)
        for study, name, sampler, model, seed in wanted(
            given.samplers.split(","), given.studies.split(","), given.seeds
        ):
            run = study, name, sampler, str(int(model)), str(seed)
            if run in there:
                continue
            task = tasks(study)[name]
            most = horizon(task)
            own_seed = crc32(f"{study} {name} {seed}".encode())
            steps = search(task, proposer(task, sampler, model, own_seed), most, kernels(study)[name])
            writer.writerow([*run, most, steps])
            file.flush()


if __name__ == "__main__":
    main()
