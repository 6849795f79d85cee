"""One list of rules decides what can run, gives every reason, and reproduces the published stage counts."""

from __future__ import annotations

from itertools import islice

import pytest

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import EPI_BUFFERS_MAX, resolve
from hopper_gemm.model.legality import PAIR_RULES, RULES, is_legal, reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import config_of
from tests.verify.drawing import legal_configs

PUBLISHED_STAGES = {
    64: (18, 9, 6, 4, 3, 3, 2, 2),
    128: (13, 6, 4, 3, 2, 2, 1, 1),
    192: (10, 5, 3, 2, 2, 1, 1, 1),
    256: (8, 4, 2, 2, 1, 1, 1, 1),
    320: (7, 3, 2, 1, 1, 1, 1, 0),
}
K_DEPTHS = range(2, 17, 2)


def rules_of(config: GemmConfig) -> list[str]:
    return [reason.rule for reason in reasons(config)]


@pytest.mark.parametrize("tile_m", PUBLISHED_STAGES)
def test_max_gives_exactly_the_published_stage_counts(tile_m):
    found = [resolve(GemmConfig(tile_m=tile_m, tile_n=128, k_depth=k_depth)).stages for k_depth in K_DEPTHS]
    assert found == list(PUBLISHED_STAGES[tile_m])


def test_the_one_published_cell_that_exceeds_shared_memory_is_refused_by_the_stages_rule():
    found = reasons(GemmConfig(tile_m=320, tile_n=128, k_depth=16))
    assert [reason.rule for reason in found] == ["stages"]
    assert "exceeds smem" in found[0].text


def test_all_reasons_are_given_not_only_the_first():
    config = GemmConfig(tile_m=100, tile_n=130, k_depth=17, consumers=5, cluster_m=3, swizzle=33, epi_n=48)
    assert rules_of(config) == ["tile_m", "tile_n", "k_depth", "consumers", "cluster", "swizzle", "epi_n"]


