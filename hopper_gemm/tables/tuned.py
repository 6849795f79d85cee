"""The tuned table: the best config of each problem that was tuned, and the one to use for any other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.menu import choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.locks import FileLock
from hopper_gemm.tables.places import results_root
from hopper_gemm.tables.trials import ResultsError, read_json, write_json

FILE = "best_configs.json"
LOCK = ".best_configs.lock"
"""Beside the table; who writes it holds the lock from reading to replacing."""


@dataclass(frozen=True)
class TunedEntry:
    """One tuned problem.

    Args:
        problem: sizes, type, layouts.
        regime: burst or steady.
        config: resolved.
        speedup, speedup_low, speedup_high: of the final, over cuBLAS.
        noise: noise floor of that run.
        registers, wgmma, instructions: of the compiled kernel.
        code: digest of its machine code.
        study: where it was found.
        gpu: name of the GPU.
    """

    problem: GemmProblem
    regime: str
    config: GemmConfig
    speedup: float
    speedup_low: float
    speedup_high: float
    noise: float
    registers: int
    wgmma: int
    instructions: int
    code: str
    study: str
    gpu: str


def read_tuned(path: Path) -> list[TunedEntry]:
    """Read a tuned table. Parameters that came after an entry was written take their default.

    Raises:
        ResultsError: no such file, or an entry that is none.
    """
    entries = []
    for number, raw in enumerate(read_json(path)):
        try:
            config = resolve(GemmConfig(**raw["config"]))
            rest = {name: value for name, value in raw.items() if name not in ("problem", "config")}
            entries.append(TunedEntry(problem=GemmProblem(**raw["problem"]), config=config, **rest))
        except (KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{path}, entry {number}: {error}; restore the file or tune again") from None
    return entries


def write_tuned(path: Path, entries: Iterable[TunedEntry]) -> None:
    """Merge entries into a tuned table: one per problem and regime. A newer one of the same study or of the same config
    replaces the older, since the better of two measurements of one thing is only the luckier; any other one only if it
    is faster. Several processes may write one table: each waits for the other."""
    with FileLock(path.with_name(LOCK)):
        known = {_key(entry): entry for entry in (read_tuned(path) if path.is_file() else [])}
        for entry in entries:
            old = known.get(_key(entry))
            same = old is not None and (old.study == entry.study or old.config == entry.config)
            if old is None or same or entry.speedup > old.speedup:
                known[_key(entry)] = entry
        write_json(path, [asdict(known[key]) for key in sorted(known)])


@dataclass(frozen=True)
class Pick:
    """A config for a problem, and where it comes from.

    Args:
        config: resolved.
        how: ``"tuned"``: for this very problem and regime; ``"other regime"``: for this very problem in the other one;
            ``"model"``: nobody tuned it, and the analytic model chose.
        entry: of the tuned table; None where the model chose.
    """

    config: GemmConfig
    how: Literal["tuned", "other regime", "model"]
    entry: TunedEntry | None = None

    @property
    def tuned_on(self) -> str:
        """The problem and the regime it was tuned for; empty where the model chose."""
        return "" if self.entry is None else f"{self.entry.problem} {self.entry.regime}"


def pick(entries: Iterable[TunedEntry], problem: GemmProblem) -> Pick:
    """What a user is served who names no config: what was tuned for this very problem, in burst if it was; otherwise
    what the model of :mod:`hopper_gemm.model.menu` chooses, from its menu and from all that won somewhere."""
    entries = list(entries)
    for regime, how in PREFERRED:
        for entry in entries:
            if (entry.problem, entry.regime) == (problem, regime):
                return Pick(entry.config, how, entry)
    return Pick(choose(problem, dict.fromkeys(entry.config for entry in entries)), "model")


PREFERRED: tuple[tuple[str, Literal["tuned", "other regime"]], ...] = (("burst", "tuned"), ("steady", "other regime"))
"""Regimes whose entries :func:`pick` takes, the first before the second."""


def best_known(entries: Iterable[TunedEntry], problem: GemmProblem, regime: str) -> Pick:
    """The entry of this very problem and regime; what :func:`pick` gives where there is none."""
    entries = list(entries)
    for entry in entries:
        if (entry.problem, entry.regime) == (problem, regime):
            return Pick(entry.config, "tuned", entry)
    return pick(entries, problem)


def untuned(entries: Iterable[TunedEntry], problem: GemmProblem) -> Pick:
    """What :func:`pick` would give had nobody tuned the problem."""
    return pick((entry for entry in entries if entry.problem != problem), problem)


def recorded_tables() -> dict[str, Path]:
    """Tuned tables by GPU slug."""
    return {path.parent.name: path for path in sorted(results_root().glob(f"*/{FILE}"))}


def recorded_entries() -> list[TunedEntry]:
    """All of them."""
    return [entry for path in recorded_tables().values() for entry in read_tuned(path)]


def _key(entry: TunedEntry) -> tuple[Any, ...]:
    problem = entry.problem
    return (problem.m, problem.n, problem.k, problem.dtype, problem.layouts, entry.regime)
