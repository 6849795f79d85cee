"""Write a sweep of the suite's tuned configs, and of each without one of its ideas: what is each idea worth?

``python -m benchmarks.leave_one_out > sweeps/leave-one-out.toml`` writes the sweep from the recorded table of H100s;
``hopper-gemm sweep sweeps/leave-one-out.toml`` measures it, and docs/studies.md shows its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from hopper_gemm.model.config import DEFAULTS
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.tuned import TunedEntry, read_tuned, recorded_tables

WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "reverse_k": {"reverse_k": False},
    "swap_ab": {"swap_ab": False},
    "stagger": {"stagger": 0},
    "cluster": {"cluster_m": 1, "cluster_n": 1, "multicast": "split"},
    "multicast": {"multicast": "split"},
    "scheduler": {"scheduler": "static"},
    "schedule": {"schedule": "cooperative"},
    "pace": {"pace": 0},
    "evict_c": {"evict_c": False},
    "swizzle": {"swizzle": 1},
    "staging": {"staging": "own"},
    "reduction": {"reduction": "cluster", "part_order": "tile"},
    "part_order": {"part_order": "tile"},
    "ctas_per_sm": {"ctas_per_sm": 1},
    "epi_buffers": {"epi_buffers": 1},
}
"""Values that turn an idea off, by the parameter that turns it on."""

HEAD = '''# The tuned configs of the suite, each without one of its ideas: written by benchmarks/leave_one_out.py.
name = "leave-one-out"
question = """
What is each idea worth at the best, one left out at a time at the tuned config of each problem of the suite?
"""
seed = 0
regimes = ["burst"]
contexts = ["isolated"]
skip_illegal = true

[space]
tile = "256x128"

[burst]
rest = 0.005
timed = 0.005
pairs = 9

[final]
best = 0

[table]
rows = "tile_m"
cols = "tile_n"
'''


def entries() -> list[TunedEntry]:
    """The tuned entries of the suite on H100s, one a problem."""
    return [entry for entry in read_tuned(recorded_tables()["h100"]) if entry.study == "tune-suite-burst"]


def without(config: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Each idea of a config, and the config without it; one stage fewer last."""
    for idea, values in WITHOUT.items():
        if (other := replace(config, **values)) != config:
            yield idea, other
    if config.stages > 1:
        yield "stages", replace(config, stages=config.stages - 1)


def sweep_text() -> str:
    """The file of the sweep."""
    lines = [HEAD]
    for entry in entries():
        lines += ["[[problems]]", *(f"{side} = {getattr(entry.problem, side)}" for side in "mnk"), "known = ["]
        for config in (entry.config, *(other for _, other in without(entry.config))):
            if is_legal(config, entry.problem):
                values = {name: value for name, value in asdict(config).items() if value != DEFAULTS[name]}
                line = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
                lines.append(f"    {{ {line} }},")
        lines += ["]", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(sweep_text(), end="")
