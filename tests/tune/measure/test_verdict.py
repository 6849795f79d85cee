"""What is said of a kernel on several boards is right as often as it should be, in simulations of the model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hopper_gemm.tune.measure.verdict import (
    Component,
    component_of,
    paired_verdict,
    published,
    record_verdict,
)
from hopper_gemm.tune.point import Sample
from hopper_gemm.tune.statistics import Ratio, speedup

BETWEEN, WITHIN = 0.0058, 0.0016
BOARDS, ENTRIES = 8, 50
COMPONENT = Component(math.inf, BETWEEN, WITHIN)


def measured(rng, truth: float, pairs: int = 15) -> Ratio:
    """A ratio from pairs that scatter by 0.3 %, in a process that has its own luck."""
    truth *= math.exp(rng.normal(0, WITHIN))
    times = zip(100 * rng.normal(1, 0.002, pairs), 100 * truth * rng.normal(1, 0.002, pairs), strict=True)
    return speedup([Sample(0, float(ours), float(baseline)) for ours, baseline in times])


@pytest.mark.parametrize("seed", range(3))
def test_unchanged_entries_raise_at_most_two_alarms_in_400_checks_over_8_boards(seed):
    """Recorded on one board, checked on eight others: neither falls in pairs, nor warnings against the record."""
    rng = np.random.default_rng(seed)
    alarms = warnings = 0
    for _ in range(ENTRIES):
        truth = math.exp(rng.normal(0.03, 0.03))
        record = measured(rng, truth * math.exp(rng.normal(0, BETWEEN)))
        for _ in range(BOARDS):
            alarms += paired_verdict(measured(rng, 1.0), noise=0.002).status != "held"
            now = measured(rng, truth * math.exp(rng.normal(0, BETWEEN)))
            warnings += record_verdict(record, now, 30.0, [COMPONENT]) is not None
    assert alarms <= 2
    assert warnings <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_slowdown_of_one_and_a_half_percent_is_found(seed):
    rng = np.random.default_rng(seed)
    found = [paired_verdict(measured(rng, 1 / 1.015), noise=0.002).status for _ in range(100)]
    assert found.count("fallen") >= 95


@pytest.mark.parametrize(
    ("low", "high", "noise", "status", "of_equal_code"),
    [
        (0.998, 1.002, 0.001, "held", "held"),
        (1.02, 1.03, 0.001, "held", "held"),
        (0.986, 0.993, 0.001, "held", None),  # a loss too small to be sure of
        (0.984, 0.990, 0.001, "fallen", None),
        (0.980, 0.991, 0.009, "unsure", None),  # beyond the margin, but not beyond the noise
        (0.980, 0.990, 0.009, "fallen", None),
        (0.970, 1.010, 0.001, "unsure", "held"),  # too few pairs; it scatters about 1
        (0.998, 1.002, 0.020, "unsure", "held"),  # so noisy that nothing can be said
        (0.89, 0.91, 0.001, "fallen", "fallen"),
        (0.80, 0.92, 0.2, "unsure", "unsure"),
    ],
)
def test_held_fallen_and_unsure_are_told_apart_by_the_whole_interval(low, high, noise, status, of_equal_code):
    """Equal machine code has fallen only beyond the noise and is held although it scatters."""
    ratio = Ratio((low + high) / 2, low, high, 15)
    assert paired_verdict(ratio, noise).status == status
    assert of_equal_code in (None, paired_verdict(ratio, noise, same_code=True).status)


def test_verdicts_are_one_line_with_their_figures():
    verdict = paired_verdict(Ratio(0.98, 0.979, 0.981, 15), 0.001)
    assert verdict.message == "slower by 2.00%: 0.9800x [0.9790, 0.9810] of the recorded binary's speed, noise 0.10%"
    warning = record_verdict(Ratio(1.05, 1.049, 1.051, 60), Ratio(1.00, 0.999, 1.001, 15), 30.0, [COMPONENT])
    assert warning.startswith("1.0000x over the baseline now, recorded 1.0500x: 4.88% below it, and another board expl")


def test_a_duration_has_the_component_of_its_class_or_of_the_next_that_is_known():
    assert [component_of(us).most_us for us in (8.0, 8.1, 150.0, 1e6)] == [8.0, 20.0, 150.0, math.inf]
    some = [Component(8.0, 0.01, 0.0), Component(150.0, 0.02, 0.0)]
    assert [component_of(us, some) for us in (9.0, 1e6)] == [some[1], some[1]]


@pytest.mark.parametrize("looks", [(1,), (1, 1, 1, 1), (9,), (1, 9)])
def test_a_published_interval_holds_on_boards_that_were_never_seen(looks):
    """It covers the mean over all boards and processes 95 times in a hundred, where that of the pairs seldom does; a
    board with nine processes and one with one count alike."""
    rng = np.random.default_rng(4)
    covered = narrow = 0
    for _ in range(400):
        boards = [rng.normal(0, BETWEEN) + rng.normal(0, WITHIN, count).mean() for count in looks]
        median = math.exp(np.mean(boards))
        ratio = Ratio(median, median * 0.9995, median * 1.0005, 15)
        wide = published(ratio, 30.0, looks, (COMPONENT,))
        covered += wide.low <= 1 <= wide.high
        narrow += ratio.low <= 1 <= ratio.high
    assert 368 <= covered <= 392
    assert narrow < 200


def test_publishing_keeps_the_median_and_takes_the_wider_interval():
    ratio = Ratio(1.05, 1.04, 1.17, 30)
    wide = published(ratio, 100.0)
    half = component_of(100.0).half_width()
    assert (wide.median, wide.high, wide.pairs) == pytest.approx((1.05, 1.17, 30))
    assert wide.low == pytest.approx(1.05 * math.exp(-half))
    assert wide.low < ratio.low
    assert published(ratio, 5.0, (10**6,) * 10**4).low == pytest.approx(1.04)


def test_half_an_interval_shrinks_with_boards_and_with_the_processes_of_each():
    """With boards all of it; with processes on one board what is within."""
    one = Component(math.inf, 0.02, 0.01, deviations=2.0)
    halves = [one.half_width(looks) for looks in ((1,), (4,), (1, 1), (1, 4))]
    within = [1, 1 / 4, 1 / 2, (1 + 1 / 4) / 4]
    between = [1, 1, 1 / 2, 1 / 2]
    assert halves == pytest.approx(
        [2 * math.hypot(0.02 * b**0.5, 0.01 * w**0.5) for b, w in zip(between, within, strict=True)]
    )
