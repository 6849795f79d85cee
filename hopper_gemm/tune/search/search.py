"""The search: for each place an Optuna study whose sampler proposes legal configs, within a budget.

The studies live in memory and are made anew from the rows at every start: what has a row is answered, nothing else is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.point import Point
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.search.catalogue import make
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.objective import Objective, joint
from hopper_gemm.tune.search.samplers import LegalSampler, predictions
from hopper_gemm.tune.study.files import here_or_recorded
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.space import begun_with, place_of
from hopper_gemm.tune.study.spec import SweepSpec


class Search:
    """The points that samplers propose, each worker at a place.

    Args:
        spec: sampler, objective, seeds and budget.
        legal: all legal points, in order.
        rows: of points that were measured.
        earlier: rows of other studies: told to the sampler, but measured anew if they are proposed.
        spent: seconds that earlier runs have searched, by place.
        most: propose so many points now, leaving the rest for later.
        owed: rows by place that a finished search has lost: so many are proposed though its time is up.
        clock: seconds.
    """

    def __init__(
        self,
        spec: SweepSpec,
        legal: Sequence[Point],
        rows: Iterable[Row],
        *,
        earlier: Iterable[Row] = (),
        spent: Mapping[str, float] | None = None,
        most: int | None = None,
        owed: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._clock, self._most, self._owed = spec, clock, most, dict(owed or {})
        self._answered = {row.point: row for row in rows}
        self._earlier = list(earlier)
        self._searches: dict[Point, _Place] = {}
        self._alone = {alone.problems[0].problem(): alone for alone in spec.each()}
        self._places = self._grouped(legal)
        for place in self._places:
            place.spent = (spent or {}).get(place.name, 0.0)
        self._spaces: dict[tuple[GemmConfig, ...], LegalSpace] = {}

    @property
    def planned(self) -> int:
        """Points that will have a row at the end, as far as the budget names a number."""
        return sum(place.target * len(place.points[0]) for place in self._places)

    @property
    def spent(self) -> dict[str, float]:
        """Seconds that were searched, in all runs, by place."""
        return {place.name: round(self._used(place), 3) for place in self._places}

    @property
    def open(self) -> int:
        """Points that may still be proposed, as far as the budget names a number."""
        left = sum(0 if place.closed else place.room + len(place.waiting) for place in self._places)
        return left if self._most is None else min(left, self._most)

    @property
    def finished(self) -> bool:
        """Return True if the budget is used up or everything was measured; False where ``most`` cut it short."""
        return not any(place.open for place in self._places)

    def propose(self, worker: str = "") -> Point | None:
        """A point for a worker to measure; None where there is none, or none now. A worker stays at a place until the
        place's search is over, then takes one that is nobody's, and helps others where there is none."""
        if self._most is not None and self._most <= 0:
            return None
        for place in sorted(self._places, key=lambda place: (place.worker != worker, place.worker is not None)):
            while not place.waiting and not place.closed:
                if self._over(place) or not place.room:
                    self._close(place)
                    continue
                self._owed[place.name] = self._owed.get(place.name, 0) - 1
                number = self._sampler(place).ask()
                place.waiting.extend(point for point in place.points[number] if point not in self._answered)
            if place.waiting:
                place.worker = place.worker or worker
                self._most = None if self._most is None else self._most - 1
                return place.waiting.popleft()
        return None

    def left(self, worker: str, point: Point | None) -> None:
        """A worker will not come back: its place is nobody's.

        Args:
            worker: its name.
            point: that was proposed to it and will not be measured.
        """
        for place in self._places:
            place.worker = None if place.worker == worker else place.worker
        if point is not None:
            self._searches[point].waiting.appendleft(point)
            self._most = None if self._most is None else self._most + 1

    def ended(self) -> list[Point]:
        """The points of all places whose search has ended since the last call."""
        found = [place for place in self._places if not (place.told or place.open)]
        for place in found:
            place.told = True
        return [point for place in found for of in place.points for point in of]

    def tell(self, row: Row) -> None:
        """Record what came of a point."""
        place = self._searches[row.point]
        self._answered[row.point] = row
        if place.started is None and not place.closed:  # compilers that start up are no search: answers start the clock
            place.started = self._clock()
        number = place.number[row.point]
        found = [self._answered[point] for point in place.points[number] if point in self._answered]
        if number in place.pending and len(found) == len(place.points[number]):
            place.tell(number, found)

    # -----------------------------------------------------------------------------------------

    def _grouped(self, legal: Sequence[Point]) -> list[_Place]:
        """The subject of each study: for each of its configs the points that it is judged by."""
        across = self._spec.across
        grouped: dict[str, dict[GemmConfig, list[Point]]] = {}
        problems: dict[str, set[GemmProblem]] = {}
        for point in legal:
            name = place_of(point) if across == "each" else f"{across} {point.regime} {point.context} {point.data}"
            grouped.setdefault(name, {}).setdefault(point.config, []).append(point)
            problems.setdefault(name, set()).add(point.problem)
        found = []
        for name, configs in grouped.items():
            points = [tuple(of) for of in configs.values() if len(of) == len(problems[name])]
            if points:
                place = _Place(name, points, Objective(tuple(self._spec.objective)), across)
                place.done = {i for i, of in enumerate(points) if all(point in self._answered for point in of)}
                place.target = min(len(points), self._spec.budget.trials or len(points))
                self._searches |= dict.fromkeys(place.number, place)
                found.append(place)
        return found

    def _used(self, place: _Place) -> float:
        return place.spent + (0.0 if place.started is None else self._clock() - place.started)

    def _over(self, place: _Place) -> bool:
        """Return True if a place has used up its share of the seconds that closed places left."""
        seconds = self._spec.budget.seconds
        if seconds is None or self._owed.get(place.name, 0) > 0:
            return False
        closed = [one.spent for one in self._places if one.closed]
        return self._used(place) >= max(0.0, seconds - sum(closed)) / (len(self._places) - len(closed))

    def _close(self, place: _Place) -> None:
        place.spent, place.started, place.closed = self._used(place), None, True

    def _sampler(self, place: _Place) -> LegalSampler:
        """The place's sampler, which is told what there is when it is made."""
        if place.sampler is not None:
            return place.sampler
        configs = tuple(place.config(number) for number in range(len(place.points)))
        if configs not in self._spaces:
            self._spaces[configs] = LegalSpace(configs)
        space, spec, objective = self._spaces[configs], self._spec, place.objective
        problems = [point.problem for point in place.points[0]]
        told = [
            (row.point.config, objective.losses(values), float(predictions([row.point.config], problems[0])[0]))
            for row in self._earlier
            if place_of(row.point) == place.name
            and not row.point.is_baseline
            and (values := objective.values(row.figures)) is not None
        ]
        predicted = self._predicted(space, problems)
        known = [space.number[config] for config in begun_with(self._alone[problems[0]]) if config in space.number]
        place.sampler = make(spec.sampler, space, objective, spec.seed, predicted, spec.seeds, told, known)
        for config, losses, _ in told:
            if config in space.number:
                place.sampler.hint(space.number[config], losses)
        for number in sorted(place.done):
            place.sampler.know(number, place.values([self._answered[point] for point in place.points[number]]))
        return place.sampler

    def _predicted(self, space: LegalSpace, problems: Sequence[GemmProblem]) -> np.ndarray:
        """The model's time of each config; of several problems how far it is behind the best, at worst or on average,
        since their times are of different sizes."""
        if not self._spec.sampled:
            return np.zeros(len(space))
        each = np.array([predictions(space.configs, problem) for problem in problems])
        if len(problems) == 1:
            return each[0]
        behind = each - each.min(axis=1, keepdims=True)
        return behind.max(axis=0) if self._spec.across == "worst" else behind.mean(axis=0)


