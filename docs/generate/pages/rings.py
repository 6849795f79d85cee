"""Evidence on the pipeline classes (source A) and on the two tilus pages (sources B and D)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from docs.generate.measurements import measurement
from docs.generate.pages.counted import panels, tile_order, unique_panels, with_counters
from docs.generate.pages.depth import RING, by_stages, joint, page_table, ran
from docs.generate.pages.sources import before, pairs_by, recorded, share, spans
from docs.generate.pages.wording import cube, listed, percent, spread
from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import kernel_of
from hopper_gemm.tune.study.reader import Study, read_provenance
from hopper_gemm.tune.tables.ladder import MeasuredRung, ladder
from hopper_gemm.tune.tables.pivot import config_of, problem_of, rows_of

SIDES = (4096, 8192)

Found = Callable[[str], Study]
"""Which measurement of a study, by its name: :func:`recorded`'s, or the one before it."""

AT_ONCE = 16
"""Tiles at a time in D's example."""

AT_ONCE_CLOCKS = 60
"""Clocks within which the one consumer of a traced ring has a stage that was full when it asked: 26 at the least."""


@cache
def rungs(name: str, found: Found = recorded) -> dict[str, MeasuredRung]:
    """The rungs of a ladder by name."""
    study = found(name)
    return {one.name: one for one in ladder(rows_of(study, "sweep"), study.provenance["rungs"])}


@cache
def boards(study: str, found: Found = recorded) -> dict[tuple[Kernel, int], str]:
    """The board of every kernel of a ladder in bursts, by side."""
    rows = rows_of(found(study), "sweep").query("regime == 'burst'").to_dict("records")
    return {(config_of(row), row["m"]): row["board"] for row in rows}


def gain(name: str, study: str, m: int, found: Found = recorded) -> float | None:
    """Gain of a rung in bursts over the rung that it starts from; None where it starts from none, or the two ran on two
    boards: from board to board the ratio of one kernel to cuBLAS moves by as much as the smaller gains."""
    rung = rungs(study, found)[name]
    if rung.start is None:
        return None
    kernels = [kernel_of(one.config) for one in (rung, rungs(study, found)[rung.start])]
    (over,) = (one.gain for one in rung.results if (one.group.m, one.group.regime) == (m, "burst"))
    return over if len({boards(study, found)[kernel, m] for kernel in kernels}) == 1 else None


def worth(name: str, study: str = "ring") -> str:
    """:func:`gain` of a rung at each cube that has one."""
    found = {m: gain(name, study, m) for m in SIDES}
    return ", ".join(f"{percent(1 + one, 2)} at {m}^3" for m, one in found.items() if one is not None)


def noise() -> str:
    """Noise floors of the study of the ring."""
    floors = recorded("ring").provenance["noise"].values()
    return f"{100 * min(floors):.2f} to {100 * max(floors):.2f} %"


def ring_table() -> str:
    """Every kernel of the study of the ring: speedup, :func:`gain` over the kernel beside it, instructions."""
    codes = ran("ring").drop_duplicates("code").copy()
    codes.index = [str(config_of(row)) for row in codes.to_dict("records")]
    lines = []
    for rung in rungs("ring").values():
        figures = {one.group.m: one for one in rung.results}
        gains = {m: gain(rung.name, "ring", m) for m in SIDES}
        shown = [
            f"{figures[m].speedup:.3f}x" + ("" if over is None else f", {percent(1 + over, 2)}")
            for m, over in gains.items()
        ]
        instructions = codes.loc[str(LadderConfig.of(rung.config))]["instructions"]
        lines.append((rung.name, rung.start or "", *shown, f"{instructions:.0f}"))
    columns = ["kernel", "beside", "4096^3", "8192^3", "instructions"]
    return page_table(pd.DataFrame(lines, columns=columns).set_index("kernel"), "kernel")


