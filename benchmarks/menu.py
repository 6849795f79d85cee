"""Choose the menu of :mod:`hopper_gemm.model.menu` from recorded rows, and print what a smaller or larger one loses.

    python -m benchmarks.menu curve      loss against size: results/measurements/menu.csv and menu.svg
    python -m benchmarks.menu choose > FILE         a menu, whatever is shipped
    python -m benchmarks.menu exchange > FILE       the shipped one, some kernels exchanged by later rows
    python -m benchmarks.menu extend > FILE         the shipped one, and more kernels
    python -m benchmarks.menu fp8 > FILE            more kernels, for FP8 alone

FILE becomes hopper_gemm/model/menu.json, or fp8.json there, once it is whole: the program reads them. What is shipped
was chosen, exchanged twice and extended.

Problems: those of the tuned table's isolated bursts, of maps and of drawn lists that were measured and are not held
out, divided by a seed: one half chooses, the other judges; and problems of sweeps/shapes/map.toml that are not held
out, and some drawn by seeds (benchmarks/fresh.py).

Speeds, as a share of the best known of a problem, never above 1:

* measured: the best speedup among the recorded ways to launch a binary, over the best recorded;
* not measured: the prediction of the model and its trees, calibrated on the problem's own rows within 15 % of its best
  (their median ratio of measured to predicted) less one standard deviation of these, so that no menu profits from what
  nobody measured;
* on a problem of the map, the prediction over the best prediction of all binaries.

A binary's worth is the sum over problems of the logarithm of the best share. Three groups weigh: what was measured;
the others that torch.mm is expected to take less than :data:`hopper_gemm.model.menu.ROUNDS` for, half as much; and
those that take longer, a fourth: these are few, and the dynamic scheduler runs them alone. The menu is chosen one by
one, each the binary that adds most (greedy). For FP8 the same is done with rows of FP8, of the list, of searches and of
drawn problems, and others that are drawn; the binaries are those that add most to the menu.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.fresh import AGAIN, LAST_OF_FP8, LAST_SEEDS, drawn, drawn_in_fp8
from benchmarks.held_out import read_held_out
from docs.generate.measurements import record
from hopper_gemm.model.config import DEFAULTS, GemmConfig
from hopper_gemm.model.correction import features, is_learnt, shipped
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal, pair_reasons
from hopper_gemm.model.lookup import without_pdl
from hopper_gemm.model.menu import KINDS, PACE, ROUNDS, behind_padding, binaries, launches, offers_of
from hopper_gemm.model.predict import Fixed, predict, predict_fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.model.tuned import TunedEntry, results_root
from hopper_gemm.tune.limits import CHIPS
from hopper_gemm.tune.study.files import recorded_entries, suite_file
from hopper_gemm.tune.study.reader import read_study, recorded_folders
from hopper_gemm.tune.study.shapes import expected_seconds, read_shapes
from hopper_gemm.tune.tables.style import EVEN, OURS, SERIES, STYLE, THEIRS, save

SEED = 27
SIZES = (16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 344, 384, 448)
SIZE, OF_FP8 = 344, 48
"""Binaries of the menu: see results/measurements/menu.csv; and of those for FP8 alone."""

NEAR = 0.15
"""Rows that calibrate the prediction of a problem: slower than its best by this much at most."""

EVERY = 2
"""Of the map's problems every second one is looked at."""

MEASURED = ("fresh-", "wider", "map", "between")
"""Beginnings of the names of studies whose problems count as searched, though no search was made of them."""

SEEDS = range(1001, 1013)
"""Seeds of problems (:mod:`benchmarks.fresh`) that are looked at beside the map's, in turns on either GPU; none of them
is measured."""

LEAST = 8
"""A problem of which fewer kernels were timed does not count. Of the shortest maps there are eight picks."""

CLOSE = 0.03
"""Measured binaries are offered that are slower than the best of a problem by this much at most."""

BEHIND = 1.25
"""Predicted time over the best from which on a binary does not count."""

PAYS = 1.5e-5
"""Least gain, in the weighted sum of logarithms, for which a kernel is exchanged."""

FLOOR = 0.5
"""Share that a problem without any kernel counts as: legal ones are looked for first."""

WIDE = {
    64: (64, 96, 128, 160, 192, 208, 224, 256),
    128: (64, 72, 80, 96, 112, 128, 136, 144, 160, 168, 176, 192, 208, 224, 232, 240, 256),
    192: (64, 80, 88, 96, 104, 112, 120, 128, 144, 152, 160, 168, 176, 192, 208),
    256: (48, 64, 80, 88, 96, 112, 128, 136, 144, 160, 168, 176, 192, 200, 208),
    384: (64, 80, 96, 112, 128),
}
"""tile_n for each tile_m where the output fills the GPU."""

