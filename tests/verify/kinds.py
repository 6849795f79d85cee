"""Every kind of kernel, and in which circumstances each is verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import config_of
from tests.verify.drawing import Pair
from tests.verify.harness import LATENESS, PROCESSES, VerifyJob

PROBLEM, CHAIN, LONG = (GemmProblem(*sizes) for sizes in ((2000, 1544, 4096), (768, 768, 768), (8192, 8192, 8192)))
"""One with a ragged last wave; that of a chain of products; one of a millisecond."""

PROBLEMS = {
    "split-K, many parts": GemmProblem(640, 520, 16384),
    "stream-K, two CTAs an SM": GemmProblem(64, 96, 65536),
    "clusters of four, one stage": GemmProblem(512, 512, 65536),
    "alternating multicast, one stage": GemmProblem(512, 512, 65536),
}
"""Problems of kinds that want another: one that 64 parts fit; one whose only tile is cut for all CTAs; one whose stages
show in a changing bit if a CTA of the cluster lags behind the others."""

KINDS: dict[str, dict[str, Any]] = {
    "static": {},
    "cluster": {"cluster_m": 2},
    "alternating multicast": {"cluster_m": 4, "multicast": "alternate"},
    "clusters of four, one stage": {"cluster_m": 2, "cluster_n": 2, "stages": 1, "stagger": 0, "k_depth": 1},
    "alternating multicast, one stage": {
        "cluster_m": 4,
        "multicast": "alternate",
        "stages": 1,
        "stagger": 0,
        "k_depth": 1,
    },
    "pingpong": {"schedule": "pingpong"},
    "multistage": {"schedule": "multistage", "stages": 4},
    "cp.async": {"loads": "cp_async"},
    "one CTA a tile": {"persistent": False, "cluster_n": 2},
    "two CTAs an SM": {"tile_n": 64, "ctas_per_sm": 2},
    "pace": {"pace": 1, "cluster_m": 2, "reverse_k": True},
    "skew": {"tile_m": 256, "skew": 2},
    "split-K in a cluster": {"split_k": 4},
    "split-K": {"split_k": 4, "reduction": "workspace"},
    "split-K, clusters": {"split_k": 7, "reduction": "workspace", "cluster_m": 2, "swap_ab": True},
    "split-K, many parts": {"split_k": 64, "reduction": "workspace", "tile_m": 64},
    "stream-K": {"stream_k": True},
    "stream-K, clusters": {"stream_k": True, "cluster_n": 2, "tile_m": 256},
    "stream-K, two CTAs an SM": {"stream_k": True, "ctas_per_sm": 2, "tile_m": 64, "tile_n": 96, "k_depth": 1},
    "dynamic": {"scheduler": "dynamic"},
    "dynamic, clusters": {"scheduler": "dynamic", "cluster_m": 2, "cluster_n": 2, "pace": 4, "reverse_k": True},
    "dynamic, skew": {"scheduler": "dynamic", "tile_m": 256, "skew": 2, "cluster_m": 2},
    "dynamic, split-K": {"scheduler": "dynamic", "split_k": 4, "reduction": "workspace", "cluster_n": 2},
    "C staged in the ring": {"staging": "ring", "scheduler": "dynamic", "cluster_m": 2},
}
"""Configs by name; tiles are 128x128 where none are given."""

LATE: dict[str, dict[str, Any]] = {
    "dynamic, 128x256": {"tile_n": 256, "cluster_m": 2, "stagger": 0, "scheduler": "dynamic"},
    "dynamic, 256x200": {
        "tile_m": 256,
        "tile_n": 200,
        "cluster_m": 2,
        "multicast": "alternate",
        "reverse_k": True,
        "swap_ab": True,
        "stagger": 0,
        "epi_n": "wide",
        "scheduler": "dynamic",
    },
}
"""Kinds of which it is also measured how long they take beside another kernel."""

CIRCUMSTANCES = {
    "busy SMs": "another kernel holds 1, 4 or 16 SMs, so that not all clusters of a persistent launch are resident",
    "few SMs": "a green context has 16 or 64 SMs, fewer than the device reports",
    "priorities": "launches on a stream of high priority take SMs from launches on one of low priority",
    "streams": "launches on four streams at once",
    "graphs": "two CUDA graphs, replayed in either order, at once, and after the kernel's object is gone",
    "threads": "eight host threads load the kernel and launch it, each on a stream of its own",
    "chain": "40 dependent products, with programmatic dependent launch and without",
    PROCESSES: "two processes on one GPU, each with four streams",
    LATENESS: "with 1, 4 and 16 SMs held, a launch of the dynamic scheduler takes at most 1.15 times what its share of "
    "the SMs explains",
}
"""Ways to launch, by name. Each is a function of :mod:`tests.verify.load` but that of processes, which the
harness sees to."""


def kind(name: str) -> Pair:
    """A kind of kernel on a problem that brings out what may go wrong with it."""
    config = config_of({"tile_m": 128, "tile_n": 128, **(KINDS | LATE)[name]})
    return Pair(config, LONG if name in LATE else PROBLEMS.get(name, PROBLEM), seed=7)


def chained(config: GemmConfig) -> tuple[GemmConfig, GemmConfig]:
    """A config without and with programmatic dependent launch."""
    return replace(config, pdl=False), replace(config, pdl=True)


def load_jobs() -> Iterator[VerifyJob]:
    """Every kind in every circumstance in which it can run."""
    for circumstance in (one for one in CIRCUMSTANCES if one != LATENESS):
        for name in KINDS:
            pair = kind(name)
            also = [Pair(config, CHAIN) for config in chained(pair.config)] if circumstance == "chain" else []
            if all(is_legal(one.config, one.problem) for one in also):
                yield VerifyJob(pair, circumstance, name, tuple(also))
    for name in LATE:
        yield VerifyJob(kind(name), LATENESS, name)
