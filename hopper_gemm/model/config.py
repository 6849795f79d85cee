"""Kernel configuration: every parameter, declared once, in one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, Self

from hopper_gemm.model.problem import shown

Axis = Literal["m", "n"]
Tier = Literal["space", "ladder"]

SCHEDULES = ("cooperative", "pingpong")


@dataclass(frozen=True)
class Parameter:
    """Declaration of a kernel parameter, beside its name and its default."""

    doc: str  # meaning and unit
    # values given as words; for an integer, words that stand for a number until the config is resolved
    words: tuple[str, ...] = ()
    least: int | None = None  # smallest integer allowed; None if the value is no integer
    flag: bool = False  # True for a boolean parameter; its words are variants of true
    tier: Tier = "space"  # "space": searched; "ladder": a step of the design study that never wins
    launch: bool = False  # True for a launch argument: changing it recompiles nothing
    # True if it reaches the GPU by the launch or by TMA descriptors, and may leave the machine code as it is
    host: bool = False
    since: int = 1  # version of the results schema in which it appeared
    before: Any = None  # value in rows of earlier versions; None: the default
    after: str = ""  # the parameter behind which tables and labels show it; none: as declared
    aliases: tuple[str, ...] = ()  # earlier names
    renamed: Mapping[str, str] = field(default_factory=dict)  # earlier words, each with its present name

    def mistake(self, value: Any) -> str | None:
        """Return the requirement that a value breaks; None if it breaks none."""
        if isinstance(value, str) and value in self.words:
            return None
        if self.flag:
            return None if isinstance(value, bool) else " or ".join(["true", "false", *self.words])
        if self.least is None:
            return f"one of {', '.join(self.words)}"
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= LARGEST:
            return None
        return f"an integer from {self.least} to {LARGEST}" + "".join(f' or "{word}"' for word in self.words)


LARGEST = 2**20  # largest value of an integer parameter; without a bound a text file could ask for loops of any length


def integer(default: Any, doc: str, *words: str, least: int = 1, **about: Any) -> Any:
    """A field for an integer from ``least`` on, or a word that stands for a number until the config is resolved."""
    return field(default=default, metadata={"is": Parameter(doc, words, least, **about)})


def word(default: str, doc: str, *words: str, **about: Any) -> Any:
    """A field for one of the words."""
    return field(default=default, metadata={"is": Parameter(doc, words, **about)})


def flag(default: bool, doc: str, *words: str, **about: Any) -> Any:
    """A boolean field; its words are variants of true."""
    return field(default=default, metadata={"is": Parameter(doc, words, flag=True, **about)})


@dataclass(frozen=True)
class GemmConfig:
    """A kernel configuration as requested. Values outside the rules are accepted here and refused, with every reason,
    by :func:`hopper_gemm.model.legality.reasons`; only a value of the wrong kind (a tile of ``"big"``) raises.

    ``"auto"`` and ``"max"`` leave the choice to :func:`hopper_gemm.model.kernel.resolve`, which returns a
    :class:`hopper_gemm.model.kernel.Kernel`. A parameter is declared once, on its field: type, range or choices, tier,
    launch argument or not, schema version. Tables, sweep files, the command line and the kernel's key on disk derive
    the rest from :func:`parameters_of`.

    A subclass may add fields that turn some of the constants below into parameters, as the design study does.

    Raises:
        ValueError: a field has a value of the wrong kind.

    Example:
        >>> GemmConfig(tile_m=256, tile_n=128, k_depth=4).tile_k
        64
    """

    tile_m: int = integer(256, "rows of the output tile of one CTA", host=True)
    tile_n: int = integer(128, "columns of the output tile of one CTA", host=True)
    k_depth: int = integer(4, "wgmma k-blocks of 16 per stage: tile_k = 16 * k_depth", host=True)
    stages: int | Literal["max"] = integer(
        "max", "slots of the shared-memory ring; max: as many as fit", "max", least=0
    )
    stagger: int = integer(1, "wgmma groups (one per stage) in flight when an older stage is released", least=0)
    consumers: int | Literal["auto"] = integer("auto", "warpgroups that share the tile's math", "auto")
    split: Axis | Literal["auto"] = word("auto", "side of the tile that the consumers divide", "m", "n", "auto")
    schedule: str = word(
        "cooperative",
        "cooperative: a producer warpgroup loads, all consumers share each tile; pingpong: two consumers take whole "
        "tiles in turn, so that the epilogue of one overlaps the math of the other",
        *SCHEDULES,
    )
    cluster_m: int = integer(1, "CTAs of a cluster along m; they share, by multicast, the tile of B", host=True)
    cluster_n: int = integer(1, "CTAs of a cluster along n; they share, by multicast, the tile of A", host=True)
    raster: Axis = word("m", "axis along which consecutive tiles walk", "m", "n", launch=True)
    swizzle: int = integer(
        8, "cluster tiles of the other axis that advance together before the walk takes a step", launch=True
    )
    epi_n: int | Literal["auto", "wide"] = integer(
        "auto",
        "columns of an epilogue chunk: at most 8, 16, 32 or 64, or an odd multiple of 8 from 24 that divides a "
        "consumer's columns; auto: 64 where they fit beside the ring, else 32, or what divides the share; wide: the "
        "same, but an odd multiple of 8 rather than fewer than 32; half as many for fp32 output; 0 with direct stores",
        "auto",
        "wide",
        least=0,
    )
    epi_buffers: int | Literal["max"] = integer(
        "max",
        "chunk buffers of each consumer; max: up to four of what the ring leaves; 0 with direct stores",
        "max",
        least=0,
    )
    split_k: int = integer(
        1,
        "parts into which k is divided (split-K), summed in a fixed order; with a workspace an argument of the launch",
        host=True,
    )
    swap_ab: bool = flag(
        False,
        "compute C's transpose as B's transpose times A's: tile_m, cluster_m and raster m then run along n, so that "
        "few rows of C ride on wgmma's n",
    )
    pdl: bool = flag(
        False,
        "programmatic dependent launch: the kernel may start before the one ahead of it on the stream has ended",
        aliases=("early",),
    )
    reduction: Literal["cluster", "workspace"] = word(
        "cluster",
        "where split-K parts meet: in the shared memory of a cluster, or in a workspace in global memory",
        "cluster",
        "workspace",
    )
    ctas_per_sm: int = integer(1, "CTAs that share an SM, its memory and its registers", host=True)
    multicast: Literal["split", "alternate"] = word(
        "split",
        "how the CTAs of a cluster divide the loading of a shared tile: each a part of its rows or of its depth, or "
        "one CTA all of it, alternating stage by stage",
        "split",
        "alternate",
        renamed={"rows": "split", "turns": "alternate"},
    )
    reverse_k: bool = flag(
        False,
        "load every other tile of a CTA from the end of k to its beginning: clusters reach the end of their tiles "
        "together, and what they read last of shared panels is what the L2 still holds",
        aliases=("zigzag",),
    )
    pace: int = integer(
        0,
        "stages between two meetings of all producers, or 0: CTAs that share panels drift apart and read them from "
        "DRAM again; a producer waits a bounded time at a meeting, so nothing depends on it",
        least=0,
    )
    evict_c: bool = flag(False, "evict C from the L2 before anything else")
    staging: Literal["own", "ring"] = word(
        "own",
        "where C's chunks lie on their way out: in memory of their own, beside which the next tile is loaded; or in "
        "the ring, in the slots that held the tile's last stages, all chunks at once",
        "own",
        "ring",
        since=2,
    )
    scheduler: Literal["static", "dynamic"] = word(
        "static",
        "which tiles a cluster computes: those at a fixed stride of the order (static), or the next one whenever it is "
        "free (dynamic), so that a late or busy SM delays no other",
        "static",
        "dynamic",
        since=2,
    )
    part_order: Literal["tile", "part"] = word(
        "tile",
        "which split-K parts follow one another in the order of the work, where they go through a workspace: those of a "  # noqa: E501
        "tile, or of all tiles the first, then the second, so that CTAs side by side share operands",
        "tile",
        "part",
        launch=True,
        since=2,
    )
    # Fixed properties on which the launch, the registers or the shared memory depend: loads and stores by TMA, a
    # serpentine walk, persistent CTAs, early probes of the barriers, one full barrier for A and B, rolled loops, no
    # spills, no stream-K, a producer warpgroup
    loads = "tma"
    stores = "tma"
    serpentine = True
    persistent = True
    peek = True
    full_barriers = 1
    unroll = False
    spills = False
    stream_k = False
    specialised = True
    builder = "hopper_gemm.kernel.gemm:HopperGemm"  # the class that builds the kernel, as module:name

    def __post_init__(self) -> None:
        for name, parameter in parameters_of(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            wanted = parameter.mistake(value)
            if wanted is not None:
                raise ValueError(f"{name} must be {wanted} but got {shown(value)}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from values by name, earlier names and words included; other parameters take their default.

        Raises:
            ValueError: a name that no parameter has or had, or a value of the wrong kind.

        Example:
            >>> GemmConfig.of({"early": True, "multicast": "turns"}).multicast
            'alternate'
        """
        return cls(**current(values, cls))

    def but(self, **values: Any) -> Self:
        """Return a copy with other values, unchecked: a space has a hundred thousand configs, and checking every field
        of each would take most of the time.

        Example:
            >>> GemmConfig().but(tile_m=256).tile_m
            256
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **values)
        return other

    @classmethod
    def like(cls, other: GemmConfig) -> Self:
        """Return a config of this class with the values of another config, which has all of its parameters."""
        made = object.__new__(cls)
        made.__dict__.update({one.name: getattr(other, one.name) for one in fields(cls)})
        return made

    def narrowed(self) -> GemmConfig:
        """Return the same config as the narrowest class that has its parameters."""
        return self

    @property
    def tile_k(self) -> int:
        """Depth of one stage in 16-bit elements; twice as many of FP8."""
        return 16 * self.k_depth

    @property
    def cluster_size(self) -> int:
        """CTAs of one cluster."""
        return self.cluster_m * self.cluster_n * (self.split_k if self.reduction == "cluster" else 1)

    @property
    def work_items(self) -> int:
        """Work items of a cluster tile: more than one if its split-K parts are scheduled one by one."""
        return self.split_k if self.reduction == "workspace" else 1

    @property
    def parts_at_launch(self) -> bool:
        """True if the machine code serves any number of split-K parts, which add up through a workspace."""
        return self.reduction == "workspace"

    @property
    def leaves_sums(self) -> bool:
        """True if clusters exchange partial sums through global memory."""
        return self.stream_k or self.parts_at_launch

    @property
    def has_workspace(self) -> bool:
        """True if a launch needs a workspace in global memory."""
        return self.leaves_sums or self.pace > 0 or self.scheduler == "dynamic"

    def as_dict(self) -> dict[str, Any]:
        """Every field by its own name, ready for a row of a table or JSON."""
        return {name: getattr(self, name) for name in parameters_of(type(self))}  # type: ignore[arg-type]

    def __str__(self) -> str:
        """A label that tells configs apart, short enough for a line of a log; :data:`LEGEND` explains it."""
        walk = f"{self.raster}{self.swizzle}{'serp' if self.serpentine else ''}"
        peek = "" if self.peek is False else " peek" if self.peek is True else f" peek-{self.peek}"
        defaults = {one.name: one.default for one in fields(self)}
        later = [name for name in parameters_of(type(self)) if name not in LABELLED]  # type: ignore[arg-type]
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} stagger{self.stagger} "
            f"{self.consumers}{self.split} {self.schedule[:4]} {self.cluster_m}x{self.cluster_n} {walk} "
            f"epi{self.epi_n}x{self.epi_buffers}{peek}"
            + "".join(f" {name}={value}" for name in later if (value := getattr(self, name)) != defaults[name])
        )


# parts of a config's label, in order
LEGEND = (
    "tile_m x tile_n x tile_k, stages, stagger, consumers and the side they split, schedule, cluster m x n, raster "
    "axis and swizzle group (serp: serpentine), epilogue chunk columns x buffers, peek; then every parameter that "
    "differs from its default"
)

# parameters that a label always shows
LABELLED = (
    *("tile_m", "tile_n", "k_depth", "stages", "stagger", "consumers", "split", "schedule", "cluster_m", "cluster_n"),
    *("raster", "swizzle", "serpentine", "epi_n", "epi_buffers", "peek"),
)


@cache
def parameters_of(kind: Any) -> Mapping[str, Parameter]:
    """Declarations of the parameters of a config class, in the order in which tables show them."""
    declared = {one.name: one.metadata["is"] for one in fields(kind)}
    order = [name for name, parameter in declared.items() if not parameter.after]
    for name, parameter in declared.items():
        if parameter.after:
            order.insert(order.index(parameter.after) + 1, name)
    return {name: declared[name] for name in order}


@cache
def launch_defaults(kind: Any) -> Mapping[str, Any]:
    """Defaults of the launch arguments of a config class."""
    return {one.name: one.default for one in fields(kind) if one.metadata["is"].launch}


PARAMETERS = parameters_of(GemmConfig)
FIELDS = tuple(PARAMETERS)
DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(GemmConfig)}

GemmConfig.__doc__ = f"{GemmConfig.__doc__}\n    Parameters:\n" + "".join(
    f"        {name} (default {DEFAULTS[name]!r}): {parameter.doc}\n" for name, parameter in PARAMETERS.items()
)

# parameters of the design study that tables and recorded binaries hold as well, each at the kernel's own value
FIXED: dict[str, Any] = {name: getattr(GemmConfig, name) for name in ("loads", "stores")}

# parameters that are arguments of the launch: changing them recompiles nothing
LAUNCH_FIELDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.launch)


def current(values: Mapping[str, Any], kind: type[GemmConfig] = GemmConfig) -> dict[str, Any]:
    """Return values, earlier names and words replaced; a ValueError for an unknown name, or two of one parameter."""
    parameters, found = parameters_of(kind), dict[str, Any]()  # type: ignore[arg-type]
    aliases = {alias: name for name, parameter in parameters.items() for alias in parameter.aliases}
    for name, value in values.items():
        now = aliases.get(name, name)
        if now not in parameters and now in FIXED:
            if value == FIXED[now]:
                continue
            raise ValueError(f"{now} must be {FIXED[now]!r} outside the design study but got {value!r}; leave it out")
        if now not in parameters:
            raise ValueError(f"{name} is not a kernel parameter; choose among {', '.join(parameters)}")
        if now in found:
            raise ValueError(f"{now} is given twice, by this name and by an earlier one; leave one of them out")
        found[now] = parameters[now].renamed.get(value, value) if isinstance(value, str) else value
    return found
