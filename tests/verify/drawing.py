"""Drawn configs and problems: all over the legal space, by a seed, each value of each parameter in its turn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import count, cycle, islice
from typing import Any

from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import ACTIVATIONS, SCALES, Epilogue
from hopper_gemm.model.grouped import GROUPINGS, GroupedProblem
from hopper_gemm.model.hopper import WGMMA_N_STEP
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import BLOCK, DTYPES, FP8_DTYPES, LAYOUTS, PROMOTED, GemmProblem
from hopper_gemm.model.rules.fp8 import FP8_STEP
from hopper_gemm.model.rules.pairs import reachable
from hopper_gemm.model.rules.shape import K_DEPTH_MAX, TILE_M
from hopper_gemm.model.rules.technique import PARTS_MAX
from hopper_gemm.tune.parameters import DEFAULTS, LAUNCH_FIELDS, PARAMETERS, all_values, config_of

USUAL = 0.88
"""Probability that a parameter that is a technique keeps its default."""

DRAWN = tuple(name for name in PARAMETERS if name != "spills")
"""Parameters that are drawn. ``spills`` is none of them: it is a switch for one study of the design ladder that turns
the register rules off, and ptxas refuses some configs that have it."""

FREE = ("tile_m", "tile_n", "k_depth", "stages", "stagger", "consumers", "split", "peek", "swizzle", "raster")
"""Parameters that every kernel has some value of: all of theirs are equally likely."""

INTEGERS: dict[str, tuple[int | str, ...]] = {
    "tile_m": TILE_M,
    "tile_n": (*range(8, 257, 8), *range(16, 257, 16), *range(32, 257, 32), *range(64, 257, 64)),
    "k_depth": tuple(range(1, K_DEPTH_MAX + 1)),
    "stages": ("max", "max", 1, 2, 3, 4, 5, 8),
    "stagger": (0, 1, 2, 3, 4),
    "consumers": ("auto", 1, 2, 3),
    "cluster_m": (1, 2, 4),
    "cluster_n": (1, 2, 4),
    "swizzle": (1, 2, 4, 8, 11, 16),
    "epi_n": ("auto", "wide", 8, 16, 32, 64, 24, 40, 56, 72, 88, 104),
    "epi_buffers": ("max", 1, 2, 3),
    "full_barriers": (1, 2),
    "l2_promotion": (128, 0, 64, 256),
    "split_k": (1, 2, 3, 4, 5, 8, 16, 33, 64),
    "prefetch": (0, 1, 4, 16),
    "ctas_per_sm": (1, 2, 3, 4),
    "pace": (0, 1, 7, 16, 64),
    "skew": (0, 1, 2, 3),
    "rotate_k": (0, 1, 3, 16),
}
"""Values that are drawn of the parameters that are integers; of the others all."""

FEWEST_K, MOST_K, MOST_OUTPUT, MOST_PRODUCTS = 1, 65536, 2**24, 2**36
"""Bounds of the problems: their depth, elements of the output, multiplications."""


@dataclass(frozen=True)
class Pair:
    """A config to run on a problem, with the seed of the matrices, and the finish, if any."""

    config: GemmConfig
    problem: GemmProblem
    seed: int = 0
    finish: Epilogue | None = None

    @property
    def kernel(self) -> KernelId:
        """What must be compiled to run it."""
        return KernelId.of(self.config, self.problem, finish=self.finish)

    @property
    def legal(self) -> bool:
        """True if the rules allow it."""
        return is_legal(self.config, self.problem, self.finish)

    def as_dict(self) -> dict[str, Any]:
        """The problem, the seed, the finish and every parameter off its default, ready for JSON."""
        changed = {name: value for name, value in all_values(self.config).items() if value != DEFAULTS[name]}
        finish = {} if self.finish is None else {"finish": asdict(self.finish)}
        return {"problem": self.problem.as_dict(), "config": changed, "seed": self.seed, **finish}

    @staticmethod
    def of(values: dict[str, Any]) -> Pair:
        """The pair that :meth:`as_dict` wrote.

        Raises:
            ValueError: a parameter or a value that there is not.
        """
        finish = Epilogue(**values["finish"]) if "finish" in values else None
        kind = GroupedProblem if "groups" in values["problem"] else GemmProblem
        return Pair(config_of(values["config"]), kind(**values["problem"]), values["seed"], finish)


def values_of(name: str) -> tuple[Any, ...]:
    """Values that are drawn of a parameter."""
    parameter = PARAMETERS[name]
    if parameter.flag:
        return (True, False, *parameter.words)
    if parameter.least is None:
        return parameter.words
    if name not in INTEGERS:
        raise KeyError(f"{name} is an integer without values to draw; give some in INTEGERS of tests/verify/drawing.py")
    return INTEGERS[name]


def varied(config: GemmConfig, **values: Any) -> GemmConfig:
    """The config with other values of any parameters, of the narrowest kind that has them."""
    return config_of(all_values(config) | values)


def drawn_config(rng: random.Random, **fixed: Any) -> GemmConfig:
    """A config, legal or not; techniques are mostly off.

    Args:
        rng: draws.
        fixed: parameters that are given.
    """
    chosen = {}
    for name in DRAWN:
        keeps = name not in FREE and rng.random() < USUAL
        chosen[name] = DEFAULTS[name] if keeps else rng.choice(values_of(name))
    return config_of(chosen | fixed)


STRATA = tuple(
    (name, value)
    for name in DRAWN
    if name not in FREE and name not in LAUNCH_FIELDS
    for value in values_of(name)
    if value != DEFAULTS[name]
)
"""Every technique: a parameter with a value off its default."""

TOGETHER = tuple(
    {"cluster_m": m, "cluster_n": n, **more}
    for m, n in ((2, 2), (2, 4), (4, 2))
    for more in ({}, {"scheduler": "dynamic"})
)
"""Techniques that are fixed together besides. Drawn each on its own, clusters of two axes did not come up in 3,000
pairs, and with the dynamic scheduler they had an error of their own."""

TRIES = 5000
"""Draws for one technique before it is passed over: of those that go with hardly any other one draw in 600 is legal."""


def legal_configs(seed: int, problem: GemmProblem | None = None) -> Iterator[GemmConfig]:
    """Legal configs without end: one for each technique and each of :data:`TOGETHER`, then one for each again.

    Args:
        seed: of the draws.
        problem: that they must be able to run, or None.
    """
    every = [*({name: value} for name, value in STRATA), *TOGETHER]
    for turn in count():
        for number, fixed in enumerate(every):
            rng = random.Random(f"{seed}/{turn}/{number}")
            drawn = (drawn_config(rng, **fixed) for _ in range(TRIES))
            yield from islice((config for config in drawn if is_legal(config, problem)), 1)


def pairs(seed: int, total: int, each: int = 4) -> Iterator[Pair]:
    """Configs on problems that they can run, in an order in which any first part covers the space evenly.

    Args:
        seed: of all draws.
        total: pairs.
        each: problems for one kernel, launched in another way each; every other kernel has a drawn finish on the last
            of them, if the rules allow it.
    """
    used: Counter[tuple[str, str]] = Counter()
    found: Iterator[Pair] = (
        _perhaps_finished(pair, seed, number) if number % 2 and at == each - 1 else pair
        for number, config in enumerate(legal_configs(seed))
        for at, pair in enumerate(_placed(random.Random(f"{seed}/{number}"), config, _kind(config, used), number, each))
    )
    return islice(found, total)


PLAIN = {parameter.name for parameter in fields(GemmConfig)}
"""Parameters of the plain kernel, which alone multiplies FP8."""

FP8_STRATA = ({}, *({name: value} for name, value in STRATA if name in PLAIN and name != "swap_ab"))
FP8_TRIES = 400
"""Techniques of the plain kernel; and draws for one, of which none may be legal with promoted sums."""


GATED_STEP = 2 * WGMMA_N_STEP
"""Elements of n that hold whole groups of wgmma's columns of gate and of up."""

