"""Write every generated page anew: pages and pictures of results, their index, and the generated parts of the docs.

A part stands between ``<!-- NAME: make pages -->`` and ``<!-- end -->``. With names of results folders only those are
published, and the index and the parts; ``docs`` names none of them. Where the kernel's sources changed, the kernels
behind marked figures are compiled first; see :mod:`docs.generate.todays_code`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pandas as pd

from benchmarks.samplers import STUDIES
from docs.generate import todays_code as today
from docs.generate.data import write_package
from docs.generate.measurements import measurement
from docs.generate.pages import (
    certainty,
    chapters,
    claims,
    comparisons,
    depth,
    keys,
    portability,
    prices,
    rings,
    samplers,
    sources,
    studies,
)
from docs.generate.pages.comparisons import measured_kernels
from docs.generate.pages.index import interactive, write_index
from docs.generate.pages.means import over_problems
from docs.generate.pages.pictures import write_dark
from docs.generate.pages.reproduction import reproduction
from docs.generate.pages.sources import PIPELINING, recorded
from docs.generate.pages.ways import ways
from docs.generate.pages.worth import picture_of_ideas
from docs.generate.todays_code import write_todays_code
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.ladder.ladder_config import LADDER_FIELDS
from hopper_gemm.lab.ladder.rules import LADDER_RULES
from hopper_gemm.model.config import PARAMETERS as PLAIN
from hopper_gemm.model.config import Parameter
from hopper_gemm.model.legality import RULES
from hopper_gemm.model.rules.finishes import FINISH_RULES
from hopper_gemm.model.rules.pairs import PAIR_RULES
from hopper_gemm.tune.parameters import DEFAULTS, PARAMETERS, all_values
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import Study, has_rows
from hopper_gemm.tune.study.schema import COLUMNS, STAGES, STATUSES
from hopper_gemm.tune.tables.comparison import cells as compared
from hopper_gemm.tune.tables.comparison import means
from hopper_gemm.tune.tables.forest import forest
from hopper_gemm.tune.tables.ladder import Result
from hopper_gemm.tune.tables.pages.publish import publish
from hopper_gemm.tune.tables.pages.simulation import DATA
from hopper_gemm.tune.tables.pages.simulation import publish as publish_simulation
from hopper_gemm.tune.tables.pivot import markdown as table
from hopper_gemm.tune.tables.pivot import markdown_table, one_line, pivot, rows_of

ROOT = Path(__file__).parents[2]
RESULTS, H100, *ARCHIVES = (ROOT / "results" / name for name in ("h200", "h100", "archive/h200", "archive/h100"))
CODE = ROOT / "results" / today.FILE
PAGES = ("README.md", "docs/*.md", "docs/learn/*.md")

RUNGS = {
    "serial": "one warpgroup, one stage: load by TMA, wait, multiply, wait",
    "two stages": "the next stage loads while this one is multiplied",
    "multistage": "a ring of four; one CTA on an SM now instead of two",
    "specialised": "a producer warp of its own",
    "swizzle 8": "as many stages as fit, tiles in groups of eight",
    "two consumers": "a tile of 256 x 128 instead of 128 x 128",
    "stagger 1": "a stage is released one wgmma group late",
    "persistent": "one CTA an SM, walking over tiles",
    "TMA store": "the tile leaves through shared memory",
    "cluster 1x2": "two CTAs share A by multicast",
    "peek": "serpentine walk and peeking",
    "256x192": "a larger tile",
}
"""Rungs of the ladder that its page shows, with what each adds."""


def main(folders: list[str]) -> None:
    """Publish the named results folders, or all that are not archived; then the indices and the docs."""
    write_todays_code(CODE, marked_kernels(), partial(print, file=sys.stderr, flush=True))
    comparisons.todays_code.cache_clear()
    for folder in sorted(path for root in (RESULTS, H100) for path in root.rglob("*") if path.is_dir()):
        if (not folders or str(folder.relative_to(ROOT)) in folders) and has_rows(folder):
            publish(folder, pictures=folder.parent in (RESULTS, H100))
            if (folder / DATA).is_file():
                publish_simulation(folder, folder.name)
    for root in (RESULTS, H100, *ARCHIVES):
        write_index(root)
    write_package(ROOT / "results")
    chart(ROOT / "docs/suite.svg")
    write_dark(ROOT / "docs/suite.svg")
    picture_of_ideas(ROOT / "docs/leave-one-out.svg")
    chapters.pictures(ROOT / "docs/learn")
    for path in pages():
        write_whole(path, filled(path.read_text()))


def marked_kernels() -> list[KernelId]:
    """The kernels behind figures that a page marks with their machine code."""
    measured = [one for name in (*comparisons.MARKED, "invariant", "ragged") for one in measured_kernels(name)]
    return [
        kernel for one in (*measured, *claims.compared(), *chapters.measured()) if (kernel := one.kernel) is not None
    ]


def charted() -> list[dict[str, Any]]:
    """The comparisons of the suite on H100s, each the mean of its boards."""
    return [*compared([row for name in comparisons.ON_H100S for row in study(name).stage("compare")])]


def chart(path: Path) -> None:
    """Draw the headline comparison, with intervals that hold for other processes and boards."""
    boards = f"{len(comparisons.ON_H100S)} NVIDIA H100s, {comparisons.days_of(comparisons.ON_H100S)}"
    title = f"suite: speedup with 95 % intervals that hold for other processes and boards. Measured on {boards}."
    forest([comparisons.widened(record) for record in charted()], path, title)


def pages() -> list[Path]:
    """The pages that may have generated parts."""
    return [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def filled(text: str) -> str:
    """A page's text with its generated parts made anew."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]}: make pages -->\n{PARTS[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z0-9-]+): make pages -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


