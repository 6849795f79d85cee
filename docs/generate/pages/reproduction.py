"""The claims of the headline, each with the command that measures it again, its GPU time and its tolerance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import expm1, hypot
from statistics import mean
from typing import Any

from benchmarks.fresh import LAST_SEEDS
from docs.generate.pages.comparisons import ON_H100S, ON_H200S, STEADY
from docs.generate.pages.prices import invariant_on_h100
from docs.generate.pages.sources import recorded
from hopper_gemm.tune.measure.protocol import Burst, Protocol, Steady, seconds_of
from hopper_gemm.tune.measure.verdict import component_of
from hopper_gemm.tune.study.pooling import pooled
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.row import Row
from hopper_gemm.tune.tables.comparison import cells
from hopper_gemm.tune.tables.mapped import mapped
from hopper_gemm.tune.tables.pivot import markdown

COMPARED = (
    ("24 problems on H100s", ON_H100S, "hopper-gemm compare --against cublas,heuristics"),
    (
        "the same, chained",
        ("suite-chained-on-h100",),
        "hopper-gemm compare --context chained --against cublas,heuristics",
    ),
    ("the same on H200s", ON_H200S, "hopper-gemm compare --against cublas,heuristics"),
    (
        "24 FP8 problems on H100s",
        ("fp8-tuned",),
        "hopper-gemm compare --shapes sweeps/shapes/fp8.toml --dtype e4m3 --scales tensor --against cublas,heuristics",
    ),
    (
        "24 FP8 problems by rows on H100s",
        ("fp8-row-tuned",),
        "hopper-gemm compare --shapes sweeps/shapes/fp8.toml --dtype e4m3 --scales row --promote 128 --against cublas",
    ),
    (
        "24 FP8 problems by blocks on H100s",
        ("fp8-blocks-tuned",),
        "hopper-gemm compare --shapes sweeps/shapes/fp8.toml --dtype e4m3 --scales blocks --promote 128 "
        "--against cublas,heuristics",
    ),
    ("24 short problems", ("short",), "hopper-gemm compare --shapes sweeps/shapes/short.toml --against cublas"),
)
"""Claims from comparisons: what, the studies, board by board, and the command without its processes."""

HELD_OUT = "hopper-gemm map --held-out --drawn 0"

CAPPED = "8192x8192x8192"
"""Problem of the claim at the power cap."""


def reproduction() -> str:
    """Return the table of claims: command, minutes of timing, problems and tolerance of their geometric mean."""
    lines = claims_of_readme()
    merged = [(claim, f"`{command}`", f"{minutes} min; {tolerance}") for claim, command, minutes, tolerance in lines]
    return markdown(("claim", "command", "timing alone; tolerance of the mean"), merged)


def claims_of_readme() -> list[tuple[str, ...]]:
    """Return what README's table claims, and two lists that stand on other pages: what, command, minutes of timing,
    tolerance of the geometric mean."""
    lines = [_compared(*claim) for claim in COMPARED]
    lines.insert(3, _invariant())
    lines.append(_mapped("", "map-held-out", HELD_OUT))
    for seed in LAST_SEEDS:
        command = f"hopper-gemm map --shapes sweeps/shapes/{seed}.toml"
        command += "" if recorded(seed).provenance["spec"]["drawn"] else " --drawn 0"
        lines.append(_mapped(f" drawn by seed {seed.removeprefix('fresh-')}", seed, command))
    return [*lines, _at_the_cap()]


def _compared(what: str, names: Sequence[str], command: str) -> tuple[str, ...]:
    first = recorded(names[0])
    records = [record for record in cells(first.stage("compare")) if record["against"] == "cublas"]
    processes = max(looks[0] for record in records if (looks := record["looks"]))
    own = [row for row in first.rows if row.process < processes]
    halves = [(record["baseline_us"], (*record["looks"],) * len(names), (processes,)) for record in records]
    return what, f"{command} --processes {processes}", _minutes(_seconds(first, own)), _tolerance(halves)


def _invariant() -> tuple[str, ...]:
    rows = [row for row in invariant_on_h100() if row["workspace"] == "" and "ours" in row["us"]]
    boards = Counter(str(row["problem"]) for row in rows)
    newest = {str(row["problem"]): row for row in rows}
    protocol = Burst(rest=0.01, timed=0.006)  # as benchmarks.invariant sets it
    seconds = sum(
        len(times) * protocol.span + len(times) / len(row["us"]) * protocol.of_spacer.span
        for row in newest.values()
        for times in row["us"].values()
    )
    rounds = max(len(row["us"]["ours"]) for row in rows)
    halves = [(min(row["us"]["torch"]), (1,) * boards[problem], (1,)) for problem, row in newest.items()]
    command = f"python -m benchmarks.invariant --rounds {rounds} --out FILE"
    return "the same, batch-invariant", command, _minutes(seconds), _tolerance(halves)


def _mapped(which: str, name: str, command: str) -> tuple[str, ...]:
    study = recorded(name)
    found = mapped(study.stage("map"))
    halves = [(problem.torch_us, (1,), (1,)) for problem in found]
    return f"{len(found)} untuned problems{which}", command, _minutes(_seconds(study, study.rows)), _tolerance(halves)


def _at_the_cap() -> tuple[str, ...]:
    study, best = recorded("steady-on-h100"), dict[str, float]()
    for name in STEADY:
        for row in pooled(recorded(name).stage("final", "compare")):
            if (
                row.ok
                and row.point.is_baseline is False
                and (str(row.point.problem), row.point.regime) == (CAPPED, "steady")
            ):
                best[row.board] = max(best.get(row.board, 0.0), row.figures["speedup"])
    command = f"hopper-gemm compare {CAPPED.replace('x', ' ')} --regime steady --against cublas,heuristics"
    seen = f"not estimated; best of {len(best)} boards {min(best.values()):.3f}x to {max(best.values()):.3f}x"
    return f"{CAPPED} at the power cap", command, _minutes(_seconds(study, study.rows)), seen


def _seconds(study: Study, rows: Iterable[Row]) -> float:
    """Return the seconds in which the pairs of rows were timed, by the shortest protocol of the study."""
    protocols = [_protocol(about) for about in study.provenance["protocols"]]

    def pair(protocol: Protocol, context: str) -> float:
        times = protocol.window / protocol.slice if isinstance(protocol, Steady) else 1
        return seconds_of(protocol, context) / times

    counts = ((row.figures["pairs"], row.point.context) for row in rows if row.ok)
    return sum(count * min(pair(protocol, context) for protocol in protocols) for count, context in counts)


def _protocol(about: dict[str, Any]) -> Protocol:
    kind = Steady if about["regime"] == "steady" else Burst
    return kind(**{name: about[name] for name in kind.__dataclass_fields__ if name in about})


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _tolerance(measured: Iterable[tuple[float, Sequence[int], Sequence[int]]]) -> str:
    """Return the tolerance of a geometric mean, from its problems' durations and processes, recorded and of a rerun.

    It is the mean of the half-widths of the problems' differences, which holds also where all problems err alike.
    """
    halves = [hypot(*(component_of(us).half_width(looks) for looks in both)) for us, *both in measured]
    return f"{expm1(mean(halves)):.1%}"
