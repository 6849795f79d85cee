"""How it is multiplied: every parameter of the kernel, in one frozen dataclass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Axis = Literal["m", "n"]
Side = Literal["producer", "consumer"]

SCHEDULES = ("cooperative", "pingpong", "multistage")
SIDES = ("producer", "consumer")


@dataclass(frozen=True)
class GemmConfig:
    """One way to run the kernel. Values outside the rules are accepted here and refused, with every
    reason, by :func:`hopper_gemm.model.legality.reasons`; only nonsense (a tile of ``"big"``) raises.

    ``"auto"`` and ``"max"`` leave the choice to :func:`hopper_gemm.model.footprint.resolve`.

    Args:
        tile_m: rows of the output tile of one CTA.
        tile_n: columns of the output tile of one CTA.
        k_depth: wgmma k-blocks of 16 per stage; the tile is ``tile_k = 16 * k_depth`` deep.
        stages: slots of the shared-memory ring, or ``"max"``: as many as fit.
        stagger: wgmma groups (one per stage) still in flight when an older stage is released.
        consumers: warpgroups that share the tile's math, or ``"auto"``.
        split: the side of the tile that the consumers divide among them, ``"m"``, ``"n"`` or ``"auto"``.
        schedule: who does what. ``"cooperative"``: a producer warpgroup loads, all consumers share each tile.
            ``"pingpong"``: a producer loads, two consumers take whole tiles in turn, so that the epilogue of one
            overlaps the math of the other. ``"multistage"``: no producer; the consumers' first warp loads ahead.
        cluster_m: CTAs of a cluster along m; they share, by multicast, the tile of B.
        cluster_n: CTAs of a cluster along n; they share, by multicast, the tile of A.
        raster: the axis along which consecutive tiles walk, ``"m"`` or ``"n"``.
        swizzle: how many tiles of the other axis, each of a whole cluster, advance together before the walk takes a
            step.
        serpentine: walk every other swizzle group backwards, so that it starts where the last one ended.
        peek: probe the next stage's barrier early, and block only if the probe failed: on both sides of the ring
            (true), on one (``"producer"``, ``"consumer"``), or on none (false).
        epi_n: columns of the chunks in which a tile leaves through shared memory: at most 8, 16, 32 or 64; or just so
            many, an odd multiple of 8 from 24 that divides a consumer's columns, such as 104 of 208. ``"auto"`` takes
            64 where they fit beside the ring, else 32, or as many of these as divide the share; ``"wide"`` the same,
            but rather an odd multiple of 8 than fewer than 32. Of an fp32 output half as many: a chunk keeps its
            bytes. 0 with direct stores.
        epi_buffers: chunk buffers of each consumer, or ``"max"``: up to four of what the ring leaves. 0 with direct
            stores.
        persistent: as many CTAs as fit at once, each walking over tiles, or one CTA for each tile.
        loads: what fills the ring, ``"tma"`` or ``"cp_async"``: the producer's threads, 16 bytes each.
        stores: how a tile leaves: ``"tma"``, through shared memory, or ``"direct"``, from registers.
        unroll: unroll the main loop by the number of stages.
        ring_state: how a role keeps its place in the ring: ``"index_phase"``, two integers, or ``"packed"``, one.
        arrivals: who arrives on a barrier: one lane of each ``"warp"``, or every ``"thread"``.
        full_barriers: full barriers of a stage: 1 for A and B together, 2 for one each.
        split_k: parts into which k is divided, each for another CTA, or another cluster; added up in a fixed order.
        reduction: where they are added up. ``"cluster"``: the CTAs of a tile are a cluster, and meet in its shared
            memory. ``"workspace"``: in a workspace in global memory; any number of parts, beside clusters that share
            their operands.
        stream_k: cut the tiles of the last, partly filled wave along k, an equal stretch for every cluster.
        swap_ab: compute C's transpose as B's transpose times A's: tile_m, cluster_m and raster m then run along n, and
            the others along m. So that few rows of C ride on wgmma's n, which may be as little as 8.
        l2_promotion: bytes that the L2 fetches from DRAM at least for a TMA load: 0 (no more than is asked), 64, 128
            or 256.
        early: programmatic dependent launch: the kernel may start before the one ahead of it on the stream has ended,
            as SMs become free, sets itself up and only then waits for the other; and it lets the one behind it do so.
        prefetch: stages of a CTA's first tile that it asks into the L2 before it waits for the kernel ahead. Nothing
            is read by that: what the kernel ahead still writes is written to the same L2.
        ctas_per_sm: CTAs that share an SM, its memory and its registers. With two, one's epilogue overlaps the other's
            math; and a kernel that is launched early finds room beside the one ahead of it.
        multicast: how the CTAs of a cluster divide the loading of what they share: each a part of its ``"rows"``, or
            one of them all of it, stage by stage in ``"turns"``, which any number of rows allows.
        zigzag: a CTA loads every other of its tiles from the end of k to its beginning. Clusters reach the end of their
            tiles together, and what they read last of the panels that they share is what the L2 still holds.
        pace: stages from one meeting of all producers to the next, or 0: CTAs that share panels drift apart, and read
            them from DRAM again. At a meeting a producer waits for those who have not come to the one before it; for a
            short time only, so that nothing depends on it.
        evict_c: the L2 is told to drop C first, which nobody reads again.

    Raises:
        ValueError: a field has a value of the wrong kind.

    Example:
        >>> GemmConfig(tile_m=256, tile_n=128, k_depth=4).tile_k
        64
    """

    tile_m: int = 256
    tile_n: int = 128
    k_depth: int = 4
    stages: int | Literal["max"] = "max"
    stagger: int = 1
    consumers: int | Literal["auto"] = "auto"
    split: Axis | Literal["auto"] = "auto"
    schedule: str = "cooperative"
    cluster_m: int = 1
    cluster_n: int = 1
    raster: Axis = "m"
    swizzle: int = 8
    serpentine: bool = True
    peek: bool | Side = True
    epi_n: int | Literal["auto", "wide"] = "auto"
    epi_buffers: int | Literal["max"] = "max"
    persistent: bool = True
    loads: Literal["tma", "cp_async"] = "tma"
    stores: Literal["tma", "direct"] = "tma"
    unroll: bool = False
    ring_state: Literal["index_phase", "packed"] = "index_phase"
    arrivals: Literal["warp", "thread"] = "warp"
    full_barriers: int = 1
    l2_promotion: int = 128
    split_k: int = 1
    swap_ab: bool = False
    stream_k: bool = False
    early: bool = False
    reduction: Literal["cluster", "workspace"] = "cluster"
    prefetch: int = 0
    ctas_per_sm: int = 1
    multicast: Literal["rows", "turns"] = "rows"
    zigzag: bool = False
    pace: int = 0
    evict_c: bool = False

    def __post_init__(self) -> None:
        words = {"stages": ("max",), "consumers": ("auto",), "epi_n": ("auto", "wide"), "epi_buffers": ("max",)}
        for name in INTEGERS:
            value = getattr(self, name)
            allowed = words.get(name, ())
            if value in allowed:
                continue
            least = 0 if name in FROM_ZERO else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                kind = f"an integer from {least}" + "".join(f' or "{word}"' for word in allowed)
                raise ValueError(f"{name} must be {kind} but got {value!r}")
        for name, allowed in WORDS.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)} but got {value!r}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false but got {getattr(self, name)!r}")
        if not isinstance(self.peek, bool) and self.peek not in SIDES:
            raise ValueError(f"peek must be true, false, {' or '.join(SIDES)} but got {self.peek!r}")

    @property
    def tile_k(self) -> int:
        """Depth of one stage in elements."""
        return 16 * self.k_depth

    @property
    def cluster_size(self) -> int:
        """CTAs of one cluster."""
        return self.cluster_m * self.cluster_n * (self.split_k if self.reduction == "cluster" else 1)

    @property
    def work_items(self) -> int:
        """Pieces of work for each cluster tile: more than one where its parts of k are taken one by one."""
        return self.split_k if self.reduction == "workspace" else 1

    @property
    def leaves_sums(self) -> bool:
        """Whether clusters leave sums for one another in global memory."""
        return self.stream_k or self.work_items > 1

    @property
    def has_workspace(self) -> bool:
        """Whether a launch needs a workspace in global memory."""
        return self.leaves_sums or self.pace > 0

    @property
    def specialised(self) -> bool:
        """Whether a warpgroup of its own does the loading."""
        return self.schedule != "multistage"

    def peeks(self, side: Side) -> bool:
        """Whether a side of the ring probes ahead."""
        return self.peek is True or self.peek == side

    def as_dict(self) -> dict[str, Any]:
        """Every field by its own name, ready for a row of a table or JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A label that names every field, short enough for a line of a log."""
        walk = f"{self.raster}{self.swizzle}{'serp' if self.serpentine else ''}"
        epilogue = f"epi{self.epi_n}x{self.epi_buffers}"
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} lag{self.stagger} {self.consumers}{self.split} "
            f"{self.schedule[:4]} {self.cluster_m}x{self.cluster_n} {walk} {epilogue}{' peek' if self.peek else ''}"
            f"{'' if isinstance(self.peek, bool) else '-' + self.peek}"
            + "".join(f" {name}={getattr(self, name)}" for name in LATER if getattr(self, name) != DEFAULTS[name])
        )


INTEGERS = (
    "tile_m",
    "tile_n",
    "k_depth",
    "stages",
    "stagger",
    "consumers",
    "cluster_m",
    "cluster_n",
    "swizzle",
    "epi_n",
    "epi_buffers",
    "full_barriers",
    "l2_promotion",
    "split_k",
    "prefetch",
    "ctas_per_sm",
    "pace",
)
FROM_ZERO = ("stages", "stagger", "epi_n", "epi_buffers", "l2_promotion", "prefetch", "pace")
"""Those that may be 0."""

WORDS = {
    "split": ("m", "n", "auto"),
    "raster": ("m", "n"),
    "schedule": SCHEDULES,
    "loads": ("tma", "cp_async"),
    "stores": ("tma", "direct"),
    "ring_state": ("index_phase", "packed"),
    "arrivals": ("warp", "thread"),
    "reduction": ("cluster", "workspace"),
    "multicast": ("rows", "turns"),
}
SWITCHES = ("serpentine", "persistent", "unroll", "swap_ab", "stream_k", "early", "zigzag", "evict_c")
"""Those that are true or false."""

FIELDS = tuple(field.name for field in fields(GemmConfig))
"""Every parameter's name, in the order in which tables show them."""

DEFAULTS = {field.name: field.default for field in fields(GemmConfig)}

LATER = FIELDS[FIELDS.index("persistent") :]
"""Parameters that a label names only where they differ from the default."""

LAUNCH_FIELDS = ("raster", "swizzle", "serpentine", "persistent")
"""Parameters that are arguments of the launch: changing them recompiles nothing."""
