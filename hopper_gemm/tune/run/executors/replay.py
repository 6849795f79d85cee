"""An executor that gives the rows of a recorded study: the same sweep with no GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from hopper_gemm.tune.run.task import Event, Joined, Task
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.reader import Study

WORKER = "record"


class Replay:
    """One worker that returns the rows of a recorded study, and rows without a status for points that were not
    recorded."""

    def __init__(self, study: Study) -> None:
        self._rows = {row.key: row for row in study.rows}
        self._events: list[tuple[str, Event]] = [(WORKER, Joined(dict(study.provenance["gpu"])))]

    @property
    def awaited(self) -> str:
        """Name the worker."""
        return WORKER

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """Return the rows of the tasks that were sent."""
        events, self._events = self._events, []
        return events

    def send(self, worker: str, number: int, task: Task) -> None:
        """Look up a task's rows."""
        for point in task.points:
            unrecorded = task.row(point, "", "")
            self._events.append((WORKER, self._rows.get(unrecorded.key, unrecorded)))

    def close(self) -> None:
        """Do nothing: a replay holds no resources."""


def replay_provenance(study: Study) -> dict[str, Any]:
    """Return the keys that a replay's provenance takes from the recorded study, and the digest of its rows."""
    carried = ("gpu", "versions", "protocols", "kernel", "noise", "boards")
    provenance = {name: study.provenance[name] for name in carried if name in study.provenance}
    digest = hashlib.sha256("\n".join(sorted(row.line() for row in study.rows)).encode()).hexdigest()[:16]
    return {**provenance, "replayed_from": shown(study.path), "record": digest}
