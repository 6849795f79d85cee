"""Pairs are drawn by a seed, all legal, and cover every technique, type and layout."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.model.grouped import GROUPINGS
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import FP8_DTYPES, PROMOTED
from hopper_gemm.tune.parameters import FIELDS, PARAMETERS, all_values
from tests.verify.drawing import (
    INTEGERS,
    STRATA,
    TOGETHER,
    Pair,
    fp8_pairs,
    gated_pairs,
    grouped_pairs,
    legal_configs,
    pairs,
)
from tests.verify.groups import ends_of


@pytest.fixture(scope="module")
def drawn():
    return list(pairs(1, 1200))


def test_every_parameter_that_is_an_integer_says_which_values_are_drawn():
    assert set(INTEGERS) == {name for name in FIELDS if PARAMETERS[name].least is not None}


def test_pairs_are_legal_the_same_for_a_seed_and_few_kernels_serve_them(drawn):
    assert len(drawn) == 1200
    assert all(pair.legal for pair in drawn)
    assert drawn[:50] == list(pairs(1, 50))
    assert drawn[:50] != list(pairs(4, 50))
    assert len({KernelId.of(pair.config, pair.problem) for pair in drawn[:200]}) <= 60


def test_kernels_with_a_workspace_are_launched_with_many_numbers_of_parts_in_either_order(drawn):
    """One binary serves all of them; few parts divide most problems, many cover the loop over parts."""
    configs = [pair.config for pair in drawn if pair.config.parts_at_launch]
    assert {config.part_order for config in configs} == {"tile", "part"}
    assert len({config.split_k for config in configs}) > 8
    assert {2, 3} < {config.split_k for config in configs}
    assert max(config.split_k for config in configs) > 32


def test_types_and_layouts_are_drawn_evenly(drawn):
    for of in (lambda pair: pair.problem.dtype, lambda pair: pair.problem.layouts):
        counts = Counter(map(of, drawn))
        assert len(counts) == 4
        assert min(counts.values()) > len(drawn) / 4 / 2


def test_every_technique_is_among_the_configs_in_its_turn():
    configs = list(islice(legal_configs(2), len(STRATA)))
    values_of = [all_values(config) for config in configs]
    assert [(name, value) for name, value in STRATA if not any(values[name] == value for values in values_of)] == []


def test_no_config_is_drawn_that_turns_the_register_rules_off(drawn):
    configs = (*islice(legal_configs(2), len(STRATA)), *(pair.config for pair in drawn))
    assert not any(config.spills for config in configs)
    assert "spills" not in dict(STRATA)


def test_every_turn_has_clusters_of_two_axes_with_and_without_the_dynamic_scheduler():
    turn = [all_values(config) for config in islice(legal_configs(2), len(STRATA) + len(TOGETHER))]
    assert [fixed for fixed in TOGETHER if not any(fixed.items() <= values.items() for values in turn)] == []


def test_a_pair_is_read_back_from_its_row():
    for pair in (*pairs(5, 20), *fp8_pairs(5, 20), *grouped_pairs(5, 20), *gated_pairs(5, 20)):
        assert Pair.of(pair.as_dict()) == pair


def test_fp8_pairs_are_legal_and_have_every_type_recipe_and_interval_with_and_without_swapped_operands():
    drawn = list(fp8_pairs(1, 300))
    assert len(drawn) == 300
    assert all(pair.legal for pair in drawn)
    assert drawn[:20] == list(fp8_pairs(1, 20)) != list(fp8_pairs(2, 20))
    assert {pair.problem.dtype for pair in drawn} == set(FP8_DTYPES)
    recipes = Counter((pair.finish.scales, pair.config.swap_ab) for pair in drawn)
    assert len(recipes) == 6
    assert min(recipes.values()) > 300 / 6 / 2
    of_rows = {(pair.finish.scales, pair.problem.promote) for pair in drawn}
    assert of_rows == {("blocks", 128), *((scales, step) for scales in ("tensor", "row") for step in PROMOTED)}
    split = {pair.config.split_k > 1 for pair in drawn if pair.finish.scales == "blocks"}
    assert split == {True, False}


def test_grouped_pairs_are_legal_and_have_every_grouping_walk_finish_and_kind_of_offsets():
    drawn = list(grouped_pairs(1, 300))
    assert len(drawn) == 300
    assert all(pair.legal for pair in drawn)
    assert drawn[:20] == list(grouped_pairs(1, 20)) != list(grouped_pairs(2, 20))
    groupings = Counter(pair.problem.grouping for pair in drawn)
    assert set(groupings) == {*GROUPINGS}
    assert min(groupings.values()) > 300 / len(GROUPINGS) / 2
    walks = Counter((pair.config.scheduler, pair.config.schedule) for pair in drawn)
    assert min(walks.values()) > 20
    assert len(walks) == 3
    clusters = {(pair.config.cluster_m, pair.config.cluster_n) for pair in drawn}
    assert {(2, 4), (4, 2)} < clusters
    assert {pair.finish.scales for pair in drawn if pair.finish} == {"", "row", "blocks"}
    assert {pair.finish.gated for pair in drawn if pair.finish} == {True, False}
    assert max(pair.problem.groups for pair in drawn) > 64
    ends = [(pair.problem, ends_of(pair.problem, pair.seed)) for pair in drawn]
    assert [given for problem, given in ends if (given is None) != (problem.grouping == "batch")] == []
    falls = [given != sorted(given) or min(given) < 0 for problem, given in ends if problem.grouping == "rows"]
    assert 0 < sum(falls) < len(falls)


def test_gated_pairs_are_legal_and_have_swapped_operands_clusters_of_eight_and_every_activation():
    drawn = list(gated_pairs(1, 100))
    assert len(drawn) == 100
    assert all(pair.legal and pair.finish.gated for pair in drawn)
    assert drawn[:20] == list(gated_pairs(1, 20)) != list(gated_pairs(2, 20))
    assert {pair.finish.activation for pair in drawn} == set(ACTIVATIONS)
    swapped = Counter(pair.config.swap_ab for pair in drawn)
    assert min(swapped.values()) > 100 / 2 / 2
    assert {resolve(pair.config).cluster_size for pair in drawn} == {1, 2, 4, 8}
    assert len({pair.config.scheduler for pair in drawn}) == len({pair.problem.layouts for pair in drawn}) == 2
