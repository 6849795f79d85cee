"""Simulated searches of the spaces that were recorded whole: what each sampler is worth, over trials and over seconds.

Scores are computed from the runs of :mod:`benchmarks.samplers` and the rows that they searched; searches of
:mod:`benchmarks.live`, which measured, stand beside the simulated ones of their problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.samplers import FILE, STUDIES, kernels, tasks
from docs.generate.pages.means import share_of_best
from docs.generate.pages.sources import read
from docs.generate.pages.wording import wrapped
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.menu import choices
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.search.simulate import CLOSED, SHARE, WITHIN, random_search_regret
from hopper_gemm.tune.study.pooling import grouped
from hopper_gemm.tune.study.reader import has_rows
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.tables.pivot import interval, markdown

COMPILE_SECONDS = 1.0
"""Seconds that compiling a kernel takes on a core, rounded."""

POINT_SECONDS = 0.043
"""Seconds that a point of the joint sweep took, its kernel compiled before: 137.8 s, 3,215 rows, one NVIDIA H200."""

STEPS = 200
"""Equal steps of time of a score over seconds."""

RESAMPLES = 2000

NAMES = {
    "prior": "the model's order",
    "gp": "`gp`",
    "TPESampler": "Optuna TPE, multivariate (`tpe`)",
    "GPSampler": "Optuna GP",
    "CmaEsSampler": "Optuna CMA-ES",
    "QMCSampler": "Optuna QMC",
    "random": "random search",
}

LIVE = {
    "prior": ("prior", 1),
    "gp": ("gp", 1),
    "tpe": ("TPESampler", 1),
    "tpe-without": ("TPESampler", 0),
    "random": ("random", 0),
}
"""Names of live searches, each with the simulated one's: its sampler, and whether it has the model."""

NOT_LIVE = "A search on a GPU whose sampler is compared with another one on the same board was not recorded."


@cache
def runs() -> pd.DataFrame:
    """Every run with its two scores, whether it came within 1 % in a twentieth of the space, and after how many
    trials."""
    table = pd.read_csv(FILE, dtype={"steps": str})
    scored = [_scored(row) for row in table.itertuples()]
    return pd.concat([table, pd.DataFrame(scored)], axis=1)


@cache
def baseline(study: str, name: str) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """Return, for random search on a problem: its expected regret and seconds after each trial, the trials until it has
    made up 95 % of the median config's regret, and the regret of each config."""
    task, codes = tasks(study)[name], kernels(study)[name]
    regrets = task.best / np.nan_to_num(task.speedups, nan=1e-9) - 1
    count = len(regrets)
    expected = random_search_regret(regrets, count)
    close = expected <= (1 - CLOSED) * np.median(regrets)
    sizes = np.unique(codes, return_counts=True)[1]
    drawn = np.arange(1, count + 1)
    missed = np.ones((count, len(sizes)))  # chance that no config of a kernel was drawn yet
    for trial in range(count):
        before = missed[trial - 1] if trial else np.ones(len(sizes))
        missed[trial] = before * np.maximum(count - trial - sizes, 0) / (count - trial)
    seconds = COMPILE_SECONDS * (1 - missed).sum(axis=1) + POINT_SECONDS * drawn
    return expected, seconds, int(close.argmax()) + 1, regrets


def _scored(row: Any) -> dict[str, float]:
    expected, seconds, until, regrets = baseline(row.study, row.task)
    until = min(until, row.trials)
    steps = [tuple(map(int, step.split(":"))) for step in row.steps.split()]
    trial, compiled, number = (np.array(part) for part in zip(*steps, strict=True))
    regret = regrets[number]
    # over trials
    after = np.searchsorted(trial, np.arange(1, until + 1), side="right") - 1
    over_trials = (1 - regret[after] / np.maximum(expected[:until], 1e-12)).mean()
    # over seconds: before its first result a search is where random search is before its first
    spent = COMPILE_SECONDS * compiled + POINT_SECONDS * trial
    at = np.linspace(seconds[0], seconds[until - 1], STEPS)
    theirs = expected[np.searchsorted(seconds, at, side="right") - 1]
    mine = regret[np.maximum(np.searchsorted(spent, at + 1e-9, side="right") - 1, 0)]
    over_seconds = (1 - mine / np.maximum(theirs, 1e-12)).mean()
    close = np.flatnonzero(regret <= WITHIN)
    needed = float(trial[close[0]]) if len(close) else np.inf
    found = needed <= max(1, round(SHARE * len(regrets)))
    return {"score": over_trials, "seconds": over_seconds, "found": float(found), "needed": needed}


