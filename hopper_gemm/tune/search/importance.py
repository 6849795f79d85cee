"""The importance of each parameter for a search's figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import ended_trial
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.space import place_of
from hopper_gemm.tune.study.spec import DIRECTIONS, Spec

EVALUATOR = "PED-ANOVA"
LEAST = 10
"""Fewest configs from which importance is computed."""


def importances(spec: Spec, rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return for each task the evaluator's name and each parameter's importance, the greatest first.

    Args:
        spec: of the sweep; with two objectives the first counts.
        rows: its rows.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = spec.objective[0]
    by_task: dict[str, list[tuple[GemmConfig, float]]] = {}
    for row in rows:
        config, value = row.point.config, row.figures.get(name)
        if row.ok and config is not None and value is not None:
            by_task.setdefault(place_of(row.point), []).append((config, float(value)))
    importance = {}
    for task, results in by_task.items():
        if len(results) < LEAST:
            continue
        space = LegalSpace([config for config, _ in results])
        study = optuna.create_study(direction=DIRECTIONS[name])
        for number, (_, value) in enumerate(results):
            study.add_trial(ended_trial(space, number, [value]))
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        importance[task] = {
            "evaluator": EVALUATOR,
            "of": name,
            "parameters": {k: round(v, 4) for k, v in shares.items()},
        }
    return importance
