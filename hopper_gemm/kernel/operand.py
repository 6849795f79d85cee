"""One operand between global memory, the ring and wgmma: contiguous axis, swizzle, boxes, descriptors, TMA loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import cutlass
from cutlass import Int16, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from hopper_gemm.kernel.pipeline import Ring
from hopper_gemm.model import hopper

UNROLLED_BOXES = 4
"""More boxes than this are issued in a loop: unrolled, thirty loads a stage ran the producer out of registers."""

Kind = warpgroup.SmemLayoutAtomKind
BY_DEPTH = {128: Kind.K_SW128, 64: Kind.K_SW64, 32: Kind.K_SW32, 16: Kind.K_INTER}
BY_ROWS = {128: Kind.MN_SW128, 64: Kind.MN_SW64, 32: Kind.MN_SW32, 16: Kind.MN_INTER}


def smem_layout(dtype: type[cutlass.Numeric], kind: Kind, shape: tuple[int, ...], rows_first: bool = True):
    """A swizzled shared-memory layout (rows, columns[, stage]), its atoms stacked along rows first or columns first."""
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    order = (0, 1) if rows_first else (1, 0)
    return cute.tile_to_shape(atom, shape, order=(*order, *range(2, len(shape))))


def plain_layout(rows: int, columns: int, buffers: int = 1) -> cute.ComposedLayout:
    """A shared-memory layout (rows, columns, buffer) without a swizzle, columns contiguous.

    Rows of an odd number of 16-byte pieces need no swizzle: eight rows lie in eight different groups of banks.
    """
    layout = cute.make_layout((rows, columns, buffers), stride=(columns, 1, rows * columns))
    return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, layout)


@dataclass(frozen=True)
class OperandLoad:
    """One operand's loads into shared memory, in slices of rows that one TMA instruction can move.

    A tile is cut along its rows into equal slices, and a slice along its depth into boxes. In a cluster, CTAs that
    share the tile load some of the slices each, or one box of each slice, or everything on alternate stages, and
    multicast that to all sharers.
    """

    atom: cute.CopyAtom  # the TMA copy of one slice
    shared: cute.Tensor  # partitioned shared memory, (element, (slice, box, stage))
    source: cute.Tensor  # partitioned global tensor, (element, (slice, box) of the whole matrix)
    by_rows: bool  # True if rows are contiguous, False if depth is
    slices: int  # slices of a tile
    boxes: int  # TMA boxes of a slice, side by side along k
    # first, count: the first slice that this CTA loads, and how many
    first: Int32 | int
    count: int
    # first_box, box_count: the same of the boxes of each slice
    first_box: Int32 | int
    box_count: int
    # alternating multicast: rank and number of the sharers; this CTA loads stages rank, rank + number, ...; None: every
    # stage
    turn: tuple[Int32, int] | None
    mask: Int16 | None  # CTAs of the cluster that receive the slices, one bit per rank; 0 without multicast
    planes: tuple[Int32 | int, ...] = ()  # further coordinates of an operand of groups
    depth: Int32 | int = 0  # with which a group along k begins

    @cute.jit
    def issue(self, first_row: Int32, k_tile: Int32, stage: Int32, full: cute.Pointer) -> None:
        """Start the copies of this CTA's slices of the tile from a row on into one stage; they complete ``full`` by
        bytes, in every CTA that receives them."""
        if cutlass.const_expr(self.turn is None):
            self._copy(first_row, k_tile, stage, full)
        else:
            rank, ranks = self.turn
            if k_tile % ranks == rank:
                self._copy(first_row, k_tile, stage, full)

    @cute.jit
    def _copy(self, first_row: Int32, k_tile: Int32, stage: Int32, full: cute.Pointer) -> None:
        source, unroll = self.source_from(first_row), self.box_count if self.box_count <= UNROLLED_BOXES else 1
        for i in cutlass.range_constexpr(self.count):
            part = self.first + i
            for number in cutlass.range(self.box_count, unroll=unroll):
                box = self.first_box + number
                cute.copy(  # a copy by TMA elects one lane of the warp itself
                    self.atom,
                    source[None, self.at(part, k_tile * self.boxes + box)],
                    self.shared[None, (part, box, stage)],
                    tma_bar_ptr=full,
                    mcast_mask=self.mask,
                    **self.options,
                )

    def source_from(self, first_row: Int32) -> cute.Tensor:
        """The source from a row on: its first slice begins there."""
        within = (first_row, self.depth) if self.by_rows else (self.depth, first_row)
        return cute.domain_offset(((within, 0), (0, 0, *self.planes)), self.source)

    def at(self, part: Int32 | int, depth: Int32) -> tuple:
        """Place in the source, in boxes, of a slice of a tile that begins with the source."""
        return part, depth, *(0 for _ in self.planes)

    @property
    def options(self) -> dict[str, Any]:
        """Further options of a copy."""
        return {}


@dataclass(frozen=True)
class Loads:
    """Both operands' loads of one output tile's stages, by TMA. One warp issues them."""

    ring: Ring
    # a, b: the operands' loads
    a: OperandLoad
    b: OperandLoad

    def of_group(self, planes_a: tuple[Any, ...], planes_b: tuple[Any, ...], depth: Int32 | int) -> Loads:
        """The loads of a group's planes of both operands, from a depth on."""
        a, b = replace(self.a, planes=planes_a, depth=depth), replace(self.b, planes=planes_b, depth=depth)
        return Loads(self.ring, a, b)

    @cute.jit
    def issue(self, row: Int32, column: Int32, k_tile: Int32, index: Int32, tag: Int32 | None = None) -> None:
        """Start loading one stage of the tile at a row and column of the output into an empty slot, with an optional
        tag."""
        self.ring.expect(index, tag)
        self.a.issue(row, k_tile, index, self.ring.full(0) + index)
        self.b.issue(column, k_tile, index, self.ring.full(1) + index)


