"""The words that a traced kernel writes become moments in order, in clocks since the CTA began."""

from __future__ import annotations

import numpy as np
import pytest

from hopper_gemm.lab.counters.trace import (
    ROLE_MOMENTS,
    ROLE_WORDS,
    ROLES,
    STAGE_MOMENTS,
    STAGES,
    Moment,
    moments_of,
)
from hopper_gemm.lab.ladder import meter
from hopper_gemm.lab.ladder.meter import ROLES_TRACED, TRACE_WORDS, TRACED_STAGES, Stamp


def words(**written: int) -> np.ndarray:
    """Words of all roles; keys are like ``r0_fed`` or ``r1_3_had``."""
    found = np.zeros((ROLES_TRACED, TRACE_WORDS), dtype=np.uint32)
    for key, clock in written.items():
        role, *stage, moment = key.split("_", 2) if key.split("_")[1].isdigit() else key.split("_", 1)
        column = (
            ROLE_WORDS + int(stage[0]) * len(STAGE_MOMENTS) + STAGE_MOMENTS.index(moment)
            if stage
            else ROLE_MOMENTS.index(moment)
        )
        found[int(role[1:]), column] = clock % 2**32
    return found.view(np.int32)


def test_roles_and_words_are_those_that_the_kernel_writes():
    assert len(ROLES) == ROLES_TRACED
    assert (Stamp._fields, meter.STAGE_MOMENTS) == (ROLE_MOMENTS, STAGE_MOMENTS)
    assert (STAGES, ROLE_WORDS + len(STAGE_MOMENTS) * STAGES) == (TRACED_STAGES, TRACE_WORDS)


@pytest.mark.parametrize("start", [1, 5_000, 2**31 - 3, 2**32 - 30])
def test_clocks_count_from_the_first_entry_also_where_the_clock_wraps(start):
    told = words(r0_entry=start + 7, r1_entry=start, r1_fed=start + 900, r0_2_issued=start + 40, r1_2_had=start + 500)
    assert moments_of(told) == [
        Moment("producer", -1, "entry", 7),
        Moment("producer", 2, "issued", 40),
        Moment("consumer 0", -1, "entry", 0),
        Moment("consumer 0", -1, "fed", 900),
        Moment("consumer 0", 2, "had", 500),
    ]


def test_a_kernel_that_wrote_nothing_has_no_moments():
    assert moments_of(words()) == []