@cache
def study(name: str) -> Study:
    """A recorded study, archived or not, read once."""
    return recorded(name)


def parameters(names: Iterable[str]) -> str:
    """Parameters by name: default, values, meaning."""
    known = [(name, PLAIN.get(name, PARAMETERS[name])) for name in names]
    rows = [(f"`{name}`", f"`{default(name)}`", f"{values(one)}: {one_line(one.doc)}") for name, one in known]
    return table(("parameter", "default", "values: meaning"), rows)


def default(name: str) -> str:
    """The default of a parameter, as TOML writes it."""
    value = DEFAULTS[name]
    return str(value).lower() if isinstance(value, bool) else str(value)


def values(one: Parameter) -> str:
    """The values that a parameter takes, as Markdown, and whether searches leave it alone or a launch sets it."""
    words = [f"`{word}`" for word in (("true", "false", *one.words) if one.flag else one.words)]
    said = ", ".join(words if one.least is None else [f"integer from {one.least}", *words])
    marks = ("not searched" * (one.tier != "space"), "set by the launch" * one.launch)
    return said + "".join(f" ({mark})" for mark in marks if mark)


def rules() -> str:
    """The legality rules: name and reason, by what each is about."""
    parts = [("config", RULES), ("config and problem", PAIR_RULES)]
    parts.append(("config, problem and finish", FINISH_RULES))
    parts.append(("config of the study", LADDER_RULES))
    rows = [(f"`{rule.name}`", about, one_line(rule.why)) for about, found in parts for rule in found]
    return table(("rule", "about", "why"), rows)


def columns() -> str:
    """The columns of a row, those of the config aside."""
    below = {"stage": "one of the [stages](#stages)", "status": "one of the [statuses](#statuses)"}
    shown = (one for one in COLUMNS if one.name not in PARAMETERS)
    rows = ((f"`{one.name}`", one.kind, below.get(one.name, one_line(one.doc))) for one in shown)
    return table(("column", "kind", "meaning"), rows)


def words(found: dict[str, str]) -> str:
    """Words and their meanings as a list."""
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in found.items())


