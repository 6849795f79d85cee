"""The design study's configs: every parameter that rows know; the kernel's own config where none of them differs."""

from __future__ import annotations

from itertools import islice

import pytest

from docs.generate.pages.sources import recorded
from hopper_gemm.lab.ladder.ladder_config import DEFAULTS, LADDER_FIELDS, LadderConfig, LadderKernel
from hopper_gemm.model import config as plain
from hopper_gemm.model.config import LABELLED, LARGEST, LEGEND, GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import (
    FIELDS,
    HOST_FIELDS,
    LAUNCH_FIELDS,
    PARAMETERS,
    all_values,
    config_of,
    kernel_of,
)
from tests.each import each
from tests.verify.drawing import legal_configs, values_of, varied


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schedule", "solo", "schedule must be one of cooperative, pingpong, multistage but got 'solo'"),
        ("serpentine", 1, "serpentine must be true or false but got 1"),
        ("peek", "loader", "peek must be true or false or producer or consumer but got 'loader'"),
        ("skew", -1, f"skew must be an integer from 0 to {LARGEST} but got -1"),
        ("tile_m", "big", f"tile_m must be an integer from 1 to {LARGEST} but got 'big'"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected_and_what_came(field, value, message):
    with pytest.raises(ValueError) as caught:
        config_of({field: value})
    assert str(caught.value) == message


@each("field", FIELDS)
def test_every_parameter_says_what_it_means_and_takes_its_default_and_its_words(field):
    parameter = PARAMETERS[field]
    assert parameter.doc
    for value in (DEFAULTS[field], *parameter.words):
        assert parameter.mistake(value) is None
    assert parameter.mistake(None) is not None
    if parameter.least is not None:
        assert parameter.mistake(parameter.least) is None
        assert parameter.mistake(parameter.least - 1) is not None


@each("field", FIELDS)
def test_the_label_tells_any_two_values_of_a_parameter_apart(field):
    """Labels stand for configs in samples and logs; what is named by its place is in the legend, the rest by name."""
    values = dict.fromkeys((*values_of(field), *PARAMETERS[field].words))
    labels = {str(config_of({field: value})) for value in values}
    assert len(labels) == len(values)
    changed = next(value for value in values if value != DEFAULTS[field])
    assert (f" {field}={changed}" in str(config_of({field: changed}))) == (field not in LABELLED)


def test_the_legend_explains_every_part_of_a_label_that_has_no_name():
    words = LEGEND.replace("axis", "raster").replace("group", "swizzle")
    hidden = {"k_depth": "tile_k", "cluster_m": "cluster m x n", "cluster_n": "cluster m x n", "epi_n": "chunk columns"}
    hidden |= {"epi_buffers": "buffers", "split": "side they split", "serpentine": "serp"}
    assert [field for field in LABELLED if hidden.get(field, field) not in words] == []


@each("field", LADDER_FIELDS)
def test_a_config_is_the_kernel_s_own_unless_a_parameter_of_the_study_differs(field):
    """Equal kernels have equal configs, however they were asked for."""
    assert config_of({"tile_m": 128, field: DEFAULTS[field]}) == GemmConfig(tile_m=128)
    changed = next(value for value in values_of(field) if value != DEFAULTS[field])
    differs = config_of({"tile_m": 128, field: changed})
    assert type(differs) is LadderConfig
    assert getattr(differs, field) == changed
    assert varied(differs, **{field: DEFAULTS[field]}) == GemmConfig(tile_m=128)
    assert varied(GemmConfig(tile_m=128), **{field: changed}) == differs


def test_a_schedule_without_a_producer_is_the_study_s_alone():
    assert type(config_of({"schedule": "multistage"})) is LadderConfig
    assert type(config_of({"schedule": "pingpong"})) is GemmConfig
    with pytest.raises(ValueError, match="schedule must be one of cooperative, pingpong but got 'multistage'"):
        GemmConfig(schedule="multistage")


def test_values_by_name_make_the_config_again():
    for config in islice(legal_configs(5), 100):
        values = all_values(config)
        assert tuple(values) == FIELDS
        assert config_of(values) == config


def test_what_the_kernel_always_does_is_what_the_study_does_by_default():
    """Rules, footprint and prediction read these from configs of either kind."""
    known = {name: getattr(GemmConfig, name) for name in LADDER_FIELDS if hasattr(GemmConfig, name)}
    assert known == {name: DEFAULTS[name] for name in known}
    problem = GemmProblem(4096, 4096, 4096)
    for config in islice(legal_configs(5), 100):
        if type(config) is GemmConfig:
            wide = LadderConfig(**all_values(config))
            assert reasons(wide, problem) == reasons(config, problem)
            assert resolve(wide).smem_map == resolve(config).smem_map
            assert predict(wide, problem) == predict(config, problem)
            assert str(wide) == str(config)


def test_two_ways_to_launch_one_kernel_are_compiled_once():
    compiled = resolve(GemmConfig(raster="n", swizzle=4)).compiled()
    other = kernel_of({"raster": "n", "serpentine": False, "persistent": False}).compiled()
    assert other == compiled == resolve(GemmConfig())


@pytest.mark.parametrize("study", ["ladder", "ring"])
def test_a_recorded_row_has_the_narrowest_config_that_has_its_values(study):
    rows = recorded(study).rows
    configs = {row.point.config for row in rows if not row.point.is_baseline}
    assert {type(config) for config in configs} == {Kernel, LadderKernel}
    assert all(config == kernel_of(all_values(config)) for config in configs)


def test_earlier_names_and_words_are_understood():
    config = config_of({"early": True, "zigzag": True, "cluster_m": 2, "multicast": "turns", "skew": 1})
    assert config == LadderConfig(pdl=True, reverse_k=True, cluster_m=2, multicast="alternate", skew=1)
    assert not {alias for parameter in PARAMETERS.values() for alias in parameter.aliases} & set(FIELDS)


def test_rows_keep_the_order_of_their_columns_though_a_parameter_moved_to_the_study():
    """The kernel's parameters come first but for two; what the launch takes reaches the GPU by the host."""
    at = plain.FIELDS.index("epi_buffers") + 1
    assert LADDER_FIELDS[:2] == ("loads", "stores")
    assert (*plain.FIELDS[:at], *LADDER_FIELDS[:2], *plain.FIELDS[at:], *LADDER_FIELDS[2:]) == FIELDS
    assert tuple(resolve(LadderConfig(skew=1)).as_dict()) == FIELDS
    assert set(plain.LAUNCH_FIELDS) < set(LAUNCH_FIELDS) < set(HOST_FIELDS) < set(FIELDS)


def test_a_row_recorded_before_there_was_a_parameter_is_of_a_config_without_it():
    later = [field for field, parameter in PARAMETERS.items() if parameter.since > 1]
    assert {"scheduler", "skew"} <= set(later)
    assert config_of(DEFAULTS) == GemmConfig()
