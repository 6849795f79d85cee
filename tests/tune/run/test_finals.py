"""Which configs are measured again at the end of a search."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hopper_gemm.tune.run.questions.finals import _chosen
from tests.tune.tables.making import row

FIRST, SECOND = (64, 64, 64), (128, 64, 64)


@pytest.mark.parametrize(("across", "tile_m"), [("worst", 128), ("mean", 256)])
def test_a_config_for_all_problems_is_chosen_among_those_that_ran_on_each(across, tile_m):
    """The fastest of all ran on one problem alone, and nobody knows what it costs on the other."""
    rows = [
        row(tile_m=64, speedup=2.0, sizes=FIRST),
        *(row(tile_m=128, speedup=1.1, sizes=sizes) for sizes in (FIRST, SECOND)),
        *(row(tile_m=256, speedup=speedup, sizes=sizes) for sizes, speedup in ((FIRST, 1.6), (SECOND, 1.0))),
    ]
    spec = SimpleNamespace(objective=["speedup"], across=across, final=SimpleNamespace(best=1))
    chosen = _chosen(spec, rows, [each.point for each in rows])
    assert [(point.problem.m, point.config.tile_m) for point in chosen] == [(64, tile_m), (128, tile_m)]