CASES = [
    ({"tile_m": 96}, "tile_m"),
    ({"tile_n": 132}, "tile_n"),
    ({"tile_n": 264}, "tile_n"),
    ({"k_depth": 17, "stagger": 0}, "k_depth"),
    ({"consumers": 5}, "consumers"),
    ({"consumers": 4, "split": "m"}, None),
    ({"consumers": 4, "split": "m", "tile_n": 144}, "wgmma_n"),
    ({"consumers": 4, "split": "m", "tile_n": 136}, None),
    ({"consumers": 4, "split": "n", "tile_n": 256}, "registers"),
    ({"consumers": 4, "split": "m", "stores": "direct"}, "four consumers"),
    ({"loads": "cp_async", "tile_n": 32, "k_depth": 16, "stagger": 0}, "loads"),
    ({"loads": "cp_async", "tile_n": 32, "k_depth": 15, "stagger": 0}, None),
    ({"loads": "mixed"}, None),
    ({"loads": "mixed", "cluster_m": 2}, "loads"),
    ({"loads": "mixed", "tile_m": 320}, None),
    ({"loads": "mixed", "tile_m": 192, "tile_n": 256, "consumers": 2, "split": "n", "epi_n": 64}, "registers"),
    ({"loads": "mixed", "tile_m": 192, "tile_n": 256, "consumers": 2, "split": "n", "epi_n": 32}, None),
    ({"loads": "cp_async", "tile_m": 320, "tile_n": 48, "consumers": 3, "stages": 1, "stagger": 0}, "loads"),
    ({"loads": "cp_async", "tile_m": 320, "tile_n": 48, "consumers": 3, "stages": 2}, None),
    ({"tile_m": 320, "consumers": 1, "split": "m"}, "registers"),
    ({"tile_m": 192, "consumers": 2, "split": "m"}, "split"),
    ({"tile_n": 144, "consumers": 2, "split": "n", "tile_m": 64}, None),
    ({"tile_n": 120, "consumers": 2, "split": "n"}, "split"),
    ({"tile_m": 256, "tile_n": 256, "consumers": 2, "split": "m"}, "registers"),
    ({"tile_m": 192, "tile_n": 208, "consumers": 3, "split": "m"}, "wgmma_n"),
    ({"stages": 5}, "stages"),
    ({"stages": 0}, "stages"),
    ({"stages": 1, "stagger": 1}, "stagger"),
    ({"stages": 4, "stagger": 4}, "stagger"),
    ({"tile_m": 64, "k_depth": 1, "stagger": 8}, "stagger"),
    ({"cluster_m": 4, "cluster_n": 2}, None),
    ({"cluster_m": 4, "cluster_n": 4}, "cluster"),
    ({"schedule": "pingpong", "tile_m": 128}, None),
    ({"schedule": "pingpong", "tile_m": 128, "consumers": 3}, "schedule"),
    ({"schedule": "pingpong", "tile_m": 128, "split": "n"}, "split"),
    ({"schedule": "pingpong"}, "registers"),
    ({"loads": "cp_async", "cluster_n": 2}, "loads"),
    ({"stores": "direct", "epi_n": 32}, "stores"),
    ({"split_k": 2}, None),
    ({"split_k": 2, "stages": 2}, "split_k"),
    ({"split_k": 3, "tile_m": 128}, "split_k"),
    ({"split_k": 4, "tile_m": 128}, None),
    ({"split_k": 4, "tile_m": 128, "cluster_m": 2}, "split_k"),
    ({"split_k": 8, "tile_m": 128, "epi_n": 64}, "split_k"),
    ({"split_k": 3, "reduction": "workspace"}, None),
    ({"split_k": 33, "reduction": "workspace", "cluster_m": 2, "epi_n": 64}, None),
    ({"split_k": 34, "reduction": "workspace", "cluster_m": 2, "cluster_n": 2}, "split_k"),
    ({"split_k": 65, "reduction": "workspace"}, "split_k"),
    ({"split_k": 4, "reduction": "workspace", "loads": "cp_async"}, "split_k"),
    ({"split_k": 4, "reduction": "workspace", "tile_n": 128}, None),
    ({"split_k": 4, "reduction": "workspace", "tile_n": 160}, "split_k"),
    ({"reduction": "workspace"}, "reduction"),
    ({"tile_m": 128, "tile_n": 64, "ctas_per_sm": 2}, None),
    ({"tile_m": 128, "tile_n": 64, "ctas_per_sm": 2, "stages": 5}, "stages"),
    ({"tile_m": 128, "tile_n": 128, "ctas_per_sm": 2}, "registers"),
    ({"tile_m": 64, "tile_n": 64, "ctas_per_sm": 5}, "ctas_per_sm"),
    ({"tile_n": 208, "epi_n": 104}, None),
    ({"tile_n": 144, "epi_n": 72}, None),
    ({"tile_n": 208, "epi_n": 72}, "epi_n"),
    ({"tile_n": 208, "epi_n": 48}, "epi_n"),
    ({"tile_n": 208, "epi_n": 104, "swap_ab": True}, None),
    ({"tile_m": 192, "tile_n": 208, "consumers": 2, "split": "n", "epi_n": 104, "swap_ab": True}, None),
    ({"loads": "cp_async", "tile_m": 320}, "loads"),
    ({"swap_ab": True, "tile_m": 64, "tile_n": 8}, None),
    ({"swap_ab": True, "stores": "direct"}, "swap_ab"),
    ({"tile_n": 136, "cluster_m": 2}, "multicast"),
    ({"tile_n": 136, "cluster_m": 2, "multicast": "alternate"}, None),
    ({"tile_n": 136, "multicast": "alternate"}, "multicast"),
    ({"cluster_m": 2, "cluster_n": 2, "multicast": "alternate"}, "multicast"),
    ({"reverse_k": True, "schedule": "pingpong", "tile_m": 128}, None),
    ({"reverse_k": True, "split_k": 2, "tile_m": 64}, "reverse_k"),
    ({"pace": 1025}, "pace"),
    ({"pace": 1, "loads": "cp_async", "tile_m": 128}, "pace"),
    ({"evict_c": True, "split_k": 2, "tile_m": 64}, None),
    ({"evict_c": True, "stores": "direct"}, "evict_c"),
    ({"swizzle": 11}, None),
    ({"swizzle": 33}, "swizzle"),
    ({"epi_n": 24}, "epi_n"),
    ({"epi_buffers": 9}, "epi_buffers"),
    ({"scheduler": "dynamic", "cluster_m": 2, "cluster_n": 2, "pace": 4, "reverse_k": True}, None),
    ({"scheduler": "dynamic", "split_k": 5, "reduction": "workspace", "tile_m": 128}, None),
    ({"scheduler": "dynamic", "schedule": "pingpong", "tile_m": 128}, "scheduler"),
    ({"scheduler": "dynamic", "loads": "cp_async", "tile_m": 128}, "scheduler"),
    ({"scheduler": "dynamic", "split_k": 2, "tile_m": 64}, "scheduler"),
    ({"part_order": "part", "split_k": 8, "reduction": "workspace"}, None),
    ({"part_order": "part", "split_k": 2, "tile_m": 64}, "part_order"),
    ({"part_order": "part"}, "part_order"),
    ({"staging": "ring", "k_depth": 2}, "staging"),
    ({"staging": "ring", "split_k": 2, "tile_m": 128}, "staging"),
    ({"staging": "ring", "schedule": "pingpong", "tile_m": 128}, "staging"),
    ({"staging": "ring", "epi_buffers": 1}, "staging"),
    ({"staging": "ring", "stages": 1, "stagger": 0}, "staging"),
]
"""Configs, each with the one rule that refuses it, if any."""


