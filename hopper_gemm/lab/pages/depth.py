"""Evidence on the post "Pipelining" (source C): depth of the ring, stagger, probes, the 320 row."""

from __future__ import annotations

from functools import cache

import pandas as pd

from hopper_gemm.lab.counters.table import with_counters
from hopper_gemm.lab.pages.sources import CELL, beside, pairs_by, published, recorded
from hopper_gemm.lab.pages.wording import between, cube, percent, reach, spread
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.tune.search.importance import importances
from hopper_gemm.tune.study.spec import checked
from hopper_gemm.tune.tables.pivot import markdown_table, one_line, rows_of

CUBES = {4096: "4096x4096x4096", 8192: "8192x8192x8192"}
RING = ["problem", "tile_m", "k_depth"]
KERNEL = ["problem", "tile", "k_depth", "stages", "stagger", "schedule"]
LONG_ENOUGH = 900
"""Clocks that the loads left ahead must last for a late release to pay with one consumer."""


def page_table(table: pd.DataFrame, corner: str) -> str:
    """A frame of text as Markdown."""
    return markdown_table(table.map(one_line), corner)


@cache
def ran(name: str) -> pd.DataFrame:
    """The rows of a recorded sweep that ran."""
    found = rows_of(recorded(name), "sweep").query("status == 'ok'").copy()
    numbers = ["speedup", "speedup_low", "speedup_high", "time_us", "tflops"]
    return found.astype(dict.fromkeys(numbers, float))


def cells(m: int) -> pd.DataFrame:
    """The published cells beside those of the seed table, in a burst at one cube."""
    return beside(ran("seed-table").query(f"m == {m} and regime == 'burst'"))


def best_cell() -> str:
    """A sentence that compares the best cell of the published table with ours."""
    found = {m: cells(m) for m in CUBES}
    best = {m: table["ours"].idxmax() for m, table in found.items()}
    same = all(cell == published()["speedup"].idxmax() for cell in best.values())
    ranks = {m: table["ours rank"].corr(table["theirs rank"]) for m, table in found.items()}
    sound = {m: table.drop(320, level="tile_m")[["ours", "theirs"]].rank().corr() for m, table in found.items()}
    told = "confirmed" if same else "not confirmed"
    ours = " and ".join(f"{m} x {depth} at {side}^3" for side, (m, depth) in best.items())
    every, without = (
        " and ".join(f"{one:.2f}" for one in each)
        for each in (ranks.values(), [one.iloc[0, 1] for one in sound.values()])
    )
    return f"{told}: ours is {ours}; ranks of all cells correlate by {every}, without the 320 row by {without}"


def joint(stagger: int) -> pd.DataFrame:
    """The joint sweep at one stagger: every tile_m, depth and number of stages that fits, tile_n = 128."""
    return ran("joint").query(f"stagger == {stagger}")


def by_stages(stagger: int) -> pd.DataFrame:
    """Speedup over the best number of stages at the same stagger: a column for each number; rings of three and more."""
    rates = joint(stagger).set_index([*RING, "stages"])["speedup"].unstack("stages")
    shares = rates.div(rates.max(axis=1), axis=0)
    return shares[shares.notna().sum(axis=1) + (stagger > 0) >= 3]


def stagger_table(m: int) -> str:
    """The published cells in the joint sweep: released a group late, then at once, and the stages that fit."""
    rows = ran("joint").query(f"problem == '{CUBES[m]}'")
    full = rows.loc[rows.groupby([*CELL, "stagger"])["stages"].idxmax()]
    table = full.pivot_table(index=[*CELL, "stages"], columns="stagger", values="speedup").reset_index("stages")
    table = table.loc[table.index.intersection(published().index)]
    late = [f"{one:.2f} to " if one == one else "" for one in table[1]]
    shown = [f"{a}{b:.2f} ({stages})" for a, b, stages in zip(late, table[0], table["stages"], strict=True)]
    return page_table(pd.Series(shown, table.index).unstack("k_depth").fillna(""), "M tile \\ K depth")


