"""An executor that gives the rows of a recorded study: the same sweep with no GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from hopper_gemm.model.point import Point
from hopper_gemm.tune.run.task import Event, Joined, Task
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.reader import Study

WORKER = "record"


class Replay:
    """One worker, which knows what was recorded and leaves out the rest.

    Args:
        study: the recorded one, of any version.
    """

    def __init__(self, study: Study) -> None:
        self._rows = {row.key: row for row in study.rows}
        self._events: list[tuple[str, Event]] = [(WORKER, Joined(dict(study.provenance["gpu"])))]

    @property
    def awaited(self) -> str:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        return WORKER

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        events, self._events = self._events, []
        return events

    def send(self, worker: str, number: int, task: Task) -> None:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        for point in task.points:
            unrecorded = task.row(point, "", "")
            self._events.append((WORKER, self._rows.get(unrecorded.key, unrecorded)))

    def close(self) -> None:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""


def recorded_points(study: Study) -> set[Point]:
    """Points of which a replay of a sweep has rows."""
    return {row.point for row in study.stage("sweep")}


def about_record(study: Study) -> dict[str, Any]:
    """Keys that the provenance of a replay takes from the record, and the record's digest."""
    carried = ("gpu", "versions", "protocols", "kernel", "noise", "boards")
    known = {name: study.provenance[name] for name in carried if name in study.provenance}
    return {**known, "replayed_from": shown(study.path), "record": _digest(study)}


def _digest(study: Study) -> str:
    return hashlib.sha256("\n".join(sorted(row.line() for row in study.rows)).encode()).hexdigest()[:16]