def commands() -> str:
    """Every command with its arguments and options, from the command line's own help, panel by panel. ``typer utils
    docs`` would print twice as many lines, summaries cut off among them, and no tables."""
    import typer

    from hopper_gemm.cli.app import PANELS, app

    found = []
    group: Any = typer.main.get_command(app)
    panels = [(panel, name) for panel, names in PANELS.items() for name in names]
    for number, (panel, name) in enumerate(panels):
        if number == 0 or panels[number - 1][0] != panel:
            found += [f"## {panel}", ""]
        command = group.commands[name]
        asked = [one for one in command.params if one.param_type_name == "argument"]
        names = [(one.metavar or one.name.upper()) for one in asked]
        pairs = zip(asked, names, strict=True)
        shown = " ".join(what if one.required or what.startswith("[") else f"[{what}]" for one, what in pairs)
        found += [f"### `hopper-gemm {f'{name} {shown}'.rstrip()}`", "", one_line(command.help or ""), ""]
        rows = []
        for one in command.params:
            if one.param_type_name == "option":
                default = "" if one.is_flag or one.default in (None, "") else f" Default: `{one.default}`."
                told = one_line(one.help or "").replace("<", "&lt;")
                rows.append((", ".join(f"`{flag}`" for flag in one.opts), told + default))
        if rows:
            found += [table(("option", "meaning"), rows), ""]
    return "\n".join(found).strip()


def seed_table(m: int) -> str:
    """The M tile x K depth table of one cube, in bursts."""
    part = rows_of(study("seed-table"), "sweep").query(f"m == {m} and regime == 'burst'")
    return markdown_table(pivot(part), "M tile \\ K depth")


def both_tables() -> str:
    """Our table of 8192^3 in bursts, and in each cell the post's speedup between ours and the stages."""
    rows = []
    for ours, theirs in zip(seed_table(8192).splitlines()[2:], PIPELINING.splitlines()[2:], strict=True):
        cells = zip(ours.strip("| ").split(" | "), theirs.strip("| ").split(" | "), strict=True)
        rows.append([both_cells(*pair) for pair in cells])
    return table(seed_table(8192).splitlines()[0].strip("| ").split(" | "), rows)


def both_cells(ours: str, theirs: str) -> str:
    """Two cells of one place as one; both tables have the same sides, and the same stages fit."""
    if ours == theirs:
        return ours
    (our_speedup, our_stages), (their_speedup, their_stages) = ours.split(" "), theirs.split(" ")
    if our_stages != their_stages:
        raise ValueError(f"the stages of a cell must be those of the post but got {ours} and {theirs}")
    return f"{our_speedup} / {their_speedup} {our_stages}"


def rungs() -> str:
    """TFLOP/s of the main rungs at 8192^3, with cuBLAS beside `peek`."""
    columns = ("ladder-on-h100", "burst"), ("ladder", "burst"), ("ladder", "steady")

    def result(rung: str, study: str, regime: str) -> Result:
        results = rings.rungs(study)[rung].results
        (found,) = (one for one in results if (one.group.m, one.group.regime) == (8192, regime))
        return found

    def rates(name: str, what: str) -> list[str]:
        return [f"{getattr(result(name, *column), what):.0f}" for column in columns]

    rows = [(name, adds, *rates(name, "tflops")) for name, adds in RUNGS.items()]
    rows.append(("cuBLAS", "torch.mm, timed beside `peek`", *rates("peek", "baseline_tflops")))
    return table(("rung", "adds", "H100, burst", "H200, burst", "H200, steady"), rows)


