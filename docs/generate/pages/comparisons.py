"""The recorded comparisons as pages tell them: the suite, other lists of problems, all lists, the power cap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import atanh, ceil, log, sqrt, tanh
from typing import Any

from benchmarks.fresh import LAST_SEEDS
from docs.generate import todays_code as today
from docs.generate.pages.depth import ran
from docs.generate.pages.means import mean_figure, over_faster, pick_of
from docs.generate.pages.prices import (
    invariant_on_h100,
    invariant_published,
    invariant_ratios,
    invariant_rows,
    measured_rows,
    out_of_reach_published,
)
from docs.generate.pages.sources import origin, read, recorded, versions
from docs.generate.pages.studies import on_h100s
from docs.generate.pages.wording import short_label, wrapped
from docs.generate.todays_code import CURRENT, EARLIER, Measured, TodaysCode, mark, measured_of, read_todays_code
from hopper_gemm.model import hopper
from hopper_gemm.model.lookup import pick
from hopper_gemm.model.menu import choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import results_root, slug
from hopper_gemm.tune.limits import CHIPS, waves
from hopper_gemm.tune.measure.verdict import Z, mean_of
from hopper_gemm.tune.parameters import kernel_of as config_from
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.study.files import read_object, recorded_entries
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.provenance import PROVENANCE
from hopper_gemm.tune.study.reader import Study, recorded_folders
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.study.shapes import read_shapes
from hopper_gemm.tune.tables.comparison import as_published, cells, means
from hopper_gemm.tune.tables.mapped import mapped
from hopper_gemm.tune.tables.pivot import config_of, interval, markdown, problem_of

Record = Mapping[str, Any]

ON_H100S = ("suite-tuned-on-h100", "suite-tuned-on-h100-second", "suite-tuned-on-h100-third")
"""The suite on three boards of NVIDIA H100s, by entries that were tuned on another."""

ON_H200S = ("suite-beside-lists", "suite-beside-lists-second")
"""The suite on two boards of NVIDIA H200s, by this version, beside cuBLASLt's heuristic lists."""

STEADY = (
    *(
        "steady-on-h100",
        "served",
        "served-burst",
        "steady-i",
        "alone-steady",
        "suite-steady",
        "steady-j",
        "steady-layers",
        "steady-k",
    ),
)
"""Studies at the power cap."""

PEERS = {"cublas": "over `torch.mm`", "triton": "over Triton", "quack": "over quack"}
"""Baselines of the comparison with other projects' kernels, with the name of their column."""


def over(name: str, context: str = "isolated", regime: str = "burst") -> dict[str, dict[str, Record]]:
    """A comparison's cells in one context and regime: of each problem those that ran, by baseline."""
    found: dict[str, dict[str, Record]] = {}
    for record in cells(recorded(name).stage("compare")):
        if (record["status"], record["context"], record["regime"]) == ("ok", context, regime):
            found.setdefault(record["problem"], {})[record["against"]] = record
    return found


def suite_cells() -> dict[str, dict[str, Record]]:
    """Those of the suite, in the order of its list."""
    found = over("suite")
    return {str(problem): found[str(problem)] for problem in read_shapes().of_regime("burst")}


def kernel_of(*names: str) -> str:
    """Digest of the kernel's sources with which studies were measured, its first digits, and the day."""
    told = [recorded(name).provenance for name in names]
    digests = dict.fromkeys(f"`{about['kernel'][:6]}`" for about in told)
    return ", ".join((*digests, *dict.fromkeys(about["created"][:10] for about in told)))


FP8_TUNED = {
    "fp8-tuned": "tuned, one scale",
    "fp8-row-tuned": "tuned but for one, scales of rows, promoted sums",
    "fp8-blocks-tuned": "tuned, scales of blocks",
}
"""Comparisons of FP8 by tuned configs, and their scales in words; untuned ones stand in docs/ways.md."""

MARKED: dict[str, Callable[[Row], bool]] = {
    **dict.fromkeys((*ON_H100S, "suite-chained-on-h100", "steady-on-h100", *FP8_TUNED), lambda row: True),
    **dict.fromkeys(("suite", *ON_H200S, "suite-chained", "short", "drawn-again"), lambda row: True),
    **dict.fromkeys(LAST_SEEDS, lambda row: "pick 1" in row.figures["how"].split(", ")),
    "map-held-out": lambda row: "pick 1" in row.figures["how"].split(", "),
}
"""Studies whose figures are marked with their machine code, and which of their rows the figures are of."""

