"""The dynamic scheduler: in every order of events each item is computed once, by all CTAs of one cluster, nobody
reaches into a CTA that has left, and the counter is zero again for the next launch."""

from __future__ import annotations

import pytest

from tests.protocols.broken import failing
from tests.protocols.scheduler import SLOTS, Launch


def test_the_model_has_as_many_slots_in_the_mailbox_as_the_kernel():
    from hopper_gemm.kernel import work

    assert (work.SLOTS, work.NO_MORE) == (SLOTS, -1)


ALONE = [(0, 1), (1, 1), (3, 1), (0, 2), (1, 2), (3, 2), (2, 3), (3, 3)]
"""Items and clusters of one CTA: fewer items than clusters, as many, more."""


@pytest.mark.parametrize(
    ("items", "clusters", "size", "resident"),
    [
        *((items, clusters, 1, at_once) for items, clusters in ALONE for at_once in range(1, min(clusters, 2) + 1)),
        *((0, 1, 2, 1), (1, 1, 2, 1), (4, 1, 2, 1), (3, 2, 2, 1), (1, 2, 2, 2), (2, 1, 3, 1), (3, 1, 3, 1)),
    ],
)
def test_every_cta_of_each_cluster_gets_the_numbers_whoever_is_resident(items, clusters, size, resident):
    """Rings of one slot and of two, items shorter than the ring and as long."""
    for stages, k_tiles in ((1, 1), (2, 1), (1, 2), *([(2, 2)] if size == 1 else [])):
        assert Launch(items, clusters, size, resident, stages, k_tiles).run().moments > items


@pytest.mark.parametrize(
    ("fault", "launch", "kinds"),
    [
        ("torn", (2, 2, 1, 2), {"items", "counter", "deadlock"}),
        ("reset early", (1, 2, 1, 2), {"items", "counter"}),
        ("never reset", (1, 1), {"counter"}),
        ("full mailbox", (3, 1, 2, 1, 2), {"mailbox"}),
        ("no drain", (1, 1, 2, 1, 2), {"gone"}),
        ("leave at once", (2, 1, 2, 1, 2, 1), {"gone"}),
        ("late tag", (2, 1), {"items", "deadlock"}),
    ],
)
def test_each_mistake_is_found(fault, launch, kinds):
    assert failing(Launch(*launch, fault=fault).run) in kinds
