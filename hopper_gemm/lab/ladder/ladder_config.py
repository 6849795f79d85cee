"""Parameters of the design study: what the kernel's own config leaves at one value, since nothing else ever won."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from hopper_gemm.model.config import GemmConfig, flag, integer, parameters_of, word
from hopper_gemm.model.kernel import Kernel

Side = Literal["producer", "consumer"]

SCHEDULES = ("cooperative", "pingpong", "multistage")
SIDES = ("producer", "consumer")
ARRIVALS = ("warp", "thread", "producer", "consumer", "elected", "group")


@dataclass(frozen=True)
class LadderConfig(GemmConfig):
    """A config of the design study: every parameter of the kernel, and those that only the study varies.

    A config whose study parameters all stand at their defaults is a :class:`GemmConfig`; :meth:`narrowed`
    returns that one, so that equal kernels have equal configs.
    """

    schedule: str = word(
        "cooperative",
        "cooperative: a producer warpgroup loads, all consumers share each tile; pingpong: two consumers take whole "
        "tiles in turn, so that the epilogue of one overlaps the math of the other; multistage: no producer, the "
        "consumers' first warp loads ahead",
        *SCHEDULES,
    )
    loads: Literal["tma", "cp_async", "mixed"] = word(
        "tma",
        "what fills the ring; cp_async: the producer's threads, 16 bytes each; mixed: A by TMA and B by cp.async, on "
        "one full barrier",
        "tma",
        "cp_async",
        "mixed",
        tier="ladder",
        after="epi_buffers",
    )
    stores: Literal["tma", "direct"] = word(
        "tma",
        "how a tile leaves: through shared memory by TMA, or straight from registers",
        "tma",
        "direct",
        tier="ladder",
        after="loads",
    )
    serpentine: bool = flag(
        True, "walk every other swizzle group in reverse, starting where the last ended", launch=True
    )
    peek: bool | Side = flag(  # type: ignore[assignment]
        True,
        "probe the next stage's barrier early and block only if the probe failed: true, false, or one side",
        *SIDES,
    )
    persistent: bool = flag(
        True, "as many CTAs as fit at once, each walking over tiles; else one CTA a tile", launch=True
    )
    unroll: bool = flag(False, "unroll the main loop by the number of stages", tier="ladder")
    ring_state: Literal["index_phase", "packed"] = word(
        "index_phase",
        "how a role keeps its place in the ring: two integers, or one",
        "index_phase",
        "packed",
        tier="ladder",
    )
    arrivals: Literal["warp", "thread", "producer", "consumer", "elected", "group"] = word(
        "warp",
        "who arrives on a barrier: one lane of each warp; every thread, or every one of the producer or of the "
        "consumers alone; of a consumer's warp one elected thread behind a warp sync; of a consumer one warp's lane "
        "(group)",
        *ARRIVALS,
        tier="ladder",
    )
    full_barriers: int = integer(1, "full barriers of a stage: 1 for A and B together, 2 for one each", tier="ladder")
    l2_promotion: int = integer(
        128, "bytes that the L2 fetches from DRAM at least for a TMA load: 0, 64, 128 or 256", least=0, host=True
    )
    prefetch: int = integer(
        0,
        "stages of a CTA's first tile that it asks into the L2 before it sets itself up, or waits for the kernel ahead",
        least=0,
        tier="ladder",
    )
    stream_k: bool = flag(False, "stream-K: cut the tiles of the last, partly filled wave along k")
    skew: int = integer(
        0,
        "stages by which each consumer starts behind the one before it, so that the epilogue of one runs under the "
        "wgmma of the other",
        least=0,
        since=2,
    )
    interleave_k: bool = flag(
        False,
        "which stages a split-K part has: every split_k-th one, so that CTAs of one tile read neighbouring bytes of the "  # noqa: E501
        "same rows at the same time; else a run of them",
        tier="ladder",
        since=2,
    )
    rotate_k: int = integer(
        0,
        "stages by which clusters side by side begin apart in k, each going round to where it began: rows whose pitch "
        "is a power of two otherwise ask few slices of the L2 at a time",
        least=0,
        tier="ladder",
        since=2,
    )

    ring: Literal["own", "library"] = word(
        "own",
        "what keeps the ring: barriers of our own, or cutlass.pipeline's PipelineTmaAsync with its PipelineState",
        "own",
        "library",
        tier="ladder",
        since=2,
    )
    waits: Literal["acquire", "relaxed"] = word(
        "acquire",
        "memory order of a wait on a barrier of the ring (PTX, mbarrier.try_wait)",
        "acquire",
        "relaxed",
        tier="ladder",
        since=2,
    )
    spills: bool = flag(
        False,
        "let registers run out: none move from the producer to the consumers, and what spills is timed all the same",
        tier="ladder",
        since=2,
    )

    builder = "hopper_gemm.lab.ladder.ladder_gemm:LadderGemm"
    """The class that builds the kernel."""

    @property
    def specialised(self) -> bool:  # type: ignore[override]
        """Return True if a warpgroup of its own does the loading."""
        return self.schedule != "multistage"

    def peeks(self, side: Side) -> bool:
        """Return True if a side of the ring probes ahead; a ring of one stage has no next slot to probe."""
        return self.stages != 1 and (self.peek is True or self.peek == side)

    def every_thread(self, side: Side) -> bool:
        """Return True if every thread of a side of the ring arrives on its barriers."""
        return self.arrivals in ("thread", side)

    @property
    def plain(self) -> bool:
        """Return True if the study's own parameters stand at their defaults."""
        return self.schedule != "multistage" and all(getattr(self, name) == DEFAULTS[name] for name in LADDER_FIELDS)

    def narrowed(self) -> GemmConfig:
        """The same config as a :class:`GemmConfig` where it is plain."""
        return GemmConfig.like(self) if self.plain else self


class LadderKernel(Kernel, LadderConfig):
    """A kernel of the design study on paper."""

    @property
    def may_move_back(self) -> bool:
        """True if the last tiles may move back; pieces of a tile are added up where stream-K cuts it, and stages from
        where a cluster begins."""
        return super().may_move_back and not self.stream_k and not self.rotate_k

    def narrowed(self) -> Kernel:
        """The same kernel as one of the kernel's own kind where it is plain."""
        return Kernel.like(self) if self.plain else self

    def compiled(self) -> Kernel:
        """The kernel at default launch values, which determines the machine code."""
        return super().compiled().narrowed()


LADDER_FIELDS = tuple(name for name in parameters_of(LadderConfig) if name not in parameters_of(GemmConfig))
"""Parameters that only the study varies."""

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(LadderConfig)}
