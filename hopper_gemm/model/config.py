"""How it is multiplied: every parameter of the kernel, in one frozen dataclass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Axis = Literal["m", "n"]

SCHEDULES = ("cooperative",)
SWIZZLES = (1, 2, 4, 8, 16)


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
        schedule: ``"cooperative"``: all consumers work on the same tile.
        cluster_m: CTAs of a cluster along m; they share, by multicast, the tile of B.
        cluster_n: CTAs of a cluster along n; they share, by multicast, the tile of A.
        raster: the axis along which consecutive tiles walk, ``"m"`` or ``"n"``.
        swizzle: how many tiles of the other axis advance together before the walk takes a step.
        serpentine: walk every other swizzle group backwards, so that it starts where the last one ended.
        peek: probe the next stage's barrier early, and block only if the probe failed.
        epi_n: columns of the chunks in which a tile leaves through shared memory, at most; ``"auto"`` takes 64
            where they fit beside the ring, else 32.
        epi_buffers: chunk buffers of each consumer, or ``"max"``: up to four of what the ring leaves.

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
    peek: bool = True
    epi_n: int | Literal["auto"] = "auto"
    epi_buffers: int | Literal["max"] = "max"

    def __post_init__(self) -> None:
        words = {"stages": "max", "consumers": "auto", "epi_n": "auto", "epi_buffers": "max"}
        for name in INTEGERS:
            value = getattr(self, name)
            word = words.get(name)
            if word is not None and value == word:
                continue
            least = 0 if name in ("stages", "stagger") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                kind = f"an integer from {least}" + (f' or "{word}"' if word else "")
                raise ValueError(f"{name} must be {kind} but got {value!r}")
        for name, allowed in (("split", ("m", "n", "auto")), ("raster", ("m", "n")), ("schedule", SCHEDULES)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)} but got {value!r}")
        for name in ("serpentine", "peek"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false but got {getattr(self, name)!r}")

    @property
    def tile_k(self) -> int:
        """Depth of one stage in elements."""
        return 16 * self.k_depth

    @property
    def cluster_size(self) -> int:
        """CTAs of one cluster."""
        return self.cluster_m * self.cluster_n

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
)
FIELDS = tuple(field.name for field in fields(GemmConfig))
"""Every parameter's name, in the order in which tables show them."""

LAUNCH_FIELDS = ("raster", "swizzle", "serpentine")
"""Parameters that are arguments of the launch: changing them recompiles nothing."""
