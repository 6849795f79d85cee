"""What is said of a kernel on several boards is right as often as it should be, in simulations of the model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hopper_gemm.model.point import Sample
from hopper_gemm.tune.measure.verdict import (
    Component,
    Measured,
    component_of,
    components_of,
    coverage,
    paired_verdict,
    published,
    record_verdict,
)
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
            warnings += record_verdict(record, now, COMPONENT) is not None
    assert alarms <= 2
    assert warnings <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_slowdown_of_one_and_a_half_percent_is_found(seed):
    rng = np.random.default_rng(seed)
    found = [paired_verdict(measured(rng, 1 / 1.015), noise=0.002).status for _ in range(100)]
    assert found.count("fallen") >= 95


def test_a_record_of_another_board_cannot_show_that_slowdown():
    """Why a check times the recorded binary: against the record alone it would be found one time in ten."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(100):
        record, now = (measured(rng, truth * math.exp(rng.normal(0, BETWEEN))) for truth in (1.0, 1 / 1.015))
        found += record_verdict(record, now, COMPONENT) is not None
    assert found < 20


@pytest.mark.parametrize(
    ("low", "high", "noise", "status"),
    [
        (0.998, 1.002, 0.001, "held"),
        (1.02, 1.03, 0.001, "held"),
        (0.986, 0.993, 0.001, "held"),  # a loss too small to be sure of
        (0.984, 0.990, 0.001, "fallen"),
        (0.980, 0.991, 0.009, "unsure"),  # beyond the margin, but not beyond the noise
        (0.980, 0.990, 0.009, "fallen"),
        (0.970, 1.010, 0.001, "unsure"),  # too few pairs
        (0.998, 1.002, 0.020, "unsure"),  # so noisy that nothing can be said
    ],
)
def test_held_fallen_and_unsure_are_told_apart_by_the_whole_interval(low, high, noise, status):
    assert paired_verdict(Ratio((low + high) / 2, low, high, 15), noise).status == status


@pytest.mark.parametrize(
    ("low", "high", "noise", "status"),
    [
        (0.89, 0.91, 0.001, "fallen"),
        (0.970, 1.010, 0.001, "held"),  # it scatters about 1
        (0.998, 1.002, 0.020, "held"),
        (0.80, 0.92, 0.2, "unsure"),
    ],
)
def test_equal_machine_code_has_fallen_only_beyond_the_noise_and_is_held_although_it_scatters(low, high, noise, status):
    assert paired_verdict(Ratio((low + high) / 2, low, high, 15), noise, same_code=True).status == status


def test_verdicts_are_one_line_with_their_figures():
    verdict = paired_verdict(Ratio(0.98, 0.979, 0.981, 15), 0.001)
    assert verdict.message == "slower by 2.00%: 0.9800x [0.9790, 0.9810] of the recorded binary's speed, noise 0.10%"
    warning = record_verdict(Ratio(1.05, 1.049, 1.051, 60), Ratio(1.00, 0.999, 1.001, 15), COMPONENT)
    assert warning.startswith("1.0000x over the baseline now, recorded 1.0500x: 4.88% below it, and another board expl")


def drawn(rng, between: float, within: float, boards: int, repeats: int, entries: int, duration: float):
    for entry in range(entries):
        truth = rng.normal(0.02, 0.05)
        for board in range(boards):
            shift = rng.normal(0, between)
            for _ in range(repeats):
                value = math.exp(truth + shift + rng.normal(0, within))
                yield Measured(f"{duration}/{entry}", duration, f"GPU-{board}", value)


