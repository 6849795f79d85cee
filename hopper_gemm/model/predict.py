"""How long a config should take on a problem: an analytic model, good enough to say what to try first.

An SM works through its waves of tiles, and through a tile stage by stage. The pace of a stage is set by the slowest of
three, rounded off where two come close:

* **math**: the tensor cores' clocks, or those of shared memory where a narrow wgmma reads its operands back faster
  than it multiplies them;
* **load**: what the SM must take from the L2 (multicast counted once, and less of what others of its GPC ask for at
  the same time), narrow swizzles at a lower rate, and its part of what all SMs under way read from DRAM, which raster,
  swizzle and cluster decide;
* **ring**: a slot comes round again when it was loaded, which takes a latency beside the load, and multiplied; with
  ``stages - 1 - stagger`` loads under way that time is shared among them and the one that is multiplied.

Beside the stages stand the epilogue, unless the other consumer multiplies meanwhile, what it takes to add up the parts
of a divided k, and what a launch costs; and no launch takes less than to read and write everything once. Where a launch
is not persistent, as many CTAs as fit share an SM. The clock follows the load of the tensor cores and of the L2: beyond
a certain load the power cap lowers it, in a burst as well.

Neighbours (docs/neighbours.md): sixteen single CTAs that follow one another in the walk share a GPC, and so does every
eighth cluster. What they ask for twice is counted once, as far as ``shared`` says: of sixteen tiles in a square four
panels of A and four of B, in a row one of A and sixteen of B. Rows off the L2's lines cost the same, shared or not.

The constants were fitted by a random descent to all recorded bursts of ``results`` (9,250 isolated, 16,770
chained; without copied operands, rotate_k, interleave_k, spills and loads by threads): to the logarithm of the time,
to what the first choice loses, and to how many configs of tune's space that nobody measured are expected ahead of the
best known. Isolated, recent and good ones count most. Errors of the logarithm, %, root mean square:

| bursts | constants before | now |
| --- | --- | --- |
| isolated, within 15 % of the best of their problem | 13.2 | 5.6 |
| isolated, all | 20.4 | 17.6 |
| chained, within 15 % | 6.2 | 4.4 |
| chained, all | 12.5 | 11.6 |

Of all that is recorded since, searches with this model included, they are 5.7, 17.2, 4.7 and 11.9 %.
In the ten isolated searches of ``suite-isolated-again``, made after the fit on other boards: 5.8 % near the best.

What the model's first choice among the measured isolated configs of a problem loses, and where the best known config
stands in tune's space, counted in ways to compile:

| problems | | before | now |
| --- | --- | --- | --- |
| suite, 24 | first choice, median and worst | 2.4, 16.4 % | 2.8, 12.9 % |
| suite, 21 whose best is in the space | place, median and mean | 12, 63 | 12, 39 |
| short, 24 | first choice, median and worst | 5.3, 63.7 % | 3.2, 67.0 % |
| short, 24 | place, median and mean | 16, 72 | 6, 29 |

Of the best known configs of 46 problems, drawn ones included, tune keeps all; it kept 45. Where they were not fitted:
constants of all but a third of the problems are off by 6.7 % near the isolated best of that third (before: 12.9 %), and
their first choice loses 4.5 % on average (5.8 %). The constants of long before (:data:`BEFORE`), from 1,200 chained
bursts of square problems nearly all, were off by 5.2 % near the best of the suite's first searches, none of which they
had seen.

What it does not know: launches of 3 us differ by more than it says (256^3); a chunk whose rows are an odd number of
16-byte pieces leaves more slowly where there is one round; one consumer alone is slower than it thinks where k is deep.
With the menu's configs it picks where nobody has tuned: of five picks in the suite that were measured four are at most
7.8 % behind, and 64x128 at 1024^3 9 to 33 %.

An output of fp32 counts in what memory must take at least; its epilogue is taken for that of a 16-bit one, register for
register. At 16384^3, where a launch takes 11 ms, CTAs that do not meet (``pace``) drift apart and read panels two
and a half times: ``drift`` is the 7 % that it costs, and all that the model knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, prod

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import clusters_at_once, l2_bytes_per_stage, output_sides, tile_order, tile_sides

SMEM_BYTES_PER_CLOCK = 128
L2_PORT_BYTES = 64
"""Bytes a clock of an SM's port to the L2, as commonly given; not measured here."""

