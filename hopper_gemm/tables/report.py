"""A study folder: what lies in it, and the page that sums it up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hopper_gemm.model.config import DEFAULTS, LATER
from hopper_gemm.tables.across import JUDGED, serving_all
from hopper_gemm.tables.effects import NEAR, effects
from hopper_gemm.tables.ladder import ladder, ladder_table
from hopper_gemm.tables.pivot import Group, best_row, groups, pivot
from hopper_gemm.tables.trials import FINALS, PROVENANCE, TRIALS, ResultsError, read_json, read_trials

WORDS = {"tile_m": "M tile", "tile_n": "N tile", "k_depth": "K depth"}
"""Parameters that the published tables call otherwise."""

LEGEND = (
    "Cells: TFLOP/s (speedup over cuBLAS, gain over the rung it starts from). A gain is the ratio of the two speedups, "
    "so that a drifting clock does not count."
)


SHOWN_ACROSS = 8
"""Configs that serve all problems, at most, in a search's table."""


@dataclass(frozen=True)
class Study:
    """A results folder that has been read.

    Args:
        path: the folder.
        trials: one row per (problem, regime, config).
        finals: the best of each problem and regime, measured again in fresh processes; may be empty.
        provenance: where the figures come from.
    """

    path: Path
    trials: pd.DataFrame
    finals: pd.DataFrame
    provenance: dict[str, Any]


def read_study(path: Path) -> Study:
    """Read a results folder.

    Raises:
        ResultsError: it is not one; the message says what is missing.
    """
    if not path.is_dir():
        raise ResultsError(f"{path} is not a folder; name a results folder such as results/h200/seed-table")
    trials = read_trials(path / TRIALS)
    finals = read_trials(path / FINALS) if (path / FINALS).is_file() else trials.iloc[:0]
    return Study(path, trials, finals, read_json(path / PROVENANCE))


def markdown_table(table: pd.DataFrame, corner: str) -> str:
    """A frame of text as a GitHub table."""
    lines = [
        "| " + " | ".join([corner, *map(str, table.columns)]) + " |",
        "|" + " --- |" * (len(table.columns) + 1),
        *(
            "| " + " | ".join([str(index), *map(str, row)]) + " |"
            for index, row in zip(table.index, table.to_numpy(), strict=True)
        ),
    ]
    return "\n".join(lines)


def render(table: pd.DataFrame, form: str, corner: str) -> str:
    """A pivot as ``md``, ``csv`` or ``html``.

    Raises:
        ResultsError: another form.
    """
    if form == "md":
        return markdown_table(table, corner) + "\n"
    named = table.rename_axis(index=corner, columns=None)
    if form == "csv":
        return named.to_csv()
    if form == "html":
        return named.to_html() + "\n"
    raise ResultsError(f"format must be md, csv or html but got {form!r}")


def report(study: Study) -> str:
    """The study's page: where the figures come from, its tables, the best of each problem and regime."""
    about = study.provenance
    lines = [
        f"# {about['study']}",
        "",
        f"**{source_line(about)}**",
        "",
        about.get("question", "").strip(),
        "",
        *_protocol_lines(about),
        "",
        *(_ladder_lines(study) if about.get("rungs") else _grid_lines(study)),
        "",
    ]
    return "\n".join(lines)


def _grid_lines(study: Study) -> list[str]:
    """A pivot for each group of rows."""
    about = study.provenance
    rows, cols = about["rows"], about["cols"]
    corner = f"{WORDS.get(rows, rows)} \\ {WORDS.get(cols, cols)}"
    varied = [name for name, values in about["spec"]["space"].items() if isinstance(values, list) and len(values) > 1]
    across = about["spec"].get("across", "each")
    lines = [] if across == "each" else _across_lines(study, across)
    for group, part in groups(study.trials):
        lines += [f"## {group.title}", ""]
        lines += [markdown_table(pivot(part, rows, cols), corner), ""]
        lines += [f"cuBLAS: {_cublas(part)}.{_noise(about, group)}", ""]
        if set(varied) - {rows, cols}:
            near = f"where one of the two comes within {1 - NEAR:.0%} of the best"
            lines += [f"What each choice is worth, all else equal, {near}:", "", _effects(part, varied), ""]
        lines += _best_lines(study, group, part)
    return [*lines, "Cells: speedup over cuBLAS (stages). " + _coverage(study) + _pace(study)]


def _across_lines(study: Study, across: str) -> list[str]:
    """The configs that serve all problems best; those of the finals where there are any."""
    finals = serving_all(study.finals, across)
    shown = finals if len(finals) else serving_all(study.trials, across).head(SHOWN_ACROSS)
    if shown.empty:
        return ["No config ran on all problems.", ""]
    title = f"## One config for all problems: the best by the {JUDGED[across]}, {'finals' if len(finals) else 'search'}"
    return [title, "", markdown_table(shown.map(lambda speedup: f"{speedup:.3f}x"), "config"), ""]


def _ladder_lines(study: Study) -> list[str]:
    """One table for all rungs, then what they are held against."""
    lines = [markdown_table(ladder_table(ladder(study.trials, study.provenance["rungs"])), "rung"), "", LEGEND, ""]
    for group, part in groups(study.trials):
        lines += [f"## {group.title}", "", f"cuBLAS: {_cublas(part)}.{_noise(study.provenance, group)}", ""]
        lines += _best_lines(study, group, part)
    return [*lines, _coverage(study) + _pace(study)]


