"""What the ring knows of its cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hopper_gemm.kernel.consumer import Share
from hopper_gemm.kernel.pipeline import Ring


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_readers_counts_every_cta_of_the_own_row_and_column_once(cluster):
    ring = Ring(None, stages=1, load_bytes=0, loading=1, reading=8, cluster=cluster)
    for rank_m in range(cluster[0]):
        for rank_n in range(cluster[1]):
            peers = {(m, rank_n) for m in range(cluster[0])} | {(rank_m, n) for n in range(cluster[1])}
            assert ring.readers == len(peers)


@pytest.mark.parametrize(
    ("arrives", "due", "given"),
    [(None, None, None), (1, None, 1), (None, 1, 1), (1, 1, 1), (1, 0, 0), (0, 1, 0), (0, None, 0), (None, 0, 0)],
)
def test_a_slot_is_released_by_whom_it_must_know_and_when_it_is_due(arrives, due, given):
    """None: always, or by every lane."""
    made = []
    ring = SimpleNamespace(release=lambda *arguments: made.append(arguments))
    Share(None, None, None, None, "target", arrives).release(ring, 3, due)
    assert made == [(3, "target", given)]