def over_serial() -> str:
    """Gain of a ring of two to four stages over one stage, at equal occupancy and in the ladder."""
    rates = joint(0).query("k_depth == 4").set_index([*RING, "stages"])["speedup"].unstack("stages")
    ratio, pair = rates[[2, 3, 4]].max(axis=1) / rates[1], rates[2] / rates[1]
    gains = {(one.group.m, one.group.regime): one.gain or 0.0 for one in rungs("ladder")["two stages"].results}
    two = gains[8192, "burst"]
    return (
        f"confirmed with one CTA on an SM: at depth 4 the best of two to four stages runs at {ratio.min():.2f} to "
        f"{ratio.max():.2f} times one stage, over 2 in {(ratio > 2).sum()} of {len(ratio)} cells, two alone at "
        f"{pair.min():.2f} to {pair.max():.2f}, all with a producer warp. Without one, as in B, `two stages` is "
        f"{1 + two:.2f} times `serial` at 8192^3; there two CTAs share an SM and hide each other's loads"
    )


def own_warp() -> str:
    """Gain of a dedicated load warp, at equal stages and beside two CTAs on an SM."""
    speeds = {
        name: {
            one.group.m: one.speedup or np.nan for one in rungs("ladder")[name].results if one.group.regime == "burst"
        }
        for name in ("specialised", "two stages")
    }
    less = ", ".join(
        f"{percent(speeds['specialised'][m] / two, 2)} at {m}^3" for m, two in speeds["two stages"].items()
    )
    return (
        "confirmed at four stages, one CTA on an SM: `specialised` over `multistage` in bursts "
        f"{worth('specialised', 'ladder')}. `two stages`, without such a warp but with two CTAs on an SM, is faster: "
        f"`specialised` beside it {less}"
    )


def stage_counts() -> str:
    """Share of the best speed that one, two and three stages reach."""
    shares = by_stages(0)
    told = ", ".join(f"{name} {shares[count].median():.2f}" for count, name in enumerate(("one", "two", "three"), 1))
    shallow = shares[3][shares.index.get_level_values("k_depth") <= 2].median()
    return (
        f"three are, two fall short: of the speed at the best number of stages {told} at the median of {len(shares)} "
        f"rings, stagger 0. Depths 1 and 2 need more than three stages, which reach {shallow:.2f} there"
    )


def unroll() -> str:
    """Gain of unrolling by the stages, with and without a producer warp."""
    grid = pairs_by(ran("tilus-grid"), "unroll", False, True)["ratio"]
    return (
        f"on B's own kind of kernel, without a producer warp, a little: {worth('unrolled', 'ladder')}. Not with one: "
        f"{percent(grid.median())} at the median of {len(grid)} pairs of D's grid. B's index takes a remainder, "
        "which unrolling spares; here it wraps by a comparison"
    )


def swizzled() -> str:
    """Gain of tile groups on the grid that D autotunes."""
    plain = ran("tilus-grid").query("unroll == False")
    eight, four = (pairs_by(plain, "swizzle", 1, width)["ratio"] for width in (8, 4))
    return (
        f"confirmed: groups of eight gain {spread(eight)} over single columns, groups of four {spread(four)}, "
        f"{len(eight)} pairs each of D's grid at stagger 0 and 1, fp16, 8192^3"
    )


def types() -> str:
    """Change from bf16 to fp16."""
    rows = ran("fp16").copy()
    rows["size"] = rows["problem"].str.removesuffix(" fp16")
    table = rows.pivot(index="size", columns="dtype", values=["tflops", "speedup", "sm_mhz"]).astype(float)
    rates, ratios, clocks = (table[name, "fp16"] / table[name, "bf16"] for name in ("tflops", "speedup", "sm_mhz"))
    ratio, rate, clock = (percent(one.median()) for one in (ratios, rates, clocks))
    return (
        f"ratios hold for bf16, rates do not: fp16 changes the speedup over cuBLAS by {ratio}, the rate by {rate} and "
        f"the clock by {clock} (medians)"
    )


