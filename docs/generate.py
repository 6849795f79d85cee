"""Write every generated page anew: pages and pictures of results, their index, and the generated parts of the docs.

A part stands between ``<!-- NAME: make pages -->`` and ``<!-- end -->``. With names of results folders only those are
published, and the index and the parts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

import pandas as pd

from hopper_gemm.model.config import DEFAULTS, PARAMETERS, Parameter
from hopper_gemm.model.legality import RULES
from hopper_gemm.model.rules.problem import PAIR_RULES, PROBLEM_RULES
from hopper_gemm.study.files import write_whole
from hopper_gemm.study.reader import Study, has_rows, read_study
from hopper_gemm.study.schema import COLUMNS, STAGES, STATUSES
from hopper_gemm.tables.compare import by_baseline, geometric_mean, means
from hopper_gemm.tables.compare import cells as compared
from hopper_gemm.tables.index import write_index
from hopper_gemm.tables.ladder import ladder
from hopper_gemm.tables.pivot import best_row, interval, markdown_table, one_line, pivot, rows_of, short_label
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.sources import PIPELINING
from hopper_gemm.tables.sources import beside as cells_beside

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/h200"
PAGES = ("README.md", "docs/*.md")

STEADY = ("steady-f", "steady-h")
"""Studies whose finals at 8192^3 are the headline of the steady regime."""

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
    """Publish the named results folders, or all of them; then the index and the docs."""
    for folder in sorted(path for path in RESULTS.rglob("*") if path.is_dir()):
        if (not folders or str(folder.relative_to(ROOT)) in folders) and has_rows(folder):
            publish(folder, pictures=folder.parent == RESULTS)  # the many searches of a list get none
    write_index(RESULTS)
    for path in pages():
        write_whole(path, filled(path.read_text()))


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
    """A recorded study, read once."""
    return read_study(RESULTS / name)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    first, *rest = columns
    frame = pd.DataFrame([list(row) for row in rows], columns=[first, *rest]).set_index(first)
    return markdown_table(frame, first)


def parameters() -> str:
    """The kernel's parameters: values, default, tier, meaning."""
    rows = [
        (f"`{name}`", f"`{default}`", values(one), tier(one), one_line(one.doc))
        for (name, one), default in zip(PARAMETERS.items(), defaults(), strict=True)
    ]
    return table(("parameter", "default", "values", "tier", "meaning"), rows)


def defaults() -> list[str]:
    """The default of each parameter, as TOML writes it."""
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in DEFAULTS.values()]


def values(one: Parameter) -> str:
    """What a parameter may be."""
    words = [f"`{word}`" for word in (("true", "false", *one.words) if one.flag else one.words)]
    return ", ".join(words if one.least is None else [f"integer from {one.least}", *words])


def tier(one: Parameter) -> str:
    """Whether a search varies a parameter, and what a change of it costs."""
    what = "search" if one.tier == "space" else "ladder only"
    return f"{what}, launch argument" if one.launch else what


def rules() -> str:
    """The legality rules: name and reason, by what each is about."""
    parts = [("config", RULES), ("config and problem", PAIR_RULES), ("problem", PROBLEM_RULES)]
    rows = [(f"`{rule.name}`", about, one_line(rule.why)) for about, found in parts for rule in found]
    return table(("rule", "about", "why"), rows)


def columns() -> str:
    """The columns of a row."""
    return table(("column", "kind", "meaning"), ((f"`{one.name}`", one.kind, one_line(one.doc)) for one in COLUMNS))


def words(found: dict[str, str]) -> str:
    """Words and their meanings as a list."""
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in found.items())


def commands() -> str:
    """Every command with its arguments and options, from the command line's own help."""
    import typer

    from hopper_gemm.cli import app

    found = []
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        asked = [one for one in command.params if one.param_type_name == "argument"]
        names = [(one.metavar or one.name.upper()) for one in asked]
        shown = " ".join(what if one.required else f"[{what}]" for one, what in zip(asked, names, strict=True))
        found += [f"## hopper-gemm {name} {shown}".rstrip(), "", one_line(command.help or ""), ""]
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