def few_stages() -> str:
    """The cost of too few stages, with a slot held back and without."""
    prompt, late = by_stages(0), by_stages(1)
    told = {
        count: f"{prompt[count].median():.3f} at the median, {prompt[count].xs(4, level='k_depth').median():.2f} at "
        f"depth 4"
        for count in (2, 3)
    }
    one = ran("joint").query("tile_m == 256 and k_depth == 8 and stages == 2 and m == 4096 and k == 4096")
    held, free = (one[one["stagger"] == stagger]["speedup"].item() for stagger in (1, 0))
    return (
        f"confirmed at stagger 0: over the best number of stages two of them are at {told[2]}, over {len(prompt)} "
        f"rings of the joint sweep; three at {told[3]}. A stagger of one holds a stage back and makes it worse: two "
        f"stages at {late[2].median():.3f} of the best (256 x 8 at 4096^3: {held:.2f}x, at stagger 0 {free:.2f}x)"
    )


def many_stages() -> str:
    """The cost of too many stages, with the time at barriers."""
    flat = joint(0)
    best = ran("joint").loc[ran("joint").groupby("problem")["speedup"].idxmax()]
    there = (best["stages"].between(3, 6) & (best["k_depth"] == 4)).sum()
    full = flat.loc[flat.groupby(RING)["stages"].idxmax()].set_index(RING)
    lost = 1 - full["speedup"] / flat.groupby(RING)["speedup"].max()
    single = lost[full["consumers"] == 1]
    shared = lost[full["consumers"] > 1]
    place = single.idxmax()
    ring = flat.set_index(RING).loc[place].set_index("stages")["tflops"]
    same = flat.assign(size=flat["stages"] * flat["k_depth"]).query("size >= 16")
    sized = same.set_index(["problem", "tile_m", "size", "k_depth"])["speedup"].unstack("k_depth")
    depths = {depth: (sized[depth] / sized[4]).median() for depth in (1, 2, 8)}
    narrow = (sized[6] / sized[2]).median()
    return (
        f"the place confirmed: {there} of {len(best)} problems of the joint sweep are fastest at depth 4 with three "
        "to six stages. That barriers are the cause is not: in rings of one size depth 8, with half the barriers of "
        f"depth 4, runs at {depths[8]:.2f} of it at the median, depth 2 at {depths[2]:.2f}, depth 1 at "
        f"{depths[1]:.2f}; depth 6, with a third of the barriers of depth 2 and rows of 64 bytes like it, at "
        f"{narrow:.2f} of that; and more stages of one depth add no barrier to a tile. With two or three consumers "
        f"the fullest ring loses over 5 % to the best number of stages in {(shared > 0.05).sum()} of {len(shared)} "
        f"rings. With one consumer it does in {(single > 0.05).sum()} of {len(single)}: {place[1]}x128, depth "
        f"{place[2]}, {cube(place[0])} reaches {ring.max():.0f} TFLOP/s with {ring.idxmax()} stages and "
        f"{ring[ring.index.max()]:.0f} with {ring.index.max()}. {starved()}"
    )


def starved() -> str:
    """Waits of 64 x 128 at depth 4 with nine stages at 8192^3, by the meter."""
    rows = probed().reset_index()
    metered = rows.query("peek == 'True' and tile == '64x128' and k_depth == 4 and m == 8192").iloc[0]
    return (
        f"Metered with {metered['stages']} at stagger {metered['stagger']}, the consumer waits "
        f"{metered['consumer_wait_pct']:.0f} % of its clocks for a stage that is still loading: it is the loads that "
        "are slow. Why more of them in flight are slower is unexplained, for no fewer stages were metered and no "
        "traffic was counted"
    )


def shares() -> str:
    """Percentage of a problem's variance that each parameter of the joint space explains (fANOVA)."""
    study = recorded("joint")
    found = importances(checked(study.provenance["spec"], "joint"), study.stage("sweep"))
    table = pd.DataFrame({place: one["parameters"] for place, one in found.items()}).T
    return page_table((100 * table).map(lambda one: f"{one:.1f} %"), "share of the variance")