TABLES = {"invariant": "invariance-h100.jsonl", "ragged": "ragged.jsonl"}
"""Tables of benchmarks whose figures are marked likewise."""


def figure_rows(name: str) -> list[Row]:
    """The rows behind a study's line of figures."""
    return [row for row in recorded(name).stage("compare", "map") if row.ok and MARKED[name](row)]


def measured_kernels(name: str) -> list[Measured]:
    """The kernels behind a line of figures: of a study, or of a benchmark's table (``invariant``, ``ragged``)."""
    if name in MARKED:
        return measured_of(recorded(name), figure_rows(name))
    if name == "invariant":
        rows = [(row, GemmProblem(*row["problem"])) for row in invariant_on_h100()]
    else:
        rows = [(row, GemmProblem(**row["problem"])) for row in measured_rows(name)]
    found = []
    for row, problem in rows:
        config = config_from(row.get("configs", {}).get("ours", {}))  # the default in rows that have its label alone
        found.append(Measured(config, problem, row.get("code", {}).get("ours", ""), row.get("dsl", "")))
    return found


@cache
def todays_code() -> TodaysCode:
    """Today's machine code, as ``make pages`` wrote it last."""
    return read_todays_code(results_root() / today.FILE)


def mark_of(*names: str) -> str:
    """Whose machine code a line of figures is of, in a few words, and from which day to which it was measured.

    Args:
        names: the studies or tables of its rows, one for each board.
    """
    standings = todays_code().standings([one for name in names for one in measured_kernels(name)])
    return f"{mark(list(standings.values()))}, {days_of(names)}"


def days_of(names: Iterable[str]) -> str:
    """The day on which rows were measured, or the first and the last."""
    days = sorted({day_of(name) for name in names})
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def day_of(name: str) -> str:
    """The day on which the rows of a line of figures were measured."""
    if name in MARKED:
        return str(recorded(name).provenance["created"][:10])
    return str(read_object(results_root() / PROVENANCE)[f"measurements/{TABLES[name]}"]["date"])


def no_longer_served(name: str = "suite") -> list[str]:
    """The problems of a comparison for which the recorded table has another config than it ran."""
    entries = recorded_entries()
    rows = [row for row in recorded(name).stage("compare") if row.point.against == "cublas"]
    served = ((row.point, pick(entries, row.point.problem, row.point.regime, row.point.context)) for row in rows)
    return list(dict.fromkeys(str(point.problem) for point, now in served if now.config != point.config))


def widened(record: Record) -> Record:
    """A cell of a comparison with the interval that holds on other boards, as published."""
    if record["status"] != "ok":
        return record
    wide = as_published(record)
    return {**record, "speedup_low": wide.low, "speedup_high": wide.high}


def figure(speedups: Iterable[Ratio], bold: str = "") -> str:
    """Speedups as their geometric mean, between two marks, its interval, and the least."""
    found = list(speedups)
    return f"{mean_figure(found, bold)}, least {min(one.median for one in found):.3f}x"


def faster(of: Mapping[str, Record]) -> Ratio:
    """The speedup over the faster baseline of a problem, as published."""
    return as_published(min(of.values(), key=lambda one: one["speedup"]))


MARK = "[machine code]({}measuring.md#whose-machine-code), measured"
"""Name of the column of :func:`mark_of`, with the address of the folder of docs."""


def headline() -> str:
    """Geometric means by list and context, and the best at the power cap, of today's machine code."""
    lines = [line for line in headline_lines().values() if line[-1].startswith(f"{CURRENT}, ")]
    over_torch = f"over `torch.mm` (cuBLAS {' and '.join(versions()['cuBLAS'])})"
    names = over_torch, "over the faster of `torch.mm` and cuBLASLt", MARK.format("docs/")
    return markdown(("problems", "context", *names), lines)