DRIFTING = 5e-3
"""Seconds; longest of those where nothing of it was seen are launches of 2.3 ms."""

NEIGHBOURS, TURNS = 16, 8
"""SMs of a GPC, and how many clusters further on the next one of the same GPC is; single CTAs fill one GPC after the
other (docs/neighbours.md)."""

REGISTERS_BESIDE = 70
"""Registers of a thread beside its accumulators, where none are moved between the roles."""


@dataclass(frozen=True)
class ModelConstants:
    """The constants of the model, clocks unless the name says otherwise.

    Args:
        l2_bytes: what an SM takes from the L2 each clock while all others do.
        off_lines, off_sectors: more of a load whose rows start at odd multiples of 32 bytes, so that three of four
            touch another line of the L2, and of 16, so that nearly all touch a sector more as well.
        shared: share of a load that is left where all CTAs of a GPC ask for the same, each alone in its cluster.
            Clusters save half as much.
        beyond: what a byte costs that lies outside the matrices, against one inside.
        half, quarter: rate of loads whose rows span 64 and 32 bytes, against 128.
        dram_share: clocks that a clock's worth of DRAM traffic adds to a load: reads come in clumps.
        dram_rate: of the memory's bandwidth, what a kernel can reach that reads each operand once.
        straight: more traffic where a group of tiles starts afresh instead of turning back.
        latency: from a free slot to its load's first byte, beyond what the load itself takes.
        stage: barriers and addresses of a stage, on the loading side.
        write_share: part of the ring's filling that gets in the way of wgmma's reads.
        drain: tensor cores without work between two stages of a lone consumer that keeps no wgmma group in flight.
        epilogue: for each accumulator register: convert, stage, store.
        tail: of each byte of the last tile, until it has left the SM.
        direct: the epilogue's clocks with stores from registers, against those through shared memory.
        thread_loads: rate of copies by threads, against TMA.
        sharpness: exponent of the norm that rounds off the slowest of three.
        launch: of a launch, first and last byte included.
        cluster: more of a launch as clusters of several CTAs.
        counted: more of a launch whose CTAs ask a counter for their tiles.
        balance: what they save in the limit of many rounds, as a share of the launch.
        alone, paired: share of that which a kernel launched early hides behind the one ahead of it: one of single
            CTAs, and one of clusters, which must find room for all of a cluster at once.
        meet: of the barriers of a cluster that adds up its parts.
        apart: of the counters by which parts meet in a workspace.
        piece: of each further piece of a tile that stream-K cuts where there is no whole wave: one CTA adds them all.
        chunk: of a chunk on its way out: a barrier, a fence, a store to start.
        lone: more where there is but one buffer, and the chunk before must have left.
        turn: of a tile of pingpong: one consumer tells the other.
        fast_hz: SM clock of a kernel that the power cap leaves alone.
        drift: more of a launch beyond :data:`DRIFTING` whose CTAs do not keep together.
        knee: share of the tensor cores' time in use from which on the cap lowers the clock.
        heat: what a full port to the L2 adds to that share: moving bytes takes power as well.
        slope_hz: by how much, for each further share of it.
    """

    l2_bytes: float = 72.4
    off_lines: float = 0.32
    off_sectors: float = 1.22
    shared: float = 0.469
    beyond: float = 2.96
    half: float = 0.577
    quarter: float = 0.26
    dram_share: float = 0.278
    dram_rate: float = 0.932
    straight: float = 0.134
    latency: float = 453.0
    stage: float = 61.0
    write_share: float = 0.199
    drain: float = 96.2
    epilogue: float = 10.3
    tail: float = 0.0408
    direct: float = 9.05
    thread_loads: float = 0.583
    sharpness: float = 6.36
    launch: float = 4000.0
    cluster: float = 742.0
    counted: float = 503.0
    balance: float = 0.0125
    alone: float = 0.514
    paired: float = 0.256
    meet: float = 2190.0
    apart: float = 3210.0
    piece: float = 6290.0
    chunk: float = 85.8
    lone: float = 124.0
    turn: float = 229.0
    fast_hz: float = 1.86e9
    knee: float = 0.522
    heat: float = 0.299
    slope_hz: float = 0.547e9
    drift: float = 0.07