IN_TURN = {64: (128, 160, 208), 128: (64, 80, 96, 128, 144, 160, 176, 192, 208)}
"""The same for pingpong, where k is short."""

NARROW = {
    64: (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144),
    128: (8, 16, 24, 32, 48, 56, 64, 80, 96, 128),
    192: (16, 32, 64, 80),
    256: (8, 16, 32, 48, 64, 96, 128),
    384: (8, 16, 32),
}
"""The same where the output does not fill the GPU, or is memory-bound: wide boxes of an operand that is contiguous
along m or n read more of a row at once."""

APART = {
    64: (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 136, 160, 192),
    128: (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 256),
    192: (32, 64, 88, 104, 112, 128, 136, 144, 160),
    256: (16, 32, 64, 96, 128),
}
"""The same for split-K through a workspace, of which one binary serves any number of parts."""

CLUSTERS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
PARTS = (2, 4, 8)


def offered(fp8: bool = False) -> list[Kernel]:
    """Binaries to choose from: the shipped menu, a space of tiles and techniques, and what recorded searches found."""
    found = [*binaries(), *(resolve(one) for one in _space() if is_legal(one))]
    found += [one for problem in searched(fp8).values() for one, share in problem.shares.items() if share > 1 - CLOSE]
    found += [without_pdl(entry.config) for entry in entries() if not read_held_out().has(entry.problem)]
    return list(dict.fromkeys(plain(one) for one in found if type(one) is Kernel and not one.pdl and is_legal(one)))


def plain(kernel: Kernel) -> Kernel:
    """The binary that stands for a kernel: with a static scheduler neither reversed k nor pace, which are worth less
    than 0.4 % in the pairs of recorded rows from 2048^3 on; without reversed k the sums keep their order, so that a row
    of the product depends on no other."""
    short = kernel.scheduler == "static"
    return kernel.but(reverse_k=False, pace=0).compiled() if short else kernel.compiled()


def _space() -> Iterator[GemmConfig]:
    """Configs by tile and technique; see :func:`plain`."""
    wide, in_turn = GemmConfig(epi_n="wide"), GemmConfig(schedule="pingpong")
    apart = GemmConfig(reduction="workspace", split_k=2, stagger=0)
    yield from _tiles(wide, WIDE, CLUSTERS)
    yield from _tiles(GemmConfig(), NARROW, CLUSTERS)
    yield from _tiles(GemmConfig(), {64: NARROW[64], 128: NARROW[128]}, CLUSTERS[:1], PARTS)
    yield from _tiles(GemmConfig(k_depth=8), {64: NARROW[64], 128: (16, 32, 64, 128)}, CLUSTERS)
    yield from _tiles(in_turn, IN_TURN, CLUSTERS)
    for like in (apart, replace(apart, k_depth=8)):
        yield from _tiles(like, APART, CLUSTERS, (apart.split_k,), (0,))
    counted = replace(wide, scheduler="dynamic")
    for like in (counted, replace(counted, reverse_k=True, pace=PACE), replace(in_turn, scheduler="dynamic")):
        yield from _tiles(like, IN_TURN if like.schedule == "pingpong" else WIDE, CLUSTERS)


def _tiles(
    like: GemmConfig,
    tiles: Mapping[int, Iterable[int]],
    clusters: Iterable[tuple[int, int]],
    parts: Iterable[int] = (1,),
    staggers: Iterable[int] = (1, 0),
) -> Iterator[GemmConfig]:
    """Variants of a config in these parameters."""
    for tile_m, widths in tiles.items():
        for tile_n, (cluster_m, cluster_n), split_k in product(widths, clusters, parts):
            sides: dict[str, Any] = {"tile_m": tile_m, "tile_n": tile_n, "cluster_m": cluster_m, "cluster_n": cluster_n}
            for stagger, swap_ab in product(staggers, (False, True)):
                yield replace(like, **sides, split_k=split_k, stagger=stagger, swap_ab=swap_ab)


class Case(NamedTuple):
    """A problem on a GPU."""

    problem: GemmProblem
    chip: Chip = SXM


@dataclass(frozen=True)
class Searched:
    """Rows of a searched problem.

    Args:
        shares: speed of each binary over the best one's.
        ratio: median of measured over predicted time near the best.
        deviation: standard deviation of its logarithm.
        best_us: time of the best.
    """

    shares: dict[Kernel, float]
    ratio: float
    deviation: float
    best_us: float


