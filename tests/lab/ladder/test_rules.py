"""Rules on the design study's parameters refuse what they name, beside the rules on the kernel's own."""

from __future__ import annotations

import pytest

from hopper_gemm.lab.ladder.ladder_config import LADDER_FIELDS, LadderConfig
from hopper_gemm.lab.ladder.rules import LADDER_RULES
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import RULES, reasons, rules_on
from hopper_gemm.tune.parameters import config_of

CASES = [
    ({"consumers": 4, "split": "m", "schedule": "multistage"}, "four consumers"),
    ({"ring": "library", "cluster_m": 2}, None),
    ({"ring": "library", "arrivals": "elected"}, None),
    ({"ring": "library", "arrivals": "thread"}, "ring"),
    ({"ring": "library", "arrivals": "group"}, "ring"),
    ({"ring": "library", "ring_state": "packed"}, "ring"),
    ({"ring": "library", "scheduler": "dynamic"}, "ring"),
    ({"ring": "library", "waits": "relaxed"}, "ring"),
    ({"ring": "library", "full_barriers": 2}, "ring"),
    ({"arrivals": "group", "cluster_m": 2}, None),
    ({"arrivals": "elected", "cluster_m": 2}, "arrivals"),
    ({"arrivals": "producer", "cluster_n": 2}, "arrivals"),
    ({"arrivals": "consumer"}, None),
    ({"waits": "relaxed", "cluster_m": 2}, None),
    ({"waits": "relaxed", "scheduler": "dynamic"}, "waits"),  # it lost tiles: found by `make verify`
    ({"waits": "relaxed", "loads": "mixed"}, "waits"),
    ({"loads": "mixed", "schedule": "multistage"}, "multistage"),
    ({"loads": "mixed", "full_barriers": 2}, "full_barriers"),
    ({"tile_m": 320, "consumers": 1, "split": "m", "spills": True}, None),
    ({"tile_m": 320, "consumers": 2, "split": "n", "spills": True}, None),
    ({"tile_m": 128, "spills": True, "schedule": "multistage"}, "spills"),
    ({"spills": True, "unroll": True}, "spills"),
    ({"schedule": "multistage", "loads": "cp_async"}, "multistage"),
    ({"tile_m": 192, "tile_n": 192, "loads": "cp_async"}, None),
    ({"tile_m": 192, "tile_n": 200, "loads": "cp_async"}, "loads"),
    ({"loads": "cp_async", "full_barriers": 2}, "full_barriers"),
    ({"arrivals": "thread", "cluster_m": 2}, "arrivals"),
    ({"full_barriers": 3}, "full_barriers"),
    ({"split_k": 4, "reduction": "workspace", "persistent": False}, "persistent"),
    ({"split_k": 4, "reduction": "workspace", "full_barriers": 2}, "full_barriers"),
    ({"pdl": True, "prefetch": 8}, None),
    ({"pdl": True, "prefetch": 65}, "prefetch"),
    ({"prefetch": 8}, None),
    ({"prefetch": 8, "loads": "cp_async"}, "prefetch"),
    ({"prefetch": 8, "schedule": "multistage", "tile_m": 128}, "prefetch"),
    ({"unroll": True, "tile_n": 192}, "unroll"),
    ({"unroll": True}, None),
    ({"unroll": True, "tile_m": 128}, "unroll"),
    ({"l2_promotion": 32}, "l2_promotion"),
    ({"reverse_k": True, "persistent": False}, "persistent"),
    ({"reverse_k": True, "schedule": "multistage", "tile_m": 128}, "multistage"),
    ({"scheduler": "dynamic", "persistent": False}, "persistent"),
    ({"scheduler": "dynamic", "prefetch": 4}, "prefetch"),
    ({"scheduler": "dynamic", "arrivals": "thread"}, "arrivals"),  # it hung: found by `make verify`
    ({"scheduler": "dynamic", "arrivals": "producer"}, "arrivals"),
    ({"scheduler": "dynamic", "arrivals": "consumer"}, None),
    ({"interleave_k": True, "split_k": 8, "reduction": "workspace"}, "interleave_k"),
    ({"interleave_k": True, "split_k": 2, "tile_m": 64}, None),
    ({"interleave_k": True}, "interleave_k"),
    ({"rotate_k": 64, "split_k": 8, "reduction": "workspace", "scheduler": "dynamic"}, None),
    ({"rotate_k": 1, "stream_k": True}, None),
    ({"rotate_k": 65}, "rotate_k"),
    ({"rotate_k": 1, "loads": "cp_async", "tile_m": 128}, "rotate_k"),
    ({"rotate_k": 1, "schedule": "multistage", "tile_m": 128}, "rotate_k"),
    ({"skew": 2, "scheduler": "dynamic"}, None),
    ({"skew": 3}, "skew"),
    ({"skew": 1, "tile_m": 192, "consumers": 3}, None),
    ({"skew": 2, "tile_m": 192, "consumers": 3}, "skew"),
    ({"skew": 1, "tile_m": 64}, "skew"),
    ({"skew": 1, "schedule": "pingpong", "tile_m": 128}, "skew"),
    ({"skew": 1, "split_k": 2, "tile_m": 128}, "skew"),
    ({"skew": 1, "loads": "cp_async", "tile_m": 128}, "skew"),
    ({"skew": 1, "stream_k": True}, None),
    ({"staging": "ring", "scheduler": "dynamic", "skew": 1}, None),
    ({"stream_k": True, "cluster_n": 2}, None),
    ({"stream_k": True, "cluster_n": 4}, "stream_k"),
    ({"stream_k": True, "k_depth": 5, "stages": 2}, "stream_k"),
    ({"stream_k": True, "epi_n": 8}, "stream_k"),
    ({"stream_k": True, "loads": "cp_async"}, "stream_k"),
    ({"stream_k": True, "tile_n": 208}, "registers"),
    ({"stream_k": True, "reverse_k": True}, None),
    ({"stream_k": True, "pace": 1}, "stream_k"),
    ({"stream_k": True, "scheduler": "dynamic"}, "stream_k"),
    ({"stream_k": True, "staging": "ring"}, "stream_k"),
    ({"stream_k": True, "consumers": 4, "split": "m"}, "stream_k"),
    ({"stream_k": True, "schedule": "pingpong", "tile_m": 128}, "stream_k"),
    ({"stream_k": True, "split_k": 4, "reduction": "workspace"}, "stream_k"),
    ({"stream_k": True, "persistent": False}, "persistent"),
    ({"stores": "direct", "epi_buffers": 1}, "stores"),
]
"""Configs, each with the one rule that refuses it, if any."""


@pytest.mark.parametrize(("change", "rule"), CASES)
def test_each_rule_refuses_what_it_names(change, rule):
    assert [reason.rule for reason in reasons(config_of(change))] == ([rule] if rule else [])


def test_every_rule_of_the_study_has_a_case_that_it_alone_refuses():
    assert {rule.name for rule in LADDER_RULES} <= {rule for _, rule in CASES}


def test_the_rules_of_the_study_come_after_the_kernel_s_and_hold_for_the_study_s_configs_alone():
    assert rules_on(resolve(LadderConfig())) == (*RULES, *LADDER_RULES)
    assert rules_on(resolve(GemmConfig())) == RULES
    assert len({rule.name for rule in rules_on(resolve(LadderConfig()))}) == len(RULES) + len(LADDER_RULES)
    assert all(rule.why for rule in LADDER_RULES)


def test_a_rule_speaks_of_a_parameter_of_the_study_or_of_its_schedule():
    assert {rule.name for rule in LADDER_RULES} <= {*LADDER_FIELDS, "multistage"}
