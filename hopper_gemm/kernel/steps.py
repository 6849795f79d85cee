"""Steps of an epilogue: what is done to the fp32 accumulators of a chunk before they are rounded.

    Scales          times scales of FP8 operands
    Scale           times a number of the launch
    Bias            plus a vector, one element a column of C
    ActivationStep  a function of each element
    Gate            times the value of another column of the product, of up
    Residual        plus a matrix of C's shape

A step is frozen. :meth:`Step.of_tile` and :meth:`Step.of_chunk` return it with what it reads for a tile or a chunk, and
:meth:`Step.value` applies it to a piece of the chunk: a chunk is finished piece by piece, so that few registers beside
the accumulators are in use at a time.

Facts of wgmma's accumulators on which the steps rely: of 64 rows by 8 columns, thread t of a warpgroup, lane
l = t % 32, holds four, (e, half) for e, half in 0, 1: row t // 32 * 16 + l // 4 + 8 * half, column l % 4 * 2 + e;
register e + 2 * half. The next 8 columns follow in the next four registers. With ``swap_ab`` a tile's rows are columns
of C and its columns rows of C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.arch.nvvm_wrappers import inline_ptx
from cutlass.cutlass_dsl import T

from hopper_gemm.model import hopper
from hopper_gemm.model.finish import ACTIVATIONS

COLUMNS = 2 * hopper.WARP_THREADS
"""Columns of a bias that a warp holds in one register, two a lane."""

PIECE = 4
"""Groups of 8 columns that are finished at a time."""

UPPER = -(1 << 16)
"""Mask of the upper half of a word: as fp32, the bf16 in it."""

NAMES = {cutlass.BFloat16: "bf16", cutlass.Float16: "fp16", Float32: "fp32"}
"""Names of the output's types, as activations know them."""


def opaque(value: Int32) -> Int32:
    """The value, of which the compiler knows nothing more: what depends on it is computed where it is used. Else the
    addresses of all chunks are kept from one block of rows to the next, and spill."""
    moved = llvm.inline_asm(T.i32(), [value.ir_value()], "mov.b32 $0, $1;", "=r,r", has_side_effects=True)
    return Int32(moved)


class Functions:
    """The functions of which activations are made, on vectors of fp32 registers."""

    @staticmethod
    def exp2(x):
        """2 to the power of x, relative error about 2e-7."""
        return cute.math.exp2(x, fastmath=True)

    @staticmethod
    def reciprocal(x):
        """1 / x, relative error about 1e-7."""
        return cute.math.rcp(x, approx=True, ftz=True)

    @staticmethod
    def absolute(x):
        """The absolute value."""
        return cute.math.absf(x)

    @staticmethod
    def positive(x):
        """0 for a negative number, else the number; NaN stays NaN."""
        return cute.math.max(x, cute.full_like(x, 0.0), propagate_nan=True)