def alone() -> str:
    """Single CTAs and a cluster of two at the power cap, with what the profiler counted in another run."""
    counted = {row.point.subject: row.figures for row in study("alone-steady").stage("counters")}
    rows = []
    for row in sorted(study("alone-steady").stage("sweep"), key=lambda row: -row.figures["speedup"]):
        one = row.point.config
        seen = counted[one]
        moved = (seen["tma_load_bytes"], 32 * seen["l2_read_sectors"], seen["dram_read_bytes"])
        gigabytes = (f"{size / 1e9:.2f}" for size in moved)
        figures = f"{row.figures['speedup']:.3f}x", f"{row.figures['pj_per_flop']:.3f}", *gigabytes
        rows.append((f"{one.cluster_m}x{one.cluster_n}", f"{one.raster} {one.swizzle}", one.scheduler, *figures))
    names = "loaded, GB", "from the L2, GB", "from DRAM, GB"
    return table(("cluster", "walk", "scheduler", "over torch.mm", "pJ/FLOP", *names), rows)


def rotated() -> str:
    """Speedups of kernels whose clusters begin apart in k, by how many stages."""
    shown = {
        ("rotate-square", "128x128", "1x1", "pingpong"): "128x128 ping-pong, alone in its cluster",
        ("rotate-square", "128x128", "1x2", "pingpong"): "128x128 ping-pong, two CTAs",
        ("rotate-square", "256x192", "1x2", "cooperative"): "256x192, two CTAs",
        ("rotate-deep", "128x64", "1x1", "cooperative"): "128x64, alone in its cluster",
    }
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for name in ("rotate-square", "rotate-deep"):
        for row in study(name).stage("sweep"):
            one = row.point.config
            key = name, f"{one.tile_m}x{one.tile_n}", f"{one.cluster_m}x{one.cluster_n}", one.schedule
            apart = all_values(one)["rotate_k"]
            if row.ok and key in shown and apart <= 4:
                place = str(row.point.problem), shown[key]
                cells.setdefault(place, {})[apart] = f"{row.figures['speedup']:.3f}x"
    starts = (0, 1, 2, 4)
    rows = [(*place, *(of[start] for start in starts)) for place, of in cells.items()]
    return table(("problem", "tile", *(f"{start} stages apart" for start in starts)), rows)


def walked() -> str:
    """Speedups of single CTAs by the order of their tiles."""
    shown = (("1024x1024x16384", "128x64"), ("2048x2048x2048", "128x128"), ("8192x8192x8192", "128x128"))
    cells: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in study("walk").stage("sweep"):
        one, problem = row.point.config, str(row.point.problem)
        if row.ok and one.cluster_size == 1 and (problem, f"{one.tile_m}x{one.tile_n}") in shown:
            place = problem, f"{one.tile_m}x{one.tile_n}", one.raster
            cells.setdefault(place, {})[one.swizzle] = f"{row.figures['speedup']:.2f}"
    widths = (1, 2, 3, 4, 6, 8, 11, 12, 16)
    rows = [(*place, *(of[width] for width in widths)) for place, of in sorted(cells.items())]
    return table(("problem", "tile", "raster", *(f"{width}" for width in widths)), rows)


def by_part() -> str:
    """The best time of split-K by tile, parts, cluster and the order of the work."""
    best: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in study("part-order").stage("sweep"):
        one = row.point.config
        if row.ok and one.tile_m * one.tile_n <= 2**14 and one.split_k == (8 if row.point.problem.k == 65536 else 2):
            place = str(row.point.problem), one.split_k, f"{one.cluster_m}x{one.cluster_n}"
            of = best.setdefault(place, {})
            of[one.part_order] = min(float(row.figures["time_us"]), of.get(one.part_order, float("inf")))
    rows = [
        (problem, str(parts), cluster, f"{of['tile']:.1f} us", f"{of['part']:.1f} us")
        for (problem, parts, cluster), of in best.items()
    ]
    return table(("problem", "parts", "cluster", "parts of a tile side by side", "tiles of a part side by side"), rows)


def ideas_of(study_name: str, results: Path = RESULTS) -> list[dict[str, Any]]:
    """Measurements of single changes to the kernel: a problem each, with the times of every arm, round by round."""
    rows = [json.loads(line) for line in measurement(results / "ideas.jsonl").read_text().splitlines()]
    return [row for row in rows if row["study"] == study_name]


