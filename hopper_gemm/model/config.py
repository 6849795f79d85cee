"""How it is multiplied: every parameter of the kernel, declared once, in one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Axis = Literal["m", "n"]
Side = Literal["producer", "consumer"]
Tier = Literal["space", "ladder"]

SCHEDULES = ("cooperative", "pingpong", "multistage")
SIDES = ("producer", "consumer")
ARRIVALS = ("warp", "thread", "producer", "consumer", "elected", "group")


@dataclass(frozen=True)
class Parameter:
    """What is declared of a kernel parameter beside its name and its default.

    Args:
        doc: meaning and unit.
        words: values that are words; for an integer those that stand for one until the config is resolved.
        least: the least integer; None where the value is no integer.
        flag: whether it is true or false; its words refine true.
        tier: ``"space"``: searched; ``"ladder"``: a step of the design study that never wins.
        launch: whether it is an argument of the launch: changing it recompiles nothing.
        host: whether it reaches the GPU by the launch or by TMA descriptors, and may leave the machine code as it is.
        since: version of the results schema in which it appeared.
        before: value in rows recorded earlier; the default where None.
        aliases: earlier names.
        renamed: earlier words, with what they are called now.
    """

    doc: str
    words: tuple[str, ...] = ()
    least: int | None = None
    flag: bool = False
    tier: Tier = "space"
    launch: bool = False
    host: bool = False
    since: int = 1
    before: Any = None
    aliases: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def mistake(self, value: Any) -> str | None:
        """What a value must be, where it is not."""
        if isinstance(value, str) and value in self.words:
            return None
        if self.flag:
            return None if isinstance(value, bool) else " or ".join(["true", "false", *self.words])
        if self.least is None:
            return f"one of {', '.join(self.words)}"
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= LARGEST:
            return None
        return f"an integer from {self.least} to {LARGEST}" + "".join(f' or "{word}"' for word in self.words)


LARGEST = 2**20
"""No parameter means anything beyond it; without a bound a text file could ask for loops of any length."""


def _integer(default: Any, doc: str, *words: str, least: int = 1, **about: Any) -> Any:
    return field(default=default, metadata={"is": Parameter(doc, words, least, **about)})


def _word(default: str, doc: str, *words: str, **about: Any) -> Any:
    return field(default=default, metadata={"is": Parameter(doc, words, **about)})


def _flag(default: bool, doc: str, *words: str, **about: Any) -> Any:
    return field(default=default, metadata={"is": Parameter(doc, words, flag=True, **about)})


@dataclass(frozen=True)
class GemmConfig:
    """One way to run the kernel. Values outside the rules are accepted here and refused, with every
    reason, by :func:`hopper_gemm.model.legality.reasons`; only nonsense (a tile of ``"big"``) raises.

    ``"auto"`` and ``"max"`` leave the choice to :func:`hopper_gemm.model.footprint.resolve`. A parameter is declared
    once, on its field: type, range or choices, tier, whether it is a launch argument, since which schema. Tables, sweep
    files, the command line and the kernel's key on disk derive the rest from :data:`PARAMETERS`.

    Raises:
        ValueError: a field has a value of the wrong kind.

    Example:
        >>> GemmConfig(tile_m=256, tile_n=128, k_depth=4).tile_k
        64
    """

    tile_m: int = _integer(256, "rows of the output tile of one CTA", host=True)
    tile_n: int = _integer(128, "columns of the output tile of one CTA", host=True)
    k_depth: int = _integer(4, "wgmma k-blocks of 16 per stage: tile_k = 16 * k_depth", host=True)
    stages: int | Literal["max"] = _integer(
        "max", "slots of the shared-memory ring; max: as many as fit", "max", least=0
    )
    stagger: int = _integer(1, "wgmma groups (one per stage) in flight when an older stage is released", least=0)
    consumers: int | Literal["auto"] = _integer("auto", "warpgroups that share the tile's math", "auto")
    split: Axis | Literal["auto"] = _word("auto", "side of the tile that the consumers divide", "m", "n", "auto")
    schedule: str = _word(
        "cooperative",
        "cooperative: a producer warpgroup loads, all consumers share each tile; pingpong: two consumers take whole "
        "tiles in turn, so that the epilogue of one overlaps the math of the other; multistage: no producer, the "
        "consumers' first warp loads ahead",
        *SCHEDULES,
    )
    cluster_m: int = _integer(1, "CTAs of a cluster along m; they share, by multicast, the tile of B", host=True)
    cluster_n: int = _integer(1, "CTAs of a cluster along n; they share, by multicast, the tile of A", host=True)
    raster: Axis = _word("m", "axis along which consecutive tiles walk", "m", "n", launch=True)
    swizzle: int = _integer(
        8, "cluster tiles of the other axis that advance together before the walk takes a step", launch=True
    )
    serpentine: bool = _flag(
        True, "walk every other swizzle group in reverse, starting where the last ended", launch=True
    )
    peek: bool | Side = _flag(
        True,
        "probe the next stage's barrier early and block only if the probe failed: true, false, or one side",
        *SIDES,
    )
    epi_n: int | Literal["auto", "wide"] = _integer(
        "auto",
        "columns of an epilogue chunk: at most 8, 16, 32 or 64, or an odd multiple of 8 from 24 that divides a "
        "consumer's columns; auto: 64 where they fit beside the ring, else 32, or what divides the share; wide: the "
        "same, but an odd multiple of 8 rather than fewer than 32; half as many for fp32 output; 0 with direct stores",
        "auto",
        "wide",
        least=0,
    )
    epi_buffers: int | Literal["max"] = _integer(
        "max",
        "chunk buffers of each consumer; max: up to four of what the ring leaves; 0 with direct stores",
        "max",
        least=0,
    )
    persistent: bool = _flag(
        True, "as many CTAs as fit at once, each walking over tiles; else one CTA a tile", launch=True
    )
    loads: Literal["tma", "cp_async", "mixed"] = _word(
        "tma",
        "what fills the ring; cp_async: the producer's threads, 16 bytes each; mixed: A by TMA and B by cp.async, on "
        "one full barrier",
        "tma",
        "cp_async",
        "mixed",
        tier="ladder",
    )
    stores: Literal["tma", "direct"] = _word(
        "tma",
        "how a tile leaves: through shared memory by TMA, or straight from registers",
        "tma",
        "direct",
        tier="ladder",
    )
    unroll: bool = _flag(False, "unroll the main loop by the number of stages", tier="ladder")
    ring_state: Literal["index_phase", "packed"] = _word(
        "index_phase",
        "how a role keeps its place in the ring: two integers, or one",
        "index_phase",
        "packed",
        tier="ladder",
    )
    arrivals: Literal["warp", "thread", "producer", "consumer", "elected", "group"] = _word(
        "warp",
        "who arrives on a barrier: one lane of each warp; every thread, or every one of the producer or of the "
        "consumers alone; of a consumer's warp one elected thread behind a warp sync; of a consumer one warp's lane "
        "(group)",
        *ARRIVALS,
        tier="ladder",
    )
    full_barriers: int = _integer(1, "full barriers of a stage: 1 for A and B together, 2 for one each", tier="ladder")
    l2_promotion: int = _integer(
        128, "bytes that the L2 fetches from DRAM at least for a TMA load: 0, 64, 128 or 256", least=0, host=True
    )
    split_k: int = _integer(1, "parts into which k is divided (split-K), summed in a fixed order")
    swap_ab: bool = _flag(
        False,
        "compute C's transpose as B's transpose times A's: tile_m, cluster_m and raster m then run along n, so that "
        "few rows of C ride on wgmma's n",
    )
    stream_k: bool = _flag(False, "stream-K: cut the tiles of the last, partly filled wave along k")
    pdl: bool = _flag(
        False,
        "programmatic dependent launch: the kernel may start before the one ahead of it on the stream has ended",
        aliases=("early",),
    )
    reduction: Literal["cluster", "workspace"] = _word(
        "cluster",
        "where split-K parts meet: in the shared memory of a cluster, or in a workspace in global memory",
        "cluster",
        "workspace",
    )
    prefetch: int = _integer(
        0,
        "stages of a CTA's first tile that it asks into the L2 before it sets itself up, or waits for the kernel ahead",
        least=0,
        tier="ladder",
    )
    ctas_per_sm: int = _integer(1, "CTAs that share an SM, its memory and its registers", host=True)
    multicast: Literal["split", "alternate"] = _word(
        "split",
        "how the CTAs of a cluster divide the loading of a shared tile: each a slice of its rows, or one CTA all of "
        "it, alternating stage by stage",
        "split",
        "alternate",
        renamed={"rows": "split", "turns": "alternate"},
    )
    reverse_k: bool = _flag(
        False,
        "load every other tile of a CTA from the end of k to its beginning: clusters reach the end of their tiles "
        "together, and what they read last of shared panels is what the L2 still holds",
        aliases=("zigzag",),
    )
    pace: int = _integer(
        0,
        "stages between two meetings of all producers, or 0: CTAs that share panels drift apart and read them from "
        "DRAM again; a producer waits a bounded time at a meeting, so nothing depends on it",
        least=0,
    )
    evict_c: bool = _flag(False, "the L2 is told to drop C first")
    staging: Literal["own", "ring"] = _word(
        "own",
        "where C's chunks lie on their way out: in memory of their own, beside which the next tile is loaded; or in "
        "the ring, in the slots that held the tile's last stages, all chunks at once",
        "own",
        "ring",
        since=2,
    )
    scheduler: Literal["static", "dynamic"] = _word(
        "static",
        "which tiles a cluster computes: every so many of the order; or the next one whenever it is free (dynamic), so "
        "that an SM that is late or busy holds nobody up",
        "static",
        "dynamic",
        since=2,
    )
    skew: int = _integer(
        0,
        "stages by which each consumer starts behind the one before it, so that the epilogue of one runs under the "
        "wgmma of the other",
        least=0,
        since=2,
    )
    interleave_k: bool = _flag(
        False,
        "which stages a split-K part has: every split_k-th one, so that CTAs of one tile read neighbouring bytes of the "  # noqa: E501
        "same rows at the same time; else a run of them",
        tier="ladder",
        since=2,
    )
    part_order: Literal["tile", "part"] = _word(
        "tile",
        "which split-K parts follow one another in the order of the work, where they go through a workspace: those of a "  # noqa: E501
        "tile, or of all tiles the first, then the second, so that CTAs side by side share operands",
        "tile",
        "part",
        since=2,
    )
    rotate_k: int = _integer(
        0,
        "stages by which clusters side by side begin apart in k, each going round to where it began: rows whose pitch "
        "is a power of two otherwise ask few slices of the L2 at a time",
        least=0,
        tier="ladder",
        since=2,
    )

    ring: Literal["own", "library"] = _word(
        "own",
        "what keeps the ring: barriers of our own, or cutlass.pipeline's PipelineTmaAsync with its PipelineState",
        "own",
        "library",
        tier="ladder",
        since=2,
    )
    waits: Literal["acquire", "relaxed"] = _word(
        "acquire",
        "memory order of a wait on a barrier of the ring (PTX, mbarrier.try_wait)",
        "acquire",
        "relaxed",
        tier="ladder",
        since=2,
    )
    spills: bool = _flag(
        False,
        "let registers run out: none move from the producer to the consumers, and what spills is timed all the same",
        tier="ladder",
        since=2,
    )

    def __post_init__(self) -> None:
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            wanted = parameter.mistake(value)
            if wanted is not None:
                raise ValueError(f"{name} must be {wanted} but got {value!r}")

    @staticmethod
    def of(values: Mapping[str, Any]) -> GemmConfig:
        """A config from values by name, earlier names and words included; what is not named has its default.

        Raises:
            ValueError: a name that no parameter has or had, or a value of the wrong kind.

        Example:
            >>> GemmConfig.of({"early": True, "multicast": "turns"}).multicast
            'alternate'
        """
        return GemmConfig(**current(values))

    def but(self, **values: Any) -> GemmConfig:
        """The same config with other values, which are not checked: a space has a hundred thousand configs, and to
        check every field of each would take most of the time.

        Example:
            >>> GemmConfig().but(tile_m=256).tile_m
            256
        """
        other = object.__new__(GemmConfig)
        other.__dict__.update(self.__dict__, **values)
        return other

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
        """Pieces of work for each cluster tile: more than one where its split-K parts are taken one by one."""
        return self.split_k if self.reduction == "workspace" else 1

    @property
    def leaves_sums(self) -> bool:
        """Whether clusters leave sums for one another in global memory."""
        return self.stream_k or self.work_items > 1

    @property
    def has_workspace(self) -> bool:
        """Whether a launch needs a workspace in global memory."""
        return self.leaves_sums or self.pace > 0 or self.scheduler == "dynamic"

    @property
    def specialised(self) -> bool:
        """Whether a warpgroup of its own does the loading."""
        return self.schedule != "multistage"

    def peeks(self, side: Side) -> bool:
        """Whether a side of the ring probes ahead; with one stage it would ask for what it holds itself."""
        return self.stages != 1 and (self.peek is True or self.peek == side)

    def every_thread(self, side: Side) -> bool:
        """Whether every thread of a side of the ring arrives on its barriers."""
        return self.arrivals in ("thread", side)

    def as_dict(self) -> dict[str, Any]:
        """Every field by its own name, ready for a row of a table or JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A label that tells configs apart, short enough for a line of a log; :data:`LEGEND` explains it."""
        walk = f"{self.raster}{self.swizzle}{'serp' if self.serpentine else ''}"
        peek = "" if self.peek is False else " peek" if self.peek is True else f" peek-{self.peek}"
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} stagger{self.stagger} "
            f"{self.consumers}{self.split} {self.schedule[:4]} {self.cluster_m}x{self.cluster_n} {walk} "
            f"epi{self.epi_n}x{self.epi_buffers}{peek}"
            + "".join(f" {name}={getattr(self, name)}" for name in LATER if getattr(self, name) != DEFAULTS[name])
        )


LEGEND = (
    "tile_m x tile_n x tile_k, stages, stagger, consumers and the side they split, schedule, cluster m x n, raster "
    "axis and swizzle group (serp: serpentine), epilogue chunk columns x buffers, peek; then every parameter that "
    "differs from its default"
)
"""What stands in a config's label, in order."""

