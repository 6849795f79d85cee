"""An interval that covers the truth, in either context; who is out of a race, and who has won it."""

from __future__ import annotations

import numpy as np
import pytest

from hopper_gemm.tune.point import Sample
from hopper_gemm.tune.statistics import Ratio, even, hopeless, noise_floor, speedup


def drifting_pairs(rng, truth: float, count: int, process: int = 0, bias: float = 0.0) -> list[Sample]:
    """Times under clock drift that both sides share, with noise that they do not."""
    drift = 1 + 0.015 * np.sin(np.arange(count) / 5)
    baseline = 100 * truth * drift * (1 + bias) * rng.normal(1, 0.002, count)
    ours = 100 * drift * rng.normal(1, 0.002, count)
    return [Sample(process, float(o), float(c)) for o, c in zip(ours, baseline, strict=True)]


def half_width(ratio: Ratio) -> float:
    return max(ratio.median - ratio.low, ratio.high - ratio.median)


def test_speedup_is_baseline_time_over_ours_with_the_spacer_off_both():
    assert Sample(0, 50.0, 100.0).ratio == 2.0
    assert Sample(0, 54.0, 104.0, 4.0).ratio == 2.0
    assert speedup([Sample(0, 50.0, 100.0)] * 5) == Ratio(2.0, 2.0, 2.0, 5)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """95 % nominal; pairing cancels the drift, so at least 85 % of 100 repetitions must cover with 20 pairs each."""
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(100):
        ratio = speedup(drifting_pairs(rng, 1.01, 20), seed=seed)
        covered += ratio.low <= 1.01 <= ratio.high
    assert covered >= 85


@pytest.mark.parametrize(("ratios", "low", "high"), [((1.0, 1.0, 2.0), 1.0, 2.0), ((2.0, 2.0, 1.0), 1.0, 2.0)])
def test_the_interval_is_one_of_95_percent(ratios, low, high):
    """Of three boards the odd one is drawn three times with a probability of 3.7 %: beyond the end of a 90 % interval,
    within a 95 % one."""
    found = speedup(*([Sample(0, 1.0, ratio)] * 2 for ratio in ratios))
    assert (found.low, found.high) == pytest.approx((low, high))


def isolated_samples(rng, ours: float, baseline: float, spacer: float, count: int) -> list[Sample]:
    """Launches with a spacer before each, and the spacer alone: 0.2 % of noise on each time, one drift for all."""
    drift = 1 + 0.015 * np.sin(np.arange(count) / 5)
    times = [drift * us * rng.normal(1, 0.002, count) for us in (ours + spacer, baseline + spacer, spacer)]
    return [Sample(0, *map(float, one)) for one in zip(*times, strict=True)]


@pytest.mark.parametrize("baseline", [5.0, 5.5])
def test_the_interval_stays_honest_for_5_us_behind_a_spacer_of_4(baseline):
    """The noise of all three times is in each ratio of differences; the truth is covered as often as without a spacer,
    in an interval that is about twice as wide."""
    rng = np.random.default_rng(4)
    covered, widths = 0, []
    for seed in range(100):
        ratio = speedup(isolated_samples(rng, 5.0, baseline, 4.0, 20), seed=seed)
        covered += ratio.low <= baseline / 5.0 <= ratio.high
        widths.append(half_width(ratio))
    assert covered >= 85
    bare = half_width(speedup(drifting_pairs(rng, baseline / 5.0, 20)))
    assert 1.2 * bare < np.median(widths) < 4 * bare


def test_processes_that_disagree_widen_the_interval():
    rng = np.random.default_rng(2)
    alike = [pair for process in range(3) for pair in drifting_pairs(rng, 1.0, 20, process)]
    apart = [pair for process in range(3) for pair in drifting_pairs(rng, 1.0, 20, process, bias=0.01 * process)]
    assert half_width(speedup(apart)) > 3 * half_width(speedup(alike))


def test_no_pairs_are_refused():
    with pytest.raises(ValueError, match="needs at least one pair but got none"):
        speedup([])


def test_boards_count_alike_and_what_they_differ_by_widens_the_interval():
    """One with three times the pairs weighs no more; the interval reaches as far as drawings of the boards do."""
    rng = np.random.default_rng(5)
    slow = [pair for process in range(3) for pair in drifting_pairs(rng, 1.0, 20, process)]
    fast = drifting_pairs(rng, 1.44, 20, 3)
    found = speedup(slow, fast)
    assert found.median == pytest.approx(1.2, rel=2e-3)
    assert (found.low, found.high, found.pairs) == (pytest.approx(1.0, rel=5e-3), pytest.approx(1.44, rel=5e-3), 80)
    alike = speedup(slow, drifting_pairs(rng, 1.0, 20, 3))
    assert half_width(alike) < 0.005 < 0.2 < half_width(found)
    assert speedup([Sample(0, 1.0, 2.0)], [Sample(0, 1.0, 2.0)]) == Ratio(
        pytest.approx(2.0), *[pytest.approx(2.0)] * 2, 2
    )


def test_the_noise_floor_is_how_far_the_control_strays():
    assert noise_floor(Ratio(1.001, 0.998, 1.004, 20)) == pytest.approx(0.004)
    assert noise_floor(Ratio(0.990, 0.985, 0.995, 20)) == pytest.approx(0.015)


def ratio(low, median, high) -> Ratio:
    return Ratio(median, low, high, pairs=3)


@pytest.mark.parametrize(
    ("candidate", "noise", "out"),
    [
        (ratio(0.80, 0.85, 0.90), 0.01, True),
        (ratio(0.80, 0.85, 0.985), 0.01, False),  # within the noise of the best's interval
        (ratio(0.80, 0.85, 0.979), 0.01, True),
        (ratio(0.80, 0.85, 0.95), 0.05, False),
        (ratio(1.01, 1.02, 1.03), 0.0, False),
    ],
)
def test_only_what_lies_wholly_below_the_best_is_out(candidate, noise, out):
    assert hopeless(candidate, ratio(0.99, 1.0, 1.01), noise) is out


def test_a_leader_alone_is_the_unique_best():
    assert even([ratio(0.9, 0.91, 0.92), ratio(1.0, 1.01, 1.02)], 0.001) == [1]
    assert even([], 0.001) == []


def test_finals_that_reach_the_leader_share_its_place():
    finals = [ratio(0.9, 0.91, 0.92), ratio(1.0, 1.01, 1.02), ratio(0.98, 0.99, 1.001), ratio(0.97, 0.98, 0.996)]
    assert even(finals, 0.0) == [1, 2]
    assert even(finals, 0.005) == [1, 2, 3]
