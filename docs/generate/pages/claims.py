"""The claims of the source texts, each with what became of it in the recorded rows."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from docs.generate.pages import depth, rings
from docs.generate.pages.comparisons import todays_code
from docs.generate.pages.sources import before, recorded
from docs.generate.pages.wording import wrapped
from docs.generate.todays_code import Measured, mark, measured_of
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.tables.pivot import markdown

CLAIMS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("C", "256 x 4 is the best cell of the table", depth.best_cell),
    ("C", "too few stages do not hide latency", depth.few_stages),
    (
        "C",
        "the sweet spot is at about four stages and a K depth of four, since too many stages pay a high barrier cost",
        depth.many_stages,
    ),
    ("C", "a late release keeps the tensor cores fed", depth.late_release),
    ("C", "a slot that is released before its wgmma has ended may be overwritten", rings.too_soon),
    ("A, C", "the producer's state starts in the other phase (C: else all wait for ever)", rings.start),
    ("C", "a token pays where its probes succeed often enough", depth.token),
    ("C", "the 320 row is at 0.11 to 0.13", depth.row_320),
    ("C", "a stage of 320 x 16 exceeds the 227 KB of shared memory", depth.capacity),
    ("C", "one consumer with many rows hits the limit of registers", depth.one_consumer),
    ("C", "a tile can be halved or quartered among consumers", depth.quarter),
    ("A, B", "with one stage load and math take turns", rings.one_stage),
    ("B", "a ring of stages more than doubles the rate of the serial kernel", rings.over_serial),
    ("B", "with S stages up to S - 1 loads are in flight", rings.in_flight),
    ("B", "a warp of its own for the loads lets load and math go on independently", rings.own_warp),
    ("B", "where each MMA is waited for, none is queued behind it", rings.one_group),
    ("B", "unrolling by the stages matters", rings.unroll),
    ("B, D", "waits are relaxed", rings.relaxed),
    ("A, B, C, D", "one phase bit for each role is enough, flipped when its index wraps", rings.phase_bit),
    ("B, D", "the figures are of fp16", rings.types),
    ("D", "a swizzled order of tiles is faster", rings.swizzled),
    ("D", "the best width of a group depends on the problem and the L2", rings.best_widths),
    ("D", "8 panels instead of 10", rings.panel_example),
    ("D", "rows of A are unique to a tile, and the order improves the reuse of B", rings.reuse),
    ("D", "a compact patch of tiles keeps the working set of the L2 small, so that more hit it", rings.working_set),
    ("D", "producer and consumer always work at different speeds", depth.speeds),
    ("D", "a persistent kernel spares launches (CLC, the next page)", rings.persistent),
    ("D", "to go further a kernel must look beyond the single CTA", rings.beyond),
    ("D", "the abstraction costs no performance", rings.abstraction),
    ("A", "two stages are a good balance, three and more the most overlap", rings.stage_counts),
    ("A", "one elected thread saves synchronisation", rings.elected),
    ("A", "a state of one integer is optimized (PipelineStateSimple)", rings.packed),
    ("A", "a barrier can take several TMA loads, or TMA bytes and cp.async arrivals (extra_tx_count)", rings.mixed),
)
"""Source, claim, and the function that says what was found."""

LINKED = {rings.best_widths: "width-of-a-group"}
"""Anchors of claims to which other pages link."""


DEPTH = ("joint", "seed-table", "one-consumer", "consumers", "naive-320", "peek")
RINGS = ("ladder", "ring", "tilus-grid", "raster", "walk", "fp16")
"""Studies behind the verdicts, beside the time stamps."""


SMALL = 0.005
"""Gains of the ring that count as small."""

DRAWN = 3
"""Kernels of each of these studies that are compared with today's; all of them would compile for twenty minutes."""


def kernels_of(name: str) -> list[Measured]:
    """The kernels of a study, by their names; the observed ones of its counters left out."""
    rows = [row for row in recorded(name).rows if row.ok and row.stage != "counters"]
    found = {KernelId.of(one.config, one.problem): one for one in measured_of(recorded(name), rows)}
    return sorted(found.values(), key=lambda measured: (str(measured.config), measured.problem.dtype))


def drawn(kernels: list[Measured]) -> list[Measured]:
    """Return at most :data:`DRAWN` of the kernels, evenly spaced."""
    return kernels[:: max(1, -(-len(kernels) // DRAWN))]


def compared() -> list[Measured]:
    """The kernels behind the verdicts that are compared with today's."""
    return [measured for name in (*DEPTH, *RINGS) for measured in drawn(kernels_of(name))]


def measured() -> str:
    """With whose machine code, and when, the rows behind the verdicts were measured."""
    binaries = {one.code for name in (*DEPTH, *RINGS) for one in kernels_of(name)}
    standings = {one.code: todays_code().standing(one) for one in compared()}
    days = sorted({recorded(name).provenance["created"][:10] for name in (*DEPTH, *RINGS)})
    return wrapped(
        f"These studies were recorded on {' and '.join(days)}. Of their {len(binaries):,} binaries {len(standings)} "
        f"were compared with today's; their machine code is {mark(list(standings.values()))}."
    )


def speedups(study: Study) -> dict[tuple[GemmProblem, Kernel, str], float]:
    """The speedup of every kernel of a sweep that ran, by problem, kernel and regime."""
    ours = (row for row in study.stage("sweep") if row.ok and not row.point.is_baseline)
    return {(row.point.problem, row.point.config, row.point.regime): row.figures["speedup"] for row in ours}


def twice() -> str:
    """The studies behind the verdicts beside their measurement before: speedups over those of then."""
    lines = []
    for name in (*DEPTH, *RINGS):
        now, then = speedups(recorded(name)), speedups(before(name))
        ratios = pd.Series([now[key] / then[key] for key in now if key in then])
        low, high = ratios.quantile([0.05, 0.95])
        lines.append((name, f"{len(ratios):,}", f"{ratios.median():.3f}", f"{low:.3f} to {high:.3f}"))
    return markdown(("study", "kernels and problems", "median", "nine of ten"), lines)


def on_h100(name: str) -> Study:
    """The measurement of a study on an H100."""
    return recorded(f"{name}-on-h100")


def small_gains() -> str:
    """How far the small gains of the ring differ from those measured before, and on an H100."""
    told = []
    for where, found in (("before", before), ("on an [H100](../results/h100/ring-on-h100/table.md)", on_h100)):
        pairs = [
            (rings.gain(rung, "ring", m), rings.gain(rung, "ring", m, found))
            for rung in rings.rungs("ring")
            for m in rings.SIDES
        ]
        both = [(now, then) for now, then in pairs if now is not None and then is not None]
        small = [(now, then) for now, then in both if abs(now) < SMALL]
        apart, turned = max(abs(now - then) for now, then in small), sum(now * then < 0 for now, then in small)
        told.append(
            f"{len(small)} were measured {where} too, where they differ by up to {100 * apart:.2f} points and {turned} "
            "have another sign"
        )
    return wrapped(
        f"Of the [ring](#the-ring)'s gains below {100 * SMALL:.1f} %, each of two kernels on one board, "
        f"{'; '.join(told)}. A gain as small is no finding unless it keeps its sign."
    )


def claims_list() -> str:
    """Every claim with what was found."""
    return "\n".join(
        f"- {_anchor(found)}**{source}: {claim}.** {_sentence(found())}." for source, claim, found in CLAIMS
    )


def _anchor(found: Callable[[], str]) -> str:
    """Return the HTML anchor of a claim to which other pages link; empty for the others."""
    return f'<a id="{LINKED[found]}"></a>' if found in LINKED else ""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
