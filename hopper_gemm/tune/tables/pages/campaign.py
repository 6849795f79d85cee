"""The page of a tuned list: the winner of each problem, and how fast it was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hopper_gemm.model.config import LEGEND
from hopper_gemm.tune.tables.pivot import interval, markdown, one_line

PAGE = "campaign.md"

HEADINGS = ("problem", "winner", "speedup over cuBLAS", "trials", "seconds")


@dataclass(frozen=True)
class Tuned:
    """What became of one problem.

    Args:
        problem: with its type and layouts where they are not the usual.
        state: ``"tuned"``; ``"failed"``; ``"open"``: not finished.
        reason: why it is not tuned.
        winner: label of its best config.
        speedup, speedup_low, speedup_high: of the winner's final.
        even: configs that share the first place within the noise; none where the winner is the only one.
        trials: rows of its search.
        seconds: time of search and finals, in all runs.
    """

    problem: str
    state: Literal["tuned", "failed", "open"]
    reason: str = ""
    winner: str = ""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    even: int = 0
    trials: int = 0
    seconds: float = 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its line, as :data:`HEADINGS` has them behind the problem."""
        if self.state != "tuned":
            what = one_line(f"{self.state}: {self.reason}" if self.reason else self.state)
            return (what, "", str(self.trials or ""), f"{self.seconds:.0f}" if self.seconds else "")
        shared = f" (one of {self.even} that are even)" if self.even > 1 else ""
        return f"`{self.winner}`{shared}", interval(asdict(self)), str(self.trials), f"{self.seconds:.0f}"


@dataclass(frozen=True)
class Rate:
    """How fast a GPU measured in one run, or all of them together.

    Args:
        who: ``"GPU 0"``, or ``"in all"``.
        trials: points measured.
        seconds: time at work; for all together from the first moment to the last.
    """

    who: str
    trials: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Trials a second."""
        return self.trials / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "seconds": round(self.seconds, 1), "per_second": round(self.per_second, 3)}


def campaign_page(title: str, about: str, found: Sequence[Tuned], rates: Sequence[Rate] = ()) -> str:
    """The Markdown page.

    Args:
        title: name of the list, regime and context.
        about: a sentence on where the figures come from: GPU, boards.
        found: problems in order.
        rates: of this run.
    """
    table = markdown(HEADINGS, ([one.problem, *one.cells] for one in found))
    tuned = sum(one.state == "tuned" for one in found)
    lines = [f"# {title}", "", f"**{about}**", "", table, ""]
    lines += [f"{tuned} of {len(found)} problems tuned. The speedups are of finals in fresh processes.", ""]
    if any(rate.trials for rate in rates):
        told = [f"{rate.who} {rate.per_second:.2f} ({rate.trials} in {rate.seconds:.0f} s)" for rate in rates]
        lines += ["Trials a second in the last run, set-up and finals counted: " + ", ".join(told) + ".", ""]
    return "\n".join([*lines, f"Configs: {LEGEND}.", ""])
