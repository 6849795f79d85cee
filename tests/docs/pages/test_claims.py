"""Verdicts on the sources' claims follow from the recorded rows."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
from cutlass import cute, pipeline

from docs.generate.pages import claims, depth, rings
from docs.generate.pages.sources import before, recorded
from docs.generate.pages.wording import percent, reach
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.tune.study.row import ResultsError
from tests.conftest import ROOT
from tests.verify.drawing import varied

pytestmark = pytest.mark.results


def page(path: str) -> str:
    """A page's words, whatever its lines."""
    return " ".join((ROOT / path).read_text().split())


def test_the_time_stamps_say_when_a_load_and_a_group_are_both_under_way():
    """Never with one stage; with four as long as any group is, since a load always is."""
    one, four = rings.overlaps("one stage"), rings.overlaps("one consumer, stagger 0")
    assert one["both"] == pytest.approx(0, abs=0.001)
    assert 0.5 < four["both"] == pytest.approx(four["group"])


@pytest.mark.parametrize(("name", "stages"), [("one stage", 1), ("two stages", 2), ("three stages", 3)])
def test_beside_a_group_a_load_of_every_stage_but_one_can_be_under_way(name, stages):
    """The mean over time is that beside groups and that between them."""
    found = rings.overlaps(name)
    assert found["most"] == stages - 1 >= found["beside"]
    rest = (found["loads"] - found["beside"] * found["group"]) / (1 - found["group"])
    assert found["beside"] < rest <= stages
    assert found["full"] <= 1 - found["group"]


def test_gains_by_other_arrivals_are_too_small_to_be_found_twice():
    """The verdict on an elected thread says so: one of them at least has another sign by the earlier measurement."""
    names = "all consumers' threads", "elected", "one of a consumer", "library, all threads", "library, elected"
    pairs = [
        [rings.gain(name, "ring", m, found) for found in (recorded, before)] for name in names for m in rings.SIDES
    ]
    both = [(now, then) for now, then in pairs if now is not None and then is not None]
    assert len(both) == len(pairs)
    assert max(abs(gain) for pair in both for gain in pair) < claims.SMALL
    assert min(now * then for now, then in both) < 0
    assert "many gains as small change their sign" in rings.elected()


def test_a_trace_of_ones_own_is_not_taken_for_the_recorded_one(tmp_path, monkeypatch):
    """By default it lies in results/local, under the same name."""
    for place in ("local/h200", "h200/sources"):
        (tmp_path / place / "timeline").mkdir(parents=True)
    monkeypatch.setattr(rings, "results_root", lambda: tmp_path)
    assert rings.stamps_of("timeline") == tmp_path / "h200/sources/timeline"


def test_what_was_measured_twice_is_told_of_every_study_behind_the_verdicts():
    lines = claims.twice().splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == [*claims.DEPTH, *claims.RINGS]
    now, then = (claims.speedups(found("consumers")) for found in (recorded, before))
    assert now.keys() == then.keys()
    assert f"| consumers | {len(now)} | " in claims.twice()
    with pytest.raises(ResultsError, match="fp8-surface was measured once"):
        before("fp8-surface")


def test_pairs_of_stagger_with_one_consumer_hold_equal_what_their_name_says():
    """At the same look-ahead stagger 1 has a stage more; the best of each tile is one pair for a tile and a problem."""
    ones, found = depth.ran("one-consumer"), depth.pairings()
    one = ones.query("problem == '4096x4096x4096' and tile == '128x128' and k_depth == 4").set_index(
        ["stages", "stagger"]
    )
    rate = one["speedup"]
    assert rate[6, 1] / rate[6, 0] in set(found["same stages"].loc["4096x4096x4096", "128x128"])
    assert rate[4, 1] / rate[3, 0] in set(found["same look-ahead"].loc["4096x4096x4096", "128x128"])
    assert len(found["best of each tile"]) == ones.groupby(["problem", "tile"]).ngroups


def test_barriers_are_compared_between_rings_that_load_as_much_ahead():
    """A ring of one size would compare 12 k-blocks ahead at depth 4 with 8 at depth 8."""
    flat = depth.joint(0).query("problem == '4096x4096x4096' and tile_m == 128").set_index(["k_depth", "stages"])
    rate, equal = flat["speedup"], depth.at_equal_look_ahead()
    place = "4096x4096x4096", 128
    assert equal.loc[(*place, 8), 8] == rate[8, 2] / rate[4, 3]
    assert equal.loc[(*place, 16), 8] == rate[8, 3] / rate[4, 5]
    assert f"runs at {equal[8].median():.2f} of its speed" in depth.many_stages()


