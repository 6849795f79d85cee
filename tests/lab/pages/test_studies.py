"""Tables of single studies follow from their rows."""

from __future__ import annotations

import pytest

from hopper_gemm.lab.pages import comparisons, studies


def test_a_ring_holds_what_is_read_in_the_time_of_a_load_in_whole_stages():
    """256x192 at a depth of 2: stages of 28 KiB, three of which hold 66 KiB, and one that is being multiplied."""
    table = studies.bytes_ahead()
    assert "| 256x192 | 66 KiB | 112 KiB | 168 KiB |" in table
    assert "| 256x128 | 84 KiB | 120 KiB | 144 KiB |" in table


@pytest.mark.results
def test_rows_of_shallow_stages_are_counted_once_where_a_cluster_shares_them():
    """128x128 alone in its cluster: 256 rows in 128 clocks at the peak. With A shared by two CTAs: 192."""
    found = studies.shallow_rows().query("tile == '128x128' and k == 4096 and n == 4096")
    per_peak = (found["rows"] / (found["busy"] / 100)).round(3)
    assert set(zip(found["cluster"], per_peak, strict=True)) == {("1x1", 2.0), ("1x2", 1.5)}


@pytest.mark.results
def test_the_answer_on_the_suite_counts_the_problems_by_published_intervals():
    told = list(comparisons.standings().values())
    answer = " ".join(comparisons.suite_answer().split())
    assert f"on {told.count('ahead')} of the {len(told)} problems" in answer
    assert f"on {told.count('behind')}; over `torch.mm`" in answer
