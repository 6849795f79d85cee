"""The device's own ring state, run on the host: index and phase as mbarriers want them."""

from __future__ import annotations

import cutlass
import pytest
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel.pipeline import RingState
from hopper_gemm.model.ring import Indexed, Packed, walk


@cute.jit
def _steps(out: cute.Tensor, stages: cutlass.Constexpr, behind: cutlass.Constexpr):
    state = RingState.consumer(stages)
    for i in cutlass.range(cute.size(out, mode=[0])):
        out[i, 0] = state.index
        out[i, 1] = state.parity
        out[i, 2] = state.behind(behind).index
        state = state.next()


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 18])
def test_the_index_wraps_and_the_phase_flips_where_it_does(stages):
    out = torch.full((60, 3), -1, dtype=torch.int32)
    behind = min(2, stages - 1)
    tensor = from_dlpack(out)
    cute.compile(_steps, tensor, stages, behind, options="--gpu-arch sm_90a")(tensor)
    assert out.tolist() == [[i % stages, i // stages % 2, (i - behind) % stages] for i in range(60)]


@cute.jit
def _walks(out: cute.Tensor, stages: cutlass.Constexpr):
    producer, consumer = RingState.producer(stages), RingState.consumer(stages)
    for i in cutlass.range(cute.size(out, mode=[1])):
        out[0, i, 0], out[0, i, 1] = producer.index, producer.parity
        out[1, i, 0], out[1, i, 1] = consumer.index, consumer.parity
        producer, consumer = producer.next(), consumer.next()


@pytest.mark.parametrize("stages", range(1, 19))
def test_both_roles_walk_as_the_model_of_the_ring_does(stages):
    out = torch.full((2, 4 * stages + 1, 2), -1, dtype=torch.int32)
    tensor = from_dlpack(out)
    cute.compile(_walks, tensor, stages, options="--gpu-arch sm_90a")(tensor)
    found = [[tuple(place) for place in role] for role in out.tolist()]
    for form in (Indexed, Packed):
        assert found == [walk(form.start(stages, ahead), 4 * stages + 1) for ahead in (True, False)]


def test_the_producer_starts_one_phase_ahead():
    """Waiting on the parity before the first passes at once: every slot is empty."""

    @cute.jit
    def starts(out: cute.Tensor):
        out[0] = RingState.producer(4).parity
        out[1] = RingState.consumer(4).parity

    out = torch.full((2,), -1, dtype=torch.int32)
    tensor = from_dlpack(out)
    cute.compile(starts, tensor, options="--gpu-arch sm_90a")(tensor)
    assert out.tolist() == [1, 0]


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_readers_counts_every_cta_of_the_own_row_and_column_once(cluster):
    from hopper_gemm.kernel.pipeline import Ring

    ring = Ring(None, 1, 0, 8, cluster)
    for rank_m in range(cluster[0]):
        for rank_n in range(cluster[1]):
            peers = {(m, rank_n) for m in range(cluster[0])} | {(rank_m, n) for n in range(cluster[1])}
            assert ring.readers == len(peers)