@dataclass(frozen=True)
class Addend:
    """A vector or matrix in global memory, read by each thread where its accumulators lie."""

    address: Int64  # of the first element
    pitch: Int64 | int  # bytes from row to row of C; 0 for a vector
    # m, n: of C
    m: Int32
    n: Int32
    dtype: type[cutlass.Numeric]  # of the elements
    apart: Int64 | int = 0  # bytes from group to group

    @staticmethod
    def of(tensor: cute.Tensor, m: Int32, n: Int32) -> Addend:
        """The addend of a tensor (n,) or (m, n), n contiguous; of groups (groups * n,) or (m, n, groups)."""
        dtype, rank = tensor.element_type, cute.rank(tensor)
        size = dtype.width // 8
        pitch = Int64(tensor.stride[0]) * size if rank > 1 else 0
        apart = Int64(tensor.stride[2] if rank > 2 else n) * size
        return Addend(tensor.iterator.toint(), pitch, m, n, dtype, apart)

    def of_group(self, group: Int32 | None) -> Addend:
        """The addend of a group; itself where there are none."""
        return self if group is None else replace(self, address=self.address + Int64(group) * self.apart)

    def at(self, row: Int32, column: Int32) -> Int64:
        """Address of an element."""
        return self.address + Int64(row) * self.pitch + Int64(column) * (self.dtype.width // 8)

    def inside(self, row: Int32, column: Int32) -> Boolean:
        """Return True if C has the element."""
        return Boolean((row < self.m) & (column < self.n))

    def read(self, row: Int32, column: Int32, pair: bool) -> list[Int32]:
        """One element, or ``pair``: two, the first in an even column, as 32-bit words; 0 outside C.

        A load under a predicate alone would leave the register as it was, which is then kept for it across all tiles.
        """
        bits = self.dtype.width * (2 if pair else 1)
        kind, words = {16: ("u16", 1), 32: ("b32", 1), 64: ("v2.b32", 2)}[bits]
        names = [f"{{$w{i}}}" for i in range(words)]
        into = names[0] if words == 1 else f"{{{', '.join(names)}}}"
        zeros = " ".join(f"mov.b32 {name}, 0;" for name in names)
        read = inline_ptx(
            "{ .reg .pred inside; setp.ne.b32 inside, {$r1}, 0; "
            f"{zeros} @inside ld.global.{kind} {into}, [{{$r0}}]; }}",
            write_only_types=[Int32] * words,
            read_only_args=[self.at(row, column), Int32(self.inside(row, column))],
        )
        return [read] if words == 1 else list(read)

    def floats(self, words: Sequence[Int32]) -> cute.Tensor:
        """The elements of words, two of 16 bits each, as fp32 registers."""
        elements = cute.make_rmem_tensor(len(words) * 32 // self.dtype.width, self.dtype)
        packed = cute.recast_tensor(elements, Int32)  # not the other way: a tensor of one word would stay one element
        for i, word in enumerate(words):
            packed[i] = word
        values = cute.make_rmem_tensor(cute.size(elements), Float32)
        if self.dtype is cutlass.BFloat16:  # an instruction each; the compiler takes two for the upper of a pair
            halves = cute.recast_tensor(values, Int32)
            for i, word in enumerate(words):
                halves[2 * i], halves[2 * i + 1] = word << 16, word & UPPER
        else:
            values.store(elements.load().to(Float32))
        return values


@dataclass(frozen=True)
class Chunk:
    """A chunk of accumulators as one thread holds it."""

    values: cute.Tensor  # its registers, four for each 8 columns
    # row, column: the row of this thread's first value, and the column with which the chunk begins, counted as the
    # tile's rows and columns are
    row: Int32 | None = None
    column: Int32 | None = None
    lane: Int32 | None = None  # within the warp
    before: Int32 | int = 0  # columns of the consumer's share before the chunk
    columns: int = 0  # of the chunk

    def piece(self, first: int, count: int, offset: int = 0) -> cute.Tensor:
        """The registers of ``count`` groups of 8 columns, ``offset`` registers further on."""
        shape = self.values.shape
        if not (isinstance(shape, tuple) and isinstance(shape[0], tuple)):
            return cute.make_tensor(self.values.iterator + offset + 4 * first, cute.make_layout(4 * count))
        own = cute.make_rmem_tensor(4 * count, Float32)
        moved = cute.make_tensor(self.values.iterator + offset, self.values.layout)
        for at in range(4 * count):
            own[at] = moved[4 * first + at]
        return own


class Step:
    """A step that reads nothing for a tile or a chunk."""

    def of_tile(self, column: Int32, group: Int32 | None) -> Self:
        """The step for the tile of C, or of a group, that begins with a column, what it needs of global memory being
        read meanwhile."""
        return self

    def of_chunk(self, chunk: Chunk) -> Self:
        """The step for a chunk."""
        return self

    def value(self, values, chunk: Chunk, first: int, count: int):
        """The values of ``count`` groups of 8 columns of the chunk, from group ``first`` on, after the step."""
        return values


@dataclass(frozen=True)
class Scales(Step):
    """Multiply by the scales of FP8 operands."""

    # rows, columns: the scales, one for each row and column of C as the tile sees it, or one of all
    rows: Addend
    columns: Addend
    whole: bool  # True if there is one of each operand
    # True if rows of the tile are columns of C, so that a pair of the tile's columns may begin anywhere
    transposed: bool
    factors: tuple[Float32, ...] = ()  # of the chunk at hand: of this thread's two rows, or the product of both scales

    def of_tile(self, column: Int32, group: Int32 | None) -> Scales:
        """The step with the scales of B of a group."""
        side = "rows" if self.transposed else "columns"
        return replace(self, **{side: getattr(self, side).of_group(group)})

    def of_chunk(self, chunk: Chunk) -> Scales:
        """The step with the scales of a chunk's rows."""
        none = Int32(0)
        if self.whole:
            pair = self.rows.floats([side.read(none, none, False)[0] for side in (self.rows, self.columns)])
            return replace(self, factors=(pair[0] * pair[1],))
        pair = self.rows.floats([self.rows.read(none, chunk.row + 8 * half, False)[0] for half in range(2)])
        return replace(self, factors=(pair[0], pair[1]))

    def value(self, values, chunk: Chunk, first: int, count: int):
        if self.whole:
            return values * self.factors[0]
        begin, words = chunk.column + hopper.WGMMA_N_STEP * first + chunk.lane % 4 * 2, []
        for column in (begin + hopper.WGMMA_N_STEP * j for j in range(count)):
            if self.transposed:
                words += [self.columns.read(Int32(0), column + e, False)[0] for e in range(2)]
            else:
                words += self.columns.read(Int32(0), column, True)
        pairs = self.columns.floats(words)
        down, across = (cute.make_rmem_tensor(4 * count, Float32) for _ in range(2))
        for at in range(4 * count):
            down[at], across[at] = self.factors[at // 2 % 2], pairs[at // 4 * 2 + at % 2]
        return values * down.load() * across.load()


@dataclass(frozen=True)
class Scale(Step):
    """Multiply by a factor."""

    factor: Float32

    def value(self, values, chunk: Chunk, first: int, count: int):
        return values * self.factor


@dataclass(frozen=True)
class Bias(Step):
    """Add a vector, one element a column of C."""

    addend: Addend  # the vector
    transposed: bool  # True if rows of the tile are columns of C
    thread: Int32  # within the warpgroup
    side: Int32 | int  # columns of C before this consumer's share of a tile
    ahead: int  # columns of a share whose bias is read before its main loop; 0 to read it chunk by chunk
    # of the bias of the share or chunk at hand, 64 columns each, two a lane; of a transposed chunk this thread's two
    # rows
    words: tuple[Int32, ...] = ()
    skipped: int = 0  # columns of the words before the chunk

    def of_tile(self, column: Int32, group: Int32 | None) -> Bias:
        """The step with the bias of a group, and that of a share, if it is read ahead."""
        addend = self.addend.of_group(group)
        if not self.ahead:
            return replace(self, addend=addend)
        start = column + self.side + opaque(self.thread) % hopper.WARP_THREADS * 2
        reads = (addend.read(Int32(0), start + at, True)[0] for at in range(0, self.ahead, COLUMNS))
        return replace(self, words=tuple(reads))

    def of_chunk(self, chunk: Chunk) -> Bias:
        """The step with the bias of a chunk."""
        if self.ahead:
            return replace(self, skipped=chunk.before)
        if self.transposed:
            low, high = (self.addend.read(Int32(0), chunk.row + 8 * half, False)[0] for half in range(2))
            return replace(self, words=(low | high << 16,))
        starts = range(0, chunk.columns, COLUMNS)
        reads = (self.addend.read(Int32(0), chunk.column + start + 2 * chunk.lane, True)[0] for start in starts)
        return replace(self, words=tuple(reads))

    def value(self, values, chunk: Chunk, first: int, count: int):
        """The sum; the lanes of a warp hand one another what they hold of the bias."""
        spread = cute.make_rmem_tensor(4 * count, Float32)
        if self.transposed:
            pair = self.addend.floats(self.words)
            for at in range(4 * count):
                spread[at] = pair[at // 2 % 2]
            return values + spread.load()
        begin, words = self.skipped + hopper.WGMMA_N_STEP * first, []
        for at in range(begin, begin + hopper.WGMMA_N_STEP * count, hopper.WGMMA_N_STEP):
            words.append(cute.arch.shuffle_sync(self.words[at // COLUMNS], at % COLUMNS // 2 + chunk.lane % 4))
        pairs = self.addend.floats(words)
        for at in range(4 * count):
            spread[at] = pairs[at // 4 * 2 + at % 2]
        return values + spread.load()


@dataclass(frozen=True)
class ActivationStep(Step):
    """Apply a function of :data:`ACTIVATIONS`."""

    name: str  # of the function
    out: str  # name of the output's type, for which the function is exact enough

    def value(self, values, chunk: Chunk, first: int, count: int):
        return ACTIVATIONS[self.name].value(values, Functions, self.out)


@dataclass(frozen=True)
class Gate(Step):
    """Multiply the activated gate by up, which the same thread holds."""

    apart: int  # registers from a value to the one by which it is multiplied

    def value(self, values, chunk: Chunk, first: int, count: int):
        return values * chunk.piece(first, count, self.apart).load()


@dataclass(frozen=True)
class Residual(Step):
    """Add a matrix of C's shape."""

    addend: Addend  # the matrix
    transposed: bool  # True if rows of the tile are columns of C

    def of_tile(self, column: Int32, group: Int32 | None) -> Residual:
        """The step with the matrix of a group."""
        return replace(self, addend=self.addend.of_group(group))

    def value(self, values, chunk: Chunk, first: int, count: int):
        begin, words = chunk.column + hopper.WGMMA_N_STEP * first + chunk.lane % 4 * 2, []
        for j in range(count):
            for half in range(2):
                row, column = chunk.row + 8 * half, begin + hopper.WGMMA_N_STEP * j
                if self.transposed:
                    pair = [self.addend.read(column + e, row, False)[0] for e in range(2)]
                    words += pair if self.addend.dtype.width == 32 else [pair[0] | pair[1] << 16]
                else:
                    words += self.addend.read(row, column, True)
        return values + self.addend.floats(words).load()
