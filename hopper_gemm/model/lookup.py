"""Look-up in the tuned tables: the tables that serve a GPU, in order, and the config for a problem."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import behind_padding, choose
from hopper_gemm.model.problem import GemmProblem, shown
from hopper_gemm.model.recipe import with_scales
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.rules.invariance import forward
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.model.tuned import CHANGES, WARMUP, TunedEntry, TunedTableError, own_paths, read_tuned, recorded_tables

SISTERS = {"h100": "h200", "h200": "h100"}
"""The other Hopper SXM, by kind of GPU. Both have the same SMs and differ in their memory: a kernel tuned on the one
beats the model's choice on the other (docs/suite)."""


@dataclass(frozen=True)
class Table:
    """All entries of a tuned table, and its file; the ``kind`` of GPU whose entries alone serve, such as ``"h200"``, or
    None for any; and the kind of ``gpu`` that is served, None if it is unknown."""

    entries: tuple[TunedEntry, ...]
    path: Path | None = None
    kind: str | None = None
    gpu: str | None = None

    @property
    def of_sister(self) -> bool:
        """Return True if the entries were tuned on the sister of the GPU that is served."""
        return self.kind is not None and self.kind != self.gpu

    @property
    def serving(self) -> list[TunedEntry]:
        """The entries that serve."""
        return [entry for entry in self.entries if self.kind in (None, entry.kind)]


@dataclass(frozen=True)
class Pick:
    """A config for a problem, and where it comes from.

    Args:
        how: ``"tuned"``: for this very problem, regime and context; ``"other regime"``, ``"other context"``: for this
            very problem in another one; ``"k forward"``: for this very problem without batch invariance, run without
            ``reverse_k``; ``"other sizes"``: for this problem with its sizes filled up; ``"other type"``: for this very
            problem in bf16; ``"other GPU"``: for this very problem on another kind of GPU; ``"warmup"``: the best of a
            few timed picks; ``"model"``: untuned, picked from the menu.
        entry, table: of a tuned table, and its file, if there is one; None where the model chose.
    """

    config: Kernel
    how: (
        Literal["tuned", "other regime", "other context", "k forward", "other sizes"]
        | Literal["other type", "other GPU", "warmup", "model"]
    )
    entry: TunedEntry | None = None
    table: Path | None = None

    @property
    def tuned_on(self) -> str:
        """Problem, regime and context it was tuned for, and the GPU of another kind; empty where the model chose."""
        if self.entry is None:
            return ""
        on_gpu = f" on {self.entry.gpu}" if self.how == "other GPU" else ""
        return f"{self.entry.problem} {self.entry.regime} {self.entry.context}{on_gpu}"


def itself(problem: GemmProblem) -> set[GemmProblem]:
    """The problem and those whose entries serve it: not batch-invariant, with sizes filled up, or bf16 for fp16."""
    return {
        replace(sizes, batch_invariant=invariant, dtype=dtype)
        for sizes in (problem, filled_up(problem))
        for invariant in (problem.batch_invariant, False)
        for dtype in (problem.dtype, problem.dtype.replace("fp16", "bf16"))
    }


def same_sizes(problem: GemmProblem, other: GemmProblem) -> bool:
    """Return True if two problems have the same m, n and k."""
    return (problem.m, problem.n, problem.k) == (other.m, other.n, other.k)


def as_run(entry: TunedEntry, problem: GemmProblem) -> Kernel:
    """The kernel of an entry as it runs a problem."""
    return forward(entry.config) if problem.batch_invariant else entry.config


def served(entry: TunedEntry, problem: GemmProblem, regime: str, context: str, table: Path | None = None) -> Pick:
    """The pick of an entry for a problem in a regime and context. A chained entry serves isolated launches without PDL,
    whose gain was the overlap of a launch with its own predecessor; one for other sizes that are padded with it."""
    config = as_run(entry, problem)
    if entry.context != context:
        plain = without_pdl(config) if context == "isolated" else config
        return Pick(behind_padding(plain, problem), "other context", entry, table)
    if config != entry.config:
        return Pick(config, "k forward", entry, table)
    if not same_sizes(entry.problem, problem):
        return Pick(behind_padding(config, problem), "other sizes", entry, table)
    if entry.problem.dtype != problem.dtype:
        return Pick(config, "other type", entry, table)
    if entry.study == WARMUP:
        return Pick(config, "warmup", entry, table)
    return Pick(config, "tuned" if entry.regime == regime else "other regime", entry, table)


def without_pdl(config: Kernel) -> Kernel:
    """The kernel as it runs between other kernels: without programmatic dependent launch."""
    return config.but(pdl=False)


_named: tuple[Path | None, bool, bool] = None, False, False
"""Arguments of the last call of :func:`use_table`."""


