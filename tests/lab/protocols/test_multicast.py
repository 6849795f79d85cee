"""CTAs that share a tile and load it for each other: no order of events overwrites what is still read, reads what has
not landed, or stops."""

from __future__ import annotations

import pytest

from hopper_gemm.lab.protocols.multicast import MulticastPair
from tests.lab.protocols.broken import failing


@pytest.mark.parametrize(
    ("stages", "fills", "multicast"),
    [(1, 4, "split"), (1, 4, "alternate"), (2, 4, "split"), (2, 5, "alternate"), (3, 4, "alternate")],
)
def test_no_order_of_events_breaks_a_ring_that_two_ctas_fill_for_each_other(stages, fills, multicast):
    assert MulticastPair(stages, fills, multicast).run().moments > 50


@pytest.mark.parametrize("multicast", ["split", "alternate"])
def test_a_slot_that_only_its_own_cta_gives_back_is_overwritten_by_the_other(multicast):
    assert failing(MulticastPair(2, 5, multicast, told=(0,)).run) in ("overwrite", "bytes")