def headline_lines() -> dict[str, tuple[str, ...]]:
    """The lines of the headline, those of earlier machine code too, by the first study of their rows: problems,
    context, figure over torch.mm, figure over the faster baseline, machine code."""
    over_mm, over_both = (figure(ratios, "**") for ratios in ratios_on(ON_H100S))
    what = "[24 problems](docs/suite.md#on-h100s) on H100s: squares, layers of language models, odd shapes"
    lines: dict[str, tuple[str, ...]] = {}
    lines[ON_H100S[0]] = (what, "isolated", over_mm, over_both, mark_of(*ON_H100S))
    chained = over("suite-chained-on-h100", "chained").values()
    ours, both = figure(as_published(of["cublas"]) for of in chained), figure(map(faster, chained))
    what = f"the same {len(chained)} on an H100"
    lines["suite-chained-on-h100"] = (what, "chained", ours, both, mark_of("suite-chained-on-h100"))
    ours, both = map(figure, ratios_on(ON_H200S))
    what = "[the same 24](docs/suite.md#again-on-h200s) on H200s"
    lines[ON_H200S[0]] = (what, "isolated", ours, both, mark_of(*ON_H200S))
    what = "the same 24 on an H100, [batch-invariant](docs/batch-invariance.md)"
    lines["invariant"] = (what, "isolated", *_invariant())
    for name, scales in FP8_TUNED.items():
        fp8 = over(name).values()
        ours, lists = figure(as_published(of["cublas"]) for of in fp8), all("heuristics" in of for of in fp8)
        both = figure(map(faster, fp8)) if lists else ""
        what = f"[{len(fp8)} FP8 problems](docs/models.md#fp8) on H100s, {scales}, over torch's `scaled_mm`"
        lines[name] = (what, "isolated", ours, both, mark_of(name))
    for seed in LAST_SEEDS:
        anew = mapped(recorded(seed).stage("map"))
        picks = [(row.point.problem, row.point.config) for row in figure_rows(seed) if row.point.against == "cublas"]
        others = sum(choose(problem, CHIPS["h100"]).compiled() != config.compiled() for problem, config in picks)
        drawn = f"[drawn by seed {seed.removeprefix('fresh-')}](docs/menu.md#what-a-pick-is-worth)"
        what = f"{len(anew)} untuned problems, {drawn}, on an H100"
        what += f"; today's menu has another kernel for {others}" if others else ""
        lines[seed] = (what, "isolated", figure(map(pick_of, anew)), figure(map(over_faster, anew)), mark_of(seed))
    capped = over("steady-on-h100", regime="steady")["8192x8192x8192"]
    best, harder_one = widened(capped["cublas"]), widened(min(capped.values(), key=lambda one: one["speedup"]))
    energy = f"{best['pj_per_flop']:.3f} pJ/FLOP, `torch.mm` {best['baseline_pj_per_flop']:.3f}"
    what = f"[8192^3 at the power cap](docs/steady.md) on an H100; {energy}"
    lines["steady-on-h100"] = (what, "isolated", interval(best), interval(harder_one), mark_of("steady-on-h100"))
    return lines


def _invariant() -> tuple[str, str, str]:
    """The suite by batch-invariant kernels: figure over torch.mm, nothing over the faster, machine code."""
    ratios = invariant_published(invariant_on_h100(), "", "torch", "ours")
    return figure(ratios.values()), "", mark_of("invariant")


def result(suite: str = "suite.md") -> str:
    """The result in a sentence: geometric means over the suite.

    Args:
        suite: address of the page that tells of it.
    """
    ours, fast = map(mean_of, ratios_on(ON_H200S))
    h100_mm, h100_faster = map(mean_of, ratios_on(ON_H100S))
    widest = max(log(one.high / one.low) / 2 for one in (ours, fast, h100_mm, h100_faster))
    boards = [mean_of(ratios_on([name])[0]).median for name in ON_H100S]
    return wrapped(
        f"{len(suite_cells())} problems of many kinds: **{h100_mm.median:.3f}x** the speed of `torch.mm` on NVIDIA "
        f"H100s ({len(boards)} boards, {log(max(boards) / min(boards)):.1%} apart), {h100_faster.median:.3f}x that of "
        f"the faster of it and cuBLASLt; {ours.median:.3f}x and {fast.median:.3f}x on H200s, tuned on each ([geometric "
        f"means]({suite}), known to {widest:.1%})."
    )


