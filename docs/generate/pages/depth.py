"""Evidence on the post "Pipelining" (source C): depth of the ring, stagger, probes, the 320 row."""

from __future__ import annotations

from functools import cache

import pandas as pd

from docs.generate.pages.counted import with_counters
from docs.generate.pages.means import over_problems
from docs.generate.pages.sources import CELL, beside, pairs_by, published, recorded
from docs.generate.pages.wording import between, cube, percent, reach, spread
from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.tune.parameters import all_values, config_of
from hopper_gemm.tune.tables.pivot import markdown_table, one_line, rows_of

CUBES = {4096: "4096x4096x4096", 8192: "8192x8192x8192"}
RING = ["problem", "tile_m", "k_depth"]
KERNEL = ["problem", "tile", "k_depth", "stages", "stagger", "schedule"]
LONG_ENOUGH = 900
"""Clocks that the loads left ahead last in the rings that count as deep."""

ONE_CONSUMER_ROWS = 64
"""Rows of the tile that the joint sweep gives to one consumer; taller tiles have two or three."""


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
    same = all(table["ours"].idxmax() == published()["speedup"].idxmax() for table in found.values())
    without = [table.drop(320, level="tile_m") for table in found.values()]
    every, rest = (
        " and ".join(f"{one.rank().corr().loc['ours', 'theirs']:.2f}" for one in each)
        for each in (found.values(), without)
    )
    return (
        f"{'confirmed' if same else 'not confirmed'} at 4096^3 and at 8192^3: the ranks of all cells correlate by "
        f"{every}, without the 320 row by {rest}"
    )


def joint(stagger: int) -> pd.DataFrame:
    """The joint sweep at one stagger: every tile_m, depth and number of stages that fits, tile_n = 128."""
    return ran("joint").query(f"stagger == {stagger}")


def by_stages(stagger: int) -> pd.DataFrame:
    """Speedup over the best number of stages at the same stagger: a column for each number; rings of three and more."""
    rates = joint(stagger).set_index([*RING, "stages"])["speedup"].unstack("stages")
    shares = rates.div(rates.max(axis=1), axis=0)
    return shares[shares.notna().sum(axis=1) + (stagger > 0) >= 3]


def stagger_table() -> str:
    """The published cells of 8192^3 in the joint sweep: released a group late, then at once, and the stages that
    fit."""
    rows = ran("joint").query(f"problem == '{CUBES[8192]}'")
    full = rows.loc[rows.groupby([*CELL, "stagger"])["stages"].idxmax()]
    table = full.pivot_table(index=[*CELL, "stages"], columns="stagger", values="speedup").reset_index("stages")
    table = table.loc[table.index.intersection(published().index)]
    late = [f"{one:.2f} / " if one == one else "" for one in table[1]]
    shown = [f"{a}{b:.2f} ({stages})" for a, b, stages in zip(late, table[0], table["stages"], strict=True)]
    return page_table(pd.Series(shown, table.index).unstack("k_depth").fillna(""), "M tile \\ K depth")


def few_stages() -> str:
    """The cost of too few stages, with a slot held back and without."""
    prompt, late = by_stages(0), by_stages(1)
    return (
        f"confirmed: two stages reach {prompt[2].median():.2f} of the speed at the best number of stages, three "
        f"{prompt[3].median():.2f} (stagger 0, the median of {len(prompt)} rings). A stagger of one holds a stage "
        f"back, so that two stages reach {late[2].median():.2f}"
    )


def at_equal_look_ahead() -> pd.DataFrame:
    """Speed over that of depth 4 with as much loaded ahead, eight k-blocks or more: by problem, tile_m and ``ahead``, a
    column for each depth.

    A ring of one size will not do: of deeper stages it loads less ahead, since one stage is being multiplied.
    """
    flat = joint(0)
    ahead = flat.assign(ahead=(flat["stages"] - 1) * flat["k_depth"]).query("ahead >= 8")
    rates = ahead.set_index(["problem", "tile_m", "ahead", "k_depth"])["speedup"].unstack("k_depth")
    return rates.div(rates[4], axis=0)


def lost_by_the_fullest() -> pd.Series:
    """Share of the speed at the best number of stages that the fullest ring of a depth loses, stagger 0; rings of two
    and more, since one that fits a single stage has nothing to lose."""
    rates = joint(0).set_index([*RING, "stages"])["speedup"].unstack("stages")
    rates = rates[rates.notna().sum(axis=1) > 1]
    return 1 - rates.ffill(axis=1).iloc[:, -1] / rates.max(axis=1)