FITTED = ModelConstants()
"""The rates of an NVIDIA H200."""

BEFORE = ModelConstants(
    **dict.fromkeys(("off_lines", "off_sectors", "drift", "cluster", "counted", "balance"), 0.0),
    **dict.fromkeys(("beyond", "tail", "heat"), 0.0),
    **dict.fromkeys(("alone", "paired", "piece", "chunk", "lone", "turn"), 0.0),
    l2_bytes=71.6,
    shared=1.0,
    half=0.752,
    quarter=0.342,
    dram_share=0.809,
    dram_rate=0.96,
    straight=0.098,
    latency=403.0,
    stage=49.8,
    write_share=0.214,
    drain=122.0,
    epilogue=13.4,
    direct=2.7,
    thread_loads=0.659,
    sharpness=7.06,
    launch=5510.0,
    meet=1500.0,
    apart=1500.0,
    fast_hz=1.81e9,
    knee=0.232,
    slope_hz=0.297e9,
)
"""The constants as they were fitted to 1,200 bursts before the suite was measured; effects that were not known then are
zero. The notebooks show with them how far the model held on what it had not seen."""


@dataclass(frozen=True)
class Prediction:
    """What the model says, in clocks of an SM unless the name says otherwise.

    Args:
        seconds: of one launch.
        math, load, ring: of one stage, each if it alone set the pace; the load's own clocks are part of the ring's.
        epilogue: of one tile, where it is not overlapped.
        waves: rounds of the fullest SM.
        clock_hz: SM clock.
    """

    seconds: float
    math: float
    load: float
    ring: float
    epilogue: float
    waves: int
    clock_hz: float

    @property
    def limit(self) -> str:
        """What sets the pace of a stage: ``math``, ``load`` or ``ring``."""
        return max(("math", "load", "ring"), key=lambda name: getattr(self, name))