def abstraction() -> str:
    """Cost of cutlass.pipeline over hand-written barriers."""
    return (
        "not compared as D does, with a class of one's own. cutlass.pipeline in place of this kernel's own barriers "
        f"costs a little: {worth('library ring')} in a cluster of two, {worth('library, single CTA')} in a single CTA, "
        f"{worth('library, k_depth 1')} with four times as many barriers (k_depth 1); noise {noise()}"
    )


def elected() -> str:
    """Arrivals on a barrier, by kind."""
    every, library = worth("all consumers' threads"), worth("library, all threads")
    return (
        f"hardly. Beside one predicated lane of each warp: every consumer thread arrives, {every}; an elected one "
        f"behind a warp sync, {worth('elected')}; one lane of a whole consumer, {worth('one of a consumer')}. In "
        f"cutlass.pipeline every thread arrives, {library}; an elected one, {worth('library, elected')}; noise "
        f"{noise()}. Measured [again](#measured-twice), many gains as small change their sign"
    )


def packed() -> str:
    """Cost of a ring position in one integer instead of two."""
    return (
        f"one integer gains nothing in a ring of four stages: {worth('packed state', 'ladder')}. With one stage, where "
        "A spares the division, it was not measured: a kernel of one stage waits for every load, so that nobody runs "
        "it. A's phase, the integer over the stages, grows past 1; PTX allows a wait the parities 0 and 1 alone, and "
        "what was measured keeps the lowest bit"
    )


def mixed() -> str:
    """Cost of one barrier for TMA bytes and cp.async arrivals, and of two barriers for two TMA loads."""
    return (
        "both work. A and B by TMA on one barrier is what this kernel does; a barrier for each changes the speed by "
        f"{worth('two full barriers')}. TMA and cp.async on one barrier is slower than TMA alone, "
        f"{worth('TMA and cp.async')}, since cp.async is (alone {worth('cp.async')}); its warps arrive, none of its "
        "bytes are counted. A number of bytes that changes from call to call has no use here: every stage of this "
        "kernel takes as many, since TMA fills up what lies outside of a matrix"
    )


def relaxed() -> str:
    """Gain of a relaxed wait."""
    return (
        "in the code of their rings, without a word on it. The assembler makes the same instruction of a wait: "
        f"{worth('relaxed waits')}, no more than gains differ that are [measured twice](#measured-twice)"
    )


def phase_bit() -> str:
    """Evidence that one phase bit for each role is enough."""
    return (
        "confirmed: this kernel's ring does so, and its [model](verification.md) runs through every order of events "
        "without a wait for the parity of another round. That the bit alternates with each iteration, as A's list of "
        "concepts has it, holds for one stage"
    )


def example(width: int) -> tuple[int, int]:
    """Rows of A and columns of B in the first wave of D's example: 8 x 8 tiles, :data:`AT_ONCE` at a time."""
    return unique_panels(tile_order(8, 8, "m", width, False), AT_ONCE)[0]


def panel_example() -> str:
    """D's example of 8 x 8 tiles, 16 at a time."""
    found = {width: example(width) for width in (1, 4, 8)}
    told = ", ".join(f"{a} and {b} with a width of {width}" for width, (a, b) in found.items())
    return (
        f"confirmed by the order of this kernel's walk: {sum(found[4])} instead of {sum(found[1])}. Rows of A and "
        f"columns of B in the first wave: {told}"
    )


