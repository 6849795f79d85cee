"""The objectives of a search: the fastest config, the one that takes the least energy, or what lies between them."""

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
    """One figure, or two of which neither is given up for the other.

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
        """The figures looked for, or None where one is missing."""
        found = [figures.get(name) for name in self.names]
        if any(value is None or value != value for value in found):
            return None
        return [float(value) for value in found]  # type: ignore[arg-type]

    def losses(self, values: Sequence[float]) -> tuple[float, ...]:
        """Logarithms of the values, turned so that less is better."""
        return tuple(
            log(value) if DIRECTIONS[name] == "minimize" else -log(value)
            for name, value in zip(self.names, values, strict=True)
        )

    def best(self, rows: Sequence[Mapping[str, Any]], most: int) -> list[int]:
        """Numbers of the best rows, the best first: by the figure, or with two figures the front that no other row
        beats in both, from its fastest to its thriftiest, cut down evenly where it is longer than asked.

        Args:
            rows: figures of each.
            most: how many to name.
        """
        known = [(i, self.losses(values)) for i, row in enumerate(rows) if (values := self.values(row)) is not None]
        if not self.pareto:
            return [i for i, _ in sorted(known, key=lambda one: one[1])][:most]
        front = [
            (i, mine)
            for i, mine in known
            if not any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for _, other in known)
        ]
        front.sort(key=lambda one: one[1])
        if most < 1 or len(front) <= most:
            return [i for i, _ in front][: max(0, most)]
        return [front[int(at)][0] for at in np.linspace(0, len(front) - 1, most).round()]


def joint(rows: Sequence[Row], across: str) -> Mapping[str, Any] | None:
    """Figures to judge a config by that was measured on several problems; None where it did not run on all.

    Args:
        rows: of all of them.
        across: ``"each"``: the row is the only one; ``"worst"`` or ``"mean"`` as in
            :class:`hopper_gemm.tune.study.spec.SweepSpec`.
    """
    if not all(row.ok for row in rows):
        return None
    if across == "each":
        return rows[0].figures
    speedups = [float(row.figures["speedup"]) for row in rows]
    return {"speedup": min(speedups) if across == "worst" else float(np.exp(np.mean(np.log(speedups))))}
