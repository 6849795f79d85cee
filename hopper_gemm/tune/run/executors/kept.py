"""Workers that outlive a run: several questions in turn, without starting processes for each."""

from __future__ import annotations

from collections.abc import Sequence

from hopper_gemm.tune.run.executors.local import Executor
from hopper_gemm.tune.run.task import Event, Joined, Left, Task


class Kept:
    """An executor whose workers stay when a run closes it; to the next run each of them joins again.

    Args:
        executor: of the workers; :meth:`end` closes it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._joined: dict[str, Event] = {}
        self._again: list[tuple[str, Event]] = []
        self._earlier = self._last = 0
        """Numbers of earlier runs' tasks, and the last number given: a worker takes a number once."""

    @property
    def awaited(self) -> str:
        """Name what the executor waits for."""
        return self._executor.awaited

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """Return the executor's events; first of a run, that its workers joined."""
        again, self._again = self._again, []
        events = [*again, *self._executor.poll(0.0 if again else seconds)]
        for name, event in events:
            if isinstance(event, Joined):
                self._joined[name] = event
            elif isinstance(event, Left):
                self._joined.pop(name, None)
        return events

    def send(self, worker: str, number: int, task: Task) -> None:
        """Send a task by the executor, under a number that no earlier run has given."""
        self._last = max(self._last, self._earlier + number)
        self._executor.send(worker, self._earlier + number, task)

    def close(self) -> None:
        """End a run; the workers stay."""
        self._again, self._earlier = [*self._joined.items()], self._last

    def end(self) -> None:
        """End the workers."""
        self._executor.close()
