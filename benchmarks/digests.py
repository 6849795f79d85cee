"""Compare the machine code of kernels before and after a change of their sources. Needs no GPU.

    python -m benchmarks.digests write FILE [--groups G ...] [--some N] [--seed S] [--jobs J]
    python -m benchmarks.digests compare FILE [--groups G ...] [--some N] [--seed S] [--jobs J]

``write`` compiles every kernel below for sm_90a and writes it with a digest of its machine code; ``compare`` compiles
the kernels of a file, in which a parameter that was added since stands at its default, prints those whose code differs,
and exits with 1 if there is one. With ``--some N`` either takes N kernels only, drawn by a seed from every group, with
``--groups`` those of some groups:

    menu        the menu's kernels in every layout, plain and with each of FINISHES
    fp8         the menu's kernels on FP8, by tensor with fast sums, by row and by blocks with promoted ones
    types       the menu's kernels with an fp32 output, in fp16, and with threads that store C
    tuned       the entries of every recorded tuned table
    recorded    the recorded binaries
    ladder      the configs of the recorded ladder
    drawn       configs that `python -m tests.verify` would draw, of every technique, some with a drawn finish
    observers   the meter and the trace, on the ladder and on kernels of the menu
    padding     the kernel that pads operands

What the rules refuse is counted on stderr by the name of the rule. Run it from the repository's root.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.store import AnyId, KernelId, PaddingId, versions
from hopper_gemm.lab.counters.trace import TRACE
from hopper_gemm.lab.counters.waits import METER
from hopper_gemm.lab.guard.check import listed_binaries
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.menu import binaries
from hopper_gemm.model.problem import LAYOUTS, GemmProblem
from hopper_gemm.model.tuned import recorded_tables
from hopper_gemm.tune.parameters import DEFAULTS, all_values, kernel_of
from hopper_gemm.tune.study.files import recorded_entries
from hopper_gemm.tune.study.reader import read_study

FINISHES = (
    Epilogue(bias=True),
    Epilogue(bias=True, activation="gelu"),
    Epilogue(scale=True, activation="silu"),
    Epilogue(scale=True, bias=True, activation="gelu_tanh", residual=True),
    Epilogue(activation="silu", gated=True),
)
"""Every step; an activation with a bias, behind a scale alone, and with all other steps; gated."""

DRAWN, DRAW_SEED = 2400, 17
"""Pairs that are drawn, four of each kernel."""

OBSERVED = 16
"""Kernels of the menu that are observed."""


@dataclass(frozen=True)
class Case:
    """One kernel of a group; its name tells it from all others of the file."""

    group: str
    name: str
    kernel: AnyId

    def as_dict(self) -> dict[str, Any]:
        """The case ready for JSON, its kernel as every parameter off its default; that of padding as None."""
        kernel = None
        if isinstance(self.kernel, KernelId):
            config = {name: value for name, value in all_values(self.kernel.config).items() if value != DEFAULTS[name]}
            kernel = {**asdict(self.kernel), "config": config}
        return {"group": self.group, "name": self.name, "kernel": kernel}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Case:
        """The case that :meth:`as_dict` wrote."""
        kernel = values["kernel"]
        if kernel is None:
            return Case(values["group"], values["name"], PaddingId())
        finish = None if kernel["finish"] is None else Epilogue(**kernel["finish"])
        made = KernelId(**{**kernel, "config": kernel_of(kernel["config"]), "finish": finish})
        return Case(values["group"], values["name"], made)


def cases(refused: Counter[str]) -> list[Case]:
    """Every kernel once, under the first group that has it.

    Args:
        refused: counts combinations that the rules refuse, by the rule's name.
    """
    found: dict[AnyId, Case] = {}
    for group, kernel in _kernels(refused):
        found.setdefault(kernel, Case(group, f"{group}: {_label(kernel)}", kernel))
    return list(found.values())


def _kernels(refused: Counter[str]) -> Iterator[tuple[str, AnyId]]:
    def allowed(config: GemmConfig, problem: GemmProblem, finish: Epilogue | None = None) -> bool:
        against = reasons(config, problem, finish)
        refused.update(reason.rule for reason in against[:1])
        return not against

    yield "padding", PaddingId()
    for kernel in binaries():
        for layouts in LAYOUTS:
            problem = _problem(kernel, layouts=layouts)
            for finish in (None, *FINISHES):
                if allowed(kernel, problem, finish):
                    yield "menu " + str(finish or "plain"), KernelId.of(kernel, problem, finish=finish)
        for promote, scales in ((0, "tensor"), (128, "row"), (128, "blocks")):
            words = _problem(kernel)
            fp8 = replace(words, n=-(-words.n // 16) * 16, k=2 * words.k, dtype="e4m3_bf16", promote=promote)
            if allowed(kernel, fp8, finish := Epilogue(scales=scales)):
                yield f"fp8 {scales}", KernelId.of(kernel, fp8, finish=finish)
        for dtype in ("bf16_fp32", "fp16"):
            if allowed(kernel, _problem(kernel, dtype)):
                yield f"types {dtype}", KernelId.of(kernel, _problem(kernel, dtype))
        if allowed(kernel, _problem(kernel)):
            yield "types scattered", KernelId.of(kernel, _problem(kernel), scattered=True)
    for entry in recorded_entries():
        yield "tuned", KernelId.of(entry.config, entry.problem)
    for table in recorded_tables().values():
        for binary in listed_binaries(table):
            yield "recorded", KernelId.of(binary.config, binary.problem)
    ladder = read_study(recorded_tables()["h200"].parent / "ladder")
    points = [row.point for row in ladder.rows if not row.point.is_baseline]
    steps = [KernelId.of(point.config, point.problem) for point in points if allowed(point.config, point.problem)]
    yield from (("ladder", step) for step in steps)
    from tests.verify.drawing import pairs  # its import fails while an integer has no values to draw

    for pair in pairs(DRAW_SEED, DRAWN):
        yield "drawn", pair.kernel
    some = binaries()[:: len(binaries()) // OBSERVED]
    observed = [*steps, *(KernelId.of(kernel, _problem(kernel)) for kernel in some)]
    for kernel in observed:
        for observer in (METER, TRACE):
            name = observer.rpartition(":")[2].lower()
            yield f"observers {name}", KernelId(kernel.config, kernel.dtype, kernel.layouts, observer)


def _problem(kernel: Kernel, dtype: str = "bf16", layouts: str = "kk") -> GemmProblem:
    """A problem of four cluster tiles, whose columns make up a gate and what it multiplies."""
    sides = 2 * kernel.tile_m * kernel.cluster_m, 2 * kernel.tile_n * kernel.cluster_n
    k = kernel.tile_k * kernel.split_k * kernel.stages
    return GemmProblem(*(sides[::-1] if kernel.swap_ab else sides), k, dtype, layouts)


def _label(kernel: AnyId) -> str:
    """Every value of a kernel's key off its default."""
    if isinstance(kernel, PaddingId):
        return str(kernel)
    plain = type(kernel.config)().as_dict()
    values = [f"{name}={value}" for name, value in kernel.config.as_dict().items() if value != plain[name]]
    if kernel.scattered:
        values.append("scattered")
    if kernel.promote:
        values.append(f"promote={kernel.promote}")
    values += [text for text in (kernel.observer.rpartition(":")[2], str(kernel.finish or "")) if text]
    return " ".join([type(kernel.config).__name__, kernel.dtype, kernel.layouts, *values])


