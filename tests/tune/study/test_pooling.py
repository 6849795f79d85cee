"""One row for each point: medians over all pairs, an interval that knows of processes, nothing of failed ones."""

from __future__ import annotations

import numpy as np
import pytest

from hopper_gemm.model.point import Sample
from hopper_gemm.tune.measure.statistics import speedup
from hopper_gemm.tune.study.pooling import interval, pooled
from tests.tune.tables.making import row


def samples(seed: int = 0, processes: int = 3) -> list[Sample]:
    """Pairs of processes with a luck of their own."""
    draw = np.random.default_rng(seed)
    return [
        Sample(process, 100.0, 100 * (1.02 + luck + draw.normal(0, 0.002)))
        for process, luck in enumerate(draw.normal(0, 0.01, processes))
        for _ in range(20 + process)
    ]


def test_the_interval_is_the_one_that_a_measurement_reports():
    """Readers pool by the statistics of whoever measured: the same pairs give the same three numbers."""
    found = speedup(samples())
    assert interval(samples()) == pytest.approx((found.median, found.low, found.high), rel=1e-12)


def test_processes_widen_the_interval_beyond_what_their_pairs_scatter():
    pairs = samples()
    _, low, high = interval(pairs)
    _, one_low, one_high = interval([Sample(0, one.ours_us, one.baseline_us) for one in pairs])
    assert high - low > 2 * (one_high - one_low)


def test_processes_of_a_point_become_one_row_with_medians_over_all_pairs():
    rows = [row(stage="final", process=p, pairs=((10.0 + p, 20.0), (10.0 + p, 22.0)), registers=168) for p in range(3)]
    (one,) = pooled(rows)
    assert (one.figures["pairs"], one.figures["processes"], one.figures["registers"]) == (6, 3, 168)
    assert (one.figures["time_us"], one.figures["baseline_us"]) == (11.0, 21.0)
    assert one.figures["tflops"] == pytest.approx(2 * 64**3 / 11.0 / 1e6)
    assert len(one.samples) == 6


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


def test_rows_of_other_contexts_and_stages_are_not_pooled():
    rows = [row(), row(context="chained"), row(stage="final")]
    assert pooled(rows) == rows


def test_a_pooled_row_names_every_board():
    rows = [row(stage="final", process=p, board=f"GPU-{p % 2}", pairs=((1.0, 2.0),)) for p in range(3)]
    assert pooled(rows)[0].board == "GPU-0 GPU-1"
