"""Show what the guard says of kernels that somebody made slower: `hopper-gemm check` against planted changes.

Each plant is a copy of the package with one change, or of the tuned table with one parameter changed, beside binaries
that were recorded before it. Run it from the repository's root on a Hopper GPU that nothing else uses:
``python -m benchmarks.planted OUT.json``. Plants named behind the file replace their rows in it:
``python -m benchmarks.planted OUT.json "a stage less"``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopper_gemm.lab.guard.binaries import FOLDER
from hopper_gemm.lab.guard.check import CODES
from hopper_gemm.model.sealed import sealed

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "results/h200"
PROBLEMS = ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192))
CONSUMER = "hopper_gemm/kernel/consumer.py"
COMMIT, RELEASE = "        warpgroup.commit_group()\n", "        warpgroup.wait_group(self.stagger)\n"

SOURCES: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "a fence for the whole GPU in each stage": (COMMIT, COMMIT + "        cute.arch.fence_acq_rel_gpu()\n"),
    "each stage waits for its own wgmma": (RELEASE, "        warpgroup.wait_group(0)\n"),
}
"""Changes of the consumer's source: lines, and what stands in their place."""

PARAMETERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a stage less": lambda config: {"stages": config["stages"] - 1},
    "swizzle 1": lambda config: {"swizzle": 1},
}
"""Changes of a config; a launch argument changes the launch of the recorded binary too."""


def main(out: Path, named: Sequence[str] = ()) -> None:
    """Check every plant, or those named, and write a list of ``{"plant": ..., "exit": ..., "checked": [...]}``."""
    plants = (*SOURCES, *PARAMETERS)
    found = {one["plant"]: one for one in json.loads(out.read_text())} if named and out.exists() else {}
    for plant in named or plants:
        found[plant] = {"plant": plant, **checked(plant)}
        rows = [found[one] for one in plants if one in found]
        out.write_text(json.dumps(rows, indent=1) + "\n")
        for row in found[plant]["checked"]:
            print(plant, row["problem"], row["status"], row["message"], row["warning"], sep=" | ", flush=True)


def checked(plant: str) -> dict[str, Any]:
    """Run the guard on a plant; return its verdicts and its exit code."""
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        package = Path(scratch)
        shutil.copytree(ROOT / "hopper_gemm", package / "hopper_gemm", ignore=shutil.ignore_patterns("__pycache__"))
        results = package / "hopper_gemm/results" / RECORDED.name
        results.mkdir(parents=True)
        copy_guarded(results, PARAMETERS.get(plant, lambda config: {}))
        if plant in SOURCES:
            old, new = SOURCES[plant]
            text = (package / CONSUMER).read_text()
            if old not in text:
                raise ValueError(
                    f"{CONSUMER} must hold the line {old.strip()!r} that {plant!r} replaces; update SOURCES"
                )
            (package / CONSUMER).write_text(text.replace(old, new, 1) if old else text)
        path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "hopper_gemm", "check", "--from", str(results / "best_configs.json"), "--json"]
        run = subprocess.run(
            command, cwd=package, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300
        )
    try:
        return {"exit": run.returncode, "checked": json.loads(run.stdout)}
    except json.JSONDecodeError:
        return {"exit": run.returncode, "checked": [], "error": run.stderr[-2000:]}


def copy_guarded(results: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Copy the table's entries and the binaries of :data:`PROBLEMS`, with every config changed."""
    (results / FOLDER).mkdir()

    def changed(raw: dict[str, Any]) -> dict[str, Any]:
        return raw | {"config": raw["config"] | change(raw["config"])}

    def wanted(raw: dict[str, Any]) -> bool:
        problem = raw["problem"]
        return tuple(problem[name] for name in "mnk") in PROBLEMS and problem["layouts"] == "kk"

    entries = json.loads((RECORDED / "best_configs.json").read_text())["entries"]
    kept = [one for one in entries if wanted(one) and (one["regime"], one["context"], one["problem"]["dtype"]) == USUAL]
    (results / "best_configs.json").write_text(sealed({"entries": [changed(one) for one in kept]}))
    for about in (RECORDED / FOLDER).glob("*.json"):
        raw = json.loads(about.read_text())
        if wanted(raw) and any(raw["config"] == one["config"] for one in kept):
            (results / FOLDER / about.name).write_text(sealed(changed(raw)))
            shutil.copy(RECORDED / FOLDER / f"{raw['object'][:16]}.o", results / FOLDER)
    stems = [path.stem for path in (results / FOLDER).glob("*.json")]
    (results / CODES).write_text(sealed({"kernels": dict.fromkeys(stems)}))


USUAL = ("burst", "isolated", "bf16")
"""Regime, context and types of the guarded entries that are planted."""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
