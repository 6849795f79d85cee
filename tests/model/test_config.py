"""A config takes every parameter and refuses only nonsense; the rules judge the rest."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import FIELDS, INTEGERS, GemmConfig


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
        ("schedule", "pingpong", "schedule must be one of cooperative but got 'pingpong'"),
        ("peek", 1, "peek must be true or false but got 1"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected_and_what_came(field, value, message):
    with pytest.raises(ValueError) as caught:
        GemmConfig(**{field: value})
    assert str(caught.value) == message


def test_the_label_tells_any_two_configs_apart():
    """Labels stand for configs in the samples and in the Optuna studies."""
    base = GemmConfig()
    other = {"split": "n", "raster": "n", "schedule": "cooperative", "serpentine": False, "peek": False}
    for field in FIELDS:
        if field == "schedule":
            continue
        value = 3 if field in INTEGERS else other[field]
        assert str(GemmConfig(**{field: value})) != str(base), field
