"""Keeping CTAs that share panels together, so that what one of them reads from DRAM the others find in the L2.

CTAs of a persistent launch begin together and then go as fast as each can. After dozens of tiles they are so far apart
that the L2 has dropped a panel before the last of those who share it comes by: at 16384^3, where a tile takes 0.3 ms,
orders were measured that read every panel twice. So producers meet at a counter in global memory, now and then, before
they load a tile: one who is early waits while its consumers multiply what is in the ring.

Nothing depends on it. A producer looks at the counter :data:`LOOKS` times and goes on; where not all CTAs are resident,
or a counter was left behind by a launch that was cut off, time is lost and nothing else. The last to come to the last
meeting, at which nobody waits, sets the counter back to zero for the next launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.arch.nvvm_wrappers import inline_ptx

from hopper_gemm.kernel.tile_scheduler import Raster

LOOKS = 48
"""At the counter, each a journey to the L2 and back of about 0.7 us."""


@dataclass(frozen=True)
class Pace:
    """Where producers meet.

    Args:
        counter: its global address.
        every: tiles from meeting to meeting.
        meetings: of a launch; no one waits at the last.
        ctas: that come to each.
    """

    counter: Int64
    every: int
    meetings: Int32
    ctas: Int32

    @staticmethod
    def of(flags: cute.Tensor, every: int, raster: Raster, cluster_size: int) -> Pace:
        """Of a launch: meetings are held before tiles that every CTA has, at the last of the flags."""
        counter = flags.iterator.toint() + Int64(cute.size(flags) - 1) * (Int32.width // 8)
        meetings = (raster.tiles // raster.clusters - 1) // every
        return Pace(counter, every, meetings, raster.clusters * cluster_size)

    @cute.jit
    def keep(self, walked: Int32) -> None:
        """Before a tile, with so many behind: if it is time to meet, come, and wait a while for the others. By a warp."""
        meeting = walked // self.every
        if (walked > 0) & (walked % self.every == 0) & (meeting <= self.meetings):
            here = meeting * self.ctas
            with cute.arch.elect_one():
                seen = 1 + inline_ptx(
                    "atom.relaxed.gpu.global.add.s32 {$w0}, [{$r0}], 1;",
                    write_only_types=[Int32],
                    read_only_args=[self.counter],
                )
                if meeting == self.meetings:
                    if seen == here:
                        inline_ptx("st.relaxed.gpu.global.b32 [{$r0}], 0;", read_only_args=[self.counter])
                else:
                    looks = Int32(LOOKS)
                    while (seen < here) & (looks > 0):
                        seen = inline_ptx(
                            "ld.relaxed.gpu.global.b32 {$w0}, [{$r0}];",
                            write_only_types=[Int32],
                            read_only_args=[self.counter],
                        )
                        looks = looks - 1
            cute.arch.sync_warp()
