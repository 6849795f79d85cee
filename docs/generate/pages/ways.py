"""Which call for whom, with what it was measured to be worth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from docs.generate.measurements import measurement
from docs.generate.pages.comparisons import figure
from docs.generate.pages.means import of_boards, of_row
from docs.generate.pages.prices import (
    COMPILED,
    COMPILED_IN_GRAPHS,
    EXPERTS,
    LAYER_ON_H100,
    MODEL,
    STEP,
    WITH_GATES,
    example_tables,
    runs_of,
)
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.tables.pivot import markdown

RECIPES = {"tensor": "one scale, untuned", "row:128": "a scale a row, promoted, untuned", "blocks": "blocks, untuned"}
"""Recipes of FP8 by their names in the rows."""

LONG = 1024
"""Tokens from which a compiled layer is ahead without CUDA graphs: below, our calls keep the host longer."""

FEW = 16
"""Tokens of the least prompt that was timed, one token aside, which the page leaves to the compiler."""

GATED = 4096
"""Tokens from which training a layer of gated experts is ahead."""


def picked_figures(name: str, column: str) -> dict[str, str]:
    """Return mean and least speedup over torch in a table of picks, by the values of a column."""
    rows = pd.read_csv(measurement(f"measurements/{name}.csv"))
    return {str(value): figure(map(of_row, of.itertuples())) for value, of in rows.groupby(column, sort=False)}


def timed(row: Mapping[str, Any], name: str) -> Ratio:
    """Return a speedup of an example's row as published; its first time, in ms, is the other side's."""
    milliseconds = next(value for key, value in row.items() if key.endswith(" ms") or key == "torch")
    return of_boards(row[name], milliseconds * 1e3)


def gpu_of(name: str) -> str:
    """The GPUs of a table of picks."""
    rows = pd.read_csv(measurement(f"measurements/{name}.csv"))
    return " and ".join(gpu.split()[1] + "s" for gpu in dict.fromkeys(rows.gpu))


def ways(examples: Path | None = None) -> str:
    """A line for each kind of program: what to call, its figure, and the command that measures it."""
    tables = example_tables(examples)

    def layer(titles: tuple[str, ...], name: str, least: int = 0) -> str:
        rows = (row for title in titles for row in tables[title]["rows"] if name in row)
        return figure(timed(row, name) for row in rows if row.get("tokens", 0) >= least)

    fp8, groups = picked_figures("fp8", "recipe"), picked_figures("groups", "kind")
    example = "`python examples/llama_layer.py`"
    compiled = "`python examples/llama_layer.py --compile`"
    picks = "`python -m benchmarks.{} --out FILE`"
    patch, fused = "`hopper_gemm.patch(model)`", "`linear`, `swiglu`"

    def alone(what: str, call: str, name: str) -> tuple[str, ...]:
        return f"{what} (an H100)", call, layer((LAYER_ON_H100,), name), "torch", example

    def beside(what: str, call: str, titles: tuple[str, ...], name: str, least: int = 0) -> tuple[str, ...]:
        return what, call, layer(titles, name, least), "torch.compile", compiled

    in_graphs, stay = "torch.compile in CUDA graphs", "and stay compiled"
    lines = [
        alone("eager model, unchanged", patch, "patched eager"),
        alone("eager model, three lines changed", fused, "fused eager"),
        (
            "a patched Qwen2.5-1.5B in CUDA graphs (an H200, all runs)",
            patch,
            figure(timed(row, "speedup") for table in runs_of(MODEL, examples) for row in table["rows"]),
            "torch",
            "`python examples/patched_model.py`",
        ),
        alone("CUDA graphs, unchanged", patch, "patched graph"),
        alone("CUDA graphs, three lines changed", fused, "fused graph"),
        beside(f"{in_graphs} (three H100s)", f"{fused}, {stay}", WITH_GATES, "fused, compiled graph"),
        beside(f"the same from {FEW} tokens on (three H100s)", "the same", WITH_GATES, "fused, compiled graph", FEW),
        beside(f"{in_graphs} (an H200)", f"{fused}, {stay}", (COMPILED_IN_GRAPHS,), "fused, compiled graph"),
        beside(
            f"layers unchanged, from {FEW} tokens on (three H100s)",
            f"{patch}, {stay}",
            WITH_GATES,
            "patched, compiled graph",
            FEW,
        ),
        beside(
            "layers unchanged, from one token on (two H100s)",
            f"`hopper_gemm.inductor.enable()`, {stay}",
            WITH_GATES,
            "chosen graph",
        ),
        beside(
            f"torch.compile without graphs, from {LONG} tokens on",
            f"{fused}, {stay}",
            COMPILED,
            "fused, compiled eager",
            LONG,
        ),
        beside("torch.compile", "leaving the compiler: **do not**", (COMPILED_IN_GRAPHS,), "fused graph"),
        (
            "training, eager",
            "`hopper_gemm.patch(model)`",
            layer((STEP,), "speedup"),
            "torch",
            "`python examples/train.py`",
        ),
        *(
            (
                f"FP8, {RECIPES[recipe]} ({gpu_of('fp8')})",
                f"`scaled_mm`{': **behind**' * (text < '1')}",
                text,
                "torch's scaled_mm",
                picks.format("fp8"),
            )
            for recipe, text in fp8.items()
        ),
        (
            f"experts, untuned ({gpu_of('groups')})",
            "`grouped_mm`",
            groups["rows"],
            "torch's grouped_mm",
            picks.format("groups"),
        ),
        ("their weights' gradients", "the same", groups["depth"], "torch's grouped_mm", picks.format("groups")),
        (
            "training of gated experts (H100s)",
            f"`grouped_swiglu`, from {GATED:,} tokens on",
            figure(
                timed(row, "ours")
                for row in tables[EXPERTS]["rows"]
                if "backward" in row["pass"] and row["tokens"] >= GATED
            ),
            "torch",
            "`python examples/experts.py`",
        ),
        ("batches", "`bmm`", groups["batch"], "torch.bmm", picks.format("groups")),
    ]
    return markdown(("you have", "call", "speedup, mean and least", "over", "measured by"), lines)