GROUPS = ("menu", "fp8", "types", "tuned", "recorded", "ladder", "drawn", "observers", "padding")
"""Groups by the first word of their name."""


def some(chosen: Iterable[Case], count: int | None, seed: int) -> list[Case]:
    """At most ``count`` cases, drawn from each group in turn; all of them if it is None."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in chosen:
        groups[case.group].append(case)
    rng, found = random.Random(seed), list[Case]()
    for group in groups.values():
        rng.shuffle(group)
    while any(groups.values()) and (count is None or len(found) < count):
        found += [group.pop() for group in groups.values() if group]
    return found[:count]


def digest(kernel: AnyId) -> str:
    """Digest of the machine code of a kernel, with the word ``spills`` if registers do; else the compiler's error."""
    from hopper_gemm.compiler.compile import compile_kernel, compile_padding
    from hopper_gemm.compiler.cubin import read_cubin

    try:
        if isinstance(kernel, PaddingId):
            made = compile_padding()
        else:
            key = kernel.config, kernel.dtype, kernel.layouts, kernel.observer, kernel.finish, kernel.scattered
            key = *key, kernel.promote, kernel.grouping
            made = compile_kernel(*key)
    except Exception as error:  # whatever the DSL raises is a result, and equal as long as the compiler fails alike
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    report = read_cubin(made.cubin)
    return report.code + " spills" * report.spills


def digests(chosen: Iterable[Case], jobs: int) -> dict[str, str]:
    """The digests of cases by their names, with progress on stderr."""
    chosen, found = list(chosen), dict[str, str]()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        coming = {pool.submit(digest, case.kernel): case for case in chosen}
        for done in as_completed(coming):
            found[coming[done].name] = done.result()
            if len(found) % 50 == 0 or len(found) == len(chosen):
                print(f"{len(found)} of {len(chosen)}", file=sys.stderr, flush=True)
    return {case.name: found[case.name] for case in chosen}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """A line for each kernel of both whose code differs."""
    return [
        f"{name}: {before[name]} -> {after[name]}" for name in after if name in before and before[name] != after[name]
    ]


def main() -> int:
    """Write or compare; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digests", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS, help="take kernels of these only")
    parser.add_argument("--some", type=int, help="take so many kernels only")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")
    asked = parser.parse_args()
    if asked.what == "write":
        if not asked.file.absolute().parent.is_dir():
            parser.error(
                f"{asked.file} must lie in a folder that exists but {asked.file.parent} is none; make it first"
            )
        refused: Counter[str] = Counter()
        every = cases(refused)
        told = (f"{rule} {count}" for rule, count in refused.most_common())
        print("refused by rule:", *told, sep="\n  ", file=sys.stderr)
        taken = some((one for one in every if one.group.split()[0] in asked.groups), asked.some, asked.seed)
        found = digests(taken, asked.jobs)
        written = [{**case.as_dict(), "digest": found[case.name]} for case in taken]
        asked.file.write_text(json.dumps({"versions": versions(), "cases": written}, indent=1) + "\n")
        print(f"{len(found)} of {len(every)} kernels written to {asked.file}")
        return 0
    kept = json.loads(asked.file.read_text())
    if kept["versions"] != versions():
        print(f"{asked.file} is of {kept['versions']} but this is {versions()}; write it again", file=sys.stderr)
        return 2
    before = {one["name"]: one["digest"] for one in kept["cases"]}
    every = [one for one in map(Case.of, kept["cases"]) if one.group.split()[0] in asked.groups]
    found = digests(some(every, asked.some, asked.seed), asked.jobs)
    changed = differences(before, found)
    print(*changed, f"{len(changed)} of {len(found)} kernels differ", sep="\n")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