def gain(row: dict[str, Any], idea: str, without: Iterable[str]) -> float:
    """Time without an idea over the time with it, the median of the rounds."""
    before = [sum(each) / len(each) for each in zip(*(row["us"][name] for name in without), strict=True)]
    return median(other / own for other, own in zip(before, row["us"][idea], strict=True))


def gain_of(ratios: Iterable[float]) -> str:
    """Ratios as their mean gain, with its 95 % interval over problems."""
    mean, low, high = (one - 1 for one in over_problems(ratios))
    return f"{mean:+.2%} [{low:+.2%}, {high:+.2%}]"


def ideas() -> str:
    """Every idea: problems, the mean gain, the least and the most."""
    measured = ideas_of("kernel")
    found = []
    for idea in dict.fromkeys(name for row in measured for name in row["us"] if name not in ("torch.mm", "before")):
        ratios = {row["problem"]: gain(row, idea, ("before", "before again")) for row in _told(measured, idea)}
        ends = (
            f"{ratios[one] - 1:+.2%} at {one}"
            for one in (min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__))
        )
        mean = gain_of(ratios.values())
        found.append(("the kernel again" if idea == "before again" else idea, str(len(ratios)), mean, *ends))
    return table(("idea", "problems", "mean gain", "least", "most"), found)


def _told(rows: Iterable[dict[str, Any]], idea: str) -> list[dict[str, Any]]:
    """The rows of an idea, with their problem as text."""
    return [{**row, "problem": "x".join(map(str, row["problem"][:3]))} for row in rows if idea in row["us"]]


def uniform() -> str:
    """Deep problems: the kernel before the ledger's answer was said to be uniform, and after it."""
    rows = ideas_of("uniform", H100)
    lines, gains = [], []
    for row in rows:
        config, before, after = row["config"], row["about"]["before"], row["about"]["after"]
        gains.append(gain(row, "after", ("before",)))
        tile = f"{config['tile_m']}x{config['tile_n']}, {config['split_k']} parts"
        instructions = f"{before['instructions']} -> {after['instructions']}"
        bits = "equal" if after["bits_of_first_tree"] else "other"
        times = (f"{median(row['us'][name]):.1f}" for name in ("torch.mm", "before", "after"))
        problem = "x".join(map(str, row["problem"][:3]))
        lines.append((problem, tile, *times, f"{gains[-1] - 1:+.2%}", instructions, bits))
    mean = "geometric mean", "", "", "", "", gain_of(gains), "", ""
    names = "problem", "tile", "torch.mm us", "before us", "after us", "gain", "instructions", "bits"
    return table(names, [*lines, mean])


def stream_k() -> str:
    """Problems for which the model took stream-K, over torch.mm: with it, without it, with split-K."""
    arms = "stream-K", "best without", "best split-K"
    rows = _told(ideas_of("stream-k"), arms[0])
    ratios = [[gain(row, arm, ("torch.mm",)) for arm in arms] for row in rows]
    lines = [(row["problem"], *(f"{one:.3f}x" for one in each)) for row, each in zip(rows, ratios, strict=True)]
    means_of = ("{:.3f}x [{:.3f}, {:.3f}]".format(*over_problems(column)) for column in zip(*ratios, strict=True))
    better = sum(without > with_it for with_it, without, _ in ratios)
    told = (
        f"Without stream-K its choice is faster on {better} of the {len(ratios)} and in the mean, so that stream-K "
        "remains in the design study only."
    )
    shown = table(("problem", *(f"{arm}, over torch.mm" for arm in arms)), [*lines, ("geometric mean", *means_of)])
    return f"{shown}\n\n{told}"


