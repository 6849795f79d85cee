"""The points of a sweep: every choice of its grid or rung of its ladder, legal or refused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hopper_gemm.model.config import LAUNCH_FIELDS, GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import pair_reasons, problem_reasons, reasons
from hopper_gemm.model.menu import promising
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.rules.shape import STAGGER_MAX
from hopper_gemm.tuning.spec import SweepSpec, fields_of


@dataclass(frozen=True)
class Point:
    """One thing to measure.

    Args:
        problem: what is multiplied.
        regime: burst or steady.
        config: resolved.
        refused: why it cannot run; empty where it can.
        data: what the matrices hold while it is timed.
    """

    problem: GemmProblem
    regime: str
    config: GemmConfig
    refused: str = ""
    data: str = "normal"

    @property
    def study(self) -> str:
        """The Optuna study it belongs to: figures of two problems, regimes or kinds of data are never compared."""
        return f"{self.problem} {self.problem.dtype} {self.problem.layouts} {self.regime}{_unless_normal(self.data)}"

    @property
    def of_all(self) -> str:
        """What it shares with the points of other problems that one config is to serve."""
        return f"{self.regime}{_unless_normal(self.data)}"

    @property
    def place(self) -> str:
        """Problem, regime and data in a few words; provenance notes the noise floor under them."""
        return f"{self.problem} {self.regime}{_unless_normal(self.data)}"


@dataclass(frozen=True)
class Rung:
    """One rung of a ladder.

    Args:
        name: unique in the ladder.
        adds: what it adds to the rung it starts from.
        start: name of that rung; None for the first.
        published: what the source material says of the step, or nothing.
        config: resolved. Two rungs may have the same; it is measured once.
    """

    name: str
    adds: str
    start: str | None
    published: str
    config: GemmConfig

    def as_dict(self) -> dict[str, Any]:
        """As provenance notes it, so that tables know the ladder from the results folder alone."""
        return {
            "name": self.name,
            "adds": self.adds,
            "from": self.start,
            "published": self.published,
            "config": self.config.as_dict(),
        }


def rungs(spec: SweepSpec) -> list[Rung]:
    """The ladder, each rung with its config: that of the rung it starts from, with what it sets."""
    chosen: dict[str | None, dict[str, Any]] = {None: _fields(spec.space)}
    found: list[Rung] = []
    for section in spec.rungs:
        start = section.start or (found[-1].name if found else None)
        chosen[section.name] = {**chosen[start], **_fields(section.set)}
        config = _config(spec, chosen[section.name])
        found.append(Rung(section.name, section.adds, start, section.published, config))
    return found


def configs(spec: SweepSpec) -> list[GemmConfig]:
    """Every config, resolved, once: of the ladder from rung to rung, or else of the grid in the order of the file, the
    last parameter fastest."""
    return list(_refusals(spec))


def points(spec: SweepSpec) -> list[Point]:
    """Every point: for each regime (bursts are quick and go first), problem and kind of data, every config."""
    refusals = _refusals(spec)
    of_problem = {section.problem(): _of_problem(spec, refusals, section.problem()) for section in spec.problems}
    found: dict[Point, None] = {}
    for regime, (problem, ruled), data in product(spec.regimes, of_problem.items(), spec.data):
        for config, why in ruled.items():
            found[Point(problem, regime, config, why, data)] = None
    return list(found)


def _of_problem(
    spec: SweepSpec, refusals: Mapping[GemmConfig, tuple[str, ...]], problem: GemmProblem
) -> dict[GemmConfig, str]:
    """The configs for one problem with what refuses them there; of the legal ones those that the spec keeps."""
    refused = [str(reason) for reason in problem_reasons(problem)]
    ruled = {}
    for config, why in refusals.items():
        bound = not why and (config.split_k > 1 or problem.layouts != "kk" or problem.out_bytes > ELEMENT_BYTES)
        pair = [str(reason) for reason in pair_reasons(config, problem)] if bound else []
        ruled[config] = "; ".join([*why, *pair, *refused])
    if spec.keep is None:
        return ruled
    kept = promising([config for config, why in ruled.items() if not why], problem, spec.keep)
    return {config: why for config, why in ruled.items() if why or config in kept}


def _refusals(spec: SweepSpec) -> Mapping[GemmConfig, tuple[str, ...]]:
    """Every config with the rules that refuse it, whatever the problem.

    What is set at launch plays no part in what a config takes of an SM, so that large grids are resolved and checked
    once for each way to compile; and a list of problems that are tuned in one space pays for it once.
    """
    key = spec.model_dump_json(include={"space", "grids", "rungs", "lower_to_fit"})
    if key not in _LAST:
        while len(_LAST) >= SPACES:
            del _LAST[next(iter(_LAST))]
        _LAST[key] = _enumerated(spec)
    return _LAST[key]


SPACES = 4
_LAST: dict[str, dict[GemmConfig, tuple[str, ...]]] = {}
"""So many spaces that were enumerated last: problems of a list are tuned in another where they are short, or long, or
have a large output."""


def _enumerated(spec: SweepSpec) -> dict[GemmConfig, tuple[str, ...]]:
    if spec.rungs:
        return {rung.config: _why(rung.config) for rung in rungs(spec)}
    found: dict[GemmConfig, tuple[str, ...]] = {}
    for grid in (spec.space, *spec.grids):
        for config, why in _grid(spec, grid):
            found.setdefault(config, why)
    return found


def _grid(spec: SweepSpec, grid: Mapping[str, Any]) -> Iterator[tuple[GemmConfig, tuple[str, ...]]]:
    """Every config of one grid with the rules that refuse it, the last parameter fastest."""
    axes = {name: values if isinstance(values, list) else [values] for name, values in grid.items()}
    at_launch = [name for name in axes if name in LAUNCH_FIELDS]
    ordered = [name for name in axes if name in _ORDER_FIELDS]
    resolved: dict[tuple[Any, ...], GemmConfig] = {}
    checked: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for values in product(*axes.values()):
        choice = dict(zip(axes, values, strict=True))
        compiled = tuple((name, value) for name, value in choice.items() if name not in at_launch)
        if compiled not in resolved:
            resolved[compiled] = _config(spec, _fields(dict(compiled)))
        base = resolved[compiled]
        config = _launched(base, {name: choice[name] for name in at_launch})
        ruled = (compiled, *((name, choice[name]) for name in at_launch if name not in ordered))
        if ruled not in checked:
            checked[ruled] = _why(config)
        yield config, checked[ruled]


def _launched(config: GemmConfig, launch: dict[str, Any]) -> GemmConfig:
    """The config with other launch parameters. The spec has checked every value: to check the whole config again for
    each of a hundred thousand would take most of the time."""
    if not launch:
        return config
    other = copy(config)
    other.__dict__.update(launch)
    return other


_ORDER_FIELDS = ("raster", "serpentine")
"""Launch parameters that no rule is about."""


def _why(config: GemmConfig) -> tuple[str, ...]:
    return tuple(map(str, reasons(config)))


def with_row(spec: SweepSpec, found: Sequence[Point]) -> list[Point]:
    """The points that may get a row: all of them, or only the legal ones of a sweep that skips the others, as every
    search does."""
    skips = spec.skip_illegal or spec.sampled
    return [point for point in found if not (skips and point.refused)]


def refused_by_rule(found: Sequence[Point]) -> dict[str, int]:
    """How many points each rule refuses; a point that several refuse counts for the first."""
    return dict(Counter(point.refused.split(":", 1)[0] for point in found if point.refused))


def _unless_normal(data: str) -> str:
    return "" if data == "normal" else f" {data}"


def _fields(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for name, chosen in choice.items() for field, value in fields_of(name, chosen).items()}


def _config(spec: SweepSpec, fields: dict[str, Any]) -> GemmConfig:
    config = resolve(GemmConfig(**fields))
    return _lowered(config) if "stagger" in spec.lower_to_fit else config


def _lowered(config: GemmConfig) -> GemmConfig:
    assert isinstance(config.stages, int)
    return replace(config, stagger=max(0, min(config.stagger, config.stages - 1, STAGGER_MAX)))
