"""On the GPU every legal config computes the right product, and the same bits every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import finish_of
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.tune.study.files import recorded_entries
from tests.compiler.test_compile import grid
from tests.verify.drawing import Pair, fp8_pairs, gated_pairs, grouped_pairs, pairs, varied

pytestmark = pytest.mark.gpu


def case(problem, config=None, **changes) -> Pair:
    """A pair whose matrices depend on the sizes."""
    return Pair(varied(config or GemmConfig(), **changes), problem, problem.m + 7 * problem.n + 13 * problem.k)


def test_the_published_grid_on_a_ragged_problem(wrong):
    """No side is a multiple of any tile; k ends within a stage."""
    assert wrong([case(GemmProblem(1234, 1000, 520), config) for config in grid()]) == []


@pytest.mark.parametrize(("draw", "count"), [(pairs, 320), (fp8_pairs, 160), (grouped_pairs, 240), (gated_pairs, 80)])
def test_drawn_configs_on_drawn_problems(wrong, draw, count):
    """Every type, layout, technique and finish, every recipe of FP8, every grouping: more of them by `make verify`."""
    assert wrong(list(draw(17, count))) == []


FOUND = [Pair.of(json.loads(line)) for line in (Path(__file__).parent / "found.jsonl").read_text().splitlines()]
"""What once failed, made small by ``python -m tests.verify``."""


@pytest.mark.parametrize("pair", FOUND, ids=str)
def test_what_once_failed_fails_no_more(wrong, pair):
    assert wrong([pair]) == []


BEST = list(
    dict.fromkeys(
        Pair(entry.config, filled_up(entry.problem), finish=finish_of(entry.problem)) for entry in recorded_entries()
    )
)
"""Those of FP8 with their scales."""


@pytest.mark.parametrize("pair", BEST, ids=lambda pair: f"{pair.problem} {pair.problem.dtype} {pair.problem.layouts}")
def test_every_recorded_best_config_is_right(wrong, pair):
    """How fast it is, ``hopper-gemm check`` tells."""
    assert wrong([pair]) == []


def legal(cases):
    """Those that can run."""
    return [one for one in cases if is_legal(one.config, one.problem)]


LONG = GemmProblem(512, 512, 65536)
"""4,096 stages of k_depth 1 for each tile: a race would show as a changing bit."""

TILE = GemmConfig(tile_m=128, tile_n=128, k_depth=1, consumers=2, split="m")

VARIANTS = {
    "along n": {"split": "n"},
    "cluster 2x1": {"cluster_m": 2},
    "cluster 1x2": {"cluster_n": 2, "split": "n"},
    "cluster 2x2": {"cluster_m": 2, "cluster_n": 2},
    "cluster 4x2": {"cluster_m": 4, "cluster_n": 2},
    "alternating multicast": {"cluster_m": 2, "multicast": "alternate", "tile_n": 72},
    "alternating multicast 4x1": {"cluster_m": 4, "multicast": "alternate", "tile_n": 40},
    "pingpong": {"schedule": "pingpong", "split": "auto"},
    "pingpong 2x1": {"schedule": "pingpong", "split": "auto", "cluster_m": 2},
    "multistage": {"schedule": "multistage"},
    "packed": {"ring_state": "packed", "peek": False},
    "every thread": {"arrivals": "thread"},
    "two barriers": {"full_barriers": 2, "peek": "consumer"},
    "cp.async": {"loads": "cp_async", "peek": "producer"},
    "swapped": {"swap_ab": True, "cluster_n": 2},
    "direct": {"stores": "direct", "persistent": False},
    "two on an SM": {"ctas_per_sm": 2, "tile_n": 64},
    "PDL": {"pdl": True, "cluster_n": 2},
    "PDL, prefetch": {"pdl": True, "cluster_n": 2, "prefetch": 16},
    "dynamic": {"scheduler": "dynamic"},
    "dynamic 2x1": {"scheduler": "dynamic", "cluster_m": 2, "pdl": True},
    "dynamic 2x2": {"scheduler": "dynamic", "cluster_m": 2, "cluster_n": 2},
    "skew": {"skew": 1},
    "skew, dynamic": {"skew": 1, "scheduler": "dynamic", "cluster_n": 2},
    "staged in the ring": {"staging": "ring", "k_depth": 4},
    "staged in the ring, dynamic": {"staging": "ring", "k_depth": 4, "scheduler": "dynamic", "cluster_m": 2},
    "tiles of a part": {"split_k": 3, "reduction": "workspace", "part_order": "part"},
    "interleaved in a cluster": {"split_k": 2, "interleave_k": True},
    "begun apart": {"rotate_k": 3, "cluster_m": 2, "multicast": "alternate"},
    "begun apart, backwards": {"rotate_k": 1, "reverse_k": True, "scheduler": "dynamic"},
    "library": {"ring": "library"},
    "library 2x2": {"ring": "library", "cluster_m": 2, "cluster_n": 2},
    "library, elected": {"ring": "library", "arrivals": "elected"},
    "library, every thread": {"ring": "library", "arrivals": "consumer"},
    "elected": {"arrivals": "elected"},
    "one of a group": {"arrivals": "group", "cluster_m": 2},
    "every producer's thread": {"arrivals": "producer"},
    "every consumer's thread": {"arrivals": "consumer"},
    "walked backwards": {"reverse_k": True, "pace": 1, "evict_c": True, "cluster_m": 2},
    "pace, dynamic": {"scheduler": "dynamic", "reverse_k": True, "pace": 5, "cluster_m": 2, "pdl": True},
    "pace, alternating": {"pace": 16, "tile_n": 72, "cluster_m": 2, "multicast": "alternate"},
    "split in a cluster": {"split_k": 4},
    "split in a workspace": {"split_k": 2, "reduction": "workspace", "cluster_m": 2, "swap_ab": True},
    "stream-K": {"stream_k": True, "cluster_n": 2},
    "a chunk without a swizzle": {"tile_n": 112, "epi_n": 56, "epi_buffers": 1},
    "relaxed": {"waits": "relaxed", "cluster_n": 2},
    "TMA and cp.async": {"loads": "mixed"},
    "four consumers": {"consumers": 4, "tile_m": 256},
    "four consumers along n": {"consumers": 4, "split": "n", "cluster_n": 2},
    "spilling": {"tile_m": 320, "consumers": 1, "spills": True},
}


def test_thousands_of_k_iterations_give_the_same_bits_with_every_stage_count_and_stagger(wrong):
    most = resolve(TILE).stages
    cases = [
        case(LONG, TILE, stages=stages, stagger=stagger, split=split)
        for stages in range(1, most + 1)
        for stagger in sorted({0, 1, 2, 3, 7} & set(range(stages)))
        for split in "mn"
    ]
    assert most > 20
    assert len(cases) > 200
    assert wrong(cases, runs=5) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_thousands_of_k_iterations_give_the_same_bits_in_every_variant(wrong, variant):
    cases = [
        case(LONG, TILE, stages=stages, stagger=min(stagger, stages - 1), **VARIANTS[variant])
        for stages in (1, 2, 3, 5, 8)
        for stagger in (0, 1, 3)
    ]
    assert wrong(legal(cases), runs=5) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_more_tiles_than_ctas_and_fewer_stages_of_k_than_slots(wrong, variant):
    """The ring runs on from tile to tile, with a tile's stages fewer than, equal to and more than its slots."""
    cases = [
        case(problem, TILE, stages=stages, stagger=min(1, stages - 1), **{**VARIANTS[variant], "k_depth": 4})
        for stages in (1, 2, 3, 4)
        for problem in (GemmProblem(4000, 3000, k) for k in (8, 64, 128, 192, 264, 512))
    ]
    assert wrong(legal(cases)) == []


