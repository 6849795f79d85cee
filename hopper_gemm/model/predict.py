"""How long a config should take on a problem: an analytic model, good enough to say what to try first.

An SM works through its waves of tiles, and through a tile stage by stage. The pace of a stage is set by the slowest of
three, rounded off where two come close:

* **math**: the tensor cores' clocks, or those of shared memory where a narrow wgmma reads its operands back faster
  than it multiplies them;
* **load**: what the SM must take from the L2 (multicast counted once), narrow swizzles at a lower rate, and its
  part of what all SMs under way read from DRAM, which raster, swizzle and cluster decide;
* **ring**: a slot comes round again when it was loaded, which takes a latency beside the load, and multiplied; with
  ``stages - 1 - stagger`` loads under way that time is shared among them and the one that is multiplied.

Beside the stages stand the epilogue, unless the other consumer multiplies meanwhile, what it takes to add up the parts
of a divided k, and what a launch costs; and no launch takes less than to read and write everything once. Where a launch
is not persistent, as many CTAs as fit share an SM. The clock follows the load of the tensor cores: beyond a certain
load the power cap lowers it, in a burst as well.

The constants were fitted, by a random descent on the error of the logarithm, to some 3,000 bursts of
``results/h200``: those of the seed table, options, ladder (without its clusters of four, whose launches were too
large), stagger, tile shape, raster, L2 promotion, divided k, early launches without a prefetch, and the searches of the
suite. Among configs within 15 % of the best of their problem the predicted time is off by 3.1 % (root mean square),
among all by 8 %. Of the hundred configs or so that were measured of each problem of the suite the one ranked first is
2.8 % behind the best in the median, 12 % at worst (1024^3).

How far it holds where it was not fitted: its constants of before (:data:`BEFORE`), from 1,200 bursts of square
problems nearly all, were off by 5.2 % near the best of the suite's searches, divided k, stream-K, swapped operands,
ping-pong and few rows included, none of which they had seen.

And where these constants were not: the second run over the suite and the space at 4096^3 and 8192^3, measured after,
are off by 4.8 and 3.8 % near their best; of the problems of the suite the first choice is 2.9 % behind in the median,
of the space 0 and 0.3 %. ``piece`` alone was set by them: stream-K without a whole wave, which cuts every tile, had
been taken for twice as fast as it is.

So were two more constants later, by searches on problems whose rows do not start at multiples of 64 bytes: at
3000x5000x2056 (rows of 4,112 bytes) configs without a cluster had been taken for 1.4 times as fast as they are, and the
model had chosen one of them. One is set by rows of an odd multiple of 16 bytes (2,056 and 6,888 elements), the other by
an odd multiple of 32 (3,408 and 3,696); an odd multiple of 64 (4,000) costs nothing.

``shared`` alone came from the study part-order (docs/neighbours.md): split-K with the tiles of a part side by side is
then off by 1 to 6 %, all too slow. That single CTAs share what they read without split-K as well, the model does not
know.

What it gave up for that: among the 25 tiles at 8192^3 it ranks at 0.74, where it ranked at 0.80 when it had been fitted
to little else. They differ by energy, which the model does not know.

An output of fp32 counts in what memory must take at least; its epilogue is taken for that of a 16-bit one, register for
register. At 16384^3, where a launch takes 11 ms, CTAs that do not meet (``pace``) drift apart and read panels two
and a half times: ``drift`` is the 7 % that it costs, and all that the model knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import Footprint, footprint
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import clusters_at_once, l2_bytes_per_stage, output_sides, work_items

SMEM_BYTES_PER_CLOCK = 128

DRIFTING = 5e-3
"""Seconds; longest of those where nothing of it was seen are launches of 2.3 ms."""

REGISTERS_BESIDE = 70
"""Registers of a thread beside its accumulators, where none are moved between the roles."""


@dataclass(frozen=True)
class Pace:
    """The constants of the model, clocks unless the name says otherwise.

    Args:
        l2_bytes: what an SM takes from the L2 each clock while all others do.
        off_lines, off_sectors: more of a load whose rows start at odd multiples of 32 bytes, so that three of four
            touch another line of the L2, and of 16, so that nearly all touch a sector more as well.
        shared: of a load's time, what is left where CTAs of one GPC have the same part of k and share what they read.
        half, quarter: rate of loads whose rows span 64 and 32 bytes, against 128.
        dram_share: clocks that a clock's worth of DRAM traffic adds to a load: reads come in clumps.
        dram_rate: of the memory's bandwidth, what a kernel can reach that reads each operand once.
        straight: more traffic where a group of tiles starts afresh instead of turning back.
        latency: from a free slot to its load's first byte, beyond what the load itself takes.
        stage: barriers and addresses of a stage, on the loading side.
        write_share: part of the ring's filling that gets in the way of wgmma's reads.
        drain: tensor cores without work between two stages of a lone consumer that keeps no wgmma group in flight.
        epilogue: for each accumulator register: convert, stage, store.
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
        slope_hz: by how much, for each further share of it.
    """

    l2_bytes: float = 76.0
    off_lines: float = 0.33
    off_sectors: float = 0.8
    shared: float = 0.5
    half: float = 0.73
    quarter: float = 0.305
    dram_share: float = 0.512
    dram_rate: float = 0.96
    straight: float = 0.131
    latency: float = 356.0
    stage: float = 54.8
    write_share: float = 0.371
    drain: float = 29.1
    epilogue: float = 15.5
    direct: float = 6.24
    thread_loads: float = 0.583
    sharpness: float = 5.04
    launch: float = 5570.0
    cluster: float = 900.0
    counted: float = 500.0
    balance: float = 0.01
    alone: float = 0.881
    paired: float = 0.25
    meet: float = 7800.0
    apart: float = 8310.0
    piece: float = 8500.0
    chunk: float = 64.3
    lone: float = 134.0
    turn: float = 342.0
    fast_hz: float = 1.86e9
    knee: float = 0.515
    slope_hz: float = 0.644e9
    drift: float = 0.07


FITTED = Pace()
"""The rates of an NVIDIA H200."""

BEFORE = Pace(
    **dict.fromkeys(("off_lines", "off_sectors", "drift", "cluster", "counted", "balance"), 0.0),
    **dict.fromkeys(("alone", "paired", "piece", "chunk", "lone", "turn"), 0.0),
    l2_bytes=71.6,
    shared=1.0,
    half=0.752,
    quarter=0.342,
    dram_share=0.809,
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


def predict(config: GemmConfig, problem: GemmProblem, sms: int = hopper.SM_COUNT, pace: Pace = FITTED) -> Prediction:
    """How long a legal config should take.

    Args:
        config: any legal config.
        problem: what is multiplied.
        sms: SMs of the GPU.
        pace: constants.

    Example:
        >>> cube = GemmProblem(4096, 4096, 4096)
        >>> predict(GemmConfig(tile_m=256), cube).seconds < predict(GemmConfig(tile_m=64), cube).seconds
        True
    """
    shares = footprint(config)
    config = shares.config
    assert isinstance(config.stages, int)
    ctas = _ctas_per_sm(shares)
    slots = clusters_at_once(config.cluster_size, sms) * ctas
    clusters = work_items(config, problem)
    resident = slots if config.stream_k else min(slots, clusters)
    steps = ceil(ceil(problem.k / config.tile_k) / config.split_k)

    product = 2 * config.tile_m * config.tile_n * config.tile_k / hopper.FLOP_PER_CLOCK_PER_SM
    filled = pace.write_share * shares.stage_bytes / SMEM_BYTES_PER_CLOCK
    math = max(product, product * _reads_per_math(shares.share_n) + filled)
    if not config.stagger and config.consumers == 1:
        math += pace.drain
    load = _load(shares, problem, sms, resident, pace)
    ahead = max(0, config.stages - 1 - config.stagger)
    ring = (math + pace.latency + load) / (ahead + 1)
    math, load = math * ctas, load * ctas
    each = _norm((math, load, ring), pace.sharpness)

    epilogue = pace.epilogue * shares.accumulators * (pace.direct if config.stores == "direct" else 1.0)
    if config.stores == "tma":
        epilogue += shares.chunks * (pace.chunk + (pace.lone if config.epi_buffers == 1 else 0.0))
    if config.work_items > 1:
        epilogue += pace.apart + _gather(shares) / pace.l2_bytes
    elif config.split_k > 1:
        epilogue += pace.meet + config.tile_m * config.tile_n * 4 / SMEM_BYTES_PER_CLOCK
    rounds = ceil(clusters / resident)
    if config.schedule == "pingpong":  # the other consumer multiplies meanwhile, except after the last tile
        total = rounds * (max(each * steps, (each * steps + epilogue) / 2) + pace.turn) + epilogue
    else:
        idle = epilogue if config.persistent and config.specialised else epilogue + pace.latency + load
        whole, rest = divmod(clusters, resident)
        if config.stream_k and (rest or not whole):
            left = 2 * config.tile_m * config.tile_n * 4 / pace.l2_bytes + pace.apart
            left += 0 if whole else pace.piece * max(1.0, slots / rest - 1)
            total = whole * (each * steps + idle) + each * max(8, rest * steps / slots) + idle + left
        else:
            total = rounds * (each * steps + idle)
    if config.scheduler == "dynamic":
        total = total * (1 - pace.balance * (1 - 1 / rounds)) + pace.counted
    hidden = (pace.alone if config.cluster_size == 1 else pace.paired) if config.pdl else 0.0
    entry = pace.launch + (pace.cluster if config.cluster_size > 1 else 0.0)
    total += entry * (1 - hidden) + pace.latency + load

    busy = min(1.0, clusters * config.cluster_size * steps * product / (sms * total))
    clock = pace.fast_hz - pace.slope_hz * max(0.0, busy - pace.knee)
    least = problem.bytes / (pace.dram_rate * hopper.HBM_BYTES_PER_SECOND) + pace.launch / clock
    seconds = _norm((total / clock, least), pace.sharpness)
    if seconds > DRIFTING and not config.pace:
        seconds *= 1 + pace.drift
    return Prediction(seconds, math, load, ring, epilogue, rounds, clock)


def _norm(limits: tuple[float, ...], sharpness: float) -> float:
    """The largest of several limits, rounded off where others come close."""
    most = max(limits)
    return most * sum((one / most) ** sharpness for one in limits) ** (1 / sharpness)


def _ctas_per_sm(shares: Footprint) -> int:
    """CTAs that share an SM; a persistent launch has as many as it asks for."""
    if shares.config.persistent or shares.config.ctas_per_sm > 1:
        return shares.config.ctas_per_sm
    by_memory = hopper.SMEM_BYTES_PER_SM // (shares.smem_bytes + hopper.SMEM_SYSTEM_BYTES)
    if shares.registers.moved:  # such a launch takes all there are
        return 1
    by_registers = hopper.REGISTERS_PER_SM // (shares.threads * (shares.accumulators + REGISTERS_BESIDE))
    return max(1, min(by_memory, by_registers))


def _gather(shares: Footprint) -> float:
    """Bytes that a CTA writes to and reads from a workspace, to add up its part of a tile: it reads the chunks that it
    owns, of every part."""
    config = shares.config
    tile = 4 * config.tile_m * config.tile_n
    return tile * (1 + config.split_k * ceil(shares.chunks / config.split_k) / shares.chunks)


def _load(shares: Footprint, problem: GemmProblem, sms: int, resident: int, pace: Pace) -> float:
    """Clocks in which an SM gets one stage while all others do."""
    config = shares.config
    rate = pace.l2_bytes * {128: 1.0, 64: pace.half}.get(shares.swizzle_bytes, pace.quarter)
    rate *= pace.thread_loads if config.loads != "tma" else 1.0
    patch = _patch(config, output_sides(config, problem.m, problem.n), resident / config.work_items)
    read = ELEMENT_BYTES * config.tile_k * config.split_k * sum(patch)
    read *= 1.0 if config.serpentine else 1.0 + pace.straight
    rate /= 1.0 + _astray(problem, pace)
    rate /= pace.shared if config.part_order == "part" and config.cluster_size == 1 else 1.0
    return l2_bytes_per_stage(config, problem) / rate + pace.stage + pace.dram_share * read * DRAM_CLOCKS_PER_BYTE


def _astray(problem: GemmProblem, pace: Pace) -> float:
    """How much more a load takes for where the rows of the matrices start, both operands counted alike."""
    rows = {"m": problem.m, "n": problem.n, "k": problem.k}
    starts = [ELEMENT_BYTES * rows[axis] % hopper.L2_LINE_BYTES for axis in problem.layouts]
    more = {0: 0.0, 64: 0.0, 32: pace.off_lines, 96: pace.off_lines}
    return sum(more.get(start, pace.off_sectors) for start in starts) / len(starts)


DRAM_CLOCKS_PER_BYTE = 1.58e9 / hopper.HBM_BYTES_PER_SECOND
"""At the SM clock of a burst."""


def _reads_per_math(share_n: int) -> float:
    """Clocks in which a wgmma reads its operands, 64 rows of A and n columns of B, for each in which it multiplies."""
    reads = ELEMENT_BYTES * hopper.WGMMA_K * (hopper.WGMMA_M + share_n) / SMEM_BYTES_PER_CLOCK
    return reads / (2 * hopper.WGMMA_M * share_n * hopper.WGMMA_K / hopper.FLOP_PER_CLOCK_PER_SM)


def _patch(config: GemmConfig, sides: tuple[int, int], resident: float) -> tuple[float, float]:
    """Rows and columns of the part of the output that is under way at once; see
    :func:`hopper_gemm.model.roofline.best_swizzle`."""
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    area = resident * rows * columns
    most_m, most_n = ceil(sides[0] / rows) * rows, ceil(sides[1] / columns) * columns
    if config.raster == "m":
        wide = min(config.swizzle * columns, most_n)
        return min(area / wide, most_m, sides[0]), min(wide, sides[1])
    tall = min(config.swizzle * rows, most_m)
    return min(tall, sides[0]), min(area / tall, most_n, sides[1])
