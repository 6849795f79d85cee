"""A point: a kernel or a baseline on a problem, in a regime and context. A sample: one pair of its times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import DATA, GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.model.tuned import CONTEXTS, REGIMES


@dataclass(frozen=True)
class Point:
    """One measurement to make. Figures of different regimes, contexts, baselines or data are never compared. ValueError
    if regime, context or data is none of the known, a baseline is paired with another, or operands of FP8 have no
    scales."""

    problem: GemmProblem
    subject: Kernel | str  # a kernel; or the name of the baseline, timed against itself for the noise floor
    regime: str = "burst"  # of REGIMES
    context: str = "isolated"  # of CONTEXTS
    against: str = "cublas"  # name of the baseline that it is paired with
    data: str = "normal"  # contents of the matrices while timed, of DATA

    def __post_init__(self) -> None:
        for name, values in (("regime", REGIMES), ("context", CONTEXTS), ("data", DATA)):
            value = getattr(self, name)
            if value not in values:
                raise ValueError(f"{name} must be one of {', '.join(values)} but got {value!r}")
        if self.problem.is_fp8 and not isinstance(self.problem, ScaledProblem):
            raise ValueError(f"a measured problem of {self.problem.dtype} must have scales but has none; add them")
        if self.is_baseline and self.subject != self.against:
            raise ValueError(f"a baseline is paired with itself but got {self.subject!r} against {self.against!r}")

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.subject, str)

    @property
    def config(self) -> Kernel:
        """The kernel; TypeError if the subject is a baseline."""
        if isinstance(self.subject, str):
            raise TypeError(f"config is that of a kernel, the baseline {self.subject} has none")
        return self.subject

    @property
    def control(self) -> Point:
        """The baseline against itself under the same conditions."""
        return replace(self, subject=self.against)


class Sample(NamedTuple):
    """A pair of times, measured next to each other, microseconds per launch."""

    process: int  # number of the process that took it; fresh processes get other memory addresses
    ours_us: float  # as measured, as the baseline's; isolated, the spacer included
    baseline_us: float
    spacer_us: float | None = None  # time of the spacer alone, in the same round; None if chained

    @property
    def bare_us(self) -> tuple[float, float]:
        """Our time and the baseline's, microseconds, the spacer subtracted from both."""
        spacer = self.spacer_us or 0.0
        return self.ours_us - spacer, self.baseline_us - spacer

    @property
    def ratio(self) -> float:
        """Speedup: baseline time over ours, the spacer subtracted from both; above 1 we are faster."""
        ours, theirs = self.bare_us
        return theirs / ours
