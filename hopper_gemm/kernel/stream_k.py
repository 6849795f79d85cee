"""Stream-K: the tiles of the last, partly filled wave are cut along k so that every cluster gets an equal stretch.

Whole waves are walked as ever; there may be none. The tiles that remain are strung together, stage after stage, and the
string is cut into equal stretches, one for each cluster; a stretch may end one tile and begin the next. The cluster
that begins a tile finishes it: every other one that had a piece of it leaves its sums in the workspace and raises a
flag, and the finisher adds them in the order of k. So the sum has the same bits in every run, and nobody waits for
anyone who waits: a piece that is left for another is the first thing its cluster does in the string, a tile that is
finished the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Boolean, Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.exchange import ROW_BYTES, VECTOR, VECTOR_BYTES, leave_vector, lower, take_vector, wait_until
from hopper_gemm.kernel.tile_scheduler import Raster
from hopper_gemm.model import hopper

LEAST_STAGES = 8
"""A stretch is at least this long, if need be for fewer clusters: shorter ones cost more to add up than they save."""


@dataclass(frozen=True)
class String:
    """The remaining tiles as one string of stages, and how it is cut.

    Args:
        whole: tiles of whole waves, which lie before the string in the raster's order.
        k_tiles: stages of a tile.
        length: stages of the string.
        clusters: among which it is cut.
    """

    whole: Int32
    k_tiles: Int32
    length: Int32
    clusters: Int32

    @staticmethod
    def of(raster: Raster, k_tiles: Int32) -> String:
        """Of a launch."""
        rest = raster.tiles % raster.clusters
        length = rest * k_tiles
        clusters = cutlass.min(raster.clusters, cutlass.max(length // LEAST_STAGES, 1))
        return String(raster.tiles - rest, k_tiles, length, clusters)

    def start(self, cluster: Int32) -> Int32:
        """Where a cluster's stretch starts; the one before ends there. Clusters without a stretch start at the end."""
        most = cutlass.min(cluster, self.clusters)
        return Int32(Int64(most) * Int64(self.length) // Int64(self.clusters))

    def piece(self, index: Int32, at: Int32, end: Int32) -> tuple[Int32, Int32, Int32]:
        """What to do next: tile, first stage and stages. The whole tile ``index`` while it lies before the string,
        then the piece of a tile that starts the rest ``at .. end`` of the stretch."""
        before = index < self.whole
        first = at % self.k_tiles
        tile = cutlass.select_(before, index, self.whole + at // self.k_tiles)
        count = cutlass.min(self.k_tiles - first, end - at)
        return (
            tile,
            cutlass.select_(before, Int32(0), first),
            cutlass.select_(before, self.k_tiles, count),
        )

    def more(self, index: Int32, at: Int32, end: Int32) -> Boolean:
        """Whether anything is left to do."""
        return (index < self.whole) | (at < end)


@dataclass(frozen=True)
class Workspace:
    """Where one consumer's thread leaves its sums for another cluster, or finds another's.

    The thread of the same number in the same consumer of the same CTA of every cluster holds the same elements, so that
    registers are written as they come.

    Args:
        sums: global address of this thread's first vector of cluster 0.
        flags: global address of this consumer's flag of cluster 0. Zero between launches.
        step: bytes from cluster to cluster in ``sums``.
        flag_step: bytes from cluster to cluster in ``flags``.
        first: true in the thread that raises and lowers flags.
        barrier: id of the named barrier of this consumer's 128 threads.
    """

    sums: Int64
    flags: Int64
    step: int
    flag_step: int
    first: Boolean
    barrier: Int32

    @staticmethod
    def of(sums: cute.Tensor, flags: cute.Tensor, size: int, part: Int32, parts: int, thread: Int32, barrier: Int32):
        """Of a thread whose consumer is number ``part`` of a cluster's ``parts``, with ``size`` accumulators."""
        each = size // VECTOR * ROW_BYTES
        own = sums.iterator.toint() + Int64(part) * each + Int64(thread) * VECTOR_BYTES
        flag = flags.iterator.toint() + Int64(part) * (Int32.width // 8)
        return Workspace(own, flag, parts * each, parts * Int32.width // 8, thread == 0, barrier)

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=hopper.WARPGROUP_THREADS)

    @cute.jit
    def leave(self, cluster: Int32, accumulators: cute.Tensor) -> None:
        """Leave this cluster's sums and raise its flag."""
        base = self.sums + Int64(cluster) * self.step
        for i in cutlass.range_constexpr(cute.size(accumulators) // VECTOR):
            leave_vector(base + i * ROW_BYTES, accumulators, i * VECTOR)
        self._sync()
        inline_ptx(  # what the barrier showed this thread, its release shows the other cluster
            "st.release.gpu.global.b32 [{$r0}], {$r1};",
            read_only_args=[self.flags + Int64(cluster) * self.flag_step, Int32(1)],
            predicate=self.first,
        )

    @cute.jit
    def add(self, cluster: Int32, accumulators: cute.Tensor) -> None:
        """Wait for another cluster's flag, lower it, and add its sums."""
        flag = self.flags + Int64(cluster) * self.flag_step
        if self.first:
            wait_until(flag, 1)
            lower(flag)
        self._sync()
        base = self.sums + Int64(cluster) * self.step
        for i in cutlass.range_constexpr(cute.size(accumulators) // VECTOR):
            part = take_vector(base + i * ROW_BYTES)
            for j in cutlass.range_constexpr(VECTOR):
                accumulators[i * VECTOR + j] = accumulators[i * VECTOR + j] + part[j]