def ratios_on(names: Sequence[str]) -> tuple[list[Ratio], list[Ratio]]:
    """Speedups of the suite, of every problem the mean of the boards, each of which is a study: over torch.mm, and over
    the faster baseline."""
    boards = [over(name) for name in names]
    over_mm = [[as_published(board[problem]["cublas"]) for board in boards] for problem in boards[0]]
    return [*map(mean_of, over_mm)], [mean_of([faster(board[problem]) for board in boards]) for problem in boards[0]]


def suite_on_h200s() -> str:
    """A sentence on the suite by this version on H200s."""
    ours, fast = ratios_on(ON_H200S)
    one, other = (f"../results/h200/{name}/compare.md" for name in ON_H200S)
    return wrapped(
        f"The tuned configs on [one board]({one}) and on [another]({other}), beside cuBLASLt's heuristic lists in "
        f"place of some thousand algorithms: {figure(ours)} over `torch.mm`, {figure(fast)} over the faster of it and "
        f"the lists, behind on {sum(ratio.high < 1 for ratio in fast)} of {len(fast)}. The machine code is "
        f"{mark_of(*ON_H200S)}."
    )


def suite_on_h100s() -> str:
    """The suite on H100s, problem by problem, and beside it what the model chooses there."""
    boards, picked = [over(name) for name in ON_H100S], over("suite-as-picked")
    lines, columns = [], []
    for problem in map(str, read_shapes().of_regime("burst")):
        cells_of_boards = [board[problem] for board in boards]
        cells_of = [of[name] for of in cells_of_boards for name in ("cublas", "heuristics")]
        columns.append([*map(as_published, cells_of)])
        us = (f"{of['cublas']['time_us']:.1f}" for of in cells_of_boards)
        choice = f"{picked[problem]['cublas']['speedup']:.3f}x" if problem in picked else "not timed"
        lines.append((problem, *us, *(f"{cell['speedup']:.3f}x" for cell in cells_of), choice))
    means_of = (
        *map(mean_figure, zip(*columns, strict=True)),
        mean_figure(as_published(of["cublas"]) for of in picked.values()),
    )
    kinds = "over torch.mm", "over cuBLASLt"
    numbers = range(1, len(boards) + 1)
    names = *(f"us, board {n}" for n in numbers), *(f"{kind}, board {n}" for n in numbers for kind in kinds)
    header = ("problem", *names, "the model's choice, over torch.mm")
    return markdown(header, [*lines, ("geometric mean", *[""] * len(boards), *means_of)])


def fp8_tuned() -> str:
    """Sentences on FP8 as tuned, by one scale also at the power cap, and by blocks."""
    (steady,) = over("fp8-steady", regime="steady").values()

    def stands(name: str) -> str:
        tuned = over(name)
        behind = [problem.split()[0] for problem, of in tuned.items() if of["cublas"]["speedup_high"] < 1]
        over_both = ""
        if all("heuristics" in of for of in tuned.values()):
            over_both = f", {mean_figure(map(faster, tuned.values()))} over the faster of it and cuBLASLt's list"
        return (
            f"{mean_figure(as_published(of['cublas']) for of in tuned.values())} over torch's function{over_both}, "
            f"behind on {len(behind)} of {len(tuned)} ({', '.join(behind)}), up to "
            f"{max(of['cublas']['tflops'] for of in tuned.values()):,.0f} TFLOP/s"
        )

    return wrapped(
        f"Problems were searched on one H100 and timed on another. One scale with fast sums, 8 s each: "
        f"{stands('fp8-tuned')}; at the power cap 8192^3 stands at {interval(widened(steady['cublas']))} on a third. "
        f"Scales of rows, promoted at 128, 4 s each but for one that was picked: {stands('fp8-row-tuned')}. Scales of "
        f"blocks, 4 s each: {stands('fp8-blocks-tuned')}."
    )


def _once(row: Row) -> Ratio:
    """The speedup of a row that one process measured, as published."""
    return as_published({**row.figures, "looks": (1,)})


