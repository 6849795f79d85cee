"""Fit the constants of :mod:`hopper_gemm.model.predict` to recorded bursts, and judge them on problems left out.

    python -m benchmarks.picks.fit constants     fit: results/measurements/constants.json, four minutes of two cores
    python -m benchmarks.picks.fit judge         results/measurements/model.csv, from that file and corrections.json.gz

Nothing is fitted to what sweeps/shapes/held_out.toml names. The constants are fitted to all other problems, and without
about a fifth of them at a time, dealt by a seed: what they lose on problems that they have not seen is the model's
worth. The fitted constants stand in the model (a test compares them).

Minimised, from round numbers on, by the method of Levenberg and Marquardt: squares of the logarithm of predicted over
measured time of an H200. Every problem weighs the same; of its kernels those near its fastest weigh most; what differs
from kernel to kernel of one problem counts :data:`ORDER` times more, since the pick depends on it alone; chained bursts
weigh less. Then the extra shares of a launch's time are fitted to the order of kernels alone, by rows of both kinds of
GPU: fitted with the rest, these constants gave way to others that move all kernels of a problem, and picks did not
improve.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from benchmarks.held_out import read_held_out
from benchmarks.picks.bursts import Bursts, bursts_of, gated_bursts
from docs.generate.measurements import measurement, record, text_of
from hopper_gemm.model.correction import Correction, features, shipped
from hopper_gemm.model.menu import close_to_first
from hopper_gemm.model.predict import Fixed, ModelConstants, predict, predict_fixed
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM
from hopper_gemm.tune.measure.verdict import Z
from hopper_gemm.tune.study.files import suite_file
from hopper_gemm.tune.study.shapes import STRATA

START = {
    "off_lines": 0.1,
    "off_sectors": 1.0,
    "beyond": 2.0,
    "outside": 0.1,
    "narrow": 1.0,
    "straddle": 0.3,
    "torn": 1.0,
    "shred": 0.3,
    "tail": 0.05,
    "apart": 4000.0,
    "scatter": 30.0,
    "gather": 70.0,
}
"""Where the fit begins. Other constants stay as they are: on few of them do the rows depend, and the rest were fitted
to the rows of before the second map, most of them of searches. When all were fitted anew to all rows, problems on which
torch.mm takes less than 30 us lost up to 1 % of their picks' speed, left out and held out alike."""

SHARES = ("alike", "shared", "single", "small")
"""Constants of the extra shares of a launch's time. The first fit sets them to zero."""

NO_SHARES = dict.fromkeys(SHARES, 0.0) | {"level": 1.0}
BESIDE, CLIPPED = 0.08, 0.3
"""Fit of the extra shares: loss at which a row weighs 1/e; bound of the errors relative to their problem's mean."""

NEAR, ALL, FAR, ORDER = 0.05, 0.25, 0.5, 2.0
"""Loss at which a row weighs 1/e; weight of all rows of a problem alike; error of the logarithm beyond which these pull
no more; weight of the order within a problem."""

WILD = 0.1
"""Error of the logarithm beyond which a row near the fastest pulls no harder: what the model has no term for must not
bend the others."""

CHAINED, EVERY, TETHER = 0.25, 3, 3e-5
"""Weight of chained bursts, of which every third is taken; and the pull back to the start, for each squared logarithm
of a constant over its first value: constants on which little depends stay there."""

STEPS, STOP, NUDGE, STRIDE = 12, 1e-4, 1e-3, 0.5
"""Most steps; gain of a step, relative, at which the fit ends; change of a constant's logarithm for a derivative; the
longest step."""

SEED, DIGITS, PARTS = 27, 3, 5
MEASURED = suite_file().parents[2] / "results/measurements"
FITTED_FILES = ("constants.json", "corrections.json.gz")
"""Files of what was fitted; the second by benchmarks/picks/correct.py, without each part of the problems."""

CLOSE = 0.85
"""Kernels are near the fastest of their problem from this share of its speed on."""

Constants = dict[str, float]


