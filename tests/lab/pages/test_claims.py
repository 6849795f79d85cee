"""Verdicts on the sources' claims follow from the recorded rows."""

from __future__ import annotations

import pytest

from hopper_gemm.lab.pages import depth, rings
from hopper_gemm.lab.pages.claims import CLAIMS


def test_the_claims_name_their_sources_and_each_stands_once():
    assert {letter for source, _, _ in CLAIMS for letter in source.split(", ")} == set("ABCD")
    assert len({claim for _, claim, _ in CLAIMS}) == len(CLAIMS)


@pytest.mark.results
def test_a_ring_is_compared_with_the_best_number_of_stages_of_its_own_depth():
    """One that fits fewer than three stages has no choice of them and is left out."""
    shares = depth.by_stages(0)
    assert shares.max(axis=1).tolist() == pytest.approx([1.0] * len(shares))
    assert (shares.notna().sum(axis=1) >= 3).all()


@pytest.mark.results
def test_the_time_stamps_say_when_a_load_and_a_group_are_both_under_way():
    """Never with one stage; with four as long as any group is, since a load always is."""
    one, four = rings.overlaps("one stage"), rings.overlaps("one consumer, stagger 0")
    assert one["both"] == pytest.approx(0, abs=0.001)
    assert 0.5 < four["both"] == pytest.approx(four["group"])


@pytest.mark.results
@pytest.mark.parametrize(("name", "stages"), [("one stage", 1), ("two stages", 2), ("three stages", 3)])
def test_beside_a_group_a_load_of_every_stage_but_one_can_be_under_way(name, stages):
    """The mean over time is that beside groups and that between them."""
    found = rings.overlaps(name)
    assert found["most"] == stages - 1 >= found["beside"]
    rest = (found["loads"] - found["beside"] * found["group"]) / (1 - found["group"])
    assert found["beside"] < rest <= stages
    assert found["full"] <= 1 - found["group"]


@pytest.mark.results
def test_the_library_gains_by_an_arrival_of_every_thread_more_than_the_noise():
    """The verdict on an elected thread says so."""
    floor = max(rings.recorded("ring").provenance["noise"].values())
    gains = [one.gain for one in rings.rungs("ring")["library, all threads"].results]
    assert len(gains) == len(rings.SIDES)
    assert min(gains) > floor


@pytest.mark.results
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