@pytest.mark.parametrize(("change", "rule"), CASES)
def test_each_rule_refuses_what_it_names(change, rule):
    assert rules_of(config_of(change)) == ([rule] if rule else [])


def test_every_rule_on_configs_has_a_case_that_it_alone_refuses():
    assert {rule.name for rule in RULES} <= {rule for _, rule in CASES}


def test_every_rule_has_a_name_of_its_own_and_a_reason_to_exist():
    for rules in (RULES, PAIR_RULES):
        assert len({rule.name for rule in rules}) == len(rules)
        assert all(rule.why for rule in rules)


def test_copies_by_threads_are_refused_a_depth_that_ends_within_one():
    for k, found in ((1000, []), (1004, ["loads"]), (1001, ["loads"])):
        problem, config = GemmProblem(128, 127, k), config_of({"tile_m": 64, "tile_n": 64, "loads": "cp_async"})
        assert [reason.rule for reason in reasons(config, problem)] == found
        assert is_legal(GemmConfig(tile_m=64, tile_n=64), problem), "TMA fills up with zeros"


@pytest.mark.parametrize(
    ("change", "layouts", "rule"),
    [
        ({}, "mn", None),
        ({"tile_m": 64, "cluster_n": 4, "k_depth": 2}, "mk", None),
        ({"tile_m": 64, "cluster_n": 4, "k_depth": 1}, "mk", "layouts"),
        ({"tile_m": 64, "cluster_n": 4, "k_depth": 1, "multicast": "alternate"}, "mk", None),
        ({"tile_m": 64, "cluster_n": 4, "k_depth": 1}, "kn", None),
        ({"tile_m": 64, "cluster_n": 4, "tile_n": 64, "k_depth": 1, "swap_ab": True}, "kn", "layouts"),
        ({"tile_n": 24}, "kn", "layouts"),
        ({"tile_n": 64, "cluster_m": 4, "k_depth": 1}, "kn", "layouts"),
        ({"loads": "cp_async"}, "mk", "layouts"),
        ({"tile_m": 128, "split_k": 8, "k_depth": 16, "stages": 1, "stagger": 0}, "kk", "split_k"),
        ({"split_k": 8, "reduction": "workspace"}, "kn", None),
        ({"split_k": 9, "reduction": "workspace"}, "kn", "split_k"),
        ({"split_k": 8, "reduction": "workspace", "part_order": "part"}, "kk", None),
        ({"split_k": 8, "reduction": "workspace", "part_order": "part", "tile_m": 64, "tile_n": 64}, "kk", "workspace"),
        ({"staging": "ring"}, "kk", None),
        ({"staging": "ring", "tile_m": 128, "tile_n": 256, "epi_n": 8}, "kk", None),
    ],
)
def test_rules_that_take_config_and_problem_together(change, layouts, rule):
    problem = GemmProblem(512, 512, 512, layouts=layouts)
    assert [reason.rule for reason in reasons(config_of(change), problem)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        ({}, None),
        ({"epi_n": 16}, None),
        ({"epi_n": 8}, "take epi_n 16 or more"),
        ({"tile_n": 208, "epi_n": 104}, "take epi_n 16 or more"),
        ({"tile_n": 72}, "a multiple of 16 columns instead of 72, or take stores direct"),
        ({"tile_n": 72, "stores": "direct"}, None),
        ({"tile_m": 64, "tile_n": 8, "swap_ab": True}, "a multiple of 16 columns instead of 8"),
        ({"tile_m": 320, "tile_n": 144}, "a multiple of 16 columns instead of 72"),
        ({"tile_m": 192, "tile_n": 144, "consumers": 3}, None),
    ],
)
def test_an_fp32_output_needs_chunks_of_eight_of_its_own_columns(change, mend):
    config = config_of(change)
    assert is_legal(config, GemmProblem(512, 512, 512))
    found = reasons(config, GemmProblem(512, 512, 512, "bf16_fp32"))
    assert [reason.rule for reason in found] == (["output"] if mend else [])
    assert mend is None or mend in found[0].text


