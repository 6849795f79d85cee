"""The kernel with a finish: the epilogue scales, adds and activates the fp32 accumulators before it rounds them.

Facts of wgmma's accumulators on which it relies: of 64 rows by 8 columns, thread t of a warpgroup, lane l = t % 32,
holds four, (e, half) for e, half in 0, 1: row t // 32 * 16 + l // 4 + 8 * half, column l % 4 * 2 + e; register
e + 2 * half. The next 8 columns follow in the next four registers.

With ``swap_ab`` a tile's rows are columns of C and its columns rows of C.

An activation takes as long as several stages, and the tensor cores need not wait for all of it: :class:`Order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.arch.nvvm_wrappers import inline_ptx
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T

from hopper_gemm.kernel.consumer import UNIFORM_WGMMA, Mainloop, Share, Turn
from hopper_gemm.kernel.cta import CtaTask, Operands, Output
from hopper_gemm.kernel.epilogue import Epilogue, Region
from hopper_gemm.kernel.gemm import FIRST_TURN, HopperGemm
from hopper_gemm.kernel.observer import Observer
from hopper_gemm.kernel.operand import Operand, OperandLoad
from hopper_gemm.kernel.pipeline import RingState
from hopper_gemm.kernel.work import Edge
from hopper_gemm.model import hopper
from hopper_gemm.model.finish import ACTIVATIONS, Finish, ordered_stages
from hopper_gemm.model.kernel import Kernel

COLUMNS = 2 * hopper.WARP_THREADS
"""Columns of a bias that a warp holds in one register, two a lane."""

PIECE = 4
"""Groups of 8 columns that are finished at a time."""

UPPER = -(1 << 16)
"""Mask of the upper half of a word: as fp32, the bf16 in it."""


def opaque(value: Int32) -> Int32:
    """The value, of which the compiler knows nothing more: what depends on it is computed where it is used. Else the
    addresses of all chunks are kept from one block of rows to the next, and spill."""
    moved = llvm.inline_asm(T.i32(), [value.ir_value()], "mov.b32 $0, $1;", "=r,r", has_side_effects=True)
    return Int32(moved)


NAMES = {cutlass.BFloat16: "bf16", cutlass.Float16: "fp16", Float32: "fp32"}
"""Names of the output's types, as activations know them."""


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

    def read(self, row: Int32, column: Int32, pair: bool) -> list[Int32]:
        """One element, or ``pair``: two, the first in an even column, as 32-bit words; 0 outside C.

        A load under a predicate alone would leave the register as it was, which is then kept for it across all tiles.
        """
        bits = self.dtype.width * (2 if pair else 1)
        kind, words = {16: ("u16", 1), 32: ("b32", 1), 64: ("v2.b32", 2)}[bits]
        names = [f"{{$w{i}}}" for i in range(words)]
        into = names[0] if words == 1 else f"{{{', '.join(names)}}}"
        zeros = " ".join(f"mov.b32 {name}, 0;" for name in names)
        found = inline_ptx(
            "{ .reg .pred inside; setp.ne.b32 inside, {$r1}, 0; "
            f"{zeros} @inside ld.global.{kind} {into}, [{{$r0}}]; }}",
            write_only_types=[Int32] * words,
            read_only_args=[self.at(row, column), Int32(self.inside(row, column))],
        )
        return [found] if words == 1 else list(found)

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
class Order:
    """The order in which two consumers that share tiles end each: one multiplies while the other finishes.

    The second consumer holds back before a tile's last ``stages``, until the first has issued all of its own. Then
    it has the tensor cores for itself while the first finishes, and the first those of the next tile's first stages,
    as many as the ring holds, while the second finishes. Left alone both end a tile at once.

    For each tile the second consumer gives the turn as it begins, and the first takes it as it ends: so it is never a
    tile ahead, where it would give two turns for one. No wait of one for the other closes a circle: the first consumer
    needs of the second, to load its last stage, the release of the stage that had its slot before; that is one of
    those that the second has released before it holds back, if ``stages`` and the stagger together fit the ring.

    Args:
        consumer: 0 or 1.
        stages: the last ones of a tile that the first consumer multiplies before the second.
    """

    consumer: Int32
    stages: int

    def _turn(self, taken: Boolean, given: Boolean) -> Turn:
        return Turn(FIRST_TURN + self.consumer, FIRST_TURN + 1 - self.consumer, taken, given)

    def begin(self) -> None:
        """Before a tile's first stage."""
        self._turn(Boolean(False), Boolean(self.consumer == 1)).give()

    def before(self, k_tile: Int32, k_tiles: Int32) -> None:
        """Before the wait for a stage."""
        last = k_tiles - self.stages
        due = k_tile == cutlass.select_(last > 0, last, Int32(0))
        self._turn(Boolean((self.consumer == 1) & due), Boolean(False)).take()

    def issued(self, k_tile: Int32, k_tiles: Int32) -> None:
        """Once a stage's wgmma group is committed."""
        ends = Boolean((self.consumer == 0) & (k_tile == k_tiles - 1))
        turn = self._turn(ends, ends)
        turn.take()
        turn.give()


