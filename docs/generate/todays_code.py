"""Compare the machine code behind recorded figures with today's.

A row holds a digest of the machine code that was measured. Today's digests of the same kernels stand in one file beside
the results: ``make pages`` compiles the kernels, on a CPU, and writes it; pages only read it. Figures are this
version's where both digests are equal, whatever became of the sources. A row without a digest is not compared. Nor is a
row whose kernel another version of the DSL compiled, unless the digests are equal all the same.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import compile_into
from hopper_gemm.compiler.store import DSL, KernelId, KernelStore, default_store, versions
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.prebuild import build
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.files import read_json, write_whole
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import ResultsError, Row

FILE = "todays_code.json"
"""File of today's machine code, beside the folders of results."""

CURRENT, EARLIER, UNKNOWN = "this version's", "an earlier version's", "not compared"


@dataclass(frozen=True)
class Measured:
    """A kernel that was measured.

    Args:
        config, problem: config and problem of its row.
        code: digest of its machine code; empty if the row has none.
        dsl: version of the DSL that compiled it; empty if unknown.
    """

    config: GemmConfig
    problem: GemmProblem
    code: str = ""
    dsl: str = ""

    @property
    def kernel(self) -> KernelId | None:
        """The binary of today's sources; None if its row has no digest, or today's rules refuse the config."""
        return KernelId.of(self.config, self.problem) if self.code and is_legal(self.config, self.problem) else None


@dataclass(frozen=True)
class TodaysCode:
    """Today's machine code.

    Args:
        sources: digest of the sources that it was compiled from.
        versions: of the packages that compiled it.
        kernels: digest of the machine code by :func:`kernel_name`.
    """

    sources: str
    versions: Mapping[str, str]
    kernels: Mapping[str, str]

    @property
    def current(self) -> bool:
        """Return True if it was made from today's sources by the packages that are installed."""
        return (self.sources, self.versions) == (kernel_digest(), versions())

    def standing(self, measured: Measured) -> str:
        """Return :data:`CURRENT`, :data:`EARLIER` or :data:`UNKNOWN`."""
        if not measured.code:
            return UNKNOWN
        kernel = measured.kernel
        if kernel is None:
            return EARLIER
        code = self.kernels.get(kernel_name(kernel))
        if code == measured.code:
            return CURRENT
        return EARLIER if code is not None and measured.dsl == self.versions[DSL] else UNKNOWN

    def standings(self, measured: Iterable[Measured]) -> dict[GemmProblem, str]:
        """Return the standing of each problem: the worst of its kernels' standings."""
        by_problem: dict[GemmProblem, set[str]] = {}
        for kernel in measured:
            by_problem.setdefault(kernel.problem, set()).add(self.standing(kernel))
        return {
            problem: next(standing for standing in (EARLIER, UNKNOWN, CURRENT) if standing in present)
            for problem, present in by_problem.items()
        }


def measured_of(study: Study, rows: Iterable[Row]) -> list[Measured]:
    """Return the kernels of rows of a study, each once, without baselines."""
    dsl = (study.provenance.get("versions") or {}).get(DSL) or ""
    ours = (row for row in rows if not row.point.is_baseline)
    kernels = (Measured(row.point.config, row.point.problem, row.figures.get("code", ""), dsl) for row in ours)
    return list(dict.fromkeys(kernels))


def code_columns(configs: Mapping[str, GemmConfig], problem: GemmProblem) -> dict[str, Any]:
    """Return the columns of a benchmark's row by which later versions are compared with it: ``code``, digests of
    machine code by arm, and ``dsl``. It compiles kernels that the default store lacks."""
    kernels, store = {name: KernelId.of(config, problem) for name, config in configs.items()}, default_store()
    reports = {name: compile_into(KernelStore(store), kernel) for name, kernel in kernels.items()}
    return {"code": {name: report.code for name, report in reports.items()}, "dsl": versions()[DSL]}


