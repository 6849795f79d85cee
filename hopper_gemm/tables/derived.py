"""What follows from a row's parameters, as columns beside its figures: for notebooks and plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hopper_gemm.model import hopper
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import l2_bytes_per_stage, smem_intensity, smem_reads_per_flop, waves
from hopper_gemm.tables.trials import config_of

DERIVED = {
    "stage_kib": "one stage of A and B, KiB",
    "ahead": "stages that can be loading while one is multiplied: stages - 1 - stagger",
    "ahead_kib": "the same in KiB: bytes that can be in flight",
    "span": "bytes of a row of the swizzle",
    "wave_efficiency": "share of the SMs' time that computes something of the output",
    "l2_bytes_per_clock": "what an SM must take from the L2 each clock at full rate, multicast counted once",
    "flop_per_smem_byte": "arithmetic intensity of the tile",
    "smem_bytes_per_flop": "what wgmma reads back from shared memory",
    "reached": "tensor-active percent, freed of idle SMs: divided by the wave efficiency",
}
"""The columns and their meaning."""


def with_derived(trials: pd.DataFrame) -> pd.DataFrame:
    """The rows that ran, with the columns of :data:`DERIVED`.

    Args:
        trials: as :func:`hopper_gemm.tables.trials.read_trials` gives them.
    """
    ok = trials[trials["status"] == "ok"]
    found = pd.DataFrame([_derived(row) for row in ok.to_dict("records")], index=ok.index)
    return ok.join(found).assign(reached=lambda frame: frame["tensor_active"] / frame["wave_efficiency"])


def _derived(row: Mapping[str, Any]) -> dict[str, float]:
    config = config_of(row)
    shares = footprint(config)
    assert isinstance(config.stages, int)
    ahead = config.stages - 1 - config.stagger
    problem = GemmProblem(int(row["m"]), int(row["n"]), int(row["k"]))
    clocks = 2 * config.tile_m * config.tile_n * config.tile_k / hopper.FLOP_PER_CLOCK_PER_SM
    return {
        "stage_kib": shares.stage_bytes / 1024,
        "ahead": ahead,
        "ahead_kib": ahead * shares.stage_bytes / 1024,
        "span": shares.swizzle_bytes,
        "wave_efficiency": waves(config, problem).efficiency,
        "l2_bytes_per_clock": l2_bytes_per_stage(config, problem) / clocks,
        "flop_per_smem_byte": smem_intensity(config),
        "smem_bytes_per_flop": smem_reads_per_flop(config),
    }
