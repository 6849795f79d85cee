"""A verdict names the best of the finals, in fresh processes, and the next best."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.tables.conclusion import conclude
from tests.tune.tables.making import row, write_study

SLOW, FAST = {"tile_m": 128, "k_depth": 4}, {"tile_m": 256, "k_depth": 4}


def finals(fields, speedup):
    return [row(stage="final", process=p, pairs=((100.0, 100 * speedup),) * 2, **fields) for p in range(3)]


def test_the_winner_is_the_best_of_the_finals_not_the_luckiest_of_the_sweep(tmp_path):
    """The slower config had the better single row; three processes put it second."""
    rows = [row(**SLOW, speedup=1.3), row(**FAST, speedup=1.1), *finals(SLOW, 1.02), *finals(FAST, 1.04)]
    found = conclude(write_study(tmp_path, *rows, seconds=12.5))
    assert (found.winner.config, found.winner.speedup) == (str(resolve(GemmConfig(**FAST))), pytest.approx(1.04))
    assert (found.runner_up.speedup, found.final) == (pytest.approx(1.02), True)
    assert (found.regime, found.context, found.trials, found.seconds) == ("burst", "isolated", 2, 12.5)
    text = "\n".join(found.lines())
    assert "64x64x64 burst, isolated: 256x" in text
    assert "measured in fresh processes" in text
    assert "runner-up 1.020x" in text


def test_without_finals_the_best_of_the_search_is_named_and_said_to_be_no_more(tmp_path):
    found = conclude(write_study(tmp_path, row(**SLOW, speedup=1.3), row("crash", "died", **FAST)))
    assert (found.winner.speedup, found.runner_up, found.final) == (1.3, None, False)
    assert "in the search" in found.lines()[1]


def test_a_search_in_which_nothing_ran_has_no_verdict(tmp_path):
    with pytest.raises(ResultsError, match=r"nothing ran in .*; its rows say why"):
        conclude(write_study(tmp_path, row("crash", "died")))
