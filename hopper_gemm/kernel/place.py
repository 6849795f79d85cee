"""Place of a thread within its CTA, its cluster and the grid."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Int32, cute

from hopper_gemm.model import hopper


@dataclass(frozen=True)
class Place:
    """The place of one thread."""

    thread: Int32  # within its CTA
    lane: Int32  # within its warp
    warp: Int32  # of its CTA
    warpgroup: Int32  # of its CTA
    # rank_m, rank_n: of its CTA within the cluster
    rank_m: Int32 | int
    rank_n: Int32 | int
    cluster: Int32  # of the grid
    part: Int32 | int  # split-K part of its CTA; 0 if the cluster does not split k
    shape: tuple[int, int]  # CTAs of the cluster along m and n

    @staticmethod
    def here(shape: tuple[int, int], parts: int) -> Place:
        """The place of this thread, in a cluster of a shape whose CTAs split k into ``parts``."""
        thread, _, _ = cute.arch.thread_idx()
        x, rank_n, part = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = cute.arch.make_warp_uniform(thread // hopper.WARPGROUP_THREADS)
        cluster_m, cluster_n = shape
        return Place(
            thread,
            cute.arch.lane_idx(),
            warp,
            group,
            x % cluster_m if cluster_m > 1 else 0,
            rank_n if cluster_n > 1 else 0,
            x // cluster_m if cluster_m > 1 else x,
            part if parts > 1 else 0,
            shape,
        )

    @property
    def in_group(self) -> Int32:
        """Thread within its warpgroup."""
        return self.thread % hopper.WARPGROUP_THREADS

    @property
    def rank(self) -> Int32 | int:
        """CTA within its cluster, without regard to k."""
        return self.rank_m + self.rank_n * self.shape[0]

    @property
    def row_mask(self) -> cutlass.Int16 | int:
        """Multicast mask of the CTAs with the same rank along m, which share a tile of A; 0 where there is one."""
        cluster_m, cluster_n = self.shape
        if cluster_n == 1:
            return 0
        return cutlass.Int16(sum(1 << (cluster_m * j) for j in range(cluster_n)) << self.rank_m)

    @property
    def column_mask(self) -> cutlass.Int16 | int:
        """Multicast mask of the CTAs with the same rank along n, which share a tile of B; 0 where there is one."""
        cluster_m, _ = self.shape
        if cluster_m == 1:
            return 0
        return cutlass.Int16(((1 << cluster_m) - 1) << (self.rank_n * cluster_m))
