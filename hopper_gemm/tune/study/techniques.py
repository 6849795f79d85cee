"""The kernels of a space that a search compiles: the best by the model, spread over the techniques."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.pooling import grouped


def promising(configs: Sequence[Kernel], problem: GemmProblem, keep: int, warm: Iterable[Kernel] = ()) -> set[Kernel]:
    """Return the kernels, of configs that are legal on a problem, of the ``keep`` binaries that the model predicts to
    be fastest, with every config that launches one of these. A quarter of the binaries is spread evenly over the
    techniques, since the model may be wrong about a whole technique; binaries of ``warm`` configs stay whatever the
    model predicts."""
    ranked: dict[Kernel, tuple[Any, ...]] = {}
    for config in sorted(configs, key=lambda config: predict(config, problem).seconds):
        ranked.setdefault(config.compiled(), technique(config))
    by_technique = grouped(ranked, lambda key: ranked[key])
    each = keep // 4 // max(1, len(by_technique))
    dealt = [key for of in by_technique.values() for key in of[:each]]
    chosen = {*list(dict.fromkeys([*dealt, *ranked]))[:keep], *(config.compiled() for config in warm)}
    return {config for config in configs if config.compiled() in chosen}


def technique(config: GemmConfig) -> tuple[Any, ...]:
    """Key of a config's technique: the parameters that change the algorithm, tile sizes aside."""
    return (
        config.schedule,
        config.split_k > 1,
        config.reduction,
        config.part_order,
        config.swap_ab,
        config.ctas_per_sm,
        config.cluster_size > 2,
        config.pdl,
    )