def beside() -> str:
    """The table of the post beside ours, for the cells that it discusses."""
    ours = {m: rows_of(study("seed-table"), "sweep").query(f"m == {m} and regime == 'burst'") for m in (4096, 8192)}
    theirs = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in PIPELINING.splitlines()[2:]}
    rows = []
    for m, k in ((256, 4), (192, 4), (128, 4), (64, 8), (320, 4)):
        found = [part.query(f"tile_m == {m} and k_depth == {k}").speedup.item() for part in ours.values()]
        rows.append((f"{m} x {k}", theirs[str(m)][k // 2 - 1].split(" ")[0], *(f"{one:.2f}x" for one in found)))
    return table(("M tile x K depth", "the post", "here, 4096^3", "here, 8192^3"), rows)


def rungs() -> str:
    """TFLOP/s of the main rungs at 8192^3, with cuBLAS beside the tuned kernel."""
    steps = {step.name: step for step in ladder(rows_of(study("ladder"), "sweep"), study("ladder").provenance["rungs"])}

    def rates(name: str, what: str) -> list[str]:
        found = {one.group.regime: getattr(one, what) for one in steps[name].results if one.group.m == 8192}
        return [f"{found[regime]:.0f}" for regime in ("burst", "steady")]

    rows = [(name, adds, *rates(name, "tflops")) for name, adds in RUNGS.items()]
    rows.append(("cuBLAS", "torch.mm, timed beside the tuned kernel (peek)", *rates("peek", "baseline_tflops")))
    return table(("rung", "adds", "burst", "steady"), rows)


def suite() -> str:
    """The suite, problem by problem."""
    over = by_baseline(study("suite"), "chained")
    configs = {str(row.point.problem): row.point.config for row in study("suite").stage("compare")}
    rows = []
    for problem, ours in over["cublas"].iterrows():
        config = configs[str(problem)]
        assert config is not None
        figures = f"{ours.time_us:.1f}", f"{ours.tflops:.0f}", interval(ours), interval(over["cublaslt"].loc[problem])
        rows.append((problem, *figures, f"`{short_label(config)}`"))
    average = (f"{geometric_mean(over[name].speedup):.3f}x" for name in ("cublas", "cublaslt"))
    rows.append((f"geometric mean of {len(rows)}", "", "", *average, ""))
    names = ("problem", "us", "TFLOP/s", "over torch.mm", "over the best of cuBLASLt", "config")
    return table(names, rows)


def headline() -> str:
    """Geometric means of the suite, tuned and untuned, and of the drawn problems; the finals at the power cap."""
    told = {
        "suite": "[suite](docs/suite.md): 24 problems, tuned",
        "drawn": "[drawn](docs/suite.md): 20 problems by a seed, tuned for 4 s each",
        "suite-auto": "[suite, untuned](docs/suite.md): what the model picks",
    }
    rows = []
    for name, what in told.items():
        found = {mean.against: mean for mean in means(compared(study(name).stage("compare")))}
        figures = (found.get(baseline) for baseline in ("cublas", "cublaslt"))
        shown = [f"{one.speedup:.3f}x, least {one.worst:.3f}x" if one else "" for one in figures]
        rows.append((what, "burst", *shown))
    cubes = [best_row(rows_of(study(name), "final").query("m == 8192 and n == 8192 and k == 8192")) for name in STEADY]
    finals = [one for one in cubes if one is not None]
    pairs = (f"{one.speedup:.3f}x at {one.pj_per_flop:.3f} pJ/FLOP ({one.baseline_pj_per_flop:.3f})" for one in finals)
    rows.append(("[8192^3, two finals](docs/steady.md), energy (cuBLAS's)", "steady", ", ".join(pairs), ""))
    return table(("problems", "regime", "over `torch.mm`", "over the best of cuBLASLt"), rows)


def lists() -> str:
    """Geometric means of every recorded comparison."""
    rows = []
    for name in ("suite", "suite-second", "suite-first", "drawn", "suite-auto", "suite-untuned"):
        for mean in means(compared(study(name).stage("compare"))):
            over = f"{mean.problems} of {mean.asked}" if mean.problems != mean.asked else str(mean.problems)
            link = f"[{name}](../results/h200/{name}/compare.md)"
            figures = f"{mean.speedup:.3f}x", f"{mean.worst:.3f}x on {mean.worst_on}", str(len(mean.behind))
            rows.append((link, mean.against, mean.context, over, *figures))
    names = ("list", "baseline", "context", "problems", "geometric mean", "least", "behind")
    return table(names, rows)


def all_cells() -> str:
    """All published cells beside ours, bursts: figures, ratio, ranks among the 39 cells."""
    frame = rows_of(study("seed-table"), "sweep").query("regime == 'burst'")
    small, large = (cells_beside(frame[frame["m"] == m]) for m in (4096, 8192))
    rows = []
    for cell, one in small.iterrows():
        other = large.loc[cell]
        ours = (f"{two['ours']:.2f}x, {two['ratio']:.2f}, {two['ours rank']:.0f}" for two in (one, other))
        rows.append(
            (f"{cell[0]} x {cell[1]}", f"{one['stages']:.0f}", f"{one['theirs']:.2f}x, {one['theirs rank']:.0f}", *ours)
        )
    return table(("M tile x K depth", "stages", "the post, rank", "4096^3: ours, ratio, rank", "8192^3"), rows)


def of_sources(name: str) -> str:
    """A table of the executed notebook of the sources, which names it in a comment ahead of it."""
    notebook = json.loads((ROOT / "notebooks/sources.ipynb").read_text())
    shown = [one["data"] for cell in notebook["cells"] for one in cell.get("outputs", []) if "data" in one]
    texts = ("".join(one["text/markdown"]) for one in shown if "text/markdown" in one)
    return next(text for text in texts if text.startswith(f"<!-- {name} -->")).partition("\n")[2].strip()


SOURCES = ("claims", "stagger-4096", "stagger-8192", "one-consumer", "peek", "ring", "timeline")
"""Tables of the notebook of the sources that its page shows."""

PARTS: dict[str, Callable[[], str]] = {
    "parameters": parameters,
    "rules": rules,
    "columns": columns,
    "commands": commands,
    "statuses": lambda: words(STATUSES),
    "stages": lambda: words(STAGES),
    "seed-4096": lambda: seed_table(4096),
    "seed-8192": lambda: seed_table(8192),
    "seed-post": lambda: PIPELINING,
    "seed-beside": beside,
    "seed-all": all_cells,
    **{name: partial(of_sources, name) for name in SOURCES},
    "rungs": rungs,
    "suite": suite,
    "headline": headline,
    "lists": lists,
}
"""Generated parts by name."""

if __name__ == "__main__":
    main([name.rstrip("/") for name in sys.argv[1:]])
