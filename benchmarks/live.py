"""Let samplers search M tile x K depth x stages live, one after the other on one board: the searches of
:mod:`benchmarks.samplers`, measured instead of read from recorded rows.

    python -m benchmarks.live --out DIR [--seeds 3] [--trials 32] [--backend replay]

Needs a Hopper GPU, or with ``--backend replay`` none: rows of the joint sweep answer then. The question is that of
``sweeps/guided.toml`` at one problem; each search writes a study into ``DIR/SAMPLER-SEED``. The worker stays from
search to search, and a kernel is compiled once for all of them. Every seed has the same matrices. A search that is
finished is not run again, so the command goes on where it stopped; seed by seed, so that samplers have equally many.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.samplers import STUDIES
from hopper_gemm.cli.running import local_source, name_tenants, open_sweep
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.run.coordinator import Coordinator
from hopper_gemm.tune.run.source import Source
from hopper_gemm.tune.run.task import Job
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.spec import Spec, checked, read_spec

QUESTION = results_root().parent / "sweeps/guided.toml"

SAMPLERS = {
    "prior": {"sampler": "prior"},
    "gp": {"sampler": "gp"},
    "tpe": {"sampler": "tpe"},
    "tpe-without": {"sampler": "tpe", "seeds": 0},
    "random": {"sampler": "random"},
}
"""Samplers by the names of their folders, with the keys of their searches. ``tpe-without`` begins without configs of
the model."""


def searches(seeds: int, trials: int) -> Iterator[tuple[str, Spec]]:
    """Yield every search as the name of its folder and its spec, all samplers of a seed before the next seed."""
    given = read_spec(QUESTION).model_dump(by_alias=True, exclude_unset=True)
    given["problems"] = given["problems"][:1]
    for seed in range(seeds):
        for name, keys in SAMPLERS.items():
            own = {"name": f"live-{name}-{seed}", "seed": seed, "budget": {"trials": trials}}
            yield f"{name}-{seed}", checked({**given, **own, **keys}, QUESTION.name)


def main() -> None:
    """Run the searches that the folder lacks, and print the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--backend", choices=("cuda", "replay"), default="cuda")
    given = parser.parse_args()
    replay = given.backend == "replay"
    recorded = read_study(results_root() / STUDIES["joint"]) if replay else None
    source = Source(recorded=recorded) if replay else local_source("0", "a live search", "; or add --backend replay")
    name_tenants(source.gpus, print)
    with closing(Coordinator(source.executor(Job("live")), print)) as coordinator:
        for name, spec in searches(given.seeds, given.trials):
            question, began = open_sweep(spec, source, given.out / name), time.monotonic()
            if not question.finished:
                coordinator.run(question)
            rows = [row for row in read_study(question.out).stage("sweep") if row.ok]
            best = max(rows, key=lambda row: float(row.figures["speedup"]))
            seconds = time.monotonic() - began
            print(f"{name}: {best.figures['speedup']}x of {len(rows)} in {seconds:.1f} s, {best.point.config}")


if __name__ == "__main__":
    main()
