"""The points of a sweep: every choice of its grid, legal or refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import STAGGER_MAX, reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.spec import SweepSpec, fields_of


@dataclass(frozen=True)
class Point:
    """One thing to measure.

    Args:
        problem: what is multiplied.
        regime: burst or steady.
        config: resolved.
        refused: why it cannot run; empty where it can.
    """

    problem: GemmProblem
    regime: str
    config: GemmConfig
    refused: str = ""

    @property
    def study(self) -> str:
        """The Optuna study it belongs to: figures of two problems or regimes are never compared."""
        return f"{self.problem} {self.problem.dtype} {self.problem.layouts} {self.regime}"


def configs(spec: SweepSpec) -> list[GemmConfig]:
    """Every config of the grid, resolved, in the order of the file, the last parameter fastest."""
    axes = [values if isinstance(values, list) else [values] for values in spec.space.values()]
    found = []
    for choice in product(*axes):
        fields = {}
        for name, value in zip(spec.space, choice, strict=True):
            fields.update(fields_of(name, value))
        config = resolve(GemmConfig(**fields))
        found.append(_lowered(config) if "stagger" in spec.lower_to_fit else config)
    return list(dict.fromkeys(found))


def points(spec: SweepSpec) -> list[Point]:
    """Every point: for each problem, for each regime, every config."""
    found = []
    for section in spec.problems:
        problem = section.problem()
        for regime in spec.regimes:
            for config in configs(spec):
                refused = "; ".join(map(str, reasons(config, problem)))
                found.append(Point(problem, regime, config, refused))
    return found


def _lowered(config: GemmConfig) -> GemmConfig:
    assert isinstance(config.stages, int)
    return replace(config, stagger=max(0, min(config.stagger, config.stages - 1, STAGGER_MAX)))
