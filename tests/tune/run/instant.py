"""Workers without processes: they answer from a formula at once, so that rules of questions are tested in no time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hopper_gemm.tune.measure.protocol import Burst, Outcome, Steady
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.questions.sweep import Sweep
from hopper_gemm.tune.run.source import Replay, replay_provenance
from hopper_gemm.tune.run.task import NAMED, Begun, Event, Joined, Task
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.spec import Spec, read_spec
from tests.tune.run import fakes

FEW_SMS = {"sms": 78, "l2_bytes": 50 * 2**20, "memory_rate": 2e12}
"""A GPU with fewer SMs than an H200 and half its memory's rate."""

ABOUT = {"gpu": {"name": "NVIDIA H200"}, "kernel": "fake"}

LADDER = """
name = "ladder"
regimes = ["burst", "steady"]
[[problems]]
m = 1024
n = 1024
k = 1024
[space]
tile_m = 64
tile_n = 128
k_depth = 4
[[rungs]]
name = "base"
adds = "one load ahead of the math"
set = { stages = 2 }
[[rungs]]
name = "ring"
adds = "a ring as deep as fits"
published = "1.3 times as fast"
set = { stages = "max" }
[[rungs]]
name = "tile"
adds = "a second consumer"
set = { tile_m = 128 }
[[rungs]]
name = "same"
adds = "nothing"
[[rungs]]
name = "deep"
adds = "more than fits"
set = { tile_m = 320, k_depth = 16 }
[[rungs]]
name = "pair"
from = "ring"
adds = "two CTAs that share a tile"
set = { cluster = "1x2" }
[final]
best = 0
"""

SEARCH = """
name = "search"
regimes = ["burst"]
sampler = "gp"
[[problems]]
m = 1024
n = 1024
k = 1024
[space]
tile_m = [64, 128, 192, 256, 320]
tile_n = [64, 128, 192]
k_depth = [2, 4, 16]
stages = "max"
stagger = [0, 1]
cluster = ["1x1", "1x2"]
[budget]
trials = 12
[final]
best = 2
"""


TUNE_SPACE = {
    "space": {
        "tile_m": [64, 128],
        "tile_n": 64,
        "raster": ["m", "n"],
        "swizzle": [4, 8],
        "pdl": False,
        "reverse_k": False,
        "split_k": 1,
    },
    "grids": [],
}
"""Instead of the space of ``tune``, whose points take seconds to list."""


def spec_of(tmp_path: Path, text: str = fakes.SPEC, *changes: tuple[str, str]) -> Spec:
    """A spec from its text, with some changes."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return read_spec(path)


class Instant:
    """Workers ``w0``, ``w1``, ... with boards ``board-0``, ...

    Args:
        workers: how many.
        outcome: of an :class:`tests.tune.run.fakes.Ask`; by default the formula of the fakes.
        stop_after: raise KeyboardInterrupt after so many rows.
        gpu: name of the kind.
        code: of a config; empty for none.
        missing: reason by the name of a baseline that is not installed.
        facts: more of each board, such as its ``sms``.
    """

    def __init__(
        self,
        workers: int = 1,
        outcome: Callable[[fakes.Ask], Outcome] = fakes.outcome,
        stop_after: int | None = None,
        gpu: str = "NVIDIA H200",
        code: Callable[[Any], str] = lambda config: "",
        missing: Mapping[str, str] = MappingProxyType({}),
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        boards = [{"name": gpu, "uuid": f"board-{i}", "driver": "580", **facts} for i in range(workers)]
        self._events: list[tuple[str, Event]] = [
            (f"w{i}", Joined(board, dict(missing))) for i, board in enumerate(boards)
        ]
        self._outcome, self._stop, self._code = outcome, stop_after, code
        self._held: dict[str, dict[int, Task]] = {f"w{i}": {} for i in range(workers)}
        self.tasks: list[tuple[str, Task]] = []
        """In the order in which they were begun, as they were then."""
        self.measured: Counter[str] = Counter()
        """Points of sweeps by the label of their config."""
        self.finals: list[tuple[int, str]] = []
        self.closed = False
        self.awaited = "workers"

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        for worker, held in self._held.items():
            if held:
                task = held.pop(next(iter(held)))
                self.tasks.append((worker, task))
                self._events += [(worker, event) for event in self._measured(task, worker.replace("w", "board-"))]
        events, self._events = self._events, []
        return events

    def send(self, worker: str, number: int, task: Task) -> None:
        self._held[worker][number] = task

    def _measured(self, task: Task, board: str) -> Iterator[Event]:
        for point in task.points:
            if self._stop is not None and len(self.measured) + len(self.finals) >= self._stop:
                raise KeyboardInterrupt
            yield Begun(task.row(point, board, "").key)
            yield self.row(task, point, board)
            if task.stage == "sweep":
                self.measured[str(point.subject)] += 1
            if task.stage == "final":
                self.finals.append((task.process, str(point.subject)))

    def row(self, task: Task, point: Point, board: str) -> Row:
        code = "" if point.is_baseline else self._code(point.config)
        figures: dict[str, Any] = {"code": code} if code else {}
        if twin := task.twins.get(code):
            return task.row(point, board, "twin", twin, figures=figures)
        assert isinstance(task.method, Burst | Steady)
        found = self._outcome(fakes.Ask(point, task.method, task.process))
        figures |= {"registers": 168, "wgmma": 8, "instructions": 500}
        if task.stage in NAMED and found.status == "ok":
            figures["baseline_kernel"] = "nvjet"
        figures |= found.figures
        pairs = {"samples": found.samples, "finalists": found.finalists}
        return task.row(point, board, found.status, found.reason, figures=figures, **pairs)

    def close(self) -> None:
        self.closed = True


def run_sweep(spec: Spec, out: Path, executor: Any = None, **options: Any) -> Any:
    """Run a sweep on instant workers; they tell what they were asked."""
    executor = executor or Instant()
    run(Sweep(spec, out, {**ABOUT, "gpu": {"name": executor_gpu(executor)}}, **options), executor)
    return executor


def executor_gpu(executor: Any) -> str:
    return next((event.gpu["name"] for _, event in executor._events if isinstance(event, Joined)), "NVIDIA H200")


def replayed(spec: Spec, out: Path, recorded: Path) -> None:
    """Replay a sweep from a folder."""
    study = read_study(recorded)
    only = {row.point for row in study.stage("sweep")}
    run(Sweep(spec, out, replay_provenance(study), source="replayed", only=only), Replay(study))


def rows_of(out: Path, *stages: str) -> list[Row]:
    """Rows of some stages; of the sweep where none is named."""
    return read_study(out).stage(*(stages or ("sweep",)))