def others() -> str:
    """Table of the lists beside the suite: problems, context, figure over torch.mm, machine code."""
    drawn = [row for row in recorded("drawn").stage("compare") if row.ok]
    multiples = [_once(row) for row in figure_rows("drawn-again") if row.point.against == "cublas"]
    held_out = recorded("map-held-out"), on_h100s("map-held-out-again")
    picks, elsewhere = ([*map(pick_of, mapped(study.stage("map")))] for study in held_out)
    untuned = f"{len(picks)} [held-out](menu.md#what-a-pick-is-worth) untuned problems, as picked"
    off, padded = out_of_reach_published(), "[padded at each call](#rows-that-tma-cannot-reach)"
    more = len(off.keys() - {str(row.point.problem) for row in drawn})
    short = [as_published(of["cublas"]) for of in over("short").values()]
    lists = [
        ("24 short problems, 2 to 12 us of `torch.mm`", short, "short"),
        (f"{len(multiples)} of {len(drawn)} random problems, n and k multiples of 8", multiples, "drawn-again"),
        (f"the other {len(off) - more} and {more} more, {padded}", off.values(), "ragged"),
        (f"{untuned}; H100s {mean_of(elsewhere).median:.3f}x", picks, "map-held-out"),
    ]
    lines = [(what, "isolated", figure(ratios), mark_of(name)) for what, ratios, name in lists]
    return markdown(("problems", "context", "over `torch.mm`", MARK.format("")), lines)


def suite() -> str:
    """The suite between other kernels, problem by problem, and what batch-invariant kernels reach."""
    found, invariant = suite_cells(), invariant_ratios(invariant_rows("suite"), "", "torch", "ours")
    lines = [
        (
            problem,
            *(f"{of['cublas']['time_us']:.1f}", f"{of['cublas']['tflops']:.0f}"),
            *(interval(widened(of[name])) for name in ("cublas", "cublaslt")),
            f"{invariant[problem]:.3f}x",
            f"`{short_label(config_of(of['cublas']))}`",
        )
        for problem, of in found.items()
    ]
    mean = (mean_figure(as_published(of[name]) for of in found.values()) for name in ("cublas", "cublaslt"))
    lines.append(
        (
            "geometric mean",
            "",
            "",
            *mean,
            mean_figure(invariant_published(invariant_rows("suite"), "", "torch", "ours").values()),
            "",
        )
    )
    names = "over torch.mm", "over the best of cuBLASLt", "batch-invariant, over torch.mm"
    return markdown(("problem", "us", "TFLOP/s", *names, "config"), lines)


def standings() -> dict[str, str]:
    """Each problem of the suite as ``ahead`` of both baselines, ``behind`` one of them or ``open``, by published
    intervals."""
    found = {}
    for problem, of in suite_cells().items():
        wide = [widened(one) for one in of.values()]
        ahead, behind = all(one["speedup_low"] > 1 for one in wide), any(one["speedup_high"] < 1 for one in wide)
        found[problem] = "ahead" if ahead else "behind" if behind else "open"
    return found


def standing() -> str:
    """Sentences on the problems of the suite on which the kernel is ahead, behind or neither."""
    ahead, behind, even = (
        [one for one, told in standings().items() if told == word] for word in ("ahead", "behind", "open")
    )
    gone, code = no_longer_served(), todays_code().standings(measured_kernels("suite"))
    changed = f", but for {', '.join(gone)}, which runs another one since" if gone else ""
    others = "; all were [timed again](#again-on-h200s)" if EARLIER in code.values() else ""
    return wrapped(
        f"The kernel is ahead of both baselines on {len(ahead)} problems by the whole interval, and behind one of them "
        f"on {len(behind)}{': ' if behind else ''}{', '.join(behind)}. On the other {len(even)} it cannot be told from "
        f"the faster of the two: {', '.join(even)}. The machine code that was measured is "
        f"{mark(list(code.values()))}{others}; the configs are those that `matmul` runs{changed}."
    )


LEAD = 1.01
"""Lead over the faster baseline up to which :func:`left` says what is missing."""


def suite_answer() -> str:
    """The answer of the study on the suite: where the kernel, tuned, is ahead."""
    told = list(standings().values())
    (mean,) = (one for one in means(cells(recorded("suite").stage("compare"))) if one.against == "cublas")
    return wrapped(
        f"*Answer.* Tuned, the kernel is ahead of both by the whole interval on {told.count('ahead')} of the "
        f"{len(told)} problems, and behind one of the two on {told.count('behind')}; over `torch.mm` the geometric "
        f"mean is {mean.figure}."
    )