def many_stages() -> str:
    """The cost of too many stages and of many barriers."""
    flat = joint(0)
    best = ran("joint").loc[ran("joint").groupby("problem")["speedup"].idxmax()]
    there = best.query("k_depth == 4")["stages"]
    lost = lost_by_the_fullest()
    few = lost.index.get_level_values("tile_m") == ONE_CONSUMER_ROWS
    single, shared = lost[few], lost[~few]
    place = single.idxmax()
    ring = flat.set_index(RING).loc[place].set_index("stages")["tflops"]
    equal = at_equal_look_ahead()
    beside_four, halved = equal.median(), equal[8].dropna()
    one = halved.index.get_level_values("tile_m") == ONE_CONSUMER_ROWS
    return (
        f"the place is confirmed: {len(there)} of {len(best)} problems are fastest at depth 4, with {there.min()} to "
        f"{there.max()} stages. The cause is not: more stages of one depth add no barrier to a tile, and with as much "
        f"loaded ahead depth 8, with half the barriers of depth 4, runs at {beside_four[8]:.2f} of its speed, the "
        f"median of {len(halved)} pairs ({halved[one].median():.2f} with one consumer, {halved[~one].median():.2f} "
        f"with two or three). Depths 2 and 1, with twice and four times the barriers, run at {beside_four[2]:.2f} and "
        f"{beside_four[1]:.2f}; but rows of theirs are loaded in parts shorter than 128 bytes, as are those of depth "
        f"3, which has fewer barriers than depth 2 and runs at {beside_four[3]:.2f}. "
        "Where more than one number of stages fits, the fullest ring loses over 5 % to the best number in "
        f"{(shared > 0.05).sum()} of {len(shared)} rings with two or three consumers and in "
        f"{(single > 0.05).sum()} of {len(single)} with one: {place[1]}x128, depth "
        f"{place[2]}, {cube(place[0])} falls from {ring.max():.0f} TFLOP/s with {ring.idxmax()} stages to "
        f"{ring[ring.index.max()]:.0f} with {ring.index.max()}, which is not explained"
    )


def at_equal_look_ahead_late(rows: pd.DataFrame) -> pd.Series:
    """Speed at stagger 1 over that at stagger 0 with a stage less, on one board: by problem, tile, depth and stages
    loaded ahead of the one that is multiplied, one at least."""
    keys = ["problem", "tile", "k_depth", "ahead", "board", "stagger"]
    ahead = rows.assign(ahead=rows["stages"] - 1 - rows["stagger"]).query("ahead > 0")
    rates = ahead.set_index(keys)["speedup"].unstack("stagger")
    return (rates[1] / rates[0]).dropna().droplevel("board")


def several_at_equal_look_ahead() -> pd.Series:
    """:func:`at_equal_look_ahead_late` with two or three consumers, of the depths and stages ahead that were paired
    with one."""
    one, several = (
        at_equal_look_ahead_late(rows) for rows in (ran("one-consumer"), ran("joint").query("consumers > 1"))
    )
    rings = [found.index.droplevel(["problem", "tile"]) for found in (one, several)]
    return several[rings[1].isin(rings[0])]


def pairings() -> dict[str, pd.Series]:
    """Speed at stagger 1 over stagger 0 with one consumer on one board, by problem and tile, for each way to pair
    them."""
    ones = ran("one-consumer").copy()
    ones["ahead"] = ones["stages"] - 1 - ones["stagger"]
    ones["lasts"] = ones["ahead"] * ones["tile_m"] * ones["tile_n"] * ones["k_depth"] // 128
    same = pairs_by(ones, "stagger", 0, 1).query("board == board_first").set_index(["problem", "tile"])
    tops = ones.groupby(["problem", "tile", "stagger"])["speedup"].max().unstack("stagger")
    return {
        "same stages": same["ratio"],
        f"same stages, {LONG_ENOUGH} clocks ahead or more": same[same["lasts"] >= LONG_ENOUGH]["ratio"],
        "same look-ahead": at_equal_look_ahead_late(ones).droplevel(["k_depth", "ahead"]),
        "best of each tile": tops[1] / tops[0],
    }


def problems_of(name: str) -> list[str]:
    """The problems of a study in its order."""
    return list(ran(name)["problem"].unique())


