"""The points of a study: every choice of its grid or rung of its ladder, legal or refused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product, repeat
from math import prod
from typing import Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import pair_reasons, reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import recipe_of
from hopper_gemm.model.rules.shape import STAGGER_MAX
from hopper_gemm.model.rules.technique import SWIZZLE_MAX
from hopper_gemm.tune.parameters import LAUNCH_FIELDS, WIDEST, kind_of
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.spec import RungSection, Spec, SpecError, fields_of
from hopper_gemm.tune.study.techniques import promising

MOST = 2_000_000
"""Points of a problem that are enumerated; each takes about a kilobyte."""


def problem_label(problem: GemmProblem) -> str:
    """Return the sizes of a problem, with its type and layouts where they are not bf16 and kk, the recipe of FP8, and a
    word if it is batch-invariant.

    Example:
        >>> problem_label(GemmProblem(16, 6144, 4096, "fp16"))
        '16x6144x4096 fp16'
    """
    others = [word for word, usual in ((problem.dtype, "bf16"), (problem.layouts, "kk")) if word != usual]
    return " ".join(
        filter(None, [str(problem), *others, recipe_of(problem), "batch-invariant" * problem.batch_invariant])
    )


def place_of(point: Point) -> str:
    """Return problem, regime, context and data as text: only figures under the same text are compared."""
    data = [] if point.data == "normal" else [point.data]
    return " ".join([problem_label(point.problem), point.regime, point.context, *data])


def rungs(spec: Spec) -> list[tuple[RungSection, Kernel]]:
    """Return each rung of the ladder with its config: that of the rung it starts from, with what it sets. Two rungs may
    have the same config; it is measured once."""
    chosen: dict[str | None, dict[str, Any]] = {None: _fields(spec.space)}
    ladder: list[tuple[RungSection, Kernel]] = []
    for section in spec.rungs:
        start = section.start or (ladder[-1][0].name if ladder else None)
        chosen[section.name] = {**chosen[start], **_fields(section.set)}
        config = _config(spec, WIDEST, chosen[section.name]).narrowed()
        ladder.append((section.model_copy(update={"start": start}), config))
    return ladder


def noted_rungs(spec: Spec) -> list[dict[str, Any]]:
    """Return the ladder for provenance, which gives tables the rungs without their spec."""
    return [
        {**section.model_dump(by_alias=True, exclude={"set"}), "config": config.as_dict()}
        for section, config in rungs(spec)
    ]


def count(spec: Spec) -> int:
    """Return the number of choices of a spec, enumerating none: of its grids, times what each is measured on."""
    configs = 0
    for alone in spec.each():
        choices = [map(len, _axes(grid).values()) for grid in (alone.space, *alone.grids, *alone.warm_grids)]
        configs += len(spec.rungs) or sum(map(prod, choices))
    return configs * len(spec.regimes) * len(spec.contexts) * len(spec.data)


def points(spec: Spec, only: Collection[Point] | None = None) -> dict[Point, str]:
    """Return every point, or those of ``only``, with the reasons why it cannot run, empty if it can. For each regime
    (bursts first: they are quick), context, problem and kind of data, every config in the order of the file, the last
    parameter fastest. What a spec keeps is chosen among ``only``. SpecError if a problem has more than :data:`MOST`."""
    ruled = {}
    configs = None if only is None else {point.config for point in only}
    for alone in spec.each():
        if count(alone) > MOST:
            raise SpecError(
                f"{spec.name} has {count(alone):,} points of a problem and at most {MOST:,} are enumerated; give "
                "parameters fewer values"
            )
        problem = alone.problems[0].problem()
        ruled[problem] = _of_problem(alone, problem, configs)
    return {
        point: why
        for regime, context, problem, data in product(spec.regimes, spec.contexts, ruled, spec.data)
        for config, why in ruled[problem].items()
        for point in [Point(problem, config, regime, context, data=data)]
        if only is None or point in only
    }


@dataclass(frozen=True)
class Space:
    """The points that a study may measure; ``left_out`` counts those of its grids that are not recorded."""

    points: Mapping[Point, str]
    refused: Mapping[str, int]
    total: int
    left_out: int = 0

    @cached_property
    def legal(self) -> list[Point]:
        return [point for point, why in self.points.items() if not why]


def space_of(spec: Spec, only: Collection[Point] | None = None, each: Callable[..., Iterable[Any]] = map) -> Space:
    """Return the space of a study, or its points of ``only``, which can be answered; refused points are kept only where
    they get a row. ``each`` maps a function over the problems, such as a pool of processes does."""
    parts: list[Space] = list(each(_space_alone, spec.each(), repeat(only)))
    ways: list[tuple[str, str]] = list(product(spec.regimes, spec.contexts))
    pairs = [pair for part in parts for pair in part.points.items()]
    kept = dict(sorted(pairs, key=lambda pair: ways.index((pair[0].regime, pair[0].context))))
    refused = sum((Counter(part.refused) for part in parts), Counter[str]())
    return Space(kept, dict(refused), sum(part.total for part in parts), sum(part.left_out for part in parts))


def _space_alone(spec: Spec, only: Collection[Point] | None) -> Space:
    ruled = points(spec, only)
    kept = {point: why for point, why in ruled.items() if not (spec.skips and why)}
    ways = len(spec.regimes) * len(spec.contexts) * len(spec.data)
    left_out = 0 if only is None else ways * len(_configs(spec)) - len(ruled)
    return Space(kept, dict(Counter(why.split(":", 1)[0] for why in ruled.values() if why)), len(ruled), left_out)


def begun_with(spec: Spec) -> list[Kernel]:
    """Return the first config of each warm grid of the first problem, legal or not: a search tries these first."""
    alone, *_ = spec.each()
    return [next(_grid(alone, grid))[0] for grid in alone.warm_grids]


def _configs(spec: Spec) -> dict[Kernel, tuple[str, ...]]:
    """Return every config, those of the warm grids first, with the rules that refuse it whatever the problem."""
    warm = {config: why for grid in spec.warm_grids for config, why in _grid(spec, grid)}
    return {**warm, **_refusals(spec)}


def _of_problem(spec: Spec, problem: GemmProblem, only: Collection[GemmConfig] | None) -> dict[Kernel, str]:
    """Return the configs for one problem, among ``only`` if given, with the reasons against each; of the legal ones
    those that the spec keeps."""
    ruled = {}
    for config, why in _configs(spec).items():
        if only is None or config in only:
            pair = [] if why else map(str, pair_reasons(config, problem))
            ruled[config] = "; ".join([*why, *pair])
    if spec.keep is None:
        return ruled
    warm = {config for grid in spec.warm_grids for config, _ in _grid(spec, grid)}
    kept = promising([config for config, why in ruled.items() if not why], problem, spec.keep, warm)
    return {config: why for config, why in ruled.items() if why or config in kept}


def _refusals(spec: Spec) -> Mapping[Kernel, tuple[str, ...]]:
    """Return every config with the rules that refuse it, whatever the problem. What is set at launch plays no part in
    what a config takes of an SM, so that large grids are resolved and checked once for each way to compile; and a list
    of problems that are tuned in one space pays for it once."""
    key = spec.model_dump_json(include={"space", "grids", "rungs", "lower_to_fit"})
    if key not in _LAST:
        while len(_LAST) >= 4:
            del _LAST[next(iter(_LAST))]
        _LAST[key] = _enumerated(spec)
    return _LAST[key]


_LAST: dict[str, dict[Kernel, tuple[str, ...]]] = {}
"""The last four spaces enumerated: short, long and large-output problems of a list each have their own space."""


def _enumerated(spec: Spec) -> dict[Kernel, tuple[str, ...]]:
    if spec.rungs:
        return {config: tuple(map(str, reasons(config))) for _, config in rungs(spec)}
    refusals: dict[Kernel, tuple[str, ...]] = {}
    for grid in (spec.space, *spec.grids):
        for config, why in _grid(spec, grid):
            refusals.setdefault(config, why)
    return refusals


def _axes(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: values if isinstance(values, list) else [values] for name, values in grid.items()}


def _grid(spec: Spec, grid: Mapping[str, Any]) -> Iterator[tuple[Kernel, tuple[str, ...]]]:
    """Yield every config of one grid with the rules that refuse it, the last parameter fastest."""
    axes = _axes(grid)
    kind = kind_of(axes)
    resolved = cache(lambda compiled: _config(spec, kind, _fields(dict(compiled))))
    checked: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for values in product(*axes.values()):
        choice = list(zip(axes, values, strict=True))
        base = resolved(tuple(setting for setting in choice if setting[0] not in LAUNCH_FIELDS))
        config = base.but(**{name: value for name, value in choice if name in LAUNCH_FIELDS}).narrowed()
        free = ("raster", "serpentine", *["swizzle"] * (config.swizzle <= SWIZZLE_MAX))  # these break no rule
        ruled = tuple(setting for setting in choice if setting[0] not in free)
        if ruled not in checked:
            checked[ruled] = tuple(map(str, reasons(config)))
        yield config, checked[ruled]


def _fields(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for name, chosen in choice.items() for field, value in fields_of(name, chosen).items()}


def _config(spec: Spec, kind: type[GemmConfig], fields: dict[str, Any]) -> Kernel:
    kernel = resolve(kind(**fields))
    if "stagger" not in spec.lower_to_fit:
        return kernel
    return kernel.but(stagger=max(0, min(kernel.stagger, kernel.stages - 1, STAGGER_MAX)))
