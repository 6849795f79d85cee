"""Keeping CTAs that share panels together, so that what one of them reads from DRAM the others find in the L2.

CTAs of a persistent launch begin together and then go as fast as each can. After dozens of tiles they are so far apart
that the L2 has dropped a panel before the last of those who share it comes by: at 16384^3 every panel was read two
and a half times. So producers count their stages, and at every so many of them meet at a counter in global memory: each
waits until all have come to the meeting before this one, and then tells that it is here. Who is no further ahead than
from one meeting to the next does not wait, but for a look at the counter, while its consumers multiply what the ring
holds.

Nothing depends on it. A producer looks :data:`LOOKS` times and goes on; where not all CTAs are resident, or a launch
that was cut off left a count behind, time is lost and nothing else. Who comes last to the last meeting sets the counter
back to zero for the next launch: by then everybody has waited for the last time.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.exchange import lower
from hopper_gemm.kernel.tile_scheduler import Raster

LOOKS = 48
"""At the counter, each a journey to the L2 and back of about 0.7 us."""


@dataclass(frozen=True)
class Pace:
    """Where the producers of a launch meet.

    Args:
        counter: its global address.
        every: stages from meeting to meeting.
        meetings: of the launch.
        ctas: that come to each.
        behind: stages that this producer had behind it when the tile at hand began.
    """

    counter: Int64
    every: int
    meetings: Int32
    ctas: Int32
    behind: Int32

    @staticmethod
    def of(flags: cute.Tensor, every: int, raster: Raster, cluster_size: int, k_tiles: Int32, walked: Int32) -> Pace:
        """At the tile that comes after so many others.

        All meetings lie within the tiles that every CTA has, of which there is at least one; the counter is the last of
        the flags.
        """
        counter = flags.iterator.toint() + Int64(cute.size(flags) - 1) * (Int32.width // 8)
        stages = raster.tiles // raster.clusters * k_tiles
        return Pace(counter, every, (stages - 1) // every, raster.clusters * cluster_size, walked * k_tiles)

    @cute.jit
    def keep(self, loaded: Int32) -> None:
        """With so many stages of the tile asked for: if it is time to meet, wait a while for those behind. By a warp.

        After the load, so that nothing comes before the first one.
        """
        stage = self.behind + loaded
        meeting = stage // self.every
        if (stage % self.every == 0) & (meeting > 0) & (meeting <= self.meetings):
            with cute.arch.elect_one():
                all_came = (meeting - 1) * self.ctas
                seen, looks = Int32(0), Int32(LOOKS)
                while (seen < all_came) & (looks > 0):
                    seen = inline_ptx(
                        "ld.relaxed.gpu.global.b32 {$w0}, [{$r0}];",
                        write_only_types=[Int32],
                        read_only_args=[self.counter],
                    )
                    looks = looks - 1
                if meeting < self.meetings:
                    inline_ptx("red.relaxed.gpu.global.add.s32 [{$r0}], 1;", read_only_args=[self.counter])
                else:
                    before = inline_ptx(
                        "atom.relaxed.gpu.global.add.s32 {$w0}, [{$r0}], 1;",
                        write_only_types=[Int32],
                        read_only_args=[self.counter],
                    )
                    if before + 1 == meeting * self.ctas:
                        lower(self.counter)
            cute.arch.sync_warp()