def pairings_table() -> str:
    """Medians of the pairings of stagger 1 and 0 with one consumer, problem by problem."""
    problems = problems_of("one-consumer")
    table = {
        name: {"pairs": " to ".join(str(count) for count in sorted(set(part.groupby(level="problem").size())))}
        | {cube(problem): percent(part.loc[problem].median()) for problem in problems}
        for name, part in pairings().items()
    }
    return page_table(pd.DataFrame(table).T, "what a pair has in common")


def late_release() -> str:
    """The rings in which a late release pays, and why a gain with a stage more says nothing of the queue."""
    paired = pairings()
    ones = ran("one-consumer").query("tile == '128x128' and k_depth == 4 and stages == 6")
    square = ones.set_index(["problem", "stagger"])["speedup"].unstack("stagger")
    both = pairs_by(ran("joint"), "stagger", 0, 1).query("consumers > 1 and stages >= 4")["ratio"]
    several = several_at_equal_look_ahead()

    def medians(found: pd.Series) -> pd.Series:
        return found.groupby(level="problem", sort=False).median()

    deep = medians(paired[f"same stages, {LONG_ENOUGH} clocks ahead or more"])
    told = ", ".join(f"{percent(gain)} at {cube(problem)}" for problem, gain in deep.items())
    return (
        "confirmed for one consumer: by the [time stamps](#who-overlaps-what) a group is always under way once the "
        "next is queued, and rings that can spare a load ahead gain in part. At the same number of stages 128x128 with "
        f"depth 4 and six stages gains {reach(square[1] / square[0])} at {len(square)} problems; the medians of all "
        f"rings in which the loads left ahead last {LONG_ENOUGH} clocks or more are {told}; those of all rings "
        f"{reach(medians(paired['same stages']))}. Two or three consumers, which fill each other's gaps, gain nothing: "
        f"{percent(both.median())} at the median of {len(both)} pairs of four stages and more. With a stage more, so "
        f"that as much is loaded ahead, the medians are {reach(medians(paired['same look-ahead']))} with one consumer "
        f"and {reach(medians(several))} with two or three in rings of the same depths and stages ahead, so that is no "
        "evidence for the queue: in a ring that starves a late release does not wait for the math "
        "([notebook 4](../notebooks/4_stagger.ipynb))"
    )


@cache
def probed() -> pd.DataFrame:
    """The kernels of the probe study with their meters: an index of :data:`KERNEL` and peek."""
    study = recorded("peek")
    rows = with_counters(rows_of(study, "sweep").query("status == 'ok'"), study.stage("counters"))
    return rows.assign(peek=rows["peek"].astype(str)).set_index([*KERNEL, "peek"])


SIDES = {"producer": "producer", "consumer": "consumer", "both": "True"}
"""Roles that probe, and the parameter's value for each."""

NEAR = 0.9
"""Speedup over cuBLAS from which a kernel counts as near it."""

LONG_WAIT = 10
"""Percent of its time above which a consumer's waits count as long."""


def token() -> str:
    """Gain of the probes, and how often they succeed."""
    rows = probed()
    speedups = rows["speedup"].astype(float).unstack("peek").dropna()
    speedups = speedups[rows["board"].unstack("peek").reindex(speedups.index).nunique(axis=1) == 1]
    gains = pd.DataFrame({name: speedups[side] / speedups["False"] for name, side in SIDES.items()})
    hits = rows.groupby(level=KERNEL)[["producer_hit_pct", "consumer_hit_pct"]].max().reindex(gains.index).astype(float)
    near = speedups["False"] >= NEAR
    every, close = (", ".join(f"{name} {_mean_gain(each[name])}" for name in each) for each in (gains, gains[near]))
    assert min(gains["producer"].mean(), gains[near]["producer"].mean()) > 1
    assert hits.loc[near, "producer_hit_pct"].max() < 5
    succeed = " and ".join(
        f"{hits.loc[near, f'{side}_hit_pct'].median():.1f} % of the {side}'s" for side in list(SIDES)[:2]
    )
    return (
        "no rule for these kernels, whose probe is a test_wait, which returns at once; C's token is a try_wait, which "
        f"may suspend. The mean gain over no probe is small: {every} over {len(gains)} kernels, each timed on "
        f"one board, {close} over the {near.sum()} of them within 10 % of cuBLAS, where {succeed} probes succeed "
        "(medians): in a well-tuned ring C expects it of both. Where probes almost always fail C fears a small loss; "
        "the producer's do, and the mean shows none"
    )


def _mean_gain(ratios: pd.Series) -> str:
    return "{} [{}, {}]".format(*(percent(ratio, 2) for ratio in over_problems(ratios)))