def left() -> str:
    """Where the time of each problem of the suite goes: what the tensor cores of the fullest SM, or else memory, take
    at least, what is left of the launch, and what a lead would take."""
    lines = []
    for problem, of in suite_cells().items():
        ours, least = of["cublas"], min(one["speedup"] for one in of.values())
        config, sizes, us = config_of(ours), problem_of(ours), ours["time_us"]
        steps = ceil(ceil(sizes.k / config.tile_k) / config.split_k)
        clocks = 2 * config.tile_m * config.tile_n * config.tile_k / hopper.FLOP_PER_CLOCK_PER_SM
        math = waves(config, sizes).waves * steps * clocks / ours["sm_mhz"]
        memory = sizes.bytes / hopper.HBM_BYTES_PER_SECOND * 1e6
        times = (f"{one:.1f}" for one in (us, math, memory, us - max(math, memory)))
        missing = f"{us * (1 - least / LEAD):.1f}" if least < LEAD else ""
        lines.append((problem, f"{least:.3f}x", *times, missing))
    return markdown(("problem", "over the faster", "us", "tensor cores", "memory", "left", "to a lead"), lines)


def even() -> str:
    """A sentence on the problems on which less than 1 % separates the kernel from the faster baseline: their waves, and
    the tile of cuBLASLt's best algorithm."""
    shown, same = [], []
    for problem, of in suite_cells().items():
        if abs(min(one["speedup"] for one in of.values()) - 1) < LEAD - 1:
            ours = of["cublas"]
            shown.append(f"{problem} ({waves(config_of(ours), problem_of(ours)).waves})")
            if f"_{ours['tile_m']:.0f}x{ours['tile_n']:.0f}_" in of["cublaslt"]["baseline_kernel"]:
                same.append(problem)
    return wrapped(
        "Less than 1 % separates the kernel from the faster baseline on these problems, whose waves of tiles stand in "
        f"brackets: {', '.join(shown)}. In a single wave the first load has to be asked for and to arrive, and the "
        "last byte to leave ([neighbours](neighbours.md)), with nothing beside them. The best of some thousand "
        "algorithms of cuBLASLt has not got rid of that either, and runs the same tile on "
        f"{len(same)} of the {len(shown)}."
    )


def rivals_clusters() -> str:
    """Clusters in which cuBLASLt's best algorithm ran in the suite, on the problems of the study of split-K parts."""
    problems = "256x4096x14336", "512x512x65536", "1024x1024x16384"
    clusters: dict[str, set[str]] = {problem: set() for problem in problems}
    for row in recorded("suite").stage("compare"):
        if row.ok and str(row.point.problem) in clusters and row.point.against == "cublaslt":
            found = re.search(r"_(\d+x\d+)_[hv]_", str(row.figures["baseline_kernel"]))
            assert found
            clusters[str(row.point.problem)].add(found[1])
    told = ", ".join(f"{' or '.join(sorted(of))} on {problem}" for problem, of in clusters.items())
    return wrapped(
        "The best algorithms of cuBLASLt on these problems, in clusters that their names tell (all processes of the "
        f"[suite](suite.md)): {told}."
    )


def lists() -> str:
    """Geometric means of every recorded comparison: isolated bursts, then the power cap, then chained, the latest
    first."""
    lines: list[tuple[tuple[bool, bool], str, tuple[str, ...]]] = []
    for study in compared_studies():
        folder, about = study.path.relative_to(results_root().parent), study.provenance
        gpu = slug(about["gpu"]["name"])
        name = "/".join(folder.parts[folder.parts.index(gpu) + 1 :])
        link = f"[{name}](../{folder if 'archive' in folder.parts else folder / 'compare.md'})"
        for mean in means(cells(study.stage("compare"))):
            asked = f"{mean.problems} of {mean.total}" if mean.problems != mean.total else str(mean.problems)
            figures = mean.figure, f"{mean.worst:.3f}x on {mean.worst_on}", str(len(mean.behind))
            context = mean.context if mean.regime == "burst" else f"{mean.context}, {mean.regime}"
            origin = gpu.upper(), f"`{about['kernel'][:6]}`, {about['created'][:10]}"
            line = link, mean.against, context, asked, *figures, *origin
            lines.append(((mean.context == "chained", mean.regime == "steady"), about["created"], line))
    lines = sorted(sorted(lines, key=lambda line: line[1], reverse=True), key=lambda line: line[0])
    names = ("list", "baseline", "context", "problems", "geometric mean", "least", "behind", "GPU", "kernel, measured")
    return markdown(names, [line for _, _, line in lines])


