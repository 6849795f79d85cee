"""Direct stores put every accumulator into its place in C and nothing beside C: the device's own code, on the host."""

from __future__ import annotations

import cutlass
import pytest
import torch
from cutlass import BFloat16, Boolean, Float32, Int16, Int32, Int64, cute
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel.epilogue import Region
from hopper_gemm.lab.ladder.ring import LadderRing
from hopper_gemm.lab.ladder.threads import direct_store
from hopper_gemm.lab.ladder.threads.direct_store import DirectEpilogue
from hopper_gemm.model.hopper import WARPGROUP_THREADS, WGMMA_M

WIDTH, BEYOND = 16, 4
TYPES = {BFloat16: torch.bfloat16, Float32: torch.float32}


@cute.jit
def _put(address: Int64, word: Int32, half: cutlass.Constexpr, predicate: Boolean):
    """A word, or half a word, at an address of the host."""
    kind = Int16 if half else Int32
    if predicate:
        place = cute.make_ptr(kind, address, cute.AddressSpace.generic, assumed_align=2 if half else 4)
        cute.make_tensor(place, 1)[0] = kind(word)


def host_ptx(text: str, read_only_args, predicate) -> None:
    """The stores of inline PTX, on the host."""
    address, *words = read_only_args
    for number, word in enumerate(words):
        _put(address + 4 * number, word, "b16" in text, predicate)


@cute.jit
def _store(out: cute.Tensor, values: cute.Tensor, thread: Int32, dtype: cutlass.Constexpr, apart: cutlass.Constexpr):
    accumulators = cute.make_rmem_tensor(cute.size(values), Float32)
    for i in cutlass.range_constexpr(cute.size(values)):
        accumulators[i] = values[i]
    DirectEpilogue.of(thread, out, WIDTH, dtype, apart).store_tile(accumulators, Region(1, 1, Int32(0), Int32(0)))


@pytest.mark.compile
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("columns", "apart"), [(WIDTH, False), (WIDTH - 2, False), (WIDTH - 3, True)])
def test_every_accumulator_is_stored_in_its_place_and_nothing_beside_c(monkeypatch, dtype, columns, apart):
    monkeypatch.setattr(direct_store, "inline_ptx", host_ptx)
    rows = WGMMA_M - 3
    memory = torch.full((WGMMA_M, WIDTH + BEYOND), -1.0, dtype=TYPES[dtype])
    out, values = memory[:rows, :columns], torch.zeros(WGMMA_M * WIDTH // WARPGROUP_THREADS)
    given = from_dlpack(out).mark_layout_dynamic(leading_dim=1), from_dlpack(values)
    compiled = cute.compile(_store, *given, Int32(0), dtype, apart, options="--gpu-arch sm_90a")
    for thread in range(WARPGROUP_THREADS):
        warp, lane = divmod(thread, 32)
        for register in range(len(values)):
            group, within = divmod(register, 4)
            row, column = 16 * warp + lane // 4 + 8 * (within // 2), 8 * group + 2 * (lane % 4) + within % 2
            values[register] = WIDTH * (row % 8) + column  # of as many bits as bf16 has
        compiled(*given, Int32(thread))
    expected = torch.full_like(memory, -1.0)
    places = torch.arange(rows)[:, None] % 8 * WIDTH + torch.arange(columns)
    expected[:rows, :columns] = places.to(expected.dtype)
    assert torch.equal(memory, expected)


@cute.jit
def _arriving(out: cute.Tensor, releases: cutlass.Constexpr):
    ring = LadderRing(None, stages=1, load_bytes=0, loading=1, reading=1, cluster=(1, 1), releases=releases)
    for warp in cutlass.range(8):
        for lane in cutlass.range(32):
            out[warp, lane] = Int32(ring.arrives(lane, warp))


@pytest.mark.compile
@pytest.mark.parametrize(("releases", "warps"), [("warp", range(8)), ("group", (0, 4))])
def test_one_lane_of_each_warp_or_of_each_consumer_s_first_warp_releases(releases, warps):
    out = torch.zeros(8, 32, dtype=torch.int32)
    cute.compile(_arriving, from_dlpack(out), releases, options="--gpu-arch sm_90a")(from_dlpack(out))
    assert out.nonzero().tolist() == [[warp, 0] for warp in warps]