GATED_STRATA = ({}, *TOGETHER)
GATED_STRATA += tuple({name: value} for name, value in STRATA if name in PLAIN and name not in ("swap_ab", "split_k"))
"""Techniques of the plain kernel that a gated layer may have."""


def fp8_pairs(seed: int, total: int, each: int = 3) -> Iterator[Pair]:
    """FP8 pairs, as :func:`pairs`: kinds of scales and techniques in turn, half of the kernels with swapped operands,
    with fast sums or any interval that the scales have.

    Args:
        seed, total: as there.
        each: problems for one kernel.
    """
    every = (pair for number in count() for pair in _fp8_kernel(random.Random(f"{seed}/{number}/fp8"), number, each))
    return islice(every, total)


def _fp8_kernel(rng: random.Random, number: int, each: int) -> Iterator[Pair]:
    """A kernel of FP8 on problems, each launched in a drawn way; none if no draw is legal."""
    scales, dtype = SCALES[1 + number % (len(SCALES) - 1)], rng.choice(FP8_DTYPES)
    promote = BLOCK if scales == "blocks" else rng.choice(PROMOTED)
    finish = Epilogue(scales=scales, bias=rng.random() < 0.3, activation=rng.choice(("", "", *ACTIVATIONS)))
    fixed: dict[str, Any] = {name: DEFAULTS[name] for name in DRAWN if name not in PLAIN}
    fixed |= {"swap_ab": number % 2 == 1} | FP8_STRATA[number % len(FP8_STRATA)]
    if promote:
        fixed |= {"k_depth": 4 if scales == "blocks" else rng.choice((1, 2, 4)), "stages": "max"}
    for _ in range(FP8_TRIES):
        config = drawn_config(rng, **fixed)
        if is_legal(config, GemmProblem(512, 512, 131072, dtype, promote=promote), finish):
            break
    else:
        return
    for shape in islice(cycle(SHAPES), number, number + each):
        launch = {name: value for name, value in drawn_launch(rng, config).items() if name in PLAIN}
        words = drawn_problem(rng, launched := varied(config, **launch), "bf16", "kk", shape)
        n, k = (-(-size // FP8_STEP) * FP8_STEP for size in (words.n, 2 * words.k))
        problem, data = GemmProblem(words.m, n, k, dtype, promote=promote), rng.randrange(2**31)
        drawn = (Pair(way, problem, data, finish) for way in (launched, config))
        yield from islice((pair for pair in drawn if pair.legal), 1)


def gated_pairs(seed: int, total: int, each: int = 3) -> Iterator[Pair]:
    """Pairs of gated layers, as :func:`fp8_pairs`: hardly any config that is drawn evenly holds gate and up of a column
    where one thread can multiply them. Half of the kernels have swapped operands."""
    every = (pair for number in count() for pair in _gated_kernel(random.Random(f"{seed}/{number}/gate"), number, each))
    return islice(every, total)


def _gated_kernel(rng: random.Random, number: int, each: int) -> Iterator[Pair]:
    """A kernel of gated layers on problems, each launched in a drawn way; none if no draw is legal."""
    finish, dtype = Epilogue(activation=rng.choice((*ACTIVATIONS,)), gated=True), rng.choice(DTYPES)
    fixed: dict[str, Any] = {name: DEFAULTS[name] for name in DRAWN if name not in PLAIN}
    fixed |= {"swap_ab": number % 2 == 1, "split_k": 1} | GATED_STRATA[number // 2 % len(GATED_STRATA)]
    layouts = rng.choice(("kk", "kk", "mk"))
    for _ in range(FP8_TRIES):
        config = drawn_config(rng, **fixed)
        if is_legal(config, GemmProblem(512, 512, 65536, dtype, layouts), finish):
            break
    else:
        return
    for shape in islice(cycle(SHAPES), number, number + each):
        launch = {name: value for name, value in drawn_launch(rng, config).items() if name in PLAIN}
        words = drawn_problem(rng, launched := varied(config, **launch), dtype, layouts, shape)
        problem, data = replace(words, n=-(-words.n // GATED_STEP) * GATED_STEP), rng.randrange(2**31)
        drawn = (Pair(way, problem, data, finish) for way in (launched, config))
        yield from islice((pair for pair in drawn if pair.legal), 1)


GROUPS = (1, 2, 3, 8, 31, 32, 33, 70, 130)
"""Numbers of groups; a warp looks at 32 at once."""

WALKS: list[dict[str, Any]] = [{}, {"cluster_m": 2}, {"cluster_n": 2}, {"schedule": "pingpong"}]
WALKS += [{"schedule": "pingpong", "cluster_m": 2}, {"scheduler": "dynamic"}, {"scheduler": "dynamic", "cluster_n": 2}]
WALKS += [{"cluster_m": 2, "cluster_n": 4}, {"cluster_m": 4, "cluster_n": 2, "scheduler": "dynamic"}]
"""What changes the walks over groups."""

MOST_OF_B = 2**26
"""Elements of B of all groups, and of C of groups along k, at most."""

GROUP_LAYOUTS = {"rows": ("kk", "kn"), "masked": ("kk", "kn"), "batch": LAYOUTS}
"""Of other groupings ``mn``."""

GROUP_FINISHES = {
    "batch": (None, Epilogue(residual=True), Epilogue(scale=True, residual=True), Epilogue(bias=True)),
    "rows": (
        None,
        Epilogue(bias=True),
        Epilogue(activation="silu", gated=True),
        Epilogue(bias=True, activation="gelu"),
    ),
}
"""Of ``masked`` those of ``rows``; of groups along k none."""


def grouped_pairs(seed: int, total: int, each: int = 3) -> Iterator[Pair]:
    """Pairs of groups, as :func:`fp8_pairs`: groupings and techniques in turn, a third of those of rows of FP8."""
    every = (pair for number in count() for pair in _grouped_kernel(random.Random(f"{seed}/{number}/of"), number, each))
    return islice(every, total)


def _grouped_kernel(rng: random.Random, number: int, each: int) -> Iterator[Pair]:
    """A kernel of groups on problems, each launched in a drawn way; none if no draw is legal."""
    grouping, technique = GROUPINGS[number % len(GROUPINGS)], number // len(GROUPINGS)
    layouts, finish = rng.choice(GROUP_LAYOUTS.get(grouping, ("mn",))), None
    dtype, promote = rng.choice(DTYPES), 0
    if not grouping.endswith("depth"):
        finish = rng.choice(GROUP_FINISHES["batch" if grouping == "batch" else "rows"])
    fixed: dict[str, Any] = {name: DEFAULTS[name] for name in DRAWN if name not in PLAIN}
    fixed |= {"split_k": 1, "reverse_k": False, "pace": 0, "swap_ab": rng.random() < 0.4} | rng.choice(WALKS)
    fixed |= FP8_STRATA[technique % len(FP8_STRATA)]
    if grouping in ("rows", "masked") and technique % 3 == 0:
        finish = Epilogue(scales=rng.choice(("row", "blocks")), bias=rng.random() < 0.5)
        dtype, layouts, promote = rng.choice(FP8_DTYPES), "kk", BLOCK
        fixed |= {"k_depth": 4, "stages": "max"}
    if finish is not None and finish.gated:
        layouts = "kk"
    typical = GroupedProblem(4096, 512, 4096, dtype, layouts, promote=promote, groups=8, grouping=grouping)
    for _ in range(FP8_TRIES):
        config = drawn_config(rng, **fixed)
        if is_legal(config, typical, finish):
            break
    else:
        return
    for shape in islice(cycle(SHAPES), number, number + each):
        launch = {name: value for name, value in drawn_launch(rng, config).items() if name in PLAIN}
        launch["split_k"] = 1
        words = drawn_problem(rng, launched := varied(config, **launch), "bf16", "mn", shape)
        groups, step = rng.choice(GROUPS), FP8_STEP
        n, k = (-(-size // step) * step for size in (words.n, words.k))
        m, deep = words.m, grouping.endswith("depth")
        while groups > 1 and groups * n * (m if deep else k) > MOST_OF_B:
            groups //= 2
        if grouping in ("batch", "masked"):
            m = groups * reachable(-(-m // groups))
        elif grouping == "masked_depth":
            k = groups * -(-k // groups)
        problem = GroupedProblem(m, n, k, dtype, layouts, promote=promote, groups=groups, grouping=grouping)
        data = rng.randrange(2**31)
        drawn = (Pair(way, problem, data, finish) for way in (launched, config))
        yield from islice((pair for pair in drawn if pair.legal), 1)


def _perhaps_finished(pair: Pair, seed: int, number: int) -> Pair:
    """The pair with the first of a few drawn finishes that the rules allow, if there is one."""
    rng = random.Random(f"{seed}/{number}/finish")
    drawn = (replace(pair, finish=drawn_finish(rng)) for _ in range(8))
    return next((one for one in drawn if one.legal), pair)


def _kind(config: GemmConfig, used: Counter[tuple[str, str]]) -> tuple[str, str]:
    """The least used of the types and layouts that a config can run."""
    kinds = [(dtype, layouts) for dtype in DTYPES for layouts in LAYOUTS]
    able = [kind for kind in kinds if is_legal(config, GemmProblem(512, 512, 65536, *kind))]
    kind = min(able or kinds, key=lambda kind: used[kind])
    used[kind] += 1
    return kind


def _placed(rng: random.Random, config: GemmConfig, kind: tuple[str, str], number: int, each: int) -> Iterator[Pair]:
    """A config on problems of a type and layout, each launched in a drawn way."""
    for shape in islice(cycle(SHAPES), number, number + each):
        for _ in range(10):
            launch = drawn_launch(rng, config)
            problem = drawn_problem(rng, varied(config, **launch), *kind, shape)
            if is_legal(launched := varied(config, **launch), problem) or is_legal(launched := config, problem):
                yield Pair(launched, problem, rng.randrange(2**31))
                break


def drawn_launch(rng: random.Random, config: GemmConfig) -> dict[str, Any]:
    """Launch arguments: where split-K parts use a workspace any number of them in either order, few more often."""
    launch = {name: rng.choice(values_of(name)) for name in LAUNCH_FIELDS}
    if config.parts_at_launch:
        return launch | {"split_k": max(2, round(PARTS_MAX ** rng.random()))}
    return launch | {"part_order": config.part_order}


def drawn_finish(rng: random.Random) -> Epilogue:
    """A finish; one of five is gated."""
    activation = rng.choice(("", *ACTIVATIONS))
    if rng.random() < 0.2:
        return Epilogue(activation=activation or "silu", gated=True)
    steps = (rng.random() < 0.5, rng.random() < 0.5, activation, rng.random() < 0.5)
    return Epilogue(*steps) if any(steps) else Epilogue(bias=True)


SHAPES = ("ragged", "wave", "deep", "small", "many", "flat")
"""Kinds of problems: a few tiles with ragged edges; about as many as run at once; few tiles and a long k; less than a
tile or two; several waves of short tiles; one side of a few elements."""


def drawn_problem(rng: random.Random, config: GemmConfig, dtype: str, layouts: str, shape: str) -> GemmProblem:
    """A problem that TMA reaches, its sizes drawn around the config's tile.

    Args:
        rng: draws.
        config: whose tile matters.
        dtype, layouts: of the problem.
        shape: of :data:`SHAPES`.
    """
    config = resolve(config)
    rows, columns = config.tile_m, config.tile_n
    if config.swap_ab:
        rows, columns = columns, rows
    tiles_m, tiles_n, stages = {
        "ragged": (rng.uniform(1, 6), rng.uniform(1, 6), rng.uniform(1, 20)),
        "wave": (rng.uniform(9, 13), rng.uniform(9, 13), rng.uniform(0.5, 8)),
        "deep": (rng.uniform(0.5, 3), rng.uniform(0.5, 3), rng.uniform(60, 600)),
        "small": (rng.uniform(0.01, 1.2), rng.uniform(0.01, 1.2), rng.uniform(0.02, 2)),
        "many": (rng.uniform(15, 40), rng.uniform(15, 40), rng.uniform(0.5, 4)),
        "flat": (rng.choice((0.02, 0.5, 20)), rng.choice((0.1, 1, 20)), rng.uniform(1, 30)),
    }[shape]
    k = min(MOST_K, max(FEWEST_K, config.split_k * 8, round(stages * config.tile_k)))
    m, n = max(1, round(tiles_m * rows)), max(1, round(tiles_n * columns))
    while m * n > MOST_OUTPUT or m * n * k > MOST_PRODUCTS:
        m, n, k = max(1, m // 2), max(1, n // 2), max(config.split_k * 8, k - k // 4)
    sizes = {"m": m, "n": n, "k": k}
    for side in {"n", *layouts}:
        sizes[side] = reachable(sizes[side])
    return GemmProblem(sizes["m"], sizes["n"], sizes["k"], dtype, layouts)
