"""The claims of the source texts, each with what became of it in the recorded rows."""

from __future__ import annotations

from collections.abc import Callable

from hopper_gemm.lab.pages import depth, rings

CLAIMS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("C", "256 x 4 is the best cell of the table", depth.best_cell),
    ("C", "too few stages do not hide latency", depth.few_stages),
    (
        "C",
        "the sweet spot is at about four stages and a K depth of four, since too many stages pay a high barrier cost",
        depth.many_stages,
    ),
    ("C", "a late release keeps the tensor cores fed", depth.late_release),
    ("C", "a token pays where its probes succeed often enough", depth.token),
    ("C", "the 320 row is at 0.11 to 0.13", depth.row_320),
    ("C", "a stage of 320 x 16 exceeds the 227 KB of shared memory", depth.capacity),
    ("C", "a tile can be halved or quartered among consumers", depth.quarter),
    ("B", "a ring of stages more than doubles the rate of the serial kernel", rings.over_serial),
    ("B", "with S stages up to S - 1 loads are in flight", rings.in_flight),
    ("B", "a warp of its own for the loads lets load and math go on independently", rings.own_warp),
    ("B", "unrolling by the stages matters", rings.unroll),
    ("B, D", "a wait may be relaxed", rings.relaxed),
    ("B, D", "one phase bit for each role is enough, flipped when its index wraps", rings.phase_bit),
    ("B, D", "figures of fp16 hold for bf16", rings.types),
    ("D", "a swizzled order of tiles is faster", rings.swizzled),
    ("D", "the best width of a group depends on the problem and the L2", rings.best_widths),
    ("D", "8 panels instead of 10", rings.panel_example),
    ("D", "a compact patch of tiles keeps the working set of the L2 small", rings.working_set),
    ("D", "the abstraction costs no performance", rings.abstraction),
    ("A", "two stages are a good balance, three and more the most overlap", rings.stage_counts),
    ("A", "one elected thread saves synchronisation", rings.elected),
    ("A", "a state of one integer is optimized (PipelineStateSimple)", rings.packed),
    ("A", "a barrier can take several TMA loads, or TMA bytes and cp.async arrivals (extra_tx_count)", rings.mixed),
)
"""Source, claim, and the function that says what was found."""


def claims_list() -> str:
    """Every claim with what was found."""
    return "\n".join(f"- **{source}: {claim}.** {_sentence(found())}." for source, claim, found in CLAIMS)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
