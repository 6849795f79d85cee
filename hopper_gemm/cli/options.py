"""Options that several commands have, and what their text means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hopper_gemm.model.problem import DTYPES

TYPES = f"Element types, of operands and output or of operands, then output: {', '.join(DTYPES)}"

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]
Gpu = Annotated[str, typer.Option(help="Index of the GPU, as nvidia-smi lists it.")]
BackendName = Annotated[str, typer.Option(help="cuda, replay, or auto: cuda where there is a Hopper GPU.")]
StudyOut = Annotated[Path | None, typer.Option(help="Results folder. Default: results/local/<gpu>/<name>.")]
StudyFolder = Annotated[
    Path, typer.Argument(metavar="RESULTS_DIR", help="A study's folder, such as results/h200/seed-table.")
]
Recorded = Annotated[
    Path | None, typer.Option("--from", help="Recorded study to replay. Default: the one of the same name.")
]
TunedTable = Annotated[
    Path | None, typer.Option("--from", help="Tuned table. Default: the recorded one of this kind of GPU.")
]
Regime = Annotated[str, typer.Option(help="burst, or steady: of a list only the problems marked so.")]
OnlyRegime = Annotated[str | None, typer.Option(help="Only this regime.")]
OnlyProblem = Annotated[str | None, typer.Option(help="Only this problem, as MxNxK.")]


def one_gpu(text: str) -> int:
    """The index that ``--gpus`` names."""
    if not text.isdigit():
        raise ValueError(f"--gpus must be the index of one GPU but got {text!r}")
    return int(text)


def several_gpus(text: str) -> list[int]:
    """The indices that ``--gpus`` names."""
    found = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in found) or len({int(word) for word in found}) < len(found):
        raise ValueError(f"--gpus must be indices with commas, each once, such as 0,1, but got {text!r}")
    return [int(word) for word in found]


def number_or(text: str) -> Any:
    """A number, or the word that stands for one."""
    return int(text) if text.lstrip("-").isdigit() else text
