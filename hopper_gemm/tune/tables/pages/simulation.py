"""The page of a simulation: the trials that samplers need to find the best config of a recorded study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopper_gemm.tune.search.simulate import BLIND, SHARE, WITHIN
from hopper_gemm.tune.study.files import read_json, write_json, write_whole
from hopper_gemm.tune.tables.pivot import markdown
from hopper_gemm.tune.tables.plots import regret_curves

PAGE, PICTURE, DATA = "simulation.md", "simulation.svg", "simulation.json"

DEFAULT = "gp"
"""The sampler that a search uses where none is named."""


def publish(folder: Path, name: str, runs: Sequence[Mapping[str, Any]] | None = None) -> None:
    """Write the page and picture of a study's simulation from its runs, which are kept in ``simulation.json``; None
    reads that file."""
    if runs is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / DATA, list(runs))
    kept = read_json(folder / DATA)
    write_whole(folder / PAGE, simulation_page(kept))
    regret_curves(kept, folder / PICTURE, f"{name}: best so far, behind the recorded best")


def simulation_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown: a line for each task and sampler, then the default sampler beside random search.
    Runs are as :func:`hopper_gemm.tune.search.simulate.summary` returns them; earlier ones have no ``scores``."""
    scored = all("scores" in run for run in runs)
    subject = ("place", "configs", "sampler", "runs")
    columns = [*subject, "median", "90 % of runs", f"found in {SHARE:.0%}", f"behind after {SHARE:.0%}"]
    rows = []
    for run in runs:
        counts = run["median_trials"], run["trials_90"]
        needed = [f"over {len(run['middle'])}" if count is None else f"{count:.0f}" for count in counts]
        score = [f"{run['score']:.2f}, {min(run['scores']):.2f}", run["scored_trials"]] if scored else []
        rows.append([*(run[name] for name in subject), *needed, f"{run['found']:.0%}", f"{run['regret']:.2%}", *score])
    title = f"Trials until within {WITHIN:.0%} of the recorded best."
    columns += ["score, least", "over trials"] * scored
    return "\n".join([title, "", markdown(columns, rows), *_sentences(runs), ""])


def _sentences(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each task: how often the default sampler succeeds, and how often the others do."""
    lines = []
    for run in (run for run in runs if run["sampler"] == DEFAULT):
        others = {other["sampler"]: other for other in runs if other["place"] == run["place"]}
        trials = max(1, round(SHARE * run["configs"]))
        line = f"- {run['place']}: {DEFAULT}, the default, is within {WITHIN:.0%} after {SHARE:.0%} of the space "
        line += f"({trials} trials) in {run['found']:.0%} of {run['runs']} runs"
        for name, words in ((DEFAULT + BLIND, "without the model prior"), ("random", "random search")):
            if name in others:
                line += f"; {words}, in {others[name]['found']:.0%}"
        if "prior" in others:
            needed = others["prior"]["needed"][0]
            alone = "more than its budget" if needed is None else f"{needed:.0f} trial{'s' if needed != 1 else ''}"
            line += f"; the model alone needs {alone}"
        lines.append(line + ".")
    return ["", *lines] if lines else []
