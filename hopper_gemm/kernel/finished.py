"""The kernel with a finish: the epilogue scales, adds and activates the fp32 accumulators before it rounds them.

Facts of wgmma's accumulators on which it relies: of 64 rows by 8 columns, thread t of a warpgroup, lane l = t % 32,
holds four, (e, half) for e, half in 0, 1: row t // 32 * 16 + l // 4 + 8 * half, column l % 4 * 2 + e; register
e + 2 * half. The next 8 columns follow in the next four registers.

With ``swap_ab`` a tile's rows are columns of C and its columns rows of C.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Float32, Int16, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx
from cutlass.cute.nvgpu import cpasync

from hopper_gemm.kernel.consumer import Mainloop
from hopper_gemm.kernel.cta import CtaTask, Operands, Output
from hopper_gemm.kernel.epilogue import Epilogue, Region
from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.kernel.operand import Operand, OperandLoad
from hopper_gemm.kernel.sums.reduction import ClusterSum, WorkspaceSum
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import ACTIVATIONS, Finish
from hopper_gemm.model.kernel import Kernel

COLUMNS = 2 * hopper.WARP_THREADS
"""Columns of a bias that a warp holds in one register, two a lane."""


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
    def above(x, y):
        """x where it is not at most 0, NaN included, else y."""
        return cute.where(x <= 0.0, y, x)


@dataclass(frozen=True)
class FinishedOutput(Output):
    """The output, and what is added to it: a bias (n,), a residual (m, n), a factor; None for each that is absent."""

    bias: cute.Tensor | None
    residual: cute.Tensor | None
    scale: Float32 | None


@dataclass(frozen=True)
class Addend:
    """A vector or matrix in global memory, read by each thread where its accumulators lie.

    Args:
        address: of the first element.
        pitch: bytes from row to row of C; 0 for a vector.
        m, n: of C.
        dtype: of the elements.
    """

    address: Int64
    pitch: Int64 | int
    m: Int32
    n: Int32
    dtype: type[cutlass.Numeric]

    @staticmethod
    def of(tensor: cute.Tensor, m: Int32, n: Int32) -> Addend:
        """The addend of a tensor (n,) or (m, n), n contiguous."""
        dtype, matrix = tensor.element_type, cute.rank(tensor) == 2
        pitch = Int64(tensor.stride[0]) * (dtype.width // 8) if matrix else 0
        return Addend(tensor.iterator.toint(), pitch, m, n, dtype)

    def at(self, row: Int32, column: Int32) -> Int64:
        """Address of an element."""
        return self.address + Int64(row) * self.pitch + Int64(column) * (self.dtype.width // 8)

    def inside(self, row: Int32, column: Int32) -> Boolean:
        """Return True if C has the element."""
        return Boolean((row < self.m) & (column < self.n))

    def read(self, row: Int32, column: Int32) -> cutlass.Numeric:
        """One element, as an integer of its width; what C does not have is undefined."""
        bits, kind = self.dtype.width, Int16 if self.dtype.width == 16 else Int32
        return inline_ptx(
            f"ld.global.nc.b{bits} {{$w0}}, [{{$r0}}];",
            write_only_types=[kind],
            read_only_args=[self.at(row, column)],
            predicate=self.inside(row, column),
        )

    def read_pair(self, row: Int32, column: Int32) -> list[Int32]:
        """Two elements, the first in an even column, as the 32-bit words in which they lie."""
        words = self.dtype.width // 16
        into = "{$w0}" if words == 1 else "{{$w0}, {$w1}}"
        found = inline_ptx(
            f"ld.global.nc.{'b32' if words == 1 else 'v2.b32'} {into}, [{{$r0}}];",
            write_only_types=[Int32] * words,
            read_only_args=[self.at(row, column)],
            predicate=self.inside(row, column),
        )
        return [found] if words == 1 else list(found)

    def floats(self, words: list) -> cute.Tensor:
        """The elements of integers as they lie in memory, as fp32 registers."""
        packed = cute.make_rmem_tensor(len(words), type(words[0]))
        for i, word in enumerate(words):
            packed[i] = word
        elements = cute.recast_tensor(packed, self.dtype)
        values = cute.make_rmem_tensor(cute.size(elements), Float32)
        values.store(elements.load().to(Float32))
        return values


@dataclass(frozen=True)
class FinishedEpilogue(Epilogue):
    """The store role of one consumer warpgroup, with a finish.

    Args:
        finish: what is done before rounding.
        transposed: True if rows of the tile are columns of C.
        thread: within the warpgroup.
        bias, residual: what is added; None without.
        scale: the factor; None without.
        chunk: columns of a chunk.
        ahead: words of the bias of the tile at hand, read before its main loop; None where they are read chunk by
            chunk.
    """

    finish: Finish
    transposed: bool
    thread: Int32
    bias: Addend | None
    residual: Addend | None
    scale: Float32 | None
    chunk: int

    @cute.jit
    def store_tile(
        self,
        accumulators: cute.Tensor,
        region: Region,
        reduction: ClusterSum | WorkspaceSum | None = None,
        first: Int32 | None = None,
    ) -> None:
        """Store one share; see :meth:`Epilogue.store_tile`. Gated, with half the columns."""
        if cutlass.const_expr(self.finish.gated):
            Epilogue.store_tile(self, self._gated(accumulators, region.rows), region, reduction, first)
        else:
            Epilogue.store_tile(self, accumulators, region, reduction, first)

    def _gated(self, accumulators: cute.Tensor, rows: int) -> cute.Tensor:
        """activation(gate) * up: the gate's columns are the first half of each block of 64 rows' registers."""
        half = cute.size(accumulators) // rows // 2
        parts = cute.make_tensor(accumulators.iterator, cute.make_layout((half, 2, rows)))
        gated = cute.make_rmem_tensor((half, rows), Float32)
        for i in range(rows):
            gated[None, i].store(self._activated(parts[None, 0, i].load()) * parts[None, 1, i].load())
        return gated

    def _activated(self, values):
        return ACTIVATIONS[self.finish.activation].value(values, Functions)

    def finished(self, values: cute.Tensor, row: Int32, column: Int32):
        """The values of a chunk before they are rounded; its place is counted in chunks."""
        found = values.load()
        if self.finish.gated:
            return found
        warp, lane = self.thread // hopper.WARP_THREADS, self.thread % hopper.WARP_THREADS
        at_row = row * hopper.WGMMA_M + warp * 16 + lane // 4
        if self.scale is not None:
            found = found * self.scale
        if self.bias is not None:
            found = found + self._bias(at_row, column * self.chunk, lane).load()
        if self.finish.activation:
            found = self._activated(found)
        if self.residual is not None:
            found = found + self._residual(at_row, column * self.chunk + lane % 4 * 2).load()
        return found

    def _bias(self, row: Int32, column: Int32, lane: Int32) -> cute.Tensor:
        """The bias of each value of a chunk: one of two rows where it is transposed; else a column's, which the lanes
        of a warp read together and hand to one another."""
        groups = self.chunk // hopper.WGMMA_N_STEP
        spread = cute.make_rmem_tensor(4 * groups, Float32)
        if self.transposed:
            pair = self.bias.floats([self.bias.read(Int32(0), row + 8 * half) for half in range(2)])
            for at in range(4 * groups):
                spread[at] = pair[at // 2 % 2]
            return spread
        held = [
            self.bias.read_pair(Int32(0), column + start + 2 * lane)[0] for start in range(0, self.chunk, COLUMNS)
        ]
        words = []
        for j in range(groups):
            source = j * 4 % hopper.WARP_THREADS + lane % 4
            words.append(cute.arch.shuffle_sync(held[j * hopper.WGMMA_N_STEP // COLUMNS], source))
        pairs = self.bias.floats(words)
        for at in range(4 * groups):
            spread[at] = pairs[at // 4 * 2 + at % 2]
        return spread

    def _residual(self, row: Int32, column: Int32) -> cute.Tensor:
        """The residual of each value of a chunk."""
        words = []
        for j in range(self.chunk // hopper.WGMMA_N_STEP):
            for half in range(2):
                at_row, at_column = row + 8 * half, column + hopper.WGMMA_N_STEP * j
                if self.transposed:
                    words += [self.residual.read(at_column + e, at_row) for e in range(2)]
                else:
                    words += self.residual.read_pair(at_row, at_column)
        return self.residual.floats(words)


@dataclass(frozen=True)
class GatedLoad(OperandLoad):
    """The loads of gate and up rows, (f, depth, 2), into the two halves of a tile."""

    def at(self, tile: Int32, part: Int32 | int, depth: Int32) -> tuple:
        """Place in the source of a slice of a tile."""
        half = self.slices // 2
        return tile * half + part % half, depth, part // half


@dataclass(frozen=True)
class GatedOperand(Operand):
    """Gate and up weights, (f, depth, 2), contiguous along their depth; a tile is as many rows of the one as of the
    other."""

    @property
    def slices(self) -> int:
        """Slices of rows in which a tile is loaded; each lies in one half."""
        slices = super().slices
        return slices if slices % 2 == 0 else 2 * slices

    loading = GatedLoad


class FinishedGemm(HopperGemm):
    """:class:`HopperGemm` with a finish.

    Args:
        config, dtype, layouts, out_dtype: as there.
        finish: what is done before rounding. With a gated one, B is (2 f, k), gate rows first, and C is (m, f).
    """

    def __init__(
        self,
        config: Kernel,
        dtype: type[cutlass.Numeric],
        layouts: str,
        out_dtype: type[cutlass.Numeric],
        finish: Finish,
    ) -> None:
        super().__init__(config, dtype, layouts, out_dtype)
        self.finish = finish
        if finish.gated:
            self.out_n = config.tile_n // 2
            self.b = GatedOperand(**vars(self.b))

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        clusters: Int32,
        along_m: Int32,
        swizzle: Int32,
        serpentine: Int32,
        stream: cuda.CUstream,
        sums: cute.Tensor | None,
        words: cute.Tensor | None,
        readings: cute.Tensor | None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        scale: Float32 | None,
    ) -> None:
        """Launch.

        Args:
            a, b, c, clusters, along_m, swizzle, serpentine, stream, sums, words, readings: as of :class:`HopperGemm`.
            bias: (n,), of the operands' type, at an address that is a multiple of 16.
            residual: (m, n), of C's type, n contiguous, rows at multiples of 16 bytes.
            scale: the factor.
        """
        launched = copy(self)
        launched.added = bias, residual, scale
        walk = clusters, along_m, swizzle, serpentine
        HopperGemm.__call__(launched, a, b, c, *walk, stream, sums, words, readings)

    def _operands(self, a: cute.Tensor, b: cute.Tensor) -> Operands:
        if self.finish.gated:
            rows, pitch = cute.size(b, mode=[0]) // 2, b.stride[0]
            layout = cute.make_layout((rows, b.shape[1], 2), stride=(pitch, 1, Int64(rows) * pitch))
            b = cute.make_tensor(b.iterator, layout)
        return super()._operands(a, b)

    def _output(self, c: cute.Tensor) -> FinishedOutput:
        plain = super()._output(c)
        return FinishedOutput(plain.atom, plain.c, *self.added)

    def _epilogue(self, task: CtaTask, consumer: Int32, own: cute.Tensor) -> FinishedEpilogue:
        output, swapped = task.output, self.config.swap_ab
        rows, columns = (cute.size(output.c, mode=[mode]) for mode in ((1, 0) if swapped else (0, 1)))
        bias, residual = (
            None if one is None else Addend.of(one, rows, columns) for one in (output.bias, output.residual)
        )
        plain, thread = super()._epilogue(task, consumer, own), task.place.in_group
        return FinishedEpilogue(
            **vars(plain),
            finish=self.finish,
            transposed=swapped,
            thread=thread,
            bias=bias,
            residual=residual,
            scale=output.scale,
            chunk=self.chunks.n,
        )