@pytest.mark.parametrize("split_k", [2, 8, 33, 64])
def test_the_rules_on_registers_do_not_depend_on_the_number_of_parts_through_a_workspace(split_k):
    """One binary serves all of them."""
    for change in ({"tile_n": 224}, {"tile_n": 192, "epi_n": 64}, {"tile_m": 64, "tile_n": 112}):
        config = GemmConfig(**({"tile_m": 128, "reduction": "workspace", "split_k": split_k} | change))
        for dtype in ("bf16", "bf16_fp32"):
            assert reasons(config, GemmProblem(512, 512, 65536, dtype)) == []


@pytest.mark.parametrize(
    ("change", "legal"),
    [
        ({"tile_m": 192, "tile_n": 176, "consumers": 2, "split": "n"}, False),
        ({"tile_m": 192, "tile_n": 160, "consumers": 2, "split": "n"}, True),
        ({"tile_m": 128, "tile_n": 144, "consumers": 2, "split": "n"}, True),
        ({"tile_m": 256, "tile_n": 144, "consumers": 2, "split": "m"}, False),
        ({"tile_m": 320, "tile_n": 96, "consumers": 2, "split": "n"}, False),
        ({"tile_m": 320, "tile_n": 64, "consumers": 2, "split": "n"}, True),
        ({"tile_m": 192, "tile_n": 192, "consumers": 3, "split": "m"}, False),
        ({"tile_m": 192, "tile_n": 176, "consumers": 3, "split": "m"}, True),
        ({"tile_m": 320, "tile_n": 96, "consumers": 3, "split": "n"}, False),
        ({"tile_m": 128, "tile_n": 144, "consumers": 1, "split": "m"}, True),
        ({"tile_m": 192, "tile_n": 144, "consumers": 1, "split": "m", "reduction": "cluster"}, False),
        ({"tile_m": 192, "tile_n": 128, "consumers": 1, "split": "m", "reduction": "cluster"}, True),
        ({"tile_m": 128, "tile_n": 208, "consumers": 1, "split": "m", "reduction": "cluster"}, True),
        ({"tile_m": 128, "tile_n": 216, "consumers": 1, "split": "m", "reduction": "cluster"}, False),
        ({"tile_m": 192, "tile_n": 224, "consumers": 2, "split": "n", "reduction": "cluster"}, False),
        ({"tile_m": 256, "tile_n": 192, "consumers": 2, "split": "m", "reduction": "cluster"}, True),
        ({"tile_m": 384, "tile_n": 128, "consumers": 3, "split": "m", "reduction": "cluster"}, False),
        ({"tile_m": 384, "tile_n": 128, "consumers": 2, "split": "n", "reduction": "cluster"}, False),
    ],
)
def test_parts_of_k_are_refused_where_their_accumulators_spilled(change, legal):
    config = GemmConfig(**({"split_k": 2, "reduction": "workspace", "k_depth": 2} | change))
    assert rules_of(config) == ([] if legal else ["split_k"])