def entries() -> list[TunedEntry]:
    """The entries of H200s in the recorded tables."""
    return [entry for entry in recorded_entries() if entry.kind == "h200"]


@cache
def searched(fp8: bool = False) -> dict[Case, Searched]:
    """The tuned table's problems with their rows of H200s, and those of :data:`MEASURED` with the rows of either GPU,
    in isolated bursts; neither those held out nor those that judge, nor the studies of :data:`AGAIN`. Of FP8 all
    problems that were measured."""
    held, tuned = read_held_out(), {one.problem for one in entries() if one.context == "isolated"}
    rows: dict[Case, dict[Kernel, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for folder in recorded_folders():
        kind = next((part for part in folder.relative_to(results_root()).parts if part in CHIPS), "")
        also = (fp8 or folder.name.startswith(MEASURED)) and folder.name not in (*LAST_SEEDS, LAST_OF_FP8)
        if not kind or not (also or kind == "h200") or folder.name in AGAIN:
            continue
        for row in read_study(folder).stage("sweep", "final", "map"):
            point = row.point
            usual = (point.regime, point.context, point.data, point.against) == (
                "burst",
                "isolated",
                "normal",
                "cublas",
            )
            apart = held.has(point.problem) or point.is_baseline or point.problem.is_fp8 != fp8
            if row.ok and usual and not apart and (also or point.problem in tuned):
                speed = float(row.figures["speedup"])
                rows[Case(point.problem, CHIPS[kind])][point.config].append((speed, float(row.figures["baseline_us"])))
    return {case: summary(case, configs) for case, configs in rows.items() if len(configs) >= LEAST}


def summary(case: Case, configs: Mapping[Kernel, Sequence[tuple[float, float]]]) -> Searched:
    """Speedups of each config in the rows of a problem, each with the baseline's microseconds."""
    speeds = {config: median(speed for speed, _ in values) for config, values in configs.items()}
    baseline = median(us for values in configs.values() for _, us in values)
    best = max(speeds.values())
    close = [config for config, speed in speeds.items() if speed > best * (1 - NEAR)]
    what = [predict(config, *case) for config in close]
    expected = np.array([one.seconds * 1e6 for one in what])
    if is_learnt(case.problem):
        expected *= shipped()([features(Fixed(config), one, *case) for config, one in zip(close, what, strict=True)])
    near = np.log(baseline / np.array([speeds[config] for config in close]) / expected)
    shares: dict[Kernel, float] = defaultdict(float)
    for config, speed in speeds.items():
        if type(config) is Kernel:
            shares[plain(config)] = max(shares[plain(config)], speed / best)
    return Searched(dict(shares), float(np.exp(np.median(near))), float(np.std(near)), baseline / best)


def predicted(kernels: Sequence[Kernel], cases: Sequence[Case]) -> np.ndarray:
    """Seconds by problem and binary, of its best way to launch; infinite where it cannot run or is :data:`BEHIND` the
    best by its lower bound. Kernels of a kind count from :data:`hopper_gemm.model.menu.KINDS` on."""
    table = np.full((len(cases), len(kernels)), np.inf)
    ways = [(number, way) for number, kernel in enumerate(kernels) for way in launches(kernel)]
    offers_on = {chip: offers_of(ways, chip) for chip in {case.chip for case in cases}}
    for row, (problem, chip) in zip(table, cases, strict=True):
        offers, figures = offers_on[chip], dict[int, tuple[float, ...]]()
        for kind, least in KINDS.items():
            if kind not in offers or (least and row.min() < least):
                continue
            for bound, number, fixed in offers[kind].by_bound(problem):
                if bound > BEHIND * row.min():
                    break
                if not pair_reasons(fixed.kernel, problem):
                    way = Fixed(behind_padding(fixed.kernel, problem)) if problem.padded else fixed
                    what = predict_fixed(way, problem, chip)
                    if what.seconds < row[number]:
                        row[number], figures[number] = what.seconds, features(way, what, problem, chip)
        near = [number for number in figures if row[number] < BEHIND * row.min()]
        if near and is_learnt(problem):
            row[near] *= shipped()([figures[number] for number in near])
    return table


def shares(kernels: Sequence[Kernel], cases: Sequence[Case], measured: Mapping[Case, Searched]) -> np.ndarray:
    """The share of the best known by problem and binary; see the module."""
    table = predicted(kernels, cases)
    place = {kernel: index for index, kernel in enumerate(kernels)}
    for row, case in zip(table, cases, strict=True):
        known = measured.get(case)
        if known is None:
            row[:] = row.min() / row
            continue
        expected = known.best_us / (row * 1e6 * known.ratio) * np.exp(-known.deviation)
        row[:] = np.minimum(expected, 1.0)
        for kernel, share in known.shares.items():
            if kernel in place:
                row[place[kernel]] = share
    return np.maximum(table, 1e-9)


def greedy(table: np.ndarray, weights: np.ndarray, size: int, beside: int = 0) -> list[int]:
    """Columns that are chosen one by one, each of which adds most to the weighted logarithm of the best share; beside
    so many of the first, which are there anyway."""
    gain, chosen = np.log(np.maximum(table, FLOOR)), list[int]()
    best = gain[:, :beside].max(axis=1, initial=np.log(FLOOR))
    while len(chosen) < size:
        added = weights @ np.maximum(gain - best[:, None], 0)
        added[chosen] = -1
        chosen.append(int(np.argmax(added)))
        best = np.maximum(best, gain[:, chosen[-1]])
    return chosen


def exchanged(
    table: np.ndarray,
    weights: np.ndarray,
    chosen: Sequence[int],
    count: int = SIZE,
    pays: float = PAYS,
    most: float = np.inf,
) -> list[int]:
    """Exchange columns one by one: take in the one that adds most, drop the one whose loss is least. The others stay,
    and with them their machine code.

    Args:
        table: shares, as of :func:`shares`.
        weights: of the problems.
        chosen: columns to start from.
        count: exchanges at most.
        pays: least gain of an exchange, in the weighted sum of logarithms; the first below it is not made.
        most: largest loss of one problem, as a logarithm, for which a column is dropped.
    """
    gain, kept = np.log(np.maximum(table, FLOOR)), list(chosen)
    for _ in range(count):
        best = gain[:, kept].max(axis=1)
        added = weights @ np.maximum(gain - best[:, None], 0)
        added[kept] = -1
        tried = [*kept, int(added.argmax())]
        second, first = np.sort(gain[:, tried], axis=1)[:, -2:].T
        lost = np.where(gain[:, tried] == first[:, None], (first - second)[:, None], 0.0)
        missed = weights @ lost + np.where(lost.max(axis=0) > most, np.inf, 0.0)
        del tried[int(missed[:-1].argmin())]
        if weights @ (gain[:, tried].max(axis=1) - best) < pays:
            break
        kept = tried
    return kept


def losses(table: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Loss of each problem's best in a menu."""
    return 1 - table[:, list(chosen)].max(axis=1)


@cache
def data() -> tuple[list[Kernel], list[Case], list[Case], np.ndarray]:
    """Binaries; problems that were searched, and of the map; and their shares in this order."""
    kernels = offered()
    tuned = sorted(searched(), key=str)
    listed = read_shapes(suite_file().with_name("map.toml")).problems
    fitted = list(dict.fromkeys(Case(filled_up(one.problem())) for one in listed if not one.held_out))[::EVERY]
    boards = zip(SEEDS, cycle(CHIPS.values()), strict=False)
    fitted += [Case(filled_up(problem), chip) for seed, chip in boards for _, problem in drawn(seed)]
    measured = {case.problem for case in tuned}
    fitted = [case for case in fitted if case.problem not in measured]
    return kernels, tuned, fitted, shares(kernels, [*tuned, *fitted], searched())


def weights_of(*counts: int) -> np.ndarray:
    """Weights that give every group the same sum; a group of none has no weight."""
    return np.concatenate([np.full(count, 1 / max(1, count)) for count in counts])


def menu_of(size: int) -> list[Kernel]:
    """The menu, chosen on all problems that are not held out."""
    kernels, tuned, fitted, table = data()
    return [kernels[index] for index in greedy(table, weights(len(tuned), fitted), size)]


def extended_menu() -> list[Kernel]:
    """The shipped menu with the kernels that add most to it, up to :data:`SIZE`."""
    kernels, tuned, fitted, table = data()
    have = len(binaries())  # the first of what is offered
    added = greedy(table, weights(len(tuned), fitted), SIZE - have, have)
    return [*binaries(), *(kernels[index] for index in added)]


def of_fp8() -> list[Kernel]:
    """The binaries that add most to the menu for FP8."""
    kernels, tuned = offered(fp8=True), sorted(searched(fp8=True), key=str)
    boards = zip(SEEDS, cycle(CHIPS.values()), strict=False)
    others = [Case(problem, chip) for seed, chip in boards for _, problem in drawn_in_fp8(seed)]
    table = shares(kernels, [*tuned, *others], searched(fp8=True))
    return [kernels[index] for index in greedy(table, weights(len(tuned), others), OF_FP8, len(binaries()))]


def exchanged_menu() -> list[Kernel]:
    """The shipped menu with the kernels exchanged that later rows speak for."""
    kernels, tuned, fitted, table = data()
    place = {kernel: index for index, kernel in enumerate(kernels)}
    kept = exchanged(table, weights(len(tuned), fitted), [place[one] for one in binaries()])
    return [kernels[index] for index in kept]


def weights(searched: int, fitted: Sequence[Case]) -> np.ndarray:
    """Weights of problems that were searched and of others, see the module."""
    long = np.array([expected_seconds(case.problem) >= ROUNDS for case in fitted])
    others = np.where(long, 0.5 / max(1, long.sum()), 1 / max(1, (~long).sum()))
    return np.concatenate([2 * weights_of(searched), others])


def curve() -> list[dict[str, float]]:
    """Loss against size, mean and worst: of the half that chose, of the half that judges, of the map's problems by
    prediction alone; and of the map's held-out problems, on which nothing was chosen. The last row is of all binaries
    but those that only the judging half's searches found."""
    kernels, tuned, fitted, table = data()
    problems = list(dict.fromkeys(case.problem for case in tuned))
    chosen_by = set(random.Random(SEED).sample(problems, len(problems) // 2))
    one = [index for index, case in enumerate(tuned) if case.problem in chosen_by]
    other = [index for index, case in enumerate(tuned) if case.problem not in chosen_by]
    mapped = range(len(tuned), len(table))
    chosen = greedy(table[[*one, *mapped]], weights(len(one), fitted), SIZES[-1])
    listed = read_shapes(suite_file().with_name("map.toml")).problems
    unseen = list(dict.fromkeys(Case(filled_up(one.problem())) for one in listed if one.held_out))
    apart = shares(kernels, unseen, searched())
    alien = {found for index in other for found in searched()[tuned[index]].shares}
    known = {found for index in one for found in searched()[tuned[index]].shares}
    known |= {plain(resolve(config)) for config in _space() if is_legal(config)}
    every = [index for index, kernel in enumerate(kernels) if kernel in known or kernel not in alien]
    found = []
    for columns in (*(chosen[:size] for size in SIZES), every):
        lost = losses(table, columns)
        by_group = {
            "choosing": lost[one],
            "judging": lost[other],
            "map": lost[mapped],
            "held_out": losses(apart, columns),
        }
        row: dict[str, float] = {"size": len(columns)}
        for name, of in by_group.items():
            row |= {f"{name}_mean": float(of.mean()), f"{name}_worst": float(of.max())}
        found.append(row)
    return found


def text_of(kernels: Sequence[Kernel]) -> str:
    """The file of a menu: of each binary what differs from the defaults, one a line."""
    lines = [
        json.dumps({name: value for name, value in one.as_dict().items() if value != DEFAULTS[name]}) for one in kernels
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


@plt.rc_context(STYLE)
def draw(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the mean losses against the size of the menu; the last row is a line."""
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    *sized, whole = rows
    for name, words, colour in (
        ("judging", "searched problems, the half that judges", OURS),
        ("map", "the map's problems, by prediction alone", THEIRS),
        ("held_out", "its held-out problems, likewise", SERIES[2]),
    ):
        losses = [100 * row[f"{name}_mean"] for row in sized]
        axes.plot([row["size"] for row in sized], losses, marker="o", markersize=3, color=colour, label=words)
        axes.axhline(100 * whole[f"{name}_mean"], color=colour, linewidth=0.6, linestyle=":")
    axes.axvline(SIZE, color=EVEN, linewidth=0.8)
    axes.set(xlabel="kernels of the menu", ylabel="mean loss to the best known, %", ylim=(0, None))
    axes.legend()
    save(figure, path, f"Loss of a menu to the best of each problem; dotted: all {whole['size']:.0f} kernels")


def curve_text(rows: Sequence[Mapping[str, float]]) -> str:
    """The file of a curve."""
    lines = [",".join(rows[0]), *(",".join(f"{value:.5g}" for value in row.values()) for row in rows)]
    return "\n".join([*lines, ""])


def main(what: Literal["curve", "choose", "exchange", "extend", "fp8"]) -> None:
    """Print a menu, or the kernels for FP8; or write the curve, and its picture."""
    if what != "curve":
        chosen = {"choose": lambda: menu_of(SIZE), "exchange": exchanged_menu, "extend": extended_menu, "fp8": of_fp8}[
            what
        ]()
        print(text_of(chosen), end="")
        return
    rows, path = curve(), suite_file().parents[2] / "results/measurements/menu.csv"
    path.write_text(curve_text(rows))
    record(path)
    draw(rows, path.with_suffix(".svg"))


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]
