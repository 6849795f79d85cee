"""Measuring one point of a sweep: no machine code twice, and no hopeless config to the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopper_gemm.measure.racing import hopeless
from hopper_gemm.model.config import LAUNCH_FIELDS
from hopper_gemm.model.footprint import footprint
from hopper_gemm.tuning.backend import Answer, Backend
from hopper_gemm.tuning.pooling import pooled, ratio_of
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec

TWIN = "same machine code as"
"""How the reason of a row begins whose figures are another's."""


class Measuring:
    """Measures points in the light of what was measured before.

    Args:
        spec: of the sweep.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._goal = spec.looked_for
        self._leaders: dict[str, Answer] = {}
        self._measured: dict[tuple[Any, ...], tuple[str, Answer]] = {}

    def measure(self, point: Point, backend: Backend, noise: Mapping[str, float]) -> Answer:
        """Measure a point, unless the same machine code was measured with the same launch.

        Args:
            point: legal.
            backend: what measures.
            noise: noise floors by :attr:`hopper_gemm.tuning.space.Point.place`.
        """
        code = backend.code(point)
        twin = self._measured.get(_launch(point, code)) if code else None
        if twin is not None:
            label, answer = twin
            return Answer(answer.status, f"{TWIN} {label}; not measured again", answer.figures)
        answer = self._raced(point, backend, noise.get(point.place, 0.0))
        self.remember(point, answer, code)
        return answer

    def remember(self, point: Point, answer: Answer, code: str) -> None:
        """Hold later points against this one: it may be the best, and its machine code is known.

        Args:
            point: measured, here or by somebody else.
            answer: what came of it.
            code: digest of its machine code; empty where it is not known.
        """
        values = self._goal.values(answer.figures) if answer.status == "ok" else None
        if values is not None:
            best = self._leaders.get(point.study)
            old = self._goal.values(best.figures) if best is not None else None
            if old is None or self._goal.losses(values) < self._goal.losses(old):
                self._leaders[point.study] = answer
        if code and answer.status in ("ok", "wrong_result") and not answer.reason.startswith(TWIN):
            self._measured.setdefault(_launch(point, code), (str(point.config), answer))

    def best(self, point: Point) -> float | None:
        """The best figure so far in the point's study."""
        best = self._leaders.get(point.study)
        return None if best is None else float(best.figures[self._goal.names[0]])

    def _raced(self, point: Point, backend: Backend, noise: float) -> Answer:
        """All pairs at once, or look after look, each only where the point may still be the best."""
        race, burst = self._spec.race, point.regime == "burst"
        pairs = self._spec.burst.pairs if burst else self._spec.steady.pairs
        looks = [] if race is None else race.looks(burst)
        so_far: Answer | None = None
        taken = 0
        for look, margin in (*looks, (pairs, 0.0)):
            if look <= taken or look > pairs:
                continue
            alone = so_far is None and look == pairs
            answer = backend.measure(point) if alone else backend.measure(point, look - taken)
            if answer.status != "ok" or not answer.samples:
                return answer
            so_far = answer if so_far is None else pooled(so_far, answer)
            taken = look
            best = self._leaders.get(point.study)
            if best is not None and hopeless(ratio_of(so_far), ratio_of(best), noise + margin):
                break
        assert so_far is not None
        return so_far


_HOST_FIELDS = (*LAUNCH_FIELDS, "tile_m", "tile_n", "k_depth", "cluster_m", "cluster_n", "l2_promotion", "ctas_per_sm")
"""Parameters that reach the GPU by the launch or by TMA descriptors, and may leave the machine code as it is."""


def _launch(point: Point, code: str) -> tuple[Any, ...]:
    """What two points must share to be one measurement."""
    shares = footprint(point.config)
    host = tuple(getattr(point.config, name) for name in _HOST_FIELDS)
    return (point.study, code, shares.smem_bytes, shares.threads, shares.chunk_n, *host)