def pairings() -> dict[str, pd.Series]:
    """Speed at stagger 1 over stagger 0 with one consumer, by problem and tile, for each way to pair them."""
    ones = ran("one-consumer").copy()
    ones["ahead"] = ones["stages"] - 1 - ones["stagger"]
    ones["lasts"] = ones["ahead"] * ones["tile_m"] * ones["tile_n"] * ones["k_depth"] // 128
    same = pairs_by(ones, "stagger", 0, 1).set_index(["problem", "tile"])
    keys = ["problem", "tile", "k_depth", "ahead"]
    ahead = {stagger: part.set_index(keys)["speedup"] for stagger, part in ones.groupby("stagger")}
    tops = ones.groupby(["problem", "tile", "stagger"])["speedup"].max().unstack("stagger")
    return {
        "same stages": same["ratio"],
        f"same stages, {LONG_ENOUGH} clocks ahead or more": same[same["lasts"] >= LONG_ENOUGH]["ratio"],
        "same look-ahead": (ahead[1] / ahead[0]).dropna().droplevel(["k_depth", "ahead"]),
        "best of each tile": tops[1] / tops[0],
    }


def problems_of(name: str) -> list[str]:
    """The problems of a study in its order."""
    return list(ran(name)["problem"].unique())


def pairings_table() -> str:
    """The pairings of stagger 1 and 0 with one consumer, problem by problem."""
    table = {
        problem: {
            name: f"{spread(part.loc[problem])}, {len(part.loc[problem])} pairs" for name, part in pairings().items()
        }
        for problem in problems_of("one-consumer")
    }
    return page_table(pd.DataFrame(table), "stagger 1 over 0, one consumer")


def late_release() -> str:
    """When a late release pays."""
    paired, every = pairings(), problems_of("one-consumer")
    ones = ran("one-consumer").query("tile == '128x128' and k_depth == 4")
    square = ones.set_index(["problem", "stages", "stagger"])["speedup"].unstack("stagger")
    gain = (square[1] / square[0]).dropna()
    six = ", ".join(f"{percent(gain[problem, 6])} at {cube(problem)}" for problem in every)
    fewer = ", ".join(percent(gain[CUBES[8192], stages]) for stages in (2, 3, 4))
    both = pairs_by(ran("joint"), "stagger", 0, 1).query("consumers > 1 and stages >= 4")["ratio"]

    def medians(name: str) -> str:
        return reach(pd.Series([paired[name].loc[problem].median() for problem in every]))

    return (
        f"confirmed for one consumer in a ring that is deep enough: 128x128, depth 4, six stages {six}. It costs a "
        f"load ahead, so few stages lose: 2, 3, 4 of them at 8192^3 {fewer}; all rings at the same number of stages, "
        f"the medians of five problems, {medians('same stages')}; with the load given back, a stage more, "
        f"{medians('same look-ahead')}. Nothing for two or three consumers: four stages and more of the joint sweep "
        f"{spread(both)} over {len(both)} pairs"
    )


@cache
def probed() -> pd.DataFrame:
    """The kernels of the probe study with their meters: an index of :data:`KERNEL` and peek."""
    study = recorded("peek")
    rows = with_counters(rows_of(study, "sweep").query("status == 'ok'"), study.stage("counters"))
    return rows.assign(peek=rows["peek"].astype(str)).set_index([*KERNEL, "peek"])


SIDES = {"producer": "producer", "consumer": "consumer", "both": "True"}
"""Roles that probe, and the parameter's value for each."""


