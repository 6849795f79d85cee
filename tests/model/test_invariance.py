"""The rule of batch invariance: what it allows adds in one order, and each of its clauses is needed."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import is_legal, pair_reasons, reasons
from hopper_gemm.model.menu import choose, menu
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from hopper_gemm.model.rules.invariance import CUT, DEEP, cuts, forward, parts_of
from hopper_gemm.model.rules.pairs import filled_up, reachable

SIDES = (
    *((4096, 4096), (1544, 2056), (1024, 16384), (520, 8264)),
    *((512, 16384), (136, 8264), (512, 65536), (64, 8264), (8, 20000)),
)
SIZES = (1, 7, 64, 500, 4096)
STEP = 16
"""Elements of k that one wgmma adds."""

ORDER = {"k_depth", "split_k", "reduction", "reverse_k", "swap_ab", "part_order", "schedule", "scheduler"}
"""Parameters that bear on where k is cut or in which order it is read; the rule, or its page, says how."""

PLACE = {
    *("tile_m", "tile_n", "stages", "stagger", "consumers", "split", "cluster_m", "cluster_n", "raster", "swizzle"),
    *("epi_n", "epi_buffers", "pdl", "ctas_per_sm", "multicast", "pace", "evict_c", "staging"),
}
"""Parameters that decide where and when an element is computed or stored, and never what is added to it."""


def test_every_parameter_was_judged():
    assert set(FIELDS) == ORDER | PLACE
    assert not ORDER & PLACE


@cache
def orders(tile_k: int, split_k: int, reverse_k: bool, k: int) -> frozenset[tuple[tuple[int, ...], ...]]:
    """The orders in which a kernel adds the tiles of a problem, by tile: for each part the steps of k in turn. What
    lies beyond k is zero and is left out."""
    stages = range(0, k, tile_k)
    each, over = divmod(len(stages), split_k)
    ends = [part * each + min(part, over) for part in range(split_k + 1)]
    parts = [stages[first:last] for first, last in pairwise(ends)]
    ways = [parts, [part[::-1] for part in parts]] if reverse_k else [parts]
    steps = [[[at for stage in part for at in range(stage, stage + tile_k, STEP)] for part in way] for way in ways]
    return frozenset(tuple(tuple(at for at in part if at < k) for part in way) for way in steps)


def able_on(problem: GemmProblem) -> list[Kernel]:
    """The kernels of the menu that can run a problem."""
    return [kernel for kernel in menu(problem.batch_invariant) if not pair_reasons(kernel, problem)]


def orders_of(kernel: Kernel, problem: GemmProblem):
    return orders(kernel.tile_k, kernel.split_k, kernel.reverse_k, problem.k)


@pytest.mark.parametrize(("n", "ratio", "parts"), [(512, 12, 4), (1024, 12, 4), (512, 32, 8), (192, 32, 8)])
def test_k_is_cut_from_exactly_so_many_times_n_on(n, ratio, parts):
    assert parts_of(n, ratio * n) == parts > parts_of(n, ratio * n - CUT)


@pytest.mark.parametrize(("n", "k"), SIDES)
def test_all_kernels_that_the_rule_allows_add_in_one_order_whatever_m(n, k):
    found = set()
    for m in SIZES:
        for kernel in able_on(GemmProblem(m, n, k, batch_invariant=True)):
            found |= orders_of(kernel, GemmProblem(m, n, k))
    assert len(found) == 1
    assert len(next(iter(found))) == parts_of(n, k)


@pytest.mark.parametrize(
    ("sides", "change"),
    [
        ((4096, 4096), {"reverse_k": True}),
        ((4096, 4096), {"split_k": 2}),
        ((512, 65536), {"split_k": 1, "reduction": "cluster"}),
        ((512, 65536), {"split_k": 4}),
        ((520, 8264), {"k_depth": 8}),
        ((136, 8264), {"k_depth": 8}),
        ((64, 8264), {"k_depth": 3}),
    ],
)
def test_each_clause_refuses_a_kernel_that_would_add_in_another_order(sides, change):
    problem = GemmProblem(64, *sides, batch_invariant=True)
    parts = parts_of(*sides)
    kernel = resolve(GemmConfig(tile_m=128, tile_n=64, split_k=parts))
    other = resolve(replace(GemmConfig(tile_m=128, tile_n=64, split_k=parts), **change))
    plain = replace(problem, batch_invariant=False)
    assert is_legal(kernel, problem)
    assert is_legal(other, plain)
    assert orders_of(other, plain) != orders_of(kernel, plain)
    assert [reason.rule for reason in reasons(other, problem)] == ["batch_invariant"]


def test_a_kernel_of_the_design_study_is_refused_even_where_it_reads_k_forward():
    problem = GemmProblem(512, 512, 512, batch_invariant=True)
    for change in ({"stream_k": True}, {"rotate_k": 1}, {"interleave_k": True, "split_k": 2}, {"l2_promotion": 256}):
        config = LadderConfig(tile_m=128, tile_n=128, **change)
        assert "batch_invariant" in [reason.rule for reason in reasons(config, problem)]
    assert is_legal(LadderConfig(tile_m=128, tile_n=128), problem), "a plain kernel by another name"


def test_without_the_condition_nothing_is_refused_and_nothing_else_changes():
    problem = GemmProblem(512, 512, 65536)
    asked = replace(problem, batch_invariant=True)
    allowed = [kernel for kernel in menu() if not pair_reasons(kernel, asked)]
    assert {kernel.reverse_k for kernel in able_on(problem)} == {True, False}
    assert all(not pair_reasons(kernel, problem) for kernel in allowed)
    assert {forward(kernel) for kernel in allowed} <= set(able_on(asked))


def test_padding_moves_no_cut():
    rng = random.Random(1)
    for _ in range(2000):
        n, k = round(2 ** rng.uniform(0, 13)), round(2 ** rng.uniform(0, 17))
        parts = parts_of(n, k)
        for padded in (reachable(k), -(-k // CUT) * CUT):
            assert parts == parts_of(reachable(n), padded)
            assert cuts(k, parts) == cuts(padded, parts)


def test_a_part_is_never_empty_and_no_deep_problem_is_left_whole():
    rng = random.Random(2)
    for _ in range(2000):
        n, k = round(2 ** rng.uniform(0, 13)), round(2 ** rng.uniform(0, 17))
        at = cuts(k, parts_of(n, k))
        assert list(at) == sorted(set(at))
        assert not at or (at[0] > 0 and at[-1] < k)
        assert parts_of(n, k) == 8 or k < 32 * reachable(n) or k < DEEP


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_problem_finds_a_kernel_that_the_rule_allows(dtype):
    rng = random.Random(dtype)
    asked = [(1, 8, 8), (2**20, 512, 65536), (65536, 8, 16384), (16, 8, 131072), (100_000, 28672, 64)]
    asked += [(2**17, 5000, 65536), (2**17, 1024, 16384)]
    asked += [tuple(round(2 ** rng.uniform(0, top)) for top in (16, 14, 16)) for _ in range(8)]
    for m, n, k in asked:
        for layouts in LAYOUTS:
            problem = filled_up(GemmProblem(m, n, k, dtype, layouts, batch_invariant=True))
            assert reasons(choose(problem), problem) == []


def test_few_rows_of_a_deep_problem_keep_most_of_their_speed_and_many_rows_lose_little():
    """By the analytic model: the shares of the time without the condition that led to the cuts. With many rows of a
    deep problem the kernel without the condition is limited by math alone; the kernel of eight parts is slowed by 4 %,
    since its parts share the memory, and its loads and the L2 limit alike."""

    def share(m, n, k):
        problem = GemmProblem(m, n, k)
        times = [predict(choose(one), one).seconds for one in (problem, replace(problem, batch_invariant=True))]
        return times[0] / times[1]

    assert min(share(m, 512, 65536) for m in (16, 64, 256, 512, 4096)) > 0.65
    assert share(65536, 512, 65536) > 0.77
    assert min(share(m, 4096, 4096) for m in (1, 64, 512, 8192)) > 0.95