class Fit:
    """Least squares over the constants' logarithms.

    Args:
        out: problems to leave out, beside those held out.
    """

    def __init__(self, out: Iterable[GemmProblem] = ()) -> None:
        apart = set(out)
        self.bursts: list[Bursts] = []
        near, alike = [], []
        for context, weight in (("isolated", 1.0), ("chained", CHAINED)):
            some = [one for one in not_held_out(context) if one.problem not in apart and one.chip == SXM]
            for one in some:
                kept = one if context == "isolated" else one.of(np.arange(0, len(one.kernels), EVERY))
                close, each = np.exp((kept.share - 1) / NEAR), weight / len(some)
                self.bursts.append(kept)
                near.append(close * each / close.sum())
                alike.append(np.full(len(close), ALL * each / len(close)))
        self.near, self.alike = np.concatenate(near), np.concatenate(alike)
        self.of = np.repeat(np.arange(len(near)), [len(one) for one in near])
        self.share = self.near / np.bincount(self.of, self.near)[self.of]
        self.start = np.log(list(START.values()))

    def errors(self, at: np.ndarray) -> np.ndarray:
        """Logarithms of predicted over measured time, row by row."""
        return errors(ModelConstants(**dict(zip(START, np.exp(at).tolist(), strict=True)), **NO_SHARES), self.bursts)

    def ordered(self, off: np.ndarray) -> np.ndarray:
        """Errors, or their derivatives, less the mean of their problem."""
        means = np.stack([np.bincount(self.of, self.share * each) for each in np.atleast_2d(off.T)], -1)
        return off - means[self.of].reshape(off.shape)

    def cost(self, off: np.ndarray, at: np.ndarray) -> float:
        """The cost that the fit minimises, for the errors at a point."""
        squares = self.near * (huber(off) + ORDER * huber(self.ordered(off)))
        squares += self.alike * np.minimum(abs(off), FAR) ** 2
        return float(squares.sum() + TETHER * ((at - self.start) ** 2).sum())

    def system(self, off: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Matrix and gradient of the squares at a point."""
        slopes = np.stack([(self.errors(at + NUDGE * axis) - off) / NUDGE for axis in np.eye(len(at))], 1)
        weights, apart = self.near * trust(off) + self.alike * (abs(off) < FAR), self.ordered(slopes)
        ordered = self.ordered(off)
        order = ORDER * self.near * trust(ordered)
        matrix = slopes.T @ (weights[:, None] * slopes) + apart.T @ (order[:, None] * apart)
        gradient = slopes.T @ (weights * off) + apart.T @ (order * ordered)
        return matrix + TETHER * np.eye(len(at)), gradient + TETHER * (at - self.start)

    def constants(self) -> dict[str, float]:
        """The constants at the minimum, rounded."""
        at, damping = self.start, 0.01
        off = self.errors(at)
        value = self.cost(off, at)
        for _ in range(STEPS):
            matrix, gradient = self.system(off, at)
            before = value
            while value == before and damping < 1e3:
                step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), -gradient)
                tried = at + np.clip(step, -STRIDE, STRIDE)
                then = self.errors(tried)
                if (cost := self.cost(then, tried)) < value:
                    at, off, value, damping = tried, then, cost, max(1e-4, damping / 3)
                else:
                    damping *= 4
            if before - value < STOP * value:
                break
        return _rounded(START, np.exp(at).tolist())


def huber(off: np.ndarray) -> np.ndarray:
    """Squares of errors; beyond :data:`WILD` they grow with the error alone."""
    return np.where(abs(off) < WILD, off**2, WILD * (2 * abs(off) - WILD))


def trust(off: np.ndarray) -> np.ndarray:
    """The weights that make a square of each error pull as :func:`huber` does."""
    return np.minimum(1.0, WILD / np.maximum(abs(off), 1e-12))


def errors(constants: ModelConstants, bursts: Iterable[Bursts]) -> np.ndarray:
    """Logarithms of predicted over measured time, row by row."""
    found = [
        predict(kernel, one.problem, one.chip, constants).seconds / seconds
        for one in bursts
        for kernel, seconds in zip(one.kernels, one.seconds, strict=True)
    ]
    return np.log(found)


def not_held_out(context: str = "isolated", fp8: bool = False) -> list[Bursts]:
    """The bursts of problems that may be fitted to, in an order that does not depend on the folders'."""
    held = read_held_out()
    free = (one for one in bursts_of(context, fp8=fp8) if not held.has(one.problem))
    return sorted(free, key=lambda one: (repr(one.problem), one.chip.memory_rate))


def parts(every: Iterable[Bursts] | None = None) -> list[list[Bursts]]:
    """Problems, by default the isolated ones that are not held out, dealt into :data:`PARTS` parts, each by itself:
    rows that are added later move no other problem into a part that was fitted to it."""
    dealt: list[list[Bursts]] = [[] for _ in range(PARTS)]
    for one in not_held_out() if every is None else every:
        dealt[random.Random(f"{SEED} {one.problem}").randrange(PARTS)].append(one)
    return dealt


def slowing(constants: Constants, bursts: Sequence[Bursts]) -> Constants:
    """Return the extra shares, fitted by least squares to errors relative to the mean of each problem, and the level
    that keeps the mean predicted time."""
    plain = ModelConstants(**constants, **NO_SHARES)
    of = np.repeat(np.arange(len(bursts)), [len(one.kernels) for one in bursts])
    weights = np.exp((np.concatenate([one.share for one in bursts]) - 1) / BESIDE)
    weights /= np.bincount(of, weights)[of]

    def ordered(each: np.ndarray) -> np.ndarray:
        return each - np.bincount(of, weights * each)[of]

    off = errors(plain, bursts)
    shares = np.stack([(errors(replace(plain, **{name: NUDGE}), bursts) - off) / NUDGE for name in SHARES], 1)
    apart = np.stack([ordered(each) for each in shares.T], 1)
    wanted = -np.clip(ordered(off), -CLIPPED, CLIPPED)
    found = np.linalg.lstsq(np.sqrt(weights)[:, None] * apart, np.sqrt(weights) * wanted, rcond=None)[0].clip(0.0)
    level = 1.0 - float(weights @ (shares @ found)) / len(bursts)
    return {**_rounded(SHARES, found), **_rounded(("level",), [level])}


def fit(out: Sequence[GemmProblem]) -> Constants:
    """The constants fitted without some problems."""
    constants, apart = Fit(out).constants(), set(out)
    return constants | slowing(constants, [one for one in not_held_out() if one.problem not in apart])


def _rounded(names: Iterable[str], values: Iterable[float]) -> Constants:
    return {name: float(f"{value:.{DIGITS}g}") for name, value in zip(names, values, strict=True)}


def fitted() -> list[Constants]:
    """Constants fitted to all problems, then without each part of them."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(fit, [[], *([one.problem for one in part] for part in parts())]))


def rows_of(one: Bursts, constants: ModelConstants) -> tuple[np.ndarray, np.ndarray]:
    """Predicted seconds of a problem's kernels, and the launches as the trees of :mod:`.correct` see them."""
    fixed = [Fixed(kernel, constants) for kernel in one.kernels]
    about = one.problem, one.chip
    predicted = [predict_fixed(each, *about, one.finish) for each in fixed]
    figures = [features(each, what, *about, one.finish) for each, what in zip(fixed, predicted, strict=True)]
    return np.array([what.seconds for what in predicted]), np.array(figures, dtype=np.float32)


def first_choices(constants: ModelConstants, correction: Correction, one: Bursts) -> dict[str, dict[str, float]]:
    """Share of the fastest measured kernel's speed that the first choice has, of the model alone and after the
    correction of its best kernels, and the mean squared errors of each."""
    seconds, rows = rows_of(one, constants)
    corrected, found = seconds * correction(rows), {}
    best = seconds.argsort(kind="stable")
    best = best[: close_to_first(seconds[best])]
    for name, times, chosen in (("model", seconds, best[0]), ("trees", corrected, best[corrected[best].argmin()])):
        off = np.log(times / one.seconds)
        near, every = np.mean(off[one.share > CLOSE] ** 2), np.mean(np.minimum(abs(off), FAR) ** 2)
        found[name] = {"torch_us": one.torch_us, "share": float(one.share[chosen]), "near": near, "all": every}
    return found


def judged(sets: Sequence[Constants], trees: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of results/measurements/model.csv: the share of the first choice, and how far predictions are off, by group
    of problems, what ranks them, and stratum of torch.mm's time. ``left out``: each part by the constants and trees
    fitted without it.

    Args:
        sets: as :func:`fitted` has them.
        trees: as :func:`benchmarks.picks.correct.fitted` has them, without the first, which is shipped.
    """
    whole, *rest = (ModelConstants(**one) for one in sets)
    held, apart = read_held_out(), [Correction(**each) for each in trees]
    groups = {
        "fitted to": [(whole, shipped(), not_held_out())],
        "left out": list(zip(rest, apart, parts(), strict=True)),
        "held out": [(whole, shipped(), [one for one in bursts_of("isolated") if held.has(one.problem)])],
        "FP8 left out": list(zip(rest, apart, parts(not_held_out(fp8=True)), strict=True)),
        "gates left out": list(zip(rest, apart, parts(gated_bursts()), strict=True)),
    }
    rows = []
    for name, group in groups.items():
        each = [first_choices(constants, correction, one) for constants, correction, some in group for one in some]
        for by in ("model", "trees"):
            rows += [{"problems": name, "by": by, **row} for row in by_stratum([one[by] for one in each])]
    return rows


def by_stratum(each: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """Figures of all problems, and of those of each stratum."""
    rows, ends = [], (0.0, *STRATA)
    for least, most in ((0.0, STRATA[-1]), *zip(ends, STRATA, strict=False)):
        some = [one for one in each if least <= one["torch_us"] * 1e-6 < most]
        if some:
            share = np.array([one["share"] for one in some])
            mean, half = np.log(share).mean(), Z * np.log(share).std(ddof=1) / len(share) ** 0.5
            figures = {"mean": np.exp(mean), "low": np.exp(mean - half), "high": np.exp(mean + half)}
            figures |= {"median": np.median(share), "worst": share.min()}
            figures |= {f"{kind}_error": np.mean([one[kind] for one in some]) ** 0.5 for kind in ("near", "all")}
            about = {"from_us": f"{least * 1e6:g}", "to_us": f"{most * 1e6:g}", "count": len(some)}
            rows.append({**about, **{name: f"{figure:.4f}" for name, figure in figures.items()}})
    return rows


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The file of judged rows."""
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""])


def main(what: Literal["constants", "judge"]) -> None:
    """Fit, or judge what was fitted."""
    path = MEASURED / ("constants.json" if what == "constants" else "model.csv")
    if what == "constants":
        path.write_text(json.dumps(fitted(), indent=1) + "\n")
    else:
        sets, trees = (json.loads(text_of(measurement(f"measurements/{name}"))) for name in FITTED_FILES)
        path.write_text(table_of(judged(sets, trees)))
    record(path)


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]
