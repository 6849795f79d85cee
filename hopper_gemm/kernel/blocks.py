"""Scales of blocks of FP8 operands: of each 1x128 of A and of each 128x128 of B.

They change with every 128 of k, so that a partial sum of 128 of k is scaled as it is promoted. Each lane of a warp
reads other scales of A by plain loads, some stages early, and hands them to the others. An accumulator is
``fma(a * b, partial, accumulator)`` whether operands are swapped or not: the same bits.

The main loop is unrolled by one more stage than scales are ahead: then each stage has registers of its own, and none is
copied but in the stages that are left over. A copy waits for the load that was started last, and with it the next
product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Self

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import ROWS_OF_SCALE, Kernel
from hopper_gemm.model.problem import BLOCK

BYTES = 4
"""Bytes of a scale."""


def read(address: Int64) -> Float32:
    """One fp32 of global memory. Not a load of constants, ``.nc``: the assembler moves such a load behind the waits for
    barriers that follow it, next to where its result is used."""
    return inline_ptx("ld.global.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[address])


@dataclass(frozen=True)
class BlockScales:
    """The scales that one thread reads for a share whose rows are rows of A and whose columns are rows of B."""

    a: cute.Tensor  # (blocks of k, m), m contiguous
    b: cute.Tensor  # (blocks of n, blocks of k) or with groups behind, k contiguous
    # share_m, share_n: rows and columns of the share
    share_m: int
    share_n: int
    # down, across: rows and columns of the tile before the share
    down: Int32 | int
    across: Int32 | int
    thread: Int32  # within the warpgroup
    now: cute.Tensor  # registers of the scales of this block of k: A's, then B's
    ahead: cute.Tensor  # the same of each of the next blocks of k, as many as scales are read ahead
    # where the next ones are read: A's of row 0, then each of B's. Addresses that were computed anew in each stage cost
    # 40 instructions.
    cursors: cute.Tensor
    k_first: Int32 | int = 0  # the first block of k
    # rows, columns: row of A of each of A's scales, block of n of each of B's
    rows: tuple[Int32, ...] = ()
    columns: tuple[Int32, ...] = ()
    left: Int32 | int = 0  # columns of the share before the second block of n
    group: Int32 | None = None  # of the tile; None without groups

    @classmethod
    def of(cls, kernel: Kernel, a: cute.Tensor, b: cute.Tensor, before: Sequence[Int32 | int], thread: Int32) -> Self:
        """The scales of a consumer's share, which begins ``before`` rows and columns behind its tile."""
        of_a, of_b = kernel.block_scales
        now, ahead = (cute.make_rmem_tensor((of_a + of_b) * places, Float32) for places in (1, kernel.scales_ahead))
        cursors = cute.make_rmem_tensor(1 + of_b, Int64)
        return cls(a, b, kernel.share_m, kernel.share_n, *before, thread, now, ahead, cursors)

    @property
    def places(self) -> int:
        """Blocks of k whose scales are ahead."""
        return cute.size(self.ahead) // cute.size(self.now)

    @property
    def lane(self) -> Int32:
        """Of the thread, within its warp."""
        return self.thread % hopper.WARP_THREADS

    def of_tile(self, row: Int32, column: Int32, k_first: Int32 | int) -> Self:
        """The scales for the tile that begins with a row and a column, and with a block of k."""
        own = self.thread // hopper.WARP_THREADS * 16 + self.lane % 16 + self.lane // 16 * hopper.WGMMA_M
        rows = self._rows(row + self.down + own + at for at in range(0, self.share_m, ROWS_OF_SCALE))
        start = column + self.across
        block, count = start // BLOCK, cute.size(self.cursors) - 1
        columns = self._blocks(block + at for at in range(count))
        return replace(self, k_first=k_first, rows=rows, columns=columns, left=(block + 1) * BLOCK - start)

    def _rows(self, rows) -> tuple[Int32, ...]:
        """Rows of A; beyond the last the last."""
        return tuple(cutlass.min(row, cute.size(self.a, mode=[1]) - 1) for row in rows)

    def _blocks(self, blocks) -> tuple[Int32, ...]:
        """Blocks of n; beyond the last the last."""
        return tuple(cutlass.min(block, cute.size(self.b, mode=[0]) - 1) for block in blocks)

    def begin(self, k_blocks: Int32) -> None:
        """Begin to read the scales of the first blocks of k of a tile that has so many."""
        first = Int64(self.k_first)
        self.cursors[0] = self.a.iterator.toint() + first * Int64(self.a.stride[0]) * BYTES
        for i, block in enumerate(self.columns):
            at = first + Int64(block) * Int64(self.b.stride[0])
            if self.group is not None:
                at = at + Int64(self.group) * Int64(self.b.stride[2])
            self.cursors[1 + i] = self.b.iterator.toint() + at * BYTES
        for block in range(self.places):
            self._read(block, block + 1 < k_blocks)

    def _read(self, place: int, more: Boolean) -> None:
        """Begin to read scales into a place of those ahead; if there are ``more``, move the cursors on by a block."""
        addresses = [self.cursors[0] + Int64(row) * BYTES for row in self.rows]
        addresses += [self.cursors[1 + i] for i in range(len(self.columns))]
        for i, address in enumerate(addresses):
            self.ahead[place * len(addresses) + i] = read(address)
        for i in range(cute.size(self.cursors)):
            step = Int64(self.b.stride[1] if i else self.a.stride[0]) * BYTES
            self.cursors[i] = self.cursors[i] + cutlass.select_(more, step, Int64(0))

    def turn(self, k_block: Int32, k_blocks: Int32) -> None:
        """Take the scales of a block of k of the tile, and begin to read others ahead; beyond the last the last."""
        scales = cute.size(self.now)
        for i in range(scales):
            self.now[i] = self.ahead[i]
        for i in range((self.places - 1) * scales):
            self.ahead[i] = self.ahead[i + scales]
        self._read(self.places - 1, k_block + self.places + 1 < k_blocks)

    def factors(self, block: int) -> cute.Tensor:
        """The factors of a partial sum: of ``block``, 64 rows of the share."""
        factors, step = cute.make_rmem_tensor(self.share_n // 2, Float32), gcd(self.share_n, BLOCK)
        word, first = self.now[block // 2], block % 2 * 16 + self.lane // 4
        rows = [cute.arch.shuffle_sync(word, first + half) for half in (0, 8)]
        sides = [[row * self.now[len(self.rows) + i] for row in rows] for i in range(len(self.columns))]
        for begin in range(0, self.share_n, step):
            pair = sides[0]
            if len(sides) == 2 and begin:
                pair = [cutlass.select_(begin < self.left, *both) for both in zip(*sides, strict=True)]
            for at in range(begin // 2, (begin + step) // 2):
                factors[at] = pair[at // 2 % 2]
        return factors


@dataclass(frozen=True)
class SwappedScales(BlockScales):
    """The scales with swapped operands: rows of the share are rows of B, its columns rows of A. A warp reads A's
    scales of 32 columns by one load, and its lanes hand them to each other."""

    def of_tile(self, row: Int32, column: Int32, k_first: Int32 | int) -> Self:
        first, start = column + self.across + self.lane, row + self.down
        rows = self._rows(first + at for at in range(0, self.share_n, hopper.WARP_THREADS))
        columns = self._blocks((start + at) // BLOCK for at in range(0, self.share_m, hopper.WGMMA_M))
        return replace(self, k_first=k_first, rows=rows, columns=columns)

    def factors(self, block: int) -> cute.Tensor:
        factors, own = cute.make_rmem_tensor(self.share_n // 2, Float32), self.lane % 4 * 2
        for at in range(0, self.share_n, hopper.WGMMA_N_STEP):
            word, lane = divmod(at, hopper.WARP_THREADS)
            for e in range(2):
                factor = cute.arch.shuffle_sync(self.now[word], lane + own + e) * self.now[len(self.rows) + block]
                factors[at // 2 + e] = factors[at // 2 + 2 + e] = factor
        return factors
