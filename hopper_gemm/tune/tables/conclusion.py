"""Result of tuning a problem: the winner, the runner-up, and the reasons of its lead."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.space import problem_label
from hopper_gemm.tune.tables.explain import explain
from hopper_gemm.tune.tables.pivot import Group, config_of, groups, interval, plain, rows_of


@dataclass(frozen=True)
class Contender:
    """A config with its measured figures and the model's."""

    config: str  # its label
    speedup: float  # over cuBLAS
    speedup_low: float
    speedup_high: float
    tflops: float
    waves: int  # of output tiles over the SMs
    wave_efficiency: float  # useful share of the waves
    intensity: float  # FLOP for each byte that enters shared memory
    ahead_kib: float  # bytes that can be in flight, KiB
    limit: str  # what the model expects to set the pace of a stage: math, load, l2 or ring
    predicted_us: float  # the model's time


@dataclass(frozen=True)
class Conclusion:
    """Result of tuning a problem."""

    problem: str
    regime: str
    context: str
    source: str  # measured or replayed
    final: bool  # whether the winner's figures are those of fresh processes
    winner: Contender
    runner_up: Contender | None  # None where only one config ran
    even: list[str]  # configs that share the first place within the noise
    trials: int  # rows of the search
    seconds: float  # of the search with its finals
    over: str = "cuBLAS"  # the baseline

    def lines(self) -> list[str]:
        """Return the lines of text that the command prints."""
        best, other = self.winner, self.runner_up
        stage = "in fresh processes" if self.final else "in the search"
        lines = [
            f"{self.problem} {self.regime}, {self.context}: {best.config}",
            f"  {interval(asdict(best))} {self.over}, {best.tflops:.0f} TFLOP/s, {self.source} {stage}",
        ]
        if self.even:
            lines.append(f"  no unique best: {len(self.even)} configs are even within the noise")
            lines += [f"    {label}" for label in self.even]
        if other is None:
            return lines
        return [
            *lines,
            f"  runner-up {other.speedup:.3f}x: {other.config}",
            f"    waves      {best.waves}, {best.wave_efficiency:.1%} useful, against "
            f"{other.waves}, {other.wave_efficiency:.1%}",
            f"    intensity  {best.intensity:.1f} FLOP per byte into shared memory against {other.intensity:.1f}",
            f"    look-ahead {best.ahead_kib:.0f} KiB can be in flight against {other.ahead_kib:.0f}",
            f"    limit      {best.limit}, predicted {best.predicted_us:.1f} us, against "
            f"{other.limit}, {other.predicted_us:.1f} us",
        ]


def conclude(folder: Path) -> Conclusion:
    """Return the result of the tuning in a folder: from its finals, or from its search where it has none. ResultsError
    if the folder holds no study, or nothing ran."""
    study = read_study(folder)
    rows = rows_of(study, "sweep")
    ran = rows[rows["status"] == "ok"]
    if ran.empty:
        raise ResultsError(f"nothing ran in {folder}; its rows say why")
    group, trials = groups(ran)[0]
    finals = group.of(rows_of(study, "final")).query("status == 'ok'").sort_values("speedup", ascending=False)
    ranked = pd.concat([finals, trials.sort_values("speedup", ascending=False)]) if len(finals) < 2 else finals
    contenders: dict[Any, dict[str, Any]] = {}
    for row in ranked.to_dict("records"):
        contenders.setdefault(config_of(row), row)
    winner, *others = [_contender(group, row) for row in list(contenders.values())[:2]]
    return Conclusion(
        problem=problem_label(group.problem),
        regime=group.regime,
        context=group.context,
        source=study.provenance["source"],
        final=len(finals) > 0,
        winner=winner,
        runner_up=others[0] if others else None,
        even=group.noted(study.provenance, "even") or [],
        trials=len(rows),
        seconds=float(study.provenance.get("seconds", 0.0)),
        over=group.over,
    )


def _contender(group: Group, row: dict[str, Any]) -> Contender:
    config = config_of(row)
    figures = explain(config, group.problem)
    assert isinstance(config.stages, int)
    return Contender(
        config=str(config),
        **{name: plain(row[name]) for name in ("speedup", "speedup_low", "speedup_high", "tflops")},
        waves=figures["waves"],
        wave_efficiency=figures["wave_efficiency"],
        intensity=figures["flop_per_smem_byte"],
        ahead_kib=max(0, config.stages - 1 - config.stagger) * figures["stage_bytes"] / 1024,
        limit=figures["paced_by"] or "",
        predicted_us=figures["predicted_us"] or 0.0,
    )
