"""An interval that covers the truth, and decisions that follow from it."""

from __future__ import annotations

import numpy as np
import pytest

from hopper_gemm.measure.statistics import Pair, Ratio, noise_floor, speedup
from hopper_gemm.measure.verdict import compare, regression


def drifting_pairs(rng, truth: float, count: int, process: int = 0, bias: float = 0.0) -> list[Pair]:
    """Times under clock drift that both sides share, with noise that they do not."""
    drift = 1 + 0.015 * np.sin(np.arange(count) / 5)
    cublas = 100 * truth * drift * (1 + bias) * rng.normal(1, 0.002, count)
    ours = 100 * drift * rng.normal(1, 0.002, count)
    return [Pair(process, float(o), float(c)) for o, c in zip(ours, cublas, strict=True)]


def test_speedup_is_cublas_time_over_ours():
    assert Pair(0, 50.0, 100.0).ratio == 2.0
    assert speedup([Pair(0, 50.0, 100.0)] * 5) == Ratio(2.0, 2.0, 2.0, 5)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """95 % nominal; pairing cancels the drift, so at least 85 % of 100 repetitions must cover with 20 pairs each."""
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(100):
        ratio = speedup(drifting_pairs(rng, 1.01, 20), seed=seed)
        covered += ratio.low <= 1.01 <= ratio.high
    assert covered >= 85


def test_processes_that_disagree_widen_the_interval():
    rng = np.random.default_rng(2)
    alike = [pair for process in range(3) for pair in drifting_pairs(rng, 1.0, 20, process)]
    apart = [pair for process in range(3) for pair in drifting_pairs(rng, 1.0, 20, process, bias=0.01 * process)]
    assert speedup(apart).half_width > 3 * speedup(alike).half_width


def test_the_same_pairs_and_seed_give_the_same_interval():
    pairs = drifting_pairs(np.random.default_rng(3), 1.0, 15)
    assert speedup(pairs, seed=4) == speedup(pairs, seed=4)


def test_no_pairs_are_refused():
    with pytest.raises(ValueError, match="needs at least one pair but got none"):
        speedup([])


def test_the_noise_floor_is_how_far_the_control_strays():
    assert noise_floor(Ratio(1.001, 0.998, 1.004, 20)) == pytest.approx(0.004)
    assert noise_floor(Ratio(0.990, 0.985, 0.995, 20)) == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.02, 1.03, "faster"),
        (0.95, 0.98, "slower"),
        (0.995, 1.005, "same"),
        (1.005, 1.02, "unsure"),
        (0.97, 1.03, "unsure"),
    ],
)
def test_a_verdict_wants_the_whole_interval_on_one_side_of_the_noise(low, high, outcome):
    assert compare(Ratio((low + high) / 2, low, high, 20), noise=0.01) == outcome


RECORDED = Ratio(1.020, 1.018, 1.022, 60)


@pytest.mark.parametrize(
    ("now", "noise", "status"),
    [
        (1.020, 0.001, "held"),
        (1.030, 0.001, "held"),
        (1.0175, 0.001, "held"),  # below the interval, within the noise
        (1.0165, 0.001, "held"),  # its own interval reaches up to there
        (1.0155, 0.001, "fallen"),
        (1.0155, 0.005, "held"),
        (0.900, 0.03, "skipped"),  # so noisy that nothing can be said
    ],
)
def test_a_regression_is_a_fall_below_the_recorded_interval_by_more_than_the_noise(now, noise, status):
    verdict = regression(RECORDED, Ratio(now, now - 0.001, now + 0.001, 15), noise, margin=0.02)
    assert verdict.status == status


def test_a_regression_says_by_how_much():
    verdict = regression(RECORDED, Ratio(1.0, 0.999, 1.001, 15), 0.001, margin=0.02)
    assert verdict.message.startswith(
        "fallen 0.0160 below the floor 1.0170: 1.0000x [0.9990, 1.0010] now, recorded 1.0200x"
    )