def _best_lines(study: Study, group: Group, part: pd.DataFrame) -> list[str]:
    lines = []
    best = best_row(part)
    if best is not None:
        lines += [f"Best of the sweep: {_config(best)}, {_interval(best)}.{_rivals(study, group, part, best)}", ""]
    final = best_row(group.of(study.finals))
    if final is not None:
        energy = (
            ""
            if pd.isna(final["pj_per_flop"])
            else f", {final['pj_per_flop']:.3f} pJ/FLOP against {final['cublas_pj_per_flop']:.3f}"
        )
        lines += [
            f"Measured again, {final['pairs']} pairs in {final['processes']} fresh processes: "
            f"**{_interval(final)}**, {final['tflops']:.0f} TFLOP/s at {final['sm_mhz']:.0f} MHz, "
            f"tensor cores {final['tensor_active']:.1f} % active{energy}.",
            "",
        ]
    tied = study.provenance.get("even", {}).get(group.place)
    if tied:
        lines += [f"No unique best: {len(tied)} finals are even within the noise: " + "; ".join(tied) + ".", ""]
    return lines


def _rivals(study: Study, group: Group, part: pd.DataFrame, best: pd.Series) -> str:
    """How many of the sweep cannot be told from its best."""
    noise = study.provenance.get("noise", {}).get(group.place, 0.0)
    ok = part[part["status"] == "ok"]
    even = ok[(ok["speedup_high"] >= best["speedup_low"]) | (ok["speedup"] >= (1 - noise) * best["speedup"])]
    others = len(even) - 1
    return f" {others} of {len(ok) - 1} others cannot be told from it." if others else ""


def _effects(part: pd.DataFrame, varied: list[str]) -> str:
    found = effects(part, varied)
    lines = ["| choice | speedup | least | greatest |", "| --- | --- | --- | --- |"]
    for row in found.itertuples():
        spread = f"{row.least:.4f} | {row.greatest:.4f}"
        lines.append(f"| {row.parameter} {str(row.value).lower()} | {row.effect:.4f} | {spread} |")
    return "\n".join(lines)


def source_line(about: dict[str, Any]) -> str:
    """One sentence on where the figures come from."""
    gpu = about["gpu"]["name"]
    if about["source"] == "replayed":
        return f"Replayed from recorded measurements of an {gpu} ({about['replayed_from']}); nothing was measured here."
    return f"Measured on an {gpu}, driver {about['gpu']['driver']}, {about['created']}."


def _protocol_lines(about: dict[str, Any]) -> list[str]:
    lines = []
    for protocol in about.get("protocols", []):
        figures = ", ".join(f"{name} {value}" for name, value in protocol.items() if name != "regime")
        lines.append(f"- {protocol['regime']}: {figures} (seconds)")
    data = about["spec"].get("data", ["normal"])
    filled = "random normal data" if data == ["normal"] else f"data: {', '.join(data)} (checked on normal)"
    lines.append(f"- {filled}, seed {about['seed']}; cold L2; each trial paired with torch.mm in alternating order")
    return lines


def _noise(about: dict[str, Any], group: Group) -> str:
    noise = about.get("noise", {}).get(group.place)
    return f" Noise floor (cuBLAS against itself): {noise:.2%}." if noise else ""


def _cublas(part: pd.DataFrame) -> str:
    ok = part[part["status"] == "ok"]
    if ok.empty:
        return "not timed"
    return f"{ok['cublas_us'].median():.1f} us, `{ok['cublas_kernel'].iloc[0]}`"


def _config(row: pd.Series) -> str:
    return (
        f"{row['tile_m']}x{row['tile_n']}, k_depth {row['k_depth']}, {row['stages']} stages, stagger {row['stagger']}, "
        f"{row['consumers']} consumers along {row['split']}, cluster {row['cluster_m']}x{row['cluster_n']}, "
        f"raster {row['raster']} swizzle {row['swizzle']}{' serpentine' if row['serpentine'] else ''}"
        f"{_peeking(row['peek'])}{_more(row)}"
    )


def _more(row: pd.Series) -> str:
    """The options that are set and that a config rarely has."""
    unusual = (name for name in ("schedule", *LATER) if name in row.index and row[name] != DEFAULTS[name])
    return "".join(f", {name} {str(row[name]).lower()}" for name in unusual)


def _peeking(peek: bool | str) -> str:
    return f", peeking ({peek})" if isinstance(peek, str) else ", peeking" if peek else ""


def _interval(row: pd.Series) -> str:
    return f"{row['speedup']:.3f}x [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}]"


def _coverage(study: Study) -> str:
    counts = study.trials["status"].value_counts()
    rows = "Coverage: " + ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    skipped = study.provenance.get("skipped")
    total = study.provenance.get("points")
    if total is not None:
        refused = sum((skipped or {}).values())
        copied = int(study.trials["reason"].str.startswith("same machine code").sum())
        twins = f", {copied} of them by a twin with the same machine code" if copied else ""
        why = f" ({_by_rule(skipped)})" if skipped else ""
        return (
            f"{rows}{twins}; {total} points, {total - refused} of them legal, {refused} refused{why}, "
            f"{total - refused - len(study.trials)} not tried."
        )
    if not skipped:
        return f"{rows}."
    return f"{rows}; {sum(skipped.values())} refused and left out: " + _by_rule(skipped) + "."


def _pace(study: Study) -> str:
    """How fast it went and whether the GPU had to wait; nothing where that was not noted."""
    searched, at_work = study.provenance.get("searched"), study.provenance.get("at_work")
    if not searched or not at_work:
        return ""
    tried = int((study.trials["status"] != "illegal").sum())
    rate = f"{tried / searched:.1f} points a second for {searched:.0f} s"
    return f" {rate}; the GPU waited for work {1 - at_work / searched:.0%} of that time."


def _by_rule(refused: dict[str, int]) -> str:
    return ", ".join(f"{count} by {rule}" for rule, count in refused.items())