def gains() -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Gains over no probe by side; whether each is clear, beyond the noise with intervals apart; speedups unprobed."""
    rows = probed()
    names = ("speedup", "speedup_low", "speedup_high")
    mid, low, high = (rows[name].astype(float).unstack("peek").dropna() for name in names)
    none = mid["False"]
    found = pd.DataFrame({name: mid[side] / none for name, side in SIDES.items()})
    noises = {key.split(" ")[0]: noise for key, noise in recorded("peek").provenance["noise"].items()}
    noise = pd.Series([noises[problem] for problem in found.index.get_level_values("problem")], found.index)
    clear = {
        name: ((found[name] - 1).abs() > noise) & ((low[side] > high["False"]) | (high[side] < low["False"]))
        for name, side in SIDES.items()
    }
    return found, pd.DataFrame(clear), none


NEAR = 0.9
"""Speedup over cuBLAS from which a kernel counts as near it."""


def peek_table() -> str:
    """Gain of probing, by role."""
    found, clear, none = gains()
    near, table = none >= NEAR, {}
    for name in SIDES:
        one, sure, fast = found[name], found[name][clear[name]], found[name][near]
        table[name] = {
            f"mean of all {len(one)}": percent(one.mean(), 2),
            "least to greatest": reach(one),
            "clearly faster, slower": f"{(sure > 1).sum()}, {(sure < 1).sum()}",
            f"mean of the {len(fast)} within 10 % of cuBLAS": percent(fast.mean(), 2),
            "least to greatest of these": reach(fast),
        }
    return page_table(pd.DataFrame(table).T, "probes")


def token() -> str:
    """Comparison of the probes' success rate with their gain."""
    found, clear, none = gains()
    hits = probed().groupby(level=KERNEL)[["producer_hit_pct", "consumer_hit_pct"]].max().reindex(found.index)
    told = []
    for side in ("producer", "consumer"):
        hit, sure = hits[f"{side}_hit_pct"].astype(float), clear[side]
        right = ((hit > 50) == (found[side] > 1))[sure]
        told.append(
            f"{hit.min():.1f} to {hit.max():.1f} % of the {side}'s probes succeed (median {hit.median():.1f} %), and "
            f"of its {sure.sum()} clear cases the rule is right in {right.sum()}"
        )
    near = found[none >= NEAR]
    close_hits = {
        side: f"{hits.loc[near.index, f'{side}_hit_pct'].astype(float).median():.1f} %"
        for side in ("producer", "consumer")
    }
    every, close = (
        ", ".join(f"{name} {percent(mean, 2)}" for name, mean in each.mean().items()) for each in (found, near)
    )
    return (
        f"no rule for these kernels, whose probe is a test_wait, which returns at once, where C's token is a try_wait, "
        f"which may be suspended: {'; '.join(told)}. C expects probes to succeed often on both sides of a well-tuned "
        f"ring: of the kernels within 10 % of cuBLAS the consumer's do ({close_hits['consumer']} at the median), the "
        f"producer's hardly ever ({close_hits['producer']}). All is small: mean gain over no probe {every} over "
        f"{len(found)} kernels, {close} over the {len(near)} within 10 % of cuBLAS"
    )


def waits_table() -> str:
    """A consumer's waits in full rings of 256 x 128 at 8192^3, by depth and stagger."""
    rows = probed().xs("True", level="peek").query(f"problem == '{CUBES[8192]}' and tile == '256x128'").reset_index()
    rows = rows.sort_values(["k_depth", "stagger"])
    table = pd.DataFrame(
        {
            "K depth": rows["k_depth"],
            "stages": rows["stages"],
            "stagger": rows["stagger"],
            "waits for a stage, a tile": 8192 // (16 * rows["k_depth"]),
            "a consumer waits": [f"{one:.1f} %" for one in rows["consumer_wait_pct"].astype(float)],
            "over cuBLAS": [f"{one:.3f}x" for one in rows["speedup"].astype(float)],
        }
    )
    return page_table(table.astype(str).set_index("K depth"), "K depth")


def row_320() -> str:
    """The 320 row with registers left where they are, and moved."""
    rows = ran("naive-320").query("tile == '320x128'")
    rates = rows.set_index(["consumers", rows["spills"].astype(bool), "m", "k_depth"])["speedup"].sort_index()
    spilled, alone, moved = rates[2, True], rates[1, True], rates[2, False]
    ratio = spilled / spilled.index.get_level_values("k_depth").map(published().loc[320, "speedup"])
    return (
        "reproduced by a spill, which may explain it: two consumers to which no registers are moved run at "
        f"{between(spilled[4096])} at 4096^3 and {between(spilled[8192])} at 8192^3, depth by depth {ratio.min():.2f} "
        f"to {ratio.max():.2f} of C's figures. C names no cause of this row, but registers as the limit of large "
        f"tiles. One consumer {between(alone)}; the same two with registers moved {between(moved[4096])} and "
        f"{between(moved[8192])}"
    )


