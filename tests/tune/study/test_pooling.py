"""One row for each point: on a board medians over all pairs, over boards a mean in which each counts alike."""

from __future__ import annotations

import pytest

from hopper_gemm.tune.statistics import speedup
from hopper_gemm.tune.study.pooling import by_point, looks, pooled
from tests.tune.tables.making import row


def test_processes_of_a_point_become_one_row_with_medians_over_all_pairs():
    rows = [row(stage="final", process=p, pairs=((10.0 + p, 20.0), (10.0 + p, 22.0)), registers=168) for p in range(3)]
    (one,) = pooled(rows)
    assert (one.figures["pairs"], one.figures["processes"], one.figures["registers"]) == (6, 3, 168)
    assert (one.figures["time_us"], one.figures["baseline_us"]) == (11.0, 21.0)
    assert one.figures["tflops"] == pytest.approx(2 * 64**3 / 11.0 / 1e6)
    assert len(one.samples) == 6
    found = speedup(one.samples)
    names = ("speedup", "speedup_low", "speedup_high")
    assert tuple(one.figures[name] for name in names) == (found.median, found.low, found.high)


def test_a_spacer_is_taken_off_the_times_of_both():
    first = row(pairs=((14.0, 24.0),))
    second = row(process=1, pairs=((14.0, 24.0),))
    rows = [type(one)(**{**vars(one), "samples": (one.samples[0]._replace(spacer_us=4.0),)}) for one in (first, second)]
    (one,) = pooled(rows)
    assert (one.figures["time_us"], one.figures["baseline_us"], one.figures["speedup"]) == (10.0, 20.0, 2.0)


def test_a_process_that_failed_does_not_spoil_the_others_and_one_row_is_left_as_it_is():
    good, bad = row(stage="final", speedup=1.1), row("crash", "died", stage="final", process=1)
    assert pooled([good, bad]) == [good]
    assert pooled([bad]) == [bad]
    again = row("timeout", "took too long", stage="final", process=2)
    assert pooled([bad, again]) == [again], "the last of those that failed"


def test_rows_of_other_contexts_and_stages_are_not_pooled():
    rows = [row(), row(context="chained"), row(stage="final")]
    assert pooled(rows) == rows


def test_boards_count_alike_however_many_processes_each_had():
    """A board with three processes weighs no more than one with a single process, in no figure."""
    slow = [row(process=p, board="GPU-a", pairs=((100.0, 100.0), (100.0, 100.0)), watts=700.0) for p in range(3)]
    times = {"time_us": 50.0, "baseline_us": 72.0, "watts": 600.0}
    fast = row(process=3, board="GPU-b", pairs=((50.0, 72.0),) * 3, speedup=1.44, **times)
    (one,) = pooled([*slow[:2], fast, slow[2]])
    assert one.figures["speedup"] == pytest.approx(1.2), "the geometric mean of 1 and 1.44"
    assert (one.figures["time_us"], one.figures["baseline_us"], one.figures["watts"]) == (75.0, 86.0, 650.0)
    assert (one.figures["pairs"], one.figures["processes"], one.board) == (9, 4, "GPU-a GPU-b")
    assert len(one.samples) == 9
    assert (one.figures["speedup_low"], one.figures["speedup_high"]) == pytest.approx((1.0, 1.44))


def test_looks_are_the_processes_of_each_board_and_a_row_may_hold_several():
    rows = [row(process=p, board="GPU-a" if p else "GPU-b") for p in range(3)]
    failed = row("crash", "died", process=3, board="GPU-c")
    (found,) = by_point([*rows, row(process=4, board="GPU-b", processes=5), failed])
    assert looks(found) == (6, 2)