@pytest.mark.parametrize(("boards", "repeats"), [(2, 2), (4, 3), (8, 1)])
def test_components_are_those_that_were_planted(boards, repeats):
    """Of 400 entries within a tenth; without repeats what is within boards counts as between them."""
    (found,) = components_of(drawn(np.random.default_rng(1), BETWEEN, WITHIN, boards, repeats, 400, 30.0))
    assert found.between == pytest.approx(math.hypot(BETWEEN, WITHIN if repeats == 1 else 0), rel=0.1)
    assert found.within == pytest.approx(WITHIN if repeats > 1 else 0, rel=0.1)
    assert (found.most_us, found.entries, found.boards) == (150.0, 400, boards)


def test_classes_of_duration_have_components_of_their_own_and_lone_boards_have_none():
    rng = np.random.default_rng(2)
    short, long = drawn(rng, 0.01, 0.001, 8, 2, 100, 6.0), drawn(rng, 0.002, 0.001, 8, 2, 100, 500.0)
    alone = drawn(rng, 0.01, 0.001, 1, 2, 20, 50.0)
    found = components_of([*short, *long, *alone])
    assert [one.most_us for one in found] == [8.0, math.inf]
    assert component_of(5.0, found).between == pytest.approx(0.01, rel=0.15)
    assert component_of(90.0, found).between == pytest.approx(0.002, rel=0.15), "the next class that is known"
    assert component_of(90.0, found[:1]) == found[0]


def test_boards_that_agree_have_no_component():
    (found,) = components_of(drawn(np.random.default_rng(3), 0.0, 0.002, 4, 4, 100, 30.0))
    assert found.between < 0.0005


@pytest.mark.parametrize(("boards", "looks"), [(1, 1), (4, 4), (1, 9)])
def test_a_published_interval_holds_on_boards_that_were_never_seen(boards, looks):
    """It covers the mean over all boards and processes 95 times in a hundred, where that of the pairs seldom does."""
    rng = np.random.default_rng(4)
    covered = narrow = 0
    for _ in range(400):
        median = math.exp(rng.normal(0, math.hypot(BETWEEN / math.sqrt(boards), WITHIN / math.sqrt(looks))))
        ratio = Ratio(median, median * 0.9995, median * 1.0005, 15)
        wide = published(ratio, 30.0, boards, looks, (COMPONENT,))
        covered += wide.low <= 1 <= wide.high
        narrow += ratio.low <= 1 <= ratio.high
    assert 370 <= covered <= 392
    assert narrow < 200


def test_publishing_keeps_the_median_and_never_narrows():
    ratio = Ratio(1.05, 1.04, 1.07, 30)
    wide = published(ratio, 5.0)
    assert (wide.median, wide.pairs) == (1.05, 30)
    assert wide.low < 1.04 < 1.07 < wide.high
    assert published(ratio, 5.0, boards=10**6, looks=10**6).low == pytest.approx(1.04, abs=1e-4)


def test_few_boards_make_an_interval_wider():
    """By Student's t, since the components are estimated from as many boards as there are."""
    halves = [Component(math.inf, 0.01, 0.0, 5, boards).half_width() for boards in (2, 3, 10, 1000)]
    assert halves == pytest.approx([0.1271, 0.043, 0.0226, 0.0196])


def test_coverage_is_that_of_the_model_where_the_model_holds():
    measured = list(drawn(np.random.default_rng(5), BETWEEN, WITHIN, 8, 2, 40, 30.0))
    (found,) = coverage(measured)
    assert (found.most_us, found.entries, found.comparisons) == (150.0, 40, 40 * 8 * 7 * 4)
    assert 0.94 <= found.share <= 0.99
    assert found.half_width == pytest.approx(2.45 * math.hypot(BETWEEN, WITHIN), rel=0.15)


def test_coverage_falls_where_one_board_is_unlike_the_others():
    """Estimated without that board, the intervals do not allow for it."""
    measured = list(drawn(np.random.default_rng(6), BETWEEN, WITHIN, 4, 2, 40, 30.0))
    odd = [one._replace(speedup=one.speedup * 1.1) if one.board == "GPU-0" else one for one in measured]
    assert coverage(odd)[0].share < 0.9 < coverage(measured)[0].share
