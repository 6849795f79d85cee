"""CTAs that share a tile and load it for each other: no order of events overwrites what is still read, reads what has
not landed, or stops."""

from __future__ import annotations

import pytest

from tests.protocols.broken import failing
from tests.protocols.multicast import MulticastCluster

FOUR = {"at_once": True}
KEPT = {"at_once": True, "ending": "kept"}
"""The slot that carries the end is not given back."""


@pytest.mark.parametrize(
    ("ring", "how"),
    [
        *(((stages, 4, "split"), {}) for stages in (1, 2)),
        *(((stages, fills, "alternate"), {}) for stages, fills in ((1, 4), (2, 5), (3, 4))),
        *(((stages, 3, "split", (2, 2)), FOUR) for stages in (1, 2)),
        *(((1, 3, "alternate", (4, 1)), FOUR), ((2, 3, "alternate", (1, 4)), FOUR)),
        *(((1, 2, "alternate", (2, 1)), KEPT), ((2, 3, "split", (1, 2)), KEPT)),
        *(((stages, stages + 1, "split", (2, 2)), KEPT) for stages in (1, 2)),
    ],
)
def test_no_order_of_events_breaks_a_ring_that_ctas_fill_for_each_other(ring, how):
    assert MulticastCluster(*ring, **how).run().moments > 30


@pytest.mark.parametrize("stages", [1, 2])
def test_given_back_it_would_count_for_the_round_before_in_a_cluster_of_two_axes(stages):
    """Seen on a GPU: an illegal instruction, by an arrival in a CTA that had left. Along one axis all CTAs tell each
    other, and none is ahead."""
    for cluster, found in (((2, 2), "arrivals"), ((4, 1), None)):
        ring = MulticastCluster(stages, stages + 1, "split", cluster, at_once=True, ending="given back")
        assert failing(ring.run) == found


@pytest.mark.parametrize("stages", [1, 2])
def test_alternating_along_both_axes_counts_a_release_for_the_round_before(stages):
    """Seen on a GPU that several processes shared: wrong products. The rule ``multicast`` refuses such clusters."""
    cluster = MulticastCluster(stages, stages + 2, "alternate", (2, 2), at_once=True)
    assert failing(cluster.run) == "arrivals"


@pytest.mark.parametrize("multicast", ["split", "alternate"])
def test_a_slot_that_only_its_own_cta_gives_back_is_overwritten_by_the_other(multicast):
    assert failing(MulticastCluster(2, 5, multicast, told=False).run) in ("overwrite", "bytes", "arrivals")