def menu_curve() -> str:
    """Mean and worst loss against the size of the menu, and of all kernels that were offered."""
    frame = pd.read_csv(measurement("measurements/menu.csv"))
    groups = {
        "judging": "searched problems that judge",
        "map": "the map's problems, by prediction",
        "held_out": "its held-out ones, by prediction",
    }
    rows = [
        [str(int(row["size"])), *(f"{row[f'{name}_mean']:.1%} ({row[f'{name}_worst']:.0%})" for name in groups)]
        for _, row in frame.iterrows()
    ]
    return table(("kernels", *groups.values()), rows)


def model_worth() -> str:
    """Share of the best measured speed that the first choice has, of the model alone and after the trees, by torch.mm's
    time; its 95 % interval over problems, the worst. The last rows are of FP8 and of gates."""
    frame = pd.read_csv(measurement("measurements/model.csv")).set_index(["from_us", "to_us", "problems", "by"])
    every = (0.0, float("inf"))

    def cells(least: float, most: float, names: Sequence[str]) -> list[str]:
        found = [
            frame.loc[key] if (key := (least, most, *group)) in frame.index else None for group in product(names, BY)
        ]
        return [
            ""
            if one is None
            else f"{one['mean']:.3f} [{one['low']:.3f}, {one['high']:.3f}] ({one['worst']:.2f})"
            + f", {one['count']:.0f}" * (by == BY[-1])
            for one, by in zip(found, cycle(BY), strict=False)
        ]

    rows = []
    for least, most in dict.fromkeys((least, most) for least, most, *_ in frame.index):
        ends = ([f"from {least:g} us"] if least else []) + ([f"under {most:g} us"] if most < float("inf") else [])
        rows.append((", ".join(ends) or "any time", *cells(least, most, UNSEEN)))
    rows += [(f"{what}, any time", *cells(*every, (f"{what} left out",)), "", "") for what in ("FP8", "gates")]
    header = (f"{name}: {words}" for name in UNSEEN for words in ("by the model", "by the trees, problems"))
    return table(("torch.mm takes", *header), rows)


UNSEEN, BY = ("left out", "held out"), ("model", "trees")
"""Groups of problems that the model's constants were fitted without, and what ranked their kernels; see
benchmarks/picks/fit.py."""

SERIAL = (
    "--set tile=128x128 --set stages=1 --set stagger=0 --set consumers=1 --set stores=direct --set peek=false "
    "--set schedule=multistage --set persistent=false --set swizzle=1 --set serpentine=false"
)
"""The kernel of the first chapter."""

RUNS = {
    "run-explain": "explain 8192 8192 8192 --gpu h200",
    "run-tune": "tune 8192 8192 8192 --context chained --backend replay --trials 30 --out OUT",
    "run-serial": f"explain 8192 8192 8192 --gpu h200 {SERIAL}",
    "run-stages": f"explain 8192 8192 8192 --gpu h200 {SERIAL}".replace("stages=1", "stages=7"),
    "run-registers": "explain 8192 8192 8192 --gpu h200 --set tile=256x256",
    "run-waves": "explain 8192 8192 8192 --gpu h200 --set tile=256x192 --set cluster=1x2",
    "run-store": "explain 8192 8192 8192 --gpu h200 --set tile=256x128",
    "run-tuned": "explain 8192 8192 8192 --gpu h200",
}
"""Commands whose output stands on a page, by the name of the part."""

KEPT = {
    "run-serial": ("smem", "registers"),
    "run-stages": ("stages", "smem"),
    "run-waves": ("waves",),
    "run-store": ("stages", "smem"),
}
"""Lines of an output that its page shows beside the first, by their first word; of a part that is not here, all."""


OF_THIS_STORE = ("  compiled ", "  code ")
"""How lines begin that say what this machine has compiled."""


