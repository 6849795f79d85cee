"""The table of pairs: the parts of which a kernel is put together, and what two of them are together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.counters.waits import METER
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.problem import GemmProblem

PROBLEM = GemmProblem(300, 528, 1000)
"""Ragged along every side, deep enough to be split, and within TMA's reach, halved too."""


@dataclass(frozen=True)
class Part:
    """One part of a kernel, or several.

    Args:
        config, finish: what it sets, by name.
        observer: as module:name; empty without.
        scattered: True if threads store C.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    finish: Mapping[str, Any] = field(default_factory=dict)
    observer: str = ""
    scattered: bool = False

    def __or__(self, other: Part) -> Part:
        """Both together."""
        config, finish = {**self.config, **other.config}, {**self.finish, **other.finish}
        return Part(config, finish, self.observer or other.observer, self.scattered or other.scattered)

    @property
    def kernel(self) -> GemmConfig:
        """The config of a kernel with the part."""
        return GemmConfig(**{"tile_m": 128, "tile_n": 128, **self.config})

    @property
    def steps(self) -> Epilogue | None:
        """The finish of a kernel with the part; None without steps."""
        return Epilogue(**self.finish) if self.finish else None

    def binary(self, problem: GemmProblem = PROBLEM) -> KernelId:
        """The binary of a kernel with the part."""
        return KernelId.of(self.kernel, problem, self.observer, self.steps, self.scattered)


PARTS = {
    "bias": Part(finish={"bias": True}),
    "activation": Part(finish={"activation": "silu"}),
    "gate": Part(finish={"activation": "silu", "gated": True}),
    "residual": Part(finish={"residual": True}),
    "scale": Part(finish={"scale": True}),
    "scattered": Part(scattered=True),
    "observer": Part(observer=METER),
    "workspace": Part({"split_k": 3, "reduction": "workspace"}),
    "cluster": Part({"split_k": 4}),
    "pingpong": Part({"schedule": "pingpong"}),
    "dynamic": Part({"scheduler": "dynamic"}),
}
"""Parts by name; ``workspace`` and ``cluster`` are split-K, whose parts meet there."""

EXCLUSIVE = {("workspace", "cluster")}
"""Two values of the same parameters."""

REFUSED = {
    **{("gate", other): "gated" for other in ("bias", "residual", "scale", "workspace", "cluster")},
    **{(way, "pingpong"): "split_k" for way in ("workspace", "cluster")},
    **{(other, "dynamic"): "scheduler" for other in ("cluster", "pingpong")},
}
"""The rule that refuses a pair, for the pairs that do not go together."""


def named(first: str, second: str) -> tuple[str, str]:
    """A pair as :data:`REFUSED` names it."""
    return (first, second) if (first, second) in REFUSED else (second, first)


PAIRS = [pair for pair in combinations(PARTS, 2) if pair not in EXCLUSIVE]
TOGETHER = [pair for pair in PAIRS if named(*pair) not in REFUSED]
"""Pairs, and those that go together."""

TRIPLES = [
    ("residual", "scattered", "observer"),
    ("bias", "scattered", "observer"),
    ("gate", "scattered", "observer"),
]
"""A finish, threads that store and an observer at once."""


def together(*names: str) -> Part:
    """Parts together."""
    whole = Part()
    for name in names:
        whole |= PARTS[name]
    return whole
