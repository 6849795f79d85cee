"""An fp32 chunk lies in shared memory as its TMA store reads it: the device's own copy, run on the host."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import cutlass
import pytest
import torch
from cutlass import BFloat16, Float32, Int32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.runtime import from_dlpack

from hopper_gemm.kernel import epilogue
from hopper_gemm.kernel.epilogue import Chunks, ConsumerEpilogue, Region, TmaTarget
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.hopper import WARPGROUP_THREADS, WGMMA_K, WGMMA_M
from hopper_gemm.model.kernel import resolve

ALIGN = 1024
BUFFERS = 2
"""Of one consumer; the second is written, so that a chunk's own size counts too."""


@dataclass(frozen=True)
class Stage:
    """One thread's registers to its places in the last buffer, by the code of the kernel."""

    chunks: Chunks

    def mma(self) -> cute.TiledMma:
        """A wgmma as wide as a chunk."""
        shape = WGMMA_M, self.chunks.n, WGMMA_K
        source, major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
        return cute.make_tiled_mma(warpgroup.MmaF16BF16Op(BFloat16, Float32, shape, source, major, major))

    @cute.jit
    def __call__(self, memory: cute.Tensor, registers: cute.Tensor, thread: Int32) -> None:
        layout = self.chunks.layout(BUFFERS)
        pointer = cute.recast_ptr(memory.iterator, swizzle_=layout.inner, dtype=Float32)
        own = cute.make_tensor(pointer, layout.outer)
        copy = self.chunks.copy(self.mma())
        places = copy.get_slice(thread).partition_D(own)
        values = cute.make_rmem_tensor(cute.shape(places)[:3], Float32)
        for i in cutlass.range_constexpr(cute.size(values)):
            values[i] = registers[i]
        cute.copy(copy, values, places[None, None, None, BUFFERS - 1])


def accumulator(thread: int, register: int) -> tuple[int, int]:
    """Row and column of an accumulator, as PTX draws wgmma's D for m64 (section "Register fragments")."""
    warp, lane = divmod(thread, 32)
    group, within = divmod(register, 4)
    return 16 * warp + lane // 4 + 8 * (within // 2), 8 * group + 2 * (lane % 4) + within % 2


def tma_address(row: int, column: int, columns: int, transposed: bool) -> int:
    """Byte of an element in a chunk's boxes, as TMA reads them: rows of the box one after the other, 16-byte pieces of
    each exchanged by its place among eight rows of 128 bytes (four pairs of 64, two fours of 32)."""
    if transposed:
        box, inner = divmod(row, 32)
        pitch, linear = 128, box * 32 * columns * 4 + column * 128 + inner * 4
    else:
        pitch = 4 * columns
        linear = row * pitch + column * 4
    return linear ^ (linear >> 7 & pitch // 16 - 1) << 4


@pytest.mark.compile
@pytest.mark.parametrize("columns", [8, 16, 32])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_register_lands_where_the_tma_store_looks_for_its_element(columns, transposed):
    config = GemmConfig(epi_n=2 * columns, swap_ab=transposed)
    chunks = Chunks(resolve(config), Float32)
    assert chunks.n == columns
    size, each = WGMMA_M * columns, WGMMA_M * columns // WARPGROUP_THREADS
    memory, registers = aligned(BUFFERS * size), torch.zeros(each)
    given = [from_dlpack(one, assumed_align=align) for one, align in ((memory, ALIGN), (registers, 4))]
    staged: Any = cute.compile(Stage(chunks), *given, Int32(0), options="--gpu-arch sm_90a")
    for thread in range(WARPGROUP_THREADS):
        names = [row * columns + column for row, column in (accumulator(thread, i) for i in range(each))]
        registers.copy_(torch.tensor(names))
        staged(*given, Int32(thread))
    expected = torch.full((BUFFERS, size), -1.0)
    for row in range(WGMMA_M):
        for column in range(columns):
            expected[-1, tma_address(row, column, columns, transposed) // 4] = row * columns + column
    assert torch.equal(memory.view(BUFFERS, size), expected)


def aligned(size: int) -> torch.Tensor:
    """Floats of -1 that start at a multiple of what a swizzle spans."""
    whole = torch.full((size + ALIGN // 4,), -1.0)
    first = -whole.data_ptr() % ALIGN // 4
    return whole[first : first + size]


@cute.jit
def _chunk_of(out: cute.Tensor, thread: Int32, row: Int32, column: Int32):
    owner = SimpleNamespace(gated=False, thread=thread, chunks=SimpleNamespace(n=32))
    chunk = ConsumerEpilogue._chunk(owner, out, Region(2, 3, row, column), 1, 2)
    out[0], out[1] = chunk.row, chunk.column


@pytest.mark.compile
def test_a_thread_knows_the_first_row_and_column_of_its_chunk(monkeypatch):
    """Of the second block of rows and the third chunk across; ``opaque`` is an instruction of the GPU."""
    monkeypatch.setattr(epilogue, "opaque", lambda value: value)
    out = torch.zeros(2, dtype=torch.int32)
    compiled = cute.compile(_chunk_of, from_dlpack(out), *[Int32(0)] * 3, options="--gpu-arch sm_90a")
    for thread in range(WARPGROUP_THREADS):
        compiled(from_dlpack(out), Int32(thread), Int32(256), Int32(96))
        row, _ = accumulator(thread, 0)
        assert out.tolist() == [256 + WGMMA_M + row, 96 + 2 * 32]


@cute.jit
def _mark(out: cute.Tensor, transposed: cutlass.Constexpr, row: Int32, column: Int32, shift: Int32):
    layout = cute.make_layout((((64, 64), 1), (1, 1)), stride=(((1, 64), 0), (0, 0)))
    owner = SimpleNamespace(transposed=transposed, output=cute.make_tensor(out.iterator, layout))
    TmaTarget.output_from(owner, Region(1, 1, row, column, None, shift))[0] = Int32(1)


@pytest.mark.compile
@pytest.mark.parametrize("transposed", [False, True])
def test_an_output_is_stored_from_its_row_and_column_and_a_ragged_one_behind_the_shift(transposed):
    out = torch.zeros(64, 64, dtype=torch.int32)
    given = [Int32(number) for number in (5, 3, 2)]
    cute.compile(_mark, from_dlpack(out), transposed, *given, options="--gpu-arch sm_90a")(from_dlpack(out), *given)
    assert out.nonzero().tolist() == [[3 + 2, 5] if transposed else [5 + 2, 3]]