def suite_origin() -> str:
    """On which boards, in how many processes and when the suite was compared."""
    return wrapped(f"Measured {origin([recorded('suite')])}.")


def chained_origin() -> str:
    """The same of the chained suite."""
    where, page = origin([recorded("suite-chained")]), "[page](../results/h200/suite-chained/compare.md)"
    return wrapped(f"Measured {where} ({page}).")


def compared_studies() -> list[Study]:
    """Every recorded study that compares a config of ours with a baseline."""
    studies = map(read, recorded_folders())
    return [study for study in studies if any(not row.point.is_baseline for row in study.stage("compare"))]


def peers() -> str:
    """Kernels of other projects, each tuned by itself, problem by problem in one run."""
    found = over("peers")
    lines = [
        (problem, f"{of['cublas']['time_us']:.1f}", *(f"{of[name]['speedup']:.3f}x" for name in PEERS))
        for problem, of in found.items()
    ]
    mean = (mean_figure(as_published(of[name]) for of in found.values()) for name in PEERS)
    return markdown(("problem", "us", *PEERS.values()), [*lines, ("geometric mean", "", *mean)])


def steady() -> str:
    """Finals and comparisons at the power cap, isolated: the best config of each problem, board by board."""
    lines: list[tuple[str, ...]] = []
    for name in STEADY:
        study = recorded(name)
        stage = "final" if study.stage("final") else "compare"
        rows = [row for row in pooled(study.stage(stage)) if row.ok and not row.point.is_baseline]
        best = {str(row.point.problem): row for row in sorted(rows, key=lambda row: row.figures["speedup"])}
        page, kind = study.path.relative_to(results_root()), study.provenance["gpu"]["name"].split()[1]
        link = f"[{name}](../results/{page}/{'table' if stage == 'final' else 'compare'}.md)"
        for problem, row in best.items():
            one = row.figures
            energy = f"{one['pj_per_flop']:.3f} ({one['baseline_pj_per_flop']:.3f})"
            config = f"`{short_label(row.point.config)}`"
            lines.append(
                (problem, interval(one), energy, str(one["processes"]), f"{kind} {row.board[4:8]}", config, link)
            )
    columns = ("problem", "over torch.mm", "pJ/FLOP (torch.mm)", "processes", "board", "config", "study")
    return markdown(columns, sorted(lines))


def steady_rows(name: str, stage: str) -> str:
    """Every config of a study at the power cap."""
    lines = [
        (
            str(row.point.problem),
            f"`{short_label(row.point.config)}`",
            interval(row.figures),
            f"{row.figures['pj_per_flop']:.3f} ({row.figures['baseline_pj_per_flop']:.3f})",
            f"{row.figures['watts']:.0f}",
        )
        for row in pooled(recorded(name).stage(stage))
        if row.ok and not row.point.is_baseline
    ]
    return markdown(("problem", "config", "over torch.mm", "pJ/FLOP (torch.mm)", "watts"), lines)


def invariance_answer() -> str:
    """The cost of batch invariance on the suite and on problems that nobody tuned, in a sentence."""
    told = []
    for name in ("suite", "held-out"):
        rows = invariant_rows(name)
        mm, plain = (mean_figure(invariant_published(rows, "", arm, "ours").values()) for arm in ("torch", "plain"))
        told.append(f"{plain} of the speed of our own kernels without the condition, {mm} over `torch.mm`")
    return wrapped(f"*Answer.* Little. On the suite {told[0]}; on problems that nobody tuned {told[1]}.")


def power_answer() -> str:
    """A sentence on the order of kernels at the power cap, and whether it changes there."""
    rates = ran("tile-shape").groupby(["tile", "regime"])["speedup"].max().unstack("regime")
    alike = rates.rank().corr().loc["burst", "steady"]
    low, high = (tanh(atanh(alike) + side * Z / sqrt(len(rates) - 3)) for side in (-1, 1))  # Fisher's interval
    return wrapped(
        "*Answer.* Not at 8192^3, the one problem of which a whole list of tiles was measured in both regimes: the "
        f"ranks of its {len(rates)} tiles correlate by {alike:.2f} [{low:.2f}, {high:.2f}], and the fastest is the "
        "same. Speed is energy per operation there: a kernel that moves fewer bytes and issues fewer instructions for "
        "each operation runs at a higher clock."
    )