def predict(
    config: GemmConfig, problem: GemmProblem, sms: int = hopper.SM_COUNT, constants: ModelConstants = FITTED
) -> Prediction:
    """How long a legal config should take.

    Args:
        config: any legal config.
        problem: what is multiplied.
        sms: SMs of the GPU.
        constants: constants.

    Example:
        >>> cube = GemmProblem(4096, 4096, 4096)
        >>> predict(GemmConfig(tile_m=256), cube).seconds < predict(GemmConfig(tile_m=64), cube).seconds
        True
    """
    kernel = resolve(config)
    size, sides = kernel.cluster_size, tile_sides(kernel, problem.m, problem.n)
    fits, clusters = clusters_at_once(size, sms), prod(sides) * kernel.work_items
    ctas = _ctas_per_sm(kernel)
    slots = fits * ctas
    resident = slots if kernel.stream_k else min(slots, clusters)
    steps = ceil(ceil(problem.k / kernel.tile_k) / kernel.split_k)

    product = 2 * kernel.tile_m * kernel.tile_n * kernel.tile_k / hopper.FLOP_PER_CLOCK_PER_SM
    filled = constants.write_share * kernel.stage_bytes / SMEM_BYTES_PER_CLOCK
    math = max(product, product * _reads_per_math(kernel.share_n) + filled)
    if not kernel.stagger and kernel.consumers == 1:
        math += constants.drain
    taken = l2_bytes_per_stage(kernel, problem)
    load = _load(kernel, problem, taken, sides, resident, constants)
    ahead = max(0, kernel.stages - 1 - kernel.stagger)
    ring = (math + constants.latency + load) / (ahead + 1)
    ctas = min(ctas, ceil(clusters / fits))
    math, load = math * ctas, load * ctas
    each = _norm((math, load, ring), constants.sharpness)

    epilogue = constants.epilogue * kernel.accumulators * (constants.direct if kernel.stores == "direct" else 1.0)
    if kernel.stores == "tma":
        epilogue += kernel.chunks * (constants.chunk + (constants.lone if kernel.epi_buffers == 1 else 0.0))
    if kernel.work_items > 1:
        epilogue += constants.apart + _gather(kernel) / constants.l2_bytes
    elif kernel.split_k > 1:
        epilogue += constants.meet + kernel.tile_m * kernel.tile_n * 4 / SMEM_BYTES_PER_CLOCK
    rounds = ceil(clusters / resident)
    if kernel.schedule == "pingpong":  # the other consumer multiplies meanwhile, except after the last tile
        total = rounds * (max(each * steps, (each * steps + epilogue) / 2) + constants.turn) + epilogue
    else:
        early = kernel.persistent and kernel.specialised and kernel.staging == "own"
        idle = epilogue if early else epilogue + constants.latency + load
        whole, rest = divmod(clusters, resident)
        if kernel.stream_k and (rest or not whole):
            left = 2 * kernel.tile_m * kernel.tile_n * 4 / constants.l2_bytes + constants.apart
            left += 0 if whole else constants.piece * max(1.0, slots / rest - 1)
            total = whole * (each * steps + idle) + each * max(8, rest * steps / slots) + idle + left
        else:
            total = rounds * (each * steps + idle)
    if kernel.scheduler == "dynamic":
        total = total * (1 - constants.balance * (1 - 1 / rounds)) + constants.counted
    hidden = (constants.alone if size == 1 else constants.paired) if kernel.pdl else 0.0
    entry = constants.launch + (constants.cluster if size > 1 else 0.0)
    total += (
        entry * (1 - hidden) + constants.latency + load + constants.tail * ELEMENT_BYTES * kernel.tile_m * kernel.tile_n
    )

    stages = clusters * size * steps / (sms * total)
    busy = min(1.0, stages * product) + constants.heat * min(1.0, stages * sum(taken) / L2_PORT_BYTES)
    clock = constants.fast_hz - constants.slope_hz * max(0.0, busy - constants.knee)
    least = problem.bytes / (constants.dram_rate * hopper.HBM_BYTES_PER_SECOND) + constants.launch / clock
    seconds = _norm((total / clock, least), constants.sharpness)
    if seconds > DRIFTING and not kernel.pace:
        seconds *= 1 + constants.drift
    return Prediction(seconds, math, load, ring, epilogue, rounds, clock)


def _norm(limits: tuple[float, ...], sharpness: float) -> float:
    """The largest of several limits, rounded off where others come close."""
    most = max(limits)
    return most * sum([(one / most) ** sharpness for one in limits]) ** (1 / sharpness)


def _ctas_per_sm(kernel: Kernel) -> int:
    """CTAs that share an SM; a persistent launch has as many as it asks for."""
    if kernel.persistent or kernel.ctas_per_sm > 1:
        return kernel.ctas_per_sm
    by_memory = hopper.SMEM_BYTES_PER_SM // (kernel.smem_bytes + hopper.SMEM_SYSTEM_BYTES)
    if kernel.registers.moved:  # such a launch takes all there are
        return 1
    by_registers = hopper.REGISTERS_PER_SM // (kernel.threads * (kernel.accumulators + REGISTERS_BESIDE))
    return max(1, min(by_memory, by_registers))


def _gather(kernel: Kernel) -> float:
    """Bytes that a CTA writes to and reads from a workspace, to add up its part of a tile: it reads the chunks that it
    owns, of every part."""
    tile = 4 * kernel.tile_m * kernel.tile_n
    return tile * (1 + kernel.split_k * ceil(kernel.chunks / kernel.split_k) / kernel.chunks)