@dataclass(frozen=True)
class Operand:
    """A or B as the kernel sees it: (rows, depth), rows being A's m or B's n.

    Contiguous along its depth, a tile's swizzle spans columns and one box is a slice of its rows, as deep as the
    swizzle. Contiguous along its rows, the swizzle spans rows and one box is one span of rows, as deep as the tile; or
    as a CTA's part of the tile's depth, where the spans cannot be shared out among the CTAs that share the tile. Either
    way the boxes of a slice of rows lie side by side in shared memory, as wgmma requires.
    """

    dtype: type[cutlass.Numeric]  # of its elements
    tile: int  # rows of a CTA's tile
    share: int  # rows that one consumer reads
    tile_k: int  # depth of a stage, in elements
    stages: int  # of the ring
    sharers: int  # CTAs of the cluster that share the tile
    turns: bool  # True for alternating multicast, False for split multicast
    by_rows: bool  # True if rows are contiguous, False if depth is

    loading = OperandLoad

    @property
    def span(self) -> int:
        """Elements of a row of the swizzle."""
        row = self.bytes * (self.share if self.by_rows else self.tile_k)
        return gcd(row, hopper.SWIZZLE_BYTES[0]) // self.bytes

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.dtype.width // 8

    @property
    def kind(self) -> Kind:
        """The kind of the shared-memory layout's atom."""
        return (BY_ROWS if self.by_rows else BY_DEPTH)[self.span * self.bytes]

    @property
    def major(self) -> OperandMajorMode:
        """The operand's major mode, as wgmma names it."""
        return OperandMajorMode.MN if self.by_rows else OperandMajorMode.K

    @property
    def slices(self) -> int:
        """Slices of rows in which a tile is loaded: one for each CTA that loads a part, more where a TMA box would be
        too long; or one for each row of the swizzle."""
        if self.by_rows:
            return self.tile // self.span
        slices = self.loaders
        while self.tile // slices > hopper.TMA_BOX_MAX:
            slices += self.loaders
        return slices

    @property
    def loaders(self) -> int:
        """CTAs that load parts of one stage."""
        return 1 if self.turns else self.sharers

    @property
    def parts_of_depth(self) -> int:
        """Parts into which the CTAs that share the tile cut its depth: 1 where they share out its slices."""
        return self.loaders if self.by_rows and self.slices % self.loaders else 1

    @property
    def box(self) -> tuple[int, int]:
        """Rows and columns of one TMA box."""
        return self.tile // self.slices, self.tile_k // self.parts_of_depth if self.by_rows else self.span

    def layout(self) -> cute.ComposedLayout:
        """Layout of the ring's memory: (rows, depth, stage)."""
        return smem_layout(self.dtype, self.kind, (self.tile, self.tile_k, self.stages), not self.by_rows)

    def load_atom(self, matrix: cute.Tensor) -> cpasync.TmaInfo:
        """The TMA load of one box; multicast where CTAs share the tile. On the host."""
        op = cpasync.CopyBulkTensorTileG2SOp() if self.sharers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        stage = smem_layout(self.dtype, self.kind, (self.tile, self.tile_k), not self.by_rows)
        affine = cute.slice_(cute.logical_divide(stage.outer, self.box), ((None, 0), (None, 0)))
        return cpasync.make_tiled_tma_atom(op, matrix, cute.make_composed_layout(stage.inner, 0, affine), self.box)

    def load(self, atom: cute.CopyAtom, shared: cute.Tensor, source: cute.Tensor, rank: Int32, mask) -> OperandLoad:
        """Partition the operand into boxes; ``rank`` is this CTA's place among those that share the tile."""
        box = self.box
        parts, global_parts = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.zipped_divide(shared, box), cute.zipped_divide(source, box)
        )
        turn = (rank, self.sharers) if self.turns and self.sharers > 1 else None
        boxes = self.tile_k // box[1]
        by_rows, slices = self.by_rows, self.slices
        if self.parts_of_depth > 1:
            own = 0, slices, rank, 1
        else:
            count = slices // self.loaders
            own = rank * count if self.loaders > 1 else 0, count, 0, boxes
        return self.loading(atom, parts, global_parts, by_rows, slices, boxes, *own, turn, mask)