def regret_of(row: Any) -> np.ndarray:
    """The regret of a run after each trial."""
    regrets = baseline(row.study, row.task)[3]
    steps = [tuple(map(int, step.split(":"))) for step in row.steps.split()]
    after = np.searchsorted([trial for trial, *_ in steps], np.arange(1, row.trials + 1), side="right") - 1
    return np.where(after < 0, np.inf, regrets[[number for *_, number in steps]][after])


def table_of(study: str) -> pd.DataFrame:
    """A line for each sampler, without and with the model's first configs: the mean over problems of both scores and of
    the share of runs that found the best, their 95 % intervals, and the least score of a problem.

    Seeds are drawn anew, of each problem on its own; the problems stay.
    """
    part = runs().query("study == @study")
    lines = {}
    for (sampler, model), own in part.groupby(["sampler", "model"]):
        every = own.groupby("seed")["task"].nunique()
        own = own[own["seed"].isin(every[every == len(tasks(study))].index)]
        if own.empty:
            continue
        cells = {"seeds": str(own["seed"].nunique())}
        for figure in ("score", "seconds", "found"):
            by_task = own.pivot(index="seed", columns="task", values=figure).to_numpy()
            rng = np.random.default_rng(0)
            chosen = rng.integers(len(by_task), size=(RESAMPLES, *by_task.shape))
            drawn = np.take_along_axis(by_task[None], chosen, axis=1).mean(axis=(1, 2))
            low, high = np.quantile(drawn, [0.025, 0.975])
            form = "{:.0%}" if figure == "found" else "{:.2f}"
            cells[figure] = form.format(by_task.mean())
            if len(by_task) > 1:
                cells[figure] += f" [{form.format(low)}, {form.format(high)}]"
        cells["least"] = f"{own.groupby('task')['score'].mean().min():.2f}"
        lines[sampler, bool(model)] = cells
    return pd.DataFrame(lines).T


def scores(study: str) -> str:
    """The table of a study in Markdown."""
    found = table_of(study)
    order = [(name, model) for name in NAMES for model in (True, False) if (name, model) in found.index]
    lines = []
    for name, model in order:
        cells = found.loc[(name, model)]
        knows = {"prior": "", "random": ""}.get(name, "with" if model else "without")
        figures = (cells[column] for column in ("score", "least", "seconds", "found", "seeds"))
        lines.append((NAMES[name], knows, *figures))
    names = "score over trials", "least of the problems", "score over seconds", "found in 5 %", "seeds"
    return markdown(("sampler", "model", *names), lines)


def answer() -> str:
    """In sentences: what the model finds alone, and what a search adds to it."""
    behind = {
        study: [task.best / task.speedups[task.predicted.argmin()] - 1 for task in tasks(study).values()]
        for study in STUDIES
    }
    counts = {study: sum(each <= WITHIN for each in of) for study, of in behind.items()}
    told = [f"{count} of the {len(behind[study])} problems of {study}" for study, count in counts.items()]
    most = max(each for of in behind.values() for each in of)
    figures = {study: table_of(study) for study in STUDIES}

    def share(sampler: str, model: bool, studies: Iterable[str] = STUDIES) -> str:
        return ", ".join(f"{figures[study].loc[(sampler, model), 'found']} ({study})" for study in studies)

    return wrapped(
        f"*Answer.* The model's first config is within 1 % of the recorded best on {told[0]}, {told[1]} and {told[2]}: "
        f"there a search adds nothing to the model. On the others, of which the best is up to {most:.1%} faster, it "
        f"does: in 5 % of the space `gp`, begun with an earlier fit's configs, is within 1 % in {share('gp', True)} of "
        f"the runs; "
        f"without the model in {share('gp', False)}, random search in {share('random', False)}. On menu nothing was "
        "fitted to the rows."
    )


def searched(root: Path) -> dict[str, list[list[Row]]]:
    """Return the rows of every live search under a folder by sampler, seed by seed, in the order of its trials."""
    folders = {name: sorted(root.glob(f"{name}-[0-9]*")) for name in LIVE}
    rows = {name: [read(path).stage("sweep") for path in paths if has_rows(path)] for name, paths in folders.items()}
    return {name: seeds for name, seeds in rows.items() if seeds}


