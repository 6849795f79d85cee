"""Who is out of a race, and who has won it."""

from __future__ import annotations

import pytest

from hopper_gemm.tune.statistics import Ratio, even, hopeless


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
