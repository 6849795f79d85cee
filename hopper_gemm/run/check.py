"""The guard of the best configs, as a question: do they still run, still compute the right product, still reach what
was recorded?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hopper_gemm.measure.protocol import Burst, Protocol, Steady
from hopper_gemm.measure.statistics import Ratio, noise_floor
from hopper_gemm.model.point import Point
from hopper_gemm.model.tuned import TunedEntry
from hopper_gemm.run.coordinator import Idle, Member, Taken
from hopper_gemm.run.task import Answer, Task, ratio_of

MARGIN = 0.02
"""The loosest noise floor at which a comparison still means something."""

PROTOCOLS: dict[str, Protocol] = {"burst": Burst(), "steady": Steady()}


@dataclass(frozen=True)
class Checked:
    """One entry of the tuned table and what became of it.

    Args:
        entry: as recorded.
        status: ``"held"``, ``"fallen"``, or ``"skipped"`` where the noise is too loud to tell.
        message: one line with the figures.
    """

    entry: TunedEntry
    status: Literal["held", "fallen", "skipped"]
    message: str

    def as_dict(self) -> dict[str, str]:
        """Ready for JSON."""
        entry = self.entry
        asked = {"problem": str(entry.problem), "regime": entry.regime, "context": entry.context}
        return {**asked, "config": str(entry.config), "status": self.status, "message": self.message}


class Check(Idle):
    """Measures every entry anew, its noise floor first.

    Args:
        entries: of the tuned table of this kind of GPU.
    """

    def __init__(self, entries: Sequence[TunedEntry]) -> None:
        self._left = list(entries)
        self._entries: dict[Point, TunedEntry] = {}
        self._control: dict[Point, Answer] = {}
        self.checked: list[Checked] = []

    def next(self, member: Member) -> Task | None:
        """The next entry."""
        if not self._left:
            return None
        entry = self._left.pop(0)
        point = Point(entry.problem, entry.config, entry.regime, entry.context)
        self._entries[point] = entry
        bare = Point(entry.problem, None, entry.regime, entry.context)
        return Task((bare, point), stage="check", protocol=PROTOCOLS[entry.regime])

    def take(self, answers: Sequence[Taken]) -> None:
        """Decide, where both answers of an entry are in."""
        for one in answers:
            ours = one.task.points[1]
            if one.point.config is None:
                self._control[ours] = one.answer
            else:
                entry = self._entries[ours]
                status, message = _decided(entry, self._control[ours], one.answer)
                self.checked.append(Checked(entry, status, message))


Decision = tuple[Literal["held", "fallen", "skipped"], str]


def _decided(entry: TunedEntry, control: Answer, now: Answer) -> Decision:
    if now.status != "ok":
        return "fallen", f"{now.status.replace('_', ' ')}: {now.reason}"
    if control.status != "ok":
        return "skipped", f"cuBLAS against itself could not be timed: {control.reason}"
    noise = max(entry.noise, noise_floor(ratio_of(control.figures)))
    recorded = Ratio(entry.speedup, entry.speedup_low, entry.speedup_high, pairs=0)
    return regression(recorded, ratio_of(now.figures), noise)


def regression(recorded: Ratio, now: Ratio, noise: float, margin: float = MARGIN) -> Decision:
    """A speedup measured now compared with the recorded one.

    The recorded interval may be undercut by the noise floor, no more; what counts is the new figure's own interval,
    which must lie below that as a whole. Where the noise floor itself exceeds the margin, nothing can be said.

    Args:
        recorded: the figure in the tuned table.
        now: the same config, measured now.
        noise: the larger noise floor of the two runs.
        margin: the loosest noise floor at which the check still means something.
    """
    if noise > margin:
        return "skipped", f"noise floor {noise:.2%} exceeds the margin {margin:.2%}; run it on a quiet GPU of its own"
    floor = recorded.low - noise
    record = f"recorded {recorded.median:.4f}x [{recorded.low:.4f}, {recorded.high:.4f}]"
    figures = f"{now.median:.4f}x [{now.low:.4f}, {now.high:.4f}] now, {record}, noise {noise:.2%}"
    if now.high < floor:
        return "fallen", f"fallen {floor - now.high:.4f} below the floor {floor:.4f}: {figures}"
    return "held", figures