def shares_of_best(searches: dict[str, list[list[Row]]]) -> dict[str, list[np.ndarray]]:
    """Return the speed of every trial over the best of all searches, by sampler and seed; 0 where a config did not run.

    A config counts with the median of its speedups over all searches, lest its luckiest time decide.
    """
    ran = [row for seeds in searches.values() for rows in seeds for row in rows if row.ok]
    speeds = pd.Series([row.figures["speedup"] for row in ran]).groupby([str(row.point.config) for row in ran]).median()
    speeds /= speeds.max()
    return {
        name: [np.array([speeds.get(str(row.point.config), 0.0) for row in rows]) for rows in seeds]
        for name, seeds in searches.items()
    }


def trials_until_close(shares: np.ndarray) -> int | None:
    """Return the first trial within 1 % of the best; None where there is none."""
    close = np.flatnonzero(shares >= 1 / (1 + WITHIN))
    return int(close[0]) + 1 if len(close) else None


def live(root: Path | None = None) -> str:
    """The live searches beside the simulated ones of their problem: a section, or where there are none, a sentence."""
    searches = searched(root or results_root() / "h100/live")
    if not searches:
        return NOT_LIVE
    every = [row for seeds in searches.values() for rows in seeds for row in rows]
    task, boards = place_of(every[0].point), {row.board for row in every}
    most = max(len(rows) for seeds in searches.values() for rows in seeds)
    simulated = runs().query("study == 'joint' and task == @task").set_index(["sampler", "model"])["needed"]
    lines = []
    for name, seeds in shares_of_best(searches).items():
        needed = simulated.loc[[LIVE[name]]]
        best = [[float(shares[:trials].max()) for shares in seeds] for trials in (8, most)]
        cells = (
            ", ".join(str(trials_until_close(shares) or "-") for shares in seeds),
            *(f"{np.mean(reached):.3f} [{min(reached):.3f}, {max(reached):.3f}]" for reached in best),
            "-" if np.isinf(needed.median()) else f"{needed.median():.0f}",
            f"{(needed <= most).mean():.0%} of {len(needed)}",
        )
        knows = {"prior": "", "random": ""}.get(name, "with" if LIVE[name][1] else "without")
        lines.append((NAMES[LIVE[name][0]], knows, *cells))
    names = "trials to 1 %, seed by seed", "best of 8 trials", f"best of {most}"
    table = markdown(("sampler", "model", *names, "replay: median trials", f"replay: runs within {most}"), lines)
    text = wrapped(
        f"Searches that measured, {task}, on {len(boards)} {every[0].gpu} board{'s' * (len(boards) > 1)}, one after "
        f"the other, {most} trials each (`python -m benchmarks.live`, [rows](../results/h100/live)), beside the "
        "simulated runs on the rows of joint, which are of an H200. *Trials to 1 %*: until a config within 1 % of the "
        "best of all these searches, - where there was none. *Best*: over the best of all, the mean over seeds [least, "
        "greatest]."
    )
    return f"## Live, beside the replay\n\n{text}\n\n{table}"


def live_answer(root: Path | None = None) -> str:
    """In a sentence how many live searches of each sampler came within 1 % of the best, and after how many trials."""
    searches = searched(root or results_root() / "h100/live")
    if not searches:
        return NOT_LIVE
    clauses = []
    for name, seeds in shares_of_best(searches).items():
        reached = [trials for shares in seeds if (trials := trials_until_close(shares)) is not None]
        sampler = NAMES[LIVE[name][0]] + (" without the model" if name == "tpe-without" else "")
        after = f" (after {', '.join(map(str, reached))} trials)" if reached else ""
        clauses.append(f"{sampler} in {len(reached)} of {len(seeds)} searches{after}")
    row = next(iter(searches.values()))[0][0]
    where = f"{row.point.problem} on an {row.gpu}"
    return wrapped(f"Live at {where} samplers came within 1 % of the best of all searches: {'; '.join(clauses)}.")