def test_ctas_of_a_cluster_of_two_axes_end_one_after_the_other(wrong):
    """With the dynamic scheduler and items shorter than the ring, one may end while another is rounds behind."""
    cases = [
        case(problem, tile_m=tile_m, tile_n=tile_n, cluster_m=m, cluster_n=n, scheduler="dynamic", **more)
        for tile_m, tile_n, more in (
            (192, 160, {"consumers": 3, "stagger": 0, "stages": 4, "reverse_k": True, "evict_c": True}),
            (64, 64, {"stages": 2}),
            (128, 128, {"stages": 1, "stagger": 0}),
        )
        for m, n in ((2, 2), (2, 4), (4, 2))
        for problem in (GemmProblem(1039, 61560, 72), GemmProblem(4000, 3000, 64), GemmProblem(8, 8, 8))
    ]
    assert len(legal(cases)) > 20
    assert wrong(legal(cases), runs=20) == []


@pytest.mark.parametrize("changes", [{}, {"scheduler": "dynamic"}, {"stream_k": True}, {"staging": "ring"}], ids=str)
def test_a_skew_beyond_the_stages_that_a_cta_has_holds_nobody_up(wrong, changes):
    """One stage in all, one tile, fewer tiles than CTAs: the second and third consumer start with the first."""
    tiles = ({"skew": 2}, {"skew": 1, "tile_m": 192, "consumers": 3})
    cases = [
        case(GemmProblem(m, n, k), **tile, **changes)
        for tile in tiles
        for m, n in ((64, 64), (256, 128), (4000, 3000))
        for k in (8, 64, 128, 136)
    ]
    assert len(legal(cases)) > 4
    assert wrong(legal(cases)) == []


def test_a_tile_that_stream_k_cuts_into_more_pieces_than_a_byte_counts(wrong):
    """Two CTAs an SM, one tile, a long k: 264 pieces on a GPU of 132 SMs."""
    config = LadderConfig(tile_m=64, tile_n=96, k_depth=1, stream_k=True, ctas_per_sm=2)
    assert wrong([case(GemmProblem(64, 96, 65536), config), case(GemmProblem(60, 88, 65528), config)]) == []