@dataclass(frozen=True)
class FinishedLoop(Mainloop):
    """The MMA role of a kernel with a finish.

    The first stage of a tile stands before the loop, where a constant tells its first wgmma to ignore what the
    accumulators hold, not a predicate. The compiler then knows that they are free once the epilogue has read them.
    With a predicate it kept all of them to the end of the epilogue, had a few registers left for it, and computed one
    element after the other: gelu beside 176 accumulators took a lone warp 41 clocks an element instead of 18, by the
    stalls in the machine code.

    Args:
        order: of two consumers that share tiles; None for others.
    """

    order: Order | None = None

    @cute.jit
    def multiply_tile(
        self, state: RingState, k_tiles: Int32, turn: Turn | None, seen: Observer
    ) -> tuple[RingState, Observer]:
        """Multiply a tile, as :meth:`Mainloop.multiply_tile` does."""
        released = state.behind(self.stagger)
        if cutlass.const_expr(self.order is not None):
            self.order.begin()
        if cutlass.const_expr(turn is not None):
            turn.take()
        state, passed = self._multiply(state, released, Boolean(False), Int32(0), k_tiles, False)
        released = released.next()
        for k_tile in cutlass.range(1, k_tiles, unroll=1):
            state, passed = self._multiply(state, released, passed, k_tile, k_tiles, True)
            released = released.next()
        if cutlass.const_expr(turn is not None):
            turn.give()
        self.epilogue.open()
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(self.stagger - self.held):
            self.share.release(self.ring, released.index, k_tiles + i >= self.stagger)
            released = released.next()
        return state, seen

    @cute.jit
    def _multiply(
        self,
        state: RingState,
        released: RingState,
        passed: Boolean,
        k_tile: Int32,
        k_tiles: Int32,
        more: cutlass.Constexpr[bool],
    ) -> tuple[RingState, Boolean]:
        """Multiply a stage, and release an older one.

        Args:
            state, released: places of the stage and of the older one.
            passed: the answer of an earlier probe for the stage.
            k_tile, k_tiles: number of the stage, and of all.
            more: add to the accumulators; False in a tile's first stage.

        Returns:
            The place of the next stage, and the answer of a probe for it.
        """
        ring, share = self.ring, self.share
        if cutlass.const_expr(self.order is not None):
            self.order.before(k_tile, k_tiles)
        ring.wait(state.index, state.parity, passed)
        warpgroup.fence()
        atom = cute.make_mma_atom(share.mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, more)
        index, batch = state.index, max(1, UNIFORM_WGMMA // cute.size(share.a, mode=[1]))
        for k_block in cutlass.range_constexpr(cute.size(share.a, mode=[2])):
            if cutlass.const_expr(k_block > 0 and k_block % batch == 0):
                index = cute.arch.make_warp_uniform(index)
            at = (None, None, k_block, index)
            cute.gemm(atom, share.accumulators, share.a[at], share.b[at], share.accumulators)
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        if cutlass.const_expr(self.order is not None):
            self.order.issued(k_tile, k_tiles)
        state = state.next()
        if cutlass.const_expr(self.peek):
            passed = ring.peek_full(state.index, state.parity)
        warpgroup.wait_group(self.stagger)
        if cutlass.const_expr(more or self.stagger == 0):
            share.release(ring, released.index, self._due(k_tile, k_tiles))
        return state, passed


@dataclass(frozen=True)
class FinishedEpilogue(Epilogue):
    """The store role of one consumer warpgroup, with a finish.

    Args:
        finish: what is done before rounding.
        thread: within the warpgroup.
        bias, residual: what is added; None without.
        scale: the factor; None without.
        chunk: columns of a chunk.
        half: of a gated finish, registers from a value of the gate to that of up.
        side: columns of C before this consumer's share of a tile.
        ahead: words of the bias of the share at hand, read before its main loop, 64 columns each, two a lane; empty
            where they are read chunk by chunk.
    """

    finish: Finish
    thread: Int32
    bias: Addend | None
    residual: Addend | None
    scale: Float32 | None
    chunk: int
    side: Int32 | int
    half: int
    ahead: tuple[Int32, ...] = ()

    def of_tile(self, column: Int32, columns: int) -> FinishedEpilogue:
        """The same for one tile, the bias of its share being read: ``columns`` columns from ``column`` on."""
        start = column + self.side + opaque(self.thread) % hopper.WARP_THREADS * 2
        return replace(
            self, ahead=tuple(self.bias.read(Int32(0), start + at, True)[0] for at in range(0, columns, COLUMNS))
        )

    def chunked(self, accumulators: cute.Tensor, columns: int, rows: int) -> cute.Tensor:
        """The accumulators chunk by chunk; gated those of the gate, behind which those of up follow, row by row."""
        if not self.finish.gated:
            return super().chunked(accumulators, columns, rows)
        size = cute.size(accumulators) // (2 * rows * columns)
        layout = cute.make_layout((size, columns, rows), stride=(1, size, 2 * columns * size))
        return cute.make_tensor(accumulators.iterator, layout)

    def _activated(self, values):
        return ACTIVATIONS[self.finish.activation].value(values, Functions, NAMES[self.registers.element_type])

    def finished(self, values: cute.Tensor, region: Region, down: Int32 | int, across: Int32 | int):
        """The values of a chunk of a region before they are rounded. Piece by piece, so that few registers beside the
        accumulators are in use at a time."""
        if self.finish.gated:
            up = cute.make_tensor(values.iterator + self.half, values.layout)
            return self._activated(values.load()) * up.load()
        thread = opaque(self.thread)
        lane = thread % hopper.WARP_THREADS
        at_row = region.row + down * hopper.WGMMA_M + thread // hopper.WARP_THREADS * 16 + lane // 4
        at_column, groups = region.column + across * self.chunk, self.chunk // hopper.WGMMA_N_STEP
        bias, skipped = [], 0
        if self.ahead:
            bias, skipped = self.ahead, across * self.chunk
        elif self.bias is not None:
            bias = self._bias_words(at_row, at_column, lane)
        found = cute.make_rmem_tensor(4 * groups, Float32)
        for first in range(0, groups, PIECE):
            count = min(PIECE, groups - first)
            piece = cute.make_layout(4 * count)
            own = cute.make_tensor(values.iterator + 4 * first, piece).load()
            if self.scale is not None:
                own = own * self.scale
            if self.bias is not None:
                own = own + self._bias(bias, lane, skipped + hopper.WGMMA_N_STEP * first, count).load()
            if self.finish.activation:
                own = self._activated(own)
            if self.residual is not None:
                start = at_column + hopper.WGMMA_N_STEP * first + lane % 4 * 2
                own = own + self._residual(at_row, start, count).load()
            cute.make_tensor(found.iterator + 4 * first, piece).store(own)
        return found.load()

    def _bias_words(self, row: Int32, column: Int32, lane: Int32) -> list[Int32]:
        """The bias of a chunk: where it is transposed that of this thread's two rows, in one word; else all of it, two
        columns a lane and word."""
        if self.transposed:
            low, high = (self.bias.read(Int32(0), row + 8 * half, False)[0] for half in range(2))
            return [low | high << 16]
        starts = range(0, self.chunk, COLUMNS)
        return [self.bias.read(Int32(0), column + start + 2 * lane, True)[0] for start in starts]

    def _bias(self, held: Sequence[Int32], lane: Int32, column: int, count: int) -> cute.Tensor:
        """The bias of each value of ``count`` groups of 8 columns, from a column of what the lanes of a warp hold, who
        hand it to one another."""
        spread = cute.make_rmem_tensor(4 * count, Float32)
        if self.transposed:
            pair = self.bias.floats(held)
            for at in range(4 * count):
                spread[at] = pair[at // 2 % 2]
            return spread
        words = []
        for at in range(column, column + hopper.WGMMA_N_STEP * count, hopper.WGMMA_N_STEP):
            words.append(cute.arch.shuffle_sync(held[at // COLUMNS], at % COLUMNS // 2 + lane % 4))
        pairs = self.bias.floats(words)
        for at in range(4 * count):
            spread[at] = pairs[at // 4 * 2 + at % 2]
        return spread

    def _residual(self, row: Int32, column: Int32, count: int) -> cute.Tensor:
        """The residual of each value of ``count`` groups of 8 columns."""
        words = []
        for j in range(count):
            for half in range(2):
                at_row, at_column = row + 8 * half, column + hopper.WGMMA_N_STEP * j
                if self.transposed:
                    pair = [self.residual.read(at_column + e, at_row, False)[0] for e in range(2)]
                    words += pair if self.residual.dtype.width == 32 else [pair[0] | pair[1] << 16]
                else:
                    words += self.residual.read(at_row, at_column, True)
        return self.residual.floats(words)


@dataclass(frozen=True)
class GatedLoad(OperandLoad):
    """The loads of gate and up rows, (f, depth, 2), into the two halves of a tile."""

    def source_from(self, first_row: Int32) -> cute.Tensor:
        """The source from a row of gate and up on."""
        return cute.domain_offset((((0, first_row), 0), (0, 0, 0)), self.source)

    def at(self, part: Int32 | int, depth: Int32) -> tuple:
        """Place in the source of a slice of a tile that begins with the source."""
        half = self.slices // 2
        return part % half, depth, part // half


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

    def _edge(self, a: cute.Tensor, c: cute.Tensor) -> Edge:
        """No tile moves where C is its own residual: rows that two tiles write would have it added twice."""
        edge, (_, residual, _) = super()._edge(a, c), self.added
        if residual is None:
            return edge
        return edge.unless(residual.iterator.toint() == c.iterator.toint())

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
            thread=thread,
            bias=bias,
            residual=residual,
            scale=output.scale,
            chunk=self.chunks.n,
            side=consumer * self.config.share_n if self.config.split == "n" else 0,
            half=hopper.WGMMA_M * self.out_n // hopper.WARPGROUP_THREADS,
        )

    def _mainloop(self, task: CtaTask, share: Share, epilogue: Epilogue) -> Mainloop:
        if (
            self.finish.scaled_alone
        ):  # with more registers free the compiler begins with so many elements that it spills
            return super()._mainloop(task, share, epilogue)
        plain, stages = super()._mainloop(task, share, epilogue), ordered_stages(self.config)
        order = Order(task.place.warpgroup - 1, stages) if stages else None
        return FinishedLoop(**vars(plain), order=order)

    def _of_tile(self, loop: Mainloop, task: CtaTask, row: Int32, column: Int32) -> Mainloop:
        """The main loop for one output tile, the bias of its share being read meanwhile."""
        if not self.finish.bias or self.config.swap_ab or self.config.split_k > 1:
            return loop
        return replace(loop, epilogue=loop.epilogue.of_tile(column, self.config.share_n))