def ran(command: str, kept: tuple[str, ...] = ()) -> str:
    """A command and what it prints on stdout, as a block, without :data:`OF_THIS_STORE`; a folder that it writes is
    shown as OUT."""
    from typer.testing import CliRunner

    from hopper_gemm.cli import app

    with TemporaryDirectory() as folder:
        words = [f"{folder}/study" if word == "OUT" else word for word in command.split()]
        done = CliRunner().invoke(app, words)
        if done.exit_code != 0:
            raise RuntimeError(f"hopper-gemm {command} ended with {done.exit_code}: {done.stderr}")
        lines = done.stdout.replace(f"{folder}/study", "OUT").rstrip().splitlines()
        told = "\n".join(line for line in lines if not line.startswith(OF_THIS_STORE))
    if kept:
        first, *rest = told.splitlines()
        told = "\n".join([first, *(line for line in rest if line.split()[0] in kept), "  ..."])
    return f"```console\n$ hopper-gemm {command}\n{told}\n```"


def api() -> str:
    """The public names of the package, for the site to put their documentation in: matmul, what else is called, then
    classes."""
    import hopper_gemm

    listed = [getattr(hopper_gemm, name) for name in hopper_gemm.__all__]
    found = sorted(listed, key=lambda one: (isinstance(one, type), one is not hopper_gemm.matmul))
    names = (one.__name__ if isinstance(one, ModuleType) else f"{one.__module__}.{one.__qualname__}" for one in found)
    return "\n\n".join(f"::: {name}" for name in names)


def against_own() -> str:
    """Means of the recorded comparisons over every baseline, list by list."""
    rows = []
    told = {"suite": "24 problems", "suite-chained": "the same", "short": "24 short problems", "drawn": "20 drawn ones"}
    for name, what in told.items():
        for mean in means(compared(study(name).stage("compare"))):
            figures = mean.figure, f"{mean.worst:.3f}x on {mean.worst_on}", str(len(mean.behind))
            rows.append((what, mean.against, mean.context, *figures, comparisons.kernel_of(name)))
    names = ("problems", "over", "context", "geometric mean", "least", "behind", "kernel, measured")
    return table(names, rows)