PARAMETERS: dict[str, Parameter] = {one.name: one.metadata["is"] for one in fields(GemmConfig)}
"""What is declared of each parameter, in the order in which tables show them."""

FIELDS = tuple(PARAMETERS)
"""Every parameter's name."""

DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(GemmConfig)}

BEFORE: dict[str, Any] = {
    name: DEFAULTS[name] if parameter.before is None else parameter.before for name, parameter in PARAMETERS.items()
}
"""Values in rows that were recorded before there was the parameter."""

LATER = FIELDS[FIELDS.index("persistent") :]
"""Parameters that a label names only where they differ from the default."""

LAUNCH_FIELDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.launch)
"""Parameters that are arguments of the launch: changing them recompiles nothing."""

HOST_FIELDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.launch or parameter.host)
"""Parameters that may leave the machine code as it is."""

ALIASES = {alias: name for name, parameter in PARAMETERS.items() for alias in parameter.aliases}
"""Earlier names of parameters, with what they are called now."""


def current(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, with earlier names and words replaced by those of now.

    Raises:
        ValueError: a name that no parameter has or had, or two names of one parameter.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        now = ALIASES.get(name, name)
        if now not in PARAMETERS:
            raise ValueError(f"{name} is not a kernel parameter; choose among {', '.join(FIELDS)}")
        if now in found:
            raise ValueError(f"{now} is given twice, by this name and by an earlier one; leave one of them out")
        found[now] = PARAMETERS[now].renamed.get(value, value) if isinstance(value, str) else value
    return found
