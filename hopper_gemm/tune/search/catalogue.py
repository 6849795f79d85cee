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
    known: Sequence[int] = (),
) -> LegalSampler:
    """A sampler by its name.

    Args:
        name: of :data:`SAMPLERS`.
        space, objective, seed: as for :class:`hopper_gemm.tune.search.samplers.LegalSampler`.
        predicted: logarithm of the time that a model predicts for each config of the space.
        seeds: configs that guided samplers try first: up to half of them the best of earlier studies, the others the
            model's.
        earlier: configs with losses and prediction, from earlier studies.
        known: configs that guided samplers try before those, by number.

    Raises:
        ValueError: there is no such sampler.
    """
    if name == "exhaustive":
        return Ranked(space, objective, seed, np.arange(len(space)))
    if name == "random":
        return LegalSampler(space, objective, seed)
    told = sorted((losses, number) for config, losses, _ in earlier if (number := space.like(config)) is not None)
    first = list(dict.fromkeys(number for _, number in told))[: seeds // 2]
    if name == "prior":
        return Ranked(space, objective, seed, predicted, [*known, *first])
    first += [number for number in diverse(predicted, space.configs, seeds) if number not in first]
    if name == "tpe":
        return Tpe(space, objective, seed, [*known, *first[:seeds]])
    if name == "gp":
        return Gp(space, objective, seed, predicted, [*known, *first[:seeds]], earlier)
    raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)} but got {name!r}")