@cache
def listed_by_heuristics() -> tuple[list[tuple[str, ...]], str]:
    """Return what the recorded rows say of nvMatmulHeuristics' configs: a line for each problem with the best of those
    that are kernels of the menu, beside the model's first of the same rows and today's pick; then sentences."""
    listed = pd.read_csv(results_root() / "measurements/matmul-heuristics.csv")
    rows = [row for row in read(results_root() / STUDIES["menu"]).stage("map") if row.ok]
    rows = [row for row in rows if row.point.against == "cublas" and not row.point.is_baseline]
    lines, counts, beside = list[tuple[str, ...]](), [0, 0], list[tuple[float, float]]()
    for (m, n, k), part in listed.groupby(["m", "n", "k"], sort=False):
        own = [row for row in rows if (row.point.problem.m, row.point.problem.n, row.point.problem.k) == (m, n, k)]
        speeds: dict[Kernel, float] = {row.point.config: row.figures["speedup"] for row in own}
        shapes: dict[tuple[int, ...], float] = {}
        for kernel, speedup in speeds.items():
            shapes[_shape(kernel)] = max(shapes.get(_shape(kernel), 0.0), speedup)
        names = ["cta_m", "cta_n", "cluster_m", "cluster_n", "split_k"]
        theirs = [shapes.get(key) for key in part[names].itertuples(index=False, name=None)]
        task = next(task for name, task in tasks("menu").items() if name.startswith(f"{m}x{n}x{k} "))
        picks, best = task.speedups[task.predicted.argsort()], max(speeds.values())
        now = speeds.get(choices(own[0].point.problem, 1)[0])
        shares = [*(_best(theirs[:top], best) for top in (1, 8, 16)), *(_best(picks[:top], best) for top in (1, 8))]
        timed = [speedup for speedup in theirs if speedup is not None]
        if timed:
            beside.append((max(timed) / best, float(picks[0]) / best))
        counts = [counts[0] + len(timed), counts[1] + len(theirs)]
        lines.append((f"{m}x{n}x{k}", f"{len(timed)} of {len(theirs)}", *shares, _best([now], best)))
    kept, (their_mean, our_mean) = sum(bool(line[-1]) for line in lines), map(share_of_best, zip(*beside, strict=True))
    return lines, wrapped(
        f"{counts[0]} of its {counts[1]} configs are kernels of the menu of then; the others were not timed: that "
        "needs a GPU. "
        f"On the {len(beside)} problems with any of them its best of 16 has {their_mean} of the best, our model's "
        f"first of the same rows {our_mean}. Today's pick, its walk included, is among the rows on "
        f"{kept} of the {len(lines)} problems."
    )


def heuristics() -> str:
    """The table of :func:`listed_by_heuristics` and its sentences."""
    lines, text = listed_by_heuristics()
    ours = "our model's first of the rows", "best of its 8", "today's pick"
    heads = ("problem", "configs that were timed", *(f"its best of {top}" for top in (1, 8, 16)), *ours)
    return f"{markdown(heads, lines)}\n\n{text}"


def heuristics_answer() -> str:
    """The sentences alone."""
    return wrapped(f"Of nvMatmulHeuristics, {listed_by_heuristics()[1].replace(chr(10), ' ')}")


def guided() -> str:
    """In a sentence what the guided sweep reached, and with how many of the legal configs."""
    study = read(results_root() / "h100/guided")
    rows = [row for row in study.stage("sweep") if row.ok]
    legal = len(next(iter(tasks("joint").values())).space)
    clauses = []
    for problem, own in grouped(rows, lambda row: row.point.problem).items():
        row = max(own, key=lambda each: float(each.figures["speedup"]))
        config = row.point.config
        cell = f"{config.tile_m} x {config.k_depth}, {config.stages} stages"
        clauses.append(f"{interval(row.figures)} at {problem} ({cell}, {len(own)} configs)")
    return wrapped(f"A guided sweep on an H100 reached {' and '.join(clauses)}, of {legal} legal ones.")


def _shape(config: Kernel) -> tuple[int, ...]:
    """Tile, cluster and parts of k, of C as it lies."""
    sides = (config.tile_m, config.tile_n), (config.cluster_m, config.cluster_n)
    (tile, cluster) = (side[::-1] if config.swap_ab else side for side in sides)
    return (*tile, *cluster, config.split_k)


def _best(speedups: Iterable[float | None], best: float) -> str:
    """The greatest over the best of all; empty where none was timed."""
    timed = [one for one in speedups if one is not None and one == one]
    return f"{max(timed) / best:.3f}" if timed else ""
