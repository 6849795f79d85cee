"""A config takes every parameter and refuses only nonsense; the rules judge the rest."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import FIELDS, INTEGERS, WORDS, GemmConfig


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tile_m", "big", "tile_m must be an integer from 1 but got 'big'"),
        ("tile_n", -8, "tile_n must be an integer from 1 but got -8"),
        ("stages", "all", "stages must be an integer from 0 or \"max\" but got 'all'"),
        ("consumers", 1.5, 'consumers must be an integer from 1 or "auto" but got 1.5'),
        ("stagger", True, "stagger must be an integer from 0 but got True"),
        ("split", "k", "split must be one of m, n, auto but got 'k'"),
        ("raster", "auto", "raster must be one of m, n but got 'auto'"),
        ("schedule", "solo", "schedule must be one of cooperative, pingpong, multistage but got 'solo'"),
        ("serpentine", 1, "serpentine must be true or false but got 1"),
        ("peek", "loader", "peek must be true, false, producer or consumer but got 'loader'"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected_and_what_came(field, value, message):
    with pytest.raises(ValueError) as caught:
        GemmConfig(**{field: value})
    assert str(caught.value) == message


def test_the_label_tells_any_two_configs_apart():
    """Labels stand for configs in the samples and in the Optuna studies."""
    base = GemmConfig()
    for field in FIELDS:
        usual = getattr(base, field)
        if field in INTEGERS:
            others = [3]
        elif isinstance(usual, bool):
            others = [not usual]
        else:
            others = [word for word in WORDS[field] if word != usual]
        for other in others:
            assert str(GemmConfig(**{field: other})) != str(base), field
    sides = {str(GemmConfig(peek=peek)) for peek in (True, False, "producer", "consumer")}
    assert len(sides) == 4
