"""The page of a study: the source of its figures, its tables, the best of each problem, regime and context; of problems
that were tuned together, the winner of each with its origin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from hopper_gemm.model.config import LEGEND
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.space import begun_with, place_of
from hopper_gemm.tune.study.spec import checked
from hopper_gemm.tune.tables import pivot
from hopper_gemm.tune.tables.ladder import LADDER_LEGEND, ladder, ladder_table

HEADINGS = {"tile_m": "M tile", "tile_n": "N tile", "k_depth": "K depth"}
"""Parameters with another name in published tables."""

WINNERS = ("problem", "best config", "speedup over cuBLAS", "trials", "found")


def report(study: Study) -> str:
    """Return the page of a sweep, a search or a ladder in Markdown."""
    unescaped, study = study, replace(study, provenance=pivot.escaped(study.provenance))
    provenance, rows, finals = study.provenance, pivot.rows_of(study, "sweep"), pivot.rows_of(study, "final")
    lines = [f"# {provenance['study']}", "", f"**{source_line(provenance)}**", "", scope_line(study), ""]
    lines += [provenance.get("question", "").strip(), "", *_protocol_lines(provenance), ""]
    if provenance.get("rungs"):
        lines += [pivot.markdown_table(ladder_table(ladder(rows, provenance["rungs"])), "rung"), "", LADDER_LEGEND, ""]
    if is_list(provenance):
        listed = winners(unescaped)
        done = sum(winner.final for winner in listed)
        again = f"{done} of {len(listed)} have a winner that was measured again in fresh processes."
        lines += [pivot.markdown(WINNERS, [winner.cells for winner in listed]), "", again, ""]
    for group, part in pivot.groups(rows) if not is_list(provenance) else ():
        lines += [f"## {group.title}", ""]
        if not provenance.get("rungs"):
            down, across = spanning(provenance)
            facets = [name for name in spanning(provenance, "facet_rows", "facet_cols") if name is not None]
            table = pivot.pivot(part, down, across, facets=facets)
            heading = ", ".join(HEADINGS.get(name, name) for name in (*facets, down))
            lines += [pivot.markdown_table(table, f"{heading} \\ {HEADINGS.get(across, across)}"), ""]
        ok, noise = part[part["status"] == "ok"], group.noted(provenance, "noise")
        timed = "not timed"
        if not ok.empty:
            timed = f"{ok['baseline_us'].median():.1f} us, `{ok['baseline_kernel'].iloc[0]}`"
        floor = f" Noise floor (cuBLAS against itself): {noise:.2%}." if noise else ""
        lines += [f"cuBLAS: {timed}.{floor}", ""]
        if not provenance.get("rungs"):
            lines += _effect_lines(part, varied(provenance), set(spanning(provenance)))
        for sentence in best_lines(study, group, part, finals):
            lines += [sentence, ""]
    cells = "" if provenance.get("rungs") or is_list(provenance) else "Cells: speedup over cuBLAS (stages). "
    lines += [cells + _coverage(provenance, rows) + _pace(provenance, rows), "", f"Configs: {LEGEND}.", ""]
    text = "\n".join(lines)
    scales = set(rows["scales"])
    return re.sub(r"cuBLAS\b|torch\.mm", pivot.SCALED, text) if scales and "" not in scales else text


def source_line(provenance: Mapping[str, Any]) -> str:
    """Return one sentence on the source of the figures."""
    gpu = provenance["gpu"]["name"]
    if provenance.get("source") == "replayed":
        record = provenance.get("replayed_from", "a record")
        return f"Replayed from recorded measurements of an {gpu} ({record}); nothing was measured here."
    noted = (provenance["gpu"].get("driver") and f"driver {provenance['gpu']['driver']}", provenance.get("created"))
    return ", ".join([f"Measured on an {gpu}", *filter(None, noted)]) + "."


def scope(study: Study) -> dict[str, str]:
    """Return regimes, contexts and boards of a study's timings, each as a list with commas."""
    rows = study.stage("sweep", "final", "compare") or study.rows
    words = {
        "regime": [row.point.regime for row in rows],
        "context": [row.point.context for row in rows],
        "board": [board for row in rows if row.ok for board in row.board.split()] or ["unknown"],
    }
    return {name: ", ".join(dict.fromkeys(values)) for name, values in words.items()}


