"""Each parameter is declared once, on its field: what it may be, what it is called, where it belongs."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import (
    ALIASES,
    BEFORE,
    DEFAULTS,
    FIELDS,
    HOST_FIELDS,
    LARGEST,
    LATER,
    LAUNCH_FIELDS,
    LEGEND,
    PARAMETERS,
    GemmConfig,
)
from hopper_gemm.verify.drawing import values_of


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tile_m", "big", f"tile_m must be an integer from 1 to {LARGEST} but got 'big'"),
        ("tile_n", -8, f"tile_n must be an integer from 1 to {LARGEST} but got -8"),
        ("tile_n", LARGEST + 1, f"tile_n must be an integer from 1 to {LARGEST} but got {LARGEST + 1}"),
        ("stages", "all", f"stages must be an integer from 0 to {LARGEST} or \"max\" but got 'all'"),
        ("consumers", 1.5, f'consumers must be an integer from 1 to {LARGEST} or "auto" but got 1.5'),
        ("stagger", True, f"stagger must be an integer from 0 to {LARGEST} but got True"),
        ("split", "k", "split must be one of m, n, auto but got 'k'"),
        ("raster", "auto", "raster must be one of m, n but got 'auto'"),
        ("schedule", "solo", "schedule must be one of cooperative, pingpong, multistage but got 'solo'"),
        ("serpentine", 1, "serpentine must be true or false but got 1"),
        ("peek", "loader", "peek must be true or false or producer or consumer but got 'loader'"),
        ("scheduler", "greedy", "scheduler must be one of static, dynamic but got 'greedy'"),
        ("skew", -1, f"skew must be an integer from 0 to {LARGEST} but got -1"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected_and_what_came(field, value, message):
    with pytest.raises(ValueError) as caught:
        GemmConfig(**{field: value})
    assert str(caught.value) == message


@pytest.mark.parametrize("field", FIELDS)
def test_every_parameter_says_what_it_means_and_takes_its_default_and_its_words(field):
    parameter = PARAMETERS[field]
    assert parameter.doc
    for value in (DEFAULTS[field], BEFORE[field], *parameter.words):
        assert parameter.mistake(value) is None
    assert parameter.mistake(None) is not None
    if parameter.least is not None:
        assert parameter.mistake(parameter.least) is None
        assert parameter.mistake(parameter.least - 1) is not None


@pytest.mark.parametrize("field", FIELDS)
def test_the_label_tells_any_two_values_of_a_parameter_apart(field):
    """Labels stand for configs in samples and logs; what is named by its place is in the legend, the rest by name."""
    values = dict.fromkeys((*values_of(field), *PARAMETERS[field].words))
    labels = {str(GemmConfig(**{field: value})) for value in values}
    assert len(labels) == len(values)
    changed = next(value for value in values if value != DEFAULTS[field])
    assert (f" {field}={changed}" in str(GemmConfig(**{field: changed}))) == (field in LATER)


def test_the_legend_explains_every_part_of_a_label_that_has_no_name():
    words = LEGEND.replace("axis", "raster").replace("group", "swizzle")
    unnamed = [field for field in FIELDS if field not in LATER]
    hidden = {"k_depth": "tile_k", "cluster_m": "cluster m x n", "cluster_n": "cluster m x n", "epi_n": "chunk columns"}
    hidden |= {"epi_buffers": "buffers", "split": "side they split", "serpentine": "serp"}
    assert [field for field in unnamed if hidden.get(field, field) not in words] == []


def test_earlier_names_and_words_are_understood_and_none_is_a_name_of_now():
    assert not set(ALIASES) & set(FIELDS)
    config = GemmConfig.of({"early": True, "zigzag": True, "cluster_m": 2, "multicast": "turns"})
    assert config == GemmConfig(pdl=True, reverse_k=True, cluster_m=2, multicast="alternate")
    assert GemmConfig.of({"multicast": "rows"}) == GemmConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tile": 3}, "tile is not a kernel parameter; choose among tile_m, "),
        ({"early": True, "pdl": True}, "pdl is given twice, by this name and by an earlier one"),
    ],
)
def test_a_name_that_is_none_or_twice_the_same_is_refused(values, message):
    with pytest.raises(ValueError) as caught:
        GemmConfig.of(values)
    assert str(caught.value).startswith(message)


def test_what_the_launch_takes_reaches_the_gpu_by_the_host():
    assert set(LAUNCH_FIELDS) < set(HOST_FIELDS) < set(FIELDS)


def test_what_never_wins_is_of_the_ladder():
    ladder = {field for field, parameter in PARAMETERS.items() if parameter.tier == "ladder"}
    assert ladder == {
        "loads",
        "stores",
        "unroll",
        "ring",
        "ring_state",
        "arrivals",
        "full_barriers",
        "waits",
        "prefetch",
        "interleave_k",
        "rotate_k",
        "spills",
    }


def test_a_row_recorded_before_there_was_a_parameter_is_of_a_config_without_it():
    later = [field for field, parameter in PARAMETERS.items() if parameter.since > 1]
    assert {"scheduler", "skew"} <= set(later)
    assert GemmConfig(**BEFORE) == GemmConfig()
