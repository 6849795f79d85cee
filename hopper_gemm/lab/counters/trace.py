"""Time stamps of a traced kernel: the steps of each role of a CTA, by its SM's clock.

The traced kernel is another binary than the timed kernel: one thread of each role of the first CTA stores the clock at
every step of the CTA's first tile. Its order of events is that of the timed kernel; its times are a little longer.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hopper_gemm.compiler.child import Handler
from hopper_gemm.model.point import Point

if TYPE_CHECKING:
    from hopper_gemm.compiler.loader import LoadedKernel
    from hopper_gemm.tune.measure.workload import MatrixSet

ROLES = ("producer", "consumer 0", "consumer 1", "consumer 2", "consumer 3")
ROLE_MOMENTS = ("entry", "set_up", "first", "fed", "stored", "left")
STAGE_MOMENTS = ("asked", "had", "issued", "released")
ROLE_WORDS, STAGES = 8, 128
"""Words that a traced kernel writes for each role: those of the role, then the moments of its stages."""

TRACE = "hopper_gemm.lab.ladder.meter:Trace"
"""The kernel's observer."""

WRAP = 2**32
"""A clock has 32 bits."""

LAUNCHES = 3
"""Launches of which the last is kept: by then instructions and descriptors are in the caches."""


class Moment(NamedTuple):
    """A step of a role."""

    role: str  # of ROLES
    stage: int  # of the tile, from 0; -1 for a step of the role itself
    # of ROLE_MOMENTS: the kernel entered, its barriers set up, the first tile begun, its last stage multiplied, C
    # stored, the role left; or of STAGE_MOMENTS: a stage asked for, had, its loads issued or its wgmma committed, and
    # an older stage released
    moment: str
    clocks: int  # SM clocks since the CTA's first role entered


def moments_of(words: np.ndarray) -> list[Moment]:
    """Return the moments of a traced launch, role by role, in the order of a role's steps.

    Args:
        words: (roles, words) of 32 bits, read as unsigned; the clock may wrap once, and words never written are 0.
    """
    clocks = words.astype(np.int32).view(np.uint32).astype(np.int64)
    entries = [int(entry) for entry in clocks[:, 0] if entry]
    if not entries:
        return []
    late = [(entry - entries[0] + WRAP // 2) % WRAP for entry in entries]
    start = entries[late.index(min(late))]
    moments = []
    for role, row in zip(ROLES, clocks, strict=False):
        at = [(-1, moment, row[i]) for i, moment in enumerate(ROLE_MOMENTS)]
        of_stages = row[ROLE_WORDS:].reshape(-1, len(STAGE_MOMENTS))
        at += [(k, name, of_stages[k, i]) for k in range(len(of_stages)) for i, name in enumerate(STAGE_MOMENTS)]
        moments += [Moment(role, k, name, (int(clock) - start) % WRAP) for k, name, clock in at if clock]
    return moments


def read_trace(kernel: LoadedKernel, operands: MatrixSet) -> np.ndarray:
    """Launch a traced kernel once; return (roles, words) of int32."""
    import torch

    shape = (1, len(ROLES), ROLE_WORDS + len(STAGE_MOMENTS) * STAGES)
    words = torch.zeros(shape, dtype=torch.int32, device="cuda")
    kernel(operands.a, operands.b, operands.ours, readings=words)
    return words[0].cpu().numpy()


def tracing(store: Path | None, seed: int) -> Handler:
    """Return the handler of a process that traces points: it checks a point's product and returns its moments."""
    from hopper_gemm.compiler.loader import load
    from hopper_gemm.tune.measure.correctness import check, poison
    from hopper_gemm.tune.measure.device import describe_current
    from hopper_gemm.tune.measure.workload import make_workload

    def handle(point: Point) -> list[Moment]:
        workload = make_workload(point.problem, describe_current().l2_bytes, seed)
        kernel = load(point.config, point.problem, store, TRACE)
        first, rotation = workload.sets[0], cycle(workload.sets)
        poison(first.ours)
        read_trace(kernel, first)
        result = check(first.ours, workload.reference, point.problem.k)
        if not result.ok:
            raise ArithmeticError(f"traced, the product is wrong: {result.reason}")
        return moments_of([read_trace(kernel, next(rotation)) for _ in range(LAUNCHES)][-1])

    return handle