def scope_line(study: Study) -> str:
    """Return regimes, contexts and boards of a study's timings in one sentence."""
    text = "; ".join(f"{name}: {values}" for name, values in scope(study).items())
    return f"{text[0].upper()}{text[1:]}."


def spanning(provenance: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the columns that provenance notes under names, by default those that span the study's table, or None."""
    usual = {"rows": "tile_m", "cols": "k_depth"}
    return [provenance.get(name) or usual.get(name) for name in names or usual]


def varied(provenance: Mapping[str, Any]) -> list[str]:
    """Return parameters of a study's space, and pairs such as ``cluster``, of which it tried several values."""
    spec = provenance["spec"]
    spaces = [spec.get("space", {}), *(problem.get("space", {}) for problem in spec.get("problems", ()))]
    chosen = [axis for space in spaces for axis in space.items()]
    return list(dict.fromkeys(name for name, values in chosen if isinstance(values, list) and len(values) > 1))


def _effect_lines(part: pd.DataFrame, names: list[str], shown: set[str]) -> list[str]:
    if not set(names) - shown:
        return []
    near = f"where one of the two comes within {1 - pivot.NEAR:.0%} of the best"
    rows = [
        [f"{row.parameter} {str(row.value).lower()}", *map("{:.4f}".format, (row.effect, row.least, row.greatest))]
        for row in pivot.effects(part, names).itertuples()
    ]
    table = pivot.markdown(("choice", "speedup", "least", "greatest"), rows)
    return [f"What each choice is worth, all else equal, {near}:", "", table, ""]


def best_lines(study: Study, group: pivot.Group, part: pd.DataFrame, finals: pd.DataFrame) -> list[str]:
    """Return sentences, in Markdown, on the best config of a group: in the rows of its sweep, in the finals, and its
    ties."""
    lines = []
    best, final = pivot.best_row(part), pivot.best_row(group.of(finals))
    if best is not None:
        noise, ok = group.noted(study.provenance, "noise") or 0.0, part[part["status"] == "ok"]
        even = ok[(ok["speedup_high"] >= best["speedup_low"]) | (ok["speedup"] >= (1 - noise) * best["speedup"])]
        ties = f" {len(even) - 1} of {len(ok) - 1} others cannot be told from it." if len(even) > 1 else ""
        lines += [f"Best of the sweep: `{pivot.config_of(best)}`, {pivot.interval(best)}.{ties}"]
    if final is not None:
        energy = f", {final['pj_per_flop']:.3f} pJ/FLOP against {final['baseline_pj_per_flop']:.3f}"
        lines += [
            f"Measured again, {final['pairs']} pairs in {final['processes']} fresh processes: "
            f"`{pivot.config_of(final)}`, **{pivot.interval(final)}**, "
            f"{final['tflops']:.0f} TFLOP/s at {final['sm_mhz']:.0f} MHz, "
            f"tensor cores {final['tensor_active']:.1f} % active{'' if pd.isna(final['pj_per_flop']) else energy}."
        ]
    tied = group.noted(study.provenance, "even")
    if tied:
        listed = "; ".join(f"`{label}`" for label in tied)
        lines += [f"No unique best: {len(tied)} finals are even within the noise: {listed}."]
    return lines


def _protocol_lines(provenance: Mapping[str, Any]) -> list[str]:
    lines = []
    for protocol in provenance.get("protocols", []):
        figures = ", ".join(f"{name} {value}" for name, value in protocol.items() if name != "regime")
        lines.append(f"- {protocol['regime']}: {figures} (seconds)")
    data = provenance["spec"].get("data", ["normal"])
    filled = "random normal data" if data == ["normal"] else f"data: {', '.join(data)} (checked on normal)"
    paired = "each trial paired with torch.mm in alternating order"
    return [*lines, f"- {filled}, seed {provenance.get('seed', 0)}; cold L2; {paired}"]


def _coverage(provenance: Mapping[str, Any], rows: pd.DataFrame) -> str:
    """Return the numbers of points that ran, failed, and were refused, with the rules."""
    statuses = rows["status"].map(pivot.words).value_counts()
    text = "Coverage: " + ", ".join(f"{count} {status}" for status, count in statuses.items())
    skipped, total = provenance.get("skipped") or {}, provenance.get("points")
    refused, why = sum(skipped.values()), ", ".join(f"{count} by {rule}" for rule, count in skipped.items())
    if total is None:
        return f"{text}; {refused} refused and left out: {why}." if skipped else f"{text}."
    copied = int(rows["reason"].str.startswith("same machine code").sum())
    twins = f", {copied} of them by a twin with the same machine code" if copied else ""
    legal = total - refused
    why = f" ({why})" if why else ""
    tried = f"{legal - len(rows)} not tried"
    return f"{text}{twins}; {total} points, {legal} of them legal, {refused} refused{why}, {tried}."


def _pace(provenance: Mapping[str, Any], rows: pd.DataFrame) -> str:
    """Return the rate of the search and the share of time that the GPU waited; empty where that was not noted."""
    searched, at_work = provenance.get("searched"), provenance.get("at_work")
    if not searched or not at_work:
        return ""
    rate = f"{(rows['status'] != 'illegal').sum() / searched:.1f} points a second for {searched:.0f} s"
    return f" {rate}; the GPU waited for work {1 - at_work / searched:.0%} of that time."


@dataclass(frozen=True)
class Winner:
    """The best config of one problem, regime and context."""

    key: str  # problem, regime and context; place in the JSON
    trials: int  # rows of its search
    config: str = ""  # its label; empty where nothing ran
    speedup: float | None = None  # over cuBLAS, with its interval
    speedup_low: float | None = None
    speedup_high: float | None = None
    final: bool = False  # whether the speedup is of fresh processes, not of the search alone
    even: int = 0  # finals that share the first place within the noise; 0 where the winner is unique
    origin: str = ""  # "search", or "known": the search began with it; found in the JSON

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name for JSON, ``key`` as ``place`` and ``origin`` as ``found``."""
        return {{"key": "place", "origin": "found"}.get(name, name): value for name, value in vars(self).items()}

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of its line, in the order of :data:`WINNERS`."""
        if not self.config:
            return self.key, "nothing ran" if self.trials else "not searched", "", str(self.trials), ""
        shared = f" (one of {self.even} that are even)" if self.even else ""
        stage = "" if self.final else " in the search"
        return self.key, f"`{self.config}`{shared}", pivot.interval(vars(self)) + stage, str(self.trials), self.origin


def is_list(provenance: Mapping[str, Any]) -> bool:
    """Return True if a study, by its provenance, searched several problems, each by itself."""
    spec = provenance["spec"]
    return spec.get("sampler", "exhaustive") != "exhaustive" and len(spec.get("problems", ())) > 1


def winners(study: Study) -> list[Winner]:
    """Return the winner of each problem, regime and context of a list, in the order of its spec."""
    finals, provenance = pivot.rows_of(study, "final"), study.provenance
    searched = {group.key: (group, part) for group, part in pivot.groups(pivot.rows_of(study, "sweep"))}
    best_of_each = []
    for alone in checked(provenance["spec"], str(study.path)).each():
        for regime, context in product(alone.regimes, alone.contexts):
            key = place_of(Point(alone.problems[0].problem(), "cublas", regime, context))
            winner = Winner(key, 0)
            if key in searched:
                group, part = searched[key]
                final = pivot.best_row(group.of(finals))
                winner = Winner(key, len(part), final=final is not None)
                if (best := pivot.best_row(part) if final is None else final) is not None:
                    config, figures = pivot.config_of(best), ("speedup", "speedup_low", "speedup_high")
                    winner = replace(
                        winner,
                        config=str(config),
                        even=len(group.noted(provenance, "even") or ()),
                        origin="known" if config in begun_with(alone) else "search",
                        **{name: pivot.plain(best[name]) for name in figures},
                    )
            best_of_each.append(winner)
    return best_of_each