def speeds() -> str:
    """Shares of its time that a consumer waits for a full slot, near cuBLAS and elsewhere, and the producer's waits."""
    rows = probed()
    waits = rows.xs("True", level="peek")[["producer_wait_pct", "consumer_wait_pct"]].astype(float)
    near = (rows["speedup"].xs("False", level="peek").astype(float) >= NEAR).reindex(waits.index)
    close, others = waits[near]["consumer_wait_pct"], waits[~near]["consumer_wait_pct"]
    quick, slow = close[close <= LONG_WAIT], others[others > LONG_WAIT]
    idle = [waits[part]["producer_wait_pct"].median() for part in (near, ~near)]
    return (
        f"confirmed by a consumer's waits for a full slot. In {len(quick)} of the {len(close)} kernels within 10 % of "
        f"cuBLAS it waits {quick.min():.0f} to {quick.max():.0f} % of its time: there loads are the faster. In "
        f"{len(slow)} of the {len(others)} others it waits {slow.min():.0f} to {slow.max():.0f} %: there loads are the "
        "slower. The waits of the producer, which only issues loads, do not tell: for an empty slot it waits "
        f"{idle[0]:.0f} % of its time near cuBLAS and {idle[1]:.0f} % elsewhere (medians)"
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
    rows = ran("naive-320").query("tile == '320x128' and consumers == 2")
    rates = rows.set_index([rows["spills"].astype(bool), "k_depth"])["speedup"].sort_index()
    return (
        "reproduced by a spill, which may be its cause; C names none. Two consumers to which no registers are moved "
        f"run at {between(rates[True])}, with registers moved at {between(rates[False])}"
    )


def capacity() -> str:
    """The cell that C leaves out, by C's inequality and by the rules of this kernel."""
    config = GemmConfig(tile_m=320, tile_n=128, k_depth=16, stages=1, stagger=0)
    stage = (config.tile_m + config.tile_n) * 16 * config.k_depth * 2
    assert not is_legal(config)
    assert is_legal(config_of(all_values(config) | {"stores": "direct"}))
    return (
        "here too where TMA stores the output, but not by the tiles alone, which C's inequality counts: they take "
        f"{stage:,} of {hopper.SMEM_BYTES:,} B, and the rest is too little for the output's staging. Stored straight "
        "from registers the output needs none, and the stage fits; that cell was not measured, since a single stage "
        "leaves nothing ahead, as in the cells beside it"
    )


def quarter() -> str:
    """Cost of four consumers over two, and gain of two over one."""
    split = rows_of(recorded("consumers"), "sweep")
    follow = ("epi_n", "epi_buffers")
    quarters, halves = (pairs_by(split, "consumers", few, many, follow) for few, many in ((2, 4), (1, 2)))
    told = {
        name: f"{spread(part['ratio'])} over {len(part)} pairs of {' and '.join(part['tile'].unique())}"
        for name, part in quarters.groupby("split")
    }
    beside_one = " and ".join(
        f"{reach(part['ratio'])} at stagger {stagger}" for stagger, part in halves.groupby("stagger")
    )
    return (
        f"it can: four consumers beside two {told['m']}, shared along m as in C, {told['n']}, shared along n; two "
        f"beside one, {' and '.join(halves['tile'].unique())} along m, {beside_one}, since a second consumer and a "
        "late release fill the same gap"
    )


def one_consumer() -> str:
    """What 256 rows do to the registers of one consumer."""
    rows = ran("naive-320").query("tile == '256x128' and consumers == 1")
    stack = rows["reason"].str.split(" B of stack").str[0].astype(int)
    sums = 256 * 128 // hopper.WARPGROUP_THREADS
    return (
        f"confirmed: 256x128 needs {sums} registers of each thread for the sums alone, of "
        f"{hopper.REGISTERS_PER_THREAD} that there are; it spills {stack.min()} to {stack.max()} B of stack and runs "
        f"at {rows['speedup'].median():.2f}x at the median"
    )


def spill_table() -> str:
    """What 320 x 128, and 256 x 128 with one consumer, spill at depth 4, and their speed at 8192^3."""
    rows = ran("naive-320").query("k_depth == 4 and m == 8192").sort_values(["tile", "consumers", "spills"])
    table = pd.DataFrame(
        {
            "tile": rows["tile"],
            "consumers": rows["consumers"],
            "registers moved": ["no" if flag else "yes" for flag in rows["spills"].astype(bool)],
            "spill": rows["reason"].str.split(",").str[0].replace("", "none"),
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