def mark(standings: Sequence[str], of: str = "") -> str:
    """Summarise standings in a few words; figures that are neither this version's nor said to be not compared are an
    earlier version's.

    Args:
        standings: standing of each problem, or of each kernel.
        of: noun for the counted things; empty for none.

    Example:
        >>> mark([CURRENT, CURRENT]), mark([CURRENT, EARLIER])
        ("this version's", "this version's for 1 of 2")
        >>> mark([EARLIER, UNKNOWN], "kernels"), mark([UNKNOWN, UNKNOWN])
        ("an earlier version's for 1 of 2 kernels, 1 not compared", 'not compared')
    """
    count, total = Counter(standings), len(standings)
    if len(count) == 1:
        return standings[0]
    named = CURRENT if count[CURRENT] else EARLIER
    text = f"{named} for {count[named]:,} of {total:,}{of and f' {of}'}"
    return f"{text}, {count[UNKNOWN]:,} {UNKNOWN}" if count[UNKNOWN] else text


def kernel_name(kernel: KernelId) -> str:
    """Name of a kernel: every parameter that shapes its machine code."""
    parts = (kernel.config, kernel.dtype, kernel.layouts, "scattered" * kernel.scattered, kernel.observer)
    return " ".join([*(str(part) for part in parts if part), *([str(kernel.finish)] if kernel.finish else [])])


EVERY = 10
"""Compiled kernels between two lines of progress."""


def compiled(
    kernels: Sequence[KernelId], store: Path | None = None, say: Callable[[str], None] = lambda line: None
) -> dict[KernelId, CubinReport]:
    """Return reports of kernels, which are compiled on all cores where a store lacks them, a second each; ``say`` is
    called with a line of progress every few kernels.

    Raises:
        ChildProcessError: one does not compile; the message says why.
    """
    folder = store or default_store()

    def watch(done: int, total: int) -> None:
        if done % EVERY == 0 or done == total:
            say(f"machine code of today: {done} of {total} kernels compiled")

    built = build(kernels, folder, len(os.sched_getaffinity(0)), watch)
    reports, kept = dict[KernelId, CubinReport](), KernelStore(folder)
    for kernel in kernels:
        report = kept.report(kernel)
        if report is None:
            reason = built.failed.get(str(kernel.config), "it is gone from the store")
            raise ChildProcessError(f"{kernel_name(kernel)} must compile but does not ({reason}); fix the kernel")
        reports[kernel] = report
    return reports


def read_todays_code(path: Path) -> TodaysCode:
    """Return the content of the file.

    Raises:
        ResultsError: the file is missing or damaged.
    """
    try:
        return TodaysCode(**read_json(path))
    except (ResultsError, TypeError):
        raise ResultsError(f"{path} must hold today's machine code but is missing or damaged; run make pages") from None


def write_todays_code(path: Path, kernels: Iterable[KernelId], say: Callable[[str], None]) -> TodaysCode:
    """Rewrite the file if it is not current or lacks kernels, which are compiled on all cores into the default store;
    drop kernels that are not in ``kernels``.

    Args:
        path: path of the file.
        kernels: kernels that pages compare with today's.
        say: called with a line of progress every few kernels.

    Raises:
        ChildProcessError: a kernel does not compile.
        ValueError: two kernels have the same name.
    """
    try:
        before = read_todays_code(path)
    except ResultsError:
        before = None
    given = list(dict.fromkeys(kernels))
    by_name = {kernel_name(kernel): kernel for kernel in sorted(given, key=kernel_name)}
    if len(by_name) != len(given):
        raise ValueError(f"{len(given)} kernels must have as many names but have {len(by_name)}; see kernel_name")
    codes = before.kernels if before and before.current else {}
    missing = [kernel for name, kernel in by_name.items() if name not in codes]
    made = {kernel_name(kernel): report.code for kernel, report in compiled(missing, say=say).items()}
    code = TodaysCode(kernel_digest(), versions(), {name: codes.get(name) or made[name] for name in by_name})
    if code != before:
        write_whole(path, json.dumps(asdict(code), indent=1) + "\n")
    return code
