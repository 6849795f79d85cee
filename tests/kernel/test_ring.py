"""What the ring knows of its cluster."""

from __future__ import annotations

import pytest

from hopper_gemm.kernel.pipeline import Ring


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_readers_counts_every_cta_of_the_own_row_and_column_once(cluster):
    ring = Ring(None, stages=1, load_bytes=0, loading=1, reading=8, cluster=cluster)
    for rank_m in range(cluster[0]):
        for rank_n in range(cluster[1]):
            peers = {(m, rank_n) for m in range(cluster[0])} | {(rank_m, n) for n in range(cluster[1])}
            assert ring.readers == len(peers)