def _load(
    kernel: Kernel,
    problem: GemmProblem,
    taken: tuple[float, float],
    sides: tuple[int, int],
    resident: int,
    constants: ModelConstants,
) -> float:
    """Clocks in which an SM gets one stage while all others do.

    Args:
        kernel, problem, constants: as above.
        taken: of A and of B; see :func:`hopper_gemm.model.roofline.l2_bytes_per_stage`.
        sides: cluster tiles down and across the output.
        resident: clusters under way.
    """
    of_a, of_b = taken
    rate = constants.l2_bytes * {128: 1.0, 64: constants.half}.get(kernel.swizzle_bytes, constants.quarter)
    rate *= constants.thread_loads if kernel.loads != "tma" else 1.0
    patch = _patch(kernel, output_sides(kernel, problem.m, problem.n), resident / kernel.work_items)
    read = ELEMENT_BYTES * kernel.tile_k * kernel.split_k * sum(patch)
    read *= 1.0 if kernel.serpentine else 1.0 + constants.straight
    lines, sectors = _astray(problem)
    whole = ELEMENT_BYTES * kernel.tile_k * (kernel.tile_m / kernel.cluster_n + kernel.tile_n / kernel.cluster_m)
    asked = (of_a + of_b) * (1.0 + lines * constants.off_lines + sectors * constants.off_sectors - constants.beyond)
    asked += constants.beyond * whole
    spared = 1.0 - constants.shared if kernel.cluster_size == 1 else (1.0 - constants.shared) / 2
    walk, by_part = (kernel.raster, kernel.swizzle, kernel.serpentine), kernel.part_order == "part"
    again_a, again_b = _repeated(sides, walk, kernel.work_items, by_part, kernel.cluster_size)
    asked -= spared * (of_a * again_a + of_b * again_b)
    return asked / rate + constants.stage + constants.dram_share * read * DRAM_CLOCKS_PER_BYTE


@cache
def _repeated(
    sides: tuple[int, int], walk: tuple[str, int, bool], parts: int, by_part: bool, size: int
) -> tuple[float, ...]:
    """Share of the panels of A and of B, asked for by the clusters of one GPC at a time, that repeat another's.

    Args:
        sides: cluster tiles down and across the output.
        walk: raster, swizzle and serpentine.
        parts, by_part: split-K parts of a tile that follow in the work, and whether the tiles of a part do first.
        size: CTAs of a cluster.
    """
    (raster, swizzle, serpentine), tiles, stride = walk, prod(sides), 1 if size == 1 else TURNS
    items = range(0, min(stride * max(1, NEIGHBOURS // size), tiles * parts), stride)
    order = tile_order(*sides, raster, swizzle, serpentine, items.stop)
    asked: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
    for item in items:
        part, tile = divmod(item, tiles) if by_part else (item % parts, item // parts)
        for panels, at in zip(asked, order[tile], strict=True):
            panels.add((part, at))
    return tuple(1 - len(panels) / len(items) for panels in asked)


@cache
def _astray(problem: GemmProblem) -> tuple[float, float]:
    """Share of the operands whose rows start off the lines of the L2 but at sectors, and of those off its sectors."""
    rows = {"m": problem.m, "n": problem.n, "k": problem.k}
    starts = [ELEMENT_BYTES * rows[axis] % hopper.L2_LINE_BYTES for axis in problem.layouts]
    lines = sum(start in (32, 96) for start in starts)
    return lines / len(starts), sum(start % 32 > 0 for start in starts) / len(starts)


DRAM_CLOCKS_PER_BYTE = 1.58e9 / hopper.HBM_BYTES_PER_SECOND
"""At the SM clock of a burst."""


def _reads_per_math(share_n: int) -> float:
    """Clocks in which a wgmma reads its operands, 64 rows of A and n columns of B, for each in which it multiplies."""
    reads = ELEMENT_BYTES * hopper.WGMMA_K * (hopper.WGMMA_M + share_n) / SMEM_BYTES_PER_CLOCK
    return reads / (2 * hopper.WGMMA_M * share_n * hopper.WGMMA_K / hopper.FLOP_PER_CLOCK_PER_SM)


def _patch(kernel: Kernel, sides: tuple[int, int], resident: float) -> tuple[float, float]:
    """Rows and columns of the part of the output that is under way at once; see
    :func:`hopper_gemm.model.roofline.best_swizzle`."""
    rows, columns = kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n
    area = resident * rows * columns
    most_m, most_n = ceil(sides[0] / rows) * rows, ceil(sides[1] / columns) * columns
    if kernel.raster == "m":
        wide = min(kernel.swizzle * columns, most_n)
        return min(area / wide, most_m, sides[0]), min(wide, sides[1])
    tall = min(kernel.swizzle * rows, most_m)
    return min(tall, sides[0]), min(area / tall, most_n, sides[1])
