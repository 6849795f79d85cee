"""Each parameter of the kernel is declared once, on its field: what it may be, what it is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import LARGEST, LAUNCH_FIELDS, GemmConfig
from hopper_gemm.model.kernel import resolve


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
        ("schedule", "solo", "schedule must be one of cooperative, pingpong but got 'solo'"),
        ("evict_c", 1, "evict_c must be true or false but got 1"),
        ("scheduler", "greedy", "scheduler must be one of static, dynamic but got 'greedy'"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected_and_what_came(field, value, message):
    with pytest.raises(ValueError) as caught:
        GemmConfig(**{field: value})
    assert str(caught.value) == message


def test_earlier_names_and_words_are_understood():
    config = GemmConfig.of({"early": True, "zigzag": True, "cluster_m": 2, "multicast": "turns"})
    assert config == GemmConfig(pdl=True, reverse_k=True, cluster_m=2, multicast="alternate")
    assert GemmConfig.of({"multicast": "rows"}) == GemmConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tile": 3}, "tile is not a kernel parameter; choose among tile_m, "),
        ({"skew": 1}, "skew is not a kernel parameter; choose among tile_m, "),
        ({"early": True, "pdl": True}, "pdl is given twice, by this name and by an earlier one"),
    ],
)
def test_a_name_that_is_none_or_twice_the_same_is_refused(values, message):
    with pytest.raises(ValueError) as caught:
        GemmConfig.of(values)
    assert str(caught.value).startswith(message)


def test_configs_that_differ_only_at_launch_are_compiled_once():
    assert LAUNCH_FIELDS == ("raster", "swizzle", "part_order")
    assert resolve(GemmConfig(tile_m=128, raster="n", swizzle=4)).compiled() == resolve(GemmConfig(tile_m=128))


def test_one_binary_serves_any_number_of_parts_through_a_workspace_in_either_order():
    """Nothing that is compiled depends on it, the epilogue's chunks among them."""
    for tile in ({"tile_m": 64, "tile_n": 24}, {"tile_m": 128, "tile_n": 128}, {"tile_m": 192, "tile_n": 112}):
        apart = [GemmConfig(**tile, stagger=0, split_k=parts, reduction="workspace") for parts in range(2, 65)]
        kernels = [resolve(replace(one, part_order=order)) for one in apart for order in ("tile", "part")]
        assert len({kernel.compiled() for kernel in kernels}) == 1
        assert {kernel.split_k for kernel in kernels} == set(range(2, 65)), "a config still names its parts"
    halves, quarters = (resolve(GemmConfig(tile_m=64, split_k=parts, epi_n=16)) for parts in (2, 4))
    assert halves.compiled() != quarters.compiled(), "in a cluster the parts are compiled in"


def test_one_class_builds_every_kernel():
    assert {GemmConfig(scheduler="dynamic").builder, GemmConfig(split_k=2).builder} == {GemmConfig().builder}


def test_a_table_may_hold_a_fixed_value_of_the_study_and_no_other():
    """Tuned tables and recorded binaries name it in every entry."""
    assert GemmConfig.of({"tile_m": 128, "loads": "tma", "stores": "tma"}) == GemmConfig(tile_m=128)
    with pytest.raises(ValueError) as caught:
        GemmConfig.of({"loads": "cp_async"})
    assert str(caught.value) == "loads must be 'tma' outside the design study but got 'cp_async'; leave it out"


@pytest.mark.parametrize(
    ("epi_n", "swap_ab", "swizzled"), [(64, False, True), (24, False, False), (64, True, True), (24, True, True)]
)
def test_a_chunk_is_swizzled_unless_its_rows_are_an_odd_number_of_pieces(epi_n, swap_ab, swizzled):
    assert resolve(GemmConfig(tile_m=128, tile_n=192, epi_n=epi_n, swap_ab=swap_ab)).chunk_swizzled == swizzled


@pytest.mark.parametrize(("consumers", "most"), [(1, 255), (2, 255), (3, 168)])
def test_consumers_without_a_producer_keep_the_registers_that_the_compiler_gives(consumers, most):
    kernel = resolve(LadderConfig(tile_m=192, tile_n=64, consumers=consumers, split="n", schedule="multistage"))
    assert (kernel.registers.producer, kernel.registers.consumer, kernel.registers.moved) == (0, most, False)
