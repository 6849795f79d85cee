"""Kernels for untuned problems: configs that cover all shapes, and the choice among them by a corrected model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hopper_gemm.model.bounds import LowerBounds
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.correction import features, is_learnt, shipped
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal, pair_reasons
from hopper_gemm.model.parts import PartsAtLaunch
from hopper_gemm.model.predict import Fixed, Prediction, predict, predict_fixed
from hopper_gemm.model.problem import ELEMENT_BYTES, OPERAND_BYTES, GemmProblem, types_of
from hopper_gemm.model.roofline import SXM, Chip, best_swizzle, output_sides
from hopper_gemm.model.rules.invariance import STEEP, forward
from hopper_gemm.model.rules.technique import SWIZZLE_MAX
from hopper_gemm.model.walk import SQUARE, abreast

LONG, PACE = 1e-3, 8
"""Least seconds of a launch that is paced, and the stages between its meetings. Around 8192^3 pacing saved 0.3 to 0.6
%, at k = 28672 1.75 %, at 16384^3 5 %; below a millisecond it cost 0.1 to 0.3 % (notebooks/5_locality)."""

PACED = 0.998  # time of a paced launch relative to one that is not, where pace is considered at all

ROUNDS = 150e-6
"""Launches of this many seconds or more use the dynamic scheduler, so that a late or busy SM does not delay the launch.
It was fastest on all ten problems of the isolated suite from 166 us on, by 0.1 to 1.7 % in the median of their pairs;
on shorter problems it cost 0.6 to 2 %."""

MEETING = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128))
"""tile_m and tile_n where parts of k meet in a cluster, so that no workspace grows with m."""

# the model's best kernels, so many at most, that it expects to take at most so many times as long as its first: trees
# rank them again
CORRECTED, WITHIN = 16, 1.1

CLUSTER_OF_GROUPS = 4  # most CTAs of a cluster that runs groups; with eight, groups were verified but not timed

ROUTED = (1, 1, 2, 8)
"""Routings for which a kernel of groups of rows is chosen: rows spread evenly over all groups, which counts twice, over
half and an eighth of them. By the first alone 64 rows a group were 6 % behind torch with half of the groups empty."""


def binaries() -> tuple[Kernel, ...]:
    """The kernels as they are compiled, each legal by itself; a kernel serves every element type and layout whose rules
    it meets. They were chosen from recorded rows by benchmarks/menu.py."""
    return _listed("menu.json")


def gates() -> tuple[Kernel, ...]:
    """The kernels for gated layers alone, as they are compiled: few of the menu hold gate and up of a column where one
    thread can multiply them. They were chosen by benchmarks/gates.py."""
    return _listed("gates.json")


def of_8_bits() -> tuple[Kernel, ...]:
    """The kernels for FP8 alone, chosen by benchmarks/menu.py: those of the menu were chosen by rows of 16 bits."""
    return _listed("fp8.json")


@cache
def _listed(name: str) -> tuple[Kernel, ...]:
    listed = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    plain = Kernel()  # the file leaves no choice open: a test resolves it
    return tuple(plain.but(**values) for values in listed)


def suited(like: GemmProblem, finish: Epilogue | None = None) -> list[Kernel]:
    """The binaries that can run some problem of the kind of another, whatever its sizes are: of its types, layouts,
    recipe and grouping, with a finish if there is one."""

    def smallest(kernel: Kernel) -> GemmProblem:
        """A problem of one cluster tile."""
        m, n = output_sides(kernel, kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n)
        k = kernel.tile_k * kernel.split_k * kernel.stages * ELEMENT_BYTES // OPERAND_BYTES[types_of(like.dtype)[0]]
        return replace(like, m=m, n=n, k=k)

    if isinstance(like, GroupedProblem):
        static = _for_groups(finish)
        kernels = [one for one in (*static, *(kernel.but(scheduler="dynamic") for kernel in static)) if is_legal(one)]
    else:
        kernels = [*offered(gated=finish is not None and finish.gated, fp8=like.is_fp8)]
    return [kernel for kernel in kernels if not pair_reasons(kernel, smallest(kernel), finish)]


@cache
def menu(invariant: bool = False, gated: bool = False, fp8: bool = False) -> tuple[Kernel, ...]:
    """The kernels of :func:`offered` with all their ways to launch."""
    return tuple(way for kernel in offered(invariant, gated, fp8) for way in launches(kernel))


def offered(invariant: bool = False, gated: bool = False, fp8: bool = False) -> tuple[Kernel, ...]:
    """The kernels of the menu; for batch-invariant problems as they read k forward, with more kernels
    for each number of parts that such problems are cut into; for gated layers with :func:`gates`; for FP8 that is not
    batch-invariant with :func:`of_8_bits`, whose bits were not compared."""
    kernels = binaries()
    if invariant:
        ahead = list(dict.fromkeys(map(forward, binaries())))
        apart = [kernel.but(split_k=parts) for kernel in ahead if kernel.parts_meet for parts in STEEP]
        meeting = [
            resolve(GemmConfig(tile_m=tile_m, tile_n=tile_n, swap_ab=swap_ab, split_k=parts, epi_n=16, stagger=0))
            for (tile_m, tile_n), swap_ab, parts in product(MEETING, (False, True), STEEP)
        ]
        kernels = tuple(dict.fromkeys([*ahead, *filter(is_legal, [*apart, *meeting])]))
    more = *(gates() if gated else ()), *(of_8_bits() if fp8 and not invariant else ())
    return tuple(dict.fromkeys([*kernels, *more]))


def launches(kernel: Kernel) -> tuple[Kernel, ...]:
    """A binary's ways to launch, along either axis: single CTAs, and the tiles of a split-K part, in squares that fill
    a GPC (:mod:`.walk`), clusters with the swizzle that reads least in theory; and split-K parts through a workspace in
    either order. Their number depends on the problem, see :class:`.parts.PartsAtLaunch`."""
    orders = ("tile", "part") if kernel.parts_at_launch else (kernel.part_order,)
    ways = (kernel.but(raster=raster, part_order=order) for order, raster in product(orders, ("m", "n")))

    def swizzle(way: Kernel) -> int:
        if kernel.cluster_size == 1 or way.part_order == "part":
            return SQUARE
        return min(SWIZZLE_MAX, max(1, round(best_swizzle(way))))

    return tuple(way.but(swizzle=swizzle(way)) for way in ways)


def choose(problem: GemmProblem, chip: Chip = SXM, finish: Epilogue | None = None) -> Kernel:
    """The kernel that is expected to be the fastest on a problem: by the model and the trees that correct it.

    Example:
        >>> choose(GemmProblem(16, 6144, 4096)).tile_m * choose(GemmProblem(16, 6144, 4096)).tile_n < 128 * 128
        True
    """
    best = choices(problem, 1, chip, finish)
    return best[0] if best else resolve(GemmConfig())


def choices(problem: GemmProblem, count: int, chip: Chip = SXM, finish: Epilogue | None = None) -> list[Kernel]:
    """The ``count`` binaries that are expected to be the fastest on a problem, best first, each with the launch
    arguments that the model expects to be best. Single CTAs of single products get their walk at the end
    (:func:`.walk.abreast`). Kernels with the dynamic scheduler are considered from :data:`ROUNDS` on, paced ones from
    :data:`LONG` on; none whose split-K parts wait for a later wave."""
    if isinstance(problem, GroupedProblem):
        return _of_groups(problem, chip, finish)[:count]
    return [choice.kernel for choice in ranked(problem, count, chip, finish)]


def close_to_first(seconds: np.ndarray) -> int:
    """How many choices of the model trees rank again, by the predicted seconds, best first; see :data:`CORRECTED`."""
    return int((seconds[:CORRECTED] <= WITHIN * seconds[0]).sum())


class Choice(NamedTuple):
    """A kernel of a ranking."""

    kernel: Kernel  # with the launch arguments that it runs with
    seconds: float  # that it was ranked by
    predicted: Prediction


def ranked(problem: GemmProblem, count: int, chip: Chip = SXM, finish: Epilogue | None = None) -> list[Choice]:
    """:func:`choices` of a single product, with the times that they were ranked by: the model's best
    (:data:`CORRECTED`) by what launches like theirs took (:mod:`.correction`), the others by the model alone."""
    learnt = is_learnt(problem)
    best = by_model(problem, count, chip, finish, CORRECTED if learnt else 0)
    seconds = np.array([candidate[0] for candidate in best])
    order = np.arange(len(best))
    if learnt and best:
        again = close_to_first(seconds)
        rows = [features(fixed, predicted, problem, chip, finish) for _, _, fixed, predicted in best[:again]]
        seconds[:again] *= shipped()(rows)
        order[:again] = seconds[:again].argsort(kind="stable")
    return [Choice(abreast(best[at][2].kernel, problem, chip), float(seconds[at]), best[at][3]) for at in order[:count]]


# seconds, number of the binary, and the way to launch it with what was predicted
Candidate = tuple[float, int, Fixed, Prediction]


def by_model(
    problem: GemmProblem, count: int, chip: Chip = SXM, finish: Epilogue | None = None, close: int = 0
) -> list[Candidate]:
    """The model's own choices, best first, each binary once: ``count`` of them, at least one, or up to ``close`` if the
    rest are expected within :data:`WITHIN` of the first."""
    of_menu = problem.batch_invariant, finish is not None and finish.gated, problem.is_fp8
    kinds = _kinds(*of_menu)
    best: list[Candidate] = []
    of_binary: dict[int, Candidate] = {}
    last = inf
    for kind, least in KINDS.items():
        if kind not in kinds or (best and best[0][0] < least):
            continue
        for bound, number, fixed in _offers(*of_menu, kind, chip).by_bound(problem, finish):
            pace, other = PACED if fixed.kernel.pace else 1.0, of_binary.get(number)
            if bound * pace > last:
                break  # all others take longer: they need no prediction
            if other is not None and other[0] < bound * pace:
                continue  # another way to launch its binary is faster
            way = Fixed(behind_padding(fixed.kernel, problem)) if problem.padded else fixed
            predicted = predict_fixed(way, problem, chip, finish)
            candidate = (predicted.seconds * pace, number, way, predicted)
            # rules take longer than a prediction that is too slow
            if candidate[0] > last or pair_reasons(fixed.kernel, problem, finish):
                continue
            of_binary[number] = candidate if other is None else min(candidate, other, key=_order)
            best = sorted(of_binary.values())[: max(count, close)]  # no two ways have one number
            last = _last(best, count, close)
    return [candidate for candidate in best if candidate[0] <= last]


def _last(best: Sequence[Candidate], count: int, close: int) -> float:
    """Seconds that a kernel may take to be among the choices; arguments as of :func:`by_model`."""
    if len(best) < max(1, count):
        return inf
    far = best[count - 1][0]
    return far if close <= count else max(far, min(WITHIN * best[0][0], best[-1][0] if len(best) == close else inf))


def _order(candidate: Candidate) -> tuple[float, int, bool, str]:
    seconds, number, fixed, _ = candidate
    return seconds, number, fixed.kernel.part_order == "part", fixed.kernel.raster


def _for_groups(finish: Epilogue | None) -> list[Kernel]:
    """The kernels that groups choose from, each legal by itself, with the static scheduler."""
    small = (one for one in offered(gated=finish is not None and finish.gated) if one.cluster_size <= CLUSTER_OF_GROUPS)
    return [*dict.fromkeys(kernel.but(scheduler="static", reverse_k=False, pace=0) for kernel in small)]


def _of_groups(problem: GroupedProblem, chip: Chip, finish: Epilogue | None) -> list[Kernel]:
    """The kernels for groups, best first: by the times of dense problems that have as many tiles. The routing of rows
    is not known: of :data:`ROUTED`, the product of the times counts."""
    spreads = ROUTED if problem.grouping == "rows" else (1,)
    ranked: dict[Kernel, float] = {}
    for kernel in _for_groups(finish):
        if is_legal(kernel, problem, finish):
            dense = [replace(problem, groups=max(1, problem.groups // spread)).even(kernel) for spread in spreads]
            for way in launches(kernel):
                ranked[way] = prod(predict(way, even, chip, finish=finish).seconds for even in dense)
    best: dict[Kernel, Kernel] = {}
    for way in sorted(ranked, key=lambda way: ranked[way]):
        best.setdefault(way.compiled(), way)
    return [_evened(way, problem, chip, finish) for way in best.values()]


def _evened(way: Kernel, problem: GroupedProblem, chip: Chip, finish: Epilogue | None) -> Kernel:
    """The kernel with the dynamic scheduler where that is legal and evens out what the routing does not: groups along
    k, and groups that fill tiles on average in launches of :data:`ROUNDS`. Over 18 routings each on an NVIDIA H100,
    gradients of weights took 0.88 to 0.97 of the time with it, rows 0.985 to 0.998. One row a group, all in one of 128
    groups, took 1.5 times as long: each tile searches for its group (results/measurements/groups-dynamic.csv)."""
    rows = way.tile_n * way.cluster_n if way.swap_ab else way.tile_m * way.cluster_m
    evens_out = problem.grouping == "depth"
    if problem.grouping == "rows" and problem.rows >= rows:
        evens_out = predict(way, problem.even(way), chip).seconds >= ROUNDS
    dynamic = way.but(scheduler="dynamic")
    return dynamic if evens_out and is_legal(dynamic, problem, finish) else way


Kind = tuple[bool, bool]  # True with the dynamic scheduler, and True where launches are paced
# seconds from which on binaries of a kind are considered
KINDS: dict[Kind, float] = {(False, False): 0.0, (True, False): ROUNDS, (True, True): LONG}


class Offers:
    """Binaries to choose from, in all their ways to launch, with lower bounds of their times. Each way has the number
    of its binary. Only where split-K parts are given at launch, their order may be ``"part"``."""

    def __init__(self, ways: Sequence[tuple[int, Kernel]], chip: Chip) -> None:
        self._ways, self._bounds = ways, LowerBounds(ways, chip)
        self._fixed = cache(lambda row, parts: Fixed(ways[row][1].but(split_k=parts)))
        settled = [(row, way.split_k) for row, (_, way) in enumerate(ways) if not way.parts_at_launch]
        self._settled = np.array(settled, dtype=int).reshape(-1, 2).T
        cut = [(row, way) for row, (_, way) in enumerate(ways) if way.parts_at_launch]
        self._cut = np.array([row for row, _ in cut], dtype=int)
        self._parts = PartsAtLaunch([way for _, way in cut], chip)
        by_part = np.array([way.part_order == "part" for _, way in cut], dtype=bool)
        # ways to consider where the parts of all tiles run apart, and where they run at once: single CTAs then take the
        # first parts of all tiles first, so that those side by side share operands
        self._in_order = ~by_part, by_part | np.array([way.cluster_size > 1 for _, way in cut], dtype=bool)

    def by_bound(self, problem: GemmProblem, finish: Epilogue | None = None) -> Iterator[tuple[float, int, Fixed]]:
        """Lower bound of the seconds, number of the binary, and the way with its parts, the least bound first. None
        whose parts wait for a later wave."""
        numbers, counts, at_once = self._parts(problem)
        apart, together = self._in_order
        considered = np.where(at_once, together[numbers], apart[numbers])
        rows = np.concatenate((self._settled[0], self._cut[numbers[considered]]))
        parts = np.concatenate((self._settled[1], counts[considered]))
        bounds = self._bounds(problem, rows, parts, finish)
        for at in bounds.argsort(kind="stable"):
            row, count = rows.item(at), int(parts.item(at))
            yield bounds.item(at), self._ways[row][0], self._fixed(row, count)


Ways = dict[Kind, list[tuple[int, Kernel]]]  # ways to launch by the kind of their binary, each with its number


@cache
def _kinds(invariant: bool, gated: bool, fp8: bool) -> Ways:
    """The ways of a menu; arguments as of :func:`menu`."""
    kernels = enumerate(offered(invariant, gated, fp8))
    return _by_kind((number, way) for number, kernel in kernels for way in launches(kernel))


@cache
def _offers(invariant: bool, gated: bool, fp8: bool, kind: Kind, chip: Chip) -> Offers:
    """The binaries of a kind; those that short launches do not consider are looked at once one is longer."""
    return Offers(_kinds(invariant, gated, fp8)[kind], chip)


def offers_of(ways: Iterable[tuple[int, Kernel]], chip: Chip = SXM) -> dict[Kind, Offers]:
    """Binaries to choose from by their kind; arguments as of :class:`Offers`."""
    return {kind: Offers(of, chip) for kind, of in _by_kind(ways).items()}


def _by_kind(ways: Iterable[tuple[int, Kernel]]) -> Ways:
    kinds: Ways = {}
    for number, way in ways:
        kinds.setdefault((way.scheduler == "dynamic", way.pace > 0), []).append((number, way))
    return kinds


def behind_padding(config: Kernel, problem: GemmProblem) -> Kernel:
    """Return the kernel as it runs a problem: behind a launch that pads operands with programmatic dependent launch, so
    that it sets itself up meanwhile; else unchanged."""
    return config.but(pdl=True) if problem.padded else config
