"""The objectives of a search: speed, energy, or the Pareto front of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.spec import DIRECTIONS


@dataclass(frozen=True)
class Objective:
    """One figure, or two whose Pareto front is searched.

    Args:
        names: of :data:`hopper_gemm.tune.study.spec.DIRECTIONS`.
    """

    names: tuple[str, ...] = ("speedup",)

    @property
    def directions(self) -> list[str]:
        """Directions of the objective's figures, in Optuna's words."""
        return [DIRECTIONS[name] for name in self.names]

    @property
    def pareto(self) -> bool:
        """Return True if there are two figures."""
        return len(self.names) > 1

    def values(self, figures: Mapping[str, Any]) -> list[float] | None:
        """Return the objective's figures, or None where one is missing."""
        values = [figures.get(name) for name in self.names]
        if any(value is None or value != value for value in values):
            return None
        return [float(value) for value in values]  # type: ignore[arg-type]

    def losses(self, values: Sequence[float]) -> tuple[float, ...]:
        """Return logarithms of the values, negated where more is better."""
        return tuple(
            log(value) if DIRECTIONS[name] == "minimize" else -log(value)
            for name, value in zip(self.names, values, strict=True)
        )

    def best(self, rows: Sequence[Mapping[str, Any]], most: int) -> list[int]:
        """Return the indices of the best rows, the best first.

        With two figures they are the Pareto front by its first figure, thinned evenly where it is longer than ``most``.

        Args:
            rows: figures of each.
            most: most indices to return.
        """
        scored = [(i, self.losses(values)) for i, row in enumerate(rows) if (values := self.values(row)) is not None]
        if not self.pareto:
            return [i for i, _ in sorted(scored, key=lambda pair: pair[1])][:most]
        front = [
            (i, losses)
            for i, losses in scored
            if not any(all(a <= b for a, b in zip(o, losses, strict=True)) and o != losses for _, o in scored)
        ]
        front.sort(key=lambda pair: pair[1])
        if most < 1 or len(front) <= most:
            return [i for i, _ in front][: max(0, most)]
        return [front[int(i)][0] for i in np.linspace(0, len(front) - 1, most).round()]


def joint(rows: Sequence[Row], across: str) -> Mapping[str, Any] | None:
    """Return the figures of a config over several problems; None where it did not run on all of them.

    Args:
        rows: of the config, one for each problem.
        across: ``"each"``: there is one row; ``"worst"`` or ``"mean"`` as in
            :class:`hopper_gemm.tune.study.spec.Spec`.
    """
    if not all(row.ok for row in rows):
        return None
    if across == "each":
        return rows[0].figures
    speedups = [float(row.figures["speedup"]) for row in rows]
    return {"speedup": min(speedups) if across == "worst" else float(np.exp(np.mean(np.log(speedups))))}
