"""The resolved kernel: a config with every choice made, and its footprint: shares, shared-memory map, registers.

Pure arithmetic; the kernel's builder, the legality rules and ``explain`` read the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from hopper_gemm.model import hopper
from hopper_gemm.model.config import Axis, GemmConfig, launch_defaults
from hopper_gemm.model.problem import BLOCK, ELEMENT_BYTES

EPI_BUFFERS_MAX = 4  # more never sped up an epilogue: a store is read out of its buffer within a few chunks

SPARE_REGISTERS = 32
"""Registers a consumer needs beside its accumulators (addresses, barriers, the epilogue's packed pairs). Found by
compiling: with 31 to spare some kernels spill, with 32 none of 378 did."""

STAGING_COLUMNS = 32  # the ring leaves the epilogue tile_m x 32 elements; the published stage counts follow from it
WIDE_CHUNK = 64  # taken where it fits: half the barriers of 32 columns, worth 0.1 to 0.5 % in results/h200/options
WIDE_CHUNK_REGISTERS = 16  # a wide chunk's packed pairs need this many more registers

STREAM_K_REGISTERS, WORKSPACE_MARGIN = 16, 8
"""Registers that stream-K adds for its position and for addresses of the workspace; and registers that a kernel with a
workspace keeps free, else the next split, with more per consumer, is taken."""

SHARED_CHUNKS = 4
"""Chunks of a consumer that split-K parts through a workspace share out: fewer leave most of many parts idle while the
others add up, and each costs a few parts a round trip more."""

GATHER_REGISTERS = 32  # registers that parts read back from a workspace add
# rows of a share whose scales of blocks a warp reads by one load: it multiplies 16 rows of each wgmma
ROWS_OF_SCALE = 2 * hopper.WGMMA_M

SCALED_STAGES = (8, 4, 2)
"""Copies of the stage in a main loop with scales of blocks, by falling number. Of more than two copies the blocks of 64
rows are at most the first in all, so that the loop fits the cache of instructions."""

SCALE_REGISTERS, HANDED_REGISTERS = 12, 32
"""Registers of scales of blocks that the spare registers hold; and those taken where lanes hand on scales of columns,
or where a share of more than 64 rows may have columns in two blocks of B. Found by compiling 1,000 kernels."""

# shared memory through which the dynamic scheduler hands out work: between CTAs of a cluster, and beside each stage
MAILBOX_BYTES, TAG_BYTES = 48, 4
SMEM_SLACK = 1024  # bytes reserved for the barriers and for the alignment of the buffers


def is_odd_chunk(columns: int) -> bool:
    """Return True if a row is an odd number of 16-byte pieces, more than one: eight rows then lie in eight different
    groups of banks, without a swizzle."""
    return columns > 8 and columns % 16 == 8


@dataclass(frozen=True)
class RegisterSplit:
    """Registers per thread after setmaxnreg has moved them; equal when the kernel moves none."""

    producer: int
    consumer: int
    moved: bool


REGISTER_SPLITS = {
    1: (RegisterSplit(hopper.REGISTERS_PER_THREAD, hopper.REGISTERS_PER_THREAD, moved=False),),
    2: (RegisterSplit(56, 224, moved=True), RegisterSplit(40, 232, moved=True), RegisterSplit(24, 240, moved=True)),
    3: (RegisterSplit(56, 152, moved=True), RegisterSplit(32, 160, moved=True)),
    4: (RegisterSplit(32, 112, moved=True),),
}
"""Splits by number of consumers, the largest producer first: with many loads for a stage the producer spills at 40. A
CTA moves only registers it was launched with: 168 for each of 384 threads, 128 for each of 512, 96 for each of 640."""

REGISTERS_UNSPECIALISED = {1: 255, 2: 255, 3: 168}
"""Registers per thread without a producer warpgroup, by number of consumers: what the SM has for 128, 256 and 384
threads, up to the 255 that an instruction can name."""

MOVED_FROM = 512
"""Depth k from which on last tiles move back: before, rows that are written twice cost as much as rows outside. Of the
held-out problems one with k = 16 took 1.2 times as long, and those from 256 to 1024 as long as before."""

MOVED_UP_TO = 80
"""FLOP per element loaded up to which last tiles move back: few large tiles at a time ask for little outside the
matrix. On the held-out problems tiles above lost 0.2 to 0.5 % by moving, while those below 45 gained 0.5 to 3 %."""


class Kernel(GemmConfig):
    """A resolved kernel: a config with every choice made, and its footprint on an SM. :func:`resolve` builds it."""

    if TYPE_CHECKING:  # each a number or a letter here
        stages: int
        consumers: int
        split: Axis
        epi_n: int
        epi_buffers: int

    # The share of one consumer -------------------------------------------------------------

    @property
    def share_m(self) -> int:
        """Rows of the tile that one consumer computes."""
        return self.tile_m // self.readers if self.split == "m" else self.tile_m

    @property
    def share_n(self) -> int:
        """Columns of the tile that one consumer computes; also n of its wgmma instruction."""
        return self.tile_n // self.readers if self.split == "n" else self.tile_n

    @property
    def wgmma_per_stage(self) -> int:
        """wgmma instructions that one consumer issues for one stage."""
        return self.share_m // hopper.WGMMA_M * self.k_depth

    @property
    def wgmma_waits(self) -> int:
        """Waits for wgmma in the code: the fence before a stage's group, the stagger's wait and the drain, for each
        copy of the loop's body. More of them means that the compiler serialised wgmma (C7510 and its kin)."""
        bodies = 2 * self.stages - 1 if self.unroll else 1
        return 2 * bodies + 1

    @property
    def accumulators(self) -> int:
        """Accumulator registers of one consumer thread."""
        return self.share_m * self.share_n // hopper.WARPGROUP_THREADS

    @property
    def registers(self) -> RegisterSplit:
        """Registers per thread of the producer and of a consumer: the first split that holds the accumulators."""
        splits = register_splits(self)
        wide, apart = self.chunk_n == WIDE_CHUNK, self.has_workspace
        spare = self.spare_registers + WIDE_CHUNK_REGISTERS * wide + WORKSPACE_MARGIN * apart
        return next((split for split in splits if self.accumulators <= split.consumer - spare), splits[-1])

    @property
    def spare_registers(self) -> int:
        """Registers that a consumer needs beside its accumulators."""
        more = STREAM_K_REGISTERS if self.stream_k else GATHER_REGISTERS if self.parts_at_launch else 0
        return SPARE_REGISTERS + more

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers, and one producer warpgroup where there is one."""
        return hopper.WARPGROUP_THREADS * (self.consumers + int(self.specialised))

    @property
    def block_scales(self) -> tuple[int, int]:
        """Scales of a block of k, of A and of B, that a consumer thread holds."""
        if self.swap_ab:
            return -(-self.share_n // hopper.WARP_THREADS), self.share_m // hopper.WGMMA_M
        return -(-self.share_m // ROWS_OF_SCALE), 1 if BLOCK % self.share_n == 0 else 2

    @property
    def scales_ahead(self) -> int:
        """Stages from the read of a scale of blocks to its use, as many as the registers hold; 0 if not even one."""
        of_a, of_b = self.block_scales
        handed = self.swap_ab or (of_b > 1 and self.share_m > hopper.WGMMA_M)
        free = self.registers.consumer - self.accumulators - self.share_n // 2 - self.spare_registers
        free += SCALE_REGISTERS - HANDED_REGISTERS * handed - 2 * (1 + of_b)
        most = SCALED_STAGES[0] * hopper.WGMMA_M // self.share_m
        fits = (copies for copies in SCALED_STAGES if copies <= max(2, most) and copies * (of_a + of_b) <= free)
        return next(fits, 1) - 1

    # Shared memory -------------------------------------------------------------------------

    @property
    def swizzle_bytes(self) -> int:
        """Span of the operands' swizzle: the widest whose row divides a stage's row of tile_k elements."""
        return swizzle_bytes(self.tile_k)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage: a tile of A and a tile of B."""
        return stage_bytes(self)

    @property
    def chunk_n(self) -> int:
        """Columns of an epilogue chunk of a 16-bit output: the most of epi_n that divides a share, or epi_n itself
        where its rows are an odd number of 16-byte pieces; the whole share with direct stores."""
        if self.stores == "direct":
            return self.share_n
        return self.epi_n if is_odd_chunk(self.epi_n) else gcd(self.share_n, self.epi_n)

    @property
    def reduction_bytes(self) -> int:
        """Shared memory for the partial sums that the CTAs of a split-K cluster exchange; it aliases the ring."""
        return 4 * self.tile_m * self.tile_n if self.parts_meet else 0

    @property
    def parts_meet(self) -> bool:
        """True if the CTAs of a cluster split k and add up through its shared memory."""
        return self.split_k > 1 and self.reduction == "cluster"

    @property
    def may_move_back(self) -> bool:
        """True if the last tiles may move back to end with the matrix, which spares TMA rows outside of it: if they are
        small enough to gain by it, and all tiles add up k in one order, so that rows of two tiles get the same bits."""
        small = self.tile_m * self.tile_n <= MOVED_UP_TO * (self.tile_m + self.tile_n)
        return self.loads == "tma" and not self.reverse_k and small

    def moves_back(self, k: int) -> bool:
        """Return True if the last tiles do so with a depth of k."""
        return self.may_move_back and k >= MOVED_FROM

    @property
    def chunk_swizzled(self) -> bool:
        """True if a chunk is swizzled; rows of an odd number of 16-byte pieces need not be. A transposed chunk, whose
        swizzle spans 64 rows of the tile, always is."""
        return self.swap_ab or not is_odd_chunk(self.chunk_n)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one epilogue chunk of 64 rows."""
        return ELEMENT_BYTES * hopper.WGMMA_M * self.chunk_n

    @property
    def chunks(self) -> int:
        """Chunks of one consumer's share of a 16-bit output."""
        return (self.share_m // hopper.WGMMA_M) * (self.share_n // self.chunk_n)

    @property
    def slot_chunks(self) -> int:
        """Chunks that a consumer can stage in its part of one slot of the ring: the rows of the side that the consumers
        split, which no other consumer reads."""
        rows = self.share_m if self.split == "m" else self.share_n
        return ELEMENT_BYTES * rows * self.tile_k // self.chunk_bytes

    def held_slots(self, out_bytes: int) -> int:
        """Slots of the ring in which a tile of C, of ``out_bytes`` an element, is staged; 0 if it has own buffers."""
        if self.staging == "own" or not self.slot_chunks:
            return 0
        chunks = self.chunks * out_bytes // ELEMENT_BYTES
        return -(-chunks // self.slot_chunks)

    def chunk_columns(self, out_bytes: int) -> int:
        """Columns of a chunk of an output of ``out_bytes`` an element: the bytes of a chunk are fixed, so that the
        footprint of a config is the same for every problem. The whole share with direct stores."""
        return self.chunk_n if self.stores == "direct" else self.chunk_n * ELEMENT_BYTES // out_bytes

    def box_rows(self, out_bytes: int) -> int:
        """Rows of the box of a TMA store: 64; of a transposed chunk, of contiguous rows, at most the swizzle's span."""
        most = hopper.SWIZZLE_BYTES[0] // out_bytes
        return min(hopper.WGMMA_M, most) if self.swap_ab else hopper.WGMMA_M

    def tma_stores(self, out_bytes: int) -> int:
        """TMA stores in the code: of one consumer's share, of the chunks of it that a split-K part of a cluster owns,
        or of one chunk in a loop, where parts use a workspace; 0 with direct stores."""
        if self.stores == "direct":
            return 0
        chunks = self.share_m // hopper.WGMMA_M * (self.share_n // self.chunk_columns(out_bytes))
        stored = 1 if self.parts_at_launch else -(-chunks // self.split_k)
        return stored * (hopper.WGMMA_M // self.box_rows(out_bytes))

    @property
    def barriers(self) -> int:
        """mbarriers of the ring."""
        return (1 + self.full_barriers) * self.stages

    @property
    def smem_map(self) -> dict[str, int]:
        """Bytes of each region, in the order in which they lie."""
        tile_k = self.tile_k
        sizes = {
            "A": ELEMENT_BYTES * self.tile_m * tile_k * self.stages,
            "C": self.chunk_bytes * self.epi_buffers * self.consumers,
            "B": ELEMENT_BYTES * self.tile_n * tile_k * self.stages,
            "barriers": hopper.MBARRIER_BYTES * self.barriers,
        }
        if self.staging == "ring":
            del sizes["C"]
        order = ("C", "A", "B") if self.parts_meet else ("A", "C", "B")
        hands_out = self.scheduler == "dynamic"
        if hands_out and self.cluster_size > 1:
            sizes["mailbox"] = MAILBOX_BYTES
        if hands_out:
            sizes["tags"] = TAG_BYTES * self.stages
        return {name: sizes[name] for name in (*order, "barriers", "mailbox", "tags") if name in sizes}

    @property
    def smem_bytes(self) -> int:
        """Shared memory of one CTA."""
        return sum(self.smem_map.values())

    @property
    def readers(self) -> int:
        """Consumers that share a tile, and so read each stage."""
        return 1 if self.schedule == "pingpong" else self.consumers

    @property
    def registers_suffice(self) -> bool:
        """True if a consumer's registers hold its accumulators and the spare registers, or may spill."""
        return self.spills or self.accumulators <= register_splits(self)[-1].consumer - self.spare_registers

    def compiled(self) -> Kernel:
        """Return the kernel at default launch arguments: all that the machine code depends on. Where split-K parts go
        through a workspace, their number is one, and two stands for any."""
        parts = {"split_k": 2} if self.parts_at_launch else {}
        return self.but(**launch_defaults(type(self)), **parts)  # type: ignore[arg-type]

    def narrowed(self) -> Kernel:
        return self


# config classes, each with its kernel class; a package above may add a class with more parameters
KINDS: dict[type[GemmConfig], type[Kernel]] = {GemmConfig: Kernel}


def swizzle_bytes(elements: int) -> int:
    """The widest swizzle whose row divides a number of contiguous elements."""
    return gcd(ELEMENT_BYTES * elements, hopper.SWIZZLE_BYTES[0])


def register_splits(kernel: Kernel) -> tuple[RegisterSplit, ...]:
    """The ways to divide registers between producer and consumers, the largest producer first."""
    consumers = kernel.consumers
    if kernel.ctas_per_sm > 1 or kernel.spills:
        threads = hopper.WARPGROUP_THREADS * (consumers + int(kernel.specialised))
        registers = hopper.REGISTERS_PER_SM // (kernel.ctas_per_sm * threads) // hopper.REGISTER_STEP
        most = min(hopper.REGISTERS_PER_THREAD, registers * hopper.REGISTER_STEP)
        return (RegisterSplit(most, most, moved=False),)
    if kernel.specialised or consumers not in REGISTERS_UNSPECIALISED:
        return REGISTER_SPLITS[consumers]
    registers = REGISTERS_UNSPECIALISED[consumers]
    return (RegisterSplit(0, registers, moved=False),)


def stage_bytes(kernel: Kernel) -> int:
    """Bytes of one stage of the ring: tile_m x tile_k of A and tile_n x tile_k of B."""
    return ELEMENT_BYTES * (kernel.tile_m + kernel.tile_n) * kernel.tile_k


def staging_bytes(kernel: Kernel) -> int:
    """Shared memory reserved for the epilogue: tile_m x 32 elements, and at least a chunk for each consumer; none with
    direct stores."""
    if kernel.stores == "direct" or kernel.staging == "ring":
        return 0
    return max(ELEMENT_BYTES * kernel.tile_m * STAGING_COLUMNS, kernel.chunk_bytes * kernel.consumers)


def smem_limit(kernel: Kernel) -> int:
    """Shared memory that one CTA may use if ``ctas_per_sm`` CTAs share an SM."""
    return hopper.SMEM_BYTES_PER_SM // kernel.ctas_per_sm - hopper.SMEM_SYSTEM_BYTES


def stages_max(kernel: Kernel) -> int:
    """Stages that fit beside the epilogue's staging; 0 where not even one does."""
    free = smem_limit(kernel) - SMEM_SLACK - staging_bytes(kernel)
    return max(0, free // stage_bytes(kernel))


def resolve(config: GemmConfig) -> Kernel:
    """Return the kernel of a config: every ``"auto"`` and ``"max"`` replaced by its value. It need not be legal; if no
    stage fits, ``stages`` is 0.

    Example:
        >>> resolve(GemmConfig(tile_m=320, tile_n=128, k_depth=4)).stages
        3
    """
    if isinstance(config, Kernel):
        return config
    kernel = _shared_out(config)
    if config.stages == "max":
        kernel = kernel.but(stages=stages_max(kernel))
    if kernel.stores == "direct" or kernel.staging == "ring":
        kernel = kernel.but(epi_buffers=0 if config.epi_buffers == "max" else config.epi_buffers)
        if not isinstance(config.epi_n, str):
            return kernel
        return kernel.but(epi_n=0 if kernel.stores == "direct" else _columns_in_ring(kernel))
    if isinstance(config.epi_n, str):
        odd = _odd_columns(kernel) if config.epi_n == "wide" else 0
        kernel = kernel.but(epi_n=odd or (_columns_to_share if kernel.split_k > 1 else _columns_beside)(kernel))
    if config.epi_buffers == "max":
        most = min(EPI_BUFFERS_MAX, kernel.chunks, _buffers_that_fit(kernel))
        kernel = kernel.but(epi_buffers=max(1, most))
    return kernel


def _columns_in_ring(kernel: Kernel) -> int:
    """The widest chunk that fits into a consumer's part of a slot of the ring and divides its share; else 8 columns."""
    swizzled = {gcd(kernel.share_n, WIDE_CHUNK)}
    while min(swizzled) > hopper.WGMMA_N_STEP:
        swizzled.add(min(swizzled) // 2)
    odd = {n for n in range(24, kernel.share_n + 1, 8) if is_odd_chunk(n)}
    fit = [
        n for n in sorted(swizzled | odd, reverse=True) if kernel.share_n % n == 0 and kernel.but(epi_n=n).slot_chunks
    ]
    return fit[0] if fit else hopper.WGMMA_N_STEP


def _odd_columns(kernel: Kernel) -> int:
    """The widest chunk of an odd multiple of 8 columns that fits beside the ring, if chunks of 32 do not divide a share
    and there is no split-K; else 0."""
    share = kernel.share_n
    if share % STAGING_COLUMNS and kernel.split_k == 1:
        for columns in range(share, STAGING_COLUMNS // 2, -hopper.WGMMA_N_STEP):
            if share % columns == 0 and is_odd_chunk(columns) and _buffers_that_fit(kernel.but(epi_n=columns)) > 0:
                return columns
    return 0


def _columns_to_share(kernel: Kernel) -> int:
    """The widest chunk of which every split-K part of a cluster owns equally many; through a workspace, for any number
    of parts, of which a share has :data:`SHARED_CHUNKS`. The narrowest if there is none."""
    any_parts = kernel.parts_at_launch
    widths = (WIDE_CHUNK, STAGING_COLUMNS, 16) if any_parts else (WIDE_CHUNK, STAGING_COLUMNS, 16, 8)
    chunks = ((n, kernel.but(epi_n=n).chunks) for n in widths)
    fair = (n for n, count in chunks if (count >= SHARED_CHUNKS if any_parts else count % kernel.split_k == 0))
    return next(fair, widths[-1])


def _columns_beside(kernel: Kernel) -> int:
    """64 columns if such a chunk fits beside the ring, else 32."""
    return WIDE_CHUNK if _buffers_that_fit(kernel.but(epi_n=WIDE_CHUNK)) >= 1 else STAGING_COLUMNS


def _shared_out(config: GemmConfig) -> Kernel:
    """Return the kernel with consumers and split chosen: along m while whole 64-row blocks and the registers allow it,
    since a wider wgmma reads less shared memory per FLOP; else along n. Chunks left open have 32 columns."""
    counts: tuple[int, ...]
    if config.consumers != "auto":
        counts = (config.consumers,)
    elif config.schedule == "pingpong":
        counts = (2,)
    else:
        counts = (1,) if config.tile_m <= hopper.WGMMA_M else (2, 3)
    axes: tuple[Axis, ...] = ("m", "n") if config.split == "auto" else (config.split,)
    columns = STAGING_COLUMNS if isinstance(config.epi_n, str) else config.epi_n
    kernel = KINDS[type(config)].like(config).but(epi_n=columns)
    candidates = [kernel.but(consumers=count, split=axis) for axis in axes for count in counts]
    return next((candidate for candidate in candidates if _divides(candidate)), candidates[0])


def _divides(kernel: Kernel) -> bool:
    if kernel.consumers not in REGISTER_SPLITS:
        return False
    side, block = (kernel.tile_m, hopper.WGMMA_M) if kernel.split == "m" else (kernel.tile_n, hopper.WGMMA_N_STEP)
    return side % (block * kernel.readers) == 0 and kernel.registers_suffice


def _buffers_that_fit(kernel: Kernel) -> int:
    """Chunk buffers of each consumer that fit beside the ring."""
    left = smem_limit(kernel) - SMEM_SLACK - stage_bytes(kernel) * kernel.stages
    return left // (kernel.chunk_bytes * kernel.consumers)
