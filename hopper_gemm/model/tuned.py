"""The tuned table as its readers see it: the best config of each problem that was tuned, and the pick for any other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import choose
from hopper_gemm.model.point import CONTEXTS, REGIMES
from hopper_gemm.model.problem import GemmProblem

FILE = "best_configs.json"


class TunedTableError(ValueError):
    """A tuned table is not what it should be; the message names the file, the entry and the fix."""


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
        context: isolated or chained; entries older than the distinction are chained.
        board: UUID of the board on which the final ran, where it is known.
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
    context: str = "chained"
    board: str = "unknown"


_KINDS: dict[Any, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float)}
"""JSON types of an entry's fields, by annotation."""


def read_tuned(path: Path) -> list[TunedEntry]:
    """Read a tuned table. Parameters that came after an entry was written take their default.

    Raises:
        TunedTableError: no such file, not JSON, or an entry that is none.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TunedTableError(f"{path} does not exist; name a tuned table such as results/h200/{FILE}") from None
    except (OSError, ValueError) as error:
        raise TunedTableError(f"{path} cannot be read as JSON ({error}); restore the file or tune again") from None
    if not isinstance(entries, list):
        raise TunedTableError(
            f"{path} must hold a list of entries but holds {type(entries).__name__}; restore the file"
        )
    found = []
    for number, raw in enumerate(entries):
        try:
            found.append(_entry(raw))
        except (KeyError, TypeError, ValueError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            raise TunedTableError(f"{path}, entry {number}: {why}; restore the file or tune again") from None
    return found


def _entry(raw: Any) -> TunedEntry:
    if not isinstance(raw, dict):
        raise TypeError(f"must be an object but got {type(raw).__name__}")
    unknown = set(raw) - {one.name for one in fields(TunedEntry)}
    if unknown:
        raise ValueError(f"{min(unknown)} is not a field of an entry")
    for one in fields(TunedEntry):
        value, kind = raw[one.name] if one.default is MISSING else raw.get(one.name, one.default), _KINDS.get(one.type)
        if kind and (not isinstance(value, kind) or isinstance(value, bool)):
            raise TypeError(f"{one.name} has the wrong type: {value!r}")
    problem, config = GemmProblem(**raw["problem"]), resolve(GemmConfig.of(raw["config"]))
    entry = TunedEntry(**{**raw, "problem": problem, "config": config})
    for name, known in (("regime", REGIMES), ("context", CONTEXTS)):
        if getattr(entry, name) not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)} but got {getattr(entry, name)!r}")
    return entry


@dataclass(frozen=True)
class Pick:
    """A config for a problem, and where it comes from.

    Args:
        config: resolved.
        how: ``"tuned"``: for this very problem, regime and context; ``"other regime"``, ``"other context"``: for this
            very problem in another one; ``"model"``: nobody tuned it, and the analytic model chose.
        entry: of the tuned table; None where the model chose.
    """

    config: GemmConfig
    how: Literal["tuned", "other regime", "other context", "model"]
    entry: TunedEntry | None = None

    @property
    def tuned_on(self) -> str:
        """Problem, regime and context it was tuned for; empty where the model chose."""
        return "" if self.entry is None else f"{self.entry.problem} {self.entry.regime} {self.entry.context}"


def pick(entries: Iterable[TunedEntry], problem: GemmProblem, regime: str = "burst", context: str = "isolated") -> Pick:
    """The config to run where none is named: the best entry of this very problem, else the model's choice.

    An entry of the same context is preferred to one of the same regime. One that exists only chained serves isolated
    launches without PDL, whose gain was its overlap with its own predecessor.

    Args:
        entries: of the tuned table.
        problem: what is multiplied.
        regime: burst or steady.
        context: isolated or chained.
    """
    entries = list(entries)
    ranked = sorted(
        (entry for entry in entries if entry.problem == problem),
        key=lambda entry: (entry.context != context, entry.regime != regime, -entry.speedup),
    )
    if not ranked:
        return Pick(choose(problem, dict.fromkeys(without_pdl(entry.config) for entry in entries)), "model")
    entry = ranked[0]
    if entry.context != context:
        return Pick(without_pdl(entry.config) if context == "isolated" else entry.config, "other context", entry)
    return Pick(entry.config, "tuned" if entry.regime == regime else "other regime", entry)


def without_pdl(config: GemmConfig) -> GemmConfig:
    """The config as it runs between other kernels: without programmatic dependent launch."""
    if not config.pdl:
        return config
    other = replace(config, pdl=False)
    return other if is_legal(other) else config


def untuned(entries: Iterable[TunedEntry], problem: GemmProblem, context: str = "isolated") -> Pick:
    """What :func:`pick` would give had nobody tuned the problem."""
    return pick((entry for entry in entries if entry.problem != problem), problem, context=context)


def results_root() -> Path:
    """The recorded results: beside the package in a checkout, inside it where it was installed from a wheel."""
    package = Path(__file__).parents[1]
    checkout = package.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else package) / "results"


def recorded_tables() -> dict[str, Path]:
    """Tuned tables by GPU slug, such as ``"h200"``."""
    return {path.parent.name: path for path in sorted(results_root().glob(f"*/{FILE}"))}


def recorded_entries() -> list[TunedEntry]:
    """The entries of all recorded tables."""
    return [entry for path in recorded_tables().values() for entry in read_tuned(path)]
