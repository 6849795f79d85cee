"""Listings to machine code: each in a process of its own that imports a copy of the package, all at once."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from docs.generate.chapters.listing import Printed
from docs.generate.chapters.tree import write_tree
from docs.generate.pages.chapters import CHAPTERS, kernel
from hopper_gemm.compiler.cubin import CubinReport

COMPILE = """
import json, pickle, sys
from dataclasses import asdict
from pathlib import Path
from hopper_gemm.compiler.compile import compile_kernel
from hopper_gemm.compiler.cubin import read_cubin
from hopper_gemm.compiler.loader import link

folder = Path(sys.argv[1])
compiled = compile_kernel(pickle.loads((folder / "kernel.pickle").read_bytes()), "bf16")
(folder / "kernel.o").write_bytes(compiled.object_file)
library = link(compiled.object_file)
if library is not None:
    (folder / "kernel.so").write_bytes(library)
(folder / "report.json").write_text(json.dumps(asdict(read_cubin(compiled.cubin))))
"""
"""Script of a process that compiles: it reads the kernel that its folder asks for, and leaves the result there."""


@dataclass(frozen=True)
class Built:
    """What became of a listing.

    Args:
        object_file: launcher with its device code; None where the listing does not compile.
        report: resources of the kernel; None where it does not compile.
        error: why it does not compile, in one line; empty where it does.
    """

    object_file: Path | None
    report: CubinReport | None
    error: str = ""


def build(printed: Mapping[int, Sequence[Printed]], folder: Path) -> dict[int, Built]:
    """Compile the listings of chapters for sm_90a. Needs no GPU.

    Args:
        printed: functions by the number of their chapter.
        folder: for copies of the package and for object files.

    Raises:
        ValueError: a listing names a function that the package has not.
    """
    for number, functions in printed.items():
        write_tree(functions, folder / CHAPTERS[number - 1].page)
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max(1, min(cores, len(printed)))) as pool:
        return dict(zip(printed, pool.map(partial(_built, folder), printed), strict=True))


def _built(folder: Path, number: int) -> Built:
    own = folder / CHAPTERS[number - 1].page
    (own / "kernel.pickle").write_bytes(pickle.dumps(kernel(CHAPTERS[number - 1].rungs[-1])))
    paths = os.pathsep.join([str(own), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", COMPILE, str(own)]
    done = subprocess.run(command, cwd=own, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    if done.returncode:
        return Built(None, None, (done.stderr.strip().splitlines() or ["the compiler said nothing"])[-1])
    return Built(own / "kernel.o", CubinReport(**json.loads((own / "report.json").read_text())))
