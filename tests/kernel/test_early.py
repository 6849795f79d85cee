"""The faulty consumers of the GPU tests are the kernel's own but for one change."""

from __future__ import annotations

import pytest

from hopper_gemm.compiler.compile import compile_kernel
from hopper_gemm.compiler.cubin import read_cubin
from hopper_gemm.lab.counters.trace import Moment
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import reasons
from tests.gpu.early import FAULTS
from tests.gpu.test_release import CONFIGS, FAULTY, PROBLEM, early, kernel_of, shows


@pytest.mark.compile
def test_each_fault_moves_or_changes_one_wait():
    """As many instructions as the right kernel, in other machine code than that and than the other fault's."""
    config = next(config for config in CONFIGS if all(shows(fault, config) for fault in FAULTS))
    cubins = [compile_kernel(kernel_of(fault, config), "bf16").cubin for fault in ("", *FAULTS)]
    reports = [read_cubin(cubin) for cubin in cubins]
    assert len({one.code for one in reports}) == len(reports)
    assert len({one.instructions for one in reports}) == 1


def test_each_fault_is_planted_in_groups_that_are_queued_long_enough_to_show():
    """At stagger 0 every config, at stagger 1 one whose stage is four wgmma."""
    assert {fault for fault, _ in FAULTY} == set(FAULTS)
    assert all(shows(fault, config) for fault in FAULTS for config in CONFIGS if config.stagger == 0)
    late = [
        (fault, config.k_depth) for fault in FAULTS for config in CONFIGS if config.stagger and shows(fault, config)
    ]
    assert late == [("one more in flight", 4)]


def test_the_kernels_of_the_release_test_are_legal():
    assert [found for config in CONFIGS if (found := reasons(config, PROBLEM))] == []
    assert [found for one in FAULTY if (found := reasons(kernel_of(*one), PROBLEM))] == []


@pytest.mark.parametrize(("released", "found"), [(1024, []), (1000, ["stage 4 1000 clocks after the first was had"])])
def test_a_slot_is_early_if_the_tensor_cores_need_longer_for_it(released, found):
    """256x128 at a depth of 4: 1024 clocks a stage. Stage 4 takes the slot of stage 0, stage 5 that of stage 1."""
    config = resolve(CONFIGS[0])
    assert (config.stages, config.tile_k) == (4, 64)
    last = PROBLEM.k // config.tile_k
    moments = [Moment("consumer 0", 0, "had", 500), Moment("consumer 1", 0, "had", 520)]
    moments += [Moment("producer", k, "had", 500 + 1024 * (k - 3)) for k in range(5, last)]
    moments += [Moment("producer", 4, "had", 500 + released)]
    assert [one.split(",")[0] for one in early(moments, config)] == found
