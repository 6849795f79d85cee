"""On the GPU: a persistent launch fills the device and asks for no more clusters than run at once."""

from __future__ import annotations

import pytest

from hopper_gemm.compiler.child import Child, Handler

pytestmark = pytest.mark.gpu


def counting() -> Handler:
    """Answers a cluster size with how many of them fit, with the device's SMs, and with the rate of its memory."""
    import torch

    from hopper_gemm.compiler.residency import memory_rate, resident_clusters

    def handle(size: int) -> tuple[int, int, float]:
        return resident_clusters(size), torch.cuda.get_device_properties(0).multi_processor_count, memory_rate()

    return handle


@pytest.fixture(scope="module")
def child():
    child = Child(counting)
    yield child
    child.close()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_as_many_clusters_fit_as_the_groups_of_sms_hold(child, size):
    """A group (GPC) of at most 18 SMs strands fewer SMs than a cluster has."""
    reply = child.ask(size, 60)
    assert reply.kind == "answer", reply.error
    clusters, sms, rate = reply.value
    assert clusters * size <= sms
    assert clusters * size > sms - (sms // 16 + 1) * size
    assert clusters == sms // size or size > 2
    assert 1.5e12 < rate < 5e12
