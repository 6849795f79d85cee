"""Today's kernel is right with every recorded best config; how fast it is, ``hopper-gemm check`` tells."""

from __future__ import annotations

import pytest

from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.model.tuned import recorded_entries
from tests.verify.drawing import Pair

pytestmark = pytest.mark.gpu

PAIRS = list(dict.fromkeys(Pair(entry.config, filled_up(entry.problem)) for entry in recorded_entries()))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.problem} {pair.problem.dtype} {pair.problem.layouts}")
def test_every_best_config_is_right(wrong, pair):
    assert wrong([pair]) == []
