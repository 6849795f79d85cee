"""The recorded best configs still run, are still right, and have not lost speed."""

from __future__ import annotations

import pytest
from hopper_gemm.tables.tuned import recorded_tables
from hopper_gemm.tuning.run import check_recorded

from hopper_gemm.measure.device import find_hopper, slug

pytestmark = pytest.mark.gpu


def test_no_recorded_speedup_has_fallen_below_its_interval_by_more_than_the_noise():
    name = find_hopper().name
    if slug(name) not in recorded_tables():
        pytest.skip(f"no tuned table is recorded for {name}")
    checked = check_recorded(None, 0, everything=False)
    fallen = [
        f"{one.entry.problem} {one.entry.config}: {one.verdict.message}"
        for one in checked
        if one.verdict.status == "fallen"
    ]
    assert fallen == []
    skipped = [one.verdict.message for one in checked if one.verdict.status == "skipped"]
    if len(skipped) == len(checked):
        pytest.skip("; ".join(skipped))