def capacity() -> str:
    """The cell that C leaves out, by C's inequality and by the rules of this kernel."""
    config = GemmConfig(tile_m=320, tile_n=128, k_depth=16, stages=1, stagger=0)
    stage = (config.tile_m + config.tile_n) * 16 * config.k_depth * 2
    assert not is_legal(config)
    return (
        f"it does here too, but not by the tiles alone, which C's inequality counts: they take {stage:,} of "
        f"{hopper.SMEM_BYTES:,} B, and the rest is too little for the output's staging"
    )


def quarter() -> str:
    """Cost of four consumers over two, and gain of two over one."""
    split = rows_of(recorded("consumers"), "sweep")
    follow = ("epi_n", "epi_buffers")
    quarters, halves = (pairs_by(split, "consumers", few, many, follow)["ratio"] for few, many in ((2, 4), (1, 2)))
    return (
        f"it can; four beside two {spread(quarters)} over {len(quarters)} pairs of 256x128, two beside one "
        f"{spread(halves)} over {len(halves)} of 128x128"
    )


def spill_table() -> str:
    """Compiled resources of 320 x 128 and of 256 x 128 with one consumer, at depth 4, and their speed at 8192^3."""
    rows = ran("naive-320").query("k_depth == 4 and m == 8192").sort_values(["tile", "consumers", "spills"])
    table = pd.DataFrame(
        {
            "tile": rows["tile"],
            "consumers": rows["consumers"],
            "registers moved": ["no" if flag else "yes" for flag in rows["spills"].astype(bool)],
            "registers at launch": rows["registers"],
            "instructions": rows["instructions"],
            "spill": rows["reason"].replace("", "none"),
            "over cuBLAS": [f"{one:.2f}x" for one in rows["speedup"]],
        }
    )
    return page_table(table.astype(str).set_index("tile"), "tile")


def joint_best_table() -> str:
    """The best kernel of each problem of the joint sweep."""
    rows = ran("joint")
    best = rows.loc[rows.groupby("problem", sort=False)["speedup"].idxmax()]
    table = best.set_index("problem")[["tile_m", "k_depth", "stages", "stagger"]].astype(str)
    return page_table(table.assign(speedup=[f"{one:.3f}x" for one in best["speedup"]]), "problem")


def by_stages_table() -> str:
    """Share of the depth's best speed that each number of stages reaches, stagger 0."""
    medians = by_stages(0).groupby(level="k_depth").median()
    table = medians[[1, 2, 3, 4, 5, 6]].map(lambda one: f"{one:.2f}" if one == one else "")
    return page_table(table.rename(columns=str), "K depth \\ stages")


def too_many_table() -> str:
    """The rings that lose most to a smaller number of stages: the rate of the best number and of the fullest ring."""
    rates = joint(0).set_index([*RING, "stages"])["tflops"].unstack("stages")
    found = pd.DataFrame(
        {"best": rates.max(axis=1), "stages": rates.idxmax(axis=1), "fullest": rates.ffill(axis=1).iloc[:, -1]}
    )
    found["fits"] = rates.apply(pd.Series.last_valid_index, axis=1)
    found["lost"] = 1 - found["fullest"] / found["best"]
    lines = [
        (
            f"{tile_m}x128, depth {depth}, {cube(problem)}",
            f"{one.best:.0f} with {one.stages}",
            f"{one.fullest:.0f} with {one.fits}",
        )
        for (problem, tile_m, depth), one in found.nlargest(5, "lost").iterrows()
    ]
    return page_table(
        pd.DataFrame(lines, columns=["ring", "TFLOP/s, best", "TFLOP/s, fullest"]).set_index("ring"), "ring"
    )


def stagger_steady_table() -> str:
    """The best cells of 8192^3 at stagger 0 at the power cap."""
    rows = ran("seed-table-stagger-0-steady").query("m == 8192").nlargest(3, "speedup")
    lines = [
        (
            f"{row['tile_m']} x {row['k_depth']}",
            str(row["stages"]),
            f"{row['speedup']:.3f}x [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}]",
            f"{row['pj_per_flop']:.3f} ({row['baseline_pj_per_flop']:.3f})",
        )
        for row in rows.to_dict("records")
    ]
    columns = ["M tile x K depth", "stages", "over cuBLAS", "pJ/FLOP (cuBLAS)"]
    return page_table(pd.DataFrame(lines, columns=columns).set_index(columns[0]), columns[0])
