"""Which parameters a search's figures hang on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.legal import LegalSpace
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec

EVALUATOR = "PED-ANOVA"
LEAST = 10
"""Fewer configs say nothing of importance."""


def importances(spec: SweepSpec, known: Mapping[Point, Answer]) -> dict[str, dict[str, Any]]:
    """For each problem and regime the evaluator's name and each parameter's importance, the greatest first.

    Args:
        spec: of the sweep; with two objectives the first counts.
        known: what was measured.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = spec.looked_for.names[0]
    by_place: dict[str, list[tuple[Point, float]]] = {}
    for point, answer in known.items():
        if answer.status == "ok" and answer.figures.get(name) is not None:
            by_place.setdefault(point.place, []).append((point, float(answer.figures[name])))
    found = {}
    for place, rows in by_place.items():
        if len(rows) < LEAST:
            continue
        space = LegalSpace([point.config for point, _ in rows])
        study = optuna.create_study(direction=spec.looked_for.directions[0])
        for number, (_, value) in enumerate(rows):
            parameters, distributions = space.parameters(number), space.distributions
            study.add_trial(
                create_trial(state=TrialState.COMPLETE, value=value, params=parameters, distributions=distributions)
            )
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        found[place] = {"evaluator": EVALUATOR, "of": name, "parameters": {k: round(v, 4) for k, v in shares.items()}}
    return found
