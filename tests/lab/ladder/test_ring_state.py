"""The device's own ring states, run on the host, walk as the model does."""

from __future__ import annotations

import cutlass
import pytest
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.lab.ladder.ladder_gemm import STATES as OWN
from hopper_gemm.lab.ladder.library_ring import LibraryState
from tests.protocols.ring_protocol import place

COUNT = 60
STATES = {**OWN, "library": LibraryState}


@cute.jit
def _walks(out: cute.Tensor, form: cutlass.Constexpr, stages: cutlass.Constexpr, near: cutlass.Constexpr, far: Int32):
    """Both roles step by step: index and parity, the slot a little behind, and the places a little and far ahead."""
    for role in cutlass.range_constexpr(2):
        state = STATES[form].first(stages, role)
        for i in cutlass.range(cute.size(out, mode=[1])):
            ahead, advanced = state.ahead(near), state.advance(far)
            out[role, i, 0], out[role, i, 1] = state.index, state.parity
            out[role, i, 2] = state.behind(near).index
            out[role, i, 3], out[role, i, 4] = ahead.index, ahead.parity
            out[role, i, 5], out[role, i, 6] = advanced.index, advanced.parity
            state = state.next()


@pytest.mark.parametrize("form", STATES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 18])
def test_both_roles_walk_as_the_model_of_the_ring_does(form, stages):
    """The consumer starts in phase 0, the producer one phase ahead: its first waits pass at once."""
    near, far = min(2, stages - 1), 2 * stages + 3
    out = torch.full((2, COUNT, 7), -1, dtype=torch.int32)
    tensor = from_dlpack(out)
    cute.compile(_walks, tensor, form, stages, near, Int32(far), options="--gpu-arch sm_90a")(tensor, far)
    for ahead, found in zip((False, True), out.tolist(), strict=True):
        places = [place(stages, fill, ahead) for fill in range(COUNT + far)]
        assert [tuple(row[0:2]) for row in found] == places[:COUNT]
        assert [row[2] for row in found] == [(i - near) % stages for i in range(COUNT)]
        assert [tuple(row[3:5]) for row in found] == places[near : near + COUNT]
        assert [tuple(row[5:7]) for row in found] == places[far : far + COUNT]