@dataclass
class _Place:
    """The space of one sampler.

    Args:
        name: of the place.
        points: by the number of their config: those by which it is judged.
        objective: what is looked for.
        across: how a config is judged.
        worker: name of the worker that is at it.
        waiting: points of the config that is being proposed.
        spent: seconds searched, those since ``started`` left out.
        told: whether it was told that the search has ended.
    """

    name: str
    points: list[tuple[Point, ...]]
    objective: Objective
    across: str
    target: int = 0
    done: set[int] = field(default_factory=set)
    started: float | None = None
    closed: bool = False
    sampler: LegalSampler | None = None
    worker: str | None = None
    waiting: deque[Point] = field(default_factory=deque)
    spent: float = 0.0
    told: bool = False

    def __post_init__(self) -> None:
        self.number = {point: i for i, of in enumerate(self.points) for point in of}

    @property
    def pending(self) -> Collection[int]:
        """Configs that are being measured, by number."""
        return () if self.sampler is None else self.sampler.pending

    @property
    def open(self) -> bool:
        """Return True if anything is still to be proposed or told."""
        return bool(self.waiting or self.pending or (self.room and not self.closed))

    @property
    def room(self) -> int:
        """Configs that may still be proposed."""
        return max(0, self.target - len(self.done) - len(self.pending))

    def config(self, number: int) -> GemmConfig:
        """A config by its number."""
        config = self.points[number][0].config
        assert config is not None
        return config

    def tell(self, number: int, rows: Sequence[Row]) -> None:
        """Record what came of a config."""
        assert self.sampler is not None
        self.sampler.tell(number, self.values(rows))
        self.done.add(number)

    def values(self, rows: Sequence[Row]) -> list[float] | None:
        """The objective's figures from a config's rows; None where it did not run."""
        figures = joint(rows, self.across)
        return None if figures is None else self.objective.values(figures)


def earlier_rows(folder: Path, gpu: str) -> list[Row]:
    """The results of an earlier study, for a warm start.

    Args:
        folder: of the study; a relative one is looked for here and in the checkout.
        gpu: name of the GPU that is searched on; empty where none is known yet.

    Raises:
        ResultsError: there is no such study, or it was recorded on another kind of GPU.
    """
    study = read_study(here_or_recorded(folder))
    other = study.provenance["gpu"]["name"]
    if gpu and other != gpu:
        raise ResultsError(f"warm_start: {folder} was recorded on an {other}, not an {gpu}; leave it out")
    return [row for row in study.stage("sweep") if row.ok]