PARTS: dict[str, Callable[[], str]] = {
    "menu": menu_curve,
    "model": model_worth,
    **{name: partial(ran, command, KEPT.get(name, ())) for name, command in RUNS.items()},
    **{f"chapter-{one}-diff": partial(chapters.diff, one) for one in range(1, 9)},
    "chapters": chapters.overview,
    "chapters-again": chapters.again,
    "chapters-order": chapters.order,
    **{f"chapter-{one}-rates": partial(chapters.rates, one) for one in range(1, 9)},
    "api": api,
    "against-own": against_own,
    "peers": comparisons.peers,
    "parameters": lambda: parameters(PLAIN),
    "study-parameters": lambda: parameters(LADDER_FIELDS),
    "rules": rules,
    "columns": columns,
    "commands": commands,
    "sweep-keys": keys.sweep_keys,
    "statuses": lambda: words(STATUSES),
    "stages": lambda: words(STAGES),
    "seed-4096": lambda: seed_table(4096),
    "seed-8192": lambda: seed_table(8192),
    "seed-post": lambda: PIPELINING,
    "seed-both": both_tables,
    "claims": claims.claims_list,
    "claims-measured": claims.measured,
    "claims-twice": claims.twice,
    "ring-twice": claims.small_gains,
    "joint-best": depth.joint_best_table,
    "by-stages": depth.by_stages_table,
    "stagger": depth.stagger_table,
    "waits": depth.waits_table,
    "one-consumer": depth.pairings_table,
    "spills": depth.spill_table,
    "ring": rings.ring_table,
    "timeline": rings.timeline_table,
    "rungs": rungs,
    "result": comparisons.result,
    "result-readme": partial(comparisons.result, "docs/suite.md"),
    "spread": certainty.spread,
    "guard": certainty.guard,
    "placement": certainty.placement,
    "reproduction": reproduction,
    "planted": certainty.planted,
    "alone": alone,
    "seed-finals": studies.seed_finals,
    "seed-idle": studies.seed_idle,
    "clusters-of-four": studies.clusters_of_four,
    "chapter-8-sizes": chapters.sizes,
    "regimes": studies.regimes,
    "data": studies.data,
    "tile-shapes": studies.tile_shapes,
    "tile-order": studies.tile_order,
    "bytes-ahead": studies.bytes_ahead,
    "row-ceiling": studies.row_ceiling,
    "early": studies.early,
    "interleaved": studies.interleaved,
    "ways-out": studies.ways_out,
    **{f"samplers-{name}": partial(samplers.scores, name) for name in STUDIES},
    "samplers-live": samplers.live,
    "answer-live": samplers.live_answer,
    "answer-guided": samplers.guided,
    "answer-heuristics": samplers.heuristics_answer,
    "answer-ideas": studies.ideas_answer,
    "matmul-heuristics": samplers.heuristics,
    "portability": portability.table,
    "portability-entries": portability.entries,
    "portability-suite": portability.entries_sentence,
    "portability-furthest": portability.furthest,
    "portability-reason": portability.reason,
    "answer-portability": portability.answer,
    "answer-invariance": comparisons.invariance_answer,
    "answer-power": comparisons.power_answer,
    "interactive": partial(interactive, RESULTS),
    "scaling": studies.scaling,
    "rests": studies.rests,
    "launch-gap": studies.launch_gap,
    "busy": studies.busy,
    "alone-finals": partial(comparisons.steady_rows, "alone-steady", "final"),
    "one-tile": studies.one_tile,
    "host-time": studies.host_time,
    "maps": studies.maps,
    "fresh": studies.fresh,
    "fresh-before": studies.fresh_before,
    "trees": studies.trees,
    "behind": studies.behind,
    "decode": studies.decode,
    "deep": studies.deep,
    "fp8": studies.fp8,
    "fp8-tuned": comparisons.fp8_tuned,
    "fp8-drawn": studies.fp8_drawn,
    "walks": studies.walks,
    "walks-worth": studies.walks_worth,
    "operators": studies.operators,
    "leave-one-out": studies.leave_one_out,
    "sources-on-h100s": studies.sources_on_h100s,
    "groups": studies.groups,
    "groups-tuned": partial(studies.groups, "groups-tuned", studies.GROUPS_TUNED),
    "groups-study": partial(studies.groups, "groups-study", studies.GROUPS_STUDY),
    "shares": studies.shares,
    "edge": studies.edge,
    "answer-map": studies.map_answer,
    "answer-samplers": samplers.answer,
    "shares-of-gpus": sources.shares_of_gpus,
    "versions": sources.versions_measured,
    "clocks": partial(sources.clocks, comparisons.ON_H100S),
    "changed-commits": sources.changed_commits,
    "suite-origin": comparisons.suite_origin,
    "chained-origin": comparisons.chained_origin,
    "headline": comparisons.headline,
    "suite-on-h100s": comparisons.suite_on_h100s,
    "suite": comparisons.suite,
    "suite-on-h200s": comparisons.suite_on_h200s,
    "standing": comparisons.standing,
    "suite-answer": comparisons.suite_answer,
    "left": comparisons.left,
    "even": comparisons.even,
    "rivals-clusters": comparisons.rivals_clusters,
    "others": comparisons.others,
    "lists": comparisons.lists,
    "steady": comparisons.steady,
    "steady-long": partial(comparisons.steady_rows, "steady-long", "sweep"),
    "rotated": rotated,
    "walked": walked,
    "by-part": by_part,
    "ideas": ideas,
    "stream-k": stream_k,
    "uniform": uniform,
    "ragged": prices.ragged,
    "layers": prices.layers,
    "finish-variants": prices.variants,
    "examples": prices.examples,
    "in-models": prices.in_models,
    "ways": ways,
    "invariant-bits": prices.bits,
    "invariant-torch": prices.torch_changes,
    "invariant-costs": prices.costs,
}
"""Generated parts by name."""

if __name__ == "__main__":
    main([name.rstrip("/") for name in sys.argv[1:]])
