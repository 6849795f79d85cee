"""Samplers by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.search.gp import Gp
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective
from hopper_gemm.tune.search.samplers import LegalSampler, Losses, Ranked, Tpe, diverse

SAMPLERS = ("exhaustive", "random", "tpe", "gp", "prior")


def make(
    name: str,
    space: LegalSpace,
    objective: Objective,
    seed: int,
    predicted: np.ndarray,
    seeds: int = 4,
    earlier: Sequence[tuple[GemmConfig, Losses, float]] = (),
    initial: Sequence[int] = (),
) -> LegalSampler:
    """Return a new sampler.

    Args:
        name: of :data:`SAMPLERS`.
        space, objective, seed: as for :class:`hopper_gemm.tune.search.samplers.LegalSampler`.
        predicted: logarithm of the time that a model predicts for each config of the space.
        seeds: number of configs that guided samplers try first: up to half of them are the best of earlier studies, the
            others the model's.
        earlier: configs with losses and prediction, from earlier studies.
        initial: numbers of the configs that guided samplers try before those.

    Raises:
        ValueError: there is no such sampler.
    """
    if name == "exhaustive":
        return Ranked(space, objective, seed, np.arange(len(space)))
    if name == "random":
        return LegalSampler(space, objective, seed)
    ranked = sorted((losses, number) for config, losses, _ in earlier if (number := space.like(config)) is not None)
    seeded = list(dict.fromkeys(number for _, number in ranked))[: seeds // 2]
    if name == "prior":
        return Ranked(space, objective, seed, predicted, [*initial, *seeded])
    seeded += [number for number in diverse(predicted, space.configs, seeds) if number not in seeded]
    if name == "tpe":
        return Tpe(space, objective, seed, [*initial, *seeded[:seeds]])
    if name == "gp":
        return Gp(space, objective, seed, predicted, [*initial, *seeded[:seeds]], earlier)
    raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)} but got {name!r}")