@dataclass(frozen=True)
class GatedLoad(OperandLoad):
    """The loads of gate and up rows, (f, depth, 2), into the two halves of a tile."""

    def source_from(self, first_row: Int32) -> cute.Tensor:
        """The source from a row of gate and up on."""
        return cute.domain_offset((((0, first_row), 0), (0, 0, 0, *self.planes)), self.source)

    def at(self, part: Int32 | int, depth: Int32) -> tuple:
        """Place in the source of a slice of a tile that begins with the source."""
        half = self.slices // 2
        return part % half, depth, part // half, *(0 for _ in self.planes)


@dataclass(frozen=True)
class GatedOperand(Operand):
    """Gate and up weights, (2 f, depth) or with groups behind, gate rows first, contiguous along their depth; a tile is
    as many rows of the one as of the other."""

    loading = GatedLoad

    @property
    def slices(self) -> int:
        """Slices of rows in which a tile is loaded; each lies in one half."""
        slices = super().slices
        return slices if slices % 2 == 0 else 2 * slices

    def load_atom(self, matrix: cute.Tensor) -> cpasync.TmaInfo:
        """The TMA load of one box of the matrix seen as (f, depth, 2), or with groups behind. On the host."""
        rows, pitch = cute.size(matrix, mode=[0]) // 2, matrix.stride[0]
        shape, stride = (rows, matrix.shape[1], 2), (pitch, 1, Int64(rows) * pitch)
        if cute.rank(matrix) == 3:
            shape, stride = (*shape, matrix.shape[2]), (*stride, matrix.stride[2])
        layout = cute.make_layout(shape, stride=stride)
        return super().load_atom(cute.make_tensor(matrix.iterator, layout))


@dataclass(frozen=True)
class InterleavedLoad(OperandLoad):
    """The loads of gate and up rows that take turns by eights, (8, 2, f / 8) rows by depth."""

    def source_from(self, first_row: Int32) -> cute.Tensor:
        """The source from a row of gate and up on, a multiple of eight."""
        within = 0, 0, 0, first_row // hopper.WGMMA_N_STEP
        return cute.domain_offset(((within, 0), (0, 0, *self.planes)), self.source)


@dataclass(frozen=True)
class InterleavedOperand(Operand):
    """Gate and up weights, (2 f, depth) or with groups behind, gate rows first, contiguous along their depth; of a
    tile's rows eight of the one follow eight of the other, so that a thread that holds rows r and r + 8 of 16 holds a
    row of both."""

    loading = InterleavedLoad

    def load_atom(self, matrix: cute.Tensor) -> cpasync.TmaInfo:
        """The TMA load of one box of the matrix seen as ((8, 2, f / 8), depth), or with groups behind. On the host."""
        eight, pitch = hopper.WGMMA_N_STEP, matrix.stride[0]
        rows = cute.size(matrix, mode=[0]) // 2
        shape = ((eight, 2, rows // eight), matrix.shape[1])
        stride = ((pitch, Int64(rows) * pitch, Int64(eight) * pitch), 1)
        if cute.rank(matrix) == 3:
            shape, stride = (*shape, matrix.shape[2]), (*stride, matrix.stride[2])
        return super().load_atom(cute.make_tensor(matrix.iterator, cute.make_layout(shape, stride=stride)))