def test_the_verdict_on_a_late_release_tells_every_problem_of_the_deep_rings():
    """Not the one ring that gains everywhere alone."""
    deep = depth.pairings()[f"same stages, {depth.LONG_ENOUGH} clocks ahead or more"]
    medians = [deep.loc[problem].median() for problem in depth.problems_of("one-consumer")]
    assert min(medians) < 1 < max(medians)
    found = depth.late_release()
    assert [one for one in medians if percent(one) not in found] == []


def test_a_gain_with_a_stage_more_is_told_of_two_and_three_consumers_too():
    """In rings of the same depths and stages ahead they gain as one does, so it says nothing of a queued group."""
    one, several = depth.pairings()["same look-ahead"], depth.several_at_equal_look_ahead()
    medians = [found.groupby(level="problem").median() for found in (one, several)]
    assert medians[1].min() > medians[0].min()
    assert medians[1].max() > medians[0].max()
    found = depth.late_release()
    assert f"{reach(medians[1])} with two or three" in found
    assert "no evidence for the queue" in found


def test_the_time_stamps_have_a_group_always_under_way_once_the_next_is_queued():
    """The verdict on a late release says so."""
    late = rings.overlaps("one consumer, stagger 1")["group"]
    assert rings.overlaps("one consumer, stagger 0")["group"] < 0.9 < late == pytest.approx(1, abs=0.001)


def test_loads_of_four_stages_are_told_as_an_upper_bound():
    """A load counts until the consumer has its stage, and with four stages it seldom waits for that."""
    shares = [rings.overlaps(name)["awaited"] for name in ("two stages", "three stages", "one consumer, stagger 0")]
    assert shares == pytest.approx([1, 1, 0.03], abs=0.01)
    assert "The figures of four stages are upper bounds" in rings.in_flight()
    assert "A load counts as under way until a consumer has its stage" in page("docs/sources.md")


def test_only_rings_that_fit_two_numbers_of_stages_can_lose_by_the_fullest():
    """A single stage fits 120 of 310 rings with two or three consumers."""
    lost = depth.lost_by_the_fullest()
    counts = depth.joint(0).groupby(depth.RING)["stages"].nunique()
    assert (counts[lost.index] > 1).all()
    assert len(lost) == (counts > 1).sum() < len(counts)
    assert "2 of 190 rings with two or three consumers and in 15 of 80 with one" in depth.many_stages()


def test_speeds_are_told_apart_by_the_consumers_waits_alone():
    """The producer waits as long for an empty slot where loads are the slower as where they are the faster."""
    waits = depth.probed().xs("True", level="peek")[["producer_wait_pct", "consumer_wait_pct"]].astype(float)
    slow = waits[waits["consumer_wait_pct"] > depth.LONG_WAIT]
    assert len(slow) == 1 + 11
    assert slow["producer_wait_pct"].median() > 88
    found = depth.speeds()
    assert "In 27 of the 28 kernels within 10 % of cuBLAS it waits 2 to 9 % of its time" in found
    assert "The waits of the producer, which only issues loads, do not tell" in found


def test_a_gain_is_of_two_rows_of_one_board():
    """The earlier measurement of the ring ran on two: six kernels have no gain there at 8192^3, all have one now."""
    apart = "all producer's threads", "all threads", "relaxed waits", "two full barriers", "cp.async", "unrolled"
    assert [rings.gain(name, "ring", 8192, before) for name in apart] == [None] * len(apart)
    assert rings.gain("packed state", "ladder", 8192, before) is None
    told = rings.relaxed(), rings.mixed(), rings.packed()
    assert [one for one in told if "8192^3" not in one or "4096^3" not in one] == []


def test_each_study_behind_the_verdicts_was_timed_on_one_board():
    """The page says so."""
    assert "each study was timed on one board" in page("docs/sources.md")
    boards = {
        name: {row.board for row in recorded(name).stage("sweep") if row.ok} for name in (*claims.DEPTH, *claims.RINGS)
    }
    assert {name: of for name, of in boards.items() if len(of) > 1} == {}
    assert "| same stages | 84 |" in depth.pairings_table()


def test_a_third_stage_leaves_a_third_of_the_gap_between_groups():
    """Chapter 2 says so: in a fifth of the time no group is under way yet."""
    two, three = (rings.overlaps(name) for name in ("two stages", "three stages"))
    gaps = [(1 - one["group"]) * one["clocks"] for one in (two, three)]
    assert gaps[1] / gaps[0] == pytest.approx(1 / 3, abs=0.02)
    assert "and to a third in [stages 16 to 48]" in page("docs/learn/2-stages.md")