def test_c_is_staged_only_in_slots_that_its_tile_fills():
    config = GemmConfig(staging="ring")
    held = resolve(config).held_slots(2)
    assert held > 1
    least = config.tile_k * (held - 1)
    assert is_legal(config, GemmProblem(512, 512, least + 8))
    assert [reason.rule for reason in reasons(config, GemmProblem(512, 512, least))] == ["staging"]


def test_a_chunk_of_an_fp32_output_keeps_its_bytes_and_covers_the_share():
    problem = GemmProblem(512, 512, 512, "fp16_fp32")
    for shares in map(resolve, islice((one for one in legal_configs(7) if is_legal(one, problem)), 100)):
        columns, parts, rolled = shares.chunk_columns(4), shares.split_k, shares.parts_at_launch
        assert columns % hopper.WGMMA_N_STEP == 0
        assert shares.share_n % columns == 0
        if shares.stores == "tma":
            assert 4 * hopper.WGMMA_M * columns == shares.chunk_bytes
            assert shares.tma_stores(4) == (1 if rolled else 2 * shares.chunks // parts) * (2 if shares.swap_ab else 1)
            assert shares.tma_stores(2) == (1 if rolled else shares.chunks // parts)
            assert 2 * shares.chunks % parts == 0 or rolled


def test_a_legal_config_fits_the_chip_by_every_figure_that_follows_from_it():
    for config in islice(legal_configs(3), 400):
        shares = resolve(config)
        split = shares.registers
        assert shares.smem_bytes <= hopper.SMEM_BYTES
        assert shares.share_m % hopper.WGMMA_M == 0
        assert shares.share_n % hopper.WGMMA_N_STEP == 0
        assert shares.accumulators < split.consumer
        at_launch = hopper.REGISTERS_PER_SM // shares.threads // hopper.REGISTER_STEP * hopper.REGISTER_STEP
        given = split.producer + shares.consumers * split.consumer
        assert not split.moved or given * hopper.WARPGROUP_THREADS <= at_launch * shares.threads
        unbuffered = shares.stores == "direct" or shares.staging == "ring"
        assert (shares.epi_buffers == 0) if unbuffered else (1 <= shares.epi_buffers <= EPI_BUFFERS_MAX)
        assert shares.share_n % shares.chunk_n == 0


def test_resolving_twice_changes_nothing():
    for config in islice(legal_configs(5), 300):
        assert resolve(resolve(config)) == resolve(config)


def test_auto_shares_the_published_tiles_as_the_kernel_runs_them_best():
    shares = {tile_m: resolve(GemmConfig(tile_m=tile_m, tile_n=128)) for tile_m in PUBLISHED_STAGES}
    assert {m: (config.consumers, config.split) for m, config in shares.items()} == {
        64: (1, "m"),
        128: (2, "m"),
        192: (3, "m"),
        256: (2, "m"),
        320: (2, "n"),
    }


def test_a_workspace_is_legal_up_to_256_mib_and_not_beyond():
    config = GemmConfig(128, 128, split_k=4, reduction="workspace")
    sums = 4 * 4 * 128 * 128
    for tiles, legal in ((2**28 // sums, True), (2**28 // sums + 1, False)):
        assert is_legal(config, GemmProblem(128 * tiles, 128, 4096)) == legal
