"""The tuned table: the best config of each problem that was tuned, and the one to use for any other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import log2
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.places import results_root
from hopper_gemm.tables.trials import ResultsError, read_json, write_json

FILE = "best_configs.json"


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
    is faster."""
    known = {_key(entry): entry for entry in (read_tuned(path) if path.is_file() else [])}
    for entry in entries:
        old = known.get(_key(entry))
        same = old is not None and (old.study == entry.study or old.config == entry.config)
        if old is None or same or entry.speedup > old.speedup:
            known[_key(entry)] = entry
    write_json(path, [asdict(known[key]) for key in sorted(known)])


def nearest(entries: Iterable[TunedEntry], problem: GemmProblem, regime: str = "burst") -> TunedEntry | None:
    """The entry tuned for the most similar problem, or None from an empty table.

    Similar is the sum of the distances of m, n and k in octaves. Entries of the regime and of the problem's
    type come first.
    """

    def distance(entry: TunedEntry) -> tuple[bool, bool, float]:
        sizes = ((entry.problem.m, problem.m), (entry.problem.n, problem.n), (entry.problem.k, problem.k))
        octaves = sum(abs(log2(tuned / asked)) for tuned, asked in sizes)
        return entry.regime != regime, entry.problem.dtype != problem.dtype, octaves

    return min(entries, key=distance, default=None)


@dataclass(frozen=True)
class Pick:
    """A config for a problem, and where it comes from.

    Args:
        config: resolved.
        how: ``"tuned"``: for this very problem and regime; ``"nearest"``: for the most similar one that was tuned;
            ``"default"``: nothing was.
        entry: of the tuned table; None for the default.
    """

    config: GemmConfig
    how: Literal["tuned", "nearest", "default"]
    entry: TunedEntry | None = None

    @property
    def tuned_on(self) -> str:
        """The problem and the regime it was tuned for; empty for the default."""
        return "" if self.entry is None else f"{self.entry.problem} {self.entry.regime}"


def pick(entries: Iterable[TunedEntry], problem: GemmProblem) -> Pick:
    """What a user is served who names no config: the entry of the most similar problem, tuned in burst where there is
    one, among those whose config can run this one; the kernel's default where there is none."""
    entry = nearest((entry for entry in entries if is_legal(entry.config, problem)), problem)
    if entry is None:
        return Pick(resolve(GemmConfig()), "default")
    same = (entry.problem, entry.regime) == (problem, "burst")
    return Pick(entry.config, "tuned" if same else "nearest", entry)


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


def _key(entry: TunedEntry) -> tuple[Any, ...]:
    problem = entry.problem
    return (problem.m, problem.n, problem.k, problem.dtype, problem.layouts, entry.regime)