def reuse() -> str:
    """How many tiles of a wave share a row of A and a column of B in D's example."""
    alone, grouped = ([AT_ONCE // count for count in example(width)] for width in (1, 4))
    return (
        f"not by D's own example. Of {AT_ONCE} tiles at once {alone[0]} share a row of A and {alone[1]} a column of B "
        f"in single columns, {grouped[0]} and {grouped[1]} in groups of four: rows of A are shared too; their reuse "
        "grows and that of B falls, and both together need fewer panels"
    )


def working_sets() -> pd.DataFrame:
    """Walks of 256x128 in clusters of two: panels of the first wave, bytes read from DRAM as predicted and counted."""
    raster = recorded("raster")
    walks = with_counters(rows_of(raster, "sweep"), raster.stage("counters"))
    lines = []
    for row in walks.query("serpentine == False and raster == 'm'").sort_values(["m", "swizzle"]).to_dict("records"):
        config, problem = config_of(row), problem_of(row)
        order = tile_order(-(-problem.m // 256), -(-problem.n // 256), "m", config.swizzle, serpentine=False)
        a, b = unique_panels(order, 66)[0]
        predicted, counted = panels(config, problem)[0] / 1e9, float(row["dram_read_bytes"]) / 1e9
        lines.append((problem.m, config.swizzle, a, b, predicted, counted, counted / predicted))
    columns = ["cube", "swizzle", "panels of A", "panels of B", "GB predicted", "GB counted", "counted / predicted"]
    return pd.DataFrame(lines, columns=columns)


def hit_rates() -> pd.DataFrame:
    """L2 hits in percent of all accesses, by cube and width of a group, in clusters of two."""
    raster = recorded("raster")
    walks = with_counters(rows_of(raster, "sweep"), raster.stage("counters"))
    plain = walks.query("serpentine == False and raster == 'm'")
    return plain.assign(hits=plain["l2_hit_pct"].astype(float)).pivot(index="m", columns="swizzle", values="hits")


def working_set() -> str:
    """DRAM reads beside the bytes of the panels of each wave, and the L2's hit rate."""
    found, hits = working_sets(), hit_rates()
    small = found[found["cube"] < 16384]["counted / predicted"]
    rates = ", ".join(f"from {of[1]:.0f} to {of[8]:.0f} % at {m}^3" for m, of in hits.iterrows())
    return (
        f"confirmed: DRAM reads what the distinct panels of each wave weigh, to {100 * (small - 1).abs().max():.0f} % "
        f"at 4096^3 and 8192^3; at 16384^3 it reads up to {found['counted / predicted'].max():.1f} times as much. "
        f"From single columns to groups of eight the L2's hit rate goes {rates}"
    )


def stamps_of(study: str) -> Path:
    """The folder of recorded time stamps, whatever was traced here since."""
    root = results_root()
    (folder,) = (path for path in root.glob(f"*/*/{study}") if path.relative_to(root).parts[0] != "local")
    return folder


@cache
def traced(study: str = "timeline", m: int = 4096) -> dict[str, tuple[dict[str, Any], pd.DataFrame]]:
    """The traced kernels of a problem by name: each as its sweep has it, and what its roles did when."""
    folder = stamps_of(study)
    about = read_provenance(folder)["rungs"]
    moments = pd.read_csv(measurement(folder / "moments.csv.gz")).query(f"m == {m}")
    parts = dict(list(moments.groupby("rung")))
    named = [one for one in about if one["name"] in parts]
    return {one["name"]: (one, spans(parts[one["name"]], one["config"]["stagger"])) for one in named}


def overlaps(name: str) -> dict[str, float]:
    """Loads and wgmma under way in stages 16 to 48 of a traced tile, on average over time.

    Returns:
        ``clocks`` of a stage, ``wgmma`` clocks that its math takes by itself, ``group``: share of the time in which a
        group is under way, ``both``: in which a load is as well, ``full``: in which a load of every stage is,
        ``groups`` under way or queued, ``loads``, and of these ``beside`` a group on average and at the ``most``, and
        ``awaited``: share of the stages for which the consumer waits. The stamps do not tell when a load has landed, so
        one counts until a consumer has its stage; loads that are not awaited count too long.
    """
    rung, found = traced()[name]
    config, fed = rung["config"], found[found["what"] == "math"]
    since, until = (fed[fed["stage"] == stage]["start"].min() for stage in (16, 48))
    inside = found[["start", "end"]].clip(since, until)
    mean = (inside["end"] - inside["start"]).groupby(found["what"]).sum() / (until - since)
    either = found[found["what"].isin(["load", "math"])].assign(what="either")
    group, load = (share(found, what, since, until) for what in ("math", "load"))
    lasts, loads, groups = counted(found, since, until)
    waits = found[(found["what"] == "waits") & (found["role"] != "producer") & found["stage"].between(16, 47)]
    return {
        "clocks": (until - since) / 32,
        "wgmma": config["tile_m"] * config["tile_n"] * config["k_depth"] / 128,
        "group": group,
        "both": max(0.0, group + load - share(either, "either", since, until)),
        "groups": mean["math"] + mean["queued"],
        "loads": mean["load"],
        "full": float(lasts[loads == config["stages"]].sum()) / (until - since),
        "beside": float((lasts * loads)[groups > 0].sum() / lasts[groups > 0].sum()),
        "most": float(loads[groups > 0].max()),
        "awaited": float((waits["end"] - waits["start"] > AT_ONCE_CLOCKS).mean()),
    }


def counted(found: pd.DataFrame, since: float, until: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A stretch of time cut where a load or a group begins or ends: how long each part lasts, its loads and groups."""
    ours = {what: part[["start", "end"]].clip(since, until).to_numpy() for what, part in found.groupby("what")}
    edges = np.unique(np.concatenate([ours["load"].ravel(), ours["math"].ravel(), [since, until]]))
    middles = (edges[1:] + edges[:-1]) / 2
    loads, groups = (((of[:, :1] < middles) & (middles < of[:, 1:])).sum(axis=0) for of in (ours["load"], ours["math"]))
    return np.diff(edges), loads, groups


def in_flight() -> str:
    """Loads under way beside a group with two, three and four stages, and how often all S are."""
    names = {"two": "two stages", "three": "three stages", "four": "one consumer, stagger 0"}
    found = {count: overlaps(name) for count, name in names.items()}
    assert all(one["most"] == number - 1 for number, one in enumerate(found.values(), 2))
    told = ", ".join(f"{one['beside']:.2f} with {count}" for count, one in found.items())
    full = ", ".join(f"{100 * one['full']:.1f} %" for one in found.values())
    awaited = [f"{100 * found[count]['awaited']:.0f} %" for count in ("three", "four")]
    return (
        "confirmed by the time stamps of one CTA at stagger 0, in which a load counts until the consumer has its "
        f"stage: while a group is under way never more, on average {told} stages. Between two groups S loads are, in "
        f"{full} of all time, since a producer of its own fills a slot again before the next group begins. The figures "
        f"of four stages are upper bounds: there the consumer waits for {awaited[1]} of the stages (with three for "
        f"{awaited[0]}), and the loads of the others had ended before"
    )


def one_stage() -> str:
    """Share of the time in which a load and a group are both under way, with one, two and three stages."""
    names = ("one stage", "two stages", "three stages")
    told = ", ".join(f"{100 * overlaps(name)['both']:.0f} % with {name}" for name in names)
    return f"confirmed by the time stamps of one CTA: share of the time in which both are under way: {told}"


def one_group() -> str:
    """Share of the time in which a group is under way where each is waited for, and where the next is queued."""
    first, late, two = (
        f"{100 * overlaps(name)['group']:.0f} %"
        for name in ("one consumer, stagger 0", "one consumer, stagger 1", "stagger 0")
    )
    return (
        f"confirmed for one consumer: by the time stamps a group is under way in {first} of the time where each is "
        f"waited for, in {late} where the next is queued. A warp of its own for the loads, B's answer, is there in "
        f"both; two consumers fill each other's gaps ({two})"
    )


def persistent() -> str:
    """Gain of one CTA an SM that walks over tiles."""
    return (
        "Hopper has no CLC. One CTA an SM that walks over tiles in a fixed order gains "
        f"{worth('persistent', 'ladder')} over one CTA a tile"
    )


def beyond() -> str:
    """Gain of clusters over single CTAs."""
    single = ", ".join(f"{one.speedup:.3f}x at {one.group.m}^3" for one in rungs("ring")["own, single CTA"].results)
    return (
        f"clusters of two along n gain little, {worth('cluster 1x2', 'ladder')}, those along m lose, "
        f"{worth('cluster 2x1', 'ladder')}. A single CTA runs at {single} beside cuBLAS"
    )


def start() -> str:
    """Evidence on the phases at the start."""
    return (
        "confirmed by the [model](verification.md): a producer that starts in the phase of the consumers never starts. "
        "The index at which A starts it, the number of stages, is that of A's one integer, index + phase x stages; "
        "apart they are 0 and 1"
    )


def too_soon() -> str:
    """Evidence on a release that is too soon."""
    return (
        "confirmed by the [model](verification.md), which finds the overwriting where a slot is released a group too "
        "soon"
    )


def best_widths() -> str:
    """The fastest width of a group at each cube, 256x128 in clusters of two; of single CTAs what it is worth over 8."""
    rows = ran("raster").query("raster == 'm' and serpentine == False and regime == 'burst'")
    best, even = [], []
    for m, part in rows.sort_values("swizzle").groupby("m"):
        top = part.loc[part["speedup"].idxmax()]
        near = part[part["speedup_high"] >= top["speedup_low"]]["swizzle"].astype(str).tolist()
        if len(near) == 1:
            best.append(f"{near[0]} at {m}^3")
        else:
            even.append(f"at {m}^3 the intervals of {', '.join(near[:-1])} and {near[-1]} overlap")
    single, far = widths_alone("m").idxmax(axis=1), worth_a_width("m")
    told = listed(
        [
            f"{tile} with {single[problem, tile]} at {cube(problem)} ({percent(1 + gain)})"
            for (problem, tile), gain in far.items()
        ]
    )
    across = worth_a_width("n")
    tiles = listed(sorted(across.index.unique("tile")))
    return (
        "on the tile, and of a small tile on the size too. 256x128 in clusters of two is fastest with "
        f"{', '.join(best)}; {'; '.join(even)}. Of single CTAs, isolated, another width than 8 was worth more than 1 % "
        f"and the noise [both times](#measured-twice) in {len(far)} of {len(single)} pairs of problem and tile along "
        f"m, which is D's order: {told}. Along n in {len(across)} of {len(single)}, all of {tiles}: up to "
        f"{percent(1 + across.max())}. The L2 was the same in all"
    )


def widths_alone(raster: str, found: Found = recorded) -> pd.DataFrame:
    """Speedups of single CTAs along an axis, isolated: by problem and tile, a column for each width of a group."""
    rows = rows_of(found("walk"), "sweep").query("status == 'ok'").astype({"speedup": float})
    alone = rows.query(f"cluster == '1x1' and raster == '{raster}'")
    return alone.pivot_table(index=["problem", "tile"], columns="swizzle", values="speedup")


def worth_a_width(raster: str) -> pd.Series:
    """Gains of the best width over 8 along an axis, of those that were above 1 % and the noise of their problem in both
    measurements, the least first."""
    gains = []
    for found in (recorded, before):
        rates = widths_alone(raster, found)
        floors = {place.split(" ")[0]: floor for place, floor in found("walk").provenance["noise"].items()}
        least = [max(0.01, floors[problem]) for problem in rates.index.get_level_values("problem")]
        over = rates.max(axis=1) / rates[8] - 1
        gains.append(over[over > least])
    now, then = gains
    return now[now.index.isin(then.index)].sort_values()


def timeline_table() -> str:
    """Overlap of roles in stages 16 to 48 of a traced tile."""
    lines = {}
    for name in traced():
        found = overlaps(name)
        lines[name] = {
            "clocks a stage": f"{found['clocks']:.0f}",
            "its wgmma alone": f"{found['wgmma']:.0f}",
            "tensor cores busy": f"{100 * found['wgmma'] / found['clocks']:.0f} %",
            "a group under way": f"{100 * found['group']:.0f} %",
            "groups under way or queued": f"{found['groups']:.2f}",
            "loads under way": f"{found['loads']:.2f}",
        }
    return page_table(pd.DataFrame(lines).T, "kernel, 4096^3")