def use_table(path: str | os.PathLike[str] | None, other_gpus: bool = False, alone: bool = False) -> None:
    """Let :func:`hopper_gemm.matmul` look into a tuned table before all others, in this process, from the next call on.

    Without it the order is: the user's own table, which ``hopper-gemm tune`` writes (``results/local/<gpu>/`` in a
    checkout, else ``$XDG_DATA_HOME/hopper-gemm/<gpu>/``), then the recorded one. The first table with an entry of the
    very problem serves it; an entry of the caller's context (isolated, or chained) in a later table is preferred to
    one of the other context in an earlier table. Where none of them has an entry, an entry that was tuned on the other
    Hopper SXM serves, an H200's on an H100 and the reverse, if the GPU has as many SMs; only then does the model
    choose. Entries of other kinds of GPU do not serve.

    Args:
        path: of the table, such as ``best_configs.json`` beside a study; None: no table before the others.
        other_gpus: also take the table's entries of any other kind of GPU, where it has none of this kind; ``matmul``
            warns once of a kind that is neither this GPU's nor its sister's.
        alone: look into no other table: the model picks all that this one lacks; with no path everything.

    Raises:
        TunedTableError: the file is no tuned table.
        TypeError: no path, or no bool.

    Example:
        >>> hopper_gemm.use_table("results/mine/best_configs.json")        # doctest: +SKIP
        >>> hopper_gemm.use_table(None)                                    # doctest: +SKIP
    """
    global _named
    if not isinstance(path, str | os.PathLike | None):
        raise TypeError(f"path must name a tuned table, or be None, but is {shown(path)}; give the path of its file")
    for name, value in (("other_gpus", other_gpus), ("alone", alone)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False but is {shown(value)}; give a bool")
    named = None if path is None else Path(path).absolute()
    if named is not None:
        read_tuned(named)
    _named = named, other_gpus, alone
    CHANGES.happened()


def tables(kind: str | None, say: Callable[[str], object] = warnings.warn) -> list[Table]:
    """The tables that serve a kind of GPU, as :func:`hopper_gemm.model.tuned.slug` names it, in order: the named one,
    the user's own, the recorded ones, and those of the GPU's sister (:data:`SISTERS`); without a GPU the recorded ones
    alone, entries of any kind. A damaged table is left out, and ``say`` is called with a line on it."""
    serving: list[tuple[Path, str | None]] = []
    named, other_gpus, alone = _named
    if kind is not None and named is not None:
        serving += [(named, kind), *[(named, None)] * other_gpus]
    if not alone:
        kinds = [kind] if kind is None or kind not in SISTERS else [kind, SISTERS[kind]]
        for tuned_on in kinds:
            own = [] if tuned_on is None else [path for path in own_paths(tuned_on) if os.path.isfile(path)]
            serving += [(path, tuned_on) for path in (*own, *recorded_tables().values())]
    read: dict[Path, tuple[TunedEntry, ...]] = {}
    for path in dict.fromkeys(path for path, _ in serving):
        try:
            read[path] = tuple(read_tuned(path))
        except TunedTableError as error:
            say(f"a tuned table is left out: {error}")
    return [Table(read[path], path, tuned_on, kind) for path, tuned_on in serving if path in read]


def find(
    among: Sequence[Table],
    problem: GemmProblem,
    regime: str = "burst",
    context: str = "isolated",
    chip: Chip = SXM,
    finish: Epilogue | None = None,
) -> Pick:
    """The config to run where none is named: the first table's entry for the exact problem, else one from the menu.
    Entries of the GPU's sister come after all others, and only for a GPU with as many SMs. A batch-invariant problem
    also takes an entry of the same problem tuned without that condition, if the entry's config meets it once it reads k
    forward; one of fp16 an entry of bf16, since wgmma takes the same time. Where TMA cannot reach the matrices and
    there is no entry, it is that of the problem that :func:`hopper_gemm.model.rules.pairs.filled_up` names.

    Within a table the context takes precedence over the regime, and the regime over the speedup. Among tables the
    context takes precedence over their order, since a kernel tuned for back-to-back launches may lose between other
    kernels, and vice versa; so does an entry of a search, which comes before one of a warm-up. The regime does not: a
    user's own steady entry is served before a recorded burst entry. With a finish, whose scales are part of the
    problem, only configs that the rules allow with it are considered."""
    problem = with_scales(problem, finish)
    serving = itself(problem)
    fitting = [
        (number, table, entry)
        for number, table in enumerate(among)
        if chip.sms == SXM.sms or not table.of_sister
        for entry in table.serving
        if entry.problem in serving and is_legal(as_run(entry, problem), problem, finish)
    ]
    if not fitting:
        return Pick(choose(problem, chip, finish), "model")

    def rank(fit: tuple[int, Table, TunedEntry]) -> tuple[float, ...]:
        number, table, entry = fit
        return (
            table.of_sister,
            not same_sizes(entry.problem, problem),
            entry.problem.dtype != problem.dtype,
            entry.context != context,
            entry.study == WARMUP,
            number,
            entry.regime != regime,
            -entry.speedup,
        )

    _, table, entry = min(fitting, key=rank)
    picked = served(entry, problem, regime, context, table.path)
    return picked if table.gpu in (None, entry.kind) else replace(picked, how="other GPU")


def pick(entries: Iterable[TunedEntry], problem: GemmProblem, regime: str = "burst", context: str = "isolated") -> Pick:
    """:func:`find` in a single table of entries of this kind of GPU."""
    return find([Table(tuple(entries))], problem, regime, context)
