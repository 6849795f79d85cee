"""The study's order of split-K parts, run on the host: every stage once."""

from __future__ import annotations

import pytest

from hopper_gemm.ladder.gemm import InterleavedRaster
from tests.kernel.test_work import walking


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_interleaved_parts_take_every_so_many_stages_and_leave_none_out(parts):
    walk = walking(parts, kind=InterleavedRaster)
    for k_tiles in (parts, 64, 67):
        items = [walk(1, k_tiles, cluster)[0] for cluster in range(parts)]
        taken = [range(first, first + count * parts, parts) for _, _, first, count, *_ in items]
        assert sorted(stage for one in taken for stage in one) == list(range(k_tiles))