def test_the_cell_that_c_leaves_out_fits_where_no_output_is_staged():
    """The ladder ran a ring of as many bytes that stores from registers."""
    cell = GemmConfig(tile_m=320, tile_n=128, k_depth=16, stages=1, stagger=0)
    assert [is_legal(varied(cell, stores=how)) for how in ("tma", "direct")] == [False, True]
    full = depth.ran("ladder").query("tile == '128x128' and k_depth == 4 and stages == 7 and stores == 'direct'")
    assert 7 * (128 + 128) * 64 * 2 == (320 + 128) * 256 * 2
    assert len(full) > 0
    assert "here too where TMA stores the output" in depth.capacity()


def test_two_stages_alone_are_told_beside_the_best_of_two_to_four():
    """They double the rate of one stage in one cell of 25, the best of two to four in 23."""
    rates = depth.joint(0).query("k_depth == 4").set_index([*depth.RING, "stages"])["speedup"].unstack("stages")
    assert (rates[2] > 2 * rates[1]).sum() == 1
    assert f"two alone at {(rates[2] / rates[1]).min():.2f} to" in rings.over_serial()


def test_groups_share_rows_of_a_among_more_tiles_and_columns_of_b_among_fewer():
    """In D's example of 16 tiles at once: by the example's own panels."""
    assert [rings.AT_ONCE // count for count in rings.example(1)] == [2, 8]
    assert [rings.AT_ONCE // count for count in rings.example(4)] == [4, 4]
    assert "2 share a row of A and 8 a column of B in single columns, 4 and 4 in groups of four" in rings.reuse()


def test_the_l2_hits_more_where_groups_are_eight_wide():
    """At each cube; the verdict tells the rates of single columns and of groups of eight."""
    hits, found = rings.hit_rates(), rings.working_set()
    assert list(hits.index) == [4096, 8192, 16384]
    assert (hits[8] > hits[1]).all()
    assert [m for m, of in hits.iterrows() if f"from {of[1]:.0f} to {of[8]:.0f} % at {m}^3" not in found] == []


def test_the_pipeline_classes_are_as_the_page_has_them_where_a_source_has_them_otherwise():
    """Of the DSL that the page names: what commits, releases and creates do."""
    release = ".".join(version("nvidia-cutlass-dsl").split(".")[:2])
    assert f"CuTe DSL {release} does" in page("docs/sources.md")
    plain, tma, umma = pipeline.PipelineAsync, pipeline.PipelineTmaAsync, pipeline.PipelineTmaUmma
    assert inspect.getsource(tma.producer_commit).rstrip().endswith("pass")
    assert "sync_object_full.arrive" in inspect.getsource(tma.producer_acquire)
    assert "is_signaling_thread" in inspect.getsource(tma.consumer_release)
    assert "tidx < cute.size(cluster_shape_vmnk)" in inspect.getsource(tma.init_empty_barrier_arrive_signal)
    assert "tx_count" not in inspect.signature(plain.create).parameters
    assert "tx_count" in inspect.signature(tma.create).parameters
    for wait in (pipeline.PipelineProducer.acquire, pipeline.PipelineConsumer.wait):
        assert "state" not in inspect.signature(wait).parameters
    assert inspect.signature(plain.create).return_annotation == plain.__name__
    assert "make_producer" in inspect.getsource(plain.make_participants)
    arrives = inspect.getsource(pipeline.helpers.MbarrierArray.arrive)
    assert "arrive_cp_async_mbarrier" in arrives
    assert "arrive_tcgen05mma" in arrives
    assert "destination cta rank" in (inspect.getdoc(pipeline.helpers.MbarrierArray.arrive) or "")
    assert "expected_tx" in inspect.signature(umma.producer_acquire).parameters
    assert not hasattr(cute, "cp_async_wait")
    told = "`expected_tx`", "`producer_mask` and `consumer_mask` say to which CTAs", "`cute.cp_async_wait(barrier)`"
    assert [word for word in told if word not in page("docs/sources.md")] == []


def test_what_a_width_is_worth_is_told_along_both_axes():
    """Small tiles gain more by the best width along n than along m."""
    along, across = (rings.worth_a_width(raster) for raster in "mn")
    assert along.max() < across.max()
    found = rings.best_widths()
    assert f"in {len(along)} of 15 pairs of problem and tile along m" in found
    assert f"in {len(across)} of 15, all of 128x64: up to {percent(1 + across.max())}" in found
